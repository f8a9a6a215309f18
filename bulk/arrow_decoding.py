"""Entries of a ledger into Arrow record batches: what runs once for every entry of a bulk read.

An `EntryDecoder` is given the stored bodies in order, leaves out what lies outside its bounds, and fills a
`MessageTable`. Bounds are exact: inside a batch by batch index, and by publish time, which is that of the entry. Every
checksum is verified. An entry that cannot be decoded ends the read with an error; nothing is ever skipped silently.

Chunks are collected (`chunks`). When the last one of a message came, `add` gives what there is to the caller, who looks
for the rest (`look_back`) and calls `add_whole`.

The common case is a batch of plain payloads of one size. It is recognized by comparing all message headers at once, and
its values are copied out with one strided copy. Other batches go through the message headers one by one.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..protocol.batches import MESSAGE_SIZE_MIN_BYTES, decode_batch, plain_header
from ..protocol.compression import CompressionType, decompress
from ..protocol.entries import is_batch, is_marker, message_count, parse_entry
from ..protocol.errors import ChecksumError, EntryCorrupt, MagnetarError, ProtocolError
from ..protocol.message_id import Position, signed64
from ..protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from .chunks import ChunkContent, LastChunk, SplitChunks, StoredChunk, chunk_in
from .decryption import NO_KEYS, EntryOpener, ReadKeys
from .message_table import HEADER_COLUMNS, INT64_MAX, VALUE, EntryFields, Extras, MessageTable, Values
from .typed.choice import PAYLOADS, RowShape
from .typed.rows import TypedRows

UNCOMPRESSED_SIZE_MAX_BYTES = 512 << 20
"""The most that one entry may unfold to; a bound on what a lying header can make us allocate."""


_PLAIN = SingleMessageMetadata(payload_size=0)
NOTHING = Values(b"", 0)
"""In place of payloads that nobody asked for."""


class TimeWindow(NamedTuple):
    """Publish times in milliseconds: from `start_ms`, before `end_ms`; None leaves that side open."""

    start_ms: int | None = None
    end_ms: int | None = None

    def holds(self, publish_time_ms: int) -> bool:
        return (self.start_ms is None or publish_time_ms >= self.start_ms) and (
            self.end_ms is None or publish_time_ms < self.end_ms
        )

    def intersection(self, other: "TimeWindow") -> "TimeWindow":
        """The times that lie in both."""
        starts = [one for one in (self.start_ms, other.start_ms) if one is not None]
        ends = [one for one in (self.end_ms, other.end_ms) if one is not None]
        return TimeWindow(max(starts, default=None), min(ends, default=None))


class EntryDecoder:
    """Decodes entries of one topic or partition. Not thread-safe."""

    def __init__(
        self,
        topic: str,
        partition: int,
        window: TimeWindow | None = None,
        shape: RowShape = PAYLOADS,
        keys: ReadKeys = NO_KEYS,
    ) -> None:
        """Only the columns of `shape` are decoded. Payloads and headers that none of them needs stay untouched.
        What is encrypted then stays so, unless the rows depend on it (`decryption`).
        """
        self._typed = None if shape.typed is None else TypedRows(topic, shape)
        columns = shape.columns if self._typed is None else self._typed.needed
        self._topic = topic
        self._window = window or TimeWindow()
        self._table = MessageTable(topic, partition, columns)
        self._has_value = VALUE in columns
        self._has_payload = self._has_value or not HEADER_COLUMNS.isdisjoint(columns)
        self._opener = EntryOpener(keys)
        self._chunks = SplitChunks()

    @property
    def rows(self) -> int:
        """Messages decoded and not yet taken."""
        return self._table.rows

    @property
    def size_bytes(self) -> int:
        """About how large the next record batch would be."""
        return self._table.size_bytes

    def take(self) -> pa.RecordBatch:
        """Everything decoded since the last call. Raises what `TypedRows.decode` raises."""
        entries = self._table.entries()
        batch = self._table.take()
        return batch if self._typed is None else self._typed.decode(batch, entries)

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | memoryview,
        *,
        first_batch_index: int = -1,
        last_batch_index: int = -1,
        compacted_at: Position | None = None,
    ) -> LastChunk | None:
        """Decode one entry. With a batch index ≥ 0 only messages from (or up to) that index, inclusive, count.

        `compacted_at` is the place of an entry in a compacted ledger, where the headers say which messages are left.
        What is returned may be a whole message; the caller looks for its chunks, and gives them to `add_whole`.

        Raises EntryCorrupt when the bytes do not match their checksums and headers, CryptoError for what cannot be
        decrypted.
        """
        try:
            return self._add(ledger_id, entry_id, body, first_batch_index, last_batch_index, compacted_at)
        except (ProtocolError, ChecksumError, UnicodeDecodeError) as error:
            raise self._corrupt((ledger_id, entry_id), error) from error
        except MagnetarError as error:
            error.details |= {"ledger_id": ledger_id, "entry_id": entry_id, "topic": self._topic}
            raise

    def add_parsed(
        self,
        position: Position,
        metadata: MessageMetadata,
        payload: bytes | memoryview,
        wanted: range,
    ) -> None:
        """Decode an entry that has been received and checked, and is no chunk: its messages at these batch indexes.

        `wanted` is `range(1)` for a message sent alone. Raises as `add` does.
        """
        try:
            self._add_entry(position, metadata, payload, wanted.start, wanted.stop - 1, None)
        except (ProtocolError, UnicodeDecodeError) as error:
            raise self._corrupt(position, error) from error
        except MagnetarError as error:
            error.details |= {"ledger_id": position[0], "entry_id": position[1], "topic": self._topic}
            raise

    def add_whole(self, chunks: Sequence[StoredChunk]) -> None:
        """Decode a message in chunks, which are all of them in order. Raises as `add` does."""
        position = chunks[-1].position
        try:
            self._add_whole(chunks)
        except (ProtocolError, UnicodeDecodeError) as error:
            raise self._corrupt(position, error) from error
        except MagnetarError as error:
            error.details |= {"ledger_id": position[0], "entry_id": position[1], "topic": self._topic}
            raise

    def _corrupt(self, position: Position, error: Exception) -> EntryCorrupt:
        ledger_id, entry_id = position
        return EntryCorrupt(
            f"entry {ledger_id}:{entry_id} of {self._topic} cannot be decoded: {error}",
            ledger_id=ledger_id,
            entry_id=entry_id,
            topic=self._topic,
        )

    def _add(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | memoryview,
        first_batch_index: int,
        last_batch_index: int,
        compacted_at: Position | None,
    ) -> LastChunk | None:
        metadata, payload = parse_entry(body)
        if metadata.num_chunks_from_msg > 1:
            return self._add_chunk((ledger_id, entry_id), compacted_at, metadata, payload)
        position = (ledger_id, entry_id)
        self._add_entry(position, metadata, payload, first_batch_index, last_batch_index, compacted_at)
        return None

    def _add_entry(
        self,
        position: Position,
        metadata: MessageMetadata,
        payload: bytes | memoryview,
        first_batch_index: int,
        last_batch_index: int,
        compacted_at: Position | None,
    ) -> None:
        publish_time_ms = signed64(metadata.publish_time)
        if is_marker(metadata) or not self._window.holds(publish_time_ms):
            return
        batch_size = message_count(metadata) if is_batch(metadata) else 0
        entry = EntryFields(
            *position,
            batch_size,
            publish_time_ms,
            metadata.producer_name,
            signed64(metadata.sequence_id),
            metadata.schema_version,
        )
        first = max(first_batch_index, 0)
        last = batch_size if last_batch_index < 0 else min(last_batch_index + 1, batch_size)
        wanted = range(first, last) if batch_size else range(1)
        if metadata.encryption_keys:
            self._add_encrypted(entry, metadata, payload, wanted)
        elif not self._has_payload and compacted_at is None:
            self._table.add(entry, wanted, NOTHING)
        else:
            self._add_messages(entry, metadata, payload, wanted)

    def _add_messages(
        self, entry: EntryFields, metadata: MessageMetadata, data: bytes | memoryview, wanted: range
    ) -> None:
        """The messages of an entry, or the one in several chunks, of which `data` is the payload, decrypted."""
        if metadata.compression != CompressionType.NONE and (entry.batch_size or self._has_value):
            data = decompress(metadata.compression, data, metadata.uncompressed_size, UNCOMPRESSED_SIZE_MAX_BYTES)
        if entry.batch_size:
            if wanted:
                _add_batch(self._table, entry, data, wanted)
        elif metadata.null_value:
            self._table.add(entry, wanted, Values(b"", 0, (0,)), extras=_extras_of_one(metadata))
        else:
            # Bytes, because the garbage collector looks through views that are kept.
            self._table.add(entry, wanted, Values(bytes(data), len(data)), extras=_extras_of_one(metadata))

    def _add_encrypted(
        self, entry: EntryFields, metadata: MessageMetadata, payload: bytes | memoryview, wanted: range
    ) -> None:
        if not wanted:
            return
        if not (self._opener.decides or self._has_value or (self._has_payload and entry.batch_size)):
            extras = None if entry.batch_size else _extras_of_one(metadata)
            self._table.add(entry, wanted, NOTHING, extras=extras)
            return
        opened = self._opener.open([(metadata, payload)])
        if opened is None:
            return
        if opened.is_decrypted:
            self._add_messages(entry, metadata, opened.payload, wanted)
        else:
            self._add_as_it_is(entry, metadata, opened.payload)

    def _add_as_it_is(self, entry: EntryFields, metadata: MessageMetadata, payload: bytes) -> None:
        """What nobody could decrypt is one message, whatever it holds."""
        alone = entry._replace(batch_size=0)
        self._table.add(alone, range(1), Values(payload, len(payload)), extras=_extras_of_one(metadata))

    def _add_chunk(
        self, position: Position, compacted_at: Position | None, metadata: MessageMetadata, payload: memoryview
    ) -> LastChunk | None:
        chunk = chunk_in(metadata, compacted_at or position, position)
        keeps = self._has_value or (self._opener.decides and bool(metadata.encryption_keys))
        content = ChunkContent(metadata, bytes(payload) if keeps else b"")
        last = self._chunks.arrive(chunk, content, keeps_payload=keeps)
        # The last chunk says when the message was published: the others count wherever they lie in the read.
        return last if self._window.holds(signed64(metadata.publish_time)) else None

    def _add_whole(self, chunks: Sequence[StoredChunk]) -> None:
        contents = [chunk.content for chunk in chunks if chunk.content is not None]
        metadata, _ = contents[-1]
        if is_batch(metadata):
            raise ProtocolError("it says that it is a batch, and a chunk of a larger message")
        entry = EntryFields(
            *chunks[-1].position,
            0,
            signed64(metadata.publish_time),
            metadata.producer_name,
            signed64(metadata.sequence_id),
            metadata.schema_version,
            first_chunk=chunks[0].position,
        )
        data = b""
        if metadata.encryption_keys and (self._has_value or self._opener.decides):
            opened = self._opener.open(contents)
            if opened is None:
                return
            data = opened.payload
            if not opened.is_decrypted:
                self._add_as_it_is(entry, metadata, data)
                return
        elif self._has_value:
            data = b"".join([payload for _, payload in contents])
        if self._has_value and len(data) != chunks[-1].total_bytes:
            raise ProtocolError(f"its chunks have {len(data)} bytes together, but claim {chunks[-1].total_bytes}")
        self._add_messages(entry, metadata, data, range(1))


def encode_block(batch: pa.RecordBatch) -> bytes:
    """A record batch as an Arrow IPC stream, the form in which Spark's executors take blocks."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _add_batch(table: MessageTable, entry: EntryFields, data: bytes | memoryview, wanted: range) -> None:
    """The messages of a batch at the indexes `wanted`."""
    uniform = _uniform_values(data, entry.batch_size)
    if uniform is not None:
        values = np.ascontiguousarray(uniform[wanted.start : wanted.stop]).reshape(-1)
        table.add(entry, wanted, Values(values.data, uniform.shape[1]))
        return

    messages = decode_batch(data, entry.batch_size)[wanted.start : wanted.stop]
    payloads = [payload for _, payload in messages]
    if all(header is None for header, _ in messages):
        table.add(entry, wanted, Values(b"".join(payloads), list(map(len, payloads))))
        return

    indexes: range | list[int] = wanted
    headers = [_PLAIN if header is None else header for header, _ in messages]
    if any([header.compacted_out for header in headers]):
        kept = [place for place, header in enumerate(headers) if not header.compacted_out]
        indexes = [wanted[place] for place in kept]
        headers = [headers[place] for place in kept]
        payloads = [payloads[place] for place in kept]
    nulls = [place for place, header in enumerate(headers) if header.null_value]
    for place in nulls:
        payloads[place] = b""
    table.add(
        entry,
        indexes,
        Values(b"".join(payloads), list(map(len, payloads)), nulls),
        sequence_ids=_sequence_ids(headers, entry.sequence_id, indexes),
        extras=_extras(headers),
    )


def _sequence_ids(
    headers: Sequence[SingleMessageMetadata], first: int, indexes: range | list[int]
) -> np.ndarray | None:
    """Those that the messages carry themselves; None if none does."""
    own = np.array([header.HasField("sequence_id") for header in headers], dtype=bool)
    if not own.any():
        return None
    given = np.array([header.sequence_id for header in headers], dtype=np.uint64).astype(np.int64)
    return np.where(own, given, np.array(indexes, dtype=np.int64) + first)


def _extras(headers: Sequence[MessageMetadata | SingleMessageMetadata]) -> Extras | None:
    keys = [header.partition_key if header.HasField("partition_key") else None for header in headers]
    times_ms = [header.event_time for header in headers]
    properties = None
    if any([len(header.properties) for header in headers]):
        properties = [{item.key: item.value for item in header.properties} for header in headers]
    if properties is None and not any(times_ms) and keys.count(None) == len(keys):
        return None
    if max(times_ms) > INT64_MAX:
        times_ms = [signed64(time_ms) for time_ms in times_ms]
    return Extras(keys, times_ms, properties)


def _extras_of_one(header: MessageMetadata) -> Extras | None:
    """Those of a message without a batch. Most have none."""
    if header.HasField("partition_key") or header.HasField("event_time") or header.properties:
        return _extras([header])
    return None


def _uniform_values(data: bytes | memoryview, count: int) -> np.ndarray | None:
    """The payloads of a batch as the rows of a matrix, if all are plain and of one size."""
    message_size, left = divmod(len(data), count)
    if left or message_size < MESSAGE_SIZE_MIN_BYTES:
        return None
    values_start = 4 + int.from_bytes(data[:4], "big")
    if values_start > message_size:
        return None
    header = plain_header(message_size - values_start)
    if data[:values_start] != header:
        return None
    rows = np.frombuffer(data, dtype=np.uint8).reshape(count, message_size)
    if not (rows[:, :values_start] == np.frombuffer(header, dtype=np.uint8)).all():
        return None
    return rows[:, values_start:]
