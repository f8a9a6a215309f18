"""Rows of an Arrow batch as messages of an entry, encoded all at once: what `Outgoing.encode` does for one message.

    [u32 metadata size][SingleMessageMetadata][payload]

Arrow joins the fields of all rows in C. A row costs some tens of nanoseconds for each field that it has. Rows that have
a payload alone, all of one size, are copied in one piece.

The digests of `numbering` are made of these bytes. Another encoding of the same row would make an attempt differ from
one before an update. So the order of the fields stays as it is.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyarrow brings no types.

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...protocol.batches import plain_header
from ...protocol.errors import InvalidMessage
from .columns import EVENT_TIME, KEY, ORDERING_KEY, PROPERTIES, VALUE

PORTION_MAX_BYTES = 32 << 20
"""Rows of about so many bytes are encoded at a time."""
_BINARY = pa.binary()
_PAYLOAD_SIZE, _KEY, _PROPERTY, _EVENT_TIME, _ORDERING_KEY = b"\x18", b"\x12", b"\x0a", b"\x28", b"\x3a"
_PROPERTY_KEY, _PROPERTY_VALUE = b"\x0a", b"\x12"
_NULL_VALUE = b"\x48\x01"

Int64s = npt.NDArray[np.int64]


class EncodedRows(NamedTuple):
    """Messages, one a row, as they lie in an entry."""

    messages: "pa.Array"
    """Binary."""
    sizes: Int64s
    """Of the payloads in bytes."""


def portions(batch: "pa.RecordBatch") -> "Iterator[pa.RecordBatch]":
    """The rows of a batch in parts of about `PORTION_MAX_BYTES`, at least a row each."""
    first, rows = 0, batch.num_rows
    while first < rows:
        part = batch.slice(first)
        count = rows - first
        while count > 1 and part.slice(0, count).nbytes > PORTION_MAX_BYTES:
            count = (count + 1) // 2
        yield part.slice(0, count)
        first += count


def encode_rows(batch: "pa.RecordBatch") -> EncodedRows:
    """The messages that the rows are. Raises InvalidMessage for what no message can have."""
    columns = {name: batch.column(place) for place, name in enumerate(batch.schema.names)}
    values = _binary(columns[VALUE])
    sizes = sizes_of(values)
    extras = [
        *_texts(_KEY, columns.get(KEY)),
        *_properties(columns.get(PROPERTIES)),
        *_event_times(columns.get(EVENT_TIME)),
        *_texts(_ORDERING_KEY, columns.get(ORDERING_KEY)),
        *_null_values(values),
    ]
    if not extras and batch.num_rows and int(sizes.min()) == int(sizes.max()):
        return EncodedRows(_plain_of_one_size(values, int(sizes[0])), sizes)
    size_field = varints(sizes)
    metadata_sizes = 1 + sizes_of(size_field)
    for extra in extras:
        metadata_sizes = metadata_sizes + sizes_of(extra)
    in_front = metadata_sizes.astype(">u4").tobytes()
    return EncodedRows(joined(of_width(4, in_front), _PAYLOAD_SIZE, size_field, *extras, values), sizes)


def _plain_of_one_size(values: "pa.Array", size: int) -> "pa.Array":
    rows, header = len(values), plain_header(size)
    whole = np.empty((rows, len(header) + size), np.uint8)
    whole[:, : len(header)] = np.frombuffer(header, np.uint8)
    if size:
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset :]
        data = np.frombuffer(values.buffers()[2], np.uint8)[offsets[0] : offsets[0] + rows * size]
        whole[:, len(header) :] = data.reshape(rows, size)
    return of_width(whole.shape[1], whole)


# -- fields ------------------------------------------------------------------------------------------------------------


def _texts(tag: bytes, column: "pa.Array | None") -> "list[pa.Array]":
    """A field of text or bytes. A row that has none has no field."""
    if column is None or column.null_count == len(column):
        return []
    texts = _binary(column)
    return [joined(tag, varints(sizes_of(texts)), texts, nulls=True)]


def _properties(maps: "pa.Array | None") -> "list[pa.Array]":
    """All pairs are encoded end to end, in the order of the rows. So a row's part is what lies between its offsets."""
    if maps is None or maps.null_count == len(maps):
        return []
    places = np.asarray(maps.offsets, np.int64)
    first, last = int(places[0]), int(places[-1])
    if first == last:
        return []
    keys, values = (_binary(one.slice(first, last - first)) for one in (maps.keys, maps.items))
    if values.null_count:
        raise InvalidMessage(f"a value in `{PROPERTIES}` is null: a property is a string")
    pairs = joined(_PROPERTY_KEY, varints(sizes_of(keys)), keys, _PROPERTY_VALUE, varints(sizes_of(values)), values)
    pieces = joined(_PROPERTY, varints(sizes_of(pairs)), pairs)
    ends = np.frombuffer(pieces.buffers()[1], np.int32)[pieces.offset :]
    return [of_offsets(ends[places - first], pieces.buffers()[2])]


def _event_times(times: "pa.Array | None") -> "list[pa.Array]":
    if times is None or times.null_count == len(times):
        return []
    whole = times if pa.types.is_integer(times.type) else times.cast(pa.timestamp("us", tz=times.type.tz))
    numbers = np.asarray(pc.fill_null(whole.cast(pa.int64()), 0), np.int64)
    times_ms = numbers if pa.types.is_integer(times.type) else numbers // 1_000
    if int(times_ms.min()) < 0:
        raise InvalidMessage(f"a time in `{EVENT_TIME}` is before 1970, which no message can say")
    given = pa.array(times_ms == 0)
    return [pc.if_else(given, pa.scalar(None, _BINARY), joined(_EVENT_TIME, varints(times_ms)))]


def _null_values(values: "pa.Array") -> "list[pa.Array]":
    if not values.null_count:
        return []
    return [pc.if_else(pc.is_null(values), pa.scalar(_NULL_VALUE, _BINARY), pa.scalar(None, _BINARY))]


# -- bytes -------------------------------------------------------------------------------------------------------------


def varints(numbers: "Int64s | npt.NDArray[np.uint64]") -> "pa.Array":
    """Each number, which is not negative, as a varint of Protobuf."""
    if not len(numbers):
        return pa.array([], _BINARY)
    highest = int(numbers.max())
    if highest < 0x80:
        return of_width(1, numbers.astype(np.uint8))
    width, numbers = (highest.bit_length() + 6) // 7, numbers.astype(np.uint64)
    lengths = np.ones(len(numbers), np.uint64)
    for place in range(1, width):
        lengths += numbers >= np.uint64(1 << 7 * place)
    places = np.arange(width, dtype=np.uint64)
    digits = (numbers[:, None] >> np.uint64(7) * places & np.uint64(0x7F)).astype(np.uint8)
    digits |= np.where(places + np.uint64(1) < lengths[:, None], 0x80, 0).astype(np.uint8)
    ends = np.zeros(len(numbers) + 1, np.int32)
    ends[1:] = np.cumsum(lengths)
    return of_offsets(ends, pa.py_buffer(digits[places < lengths[:, None]]))


def joined(*fields: "pa.Array | bytes", nulls: bool = False) -> "pa.Array":
    """The fields of each row, end to end. A null is nothing; with `nulls` it makes the whole row null."""
    parts = [pa.scalar(field, _BINARY) if isinstance(field, bytes) else field for field in fields]
    if nulls:
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BINARY), null_handling="emit_null")
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", _BINARY), null_handling="replace", null_replacement=b"")


def _binary(texts: "pa.Array") -> "pa.Array":
    return texts.cast(_BINARY)


def sizes_of(texts: "pa.Array") -> Int64s:
    """How many bytes each has; 0 for null."""
    return np.asarray(pc.fill_null(pc.binary_length(texts), 0), np.int64)


def of_width(width: int, data: object) -> "pa.Array":
    """Pieces of one size, end to end."""
    buffer = pa.py_buffer(data)
    rows = buffer.size // width
    return of_offsets(np.arange(0, (rows + 1) * width, width, dtype=np.int32), buffer)


def of_offsets(ends: npt.NDArray[np.int32], data: "pa.Buffer") -> "pa.Array":
    """Pieces of `data`: each begins where the one before it ends."""
    return pa.Array.from_buffers(_BINARY, len(ends) - 1, [None, pa.py_buffer(np.ascontiguousarray(ends)), data])
