"""Commands as bytes, ready for the socket.

`encode` frames any command message: `encode(CommandSuccess(request_id=7))`. The commands that flow once per entry are
written by hand below, because building protobuf objects costs several times as much. A test compares each with
protobuf's output. Headers (`message_header`, `send_header`) are everything of a frame before its entry, so that entries
are never copied: write the header, then the entry.

Ids of ledgers and entries may be −1 (a duplicate's receipt); on the wire they are unsigned 64-bit patterns.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import cast

from google.protobuf.message import EncodeError, Message

from .errors import ProtocolError
from .message_id import Position
from .pulsar_pb2 import BaseCommand, CommandError, CommandMessage, ServerError

_FRAME = Struct(">II")

BROKER_REQUEST_ID = (1 << 64) - 1
"""Of what a broker says unasked: CLOSE_PRODUCER, CLOSE_CONSUMER, the refusal of a connection."""
_UINT64_MASK = (1 << 64) - 1

# The class of a command's message → the bytes in front of its size: the type, then the tag of its field.
_PREFIXES: dict[str, bytes] = {}


def _encode_varint(value: int) -> bytes:
    value &= _UINT64_MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = tuple(_encode_varint(value) for value in range(1 << 14))
_CONTINUED = tuple(bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(1 << 14))


def varint(value: int) -> bytes:
    """A number as protobuf writes it; negative ones as their 64-bit pattern."""
    if 0 <= value < 1 << 14:
        return _SMALL[value]
    if 0 < value < 1 << 28:
        return _CONTINUED[value & 0x3FFF] + _SMALL[value >> 14]
    if 0 < value < 1 << 42:  # such as a time in ms since the epoch
        return _CONTINUED[value & 0x3FFF] + _CONTINUED[value >> 14 & 0x3FFF] + _SMALL[value >> 28]
    return _encode_varint(value)


for _field in BaseCommand.DESCRIPTOR.fields:
    if _field.message_type is not None:
        _PREFIXES[_field.message_type.full_name] = b"\x08" + varint(_field.number) + varint(_field.number << 3 | 2)


def _prefix(message: str) -> bytes:
    return _PREFIXES[f"magnetar.wire.{message}"]


_SEND = _prefix("CommandSend")
_SEND_RECEIPT = _prefix("CommandSendReceipt")
_MESSAGE = _prefix("CommandMessage")
_ACK = _prefix("CommandAck")
_FLOW = _prefix("CommandFlow")
_FIRST_DELIVERY = varint(CommandMessage.FIRST_DELIVERY_FIELD_NUMBER << 3) + b"\x01"


def encode(message: Message) -> bytes:
    """The frame of a command, given its own message (`CommandSuccess(…)`); the type follows from the class.

    ProtocolError if a required field is missing, KeyError for a class that is no command.
    """
    prefix = _PREFIXES[message.DESCRIPTOR.full_name]
    try:
        body = message.SerializeToString()
    except EncodeError as error:
        raise ProtocolError(f"the command is incomplete: {error}") from None
    return _framed(prefix, body)


def send_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int, partition: int = -1
) -> bytes:
    """SEND_RECEIPT: the entry is stored at that position. A duplicate's position is (−1, −1)."""
    producer, ledger, end = _receipt_parts(producer_id, ledger_id, partition)
    entry = varint(entry_id)
    body = b"%b%b\x1a%b%b%b%b" % (
        producer,
        varint(sequence_id),
        _SMALL[len(ledger) + len(entry) + len(end)],
        ledger,
        entry,
        end,
    )
    if highest_sequence_id:
        body += b"\x20" + varint(highest_sequence_id)
    return _framed(_SEND_RECEIPT, body)


@lru_cache(4096)
def _receipt_parts(producer_id: int, ledger_id: int, partition: int) -> tuple[bytes, bytes, bytes]:
    """What stays the same in the receipts of a producer and a ledger: before the sequence id, before and behind the
    entry id."""
    return (
        b"\x08%b\x10" % varint(producer_id),
        b"\x08%b\x10" % varint(ledger_id),
        b"\x18" + varint(partition) if partition >= 0 else b"",
    )


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    """SEND_ERROR with a number of `ServerError`."""
    text = message.encode("utf-8", "replace")
    body = b"\x08%b\x10%b\x18%b\x22%b%b" % (
        varint(producer_id),
        varint(sequence_id),
        varint(code),
        varint(len(text)),
        text,
    )
    return _framed(_prefix("CommandSendError"), body)


def message_header(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    redelivery_count: int,
    ack_set: Sequence[int] | None,
    entry_size: int,
    *,
    end: bytes = b"",
) -> bytes:
    """Everything of a MESSAGE before its entry of `entry_size` bytes.

    `ack_set`: words of 64 bits (signed or not), a bit still set is a message of the batch not yet acknowledged.
    `end`: what `message_end` says, which is the same for many entries.
    """
    message_id = _message_id(ledger_id, entry_id, partition)
    body = b"%b%b%b" % (_message_start(consumer_id), _SMALL[len(message_id)], message_id)
    if redelivery_count:
        body += b"\x18" + varint(redelivery_count)
    if ack_set:
        body += b"".join([b"\x20" + varint(word) for word in ack_set])
    return _framed(_MESSAGE, body + end, entry_size)


@lru_cache(1024)
def message_end(consumer_epoch: int | None, *, first_delivery: bool = False) -> bytes:
    """The last fields of a MESSAGE: the epoch of its consumer, and that its entry comes for the first time."""
    end = b"" if consumer_epoch is None else b"\x28" + varint(consumer_epoch)
    return end + _FIRST_DELIVERY if first_delivery else end


def send_header(
    producer_id: int,
    sequence_id: int,
    highest_sequence_id: int,
    num_messages: int,
    entry_size: int,
    *,
    is_chunk: bool = False,
) -> bytes:
    """Everything of a SEND before its entry of `entry_size` bytes. `highest_sequence_id` 0 is left out."""
    body = _send_start(producer_id) + varint(sequence_id)
    if num_messages != 1:
        body += b"\x18" + varint(num_messages)
    if highest_sequence_id:
        body += b"\x30" + varint(highest_sequence_id)
    if is_chunk:
        body += b"\x38\x01"
    return _framed(_SEND, body, entry_size)


@lru_cache(maxsize=1024)
def flow(consumer_id: int, permits: int) -> bytes:
    """FLOW: the consumer takes that many messages more."""
    return _framed(_FLOW, b"\x08%b\x10%b" % (varint(consumer_id), varint(permits)))


def ack(
    consumer_id: int,
    positions: Iterable[Position],
    *,
    cumulative: bool = False,
    request_id: int | None = None,
    partial: Iterable[tuple[int, int, Sequence[int], int]] = (),
) -> bytes:
    """ACK of whole entries at `positions`, and of parts of batches.

    `partial` has `(ledger id, entry id, ack set, batch size)`; bits still set in the ack set are not acknowledged.
    With a `request_id` the broker answers ACK_RESPONSE.
    """
    parts = [b"\x08", varint(consumer_id), b"\x10\x01" if cumulative else b"\x10\x00"]
    for ledger_id, entry_id in positions:
        message_id = _message_id(ledger_id, entry_id, -1)
        parts += (b"\x1a", _SMALL[len(message_id)], message_id)
    for ledger_id, entry_id, ack_set, batch_size in partial:
        words = b"".join([b"\x28" + varint(word) for word in ack_set])
        message_id = _message_id(ledger_id, entry_id, -1) + words + b"\x30" + varint(batch_size)
        parts += (b"\x1a", varint(len(message_id)), message_id)
    if request_id is not None:
        parts += (b"\x40", varint(request_id))
    return _framed(_ACK, b"".join(parts))


def ping() -> bytes:
    return _PING


def pong() -> bytes:
    return _PONG


def _message_id(ledger_id: int, entry_id: int, partition: int) -> bytes:
    """The content of a `MessageIdData`, below 40 bytes."""
    start, end = _id_parts(ledger_id, partition)
    return b"%b%b%b" % (start, varint(entry_id), end)


@lru_cache(4096)
def _id_parts(ledger_id: int, partition: int) -> tuple[bytes, bytes]:
    """What stays the same in the ids of a ledger's messages: before and behind the entry id."""
    return b"\x08%b\x10" % varint(ledger_id), b"\x18" + varint(partition) if partition >= 0 else b""


@lru_cache(4096)
def _message_start(consumer_id: int) -> bytes:
    """What stays the same in the MESSAGEs of a consumer: before the size of the message id."""
    return b"\x08%b\x12" % varint(consumer_id)


@lru_cache(4096)
def _send_start(producer_id: int) -> bytes:
    """What stays the same in the SENDs of a producer: before the sequence id."""
    return b"\x08%b\x10" % varint(producer_id)


def _framed(prefix: bytes, body: bytes, entry_size: int = 0) -> bytes:
    """The frame of a command whose message is `body`, up to where an entry of `entry_size` bytes follows."""
    size = _SMALL[len(body)] if len(body) < len(_SMALL) else varint(len(body))
    command_size = len(prefix) + len(size) + len(body)
    return b"%b%b%b%b" % (_FRAME.pack(4 + command_size + entry_size, command_size), prefix, size, body)


_PING = _framed(_prefix("CommandPing"), b"")
_PONG = _framed(_prefix("CommandPong"), b"")


def refusal(kind: int, request_id: int, error: int, message: str) -> bytes:
    """The frame that refuses a request of that type: the answer that its client waits for, if that answer can carry an
    error, else ERROR.
    """
    types = dict(BaseCommand.Type.items())
    names = {number: name for name, number in types.items()}
    number = types.get(f"{names[kind]}_RESPONSE")
    if number is not None:
        answer = getattr(BaseCommand(), BaseCommand.DESCRIPTOR.fields_by_number[number].name)
        for code, text in (("error", "message"), ("error_code", "error_message")):
            if code in answer.DESCRIPTOR.fields_by_name and text in answer.DESCRIPTOR.fields_by_name:
                answer.request_id = request_id
                setattr(answer, code, error)
                setattr(answer, text, message)
                if "response" in answer.DESCRIPTOR.fields_by_name:  # of LOOKUP and PARTITIONED_METADATA
                    answer.response = answer.Failed
                return encode(answer)
    return encode(CommandError(request_id=request_id, error=cast(ServerError, error), message=message))
