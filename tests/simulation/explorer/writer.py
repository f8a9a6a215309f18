"""The explorer's writer: `LedgerWriter` with its waiting taken out. See `nodes`."""

from collections.abc import Sequence
from typing import Any

from magnetar.protocol.bookie_wire import BookieStatus
from magnetar.protocol.errors import LedgerFenced
from magnetar.storage.ledger import writer as ledger_writer
from magnetar.storage.ledger.writer_state import LedgerWriterState, WriterPhase
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata, LedgerState

from .nodes import (
    NAMES,
    SLOT_ORDERS,
    FirstChance,
    Frozen,
    Outcome,
    Violation,
    first_record,
    freeze_metadata,
    freeze_writer_state,
    lost_interest,
    thaw_metadata,
    thaw_writer_state,
)
from .report import Options


class Writer:
    """`LedgerWriter` with its waiting taken out. `cas`: (kind, status); status is sent, ok or bad."""

    def __init__(self, frozen: Frozen, bookies: int, order: Sequence[int] = SLOT_ORDERS[0]) -> None:
        core, infos = frozen
        state, self.known_core, self.fresh, self.lac_of_1, self.cas, target, late = core
        self.bookies = bookies
        self.known_bits = [info[2] for info in infos]
        record = self.known_core, self.known_bits
        self.state = thaw_writer_state((state, tuple(info[0] for info in infos)), thaw_metadata(record), order)
        self.changing = [i for i, info in enumerate(infos) if info[1] & 1]
        self.leaves = [i for i, info in enumerate(infos) if info[1] & 2]
        self.joins = [i for i, info in enumerate(infos) if info[1] & 4]
        self.target: Frozen = target, tuple(info[3] for info in infos)
        self.late: Frozen = late, tuple(info[4] if late is not None else 0 for info in infos)
        """A compare-and-set that the writer no longer waits for, while it can still land."""
        self.before = list(self.state.ensemble), list(self.state.tenures)
        self.sends: list[tuple[int, tuple[Any, ...]]] = []

    @staticmethod
    def initial(bookies: int) -> Frozen:
        record = freeze_metadata(first_record(), bookies)
        state = freeze_writer_state(LedgerWriterState(first_record()), bookies)
        core = (state[0], record[0], True, -1, None, None, None)
        return core, tuple((state[1][i], 0, record[1][i], 0, 0) for i in range(bookies))

    def freeze(self) -> Outcome:
        state = freeze_writer_state(self.state, self.bookies)
        if self.state.phase is WriterPhase.ENDED and self.cas is None and self.late[0] is None:
            self.known_core, self.known_bits, self.fresh, self.lac_of_1 = None, [0] * self.bookies, False, -1
        if self.cas is None:
            self.target = None, (0,) * self.bookies
            self.changing = self.leaves = self.joins = []
        core = state[0], self.known_core, self.fresh, self.lac_of_1, self.cas, self.target[0], self.late[0]
        infos = tuple(
            (
                state[1][i],
                (i in self.changing) | (i in self.leaves) << 1 | (i in self.joins) << 2,
                self.known_bits[i],
                self.target[1][i],
                self.late[1][i],
            )
            for i in range(self.bookies)
        )
        over = self.state.phase is WriterPhase.ENDED
        return Outcome((core, infos), self.sends, lost_interest(self.before, self.state), over)

    # -- what may happen on its own

    @staticmethod
    def choices(core: Any, options: Options) -> list[str]:
        (phase, _, last_added), _, _, _, cas, _, late = core
        choices: list[str] = []
        if phase != WriterPhase.ENDED.value:
            if last_added + 1 < options.entries:
                choices.append("add")
            if phase == WriterPhase.NEEDS_CHANGE.value and not cas:
                choices.append("begin change")
            if options.writer_closes and not (cas and late):
                choices.append("close")
        if cas:
            if cas[1] == "sent":
                choices.append("cas arrives")
            else:
                choices.append("cas answered")
            if cas[0] == "change" and options.store_timeouts and late is None:
                choices.append("cas times out")
        if late is not None:
            choices.append("late cas arrives")
        return choices

    def happen(self, choice: str, store: Frozen) -> Outcome:
        """One of `choices`. `store` is the ledger's record as it is now."""
        state, stored = self.state, None
        if choice == "add":
            entry = state.add(b"x").entry_id
            if entry == 1:
                self.lac_of_1 = state.lac
            for slot in state.targets(entry):
                self.send(slot, entry)
        elif choice == "begin change":
            slots = state.begin_change()
            self.changing = [NAMES.index(state.ensemble[slot]) for slot in slots]
            self.plan()
        elif choice == "close":
            if self.cas is not None:  # the change's task is cancelled, what it sent is not
                self.let_go()
            state.end()
            self.propose_closing()
        elif choice == "cas arrives":
            stored = self.cas_arrives(store)
        elif choice == "cas answered":
            self.cas_answered(store)
        elif choice == "cas times out":
            slots = self.slots_of(self.changing)
            self.let_go()
            if state.end_error is None:
                state.abandon_change(slots)
        else:
            stored, self.fresh = self.late, False
            self.late = None, (0,) * self.bookies
        outcome = self.freeze()
        outcome.store = stored
        return outcome

    def slots_of(self, bookies: list[int]) -> list[int]:
        return [slot for slot, name in enumerate(self.state.ensemble) if NAMES.index(name) in bookies]

    def send(self, slot: int, entry: int) -> None:
        lac = self.lac_of_1 if entry else -1
        self.sends.append((NAMES.index(self.state.ensemble[slot]), ("add", entry, lac, 0)))

    def plan(self) -> None:
        """`_store_change` up to the compare-and-set."""
        state = self.state
        slots = self.slots_of(self.changing)
        record = thaw_metadata((self.known_core, self.known_bits), state.ensemble)
        try:
            change = ledger_writer.plan_change(
                state,
                record,
                slots,
                FirstChance(),  # type: ignore[arg-type]
                NAMES[: self.bookies],
            )
        except LedgerFenced as error:
            state.end(error)
            self.cas = None
            return
        if change is None:
            self.cas = None
            state.abandon_change(slots)
            return
        target, replaced = change
        self.target = freeze_metadata(target, self.bookies)
        self.leaves = [NAMES.index(state.ensemble[slot]) for slot in replaced]
        self.joins = [NAMES.index(name) for name in replaced.values()]
        self.cas = ("change", "sent")
        self.proposed(target, replaced)

    def proposed(self, target: LedgerMetadata, replaced: dict[int, str]) -> None:
        """The compare-and-set is on its way; nothing is done before it lands. (Mutant #1591 does.)"""

    def commit(self, target: LedgerMetadata, replaced: dict[int, str]) -> None:
        slots = self.slots_of(self.changing)
        resend, _ = self.state.commit_change(target, replaced, [slot for slot in slots if slot not in replaced])
        for entry, slot in resend:
            self.send(slot, entry.entry_id)

    def propose_closing(self) -> None:
        record = thaw_metadata((self.known_core, self.known_bits))
        if record.state is LedgerState.OPEN:
            self.target = freeze_metadata(record.close(self.state.lac, self.state.lac + 1), self.bookies)
            self.cas = ("close", "sent")
        else:
            self.cas = None

    def let_go(self) -> None:
        """Wait no longer for the compare-and-set."""
        assert self.cas is not None
        if self.cas[1] == "sent":
            if self.fresh:
                self.late = self.target
        elif self.cas[1] == "ok":
            self.fresh = False  # it holds the record from before
        self.cas = None

    def cas_arrives(self, store: Frozen) -> Frozen | None:
        assert self.cas is not None
        landed = self.fresh
        stored = self.target if landed else None
        if landed:
            self.late = None, (0,) * self.bookies  # names a version that is gone
        if self.cas[0] == "close":
            if landed:
                self.cas = None
            else:
                self.known_core, self.known_bits = store[0], list(store[1])
                self.fresh = True
                self.propose_closing()
        else:
            self.cas = (self.cas[0], "ok" if landed else "bad")
        return stored

    def cas_answered(self, store: Frozen) -> None:
        assert self.cas is not None
        kind, status = self.cas
        if status == "ok":
            self.cas = None
            self.known_core, self.known_bits = self.target[0], list(self.target[1])
            if kind == "change" and self.state.end_error is None:
                (slot,), (joins,) = self.slots_of(self.leaves), self.joins
                self.commit(thaw_metadata(self.target, []), {slot: NAMES[joins]})
            return
        self.known_core, self.known_bits = store[0], list(store[1])
        self.fresh = True
        if self.state.end_error is not None:
            self.cas = None
        elif kind == "change":
            self.plan()
        else:  # only a mutant comes here: it has committed already
            self.cas = None
            self.state.end(LedgerFenced("taken over"))

    # -- answers

    def hear(self, bookie: int, reply: tuple[Any, ...]) -> Outcome:
        """`LedgerWriter._answered`; a reply ("lost",) or ("late",) means that no answer came."""
        state = self.state
        slot = state.ensemble.index(NAMES[bookie])
        if reply[0] != "add":
            state.slot_failed(slot, state.tenures[slot])
        elif reply[2] == BookieStatus.OK:
            state.added(reply[1], slot, state.tenures[slot])
        elif reply[2] == BookieStatus.FENCED:
            state.end(LedgerFenced("fenced"))
            if self.cas is not None and self.cas[0] == "change" and self.cas[1] != "sent":
                self.let_go()
        else:
            raise Violation(f"bookie {NAMES[bookie]} answered {reply[2]!r} to the writer")
        return self.freeze()
