"""The explorer's recoverer: `LedgerRecovery` with its waiting taken out. See `nodes`."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from magnetar.protocol.bookie_wire import BookieStatus, LedgerEntry
from magnetar.storage.ledger import bookie_client
from magnetar.storage.ledger import recovery as ledger_recovery
from magnetar.storage.ledger.bookie_directory import BookieDirectory
from magnetar.storage.ledger.recovery_state import FencingPhase, FencingState, ReadingPhase, ReadingState
from magnetar.storage.ledger.writer_state import PendingEntry, WriterPhase
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata, LedgerState

from .nodes import (
    LEDGER,
    NAMES,
    READ_WINDOW,
    SLOT_ORDERS,
    FirstChance,
    Frozen,
    Outcome,
    Violation,
    freeze_metadata,
    freeze_writer_state,
    lost_interest,
    same_members,
    thaw_metadata,
    thaw_writer_state,
)

IDLE, CLAIMING, FENCING, READING, WRITING, CLOSING, DONE, FAILED = (
    "idle", "claiming", "fencing", "reading", "writing", "closing", "done", "failed",
)  # fmt: skip


class _Client:
    """The bookies as `WriteBack` sees them: keeps what it sends."""

    def __init__(self, bookies: int) -> None:
        self.names = NAMES[:bookies]
        self.directory = BookieDirectory()  # nothing is known of their machines
        self.sent: list[tuple[int, int]] = []

    def usable(self) -> Sequence[str]:
        return self.names

    def report_slow(self, bookie: str) -> None:
        """Nobody listens."""

    def add(self, bookie: str, parts: Any, callback: Callable[[int, bytes], None]) -> None:
        self.sent.append((NAMES.index(bookie), parts[0]))


class Recoverer:
    """`LedgerRecovery` with its waiting taken out. Core: (phase, fresh, base record, own record, own state,
    lac of entry 1); info: (base bits, own bits, what is kept about the bookie)."""

    def __init__(self, frozen: Frozen, bookies: int) -> None:
        core, infos = frozen
        self.phase, self.fresh, base, own, kept, self.lac_of_1 = core
        self.kept: Any = kept
        self.bookies = bookies
        self.base: Frozen = base, tuple(info[0] for info in infos)
        self.own: Frozen = own, tuple(info[1] for info in infos)
        self.notes: list[Any] = [info[2] for info in infos]
        self.sends: list[tuple[int, tuple[Any, ...]]] = []
        self.forget: set[int] = set()
        self.stored: Frozen | None = None

    @staticmethod
    def initial(bookies: int) -> Frozen:
        return (IDLE, False, None, None, None, -1), ((0, 0, None),) * bookies

    @staticmethod
    def retired(bookies: int) -> Frozen:
        """One that does nothing any longer."""
        return (FAILED, False, None, None, None, -1), ((0, 0, None),) * bookies

    def freeze(self) -> Outcome:
        if self.phase in (DONE, FAILED, CLAIMING):
            self.own, self.notes = (None, (0,) * self.bookies), [None] * self.bookies
        if self.phase in (DONE, FAILED):
            self.base, self.fresh, self.lac_of_1 = self.own, False, -1
        elif self.phase == CLOSING:
            self.notes, self.lac_of_1 = [None] * self.bookies, -1
        core = (self.phase, self.fresh, self.base[0], self.own[0], self.kept, self.lac_of_1)
        infos = tuple(zip(self.base[1], self.own[1], self.notes, strict=True))
        return Outcome((core, infos), self.sends, self.forget, store=self.stored)

    @staticmethod
    def choices(core: Any) -> list[str]:
        if core[0] == IDLE:
            return ["reads the record"]
        if core[0] in (CLAIMING, CLOSING):
            return ["cas arrives"]
        if core[0] == WRITING and core[4][0][0] == WriterPhase.NEEDS_CHANGE.value:
            return ["replaces a bookie"]
        return []

    def happen(self, choice: str, store: Frozen, order: Sequence[int] = SLOT_ORDERS[0]) -> Outcome:
        if choice == "reads the record":
            self.meet(store)
        elif choice == "replaces a bookie":
            back, client = self.thaw_write_back(order)
            before = list(back._state.ensemble), list(back._state.tenures)
            back._change_ensemble()
            self.forget = lost_interest(before, back._state)
            self.keep_write_back(back, client)
        elif self.phase == CLAIMING:
            if self.fresh:
                self.stored = freeze_metadata(thaw_metadata(self.base).in_recovery(), self.bookies)
                self.meet(self.stored)
            else:
                self.meet(store)
        elif self.fresh:
            self.stored = self.own
            self.finish(self.own[0][1])
        else:
            self.close_again(store)
        return self.freeze()

    def meet(self, record: Frozen) -> None:
        """`run`, with a record just read."""
        self.base, self.fresh = record, True
        metadata = thaw_metadata(record)
        if metadata.closed:
            self.finish(metadata.last_entry)
        elif metadata.state is LedgerState.OPEN:
            self.phase = CLAIMING
        else:
            self.phase, self.kept = FENCING, -1
            self.notes = [None] * self.bookies
            for name in FencingState(metadata).bookies:
                self.sends.append((NAMES.index(name), ("fence",)))

    def finish(self, last_entry: int) -> None:
        self.phase, self.kept = DONE, last_entry
        self.forget = set(range(self.bookies))

    def fail(self) -> None:
        self.phase, self.kept = FAILED, None
        self.forget = set(range(self.bookies))

    def close_again(self, store: Frozen) -> None:
        record, base = thaw_metadata(store), thaw_metadata(self.base)
        if record.closed:
            self.finish(record.last_entry)
        elif not same_members(record, base):
            self.meet(store)
        else:
            self.own = freeze_metadata(ledger_recovery._on_top_of(record, thaw_metadata(self.own)), self.bookies)
            self.fresh = True

    # -- answers

    def hear(self, bookie: int, reply: tuple[Any, ...]) -> Outcome:
        """An answer, or ("lost",) or ("late",) when none came."""
        if reply[0] == "late" and self.phase != WRITING:
            self.forget.add(bookie)
        if self.phase == FENCING:
            self.hear_fence(bookie, reply)
        elif self.phase == READING:
            self.hear_read(bookie, reply)
        elif self.phase == WRITING:
            self.hear_add(bookie, reply)
        return self.freeze()

    def hear_fence(self, bookie: int, reply: tuple[Any, ...]) -> None:
        metadata = thaw_metadata(self.base)
        fencing = FencingState(metadata)
        fencing.lac = self.kept
        fencing._replies = {NAMES[i]: note for i, note in enumerate(self.notes) if note is not None}
        if reply[0] == "fence":
            fencing.known(NAMES[bookie], reply[1])
        else:
            fencing.unknown(NAMES[bookie])
        self.notes[bookie], self.kept = fencing._replies[NAMES[bookie]], fencing.lac
        if fencing.phase is FencingPhase.GIVEN_UP:
            self.fail()
        elif fencing.phase is FencingPhase.FENCED:
            self.forget = set(range(self.bookies))
            start = fencing.start
            self.phase, self.kept = READING, (start, start)
            self.notes = [None] * self.bookies
            payload = bookie_client.encode_read(LEDGER, 0, start, start + READ_WINDOW - 1, 1 << 20, True)
            for name in metadata.last_fragment.bookies:
                self.sends.append((NAMES.index(name), ("read", payload)))

    def hear_read(self, bookie: int, reply: tuple[Any, ...]) -> None:
        metadata = thaw_metadata(self.base)
        start, next_entry = self.kept
        reading = ReadingState(metadata, start)
        reading.next_entry = next_entry
        window = range(start, start + READ_WINDOW)
        self.notes[bookie] = reply[1] if reply[0] == "read" else "unknown"
        if reply[0] == "read" and 1 in reply[1]:
            self.lac_of_1 = reply[2]
        for i, note in enumerate(self.notes):
            for entry in window if note is not None else ():
                if entry < next_entry:
                    continue
                if note == "unknown":
                    reading.failed(entry, NAMES[i])
                elif note is not None and entry in note:
                    reading.found(LedgerEntry(LEDGER, 0, entry, -1, entry + 1, b"x"))
                else:
                    reading.denied(entry, NAMES[i])
        reading.judge()
        self.kept = start, reading.next_entry
        if reading.phase is not ReadingPhase.READING:
            self.forget = set(range(self.bookies))
            self.write_back(metadata, start, reading.next_entry, reading.phase is ReadingPhase.GIVEN_UP)

    # -- writing back

    def write_back(self, metadata: LedgerMetadata, start: int, end: int, given_up: bool) -> None:
        """`WriteBack.write` up to its first wait. Entries that were found are saved also when the end was not."""
        self.notes = [(0, 0)] * self.bookies
        self.kept = None, start, end, given_up
        if end <= 1:
            self.lac_of_1 = -1
        if start == end:
            self.conclude(metadata)
            return
        client = _Client(self.bookies)
        back = self.make_write_back(client, metadata, start)
        self.phase = WRITING
        for entry in range(start, end):
            pending = back._state.add(b"x")
            pending.parts = (pending.entry_id,)  # type: ignore[assignment]
            for slot in back._state.targets(pending.entry_id):
                back._send(pending, slot)
            assert pending.entry_id == entry
        self.keep_write_back(back, client)

    def make_write_back(self, client: _Client, metadata: LedgerMetadata, start: int) -> ledger_recovery.WriteBack:
        env: Any = SimpleNamespace(random=FirstChance())
        return ledger_recovery.WriteBack(env, client, None, metadata, start)  # type: ignore[arg-type]

    def thaw_write_back(self, order: Sequence[int] = SLOT_ORDERS[0]) -> tuple[ledger_recovery.WriteBack, _Client]:
        state, start, *_ = self.kept
        client = _Client(self.bookies)
        back = self.make_write_back(client, thaw_metadata(self.base), start)
        back._state = thaw_writer_state((state, tuple(self.notes)), thaw_metadata(self.own), order)
        back.metadata = thaw_metadata(self.own, back._state.ensemble)
        for entry in back._state.pending.values():
            entry.parts = (entry.entry_id,)  # type: ignore[assignment]
        return back, client

    def keep_write_back(self, back: ledger_recovery.WriteBack, client: _Client) -> None:
        _, start, end, given_up = self.kept
        state = back._state
        for bookie, entry in client.sent:
            self.sends.append((bookie, ("add", entry, self.lac_of_1 if entry else -1, 1)))
        if state.end_error is not None:
            self.fail()
        elif not state.pending:
            self.forget = set(range(self.bookies))
            self.conclude(back.metadata)
        else:
            core, infos = freeze_writer_state(state, self.bookies)
            self.kept, self.notes = (core, start, end, given_up), list(infos)
            self.own = freeze_metadata(back.metadata, self.bookies)

    def hear_add(self, bookie: int, reply: tuple[Any, ...]) -> None:
        back, client = self.thaw_write_back()
        state = back._state
        before = list(state.ensemble), list(state.tenures)
        slot = state.ensemble.index(NAMES[bookie])
        tenure = state.tenures[slot]
        if reply[0] == "add":
            if reply[2] != BookieStatus.OK:
                raise Violation(f"bookie {NAMES[bookie]} answered {reply[2]!r} to a recovery add")
            entry = state.pending.get(reply[1]) or PendingEntry(reply[1], b"x", None)
            back._answered(entry, slot, tenure, reply[2], b"")
        elif reply[0] == "late":
            back._fail_late_slots()
        else:
            state.slot_failed(slot, tenure)
        self.forget |= lost_interest(before, state)
        self.keep_write_back(back, client)

    def conclude(self, metadata: LedgerMetadata) -> None:
        """`_settle` after its loop."""
        _, _, end, given_up = self.kept
        if given_up:
            self.fail()
        else:
            self.own = freeze_metadata(metadata.close(end - 1, end), self.bookies)
            self.phase, self.kept = CLOSING, None
