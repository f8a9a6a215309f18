"""What a bookie knows of each ledger besides its entries: fenced or not, how far it goes, deleted for ever.

A ledger on one bookie:

    (unknown) → OPEN → FENCED        a fence never goes away while the ledger exists
    any       → TOMBSTONED           garbage collection found it deleted; never back: ids are never used twice

A state belongs to one ledger: `nonce` says which, in case two ledgers have the same id (`protocol.bookie_wire`).

A ledger whose record names this bookie no longer is *given up* (see `garbage_collection`): it stays known and fenced.

And the bookie as a whole: NORMAL ⇄ IN LIMBO (data was lost: see `bookie.py`). Fences and tombstones are records of
the journal first, and part of every checkpoint from then on, so that neither restart nor compaction forgets them.

Tombstones are not kept for ever. When there are more than `TOMBSTONE_RUNS_MAX` runs of them, the lower half is
forgotten, and the fence floor rises above them. An unknown ledger with an id below the floor takes no ordinary adds.
One that a recovery add or a fence makes known is fenced from the start. So a writer of a deleted ledger is refused as
before, and a copy of a ledger that lives is taken. Only two things change. A copy of a deleted ledger is taken, too,
and collected again. An old ledger that is still written cannot take this bookie as its spare. Its writer then continues
with the others and rolls over. A tombstone stays as long as any segment holds entries of its ledger, which a restart
would otherwise take for a ledger that lives.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from .segment import Segment
from .segment_index import Rows

TOMBSTONE_RUNS_MAX = 10_000


class HeldLedger:
    """One ledger on this bookie. `last_entry` and `lac` cover every add accepted, synced or not; −1 for none."""

    __slots__ = (
        "fence_durable",
        "fenced",
        "given_up",
        "lac",
        "last_entry",
        "ledger_id",
        "new_here",
        "nonce",
        "record_version",
        "rows",
        "rows_segment",
        "segments",
        "touched",
    )

    def __init__(self, ledger_id: int, nonce: int) -> None:
        self.ledger_id = ledger_id
        self.nonce = nonce
        self.fenced = False
        self.fence_durable = False
        self.last_entry = -1
        self.lac = -1
        self.segments: list[Segment] = []
        """Those that hold entries of it, oldest first."""
        self.rows: Rows | None = None
        """Its rows in the active segment `rows_segment`."""
        self.rows_segment: Segment | None = None
        self.touched = True
        """A recovery add, the first add, a fence or a question about what is held came since garbage collection last
        looked."""
        self.new_here = True
        """The same without the questions: garbage collection has to look, whatever it is told."""
        self.record_version = -1
        """Of its record in the metadata when that was found to be CLOSED and to name this bookie."""
        self.given_up = False
        """Its entries were dropped because its record no longer named this bookie. What is held was copied here since,
        or came back with a restart; what is absent may have been here.
        """

    def extend(self, segment: Segment, last_entry: int, lac: int) -> None:
        """A segment met at start or made by compaction holds entries of this ledger."""
        self.segments.append(segment)
        self.last_entry = max(self.last_entry, last_entry)
        self.lac = max(self.lac, lac)


class HeldLedgers(dict[int, HeldLedger]):
    """The ledgers of a bookie by id. `end` is the first id above all that were ever put in."""

    end = 0

    def __setitem__(self, ledger_id: int, state: HeldLedger) -> None:
        self.end = max(self.end, ledger_id + 1)
        super().__setitem__(ledger_id, state)


class IdRanges:
    """A set of ids, unsigned 64 bit, that come in long runs: deleted ledgers. Memory and disk: 16 bytes a run."""

    def __init__(self, ranges: "list[tuple[int, int]] | None" = None) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")
        for first, last in sorted(ranges or ()):
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def copy(self) -> "IdRanges":
        """Another set with the same ids."""
        made = IdRanges()
        made._firsts, made._lasts = self._firsts[:], self._lasts[:]
        return made

    @property
    def columns(self) -> "tuple[array[int], array[int]]":
        """First and last ids of the runs, ascending; not to be changed."""
        return self._firsts, self._lasts

    @property
    def runs(self) -> int:
        return len(self._firsts)

    def common(self, others: "Iterable[Iterable[int]]") -> set[int]:
        """The ids of other collections that are in this set."""
        return {item for other in others for item in other if item in self}

    def without_older_runs(self, kept: int, exceptions: "Iterable[int]") -> "tuple[IdRanges, int]":
        """The newest `kept` runs, and of what lies below them `exceptions` only; and the first id of those runs."""
        floor = self._firsts[-kept]
        newer = list(zip(self._firsts[-kept:], self._lasts[-kept:], strict=True))
        return IdRanges([*newer, *((one, one) for one in exceptions if one < floor and one in self)]), floor

    def __contains__(self, item: int) -> bool:
        at = bisect_right(self._firsts, item) - 1
        return at >= 0 and item <= self._lasts[at]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def count(self) -> int:
        """Number of ids. No `__len__`: `list` would reserve memory for as many runs."""
        return sum(last - first + 1 for first, last in self)

    @property
    def end(self) -> int:
        """The first id above all of them, 0 for none."""
        return self._lasts[-1] + 1 if self._lasts else 0

    def add(self, item: int) -> None:
        at = bisect_right(self._firsts, item)
        if at and item <= self._lasts[at - 1]:
            return
        joins_left = at > 0 and self._lasts[at - 1] == item - 1
        joins_right = at < len(self._firsts) and self._firsts[at] == item + 1
        if joins_left and joins_right:
            self._lasts[at - 1] = self._lasts[at]
            del self._firsts[at], self._lasts[at]
        elif joins_left:
            self._lasts[at - 1] = item
        elif joins_right:
            self._firsts[at] = item
        else:
            self._firsts.insert(at, item)
            self._lasts.insert(at, item)
