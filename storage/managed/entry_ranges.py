"""Disjoint ranges of entry ids of one ledger, in order, never touching each other. Pure.

Two parallel lists and binary search: a cursor with ten thousand holes still answers in a microsecond.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from operator import gt, lt


class EntryRanges:
    """Ranges are inclusive on both ends. `count` is the number of ids in all of them."""

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def extend(self, firsts: list[int], lasts: list[int]) -> None:
        """Add ranges; fast when they are in order, do not touch, and lie behind what is here.

        Raises ValueError for a range that ends before it begins, or ids below 0.
        """
        if not firsts:
            return
        if min(firsts) < 0 or any(map(gt, firsts, lasts)):
            raise ValueError("a range of entries ends before it begins, or has a negative id")
        behind = not self._lasts or self._lasts[-1] + 1 < firsts[0]
        if behind and all(map(lt, map((1).__add__, lasts), islice(firsts, 1, None))):
            self._firsts += firsts
            self._lasts += lasts
            self.count += sum(lasts) - sum(firsts) + len(firsts)
            return
        for first, last in zip(firsts, lasts, strict=True):
            self.add(first, last)

    def copy(self) -> "EntryRanges":
        """The same ranges, apart from these."""
        ranges = EntryRanges()
        ranges._firsts, ranges._lasts, ranges.count = self._firsts.copy(), self._lasts.copy(), self.count
        return ranges

    def pairs(self, start: int, count: int) -> list[int]:
        """First entry and length less one of so many ranges from number `start` on, in one list."""
        flat: list[int] = []
        for first, last in zip(self._firsts[start : start + count], self._lasts[start : start + count], strict=True):
            flat += (first, last - first)
        return flat

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._firsts, self._lasts, strict=True))

    def end_of(self, entry_id: int) -> int | None:
        """The last id of the range that holds `entry_id`, None when none does."""
        index = bisect_right(self._firsts, entry_id) - 1
        if index < 0 or self._lasts[index] < entry_id:
            return None
        return self._lasts[index]

    def count_before(self, entry_id: int) -> int:
        """How many ranges begin in front of `entry_id`."""
        return bisect_left(self._firsts, entry_id)

    def add(self, first: int, last: int) -> bool:
        """Add ids; what touches or overlaps grows together. Returns whether any of them was new."""
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        covered = 0
        if low < high:
            if self._firsts[low] <= first and last <= self._lasts[low]:
                return False
            for index in range(low, high):
                covered += self._lasts[index] - self._firsts[index] + 1
            first = min(first, self._firsts[low])
            last = max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]
        self.count += last - first + 1 - covered
        return True

    def remove_from(self, entry_id: int) -> None:
        """Take away `entry_id` and all ids behind it."""
        keep = bisect_left(self._firsts, entry_id)
        for first, last in zip(self._firsts[keep:], self._lasts[keep:], strict=True):
            self.count -= last - first + 1
        del self._firsts[keep:]
        del self._lasts[keep:]
        if self._lasts and self._lasts[-1] >= entry_id:
            self.count -= self._lasts[-1] - entry_id + 1
            self._lasts[-1] = entry_id - 1

    def remove_up_to(self, entry_id: int) -> None:
        """Take away all ids up to and including `entry_id`."""
        keep = bisect_right(self._lasts, entry_id)
        for index in range(keep):
            self.count -= self._lasts[index] - self._firsts[index] + 1
        del self._firsts[:keep]
        del self._lasts[:keep]
        if self._firsts and self._firsts[0] <= entry_id:
            self.count -= entry_id + 1 - self._firsts[0]
            self._firsts[0] = entry_id + 1
