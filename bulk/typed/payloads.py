"""Payloads on their way into columns, and what is said of one that does not fit its schema."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...protocol.errors import NotAllowedError
from .columns import VALUE, VALUE_PADDING

OTHERWISE = 'read the payloads as they are, with schema="bytes"'


class PayloadMisfit(Exception):
    """Some payload does not fit its schema. The caller finds out which one."""


def no_columns(why: str) -> NotAllowedError:
    """The error for a schema of which no columns can be made."""
    return NotAllowedError(f"the topic's schema cannot become columns: {why}: {OTHERWISE}")


class Payloads(NamedTuple):
    """Some payloads, in the order of their bytes: payload `i` is `data[starts[i]:ends[i]]`. None is null."""

    data: np.ndarray
    """Bytes; at least `VALUE_PADDING` lies behind the end of the last payload."""
    starts: np.ndarray
    ends: np.ndarray

    @property
    def total(self) -> int:
        return len(self.starts)

    def part(self, start: int, stop: int) -> "Payloads":
        """Those from `start` on, before `stop`."""
        return Payloads(self.data, self.starts[start:stop], self.ends[start:stop])

    def at(self, places: np.ndarray) -> "Payloads":
        """Those at some ascending places."""
        return Payloads(self.data, self.starts[places], self.ends[places])

    def listed(self) -> list[bytes]:
        """Each as an object of its own: for what is decoded one by one."""
        data = self.data.data
        return [bytes(data[start:end]) for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]


def payloads_of(column: pa.Array) -> tuple[Payloads, np.ndarray | None]:
    """The payloads in a column of binary or text, and where they lie in it; None if no row is null."""
    count = len(column)
    buffers = column.buffers()
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None else np.zeros(0, np.uint8)
    offsets = np.frombuffer(buffers[1], np.int32, count + 1, column.offset * 4) if count else np.zeros(1, np.int32)
    offsets = offsets.astype(np.int64)
    if len(data) < int(offsets[-1]) + len(VALUE_PADDING):
        data = np.concatenate((data, np.frombuffer(VALUE_PADDING, np.uint8)))
    found = Payloads(data, offsets[:-1], offsets[1:])
    if not column.null_count:
        return found, None
    places = np.flatnonzero(np.asarray(column.is_valid()))
    return found.at(places), places


class PayloadDecoder(ABC):
    """Makes columns of payloads that were all written with one schema."""

    column = VALUE
    """The column of a batch that has the payloads."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self.fields = list(fields)
        """The columns, in the order of `decode`."""

    @abstractmethod
    def decode(self, payloads: Payloads) -> list[pa.Array]:
        """A column for each field, with an item for each payload. Raises PayloadMisfit."""


def struct_of(decoder: PayloadDecoder, payloads: Payloads) -> pa.Array:
    """All columns of a decoder as one. Raises PayloadMisfit."""
    return struct_array(decoder.decode(payloads), decoder.fields, payloads.total)


def struct_array(columns: Sequence[pa.Array], fields: Sequence[pa.Field], count: int) -> pa.Array:
    """Columns as the fields of one."""
    if not fields:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays(columns, fields=list(fields))


def spread(column: pa.Array, places: np.ndarray, count: int) -> pa.Array:
    """A column of `count` rows that has the items of `column` at `places`, and null elsewhere."""
    if len(places) == count:
        return column
    indexes = np.zeros(count, np.int32)
    indexes[places] = np.arange(len(places), dtype=np.int32)
    absent = np.ones(count, bool)
    absent[places] = False
    return column.take(pa.array(indexes, mask=absent))


def first_misfit(decoder: PayloadDecoder, payloads: Payloads) -> tuple[int, str]:
    """The first payload that does not fit, and why, after `decode` has raised PayloadMisfit for all of them."""
    start, stop, why = 0, payloads.total, ""
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            decoder.decode(payloads.part(start, middle))
        except PayloadMisfit:
            stop = middle
        else:
            start = middle
    try:
        decoder.decode(payloads.part(start, stop))
    except PayloadMisfit as error:
        why = str(error)
    return start, why
