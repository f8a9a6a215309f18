"""Which entries of a ledger are acknowledged, and which messages of a batch. Pure.

`EntryRanges`: disjoint ranges of entry ids of one ledger, in order, never touching each other. Two parallel lists and
binary search: a cursor with ten thousand holes still answers in a microsecond.

`BatchIndexes`: batches of which single messages are acknowledged, one set of bits for each entry. A bit that is set
stands for a message that is not acknowledged yet. A batch is here while some but not all of its bits are clear.
Acknowledging only clears bits.

Bounds: a batch has at most `BATCH_MESSAGES_MAX` messages, and the sets of one cursor take at most
`BATCHES_SIZE_MAX_BYTES`. Beyond that `narrow` refuses, and nothing changes: the batch comes again as it was. Nothing
that is here is dropped to make room.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice
from operator import gt, lt

from sortedcontainers import SortedDict

from ...protocol.ack_sets import bits_to_words
from ...protocol.errors import NotAllowedError
from ...protocol.message_id import Position

BATCH_MESSAGES_MAX = 1 << 20
BATCHES_SIZE_MAX_BYTES = 64 << 20

OpenMessages = tuple[int, int]
"""Batch size, and the bits of the messages that are not acknowledged."""
Batches = dict[Position, OpenMessages]


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

    def first_behind(self, entry_id: int) -> int | None:
        """The first id behind `entry_id` with which a range begins, None for none."""
        index = bisect_right(self._firsts, entry_id)
        return self._firsts[index] if index < len(self._firsts) else None

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


_NO_SETS: SortedDict[Position, OpenMessages] = SortedDict()
"""Stays empty. Most cursors never have others, and a SortedDict of their own takes 700 bytes."""


class BatchIndexes:
    """See the module. `Batches` is a copy of what is in it."""

    __slots__ = ("sets", "size_bytes")

    def __init__(self) -> None:
        self.sets: SortedDict[Position, OpenMessages] = _NO_SETS
        """To look at: the truth test of a dict costs less than a call, and every acknowledgement makes one."""
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.sets)

    def __contains__(self, position: Position) -> bool:
        return position in self.sets

    def __getitem__(self, position: Position) -> OpenMessages:
        return self.sets[position]

    def __iter__(self) -> Iterator[Position]:
        """In the order of positions."""
        return iter(self.sets)

    def get(self, position: Position) -> OpenMessages | None:
        """None if all messages of the entry are open."""
        return self.sets.get(position)

    def ack_set(self, position: Position) -> list[int] | None:
        """Signed 64-bit words whose set bits are messages of a batch not yet acknowledged; None when all are open."""
        batch = self.sets.get(position)
        return None if batch is None else bits_to_words(batch[1])

    def copy(self) -> Batches:
        """The same sets, apart from these."""
        return dict(self.sets)

    def count_before(self, position: Position) -> int:
        """How many batches lie in front of `position`."""
        return self.sets.bisect_left(position)

    def narrow(self, position: Position, size: int, bits: int) -> int:
        """Clear the bits that are clear in `bits`; returns what is left. 0 means that the whole batch is acknowledged:
        it is no longer here.

        Raises NotAllowedError beyond the bounds of the module; nothing has changed then.
        """
        before = self.sets.get(position)
        if before is None:
            check_batch_size(size)
            left = bits & ((1 << size) - 1)
            if not left or left == (1 << size) - 1:
                return left
            if self.size_bytes + _size_bytes(size) > BATCHES_SIZE_MAX_BYTES:
                raise NotAllowedError(
                    "too many batches are acknowledged in part: acknowledge the rest of some before others"
                )
            self.put(position, (size, left))
            return left
        size, left = before[0], before[1] & bits
        if left:
            self.sets[position] = (size, left)
        else:
            self.discard(position)
        return left

    def put(self, position: Position, batch: OpenMessages) -> None:
        """Set a batch, as it was stored."""
        self.discard(position)
        if self.sets is _NO_SETS:
            self.sets = SortedDict()
        self.sets[position] = batch
        self.size_bytes += _size_bytes(batch[0])

    def discard(self, position: Position) -> None:
        """The whole entry is acknowledged, or gone."""
        batch = self.sets.pop(position, None)
        if batch is not None:
            self.size_bytes -= _size_bytes(batch[0])

    def remove_up_to(self, position: Position) -> None:
        """Forget `position` and all before it. Costs what it removes."""
        sets = self.sets
        while sets and sets.peekitem(0)[0] <= position:
            self.size_bytes -= _size_bytes(sets.popitem(0)[1][0])

    def retain(self, wanted: Callable[[Position], bool]) -> None:
        """Forget those that are not wanted."""
        for position in [one for one in self.sets if not wanted(one)]:
            self.discard(position)

    def clear(self) -> None:
        self.sets = _NO_SETS
        self.size_bytes = 0


def _size_bytes(size: int) -> int:
    return (size + 7) // 8


def check_batch_size(size: int) -> None:
    """Raise NotAllowedError for a batch that is too large to be acknowledged in part."""
    if size > BATCH_MESSAGES_MAX:
        raise NotAllowedError(
            f"a batch of {size} messages cannot be acknowledged by index, which {BATCH_MESSAGES_MAX} can: "
            "acknowledge it as a whole"
        )
