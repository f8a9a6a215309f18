"""A time index of entries that wait for their delivery time: compact, and cheap to add to and to take from.

The newest entries are in a small heap, `_young`. When that is full it becomes a *run*: arrays, sorted by time, of which
entries are taken from the front. A heap of runs knows which one begins earliest. So an entry costs 26 bytes, adding and
taking cost O(log n), and nothing ever moves all entries at once.

The memory of a run is free when its last entry has been taken.
"""

from array import array
from heapq import heappop, heappush, heapreplace

from ...protocol.message_id import Position

YOUNG_MAX = 1024
YOUNG_ENTRY_BYTES = 200
RUN_ENTRY_BYTES = 26

TimedEntry = tuple[int, Position, int]
"""Time in ms since the epoch, position, slot."""


class _Run:
    """Entries in the order of their times. `head` is the first that was not taken."""

    __slots__ = ("entries", "head", "ledgers", "slots", "times")

    def __init__(self, entries: list[TimedEntry]) -> None:
        self.times = array("q", [at_ms for at_ms, _, _ in entries])
        self.ledgers = array("q", [position[0] for _, position, _ in entries])
        self.entries = array("q", [position[1] for _, position, _ in entries])
        self.slots = array("H", [slot for _, _, slot in entries])
        self.head = 0

    def take(self) -> TimedEntry:
        """Its first entry."""
        head = self.head
        self.head = head + 1
        return self.times[head], (self.ledgers[head], self.entries[head]), self.slots[head]


class DelayedEntries:
    """See the module. Slots are below 65,536."""

    def __init__(self) -> None:
        self._young: list[TimedEntry] = []
        self._runs: list[tuple[int, int, _Run]] = []
        """A heap: the time at the head of each run, and its number."""
        self._made = 0
        self._count = 0
        self._run_entries = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first_ms(self) -> int | None:
        """The earliest time, None if nothing waits."""
        young, runs = self._young, self._runs
        if young and not (runs and runs[0][0] < young[0][0]):
            return young[0][0]
        return runs[0][0] if runs else None

    @property
    def size_bytes(self) -> int:
        """The memory that is used, roughly."""
        return len(self._young) * YOUNG_ENTRY_BYTES + self._run_entries * RUN_ENTRY_BYTES

    def add(self, at_ms: int, position: Position, slot: int = 0) -> None:
        """An entry waits from now on. It is not looked up whether it does so already."""
        heappush(self._young, (at_ms, position, slot))
        self._count += 1
        if len(self._young) >= YOUNG_MAX:
            self._add_run(_Run(sorted(self._young)))
            self._young = []

    def take(self, upto_ms: int, count: int) -> list[TimedEntry]:
        """The earliest entries with that time or an earlier one, up to `count` of them, in order. They no longer
        wait."""
        taken: list[TimedEntry] = []
        while len(taken) < count:
            first_ms = self.first_ms
            if first_ms is None or first_ms > upto_ms:
                break
            if self._young and self._young[0][0] == first_ms:
                taken.append(heappop(self._young))
            else:
                taken.append(self._take_from_run())
        self._count -= len(taken)
        return taken

    def clear(self) -> None:
        """Nothing waits."""
        self._young, self._runs = [], []
        self._count = self._run_entries = 0

    def _add_run(self, run: _Run) -> None:
        self._made += 1
        self._run_entries += len(run.times)
        heappush(self._runs, (run.times[run.head], self._made, run))

    def _take_from_run(self) -> TimedEntry:
        _, number, run = self._runs[0]
        entry = run.take()
        if run.head < len(run.times):
            heapreplace(self._runs, (run.times[run.head], number, run))
        else:
            heappop(self._runs)
            self._run_entries -= len(run.times)
        return entry
