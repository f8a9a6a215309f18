"""Avro payloads into columns: all payloads at once, field after field.

Each part of a schema has a reader. It takes the cursors of all rows, moves them behind its value, and gives that value
for each row. A union sends the rows of each branch to the branch's reader. The items of arrays and maps are found by
stepping over them, and then all of them are read at once.

`avro_resolution` puts readers together from the writer's schema and the schema that the reader wants.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from .arrow_building import list_offsets, repeated, texts
from .avro_cursor import AvroCursor
from .avro_found import Found, Made, MakeOfNumbers, MakeOfPlaces, Numbers, Places
from .avro_skipping import AvroStep, branches_of, find_items
from .payloads import PayloadDecoder, PayloadMisfit, Payloads, struct_array

INT_MAX = (1 << 31) - 1
ROWS_AT_ONCE = 1 << 14
"""So few that the numbers between two operations stay in the processor's cache."""


class AvroPart(ABC):
    """Reads one value of each row."""

    @abstractmethod
    def read(self, cursor: AvroCursor) -> Found:
        """The values. Moves all rows behind them. Raises PayloadMisfit."""


class NullReader(AvroPart):
    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind

    def read(self, cursor: AvroCursor) -> Found:
        return Made(pa.nulls(cursor.count, self._kind))


class WholeReader(AvroPart):
    """Int and long. `narrow` says that the writer's type has 32 bits."""

    def __init__(self, make: MakeOfNumbers, narrow: bool) -> None:
        self._make = make
        self._narrow = narrow

    def read(self, cursor: AvroCursor) -> Found:
        values = cursor.signed()
        if self._narrow and len(values) and not (-INT_MAX - 1 <= int(values.min()) and int(values.max()) <= INT_MAX):
            raise PayloadMisfit("an int has more than 32 bits")
        return Numbers(values, self._make)


class FloatReader(AvroPart):
    """Float and double."""

    def __init__(self, make: MakeOfNumbers, size: int) -> None:
        self._make = make
        self._size = size

    def read(self, cursor: AvroCursor) -> Found:
        at = cursor.move(self._size)
        source = cursor.source
        values = source.halves[at].view("<f4") if self._size == 4 else source.words[at].view("<f8")
        return Numbers(values, self._make)


class BooleanReader(AvroPart):
    def __init__(self, make: MakeOfNumbers) -> None:
        self._make = make

    def read(self, cursor: AvroCursor) -> Found:
        values = cursor.source.data[cursor.move(1)]
        if (values > 1).any():
            raise PayloadMisfit("a boolean is neither 0 nor 1")
        return Numbers(values, self._make)


class BytesReader(AvroPart):
    """Bytes and text; with `size` fixed bytes."""

    def __init__(self, make: MakeOfPlaces, size: int | None = None) -> None:
        self._make = make
        self._size = size

    def read(self, cursor: AvroCursor) -> Found:
        sizes = cursor.length() if self._size is None else np.full(cursor.count, self._size, np.int64)
        return Places(cursor.source.data, cursor.move(sizes), sizes, self._make)


class EnumReader(AvroPart):
    def __init__(self, symbols: Sequence[str | None]) -> None:
        """`symbols` are those of the reader, by the writer's number; None for one that the reader does not have."""
        self._symbols = pa.array([symbol or "" for symbol in symbols], pa.string())
        self._known = np.array([symbol is not None for symbol in symbols], bool)

    def read(self, cursor: AvroCursor) -> Found:
        values = cursor.signed()
        if len(values) and not (0 <= int(values.min()) and int(values.max()) < len(self._known)):
            raise PayloadMisfit("an enum has no symbol of that number")
        if not self._known[values].all():
            raise PayloadMisfit("the reader's enum lacks a symbol, and has no default")
        return Numbers(values.astype(np.int32), self._make)

    def _make(self, values: np.ndarray, valid: np.ndarray | None) -> pa.Array:
        return self._symbols.take(pa.array(values, mask=None if valid is None else ~valid))


class FieldStep(NamedTuple):
    """A field of the writer's record: it goes into a column, or is stepped over."""

    reader: AvroPart | None
    step: AvroStep | None
    column: int = -1


class RecordReader(AvroPart):
    def __init__(self, fields: Sequence[pa.Field], steps: Sequence[FieldStep], defaults: dict[int, object]) -> None:
        """`defaults` are the values of those of `fields` that the writer does not have."""
        self.fields = list(fields)
        self._steps = steps
        self._defaults = defaults

    def read(self, cursor: AvroCursor) -> Found:
        return Made(struct_array(self.columns(cursor), self.fields, cursor.count))

    def columns(self, cursor: AvroCursor) -> list[pa.Array]:
        """The fields one by one. Raises PayloadMisfit."""
        found: list[pa.Array] = [None] * len(self.fields)
        for reader, step, column in self._steps:
            if reader is not None:
                found[column] = reader.read(cursor).array()
            elif step is not None:
                step.skip(cursor)
        for column, value in self._defaults.items():
            found[column] = repeated(value, self.fields[column].type, cursor.count)
        return found


class UnionReader(AvroPart):
    def __init__(self, branches: Sequence[AvroPart], kind: pa.DataType) -> None:
        self._branches = branches
        self._kind = kind

    def read(self, cursor: AvroCursor) -> Found:
        begin = cursor.at
        branch = branches_of(cursor, len(self._branches))
        found: list[tuple[np.ndarray, Found]] = []
        for number, reader in enumerate(self._branches):
            rows = np.flatnonzero(branch == number)
            if not len(rows):
                continue
            if len(rows) == len(branch):
                return reader.read(cursor)
            if isinstance(reader, NullReader):
                continue
            some = cursor.some(rows)
            found.append((rows, reader.read(some)))
            cursor.at[rows] = some.at
        if len(found) == 1:
            return found[0][1].spread(found[0][0], begin)
        if not found:
            return Made(pa.nulls(len(branch), self._kind))
        return Made(_together(found, len(branch)))


def _together(found: Sequence[tuple[np.ndarray, Found]], count: int) -> pa.Array:
    """The values of several branches in one array."""
    parts = pa.concat_arrays([one.array() for _, one in found])
    indexes, absent = np.zeros(count, np.int32), np.ones(count, bool)
    rows = np.concatenate([rows for rows, _ in found])
    indexes[rows] = np.arange(len(rows), dtype=np.int32)
    absent[rows] = False
    return parts.take(pa.array(indexes, mask=absent))


class UnfitReader(AvroPart):
    """A branch of the writer's union that the reader cannot take."""

    def __init__(self, why: str) -> None:
        self._why = why

    def read(self, cursor: AvroCursor) -> Found:
        raise PayloadMisfit(self._why)


class MemberReader(AvroPart):
    """One branch of a union that is read as a struct, with a field for each branch."""

    def __init__(self, number: int, reader: AvroPart, kind: pa.StructType) -> None:
        self._number = number
        self._reader = reader
        self._fields: list[pa.Field] = list(kind)

    def read(self, cursor: AvroCursor) -> Found:
        count = cursor.count
        columns = [pa.nulls(count, one.type) for one in self._fields]
        columns[self._number] = self._reader.read(cursor).array()
        return Made(struct_array(columns, self._fields, count))


class ListReader(AvroPart):
    def __init__(self, item: AvroPart, step: AvroStep, kind: pa.DataType) -> None:
        self._item = item
        self._step = step
        self._kind = kind

    def read(self, cursor: AvroCursor) -> Found:
        items, counts = items_of(cursor, self._step)
        return Made(pa.ListArray.from_arrays(list_offsets(counts), self._item.read(items).array(), type=self._kind))


class MapReader(AvroPart):
    def __init__(self, value: AvroPart, step: AvroStep, kind: pa.DataType) -> None:
        """`step` steps over an item: its key and its value."""
        self._key = BytesReader(_text)
        self._value = value
        self._step = step
        self._kind = kind

    def read(self, cursor: AvroCursor) -> Found:
        items, counts = items_of(cursor, self._step)
        keys = self._key.read(items).array()
        values = self._value.read(items).array()
        return Made(pa.MapArray.from_arrays(list_offsets(counts), keys, values, type=self._kind))


def _text(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    return texts(pa.string(), data, starts, sizes, valid)


def items_of(cursor: AvroCursor, step: AvroStep) -> tuple[AvroCursor, np.ndarray]:
    """A cursor for all items of all rows, and how many each row has. Moves behind them. Raises PayloadMisfit."""
    counts, starts = find_items(cursor, step)
    return AvroCursor(cursor.source, starts, np.repeat(cursor.end, counts)), counts


class AvroColumns(PayloadDecoder):
    """Payloads of one version, as a reader that was made for it says."""

    def __init__(self, reader: AvroPart, fields: Sequence[pa.Field]) -> None:
        """The reader of a record gives its fields as the columns, any other reader gives the only one."""
        super().__init__(fields)
        self._reader = reader

    def decode(self, payloads: Payloads) -> list[pa.Array]:
        parts = [self._decode(AvroCursor.of(payloads.part(0, 0)))] if not payloads.total else []
        try:
            for start in range(0, payloads.total, ROWS_AT_ONCE):
                parts.append(self._decode(AvroCursor.of(payloads.part(start, start + ROWS_AT_ONCE))))
        except RecursionError:
            raise PayloadMisfit("it is nested too deeply") from None
        return parts[0] if len(parts) == 1 else [pa.concat_arrays(column) for column in zip(*parts, strict=True)]

    def _decode(self, cursor: AvroCursor) -> list[pa.Array]:
        if isinstance(self._reader, RecordReader):
            return self._reader.columns(cursor)
        return [self._reader.read(cursor).array()]
