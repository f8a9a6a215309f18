"""Pulsar's frames: from chunks of a socket to commands, and from commands to bytes.

    simple        [u32 total][u32 command size][BaseCommand]
    with payload  the same, then the entry: [0x0e01][u32 crc32c][u32 metadata size][MessageMetadata][payload]

`total` does not count its own four bytes. SEND and MESSAGE carry an entry, nothing else does. An entry may have a
section `[0x0e02][u32 size][BrokerEntryMetadata]` in front; the decoder hands it over as it came, since it is stored
and delivered untouched. What is inside an entry is `entries`' concern.

A decoded command is complete: its type is known, and the message of that type is there. Every required field at any
depth is set, and every string is UTF-8. What does not hold this is a ProtocolError, never another exception.
"""

from struct import Struct
from typing import NamedTuple

from google.protobuf.message import DecodeError, EncodeError

from .byte_stream import FrameCutter
from .errors import ProtocolError
from .pulsar_pb2 import BaseCommand

# What a frame may have besides a message of the broker's largest size: the command and the message's metadata.
FRAME_PADDING_BYTES = 10 * 1024

MAGIC_CHECKSUM = b"\x0e\x01"
MAGIC_BROKER_METADATA = b"\x0e\x02"

_COMMAND_SIZE = Struct(">I")
_FRAME = Struct(">II")
_TOTAL_SIZE_BYTES = _FRAME.size - _COMMAND_SIZE.size

# The message that belongs to a type has the type's number as its field number.
FIELD_OF_TYPE: dict[int, str] = {
    number: BaseCommand.DESCRIPTOR.fields_by_number[number].name for number in BaseCommand.Type.values()
}

_SEND = int(BaseCommand.SEND)
_MESSAGE = int(BaseCommand.MESSAGE)


class Frame(NamedTuple):
    """One frame. `entry` is the bytes from the magic number to the end of the frame, for SEND and MESSAGE only."""

    command: BaseCommand
    entry: bytes | None


class FrameDecoder:
    """Turns chunks of a socket into frames of at most `frame_size_max` bytes (the size field not counted).

    After an error the stream is lost and every later `feed` raises ProtocolError: close the connection.
    """

    __slots__ = ("_cutter",)

    def __init__(self, frame_size_max: int) -> None:
        self._cutter = FrameCutter(frame_size_max, _COMMAND_SIZE.size)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the unfinished frame kept between chunks."""
        return self._cutter.buffered_bytes

    def allow(self, frame_size_max: int) -> None:
        """Take frames of this size from now on, also the one that has begun."""
        self._cutter.frame_size_max = frame_size_max

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """The frames that `data` completes, entries copied once.

        FrameTooLarge as soon as a size field exceeds the limit, ProtocolError for anything malformed.
        """
        cutter = self._cutter
        size = len(data) - _TOTAL_SIZE_BYTES
        if (
            cutter.between_frames
            and cutter.frame_size_min <= size <= cutter.frame_size_max
            and int.from_bytes(data[:_TOTAL_SIZE_BYTES]) == size
        ):
            # The usual chunk at a small load: one whole frame.
            view, cuts = memoryview(data), [(_TOTAL_SIZE_BYTES, len(data))]
        else:
            view, cuts = cutter.cut(data)
        frames: list[Frame] = []
        try:
            for start, end in cuts:
                command_start = start + _COMMAND_SIZE.size
                command_end = command_start + _COMMAND_SIZE.unpack_from(view, start)[0]
                if command_end > end:
                    raise ProtocolError("a command is larger than its frame", frame_size_bytes=end - start)
                command = decode_command(view[command_start:command_end])
                entry: bytes | None = None
                kind = command.type
                if kind == _SEND or kind == _MESSAGE:
                    entry = bytes(view[command_end:end])
                    if not entry.startswith((MAGIC_CHECKSUM, MAGIC_BROKER_METADATA)):
                        raise ProtocolError("a message has no checksum", size_bytes=len(entry))
                elif command_end != end:
                    raise ProtocolError(
                        "a command that has no payload is followed by bytes", command=FIELD_OF_TYPE[kind]
                    )
                frames.append(Frame(command, entry))
        except ProtocolError:
            self._cutter.fail()
            raise
        return frames


def encode_command(command: BaseCommand) -> bytes:
    """A frame without payload; ProtocolError if a required field of `command` is missing."""
    try:
        body = command.SerializeToString()
    except EncodeError as error:
        raise ProtocolError(f"the command is incomplete: {error}") from None
    size = len(body)
    return _FRAME.pack(size + _COMMAND_SIZE.size, size) + body


def decode_command(data: bytes | bytearray | memoryview) -> BaseCommand:
    """The complete command in `data` (no sizes in front); ProtocolError for anything else."""
    try:
        command = BaseCommand.FromString(data)  # pyright: ignore[reportArgumentType]
    except DecodeError as error:
        raise ProtocolError(f"a command cannot be decoded: {error}") from None
    # The checks run in this order because an unknown type is a missing required field to protobuf.
    if not command.IsInitialized():
        raise ProtocolError("a command lacks its type or a required field")
    field = FIELD_OF_TYPE[command.type]
    if not command.HasField(field):  # pyright: ignore[reportArgumentType]
        raise ProtocolError(f"a command of type {field} lacks its message", command=field)
    return command
