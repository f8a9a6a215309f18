"""Targets without I/O: frames, entries, batches and the messages of the internal RPC."""

import zlib
from collections.abc import Callable
from random import Random

from magnetar.client.consuming.message import ReceivedEntry
from magnetar.client.core.message_id import MessageId
from magnetar.protocol import batches, bookie_wire, compression, entries, frames, rpc_frames
from magnetar.protocol.errors import (
    ChecksumError,
    CryptoError,
    EntryCorrupt,
    FrameTooLarge,
    HandshakeRefused,
    MagnetarError,
    MessageTooBig,
    OperationNotSupported,
    ProtocolError,
    error_to_wire,
)
from magnetar.protocol.message_id import WireMessageId
from magnetar.runtime.rpc import handshake as rpc_handshake
from magnetar.runtime.rpc import messages as rpc_messages
from support.files.rpc_frames import encode_frame_header

from .mutation import mutate
from .target import Target, Wrong, quietly
from .wire import FROM_BROKERS, FROM_CLIENTS, make_batch, make_entry, make_stream

FRAME_MAX_BYTES = 1 << 14
PAYLOAD_MAX_BYTES = 1 << 20

# ---- Pulsar's frames ----


def _chunks(data: bytes) -> tuple[bytes, list[bytes]]:
    """The stream behind the first byte, whole, and in chunks as that byte says."""
    step, stream = 1 + (data[0] if data else 0) % 97, data[1:]
    return stream, [stream[start : start + step] for start in range(0, len(stream), step)]


def _outcome(
    decoder: frames.FrameDecoder, chunks: list[bytes]
) -> tuple[list[frames.Frame], type[MagnetarError] | None]:
    found: list[frames.Frame] = []
    try:
        for chunk in chunks:
            found += decoder.feed(chunk)
            if decoder.buffered_bytes > 4 + FRAME_MAX_BYTES:
                raise Wrong(f"{decoder.buffered_bytes} bytes are kept between chunks")
    except (ProtocolError, FrameTooLarge) as error:
        quietly(decoder.feed, b"", allowed=(ProtocolError,))
        return found, type(error)
    return found, None


def take_frames(data: bytes) -> None:
    """Chunks do not change what a stream means; every command has all that is required, and goes there and back."""
    stream, chunks = _chunks(data)
    found, failed = _outcome(frames.FrameDecoder(FRAME_MAX_BYTES), chunks)
    whole, whole_failed = _outcome(frames.FrameDecoder(FRAME_MAX_BYTES), [stream])
    if (failed is None) is not (whole_failed is None) or (failed is None and found != whole):
        raise Wrong(f"in chunks {len(found)} frames and {failed}, at once {len(whole)} and {whole_failed}")
    for command, entry in found:
        str(command)
        body = frames.encode_command(command)
        if frames.decode_command(body[8:]) != command:
            raise Wrong("a command is not what it was")
        if entry is not None:
            take_entry(entry)


def make_frames(random: Random) -> bytes:
    return random.randbytes(1) + make_stream(random, random.choice((FROM_CLIENTS, FROM_BROKERS)))


# ---- Entries and batches ----


def take_entry(data: bytes) -> None:
    """As a broker and a client read it; a client looks at every message."""
    errors = (ProtocolError, ChecksumError)
    for function in (entries.parse_broker_metadata, entries.entry_checksum_ok, entries.parse_metadata):
        quietly(function, data, allowed=errors)
    for verify in (True, False):
        try:
            metadata, payload = entries.parse_entry(data, verify=verify)
            received = ReceivedEntry("t", -1, 1, 2, metadata, payload, ack_set=(1 << 63, 5))
        except errors:
            continue
        if received.count > 1 << 32:
            raise Wrong(f"{received.count} messages")
        try:
            messages = received.open(PAYLOAD_MAX_BYTES)
        except (ProtocolError, OperationNotSupported, CryptoError, MessageTooBig):
            continue
        if len(messages) > received.count:
            raise Wrong("more messages than were announced")
        for message in messages:
            message.properties()
            message.ordering_key()
            message.partition_key()
            message.sequence_id()
            message.event_timestamp()
            again = MessageId.deserialize(message.message_id().serialize())
            if again != message.message_id():
                raise Wrong("a message id is not what it was")


def take_batch(data: bytes) -> None:
    """The first two bytes are the count; both readers agree; what was decoded makes up the batch."""
    count = int.from_bytes(data[:2], "big", signed=True)
    payload = data[2:]
    decoded = quietly(batches.decode_batch, payload, count, allowed=(ProtocolError,))
    plain = quietly(batches.decode_payloads, payload, count, allowed=(ProtocolError,))
    if decoded is None or plain is None:
        if decoded is not plain:
            raise Wrong("one reader takes what the other refuses")
        return
    assert isinstance(decoded, list)
    if [message for _, message in decoded] != plain or len(decoded) != count:
        raise Wrong("the readers do not agree")
    assert isinstance(plain, list)
    # Not byte by byte: a size may be written in more bytes than it needs.
    if batches.decode_payloads(batches.encode_batch(plain), count) != plain:
        raise Wrong("plain messages are not what they were")


def make_batch_input(random: Random) -> bytes:
    payload, count = make_batch(random)
    if random.random() < 0.7:
        payload = mutate(payload, random)
    if random.random() < 0.1:
        count = random.choice((0, -1, count + 1, 0x7FFF))
    return count.to_bytes(2, "big", signed=True) + payload


def take_compressed(data: bytes) -> None:
    """[kind][u24 announced size] and the compressed payload: exactly so many bytes come out, or an error."""
    if len(data) < 4:
        return
    kind, announced = data[0] % 6, int.from_bytes(data[1:4], "big")
    out = quietly(compression.decompress, kind, data[4:], announced, PAYLOAD_MAX_BYTES, allowed=(ProtocolError,))
    if out is not None:
        assert isinstance(out, bytes)
        if len(out) > PAYLOAD_MAX_BYTES or (kind and len(out) != announced):
            raise Wrong(f"{len(out)} bytes came out, {announced} were announced")


def make_compressed(random: Random) -> bytes:
    kind = random.randrange(5)
    plain = random.choice((random.randbytes(random.randrange(300)), bytes(random.randrange(1 << 16)), b"ab" * 999, b""))
    body = compression.compress(kind, plain)
    if random.random() < 0.2 and kind == compression.CompressionType.ZLIB:
        body += zlib.compress(plain)
    size = len(plain) if random.random() < 0.8 else random.choice((0, 1, len(plain) + 1, (1 << 24) - 1))
    head = bytes([kind]) + size.to_bytes(3, "big")
    return head + (body if random.random() < 0.2 else mutate(body, random))


# ---- Internal RPC ----

_IDENTITY = rpc_handshake.Identity("cluster", "broker", "k1", "i9")
_ENTRY = bookie_wire.encode_entry_header(1, 0, 2, 1, 4, b"body") + b"body"

_MESSAGES: list[tuple[Callable[[bytes], object], tuple[type[Exception], ...], bytes]] = [
    (rpc_handshake.decode_hello, (ProtocolError, HandshakeRefused), rpc_handshake.encode_hello(_IDENTITY, bytes(16))),
    (rpc_handshake.decode_challenge, (ProtocolError,), rpc_handshake.encode_challenge(_IDENTITY, bytes(16), b"proof")),
    (
        rpc_messages.decode_call,
        (ProtocolError,),
        rpc_messages.pack(["method", {"a": [1, b"x", None], "b": {"c": 1.5}}]),
    ),
    (rpc_messages.unpack, (ProtocolError,), rpc_messages.pack({"a": [1, b"x", None, {1: True}]})),
    (rpc_messages.decode_error, (ProtocolError,), rpc_messages.pack(["BadVersion", "stale", {"version": 3}])),
    (bookie_wire.decode_entry, (EntryCorrupt,), _ENTRY),
    (bookie_wire.decode_entry_header, (EntryCorrupt,), _ENTRY),
    (bookie_wire.entry_intact, (), _ENTRY),
    (bookie_wire.decode_add, (ProtocolError,), b"\x01" + _ENTRY),
    (bookie_wire.decode_read, (ProtocolError,), bookie_wire.encode_read(1, 0, 2, 3, 4)),
    (
        bookie_wire.decode_read_answer,
        (ProtocolError,),
        b"".join(bookie_wire.encode_read_answer(5, [_ENTRY, _ENTRY])),
    ),
    (bookie_wire.decode_ledger, (ProtocolError,), bytes(16)),
    (bookie_wire.decode_ledger_end, (ProtocolError,), bytes(16)),
    (WireMessageId.deserialize, (ProtocolError,), WireMessageId(1, 2, 3, 4, 5).serialize()),
    (MessageId.deserialize, (ProtocolError,), MessageId(1, 2, 3, 4, 5).serialize()),
]


def take_message(data: bytes) -> None:
    """[which] and the bytes of one internal message: only that decoder's own errors; what passes can be used."""
    if not data:
        return
    decode, allowed, _ = _MESSAGES[data[0] % len(_MESSAGES)]
    value = quietly(decode, data[1:], allowed=allowed)
    str(value)
    if isinstance(value, MagnetarError):
        rpc_messages.decode_error(rpc_messages.pack(list(error_to_wire(value))))  # what came in can go out again


def make_message(random: Random) -> bytes:
    which = random.randrange(len(_MESSAGES))
    data = _MESSAGES[which][2]
    if random.random() < 0.9:
        data = mutate(data, random, [message for _, _, message in _MESSAGES])
    return bytes([which]) + data


def take_rpc_frames(data: bytes) -> None:
    """Chunks do not change what a stream of internal frames means, and little is kept between them."""
    stream, chunks = _chunks(data)
    outcomes = []
    for pieces in (chunks, [stream]):
        decoder, found = rpc_frames.RpcFrameDecoder(FRAME_MAX_BYTES), []
        try:
            for piece in pieces:
                found += decoder.feed(piece)
                if decoder.buffered_bytes > 4 + FRAME_MAX_BYTES:
                    raise Wrong(f"{decoder.buffered_bytes} bytes are kept between chunks")
        except (ProtocolError, FrameTooLarge):
            found = None
        outcomes.append(found)
    if outcomes[0] != outcomes[1]:
        raise Wrong("chunks change the outcome")


def make_rpc_frames(random: Random) -> bytes:
    stream = b""
    for _ in range(random.randint(1, 12)):
        payload = _MESSAGES[random.randrange(len(_MESSAGES))][2]
        stream += encode_frame_header(random.randrange(3), random.randrange(5), 7, len(payload)) + payload
    return random.randbytes(1) + (mutate(stream, random) if random.random() < 0.7 else stream)


TARGETS = [
    Target("frames", make_frames, take_frames),
    Target("entries", make_entry, take_entry),
    Target("batches", make_batch_input, take_batch),
    Target("compression", make_compressed, take_compressed),
    Target("rpc-frames", make_rpc_frames, take_rpc_frames),
    Target("rpc-messages", make_message, take_message),
]
