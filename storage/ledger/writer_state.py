"""The decisions of a ledger's writer: which copies count, when an entry is acknowledged, what a failed bookie changes.

Pure: no sockets, no clock, no metadata store. `LedgerWriter` (live writing) and `LedgerRecovery` (writing back what was
recovered) drive it and carry out what it says.

`TRANSITIONS` has the phases, with what leads from one to the other, and `SLOT_TRANSITIONS` the states of a slot. A slot
that fails while a change is under way joins the next change. Each time a slot changes hands its *tenure* rises, and an
answer names the tenure it was asked under.

Invariants:
- An entry is acknowledged only when `ack_quorum` live slots of its write set hold it and all entries below it are
  acknowledged. No change may be needed or in progress.
- An answer counts only while its bookie still holds the slot, live, without interruption. Failing or emptying a slot
  drops its acknowledgements of entries that are not yet acknowledged.
- `lac` never falls and never passes an entry that is not acknowledged; entries end in order, each exactly once.
- After `end` nothing is ever acknowledged.
"""

import enum
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

from ...protocol.errors import LedgerClosed, MagnetarError, NotEnoughBookies
from ...runtime.transitions import check_transition
from ..metadata.ledger_metadata import LedgerMetadata, write_slots


class WriterPhase(enum.Enum):
    """See `TRANSITIONS`."""

    WRITING = enum.auto()
    NEEDS_CHANGE = enum.auto()
    CHANGING = enum.auto()
    ENDED = enum.auto()


TRANSITIONS: Mapping[WriterPhase, Collection[WriterPhase]] = {
    WriterPhase.WRITING: (
        WriterPhase.NEEDS_CHANGE,  # `slot_failed`: acknowledgements stop
        WriterPhase.ENDED,  # `end`: fenced, failed or closed
    ),
    WriterPhase.NEEDS_CHANGE: (
        WriterPhase.CHANGING,  # `begin_change`: the compare-and-set is under way
        WriterPhase.ENDED,  # `end`
    ),
    WriterPhase.CHANGING: (
        WriterPhase.WRITING,  # `commit_change`, `abandon_change`
        WriterPhase.NEEDS_CHANGE,  # the same, and another slot failed meanwhile
        WriterPhase.ENDED,  # `end`, or `abandon_change` with too few bookies left
    ),
    WriterPhase.ENDED: (),
}


class SlotState(enum.Enum):
    """What an ensemble slot can do. See `SLOT_TRANSITIONS`."""

    LIVE = enum.auto()
    FAILED = enum.auto()
    EMPTY = enum.auto()


SLOT_TRANSITIONS: Mapping[SlotState, Collection[SlotState]] = {
    SlotState.LIVE: (
        SlotState.FAILED,  # `slot_failed`: it waits for a change
    ),
    SlotState.FAILED: (
        SlotState.LIVE,  # `commit_change`, and a spare took its place
        SlotState.EMPTY,  # `commit_change` or `abandon_change` without a spare for it
    ),
    SlotState.EMPTY: (  # nothing is sent to it
        SlotState.LIVE,  # `commit_change` of a later change, which found a spare for it
    ),
}


class PendingEntry:
    """An entry that is not yet acknowledged. `parts` is the ADD request; `context` is the shell's own."""

    __slots__ = ("acks", "body", "context", "entry_id", "parts")

    def __init__(self, entry_id: int, body: bytes, context: Any) -> None:
        self.entry_id = entry_id
        self.body = body
        self.context = context
        self.parts: tuple[bytes, ...] = ()
        self.acks = 0
        """Bit per slot that answered OK and still counts."""


class LedgerWriterState:
    """See the module. `first_entry` is the next entry's id, `length` the bytes of bodies before it."""

    def __init__(self, metadata: LedgerMetadata, first_entry: int = 0, length: int = 0) -> None:
        self.metadata = metadata
        self.phase = WriterPhase.WRITING
        self.lac = first_entry - 1
        self.last_added = first_entry - 1
        self.length = length
        """Bytes of all bodies added; of those acknowledged: `length_confirmed`."""
        self.length_confirmed = length
        self.end_error: MagnetarError | None = None
        self.ensemble: list[str] = list(metadata.last_fragment.bookies)
        self.tenures: list[int] = [0] * metadata.ensemble_size
        self.slots: list[SlotState] = [SlotState.LIVE] * metadata.ensemble_size
        self.pending: dict[int, PendingEntry] = {}
        self._lacking = False
        """Whether acknowledged entries lack copies although no slot is empty: a bookie that owed some failed, or a slot
        was empty. It stays, because nobody gives an open ledger what it lacks."""
        self._emptied: dict[int, int] = {}
        """Empty slot → the LAC when it became empty."""
        self._ack_quorum = metadata.ack_quorum
        self._ensemble_size = metadata.ensemble_size
        self._write_sets = _write_sets(metadata.ensemble_size, metadata.write_quorum)
        self._live_write_sets = self._write_sets
        self.degraded = False
        """Whether entries have, or get, fewer copies than the write quorum."""

    # -- adding ------------------------------------------------------------------------------------------------

    def add(self, body: bytes, context: Any = None) -> PendingEntry:
        """Take the next entry. The shell then sets `parts` and sends it to `targets`. Raises what ended the writer."""
        if self.end_error is not None:
            raise self.end_error.with_traceback(None)  # raised again and again: its traceback must not grow
        entry_id = self.last_added + 1
        self.last_added = entry_id
        self.length += len(body)
        entry = PendingEntry(entry_id, body, context)
        self.pending[entry_id] = entry
        return entry

    def targets(self, entry_id: int) -> tuple[int, ...]:
        """The live slots of an entry's write set."""
        return self._live_write_sets[entry_id % self._ensemble_size]

    def added(self, entry_id: int, slot: int, tenure: int) -> list[PendingEntry] | None:
        """A bookie stored an entry. Returns the entries that this acknowledges, in order, or None."""
        if self.tenures[slot] != tenure:
            return None
        entry = self.pending.get(entry_id)
        if entry is None:
            return None
        entry.acks |= 1 << slot
        if entry_id != self.lac + 1 or entry.acks.bit_count() < self._ack_quorum:
            return None
        return self._acknowledge()

    def rest(self) -> None:
        """Nothing is under way: give the room back that pending entries once needed."""
        if not self.pending:
            self.pending = {}

    # -- failing and replacing slots -----------------------------------------------------------------------------

    def slot_failed(self, slot: int, tenure: int, unanswered: int = 0) -> bool:
        """A bookie failed as holder of a slot. True when it still held it; then a change is needed.

        `unanswered` adds were sent to it in this tenure. Those of entries that are not acknowledged yet go to its
        successor. The others never get their copy, because the new fragment starts behind them.
        """
        if self.tenures[slot] != tenure or self.phase is WriterPhase.ENDED:
            return False
        if unanswered:
            self._lacking |= unanswered > self._awaited(slot)
        self._take_away(slot, SlotState.FAILED)
        if self.phase is WriterPhase.WRITING:
            self._become(WriterPhase.NEEDS_CHANGE)
        return True

    def begin_change(self) -> tuple[int, ...]:
        """Start an ensemble change for all slots that failed so far, and return them.

        The new fragment starts at `change_start`, which stays where it is until the change ends.
        """
        if self.phase is not WriterPhase.NEEDS_CHANGE:
            raise ValueError(f"an ensemble change may not start in {self.phase}")
        self._become(WriterPhase.CHANGING)
        return tuple(slot for slot, state in enumerate(self.slots) if state is SlotState.FAILED)

    @property
    def change_start(self) -> int:
        """The first entry of a fragment that a change makes now: LAC + 1."""
        return self.lac + 1

    def commit_change(
        self, metadata: LedgerMetadata, replaced: dict[int, str], unreplaced: Iterable[int] = ()
    ) -> tuple[list[tuple[PendingEntry, int]], list[PendingEntry]]:
        """The compare-and-set landed: `replaced` slots have new bookies, `unreplaced` ones found no spare.

        Returns (entry, slot) pairs to send, and the entries that are acknowledged now.
        """
        self._expect_change()
        self.metadata = metadata
        for slot, bookie in replaced.items():
            self.ensemble[slot] = bookie
            self._lacking |= self.lac > self._emptied.pop(slot, self.lac)
            self._slot_becomes(slot, SlotState.LIVE)
        for slot in unreplaced:
            self._take_away(slot, SlotState.EMPTY)
        self._slots_changed()
        resend = [
            (entry, slot)
            for entry in self.pending.values()
            for slot in self._write_sets[entry.entry_id % self._ensemble_size]
            if slot in replaced
        ]
        return resend, self._after_change()

    def abandon_change(self, slots: Iterable[int]) -> list[PendingEntry]:
        """No spare, or no metadata store: the slots stay empty and the metadata as it is.

        Returns the entries that are acknowledged now by the slots that remain. Ends the writer with NotEnoughBookies
        (see `end_error`) when some write set has fewer than `ack_quorum` live slots.
        """
        self._expect_change()
        for slot in slots:
            self._take_away(slot, SlotState.EMPTY)
        return self._after_change()

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self, error: MagnetarError | None = None) -> list[PendingEntry]:
        """Stop finally: fenced, failed, or closed (None). Returns what was pending, whose outcome is unknown."""
        if self.phase is not WriterPhase.ENDED:
            self._become(WriterPhase.ENDED)
            self.end_error = error or LedgerClosed(f"ledger {self.metadata.ledger_id} is closed")
        return self.take_pending()

    def take_pending(self) -> list[PendingEntry]:
        """What is pending, once: for the shell to fail after the end."""
        pending, self.pending = list(self.pending.values()), {}
        return pending

    # -- inside ------------------------------------------------------------------------------------------------------

    def _become(self, phase: WriterPhase) -> None:
        check_transition(TRANSITIONS, f"the writer of ledger {self.metadata.ledger_id}", self.phase, phase)
        self.phase = phase

    def _slot_becomes(self, slot: int, state: SlotState) -> None:
        what = f"slot {slot} of ledger {self.metadata.ledger_id}"
        check_transition(SLOT_TRANSITIONS, what, self.slots[slot], state)
        self.slots[slot] = state

    def _acknowledge(self) -> list[PendingEntry] | None:
        """Take from the front all entries with enough acknowledgements, unless something holds them back."""
        if self.phase is not WriterPhase.WRITING:
            return None
        done: list[PendingEntry] = []
        pending = self.pending
        ack_quorum = self._ack_quorum
        entry_id = self.lac + 1
        while (entry := pending.get(entry_id)) is not None and entry.acks.bit_count() >= ack_quorum:
            del pending[entry_id]
            self.length_confirmed += len(entry.body)
            done.append(entry)
            entry_id += 1
        self.lac = entry_id - 1
        return done

    def _take_away(self, slot: int, state: SlotState) -> None:
        """The slot's holder does not count from now on, whatever it said."""
        self._slot_becomes(slot, state)
        if state is SlotState.EMPTY:
            self._emptied[slot] = self.lac
        self.tenures[slot] += 1
        keep = ~(1 << slot)
        for entry in self.pending.values():
            entry.acks &= keep
        self._slots_changed()

    def _awaited(self, slot: int) -> int:
        """How many entries that are not acknowledged wait for an answer of a slot."""
        return sum(
            not entry.acks & 1 << slot and slot in self._write_sets[entry.entry_id % self._ensemble_size]
            for entry in self.pending.values()
        )

    def _slots_changed(self) -> None:
        self._live_write_sets = tuple(
            tuple(slot for slot in write_set if self.slots[slot] is SlotState.LIVE) for write_set in self._write_sets
        )
        self.degraded = self._lacking or SlotState.EMPTY in self.slots

    def _expect_change(self) -> None:
        if self.phase is not WriterPhase.CHANGING:
            raise ValueError(f"no ensemble change is in progress in {self.phase}")

    def _after_change(self) -> list[PendingEntry]:
        fewest = min(
            sum(self.slots[slot] is not SlotState.EMPTY for slot in write_set) for write_set in self._write_sets
        )
        if fewest < self._ack_quorum:
            self._become(WriterPhase.ENDED)
            self.end_error = NotEnoughBookies(
                f"ledger {self.metadata.ledger_id} has {fewest} usable bookies left for an ack quorum of "
                f"{self._ack_quorum}",
                ledger_id=self.metadata.ledger_id,
            )
            return []
        if SlotState.FAILED in self.slots:
            self._become(WriterPhase.NEEDS_CHANGE)
            return []
        self._become(WriterPhase.WRITING)
        return self._acknowledge() or []


@lru_cache(maxsize=64)
def _write_sets(ensemble_size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """The slots of each entry's write set, by its id modulo the ensemble's size. Writers share them."""
    return tuple(write_slots(entry_id, ensemble_size, write_quorum) for entry_id in range(ensemble_size))
