"""Writes one ledger: sends each entry to its write set, acknowledges in order, replaces bookies that fail.

The decisions are `ledger.writer_state`'s; this is the shell that sends, waits, and changes the metadata. `add` and its
completion are plain callbacks. Memory for pending entries is the caller's to bound (`pending_entries`,
`pending_bytes`).

Ensemble change: acknowledgements stop, and spares are chosen. The new fragment (from LAC + 1) is compared-and-set while
the ledger is OPEN. The pending entries are sent to the new bookies, and acknowledgements resume. Without a spare, or
while the metadata store cannot be reached, the failed slots stay empty and the others continue (`degraded`). This is
safe after a compare-and-set with a lost answer, too: from then on only bookies that are in both ensembles count.

A bookie that leaves adds unanswered for `add_entry_timeout_s` is treated as failed. The watch counts: a slot is late
when it has not answered at the fourth look what had been sent at its mark. This costs two additions per entry.

These end the writer and fail all pending adds, whose outcome is then unknown: a fence (LedgerFenced), too few bookies
(NotEnoughBookies), different bytes under one id (DigestConflict), an entry that every bookie must refuse, `close`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ...protocol.bookie_wire import BookieStatus, encode_add, encode_entry_header, error_for_status
from ...protocol.errors import (
    BadVersion,
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    MagnetarError,
    MessageTooBig,
    NoSuchKey,
    NoSuchLedger,
)
from ...protocol.message_id import Position
from ...runtime.environment import Chance, Environment
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ..metadata import keys as metadata_keys
from ..metadata.ledger_metadata import LedgerMetadata, LedgerState
from ..metadata.ledger_records import LedgerRecord, LedgerRecords
from ..metadata.store import Guard
from .bookie_client import LOOKS, OVERLOADED_RETRY_S, BookieClient
from .ensemble import Copies, PlaceOf, nowhere, replace_slots, should_move
from .writer_state import LedgerWriterState, PendingEntry, SlotState, WriterPhase

logger = logging.getLogger(__name__)

AddCallback = Callable[[Position | None, MagnetarError | None], None]

ENTRY_OVERHEAD_MAX_BYTES = 256
"""Room for the entry's header, the ADD's flags and the RPC frame around a body."""
ENSEMBLE_CHANGE_SETTLE_S = 1.0
CLOSE_SETTLE_S = 2.0

_FATAL_STATUSES = frozenset({BookieStatus.CONFLICT, BookieStatus.BAD_REQUEST, BookieStatus.TOO_LARGE})
_REFUSALS = frozenset({BookieStatus.READ_ONLY, BookieStatus.UNKNOWN, BookieStatus.IO_ERROR, BookieStatus.FOREIGN})
_OK = int(BookieStatus.OK)

NO_MARK = (0, 0)


class SlotWatch:
    """Tells which slots answer too late. It counts looks (see `bookie_client.LOOKS`)."""

    def __init__(self, slots: int) -> None:
        self.sent = [0] * slots
        self.answered = [0] * slots
        self._marks: list[tuple[int, int]] = [NO_MARK] * slots
        """Of each slot: how much had been sent at its mark, and how many looks have passed without all answers."""

    def restart(self, slot: int) -> None:
        """A slot has a new holder, or none."""
        self.sent[slot] = self.answered[slot] = 0
        self._marks[slot] = NO_MARK

    def busy(self) -> bool:
        """Whether any answer is outstanding."""
        return self.sent != self.answered

    def rest(self) -> None:
        """Nothing is outstanding; the next `mark` begins again."""
        self._marks = [NO_MARK] * len(self._marks)

    def mark(self) -> None:
        """Give a new mark to each slot that has answered everything up to its mark."""
        for slot, (sent, _) in enumerate(self._marks):
            if self.answered[slot] >= sent:
                self._marks[slot] = (self.sent[slot], 0)

    def late(self) -> list[int]:
        """Look at all slots: those that still owe an answer which they owed `LOOKS` looks ago. These are live: nothing
        is sent to others."""
        found: list[int] = []
        for slot, (sent, looks) in enumerate(self._marks):
            if self.answered[slot] < sent:
                self._marks[slot] = (sent, looks + 1)
                if looks + 1 >= LOOKS:
                    found.append(slot)
        return found


class LedgerWriter:
    """The only writer of an OPEN ledger. Made by `Ledgers.create`.

    `on_confirmed(entries)` is called before the callbacks of each run of entries acknowledged together;
    `on_ended(error)` once, when the writer ends for another reason than `close`.
    """

    def __init__(
        self,
        env: Environment,
        records: LedgerRecords,
        client: BookieClient,
        settings: Settings,
        record: LedgerRecord,
        copies: Copies | None = None,
    ) -> None:
        self.ledger_id = record.metadata.ledger_id
        self._nonce = record.metadata.nonce
        self.on_confirmed: Callable[[list[PendingEntry]], None] | None = None
        self.on_ended: Callable[[MagnetarError], None] | None = None
        self.pending_bytes = 0
        self._env = env
        self._loop = asyncio.get_running_loop()
        self._records = records
        self._client = client
        self._settings = settings
        self._copies = copies or Copies.of(settings)
        self._record = record
        self._state = LedgerWriterState(record.metadata)
        self._watch = SlotWatch(record.metadata.ensemble_size)
        self._watch_timer: asyncio.TimerHandle | None = None
        self._refusing: dict[str, None] = {}
        self._changing = False
        self._acknowledged: list[PendingEntry] = []
        """Entries that the state has acknowledged and `_confirm` has not seen: those of this turn of the loop."""
        self._tasks = Tasks()
        self._body_size_max = settings.bookie_frame_size_max_bytes - ENTRY_OVERHEAD_MAX_BYTES

    @property
    def metadata(self) -> LedgerMetadata:
        """The latest record known; it changes with the ensemble."""
        return self._record.metadata

    @property
    def guard(self) -> Guard:
        """The ledger's record as this writer stored it, for the `needs` of the write that names the ledger elsewhere.

        Nobody else changes an OPEN ledger but a recoverer, or the auditor to delete it because nothing names it. So the
        version is always that of a write of this writer, never one that it only read. That one may be the auditor's
        mark. Behind its mark the auditor does not look again for names that it has passed.
        """
        return Guard(metadata_keys.ledger(self.ledger_id), self._record.version)

    @property
    def last_confirmed(self) -> int:
        """LAC: the last acknowledged entry, −1 for none."""
        return self._state.lac

    @property
    def last_added(self) -> int:
        return self._state.last_added

    @property
    def length(self) -> int:
        """Bytes of the bodies of all entries added."""
        return self._state.length

    @property
    def pending_entries(self) -> int:
        return len(self._state.pending) + len(self._acknowledged)

    @property
    def degraded(self) -> bool:
        """Whether entries have fewer copies than configured, or one of their bookies is lost."""
        metadata = self._record.metadata
        return self._state.degraded or metadata.under_replicated or self._client.lost.holds_part_of(metadata)

    @property
    def should_move(self) -> bool:
        """Whether to go on in a new ledger: it would have copies that this one lacks, or let a bookie out of limbo."""
        return self.degraded and should_move(
            self._copies,
            degraded=True,
            keeps_in_limbo=self._client.lost.keeps_in_limbo(self._record.metadata),
            usable_bookies=len(self._client.usable()),
        )

    @property
    def ended(self) -> MagnetarError | None:
        """Why the writer takes no more entries; None while it does."""
        return self._state.end_error

    def add(self, body: bytes, callback: AddCallback) -> None:
        """Append an entry. `callback(position, None)` comes when it is safe, `callback(None, error)` when unknown.

        Callbacks come in the order of adds, never from within this call. Raises what ended the writer, MessageTooBig.
        """
        if len(body) > self._body_size_max:
            raise MessageTooBig(
                f"an entry of {len(body)} bytes is too large: raise nettyMaxFrameSizeBytes",
                size_bytes=len(body),
            )
        state = self._state
        entry = state.add(body, callback)
        entry_id = entry.entry_id
        header = encode_entry_header(self.ledger_id, self._nonce, entry_id, state.lac, state.length, body)
        entry.parts = encode_add(header, body)
        self.pending_bytes += len(body)
        ensemble = state.ensemble
        tenures = state.tenures
        sent = self._watch.sent
        send = self._client.add
        for slot in state.targets(entry_id):
            sent[slot] += 1
            send(ensemble[slot], entry.parts, partial(self._answered, entry, slot, tenures[slot]))
        if self._watch_timer is None:
            self._start_watch()

    async def close(self) -> LedgerMetadata:
        """Fail what is pending with LedgerClosed and close the ledger at its LAC; returns its final metadata.

        Raises LedgerFenced when another owner took it over, MetadataUnavailable or OutcomeUnknown when the store does
        not answer (the next owner then recovers the ledger).
        """
        self._end(LedgerClosed(f"ledger {self.ledger_id} is closed"), tell=False)
        await self._tasks.close()
        record = self._record
        while True:
            if record.metadata.state is not LedgerState.OPEN:
                if record.metadata.closed and record.metadata.last_entry == self._state.lac:
                    self._record = LedgerRecord(record.metadata, self._record.version)  # see `guard`
                    return record.metadata
                raise LedgerFenced(f"another owner took ledger {self.ledger_id} over", ledger_id=self.ledger_id)
            closed = record.metadata.close(self._state.lac, self._state.length_confirmed)
            try:
                self._record = await self._records.replace(closed, record.version, settle_limit_s=CLOSE_SETTLE_S)
                return closed
            except (BadVersion, NoSuchKey):
                record = await self._reread()

    async def abandon(self) -> None:
        """Stop without closing the ledger: its next owner recovers it."""
        self._end(
            LedgerClosed(f"the writer of ledger {self.ledger_id} stopped; its next owner recovers it"), tell=False
        )
        await self._tasks.close()

    # -- answers of bookies ------------------------------------------------------------------------------------

    def _answered(self, entry: PendingEntry, slot: int, tenure: int, status: int, payload: bytes) -> None:
        state = self._state
        if state.tenures[slot] != tenure:
            return
        if status == _OK:
            self._watch.answered[slot] += 1
            done = state.added(entry.entry_id, slot, tenure)
            if done:
                # A bookie answers many entries in one chunk: they are confirmed as one run when the chunk is read.
                # A lonely entry does not wait for that.
                if self._acknowledged:
                    self._acknowledged += done
                elif not state.pending:
                    self._confirm(done)
                else:
                    self._acknowledged = done
                    self._loop.call_soon(self._confirm_acknowledged)
        elif status == BookieStatus.FENCED:
            if state.end_error is None:
                writes, bookie = len(state.pending), state.ensemble[slot]
                logger.info("ledger %d: %d writes were refused by the fence at %s", self.ledger_id, writes, bookie)
            self._end(LedgerFenced(f"ledger {self.ledger_id} is fenced", ledger_id=self.ledger_id))
        elif status in _FATAL_STATUSES:
            self._end(error_for_status(status, ledger_id=self.ledger_id, bookie=state.ensemble[slot]))
        elif status == BookieStatus.OVERLOADED:
            self._loop.call_later(OVERLOADED_RETRY_S, self._send_again, entry, slot, tenure)
        else:
            if status in _REFUSALS:
                self._refusing[state.ensemble[slot]] = None
            self._slot_failed(slot, tenure)

    def _send_again(self, entry: PendingEntry, slot: int, tenure: int) -> None:
        """After a pause, also when the entry was acknowledged meanwhile: the copy is owed to a live bookie."""
        state = self._state
        if state.tenures[slot] == tenure and state.phase is not WriterPhase.ENDED:
            self._client.add(state.ensemble[slot], entry.parts, partial(self._answered, entry, slot, tenure))

    def _confirm_acknowledged(self) -> None:
        done, self._acknowledged = self._acknowledged, []
        self._confirm(done)

    def _confirm(self, done: list[PendingEntry]) -> None:
        if done and self.on_confirmed is not None:
            self.on_confirmed(done)
        ledger_id = self.ledger_id
        for entry in done:
            self.pending_bytes -= len(entry.body)
            try:
                entry.context((ledger_id, entry.entry_id), None)
            except Exception:
                logger.exception("the callback of an add failed")

    def _slot_failed(self, slot: int, tenure: int) -> None:
        if not self._state.slot_failed(slot, tenure, self._watch.sent[slot] - self._watch.answered[slot]):
            return
        # Once, and not for each entry that the bookie had.
        logger.info("ledger %d: bookie %s in slot %d failed", self.ledger_id, self._state.ensemble[slot], slot)
        self._watch.restart(slot)
        if self._state.phase is WriterPhase.NEEDS_CHANGE and not self._changing:
            self._changing = True
            self._tasks.spawn(self._change_ensembles(), f"ensemble-change-{self.ledger_id}")

    def _end(self, error: MagnetarError, *, tell: bool = True) -> None:
        if self._state.phase is not WriterPhase.ENDED:
            self._fail(self._state.end(error), error, tell=tell)

    def _fail(self, pending: list[PendingEntry], error: MagnetarError, *, tell: bool) -> None:
        """The state has ended: call all callbacks, in the order of adds."""
        self._confirm_acknowledged()
        if self._watch_timer is not None:
            self._watch_timer.cancel()
            self._watch_timer = None
        if tell and self.on_ended is not None:
            self.on_ended(error)
        for entry in pending:
            self.pending_bytes -= len(entry.body)
            try:
                entry.context(None, error)
            except Exception:
                logger.exception("the callback of an add failed")
        self.on_confirmed = self.on_ended = None  # they hold this writer: without them nothing waits for the collector

    # -- slow bookies --------------------------------------------------------------------------------------------

    def _start_watch(self) -> None:
        if self._state.phase is not WriterPhase.ENDED:
            self._watch.mark()
            self._watch_timer = self._loop.call_later(self._settings.add_entry_timeout_s / LOOKS, self._look)

    def _look(self) -> None:
        self._watch_timer = None
        state = self._state
        for slot in self._watch.late():
            bookie = state.ensemble[slot]
            self._slot_failed(slot, state.tenures[slot])
            self._client.report_slow(bookie)
        if self._watch.busy():
            self._start_watch()
        else:
            self._watch.rest()
            state.rest()

    # -- ensemble change -----------------------------------------------------------------------------------------

    async def _change_ensembles(self) -> None:
        try:
            await self._change_while_needed()
        except Exception as error:  # of any kind: no caller may wait forever
            logger.exception("ledger %d: an ensemble change failed unexpectedly", self.ledger_id)
            self._end(LedgerError(f"ledger {self.ledger_id}: an ensemble change failed: {error!r}"))
        finally:
            self._changing = False

    async def _change_while_needed(self) -> None:
        state = self._state
        while state.phase is WriterPhase.NEEDS_CHANGE:
            slots = state.begin_change()
            try:
                change = await self._store_change(slots)
            except LedgerFenced as error:
                self._end(error)
                return
            except MagnetarError as error:  # the store's trouble, whatever it is called: a full disk, no office, …
                logger.warning("ledger %d keeps its ensemble, because the change failed: %s", self.ledger_id, error)
                change = None
            if state.end_error is not None:  # ended while the metadata store answered
                return
            if change is None:
                logger.info("ledger %d has fewer bookies from entry %d on", self.ledger_id, state.change_start)
                done = state.abandon_change(slots)
            else:
                self._record, replaced = change
                logger.info("ledger %d: ensemble change at entry %d: %s", self.ledger_id, state.change_start, replaced)
                resend, done = state.commit_change(
                    self._record.metadata, replaced, [slot for slot in slots if slot not in replaced]
                )
                for entry, slot in resend:
                    self._watch.sent[slot] += 1
                    self._client.add(
                        state.ensemble[slot], entry.parts, partial(self._answered, entry, slot, state.tenures[slot])
                    )
            if state.end_error is not None:  # too few bookies are left
                self._fail(state.take_pending(), state.end_error, tell=True)
                return
            self._confirm_acknowledged()
            self._confirm(done)
            if self._watch_timer is None and self._watch.busy():
                self._start_watch()

    async def _store_change(self, slots: Sequence[int]) -> tuple[LedgerRecord, dict[int, str]] | None:
        """Choose spares and compare-and-set the new fragment. None when there is no spare.

        Raises LedgerFenced when the ledger is no longer OPEN, MetadataError when the store does not answer.
        """
        state = self._state
        record = self._record
        while True:
            change = plan_change(
                state,
                record.metadata,
                slots,
                self._env.random,
                self._client.usable(),
                self._refusing,
                self._client.directory.place_of,
            )
            if change is None:
                return None
            target, replaced = change
            try:
                stored = await self._records.replace(target, record.version, settle_limit_s=ENSEMBLE_CHANGE_SETTLE_S)
                return stored, replaced
            except (BadVersion, NoSuchKey):
                record = await self._reread()

    async def _reread(self) -> LedgerRecord:
        try:
            return await self._records.get(self.ledger_id)
        except NoSuchLedger:
            raise LedgerFenced(f"ledger {self.ledger_id} was deleted", ledger_id=self.ledger_id) from None


def plan_change(
    state: LedgerWriterState,
    metadata: LedgerMetadata,
    slots: Sequence[int],
    random: Chance,
    usable: Iterable[str],
    refusing: Iterable[str] = (),
    place_of: PlaceOf = nowhere,
) -> tuple[LedgerMetadata, dict[int, str]] | None:
    """The record to compare-and-set for an ensemble change of `slots`, and who takes which slot; None without a spare.

    Pure. `metadata` is the record as it is now; empty slots are filled too when there are spares enough. Raises
    LedgerFenced when the ledger is no longer OPEN or its ensemble is not this writer's.
    """
    ledger_id = metadata.ledger_id
    if metadata.state is not LedgerState.OPEN:
        raise LedgerFenced(f"another owner took ledger {ledger_id} over", ledger_id=ledger_id)
    ensemble = list(metadata.last_fragment.bookies)
    for slot, slot_state in enumerate(state.slots):
        if slot_state is SlotState.LIVE and ensemble[slot] != state.ensemble[slot]:
            raise LedgerFenced(f"another owner changed the ensemble of ledger {ledger_id}")
    empty = [slot for slot, slot_state in enumerate(state.slots) if slot_state is SlotState.EMPTY]
    usable = list(usable)
    taken = [*ensemble, *state.ensemble, *refusing]
    quorum = metadata.write_quorum
    replaced = replace_slots(random, ensemble, slots, usable, taken, quorum, place_of)
    if not replaced:
        return None
    for slot, bookie in replaced.items():
        ensemble[slot] = bookie
    filled = replace_slots(random, ensemble, empty, usable, taken, quorum, place_of)
    for slot, bookie in filled.items():
        ensemble[slot] = bookie
    replaced |= filled
    return metadata.with_ensemble(state.change_start, tuple(ensemble)), replaced
