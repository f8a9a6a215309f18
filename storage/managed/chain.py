"""The ledgers of one topic in order, and arithmetic on positions across them. Pure.

A position is `(ledger id, entry id)`; along the chain ledger ids grow, so positions compare as tuples. A position need
not exist. The position behind the last entry of a ledger, or an entry of a trimmed ledger, lies between its neighbours.
Every function here takes such positions. Ledgers without entries are stepped over.

`ChainWriterState` has the states of its writer, and `TRANSITIONS` the steps between them.

Invariants: ledger ids strictly ascend; only the last ledger grows; entries of all others are final.
"""

import enum
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...protocol.errors import LedgerError
from ...protocol.message_id import EARLIEST_POSITION, Position

LEDGERS_BEFORE_MAX = 16
"""So many ledgers before its start a plan has at most, however small they are."""


@dataclass
class LedgerInfo:
    """One ledger of the chain. `entries` and `size_bytes` count what is acknowledged.

    `closed` is what its metadata says. Times are milliseconds since the epoch.
    """

    ledger_id: int
    created_ms: int
    entries: int = 0
    size_bytes: int = 0
    closed: bool = False
    closed_ms: int = 0


def bytes_after(infos: Iterable[LedgerInfo], position: Position) -> int:
    """Bytes of bodies behind a position, with entries of one ledger taken as equally large."""
    total = 0.0
    for info in infos:
        if info.entries and info.ledger_id >= position[0]:
            skipped = min(max(position[1] + 1, 0), info.entries) if info.ledger_id == position[0] else 0
            total += info.size_bytes * (info.entries - skipped) / info.entries
    return round(total)


def ledgers_before(infos: Sequence[LedgerInfo], position: Position, size_bytes: int) -> list[int]:
    """The ledgers before that of a position which, with what that has before the position, hold about so many bytes."""
    found: list[int] = []
    for info in reversed(infos) if size_bytes else ():
        if info.ledger_id > position[0] or not info.entries:
            continue
        if info.ledger_id == position[0]:
            size_bytes -= info.size_bytes * min(max(position[1], 0), info.entries) // info.entries
            continue
        if size_bytes <= 0 or len(found) == LEDGERS_BEFORE_MAX:
            break
        found.append(info.ledger_id)
        size_bytes -= info.size_bytes
    return found[::-1]


class LedgerChain:
    def __init__(self, infos: list[LedgerInfo]) -> None:
        self.infos: list[LedgerInfo] = []
        self._ids: list[int] = []
        self.last_confirmed: Position = EARLIEST_POSITION
        """The last acknowledged entry, (−1, −1) when the chain has none. It survives the trimming of its ledger."""
        for info in infos:
            self.append(info)
        for info in infos:
            if info.entries:
                self.last_confirmed = (info.ledger_id, info.entries - 1)

    # -- the ledgers ---------------------------------------------------------------------------------------------

    def append(self, info: LedgerInfo) -> None:
        """A new last ledger."""
        if self._ids and info.ledger_id <= self._ids[-1]:
            raise ValueError(f"ledger {info.ledger_id} cannot follow {self._ids[-1]}")
        self.infos.append(info)
        self._ids.append(info.ledger_id)

    def add_recovered(self, info: LedgerInfo, last_entry: int) -> None:
        """A ledger of the stored chain that is missing here: the answer to its storing was lost.

        Its writer was given up then, so it has no entries, and a later ledger may be here already. Raises LedgerError
        for one with entries before the last ledger.
        """
        if last_entry >= 0 and info.ledger_id < self.last_ledger_id:
            raise LedgerError(
                f"ledger {info.ledger_id} has entries up to {last_entry}, but this owner never wrote to it and "
                "continued "
                f"with ledger {self.last_ledger_id}: unload the topic"
            )
        index = bisect_left(self._ids, info.ledger_id)
        self.infos.insert(index, info)
        self._ids.insert(index, info.ledger_id)

    def remove(self, ledger_ids: list[int]) -> None:
        """Ledgers that were trimmed or given up."""
        gone = set(ledger_ids)
        self.infos = [info for info in self.infos if info.ledger_id not in gone]
        self._ids = [info.ledger_id for info in self.infos]

    def get(self, ledger_id: int) -> LedgerInfo | None:
        index = bisect_left(self._ids, ledger_id)
        if index < len(self._ids) and self._ids[index] == ledger_id:
            return self.infos[index]
        return None

    def as_known(self, stored: Iterable[LedgerInfo]) -> tuple[LedgerInfo, ...]:
        """The ledgers of the stored chain, with what is known of them by now."""
        return tuple(self.get(info.ledger_id) or info for info in stored)

    def grow(self, info: LedgerInfo, last_entry: int, size_bytes: int) -> None:
        """Entries of the last ledger up to `last_entry` are acknowledged, `size_bytes` of bodies in all."""
        info.entries = last_entry + 1
        info.size_bytes = size_bytes
        if last_entry >= 0:
            self.last_confirmed = max(self.last_confirmed, (info.ledger_id, last_entry))

    @property
    def last_ledger_id(self) -> int:
        """The highest id that the chain holds, −1 for none."""
        return self._ids[-1] if self._ids else -1

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.infos)

    # -- positions -----------------------------------------------------------------------------------------------

    @property
    def first_position(self) -> Position:
        """The first entry that exists; the place of the next one to come when there is none."""
        for info in self.infos:
            if info.entries:
                return (info.ledger_id, 0)
        return self._behind_all()

    def contains(self, position: Position) -> bool:
        """Whether the entry exists and is acknowledged."""
        info = self.get(position[0])
        return info is not None and 0 <= position[1] < info.entries

    def ceiling(self, position: Position) -> Position | None:
        """The first existing entry at or behind a position, None when there is none."""
        ledger_id, entry_id = position
        for info in self.infos[bisect_left(self._ids, ledger_id) :]:
            if info.ledger_id > ledger_id:
                if info.entries:
                    return (info.ledger_id, 0)
            elif max(entry_id, 0) < info.entries:
                return (ledger_id, max(entry_id, 0))
        return None

    def next_position(self, position: Position) -> Position:
        """The first existing entry behind a position, else the place of the next one to come."""
        ledger_id, entry_id = position
        info = self.get(ledger_id)
        if info is not None and max(entry_id + 1, 0) < info.entries:
            return (ledger_id, max(entry_id + 1, 0))
        return self.ceiling((ledger_id, entry_id + 1)) or max(self._behind_all(), (ledger_id, entry_id + 1))

    def position_before(self, position: Position) -> Position:
        """The last existing entry in front of a position, (−1, −1) if there is none."""
        for info in reversed(self.infos[: bisect_left(self._ids, position[0] + 1)]):
            last = min(info.entries, position[1]) - 1 if info.ledger_id == position[0] else info.entries - 1
            if last >= 0:
                return (info.ledger_id, last)
        return (-1, -1)

    def count_between(self, after: Position, last: Position) -> int:
        """Existing entries behind `after` up to and including `last`."""
        if last <= after:
            return 0
        count = 0
        for info in self.infos[bisect_left(self._ids, after[0]) :]:
            if info.ledger_id > last[0]:
                break
            first_entry = max(after[1] + 1, 0) if info.ledger_id == after[0] else 0
            end = min(info.entries, last[1] + 1) if info.ledger_id == last[0] else info.entries
            count += max(end - first_entry, 0)
        return count

    def bytes_after(self, position: Position) -> int:
        """See the function of that name."""
        return bytes_after(self.infos[bisect_left(self._ids, position[0]) :], position)

    def _behind_all(self) -> Position:
        last_ledger, last_entry = self.last_confirmed
        behind: Position = (max(last_ledger, 0), last_entry + 1)
        if self.infos and not self.infos[-1].closed and not self.infos[-1].entries:
            return max(behind, (self.infos[-1].ledger_id, 0))
        return behind


class ChainWriterState(enum.Enum):
    """See `TRANSITIONS`."""

    IDLE = enum.auto()
    STARTING = enum.auto()
    WRITING = enum.auto()
    SWITCHING = enum.auto()
    FAILED = enum.auto()
    TERMINATED = enum.auto()
    FENCED = enum.auto()
    CLOSED = enum.auto()


_S = ChainWriterState
_END = (_S.TERMINATED, _S.FENCED, _S.CLOSED)
TRANSITIONS: Mapping[ChainWriterState, Collection[ChainWriterState]] = {
    _S.IDLE: (_S.STARTING, *_END),  # an append: it waits for the first ledger
    # The ledger is created and the chain stored; or that failed, and what waited gets the error.
    _S.STARTING: (_S.WRITING, _S.IDLE, _S.FAILED, *_END),
    # The next ledger is in the chain, and entries wait until the old one has drained; or the writer failed.
    _S.WRITING: (_S.SWITCHING, _S.FAILED, *_END),
    _S.SWITCHING: (_S.WRITING, _S.FAILED, *_END),  # the old ledger has drained, and is closed behind the next
    _S.FAILED: (_S.STARTING, *_END),  # an append: it waits its time, then the old ledgers are recovered
    _S.TERMINATED: (_S.FENCED, _S.CLOSED),  # `terminate`: nothing is appended from now on
    _S.FENCED: (),
    _S.CLOSED: (),
}
