"""Appends to a topic's chain of ledgers: the current ledger, rollover to the next, and a new ledger after a failure.

`chain.TRANSITIONS` has the states. While a rollover is due the next ledger is prepared and the writer stays WRITING.

Guarantees: entries are acknowledged in the order of `append`, across ledgers too. After a failure nothing later is
acknowledged in the same ledger, and nothing at all before the failed ledger is recovered and closed. A new ledger is in
the stored chain, under the owner's epoch, before its first entry is sent. While the metadata store is away a due
rollover waits and appends go on.

A start that follows failures waits, longer with each of them until an entry is confirmed: from `START_DELAY_INITIAL_S`
behind the first failure to `START_DELAY_MAX_S`. Else a client that sends again at once would have ledgers created,
recovered and closed without a pause. What is appended meanwhile waits with it, and gets its outcome from that start.

The first ledger is created with the first append, so that opening an idle topic costs nothing.

A topic goes on in a new ledger (`RolloverRule`) when the current one is full (entries or size) and old enough; or old,
if it has entries at all. Or it is degraded (fewer copies than configured, or some of them on a lost bookie) while
enough bookies are usable for a whole ensemble again. Or a bookie in limbo waits for its end, and enough bookies are
usable for an ack quorum. An empty ledger is rolled over in the last two cases only. What was rolled over is closed, and
the auditor then copies what it lacks.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ...protocol.errors import (
    AlreadyClosed,
    LedgerError,
    LedgerFenced,
    MagnetarError,
    MessageTooBig,
    OutcomeUnknown,
    StaleEpoch,
    TopicTerminated,
)
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from ..ledger.ensemble import Copies
from ..ledger.ledgers import Ledgers
from ..ledger.writer import ENTRY_OVERHEAD_MAX_BYTES, AddCallback, LedgerWriter
from ..ledger.writer_state import PendingEntry
from ..metadata.ledger_metadata import LedgerMetadata
from .chain import TRANSITIONS, ChainWriterState, LedgerChain, LedgerInfo
from .deletion import delete_unused
from .record import ManagedLedgerRecord, OwnedRecord

logger = logging.getLogger(__name__)

DEGRADED_ROLLOVER_MIN_S = 5.0
"""A ledger that lost a copy is kept at least so long, lest flapping bookies make a new ledger each time."""


class RolloverRule(NamedTuple):
    """The bounds. Ages in seconds."""

    entries_max: int
    size_max_bytes: int
    age_min_s: float
    age_max_s: float

    @staticmethod
    def of(settings: Settings) -> "RolloverRule":
        return RolloverRule(
            settings.ledger_entries_max,
            settings.ledger_size_max_mb << 20,
            settings.ledger_rollover_min_minutes * 60,
            settings.ledger_rollover_max_minutes * 60,
        )

    def full(self, entries: int, size_bytes: int) -> bool:
        """Whether a ledger has as many entries or bytes as it may."""
        return entries >= self.entries_max or size_bytes >= self.size_max_bytes

    def due_in_s(self, entries: int, size_bytes: int, age_s: float, *, should_move: bool) -> float | None:
        """Seconds until rollover is due as things stand, 0 for now; None while there is no reason for any.

        `should_move`: see `ledger.ensemble`.
        """
        due_at = self.age_max_s if entries else math.inf
        if self.full(entries, size_bytes):
            due_at = min(due_at, self.age_min_s)
        if should_move:
            due_at = min(due_at, DEGRADED_ROLLOVER_MIN_S)
        return max(due_at - age_s, 0.0) if due_at < math.inf else None


RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0
START_DELAY_INITIAL_S = 0.1
START_DELAY_MAX_S = 2.0
RETURN_SPREAD_MAX_S = 1.0
CREATE_SETTLE_S = 5.0
"""How long the record's lock is kept for a lost answer. The next holder of the lock settles what is then in doubt."""


class ChainWriter:
    """See the module. `record_lock` is held around every change of the stored chain.

    `on_confirmed(ledger id, entries)` comes before the callbacks of these entries. `on_terminal(error)` comes once,
    when the topic is fenced. `on_rolled()` comes after a ledger was closed behind a rollover or a failure; entries
    whose append had failed as unknown may then be readable. `on_bookies_changed()` comes when a bookie is back or lost.
    """

    def __init__(
        self,
        env: Environment,
        ledgers: Ledgers,
        settings: Settings,
        chain: LedgerChain,
        owned: OwnedRecord,
        record_lock: asyncio.Lock,
    ) -> None:
        self.state = ChainWriterState.IDLE
        self.on_confirmed: Callable[[int, list[PendingEntry]], None] | None = None
        self.on_terminal: Callable[[MagnetarError], None] | None = None
        self.on_rolled: Callable[[], None] | None = None
        self.on_bookies_changed: Callable[[], None] | None = None
        self._env = env
        self._ledgers = ledgers
        self._chain = chain
        self._owned = owned
        self._record_lock = record_lock
        self.copies = Copies.of(settings)  # of the next ledger
        self._rule = RolloverRule.of(settings)
        self._writer: LedgerWriter | None = None
        self._info: LedgerInfo | None = None
        self._direct: LedgerWriter | None = None
        """Where `append` sends entries at once; None when they have to wait or are refused."""
        self._waiting: list[tuple[bytes, AddCallback]] = []
        self._starting: asyncio.Task[None] | None = None
        self._ended: MagnetarError | None = None
        self._tasks = Tasks()
        self._backoff = Backoff(env.random, START_DELAY_INITIAL_S, START_DELAY_MAX_S)
        self._start_not_before = 0.0
        self._started_at = 0.0
        self._rolling = False
        self._considered: tuple[bool, bool] | None = None  # (full, degraded) as `_confirmed` last acted on it
        self._drained: asyncio.Event | None = None  # made for the first rollover that waits
        self._settling = asyncio.Lock()
        """Held by whatever closes ledgers of the chain: two at once would take each other for another owner."""
        self._rollover_timer: asyncio.TimerHandle | None = None
        self._return_timer: asyncio.TimerHandle | None = None
        for listeners in (ledgers.client.on_usable, ledgers.client.lost.on_lost):
            listeners[self._bookies_changed] = None

    def _become(self, state: ChainWriterState) -> None:
        check_transition(TRANSITIONS, self._owned.name, self.state, state)
        self.state = state

    # -- figures ---------------------------------------------------------------------------------------------------

    @property
    def pending_entries(self) -> int:
        """Entries appended whose outcome is not known."""
        return len(self._waiting) + (self._writer.pending_entries if self._writer else 0)

    @property
    def current_ledger_id(self) -> int | None:
        """The ledger that is being written, None before the first and after a failure."""
        return self._writer.ledger_id if self._writer is not None else None

    @property
    def current_metadata(self) -> LedgerMetadata | None:
        """The latest metadata of the ledger that is being written."""
        return self._writer.metadata if self._writer is not None else None

    # -- appending ---------------------------------------------------------------------------------------------------

    def append(self, body: bytes, callback: AddCallback) -> None:
        """Append an entry; `callback` comes in order, never from within this call.

        Raises MessageTooBig, and once fenced or closed the error that says so.
        """
        direct = self._direct
        if direct is not None:
            direct.add(body, callback)
            return
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        if self.state is ChainWriterState.TERMINATED:
            raise TopicTerminated(f"{self._owned.name} was terminated: publish to another topic")
        if len(body) > self._ledgers.settings.bookie_frame_size_max_bytes - ENTRY_OVERHEAD_MAX_BYTES:
            size = len(body)
            raise MessageTooBig(f"an entry of {size} bytes is too large: raise nettyMaxFrameSizeBytes", size_bytes=size)
        self._waiting.append((body, callback))
        self.start()

    def start(self) -> asyncio.Task[None] | None:
        """Begin the next ledger where none is written. Once it is, it is known what was stored of failed appends.

        Returns the start that is under way, if there is one.
        """
        if self.state in (ChainWriterState.IDLE, ChainWriterState.FAILED):
            recover = self.state is ChainWriterState.FAILED
            self._become(ChainWriterState.STARTING)
            self._starting = self._tasks.spawn(self._start(recover=recover), f"start-ledger {self._owned.name}")
        return self._starting if self.state is ChainWriterState.STARTING else None

    def refuse_appends(self) -> None:
        """The topic was terminated: `append` raises TopicTerminated from now on, and what waits gets that error.

        A start or a rollover that is under way finds the state changed, and gives its ledger up.
        """
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        if self.state is not ChainWriterState.TERMINATED:
            self._become(ChainWriterState.TERMINATED)
            self._direct = None
            self._fail_waiting(TopicTerminated(f"{self._owned.name} was terminated: publish to another topic"))

    async def close(self) -> None:
        """Stop; pending entries get LedgerClosed or AlreadyClosed. Closes the current ledger.

        Raises LedgerFenced when it was taken over; the next owner recovers a ledger that could not be closed.
        """
        writer = await self._stop(AlreadyClosed(f"{self._owned.name} is closed"))
        if writer is None:
            return
        metadata = await writer.close()
        info = self._chain.get(writer.ledger_id)
        if info is not None:
            self._closed_as(info, metadata)

    async def abandon(self) -> None:
        """Stop without closing the current ledger."""
        writer = await self._stop(AlreadyClosed(f"{self._owned.name} is closed"))
        if writer is not None:
            await writer.abandon()

    async def _stop(self, error: MagnetarError) -> LedgerWriter | None:
        if self._ended is None:
            self._become(ChainWriterState.CLOSED)
            self._ended = error
        self._direct = None
        for timer in (self._rollover_timer, self._return_timer):
            if timer is not None:
                timer.cancel()
        self._rollover_timer = self._return_timer = None
        for listeners in (self._ledgers.client.on_usable, self._ledgers.client.lost.on_lost):
            listeners.pop(self._bookies_changed, None)
        await self._tasks.close()
        self._fail_waiting(error)
        writer, self._writer = self._writer, None
        return writer

    # -- the first ledger, and the one after a failure ---------------------------------------------------------------

    async def _start(self, *, recover: bool) -> None:
        try:
            await asyncio.sleep(max(0.0, self._start_not_before - asyncio.get_running_loop().time()))
            if self.state is not ChainWriterState.STARTING:  # fenced meanwhile, and the waiting appends have failed
                return
            if recover:
                await self.recover_chain()
            writer, info = await self._create_next()
        except (StaleEpoch, LedgerFenced) as error:
            self.fence(error)
        except Exception as error:
            if isinstance(error, MagnetarError):
                logger.warning("%s could not start a ledger: %s", self._owned.name, error)
            else:  # of any kind: no caller may wait forever
                logger.exception("%s could not start a ledger after an unexpected error", self._owned.name)
                error = LedgerError(f"{self._owned.name} could not start a ledger: {error!r}")
            if self.state is ChainWriterState.STARTING:
                self._become(ChainWriterState.FAILED if recover else ChainWriterState.IDLE)
            self._delay_next_start()
            self._fail_waiting(error)
        else:
            if self.state is not ChainWriterState.STARTING:
                await writer.abandon()
                return
            self._chain.append(info)
            self._use(writer, info)
            if recover and self.on_rolled is not None:
                self.on_rolled()
        finally:
            if self._starting is asyncio.current_task():  # none began when the waiting appends failed
                self._starting = None

    def _delay_next_start(self) -> None:
        self._start_not_before = asyncio.get_running_loop().time() + self._backoff.next_delay_s()

    async def recover_chain(self) -> None:
        """Close every ledger of the stored chain that is not closed, and learn where it ends."""
        failed, self._writer, self._info = self._writer, None, None
        if failed is not None:
            await failed.abandon()
        async with self._record_lock, self._settling:
            closed = {info.ledger_id: info.closed for info in self._chain.infos}
            open_ids = [info.ledger_id for info in self._owned.record.ledgers if not closed.get(info.ledger_id)]
            for record in await self._ledgers.records.get_many(open_ids):
                known = self._chain.last_confirmed
                metadata = await self._ledgers.recover(record.metadata.ledger_id, record)
                info = self._chain.get(metadata.ledger_id)
                if info is None:
                    info = LedgerInfo(metadata.ledger_id, self._env.clock.now_ms())
                    self._chain.add_recovered(info, metadata.last_entry)
                self._closed_as(info, metadata)
                if self._chain.last_confirmed > known and self.on_confirmed is not None:
                    # Failed appends turned out to be stored. No append may follow that tells dispatch of them.
                    self.on_confirmed(info.ledger_id, [])

    async def _create_next(self) -> tuple[LedgerWriter, LedgerInfo]:
        """A new ledger, stored as the last of the chain. It is not yet in the chain in memory."""
        async with self._record_lock:
            await self._owned.settle(CREATE_SETTLE_S)
            record = self._owned.record
            above = max(
                self._chain.last_ledger_id,
                self._chain.last_confirmed[0],
                record.highest_ledger_id,
                *(info.ledger_id for info in record.ledgers),
                *record.deleting,
            )
            writer = await self._ledgers.create(above=above, copies=self.copies)
            info = LedgerInfo(writer.ledger_id, self._env.clock.now_ms())

            def with_new(record: ManagedLedgerRecord) -> ManagedLedgerRecord:
                return replace(
                    record,
                    ledgers=(*self._chain.as_known(record.ledgers), info),
                    highest_ledger_id=writer.ledger_id,
                )

            try:
                await self._owned.change(with_new, needs=writer.guard, settle_limit_s=CREATE_SETTLE_S)
            except OutcomeUnknown:
                await writer.abandon()
                raise
            except MagnetarError:
                await writer.abandon()
                await delete_unused(self._ledgers, self._owned, writer.ledger_id)
                raise
            return writer, info

    def _use(self, writer: LedgerWriter, info: LedgerInfo) -> None:
        """Write to this ledger from now on, beginning with what waits."""
        self._writer, self._info = writer, info
        writer.on_confirmed = partial(self._confirmed, writer, info)
        writer.on_ended = lambda error: self._writer_ended(writer, error)
        self._started_at = asyncio.get_running_loop().time()
        self._become(ChainWriterState.WRITING)
        self._direct = writer
        self._considered = None
        waiting, self._waiting = self._waiting, []
        for body, callback in waiting:
            writer.add(body, callback)
        self._consider_rollover()

    # -- completion ----------------------------------------------------------------------------------------------------

    def _confirmed(self, writer: LedgerWriter, info: LedgerInfo, entries: list[PendingEntry]) -> None:
        size_bytes = info.size_bytes
        for entry in entries:
            size_bytes += len(entry.body)
        if not info.entries:
            self._backoff.reset()
        self._chain.grow(info, entries[-1].entry_id, size_bytes)
        if self.on_confirmed is not None:
            self.on_confirmed(info.ledger_id, entries)
        if self._drained is not None and not writer.pending_entries:
            self._drained.set()
        reasons = self._rule.full(info.entries, size_bytes), writer.degraded
        if reasons != self._considered:
            self._considered = reasons
            self._consider_rollover()

    def _writer_ended(self, writer: LedgerWriter, error: MagnetarError) -> None:
        """The writer failed; its own pending entries get the error right after this, then those that wait."""
        if writer is not self._writer:
            return
        self._direct = None
        if self._drained is not None:
            self._drained.set()
        if isinstance(error, LedgerFenced):
            self.fence(error)
            return
        if self._ended is None:
            logger.warning("%s: ledger %d failed: %s", self._owned.name, writer.ledger_id, error)
            self._become(ChainWriterState.FAILED)
            self._delay_next_start()
            waiting, self._waiting = self._waiting, []
            asyncio.get_running_loop().call_soon(_fail_all, waiting, error)

    def fence(self, error: MagnetarError) -> None:
        """The topic has another owner."""
        if self._ended is not None:
            return
        self._ended = error
        self._become(ChainWriterState.FENCED)
        self._direct = None
        if self._drained is not None:
            self._drained.set()
        if self._writer is not None and self._writer.ended is None:
            self._tasks.spawn(self._writer.abandon(), f"abandon {self._owned.name}")
        waiting, self._waiting = self._waiting, []
        asyncio.get_running_loop().call_soon(_fail_all, waiting, error)
        if self.on_terminal is not None:
            self.on_terminal(error)

    def _fail_waiting(self, error: MagnetarError) -> None:
        waiting, self._waiting = self._waiting, []
        _fail_all(waiting, error)

    def _bookies_changed(self) -> None:
        """A bookie came back, or is lost. All topics of the broker are told at once, so each waits its own moment."""
        if self.on_bookies_changed is not None:
            self.on_bookies_changed()
        if self._writer is not None and self._writer.degraded and self._return_timer is None:
            delay_s = self._env.random.uniform(0, RETURN_SPREAD_MAX_S)
            self._return_timer = asyncio.get_running_loop().call_later(delay_s, self._bookies_returned)

    def _bookies_returned(self) -> None:
        self._return_timer = None
        self._consider_rollover()

    def _consider_rollover(self) -> None:
        if self._rolling or self.state is not ChainWriterState.WRITING:
            return
        due_in_s = self._rollover_due_in_s()
        if self._rollover_timer is not None:
            self._rollover_timer.cancel()
            self._rollover_timer = None
        if due_in_s is None:
            return
        if due_in_s > 0:
            self._rollover_timer = asyncio.get_running_loop().call_later(due_in_s + 0.001, self._consider_rollover)
            return
        self._rolling = True
        self._tasks.spawn(self._roll_over(), f"rollover {self._owned.name}")

    def _rollover_due_in_s(self) -> float | None:
        writer, info = self._writer, self._info
        if writer is None or info is None:
            return None
        return self._rule.due_in_s(
            info.entries,
            info.size_bytes,
            asyncio.get_running_loop().time() - self._started_at,
            should_move=writer.should_move,
        )

    async def _roll_over(self) -> None:
        try:
            old, old_info = self._writer, self._info
            prepared = await self._prepare_next()
            if prepared is None or old is None or old_info is None:
                return
            writer, info = prepared
            if self._writer is not old or self.state is not ChainWriterState.WRITING:
                await writer.abandon()  # failed or fenced meanwhile; the next start recovers the empty ledger too
                return
            check_transition(TRANSITIONS, self._owned.name, self.state, ChainWriterState.SWITCHING)
            self.state = ChainWriterState.SWITCHING
            self._direct = None
            while old.pending_entries and old.ended is None:
                self._drained = asyncio.Event()
                await self._drained.wait()
            self._drained = None
            if self.state is not ChainWriterState.SWITCHING or old.ended is not None:
                await writer.abandon()
                return
            self._chain.append(info)
            self._use(writer, info)
        finally:
            self._rolling = False
            self._considered = None
        await self._close_behind(old, old_info)
        self._consider_rollover()

    async def _prepare_next(self) -> tuple[LedgerWriter, LedgerInfo] | None:
        """The next ledger, however long the metadata store stays away; None when the need for it has gone."""

        async def create() -> tuple[LedgerWriter, LedgerInfo] | None:
            if self.state is not ChainWriterState.WRITING or self._rollover_due_in_s() != 0:
                return None
            try:
                return await self._create_next()
            except (StaleEpoch, LedgerFenced) as error:
                self.fence(error)
                return None

        return await retry.forever(
            Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S),
            create,
            retriable=retry.our_error,
            on_retry=lambda error, _: logger.info("the rollover of %s is tried again: %s", self._owned.name, error),
        )

    async def _close_behind(self, old: LedgerWriter, info: LedgerInfo) -> None:
        """Close a ledger that was rolled over, however long the metadata store stays away.

        After a failure it is left to the next start, which recovers every ledger that is open.
        """

        async def close() -> None:
            if self._ended is not None:
                return
            try:
                async with self._settling:
                    if info.closed or self.state in (ChainWriterState.FAILED, ChainWriterState.STARTING):
                        await old.abandon()
                    else:
                        self._closed_as(info, await old.close())
            except LedgerFenced as error:
                self.fence(error)

        await retry.forever(
            Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S),
            close,
            retriable=retry.our_error,
            on_retry=lambda error, _: logger.info("closing ledger %d is tried again: %s", old.ledger_id, error),
        )
        if self.on_rolled is not None and self._ended is None:
            self.on_rolled()

    def _closed_as(self, info: LedgerInfo, metadata: LedgerMetadata) -> None:
        self._chain.grow(info, metadata.last_entry, metadata.length or info.size_bytes)
        info.closed = True
        info.closed_ms = self._env.clock.now_ms()


def _fail_all(waiting: list[tuple[bytes, AddCallback]], error: MagnetarError) -> None:
    for _, callback in waiting:
        try:
            callback(None, error)
        except Exception:
            logger.exception("the callback of an append failed")
