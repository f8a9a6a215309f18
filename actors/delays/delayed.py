"""A time index of entries that wait for their delivery time: compact, and cheap to add to and to take from.

The newest entries are in a small heap, `_young`. When that is full it becomes a *run*: arrays, sorted by time, of which
entries are taken from the front. A heap of runs knows which one begins earliest. So an entry costs 26 bytes, adding and
taking cost O(log n), and nothing ever moves all entries at once.

The memory of a run is free when its last entry has been taken.

Entries are taken in the order of (time, number of the run, place in the run). So of any set of runs, those entries that
have been taken are the first ones in this order.
"""

from array import array
from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from ...protocol.message_id import Position

YOUNG_MAX = 1024
YOUNG_ENTRY_BYTES = 200
RUN_ENTRY_BYTES = 26

TimedEntry = tuple[int, Position, int]
"""Time in ms since the epoch, position, slot."""


class TimedRun:
    """Entries in the order of their times. `head` is the first that was not taken; only `take` moves it."""

    __slots__ = ("entries", "head", "ledgers", "slots", "stored", "times")

    def __init__(
        self,
        times: "array[int]",
        ledgers: "array[int]",
        entries: "array[int]",
        slots: "array[int]",
        *,
        head: int = 0,
        stored: bool = False,
    ) -> None:
        """`stored` says that a bucket has these entries, too."""
        self.times = times
        self.ledgers = ledgers
        self.entries = entries
        self.slots = slots
        self.head = head
        self.stored = stored

    @staticmethod
    def of(entries: Sequence[TimedEntry]) -> "TimedRun":
        """Entries in the order of their times."""
        return TimedRun(
            array("q", [at_ms for at_ms, _, _ in entries]),
            array("q", [position[0] for _, position, _ in entries]),
            array("q", [position[1] for _, position, _ in entries]),
            array("H", [slot for _, _, slot in entries]),
        )

    def __len__(self) -> int:
        """How many have not been taken."""
        return len(self.times) - self.head

    def take(self) -> TimedEntry:
        """Its first entry."""
        head = self.head
        self.head = head + 1
        return self.times[head], (self.ledgers[head], self.entries[head]), self.slots[head]


class DelayedEntries:
    """See the module. Slots are below 65,536."""

    def __init__(self) -> None:
        self.young_max = YOUNG_MAX
        """A run is made of so many entries."""
        self._young: list[TimedEntry] = []
        self._runs: list[tuple[int, int, TimedRun]] = []
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

    def add(self, at_ms: int, position: Position, slot: int = 0) -> bool:
        """An entry waits from now on; nobody looks whether it does so already. Returns whether a run was made."""
        heappush(self._young, (at_ms, position, slot))
        self._count += 1
        if len(self._young) < self.young_max:
            return False
        self._push(TimedRun.of(sorted(self._young)))
        self._young = []
        return True

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

    # -- whole runs --------------------------------------------------------------------------------------------------

    def add_run(self, run: TimedRun) -> None:
        """The entries of a run, at least one, wait from now on."""
        self._push(run)
        self._count += len(run)

    def unstored_runs(self) -> list[TimedRun]:
        """The runs that no bucket has, in the order of their numbers."""
        return [run for _, _, run in sorted(self._runs, key=lambda one: one[1]) if not run.stored]

    def remove_runs(self, runs: Collection[TimedRun]) -> None:
        """What is left of these runs no longer waits here."""
        gone = {id(run) for run in runs}
        kept: list[tuple[int, int, TimedRun]] = []
        for one in self._runs:
            if id(one[2]) in gone:
                self._count -= len(one[2])
                self._run_entries -= len(one[2].times)
            else:
                kept.append(one)
        heapify(kept)
        self._runs = kept

    def _push(self, run: TimedRun) -> None:
        self._made += 1
        self._run_entries += len(run.times)
        heappush(self._runs, (run.times[run.head], self._made, run))

    def _take_from_run(self) -> TimedEntry:
        _, number, run = self._runs[0]
        entry = run.take()
        if len(run):
            heapreplace(self._runs, (run.times[run.head], number, run))
        else:
            heappop(self._runs)
            self._run_entries -= len(run.times)
        return entry
