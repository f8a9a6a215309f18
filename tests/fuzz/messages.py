"""Targets: messages as clients make and open them, and as Spark reads them in bulk.

`blocks` takes an entry of any bytes: what the bulk reader makes of it is what a client's consumer gets from it, message
by message, or both refuse it. `messages` takes a client's messages with any keys, properties, times and compression
through its encoder, and gets them back.
"""

import itertools
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa

from magnetar.bulk import arrow_decoding
from magnetar.bulk.arrow_decoding import EntryDecoder, TimeWindow, encode_block
from magnetar.bulk.typed.columns import SCHEMA
from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.core.message_id import MessageId
from magnetar.client.producing.outbox import Batch, ignore
from magnetar.client.producing.outgoing import Outgoing
from magnetar.client.producing.partition_producer import EntryEncoder
from magnetar.protocol import entries
from magnetar.protocol.compression import CompressionType
from magnetar.protocol.entries import is_marker
from magnetar.protocol.errors import (
    ChecksumError,
    CryptoError,
    EntryCorrupt,
    MessageTooBig,
    NotAllowedError,
    OperationNotSupported,
    ProtocolError,
)

from .mutation import U32, mutate
from .target import Target, Wrong, quietly
from .wire import make_entry

_TOPIC = "persistent://public/default/t-partition-3"
_PARTITION = 3
_UNCOMPRESSED_MAX_BYTES = 1 << 20
_HUGE = 1 << 62
"""Times and sequence ids from here on are not compared: a timestamp of Arrow cannot hold them."""


def _open(entry: bytes) -> Sequence[Message] | None:
    """The messages of an entry as a consumer gets them."""
    try:
        metadata, payload = entries.parse_entry(entry)
        return ReceivedEntry(_TOPIC, _PARTITION, 7, 9, metadata, payload).open(_UNCOMPRESSED_MAX_BYTES)
    except (ProtocolError, ChecksumError, OperationNotSupported, CryptoError, MessageTooBig):
        return None


def _read(entry: bytes, window: TimeWindow | None = None, **bounds: int) -> list[dict[str, Any]] | None:
    """The rows of an entry as Spark gets them, through the bytes of a block."""
    arrow_decoding.UNCOMPRESSED_SIZE_MAX_BYTES = _UNCOMPRESSED_MAX_BYTES  # for an input's sake: memory is watched
    decoder = EntryDecoder(_TOPIC, _PARTITION, window)
    try:
        decoder.add(7, 9, entry, **bounds)
    except (EntryCorrupt, NotAllowedError):
        if decoder.rows:
            raise Wrong(f"{decoder.rows} rows of an entry that was refused are left") from None
        return None
    rows = decoder.rows
    with pa.ipc.open_stream(encode_block(decoder.take())) as reader:
        table = reader.read_all()
    table.validate(full=True)
    if table.num_rows != rows or table.schema != SCHEMA:
        raise Wrong(f"{table.num_rows} rows came of {rows}")
    times = {name: table.column(name).cast(pa.int64()).to_pylist() for name in ("__publishTime", "__eventTime")}
    rest = table.drop_columns(list(times)).to_pylist()
    return [row | {name: column[place] for name, column in times.items()} for place, row in enumerate(rest)]


def _compare(row: dict[str, Any], message: Message) -> None:
    wanted = {
        "value": None if message.has_null_value() else message.data(),
        "__topic": _TOPIC,
        "__partition": _PARTITION,
        "__publishTime": message.publish_timestamp() * 1000,
        "__producerName": message.producer_name(),
        "__messageProperties": list(message.properties().items()),
    }
    if message.partition_key():
        wanted["__key"] = message.partition_key()
    if 0 < message.event_timestamp() < _HUGE // 1000:
        wanted["__eventTime"] = message.event_timestamp() * 1000
    if 0 <= message.sequence_id() < _HUGE:
        wanted["__sequenceId"] = message.sequence_id()
    if wanted["__publishTime"] >= _HUGE:
        del wanted["__publishTime"]
    for name, value in wanted.items():
        if row[name] != value:
            raise Wrong(f"{name} is {row[name]!r} in bulk and {value!r} at a consumer")
    if MessageId.deserialize(row["__messageId"]) != message.message_id():
        raise Wrong(f"the message {message.message_id()} has another id in bulk")


def take_block(data: bytes) -> None:
    """The first two bytes are the bounds within a batch."""
    first, last, entry = data[0] if data else 0, data[1] if len(data) > 1 else 0, data[2:]
    messages, rows = _open(entry), _read(entry)
    if messages is None:
        if rows:  # none come of a marker, whatever is in it
            raise Wrong("the bulk reader takes what a consumer refuses")
        return
    if rows is None:
        if all(_plain(message) for message in messages):
            raise Wrong("the bulk reader refuses what a consumer takes")
        return
    if messages and is_marker(messages[0].entry.metadata):
        if rows:
            raise Wrong(f"{len(rows)} rows came of a marker")
        return
    if len(rows) != len(messages):
        raise Wrong(f"{len(rows)} rows, {len(messages)} messages")
    for row, message in zip(rows, messages, strict=True):
        _compare(row, message)
    if messages and messages[0].entry.batched:
        part = _read(entry, first_batch_index=first % 10 - 1, last_batch_index=last % 10 - 1)
        low, high = max(first % 10 - 1, 0), last % 10 - 1 if last % 10 else 1 << 60
        wanted = [row for row, one in zip(rows, messages, strict=True) if low <= one.message_id().batch_index() <= high]
        if part != wanted:
            raise Wrong(f"the messages {low} to {high} of a batch are {part}")
    if messages:
        now_ms = messages[0].publish_timestamp()
        if now_ms < _HUGE and (
            _read(entry, TimeWindow(now_ms, now_ms + 1)),
            _read(entry, TimeWindow(None, now_ms)),
        ) != (rows, []):
            raise Wrong("a window of time holds other messages than it should")


def _plain(message: Message) -> bool:
    """Nothing about it is beyond what a column can hold."""
    return message.publish_timestamp() < 1 << 53 and message.event_timestamp() < 1 << 53


def make_block(random: Random) -> bytes:
    return random.randbytes(2) + make_entry(random)


# ---- What a client makes ----

_WORDS = ["", "k", "a key", "ü€🜁", "\0", "x" * 300]
_TIMES = [0, 0, 1, 1_700_000_000_000, (1 << 53) - 1]


def _make_message(random: Random) -> Outgoing:
    words = [random.choice(_WORDS) for _ in range(4)]
    return Outgoing(
        None if random.random() < 0.1 else random.randbytes(random.choice((0, 1, 30, 400))),
        dict(itertools.pairwise(words)) if random.random() < 0.6 else None,
        random.choice([None, *_WORDS]),
        random.choice([None, *_WORDS]),
        random.choice([None, 0, 7, (1 << 62) - 1]),
        random.choice(_TIMES),
    )


def take_messages(data: bytes) -> None:
    """The bytes decide by chance what is sent; then byte by byte what is damaged on the way."""
    random = Random(data)
    batched = random.random() < 0.7
    count = random.choice((1, 1, 2, 5, 70)) if batched else 1
    sent = [_make_message(random) for _ in range(count)]
    pieces = [one.encode() if batched else one.payload for one in sent]
    batch = Batch(pieces, [ignore] * count, 40, 39 + count, batched=batched, encoded=batched, attributes=sent[0])
    encoder = EntryEncoder(random.choice(list(CompressionType)))
    encoder.registered_as(random.choice(("p", "ü")), random.choice((b"", bytes(8))))
    entries: Any = quietly(encoder.encode, batch, 1_700_000_000_000, allowed=(MessageTooBig,))
    if entries is None:
        raise Wrong("a small message is too big")
    (entry,) = entries
    messages, rows = _open(entry), _read(entry)
    if messages is None or rows is None or not len(messages) == len(rows) == count:
        raise Wrong("what was sent cannot be read")
    for message, row, one in zip(messages, rows, sent, strict=True):
        _compare(row, message)
        told = (
            message.data(),
            message.properties(),
            message.partition_key(),
            message.ordering_key(),
            message.event_timestamp(),
            message.has_null_value(),
        )
        if told != (
            one.payload,
            one.properties or {},
            one.partition_key or "",
            one.ordering_key or "",
            one.event_timestamp,
            one.content is None,
        ):
            raise Wrong(f"sent was {vars_of(one)}, received is {told}")
    take_block(b"\0\0" + mutate(entry, random))


def vars_of(message: Outgoing) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__slots__}


def make_messages(random: Random) -> bytes:
    return U32.pack(random.getrandbits(32))


TARGETS = [
    Target("blocks", make_block, take_block),
    Target("messages", make_messages, take_messages),
]
