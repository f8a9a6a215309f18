"""Entries of a ledger into Arrow record batches: what runs once for every entry of a bulk read.

An `EntryDecoder` is given the stored bodies in order, leaves out what lies outside its bounds, and fills a
`MessageTable`. Bounds are exact: inside a batch by batch index, and by publish time, which is that of the entry. Every
checksum is verified. An entry that cannot be decoded ends the read with an error; nothing is ever skipped silently.

The common case, a batch of plain payloads of one size, is recognized by comparing all message headers at once, and its
values are copied out with one strided copy. Other batches go through the message headers one by one.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ..protocol.batches import MESSAGE_SIZE_MIN_BYTES, decode_batch, plain_header
from ..protocol.compression import CompressionType, decompress
from ..protocol.entries import is_batch, message_count, parse_entry
from ..protocol.errors import ChecksumError, EntryCorrupt, MagnetarError, NotAllowedError, ProtocolError
from ..protocol.message_id import signed64
from ..protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from .message_table import SCHEMA, Extras, MessageTable, Values

UNCOMPRESSED_SIZE_MAX_BYTES = 512 << 20
"""The most that one entry may unfold to; a bound on what a lying header can make us allocate."""


class TimeWindow(NamedTuple):
    """Publish times in milliseconds: from `start_ms`, before `end_ms`; None leaves that side open."""

    start_ms: int | None = None
    end_ms: int | None = None

    def holds(self, publish_time_ms: int) -> bool:
        return (self.start_ms is None or publish_time_ms >= self.start_ms) and (
            self.end_ms is None or publish_time_ms < self.end_ms
        )


class EntryDecoder:
    """Decodes entries of one topic or partition. Not thread-safe."""

    def __init__(self, topic: str, partition: int, window: TimeWindow | None = None) -> None:
        self._topic = topic
        self._window = window or TimeWindow()
        self._table = MessageTable(topic, partition)

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
    ) -> None:
        """Decode one entry. With a batch index ≥ 0 only messages from (or up to) that index, inclusive, count.

        Raises EntryCorrupt when the bytes are not what their checksums and headers say, NotAllowedError for what
        cannot be read in bulk: encrypted messages, and messages that were cut into chunks.
        """
        try:
            self._add(ledger_id, entry_id, body, first_batch_index, last_batch_index)
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
        self, ledger_id: int, entry_id: int, body: bytes | memoryview, first_batch_index: int, last_batch_index: int
    ) -> None:
        metadata, payload = parse_entry(body)
        publish_time_ms = signed64(metadata.publish_time)
        if not self._window.holds(publish_time_ms):
            return
        _refuse_unreadable(metadata)
        data: bytes | memoryview = payload
        if metadata.compression != CompressionType.NONE:
            data = decompress(metadata.compression, payload, metadata.uncompressed_size, UNCOMPRESSED_SIZE_MAX_BYTES)
        indexes: range | list[int] | None
        extras: Extras | None
        if not is_batch(metadata):
            batch_size = 0
            indexes, values, sequence_ids, extras = None, *_single(metadata, data)
        else:
            batch_size = message_count(metadata)
            first = max(first_batch_index, 0)
            last = batch_size if last_batch_index < 0 else min(last_batch_index + 1, batch_size)
            if first >= last:
                return
            indexes, values, sequence_ids, extras = _batch(metadata, data, batch_size, first, last)
        self._table.add(
            ledger_id=ledger_id,
            entry_id=entry_id,
            batch_indexes=indexes,
            batch_size=batch_size,
            values=values,
            publish_time_ms=publish_time_ms,
            producer_name=metadata.producer_name,
            sequence_ids=sequence_ids,
            extras=extras,
        )


def encode_block(batch: pa.RecordBatch) -> bytes:
    """A record batch as an Arrow IPC stream, the form in which Spark's executors take blocks."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _refuse_unreadable(metadata: MessageMetadata) -> None:
    if metadata.encryption_keys:
        raise NotAllowedError("the topic holds encrypted messages, which a bulk read cannot decrypt")
    if metadata.num_chunks_from_msg > 1:
        raise NotAllowedError("the topic holds messages cut into chunks, which a bulk read does not put together")


def _single(metadata: MessageMetadata, data: bytes | memoryview) -> tuple[Values, np.ndarray, Extras | None]:
    """The one message of an entry that is no batch."""
    if metadata.null_value:
        values = Values(b"", np.zeros(1, dtype=np.int64), (0,))
    else:
        values = Values(data, np.array([len(data)], dtype=np.int64))
    extras = None
    if metadata.HasField("partition_key") or metadata.event_time or metadata.properties:
        extras = Extras(
            [metadata.partition_key if metadata.HasField("partition_key") else None],
            [signed64(metadata.event_time)],
            [{item.key: item.value for item in metadata.properties}],
        )
    return values, np.array([signed64(metadata.sequence_id)], dtype=np.int64), extras


def _batch(
    metadata: MessageMetadata, data: bytes | memoryview, count: int, first: int, last: int
) -> tuple[range | list[int], Values, np.ndarray, Extras | None]:
    """Messages `first` to `last` (exclusive) of a batch of `count`."""
    base_sequence_id = signed64(metadata.sequence_id)
    uniform = _uniform_values(data, count)
    if uniform is not None:
        wanted = np.ascontiguousarray(uniform[first:last]).reshape(-1)
        sizes = np.full(last - first, uniform.shape[1], dtype=np.int64)
        sequence_ids = np.arange(base_sequence_id + first, base_sequence_id + last, dtype=np.int64)
        return range(first, last), Values(wanted.data, sizes), sequence_ids, None

    messages = decode_batch(data, count)[first:last]
    headers = [header for header, _ in messages]
    payloads = [payload for _, payload in messages]
    indexes: range | list[int] = range(first, last)
    sequence_ids = np.arange(base_sequence_id + first, base_sequence_id + last, dtype=np.int64)
    if all(header is None for header in headers):
        return indexes, Values(b"".join(payloads), _sizes(payloads)), sequence_ids, None

    if any(header is not None and header.compacted_out for header in headers):
        kept = [place for place, header in enumerate(headers) if header is None or not header.compacted_out]
        indexes = [first + place for place in kept]
        headers = [headers[place] for place in kept]
        payloads = [payloads[place] for place in kept]
        sequence_ids = sequence_ids[kept]
    nulls: list[int] = []
    for place, header in enumerate(headers):
        if header is not None:
            if header.HasField("sequence_id"):
                sequence_ids[place] = signed64(header.sequence_id)
            if header.null_value:
                nulls.append(place)
                payloads[place] = b""
    return indexes, Values(b"".join(payloads), _sizes(payloads), nulls), sequence_ids, _extras(headers)


def _extras(headers: list[SingleMessageMetadata | None]) -> Extras | None:
    keys = [
        header.partition_key if header is not None and header.HasField("partition_key") else None for header in headers
    ]
    times_ms = [0 if header is None else signed64(header.event_time) for header in headers]
    properties = [
        {} if header is None or not header.properties else {item.key: item.value for item in header.properties}
        for header in headers
    ]
    if any(key is not None for key in keys) or any(times_ms) or any(properties):
        return Extras(keys, times_ms, properties)
    return None


def _sizes(payloads: list[bytes]) -> np.ndarray:
    return np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))


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
