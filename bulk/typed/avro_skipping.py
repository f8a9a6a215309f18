"""Stepping over Avro values that nobody asks for, and finding the items of arrays and maps.

Fields of a record lie behind each other, so a reader has to step over those in front of what it wants. A step takes
all rows at once. Items are found by passes: the first item of all rows, then the second of those that have one, and so
on. A few rows with very many items would need a pass for each of them. So these rows are walked one item after the
other.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from ...actors.schemas.avro_definition import AvroType
from .avro_cursor import AvroCursor
from .payloads import PayloadMisfit

FIXED_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
PASSES_MAX = 64
WALKED_ROWS_MAX = 256
"""So few rows are walked after `PASSES_MAX` passes. For more of them a pass is cheaper."""
EMPTY_ITEMS_MAX = 1 << 10
"""Items of one row that take no bytes: a bound on what a count alone can make us allocate."""


class AvroStep(ABC):
    """Steps over one value in each row."""

    size: int | None = None
    """How many bytes each value has; None if they differ."""

    @abstractmethod
    def skip(self, cursor: AvroCursor) -> None:
        """Move all rows behind the value. Raises PayloadMisfit."""

    @abstractmethod
    def walk(self, data: memoryview, at: int, end: int) -> int:
        """Where a value that begins at `at` ends. Raises PayloadMisfit if that is behind `end`."""


class SkipFixed(AvroStep):
    def __init__(self, size: int) -> None:
        self.size = size

    def skip(self, cursor: AvroCursor) -> None:
        cursor.move(self.size or 0)

    def walk(self, data: memoryview, at: int, end: int) -> int:
        return _within(at + (self.size or 0), end)


class SkipNumber(AvroStep):
    def skip(self, cursor: AvroCursor) -> None:
        cursor.unsigned()

    def walk(self, data: memoryview, at: int, end: int) -> int:
        return number_at(data, at, end)[1]


class SkipBytes(AvroStep):
    def skip(self, cursor: AvroCursor) -> None:
        cursor.move(cursor.length())

    def walk(self, data: memoryview, at: int, end: int) -> int:
        size, at = number_at(data, at, end)
        return _within(at + size, end) if size >= 0 else _within(1, 0)


class SkipRecord(AvroStep):
    """Fields behind each other. `fields` may be filled in later: a record can contain itself."""

    def __init__(self) -> None:
        self.fields: Sequence[AvroStep] = ()

    def skip(self, cursor: AvroCursor) -> None:
        if cursor.count:  # else a record that contains itself would never end
            for field in self.fields:
                field.skip(cursor)

    def walk(self, data: memoryview, at: int, end: int) -> int:
        for field in self.fields:
            at = field.walk(data, at, end)
        return at


class SkipUnion(AvroStep):
    def __init__(self, branches: Sequence[AvroStep]) -> None:
        self._branches = branches

    def skip(self, cursor: AvroCursor) -> None:
        branch = branches_of(cursor, len(self._branches))
        for number, step in enumerate(self._branches):
            if step.size != 0:
                rows = np.flatnonzero(branch == number)
                if len(rows):
                    some = cursor.some(rows)
                    step.skip(some)
                    cursor.at[rows] = some.at

    def walk(self, data: memoryview, at: int, end: int) -> int:
        branch, at = number_at(data, at, end)
        if not 0 <= branch < len(self._branches):
            raise PayloadMisfit(f"a union has no branch {branch}")
        return self._branches[branch].walk(data, at, end)


class SkipItems(AvroStep):
    """The items of an array. Those of a map are pairs: a record of a text and a value."""

    def __init__(self, item: AvroStep) -> None:
        self._item = item

    def skip(self, cursor: AvroCursor) -> None:
        find_items(cursor, self._item)

    def walk(self, data: memoryview, at: int, end: int) -> int:
        while True:
            count, at = number_at(data, at, end)
            if not count:
                return at
            if count < 0:  # the size of the block follows
                size, at = number_at(data, at, end)
                at = _within(at + size, end) if size >= 0 else _within(1, 0)
                continue
            if self._item.size is not None:
                at = _within(at + count * self._item.size, end)
                continue
            _within(at + count, end)
            for _ in range(count):
                at = self._item.walk(data, at, end)


def step_over(avro: AvroType, known: dict[int, AvroStep] | None = None) -> AvroStep:
    """What steps over values of a type."""
    known = {} if known is None else known
    found = known.get(id(avro))
    if found is not None:
        return found
    if avro.kind == "record":
        made = known[id(avro)] = SkipRecord()
        made.fields = merged([step_over(field.type, known) for field in avro.fields])
        if all(one.size is not None for one in made.fields):
            made.size = sum(one.size or 0 for one in made.fields)
        return made
    if avro.kind in FIXED_SIZES:
        return SkipFixed(FIXED_SIZES[avro.kind])
    if avro.kind == "fixed":
        return SkipFixed(avro.size_bytes)
    if avro.kind in ("string", "bytes"):
        return SkipBytes()
    if avro.kind == "union":
        return SkipUnion([step_over(branch, known) for branch in avro.branches])
    if avro.kind == "array":
        return SkipItems(step_over(avro.items, known))
    if avro.kind == "map":
        return SkipItems(pair_of(step_over(avro.items, known)))
    return SkipNumber()  # int, long and enum


def pair_of(value: AvroStep) -> AvroStep:
    """What steps over an item of a map."""
    pair = SkipRecord()
    pair.fields = (SkipBytes(), value)
    return pair


def merged(steps: Sequence[AvroStep]) -> list[AvroStep]:
    """The same, with one step for several values of fixed size in a row."""
    found: list[AvroStep] = []
    for step in steps:
        if step.size is not None and found and found[-1].size is not None:
            found[-1] = SkipFixed(found[-1].size + step.size)
        else:
            found.append(step)
    return found


def branches_of(cursor: AvroCursor, count: int) -> np.ndarray:
    """The branch of a union that each row has. Raises PayloadMisfit for one that is none."""
    branch = cursor.signed()
    if len(branch) and not (0 <= int(branch.min()) and int(branch.max()) < count):
        raise PayloadMisfit(
            f"a union has no branch {int(branch.min()) if int(branch.min()) < 0 else int(branch.max())}"
        )
    return branch


def find_items(cursor: AvroCursor, item: AvroStep) -> tuple[np.ndarray, np.ndarray]:
    """How many items each row has, and where each item begins, row after row. Moves the cursor behind all of them.

    Raises PayloadMisfit.
    """
    cursor.at = cursor.at.copy()
    rows_found: list[np.ndarray] = []
    starts_found: list[np.ndarray] = []
    empty = np.zeros(cursor.count, np.int64)
    active = np.arange(cursor.count)
    while len(active):
        some = cursor.some(active)
        counts = _block(some)
        cursor.at[active] = some.at
        more = counts > 0
        active, counts = active[more], counts[more]
        if item.size == 0:
            empty[active] += np.minimum(counts, EMPTY_ITEMS_MAX + 1)
            if (empty > EMPTY_ITEMS_MAX).any():
                raise PayloadMisfit(f"there are more than {EMPTY_ITEMS_MAX} items without bytes")
        elif (counts > cursor.end[active] - cursor.at[active]).any():
            raise PayloadMisfit("an array or a map is cut off")
        if item.size is None:
            _pass_over(cursor, item, active, counts, rows_found, starts_found)
        else:
            rows, starts = _of_one_size(cursor, item.size, active, counts)
            rows_found.append(rows)
            starts_found.append(starts)
    if not rows_found:
        return np.zeros(cursor.count, np.int64), np.zeros(0, np.int64)
    rows = np.concatenate(rows_found)
    order = np.argsort(rows, kind="stable")  # the items of one row were found in their order
    return np.bincount(rows, minlength=cursor.count), np.concatenate(starts_found)[order]


def _block(cursor: AvroCursor) -> np.ndarray:
    """How many items the next block of each row has. Moves behind the size that some blocks have in front."""
    counts = cursor.signed()
    sized = np.flatnonzero(counts < 0)
    if len(sized):
        some = cursor.some(sized)
        some.length()
        cursor.at[sized] = some.at
        counts[sized] = -counts[sized]
        if (counts < 0).any():  # the least number of 64 bits
            raise PayloadMisfit("an array or a map is cut off")
    return counts


def _of_one_size(
    cursor: AvroCursor, size: int, active: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    begin = cursor.at[active]
    if size and (counts > (cursor.end[active] - begin) // size).any():
        raise PayloadMisfit("an array or a map is cut off")
    cursor.at[active] = begin + counts * size
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(active, counts), np.repeat(begin, counts) + within * size


def _pass_over(
    cursor: AvroCursor,
    item: AvroStep,
    active: np.ndarray,
    left: np.ndarray,
    rows_found: list[np.ndarray],
    starts_found: list[np.ndarray],
) -> None:
    passes = 0
    while len(active):
        if passes >= PASSES_MAX and len(active) <= WALKED_ROWS_MAX:
            for place, row in enumerate(active.tolist()):
                count = int(left[place])
                starts = _walked(cursor, item, row, count)
                rows_found.append(np.full(count, row))
                starts_found.append(starts)
            return
        some = cursor.some(active)
        rows_found.append(active)
        starts_found.append(some.at)
        item.skip(some)
        cursor.at[active] = some.at
        left = left - 1
        more = left > 0
        active, left = active[more], left[more]
        passes += 1


def _walked(cursor: AvroCursor, item: AvroStep, row: int, count: int) -> np.ndarray:
    """Where `count` items of one row begin."""
    data, at, end = cursor.source.data.data, int(cursor.at[row]), int(cursor.end[row])
    starts: list[int] = []
    for _ in range(count):
        starts.append(at)
        at = item.walk(data, at, end)
    cursor.at[row] = at
    return np.array(starts, np.int64)


def number_at(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """The number that begins at a place, and where it ends. Raises PayloadMisfit."""
    number = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            if number >> 64:
                break
            return number >> 1 ^ -(number & 1), at
        shift += 7
    raise PayloadMisfit("it is cut off" if at >= end else "a number has more than 64 bits")


def _within(at: int, end: int) -> int:
    if at > end:
        raise PayloadMisfit("it is cut off")
    return at
