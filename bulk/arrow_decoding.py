"""Entries of a ledger into Arrow record batches: what runs once for every entry of a bulk read.

An `EntryDecoder` is given the stored bodies in order, leaves out what lies outside its bounds, and fills a
`MessageTable`. Bounds are exact: inside a batch by batch index, and by publish time, which is that of the entry. Every
checksum is verified. An entry that cannot be decoded ends the read with an error; nothing is ever skipped silently.

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
from ..protocol.errors import ChecksumError, EntryCorrupt, MagnetarError, NotAllowedError, ProtocolError
from ..protocol.message_id import signed64
from ..protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from .message_table import COLUMNS, HEADER_COLUMNS, INT64_MAX, VALUE, EntryFields, Extras, MessageTable, Values

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
        self, topic: str, partition: int, window: TimeWindow | None = None, columns: Sequence[str] = COLUMNS
    ) -> None:
        """Only `columns` are decoded. Where none of them needs a message's payload or header, these stay untouched."""
        self._topic = topic
        self._window = window or TimeWindow()
        self._table = MessageTable(topic, partition, columns)
        self._has_value = VALUE in columns
        self._has_payload = self._has_value or not HEADER_COLUMNS.isdisjoint(columns)

    @property
    def rows(self) -> int:
        """Messages decoded and not yet taken."""
        return self._table.rows

    @property
    def size_bytes(self) -> int:
        """About how large the next record batch would be."""
        return self._table.size_bytes

    def take(self) -> pa.RecordBatch:
        """Everything decoded since the last call."""
        return self._table.take()

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | memoryview,
        *,
        first_batch_index: int = -1,
        last_batch_index: int = -1,
        compacted: bool = False,
    ) -> None:
        """Decode one entry. With a batch index ≥ 0 only messages from (or up to) that index, inclusive, count.

        `compacted` says that it comes from a compacted ledger, where the headers say which messages are left.

        Raises EntryCorrupt when the bytes do not match their checksums and headers. Raises NotAllowedError for what
        cannot be read in bulk: encrypted messages and chunked messages.
        """
        try:
            self._add(ledger_id, entry_id, body, first_batch_index, last_batch_index, compacted)
        except (ProtocolError, ChecksumError, UnicodeDecodeError) as error:
            raise EntryCorrupt(
                f"entry {ledger_id}:{entry_id} of {self._topic} cannot be decoded: {error}",
                ledger_id=ledger_id,
                entry_id=entry_id,
                topic=self._topic,
            ) from error
        except MagnetarError as error:
            error.details |= {"ledger_id": ledger_id, "entry_id": entry_id, "topic": self._topic}
            raise

    def _add(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | memoryview,
        first_batch_index: int,
        last_batch_index: int,
        compacted: bool,
    ) -> None:
        metadata, payload = parse_entry(body)
        publish_time_ms = signed64(metadata.publish_time)
        if is_marker(metadata) or not self._window.holds(publish_time_ms):
            return
        _refuse_unreadable(metadata)
        batch_size = message_count(metadata) if is_batch(metadata) else 0
        entry = EntryFields(
            ledger_id,
            entry_id,
            batch_size,
            publish_time_ms,
            metadata.producer_name,
            signed64(metadata.sequence_id),
        )
        first = max(first_batch_index, 0)
        last = batch_size if last_batch_index < 0 else min(last_batch_index + 1, batch_size)
        wanted = range(first, last) if batch_size else range(1)
        if not self._has_payload and not compacted:
            self._table.add(entry, wanted, NOTHING)
            return
        data: bytes | memoryview = payload
        if metadata.compression != CompressionType.NONE and (batch_size or self._has_value):
            data = decompress(metadata.compression, payload, metadata.uncompressed_size, UNCOMPRESSED_SIZE_MAX_BYTES)
        if batch_size:
            if wanted:
                _add_batch(self._table, entry, data, wanted)
        elif metadata.null_value:
            self._table.add(entry, wanted, Values(b"", 0, (0,)), extras=_extras([metadata]))
        else:
            self._table.add(entry, wanted, Values(data, len(data)), extras=_extras([metadata]))


def encode_block(batch: pa.RecordBatch) -> bytes:
    """A record batch as an Arrow IPC stream, the form in which Spark's executors take blocks."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _refuse_unreadable(metadata: MessageMetadata) -> None:
    if metadata.encryption_keys:
        raise NotAllowedError(
            "the topic holds encrypted messages, which a bulk read cannot decrypt: use a consumer that has the key"
        )
    if metadata.num_chunks_from_msg > 1:
        raise NotAllowedError(
            "the topic holds chunked messages, which a bulk read does not assemble: use an official client"
        )


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
