"""Disjoint ranges of entry ids of one ledger, in order, never touching each other. Pure.

Two parallel lists and binary search: a cursor with ten thousand holes still answers in a microsecond.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class EntryRanges:
    """Ranges are inclusive on both ends. `count` is the number of ids in all of them."""

    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self) -> None:
        self.count = 0
        self._firsts: list[int] = []
        self._lasts: list[int] = []

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
