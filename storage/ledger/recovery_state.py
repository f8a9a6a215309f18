"""The decisions of ledger recovery: when a ledger is fenced well enough, where it ends, which entries are saved.

Pure, like the writer's state machine. `LedgerRecovery` drives the two machines here one after the other, then writes
the recovered entries back with a `LedgerWriterState` of its own.

FencingState: all bookies of the last fragment are asked to fence. `FENCING_TRANSITIONS` has its phases.

A reply is *known* when it is OK, NoSuchEntry or NoSuchLedger; not having replied, time-outs, limbo and errors are
unknown. With FENCED no set of Qa bookies is left that could acknowledge another entry of the old writer.

ReadingState: entries from `start` on are asked of their write set, with the fence flag, until one is decided to be
beyond the end. `READING_TRANSITIONS` has its phases. For each entry in order:

    one answer with a valid digest ────────────────────→ recoverable, go on with the next
    (Qw − Qa) + 1 answers NoSuchEntry / NoSuchLedger ──→ the ledger ends before it     (ENDED)
    all of the write set answered, neither holds ──────→ nothing can be said           (GIVEN_UP)

An acknowledged entry is on Qa bookies, so at most Qw − Qa can truthfully deny it. A bookie that hangs is not waited
for. Corruption is an error, never a denial.

**A ledger in doubt** (see `recovery`) is newer than its record may say: any bookies may have taken its last entries.
Then both machines get `everyone`, all N bookies that are registered, and judge these as one write set of N:

    fewer than Qa of N replies are unknown ────────────→ FENCED
    one answer with a valid digest ────────────────────→ recoverable, from any bookie
    N − Qa + 1 denials, behind the highest LAC known ──→ the ledger ends before it     (ENDED)
    N − Qa + 1 denials, at or before that LAC ─────────→ passed over: it was acknowledged, and its copies are lost
    all N answered, none of these holds ───────────────→ nothing can be said           (GIVEN_UP)

An acknowledged entry is on Qa of the N. So fewer than Qa bookies that do not deny it could hold it unseen only if it
was never acknowledged, or was deleted since. Reading begins where the recorded last fragment begins, because entries up
to the LAC may lie elsewhere than the record says, too.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...protocol.bookie_wire import LedgerEntry
from ...runtime.transitions import check_transition
from ..metadata.ledger_metadata import LedgerMetadata, write_slots


class FencingPhase(enum.Enum):
    """See `FENCING_TRANSITIONS`."""

    WAITING = enum.auto()
    FENCED = enum.auto()
    GIVEN_UP = enum.auto()


FENCING_TRANSITIONS: Mapping[FencingPhase, Collection[FencingPhase]] = {
    FencingPhase.WAITING: (
        FencingPhase.FENCED,  # in every write set, fewer than Qa replies are unknown
        FencingPhase.GIVEN_UP,  # all replied or failed, and that does not hold
    ),
    FencingPhase.FENCED: (),
    FencingPhase.GIVEN_UP: (),
}


class FencingState:
    """Which bookies of the last fragment are known to be fenced, and the highest LAC among them."""

    def __init__(self, metadata: LedgerMetadata, everyone: Sequence[str] = ()) -> None:
        self.bookies = tuple(everyone) or metadata.last_fragment.bookies
        self.phase = FencingPhase.WAITING
        self.lac = -1
        self._floor = metadata.last_fragment.first_entry - 1
        self._ack_quorum = metadata.ack_quorum
        self._in_doubt = bool(everyone)
        self._windows = [
            write_slots(first, metadata.ensemble_size, metadata.write_quorum) for first in range(metadata.ensemble_size)
        ]
        if everyone:
            self._windows = [tuple(range(len(everyone)))]
        self._replies: dict[str, bool] = {}

    @property
    def start(self) -> int:
        """The first entry to recover. Entries before the last fragment are acknowledged, whatever LAC is known."""
        return (self._floor if self._in_doubt else max(self.lac, self._floor)) + 1

    @property
    def silent(self) -> list[str]:
        """The bookies that could not say."""
        return [bookie for bookie in self.bookies if not self._replies.get(bookie, False)]

    def known(self, bookie: str, lac: int = -1) -> FencingPhase:
        """A bookie is fenced and told its LAC (−1 when it has nothing of the ledger)."""
        self._replies[bookie] = True
        self.lac = max(self.lac, lac)
        return self._judge()

    def unknown(self, bookie: str) -> FencingPhase:
        """A bookie failed, timed out, or is in limbo."""
        self._replies.setdefault(bookie, False)
        return self._judge()

    def _judge(self) -> FencingPhase:
        if self.phase is FencingPhase.WAITING:
            if all(
                sum(not self._replies.get(self.bookies[slot], False) for slot in window) < self._ack_quorum
                for window in self._windows
            ):
                self._become(FencingPhase.FENCED)
            elif len(self._replies) == len(self.bookies):
                self._become(FencingPhase.GIVEN_UP)
        return self.phase

    def _become(self, phase: FencingPhase) -> None:
        check_transition(FENCING_TRANSITIONS, "the fencing of a ledger", self.phase, phase)
        self.phase = phase


class ReadingPhase(enum.Enum):
    """See `READING_TRANSITIONS`."""

    READING = enum.auto()
    ENDED = enum.auto()
    GIVEN_UP = enum.auto()


READING_TRANSITIONS: Mapping[ReadingPhase, Collection[ReadingPhase]] = {
    ReadingPhase.READING: (
        ReadingPhase.ENDED,  # the next entry was denied often enough
        ReadingPhase.GIVEN_UP,  # all of its write set answered, and nothing can be said about it
    ),
    ReadingPhase.ENDED: (),
    ReadingPhase.GIVEN_UP: (),
}


class _EntryVerdicts(NamedTuple):
    """What the write set said about one entry."""

    denied: dict[str, None]
    failed: dict[str, None]


class ReadingState:
    """Where a fenced ledger ends. `take` hands out recoverable entries in order, each once.

    `everyone` for a ledger in doubt, with the highest LAC that a bookie told.
    """

    def __init__(self, metadata: LedgerMetadata, start: int, everyone: Sequence[str] = (), lac: int = -1) -> None:
        self.phase = ReadingPhase.READING
        self.next_entry = start
        """The first entry not decided; the end of the ledger is just before it once ENDED."""
        self._metadata = metadata
        self._everyone = tuple(everyone)
        self._lac = lac if everyone else -1
        self._asked = len(everyone) or metadata.write_quorum
        self._denials_needed = self._asked - metadata.ack_quorum + 1
        self._found: dict[int, LedgerEntry] = {}
        self._verdicts: dict[int, _EntryVerdicts] = {}
        self._recoverable: list[LedgerEntry] = []

    def write_set(self, entry_id: int) -> tuple[str, ...]:
        """The bookies to ask for an entry, in the metadata that recovery began with."""
        return self._everyone or self._metadata.write_set(entry_id)

    @property
    def silent(self) -> list[str]:
        """The bookies that could not say whether they have the next entry."""
        verdicts = self._of(self.next_entry)
        return [bookie for bookie in self.write_set(self.next_entry) if bookie not in verdicts.denied]

    def found(self, entry: LedgerEntry) -> None:
        """A bookie gave an entry whose digest is valid."""
        if entry.entry_id >= self.next_entry:
            self._found.setdefault(entry.entry_id, entry)

    def denied(self, entry_id: int, bookie: str) -> None:
        """A bookie that is fenced by this very read says that it has no such entry (or ledger)."""
        if bookie in self.write_set(entry_id):
            self._of(entry_id).denied[bookie] = None

    def failed(self, entry_id: int, bookie: str) -> None:
        """A bookie could not say: time-out, limbo, corruption, lost connection."""
        if bookie in self.write_set(entry_id):
            self._of(entry_id).failed[bookie] = None

    def judge(self) -> ReadingPhase:
        """Decide as many entries as can be decided, in order. An entry that was found outweighs denials."""
        while self.phase is ReadingPhase.READING:
            entry = self._found.pop(self.next_entry, None)
            if entry is not None:
                self._recoverable.append(entry)
                self._verdicts.pop(self.next_entry, None)
                self.next_entry += 1
                continue
            verdicts = self._verdicts.get(self.next_entry)
            if verdicts is None:
                break
            if len(verdicts.denied) >= self._denials_needed and self.next_entry <= self._lac:
                self._verdicts.pop(self.next_entry)
                self.next_entry += 1
            elif len(verdicts.denied) >= self._denials_needed:
                self._become(ReadingPhase.ENDED)
            elif len({**verdicts.denied, **verdicts.failed}) == self._asked:  # no bookie is left to ask
                self._become(ReadingPhase.GIVEN_UP)
            else:
                break
        return self.phase

    def take(self) -> list[LedgerEntry]:
        """The entries that became recoverable since the last call; those passed over are missing among them."""
        recoverable, self._recoverable = self._recoverable, []
        return recoverable

    def _become(self, phase: ReadingPhase) -> None:
        check_transition(READING_TRANSITIONS, f"the reading at entry {self.next_entry}", self.phase, phase)
        self.phase = phase

    def _of(self, entry_id: int) -> _EntryVerdicts:
        verdicts = self._verdicts.get(entry_id)
        if verdicts is None:
            verdicts = self._verdicts[entry_id] = _EntryVerdicts({}, {})
        return verdicts
