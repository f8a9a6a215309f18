"""The columns that a topic's messages have in Spark, and the building of them in bulk.

A `MessageTable` takes the messages of one entry at a time and gives Arrow record batches. What is the same for all
messages of an entry (topic, partition, publish time, producer) is kept once an entry and repeated by Arrow at the end;
what follows from an index (message ids, sequence ids) is computed for the whole entry in one C call. So an entry costs
a few microseconds and a plain message next to nothing.

| column | type | meaning |
| --- | --- | --- |
| `value` | binary | payload; null for a message published with a null value |
| `__key` | string | partition key (base64 text if the producer gave bytes), null without one |
| `__topic` | string | full name, that of the partition for a partitioned topic |
| `__partition` | int | partition, −1 on a topic without partitions |
| `__messageId` | binary | serialized `MessageIdData`: what `MessageId.deserialize` of any Pulsar client takes |
| `__publishTime` | timestamp | when the producer published the message (its entry) |
| `__eventTime` | timestamp | event time, null if the producer gave none |
| `__messageProperties` | map<string,string> | properties, empty if there are none |
| `__producerName` | string | name of the producer |
| `__sequenceId` | long | sequence id of the message, counted on within a batch whose messages carry none |
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..protocol.errors import ProtocolError
from ..protocol.message_id import MessageId

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("__key", pa.string()),
        ("__topic", pa.string()),
        ("__partition", pa.int32()),
        ("__messageId", pa.binary()),
        ("__publishTime", pa.timestamp("us", tz="UTC")),
        ("__eventTime", pa.timestamp("us", tz="UTC")),
        ("__messageProperties", pa.map_(pa.string(), pa.string())),
        ("__producerName", pa.string()),
        ("__sequenceId", pa.int64()),
    ]
)

_INT64_MAX = (1 << 63) - 1
_TIME_MS_MAX = _INT64_MAX // 1000
_BATCH_INDEX_TAG = b"\x20"
_BATCH_SIZE_TAG = b"\x30"

Bytes = bytes | bytearray | memoryview


class Values(NamedTuple):
    """Payloads of consecutive messages: their bytes end to end, the size of each, and whose value is null."""

    data: Bytes
    sizes: np.ndarray
    nulls: Sequence[int] = ()


class Extras(NamedTuple):
    """What only some messages have, one item a message; the whole is absent when no message has any."""

    keys: list[str | None]
    event_times_ms: list[int]
    properties: list[dict[str, str]]


class MessageTable:
    """Messages of one topic or partition on their way to a record batch. Not thread-safe."""

    def __init__(self, topic: str, partition: int) -> None:
        self._topic = topic
        self._partition = partition
        self._index_fields: list[bytes] = []
        self._index_sizes = np.empty(0, dtype=np.int64)
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.size_bytes = 0
        self._counts: list[int] = []
        self._publish_times_ms: list[int] = []
        self._producer_names: list[str] = []
        self._value_data: list[Bytes] = []
        self._value_sizes: list[np.ndarray] = []
        self._null_values: list[int] = []
        self._id_data: list[bytes] = []
        self._id_sizes: list[np.ndarray] = []
        self._sequence_ids: list[np.ndarray] = []
        self._extras: list[tuple[int, Extras]] = []

    def add(
        self,
        *,
        ledger_id: int,
        entry_id: int,
        batch_indexes: Sequence[int] | range | None,
        batch_size: int,
        values: Values,
        publish_time_ms: int,
        producer_name: str,
        sequence_ids: np.ndarray,
        extras: Extras | None,
    ) -> None:
        """Append the messages of one entry.

        `batch_indexes` are those of the messages that are wanted, None for a message sent alone. ProtocolError if
        a time is beyond what a timestamp can hold.
        """
        count = len(values.sizes)
        if not count:
            return
        start = self.rows
        self._counts.append(count)
        self._publish_times_ms.append(check_time_ms(publish_time_ms))
        self._producer_names.append(producer_name)
        self._value_data.append(values.data)
        self._value_sizes.append(values.sizes)
        self._null_values.extend(start + index for index in values.nulls)
        ids, id_sizes = self._message_ids(ledger_id, entry_id, batch_indexes, batch_size)
        self._id_data.append(ids)
        self._id_sizes.append(id_sizes)
        self._sequence_ids.append(sequence_ids)
        if extras is not None:
            for time_ms in extras.event_times_ms:
                check_time_ms(time_ms)
            self._extras.append((start, extras))
        self.rows = start + count
        self.size_bytes += len(values.data) + len(ids) + count * (len(self._topic) + len(producer_name) + 64)

    def take(self) -> pa.RecordBatch:
        """Everything added since the last call."""
        counts = np.array(self._counts, dtype=np.int64)
        entry_of_row = np.repeat(np.arange(len(counts)), counts)
        keys, event_times, properties = self._extra_columns()
        columns = [
            self._value_column(),
            keys,
            _repeated_text(self._topic, self.rows),
            pa.array(np.full(self.rows, self._partition, dtype=np.int32)),
            _binary(b"".join(self._id_data), _concatenated(self._id_sizes)),
            _timestamps(np.repeat(np.array(self._publish_times_ms, dtype=np.int64), counts)),
            event_times,
            properties,
            pc.take(pa.array(self._producer_names, pa.string()), pa.array(entry_of_row)),
            pa.array(_concatenated(self._sequence_ids)),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    # -- columns ----------------------------------------------------------------------------------------------

    def _value_column(self) -> pa.Array:
        valid = None
        if self._null_values:
            mask = np.ones(self.rows, dtype=bool)
            mask[self._null_values] = False
            valid = pa.array(mask).buffers()[1]
        return _binary(b"".join(self._value_data), _concatenated(self._value_sizes), valid)

    def _extra_columns(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        rows = self.rows
        if not self._extras:
            empty = pa.array([], pa.string())
            no_properties = pa.MapArray.from_arrays(pa.array(np.zeros(rows + 1, dtype=np.int32)), empty, empty)
            return pa.nulls(rows, pa.string()), pa.nulls(rows, SCHEMA.field("__eventTime").type), no_properties
        keys: list[str | None] = []
        times = np.zeros(rows, dtype=np.int64)
        property_counts = np.zeros(rows, dtype=np.int64)
        names: list[str] = []
        texts: list[str] = []
        for start, extras in self._extras:
            keys.extend([None] * (start - len(keys)))
            keys.extend(extras.keys)
            times[start : start + len(extras.event_times_ms)] = extras.event_times_ms
            for row, items in enumerate(extras.properties, start):
                if items:
                    property_counts[row] = len(items)
                    names.extend(items)
                    texts.extend(items.values())
        keys.extend([None] * (rows - len(keys)))
        properties = pa.MapArray.from_arrays(
            pa.array(_offsets(property_counts)), pa.array(names, pa.string()), pa.array(texts, pa.string())
        )
        return pa.array(keys, pa.string()), _timestamps(times, absent=times == 0), properties

    def _message_ids(
        self, ledger_id: int, entry_id: int, batch_indexes: Sequence[int] | range | None, batch_size: int
    ) -> tuple[bytes, np.ndarray]:
        """Serialized ids, end to end, and the size of each."""
        prefix = MessageId(ledger_id, entry_id, self._partition).serialize()
        if batch_indexes is None:
            return prefix, np.array([len(prefix)], dtype=np.int64)
        suffix = _BATCH_SIZE_TAG + _varint(batch_size)
        self._extend_index_fields(batch_size)
        if isinstance(batch_indexes, range):
            fields = self._index_fields[batch_indexes.start : batch_indexes.stop]
            sizes = self._index_sizes[batch_indexes.start : batch_indexes.stop]
        else:
            fields = [self._index_fields[index] for index in batch_indexes]
            sizes = self._index_sizes[np.array(batch_indexes, dtype=np.int64)]
        # prefix field suffix prefix field suffix …: one join with what lies between two fields as the separator
        data = b"".join((prefix, (suffix + prefix).join(fields), suffix))
        return data, sizes + (len(prefix) + len(suffix))

    def _extend_index_fields(self, count: int) -> None:
        known = len(self._index_fields)
        if count > known:
            self._index_fields += [_BATCH_INDEX_TAG + _varint(index) for index in range(known, count)]
            self._index_sizes = np.fromiter(map(len, self._index_fields), dtype=np.int64, count=count)


def check_time_ms(time_ms: int) -> int:
    """`time_ms`, milliseconds since the epoch; ProtocolError if a timestamp in microseconds cannot hold it."""
    if not -_TIME_MS_MAX <= time_ms <= _TIME_MS_MAX:
        raise ProtocolError(f"a time of {time_ms} ms is beyond what a timestamp holds", time_ms=time_ms)
    return time_ms


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _concatenated(parts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _offsets(sizes: np.ndarray) -> np.ndarray:
    """Where each item begins, and the end: 32 bits, which is all that Spark reads."""
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets.astype(np.int32)


def _binary(data: bytes, sizes: np.ndarray, valid: pa.Buffer | None = None) -> pa.Array:
    offsets = _offsets(sizes)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def _repeated_text(text: str, count: int) -> pa.Array:
    data = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data * count)])


def _timestamps(times_ms: np.ndarray, absent: np.ndarray | None = None) -> pa.Array:
    return pa.array(times_ms * 1000, mask=absent).view(SCHEMA.field("__publishTime").type)
