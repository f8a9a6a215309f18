"""The columns that a topic's messages have in a bulk read, and the building of them.

A `MessageTable` takes the messages of one entry at a time and gives Arrow record batches. Values that all messages of
an entry share (topic, partition, publish time, producer) are kept once per entry and repeated by Arrow at the end. What
follows from an index (message ids, sequence ids) is computed for the whole entry in one C call. So an entry costs a few
microseconds and a plain message next to nothing. Columns that nobody asked for are not built.

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

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..protocol.byte_stream import Buffer
from ..protocol.commands import varint
from ..protocol.errors import InvalidConfiguration, ProtocolError
from ..protocol.message_id import Position
from .typed.columns import COLUMNS, SCHEMA, VALUE, VALUE_PADDING, EntryRows

MESSAGE_ID = "__messageId"
HEADER_COLUMNS = frozenset(("__key", "__eventTime", "__messageProperties", "__sequenceId"))
"""What the header of each message says. The other columns but `value` come from the entry alone."""

INT64_MAX = (1 << 63) - 1
_TIME_MS_MAX = INT64_MAX // 1000
_LEDGER_TAG = b"\x08"
_ENTRY_TAG = b"\x10"
_PARTITION_TAG = b"\x18"
_BATCH_INDEX_TAG = b"\x20"
_BATCH_SIZE_TAG = b"\x30"
_FIRST_CHUNK_TAG = b"\x3a"

ROW_SIZE_BYTES = 80
"""About what a row takes besides its value and its names."""


class Values(NamedTuple):
    """Payloads of consecutive messages: their bytes end to end, the size of each (a number: of all), whose is null."""

    data: Buffer
    sizes: int | Sequence[int]
    nulls: Sequence[int] = ()


class Extras(NamedTuple):
    """What only some messages have, one item a message; the whole is absent when no message has any."""

    keys: list[str | None]
    event_times_ms: list[int]
    properties: list[dict[str, str]] | None


class EntryFields(NamedTuple):
    """What the messages of one entry have in common. A message sent alone has no batch: size 0."""

    ledger_id: int
    entry_id: int
    batch_size: int
    publish_time_ms: int
    producer_name: str
    sequence_id: int
    """Of the first message in the batch; the others count on."""
    schema_version: bytes = b""
    """Of the schema that the messages were written with; empty without one."""
    first_chunk: Position | None = None
    """Of a message in chunks: where it begins. The other fields are then those of its last chunk."""


class MessageTable:
    """Messages of one topic or partition on their way to a record batch. Not thread-safe."""

    def __init__(self, topic: str, partition: int, columns: Sequence[str] = COLUMNS) -> None:
        """`columns` names those that are built, in the order of `take`."""
        self.schema = schema_of(columns)
        self._has_value = VALUE in columns
        self._has_id = MESSAGE_ID in columns
        self._topic = topic
        self._row_size_bytes = len(topic) + ROW_SIZE_BYTES
        self._partition_field = b"" if partition == -1 else _PARTITION_TAG + varint(partition)
        self._partition = partition
        self._index_fields: list[bytes] = []
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self.size_bytes = 0
        # One item an entry. Numbers and texts, because Python's garbage collector looks through all kept containers.
        self._counts: list[int] = []
        self._publish_times_ms: list[int] = []
        self._producer_names: list[str] = []
        self._sequence_ids: list[int] = []
        self._ledger_ids: list[int] = []
        self._entry_ids: list[int] = []
        self._schema_versions: list[bytes] = []
        self._first_indexes: list[int] = []
        self._id_sizes: list[int] = []  # without the field of the index
        # One item a run of values of equal size:
        self._value_sizes: list[int] = []
        self._value_repeats: list[int] = []
        # Bytes of the columns:
        self._value_data: list[Buffer] = []
        self._id_data: list[bytes] = []
        # What is not as usual, with the row where it begins:
        self._null_values: list[int] = []
        self._own_indexes: list[tuple[int, Sequence[int]]] = []
        self._own_sequence_ids: list[tuple[int, np.ndarray]] = []
        # What only some messages have, and the rows of these:
        self._keys: list[str] = []
        self._key_rows: list[int] = []
        self._event_times_ms: list[int] = []
        self._event_time_rows: list[int] = []
        self._properties: list[Mapping[str, str]] = []
        self._property_rows: list[int] = []

    def add(
        self,
        entry: EntryFields,
        indexes: range | Sequence[int],
        values: Values,
        *,
        sequence_ids: np.ndarray | None = None,
        extras: Extras | None = None,
    ) -> None:
        """Append the messages of one entry that are wanted: those at `indexes` of its batch (`range(1)` without one).

        `sequence_ids` are given if they do not simply count on. ProtocolError if a time is beyond what a timestamp
        can hold.
        """
        count = len(indexes)
        if not count:
            return
        start = self.rows
        self._counts.append(count)
        self._publish_times_ms.append(check_time_ms(entry.publish_time_ms))
        self._producer_names.append(entry.producer_name)
        self._sequence_ids.append(entry.sequence_id)
        self._ledger_ids.append(entry.ledger_id)
        self._entry_ids.append(entry.entry_id)
        self._schema_versions.append(entry.schema_version)
        if entry.batch_size:
            self._first_indexes.append(indexes[0])
            if not isinstance(indexes, range):
                self._own_indexes.append((start, indexes))
        else:
            self._first_indexes.append(-1)
        if self._has_id:
            self._add_ids(entry, indexes)
        if self._has_value:
            self._add_values(values, count, start)
        if sequence_ids is not None:
            self._own_sequence_ids.append((start, sequence_ids))
        if extras is not None:
            self._add_extras(extras, start)
        self.rows = start + count
        self.size_bytes += count * (self._row_size_bytes + len(entry.producer_name))
        if self._has_value:
            self.size_bytes += len(values.data)

    def entries(self) -> EntryRows:
        """The entries whose messages the next `take` gives."""
        positions = list(zip(self._ledger_ids, self._entry_ids, strict=True))
        return EntryRows(self._counts, positions, self._schema_versions)

    def take(self) -> pa.RecordBatch:
        """Everything added since the last call."""
        counts = np.array(self._counts, dtype=np.int64)
        starts = np.cumsum(counts) - counts
        # The index in its batch of each row: rows count on from the entry's first index.
        shifts = np.array(self._first_indexes, dtype=np.int64) - starts
        indexes = np.arange(self.rows) + np.repeat(shifts, counts)
        for start, own in self._own_indexes:
            indexes[start : start + len(own)] = own
        columns = [self._column(name, indexes, counts) for name in self.schema.names]
        self._clear()
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    # -- columns ----------------------------------------------------------------------------------------------

    def _column(self, name: str, indexes: np.ndarray, counts: np.ndarray) -> pa.Array:
        match name:
            case "value":
                return self._value_column()
            case "__key":
                return self._key_column()
            case "__topic":
                return _repeated_text(self._topic, self.rows)
            case "__partition":
                return pa.array(np.full(self.rows, self._partition, dtype=np.int32))
            case "__messageId":
                return self._id_column(indexes, counts)
            case "__publishTime":
                return _timestamps(np.repeat(np.array(self._publish_times_ms, dtype=np.int64), counts))
            case "__eventTime":
                return self._event_time_column()
            case "__messageProperties":
                return self._properties_column()
            case "__producerName":
                names = pa.array(self._producer_names, pa.string())
                return pc.take(names, pa.array(np.repeat(np.arange(len(counts)), counts)))
            case _:
                return self._sequence_id_column(indexes, counts)

    def _value_column(self) -> pa.Array:
        valid = None
        if self._null_values:
            mask = np.ones(self.rows, dtype=bool)
            mask[self._null_values] = False
            valid = pa.array(mask).buffers()[1]
        sizes = np.repeat(np.array(self._value_sizes, dtype=np.int64), self._value_repeats)
        return _binary(b"".join((*self._value_data, VALUE_PADDING)), sizes, valid)

    def _id_column(self, indexes: np.ndarray, counts: np.ndarray) -> pa.Array:
        sizes = np.repeat(np.array(self._id_sizes, dtype=np.int64), counts)
        # Tag and varint of the index; a message that was sent alone (index −1) has neither.
        sizes += np.where(indexes < 0, 0, 2)
        for bits in (7, 14, 21, 28):
            sizes += indexes >= 1 << bits
        return _binary(b"".join(self._id_data), sizes)

    def _sequence_id_column(self, indexes: np.ndarray, counts: np.ndarray) -> pa.Array:
        sequence_ids = np.repeat(np.array(self._sequence_ids, dtype=np.int64), counts) + np.maximum(indexes, 0)
        for start, own in self._own_sequence_ids:
            sequence_ids[start : start + len(own)] = own
        return pa.array(sequence_ids)

    def _key_column(self) -> pa.Array:
        if not self._keys:
            return pa.nulls(self.rows, pa.string())
        keys = np.full(self.rows, None, dtype=object)
        keys[self._key_rows] = self._keys
        return pa.array(keys, pa.string())

    def _event_time_column(self) -> pa.Array:
        if not self._event_times_ms:
            return pa.nulls(self.rows, SCHEMA.field("__eventTime").type)
        times = np.zeros(self.rows, dtype=np.int64)
        times[self._event_time_rows] = self._event_times_ms
        return _timestamps(times, absent=times == 0)

    def _properties_column(self) -> pa.Array:
        counts = np.zeros(self.rows, dtype=np.int64)
        counts[self._property_rows] = [len(properties) for properties in self._properties]
        names = [name for properties in self._properties for name in properties]
        texts = [text for properties in self._properties for text in properties.values()]
        return pa.MapArray.from_arrays(
            pa.array(_offsets(counts)), pa.array(names, pa.string()), pa.array(texts, pa.string())
        )

    # -- one entry --------------------------------------------------------------------------------------------

    def _add_values(self, values: Values, count: int, start: int) -> None:
        self._value_data.append(values.data)
        if isinstance(values.sizes, int):
            self._value_sizes.append(values.sizes)
            self._value_repeats.append(count)
        else:
            self._value_sizes.extend(values.sizes)
            self._value_repeats.extend([1] * count)
        if values.nulls:
            self._null_values.extend([start + place for place in values.nulls])

    def _add_extras(self, extras: Extras, start: int) -> None:
        for row, key in enumerate(extras.keys, start):
            if key is not None:
                self._keys.append(key)
                self._key_rows.append(row)
        for row, time_ms in enumerate(extras.event_times_ms, start):
            if time_ms:
                self._event_times_ms.append(check_time_ms(time_ms))
                self._event_time_rows.append(row)
        for row, properties in enumerate(extras.properties or (), start):
            if properties:
                self._properties.append(properties)
                self._property_rows.append(row)

    def _add_ids(self, entry: EntryFields, indexes: range | Sequence[int]) -> None:
        """Serialized message ids, as `MessageId.serialize` writes them, end to end."""
        prefix = b"".join(
            (_LEDGER_TAG, varint(entry.ledger_id), _ENTRY_TAG, varint(entry.entry_id), self._partition_field)
        )
        if not entry.batch_size:
            if entry.first_chunk is not None:
                first = b"".join((_LEDGER_TAG, varint(entry.first_chunk[0]), _ENTRY_TAG, varint(entry.first_chunk[1])))
                first += self._partition_field
                prefix += _FIRST_CHUNK_TAG + varint(len(first)) + first
            self._id_data.append(prefix)
            self._id_sizes.append(len(prefix))
            return
        suffix = _BATCH_SIZE_TAG + varint(entry.batch_size)
        known = len(self._index_fields)
        if known < entry.batch_size:
            self._index_fields += [_BATCH_INDEX_TAG + varint(index) for index in range(known, entry.batch_size)]
        if isinstance(indexes, range):
            fields = self._index_fields[indexes.start : indexes.stop]
        else:
            fields = [self._index_fields[index] for index in indexes]
        # prefix field suffix prefix field suffix …: one join with what lies between two fields as the separator
        self._id_data += (prefix, (suffix + prefix).join(fields), suffix)
        self._id_sizes.append(len(prefix) + len(suffix))


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The schema of these columns, in their order. Raises InvalidConfiguration for a name that no column has."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown or len({*columns}) < len(columns) or not columns:
        wrong = (
            f"there is no column {unknown[0]!r}"
            if unknown
            else f"the columns {list(columns)} are none, or not different"
        )
        raise InvalidConfiguration(f"{wrong}: choose from {', '.join(COLUMNS)}")
    return pa.schema([SCHEMA.field(name) for name in columns])


def check_time_ms(time_ms: int) -> int:
    """`time_ms`, milliseconds since the epoch; ProtocolError if a timestamp in microseconds cannot hold it."""
    if not -_TIME_MS_MAX <= time_ms <= _TIME_MS_MAX:
        raise ProtocolError(f"a message's time of {time_ms} ms does not fit into a timestamp", time_ms=time_ms)
    return time_ms


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
