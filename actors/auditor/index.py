"""What the auditor remembers of each ledger, and which ledgers a bookie has: bookie → ledgers, without reading records.

It is kept up to date by changes: a record that was looked at replaces what was known. Names of bookies are kept once
for each different set of bookies. What it costs, with n ledgers:

- 27 bytes for each ledger, where ids are dense (16 for what is known, 8 in its group's order, the rest is overhead);
- a change, a deletion or a question about one ledger: O(log n);
- the ledgers of a bookie: O(the groups and ledgers of that bookie).

Numbers and lengths are summed by state, so that the status costs nothing.
"""

import enum
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...protocol.errors import ProtocolError
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.store import Write
from ..members.contracts_coordinator import LedgerChanges, LedgerFeedContract

IDS_PER_PAGE = 64
IDS_PER_CHUNK = 1024
_STATE_BITS = 5
_GROUP_BITS = 27
_VERSION_MASK = (1 << 32) - 1


class LedgerCondition(enum.IntEnum):
    """What the latest look found. The first five and the last are of closed ledgers. Each look
    decides again."""

    UNCHECKED = 0
    """Not looked at since something changed that concerns it."""
    WHOLE = 1
    MOVING = 2
    """A bookie of it is lost, and its entries are to be copied."""
    LACKING = 3
    """A live bookie lacks entries of it, or could not be asked."""
    FILLED = 4
    """Every live bookie has what it should, but a bookie is away, or there are too few for all copies."""
    OPEN = 5
    OPEN_LACKING = 6
    """Open, and a bookie of it is away."""
    OPEN_DOUBTFUL = 7
    """Open, and a bookie of it is in limbo."""
    CROWDED = 8
    """Closed and whole, but two copies of an entry are on one machine."""


INCOMPLETE = (
    LedgerCondition.MOVING,
    LedgerCondition.LACKING,
    LedgerCondition.FILLED,
    LedgerCondition.OPEN_LACKING,
)
WAITING = (
    LedgerCondition.FILLED,
    LedgerCondition.OPEN_LACKING,
    LedgerCondition.OPEN_DOUBTFUL,
    LedgerCondition.CROWDED,
)
"""Nothing can be done now. `due` says what ends this."""
HOLDING_BACK = (
    LedgerCondition.UNCHECKED,
    LedgerCondition.MOVING,
    LedgerCondition.LACKING,
    LedgerCondition.OPEN,
    LedgerCondition.OPEN_LACKING,
    LedgerCondition.OPEN_DOUBTFUL,
)
"""A bookie of such a ledger cannot leave limbo."""


class Known(NamedTuple):
    """What is known of a ledger. `version` is the record's, its lowest 32 bits."""

    bookies: tuple[str, ...]
    version: int
    length: int
    condition: LedgerCondition


class IdSet:
    """A sorted set of ledger ids, 8 bytes each."""

    def __init__(self) -> None:
        self._chunks: list[array[int]] = []
        self._firsts: list[int] = []
        self.count = 0

    def add(self, item: int) -> None:
        if not self._chunks:
            self._chunks.append(array("Q", (item,)))
            self._firsts.append(item)
            self.count += 1
            return
        at = max(0, bisect_right(self._firsts, item) - 1)
        chunk = self._chunks[at]
        if item > chunk[-1]:
            chunk.append(item)
        else:
            place = bisect_left(chunk, item)
            if chunk[place] == item:
                return
            chunk.insert(place, item)
            self._firsts[at] = chunk[0]
        self.count += 1
        if len(chunk) > IDS_PER_CHUNK:
            half = chunk[IDS_PER_CHUNK - 1 :] if at == len(self._chunks) - 1 else chunk[IDS_PER_CHUNK // 2 :]
            del chunk[len(chunk) - len(half) :]
            self._chunks.insert(at + 1, half)
            self._firsts.insert(at + 1, half[0])

    def __contains__(self, item: int) -> bool:
        at = bisect_right(self._firsts, item) - 1
        if at < 0:
            return False
        chunk = self._chunks[at]
        place = bisect_left(chunk, item)
        return place < len(chunk) and chunk[place] == item

    def update(self, items: Iterable[int]) -> None:
        for item in items:
            self.add(item)

    def discard(self, item: int) -> None:
        at = bisect_right(self._firsts, item) - 1
        if at < 0:
            return
        chunk = self._chunks[at]
        place = bisect_left(chunk, item)
        if place == len(chunk) or chunk[place] != item:
            return
        del chunk[place]
        self.count -= 1
        if chunk:
            self._firsts[at] = chunk[0]
        else:
            del self._chunks[at], self._firsts[at]

    def take(self, limit: int) -> list[int]:
        """Remove and return up to `limit` of the lowest ids."""
        found: list[int] = []
        while self._chunks and len(found) < limit:
            chunk = self._chunks[0]
            taken = chunk[: limit - len(found)]
            found += taken
            del chunk[: len(taken)]
            self.count -= len(taken)
            if chunk:
                self._firsts[0] = chunk[0]
            else:
                del self._chunks[0], self._firsts[0]
        return found

    def copy(self) -> "array[int]":
        """All of them, ascending."""
        found = array("Q")
        for chunk in self._chunks:
            found += chunk
        return found


class _Group:
    """The ledgers of one set of bookies."""

    __slots__ = ("bookies", "ledgers", "number")

    def __init__(self, number: int, bookies: tuple[str, ...]) -> None:
        self.number = number
        self.bookies = bookies
        self.ledgers = IdSet()


class LedgerIndex:
    """See the module."""

    def __init__(self) -> None:
        self.waiting = {condition: IdSet() for condition in WAITING}
        """The ledgers that are in one of these conditions."""
        self.counts = dict.fromkeys(LedgerCondition, 0)
        self.lengths = dict.fromkeys(LedgerCondition, 0)
        """Sums, in bytes of bodies."""
        self._pages: dict[int, array[int]] = {}
        """By ledger id ÷ `IDS_PER_PAGE`: two numbers for each ledger, the first 0 for one that is not known."""
        self._groups: list[_Group | None] = [None]
        self._free: list[int] = []
        self._by_bookies: dict[tuple[str, ...], _Group] = {}
        self._of_bookie: dict[str, dict[int, None]] = {}
        self._round = 0

    @property
    def count(self) -> int:
        """How many ledgers are known."""
        return sum(self.counts.values())

    def find(self, ledger_id: int) -> Known | None:
        page = self._pages.get(ledger_id // IDS_PER_PAGE)
        at = ledger_id % IDS_PER_PAGE * 2
        if page is None or not page[at]:
            return None
        group, condition, version, _ = _unpack(page[at])
        return Known(self._group(group).bookies, version, page[at + 1], condition)

    def put(
        self, ledger_id: int, bookies: tuple[str, ...], version: int, length: int, condition: LedgerCondition
    ) -> None:
        """What a look at the ledger's record has found."""
        number, at = divmod(ledger_id, IDS_PER_PAGE)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = array("Q", bytes(16 * IDS_PER_PAGE))
        at *= 2
        old = _unpack(page[at])[0] if page[at] else 0
        group = self._by_bookies.get(bookies) or self._new_group(bookies)
        if page[at]:
            self._count(ledger_id, page, at, -1)
        if old != group.number:
            group.ledgers.add(ledger_id)
            if old:
                self._leave(old, ledger_id)
        page[at] = _pack(group.number, condition, version, self._round)
        page[at + 1] = length
        self._count(ledger_id, page, at, 1)

    def set_condition(self, ledger_id: int, condition: LedgerCondition) -> None:
        """Of a ledger that is known."""
        page, at = self._pages[ledger_id // IDS_PER_PAGE], ledger_id % IDS_PER_PAGE * 2
        self._count(ledger_id, page, at, -1)
        group, _, version, seen = _unpack(page[at])
        page[at] = _pack(group, condition, version, seen)
        self._count(ledger_id, page, at, 1)

    def remove(self, ledger_id: int) -> None:
        """The ledger is deleted."""
        number, at = divmod(ledger_id, IDS_PER_PAGE)
        page = self._pages.get(number)
        at *= 2
        if page is None or not page[at]:
            return
        self._count(ledger_id, page, at, -1)
        self._leave(_unpack(page[at])[0], ledger_id)
        page[at] = page[at + 1] = 0
        if not any(page):
            del self._pages[number]

    def of(self, bookie: str) -> Iterator[int]:
        """The ledgers that name a bookie, as they are now."""
        for number in list(self._of_bookie.get(bookie, ())):
            group = self._groups[number]
            if group is not None:
                yield from group.ledgers.copy()

    # -- walks ---------------------------------------------------------------------------------------------------

    def begin_walk(self) -> None:
        """Everything that exists will be put from now on."""
        self._round ^= 1

    def end_walk(self) -> None:
        """What was not put since the walk began does not exist any longer."""
        for number, page in list(self._pages.items()):
            for at in range(0, 2 * IDS_PER_PAGE, 2):
                if page[at] and _unpack(page[at])[3] != self._round:
                    self.remove(number * IDS_PER_PAGE + at // 2)

    # -- inside --------------------------------------------------------------------------------------------------

    def _count(self, ledger_id: int, page: "array[int]", at: int, step: int) -> None:
        condition = _unpack(page[at])[1]
        self.counts[condition] += step
        self.lengths[condition] += step * page[at + 1]
        waiting = self.waiting.get(condition)
        if waiting is not None:
            if step > 0:
                waiting.add(ledger_id)
            else:
                waiting.discard(ledger_id)

    def _group(self, number: int) -> _Group:
        group = self._groups[number]
        assert group is not None
        return group

    def _new_group(self, bookies: tuple[str, ...]) -> _Group:
        if self._free:
            group = _Group(self._free.pop(), bookies)
            self._groups[group.number] = group
        else:
            group = _Group(len(self._groups), bookies)
            self._groups.append(group)
        self._by_bookies[bookies] = group
        for bookie in bookies:
            self._of_bookie.setdefault(bookie, {})[group.number] = None
        return group

    def _leave(self, number: int, ledger_id: int) -> None:
        group = self._group(number)
        group.ledgers.discard(ledger_id)
        if not group.ledgers.count:
            self._groups[number] = None
            self._free.append(number)
            del self._by_bookies[group.bookies]
            for bookie in group.bookies:
                del self._of_bookie[bookie][number]
                if not self._of_bookie[bookie]:
                    del self._of_bookie[bookie]


def _pack(group: int, condition: LedgerCondition, version: int, seen: int) -> int:
    return (version & _VERSION_MASK) << 32 | group << _STATE_BITS | condition << 1 | seen


def _unpack(word: int) -> tuple[int, LedgerCondition, int, int]:
    """Group, condition, version, and the walk that it was put in last."""
    group = word >> _STATE_BITS & (1 << _GROUP_BITS) - 1
    return group, _CONDITIONS[word >> 1 & 15], word >> 32, word & 1


_CONDITIONS = list(LedgerCondition)


CHANGES_MAX = 1 << 20
CHANGES_PER_ANSWER = 50_000


class LedgerFeed(LedgerFeedContract):
    """Which ledgers' records were written or deleted lately: bookies ask for it before they collect garbage.

    The feed is a hint. What it names, a bookie asks the metadata for, by the ledger's own key, under all the rules of
    `storage/bookie/garbage_collection.py`. So a feed that says too much costs a question. One that says too little
    keeps a deleted ledger until the next full comparison. The feed is never a reason to delete.

    It lives with the coordinator: another one has another epoch, and begins an empty feed. A bookie that asks with an
    older epoch, or for what is forgotten, hears that its knowledge is not complete, and compares all of its ledgers.

    Memory: 8 bytes per change, at most `CHANGES_MAX` of them. New ledgers are left out: nobody collects them.

    `epoch` is the coordinator's.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._first = 0
        """The number of the oldest change that is remembered."""
        self._ledgers = array("Q")

    def written(self, writes: Iterable[Write]) -> None:
        """These changes were made, or may have been."""
        for write in writes:
            if not write.key.startswith(metadata_keys.LEDGERS_PREFIX):
                continue
            if write.value is not None and write.expected_version is None:
                continue
            try:
                self._ledgers.append(metadata_keys.ledger_id_of(write.key))
            except ProtocolError:
                continue  # no bookie holds such a ledger
        if len(self._ledgers) > CHANGES_MAX:
            forgotten = len(self._ledgers) - CHANGES_MAX // 2
            del self._ledgers[:forgotten]
            self._first += forgotten

    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges:
        end = self._first + len(self._ledgers)
        if epoch != self.epoch or not self._first <= since <= end:
            return LedgerChanges(self.epoch, end, end, [], complete=False)
        at = since - self._first
        found = self._ledgers[at : at + CHANGES_PER_ANSWER]
        return LedgerChanges(self.epoch, since + len(found), end, list(dict.fromkeys(found)), complete=True)
