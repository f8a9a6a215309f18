"""A subscription's place in a topic, durable or not: `CursorState` plus when and where it is written.

A durable cursor has a metadata record `{epoch, ledger, state}`. While it moves, its state goes to a cursor ledger,
created with the first write: sometimes a snapshot, otherwise a delta (see `cursor_ledger`). So the cost of a write
depends on what changed. A large state is packed off the loop, from a copy. At creation and on a clean close, a small
state lies in the record itself, without a ledger. So idle topics have nothing to recover.

Writing: at most once in `cursor_flush_interval_s` by itself; at once for `flush`, whose concurrent callers share one
write. A write that fails is repeated with the next, as a whole; callers of `flush` get its error. The switch from a
full or failed ledger is one compare-and-set, made when a complete snapshot is in the new ledger. The old ledger is then
deleted. When such a compare-and-set has an unknown outcome, nothing more goes to the old ledger. The record may name
the new one, and writes to the old one would be lost.

Guarantees: a state for which `flush` returned survives the broker. `durable_mark_delete` is never ahead of what is
stored. Once another owner has opened the topic, no write succeeds here, because the ledger is fenced and the record has
a higher epoch. That ends the cursor with `on_fenced`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...protocol.errors import (
    AlreadyClosed,
    BadVersion,
    LedgerFenced,
    MagnetarError,
    MetadataError,
    NoSuchKey,
    OutcomeUnknown,
    StaleEpoch,
)
from ...protocol.message_id import Position
from ..ledger.writer import LedgerWriter
from ..metadata import keys as metadata_keys
from ..metadata.certain_writes import SETTLE_LIMIT_S, put_certain
from ..metadata.store import Guard
from . import cursor_ledger
from .cursor_ledger import CursorLog
from .cursor_record import CursorHome, CursorKind, CursorRecord
from .cursor_state import CursorState

logger = logging.getLogger(__name__)

INLINE_STATE_MAX_BYTES = 16 << 10
"""A state up to this size may lie in the metadata record."""
CURSOR_LEDGER_SIZE_MAX_BYTES = 64 << 20
SMALL_STATE_RANGES_MAX = 2000
"""A state with no more ranges than that is packed on the loop, in less than a millisecond."""
RETRY_DELAY_MIN_S = 1.0
CLOSE_SETTLE_S = 2.0


class Cursor:
    """See the module. Made by `ManagedLedger`. All but `flush`, `reset`, `close` and `delete` happen at once."""

    def __init__(self, home: CursorHome, name: str, state: CursorState, kind: CursorKind, *, durable: bool) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.on_fenced: Callable[[MagnetarError], None] | None = None
        self.durable_mark_delete: Position = state.mark_delete
        self._home = home
        self._state = state
        self._key = metadata_keys.cursor(home.topic_path, name)
        self._version: int | None = None
        self._record = CursorRecord(home.epoch, None, None, kind)
        self._log: CursorLog | None = None
        self._switch_due = False
        """Whether the record may name another ledger than the present one."""
        self._dirty = False
        self._closed = False
        self._ended: MagnetarError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._writing: asyncio.Task[None] | None = None

    # -- where it is -----------------------------------------------------------------------------------------------

    @property
    def mark_delete_position(self) -> Position:
        """Everything up to here is acknowledged."""
        return self._state.mark_delete

    @property
    def first_unacknowledged(self) -> Position:
        return self._state.first_unacknowledged

    @property
    def backlog_entries(self) -> int:
        return self._state.backlog_entries()

    @property
    def properties(self) -> Mapping[str, str]:
        return self._state.properties

    def is_acknowledged(self, position: Position) -> bool:
        return self._state.is_acknowledged(position)

    def next_unacknowledged(self, position: Position) -> Position:
        """The first place at or behind `position` that is not acknowledged."""
        return self._state.next_unacknowledged(position)

    def ranges_before(self, position: Position) -> int:
        """How many acknowledged ranges beyond the mark begin in front of `position`."""
        return self._state.ranges_before(position)

    def ack_set(self, position: Position) -> list[int] | None:
        """See `CursorState.ack_set`."""
        return self._state.ack_set(position)

    @property
    def acknowledged_ranges(self) -> int:
        """Ranges acknowledged beyond the mark-delete position."""
        return self._state.range_count

    # -- moving ------------------------------------------------------------------------------------------------------

    def acknowledge(self, positions: Iterable[Position]) -> None:
        """Acknowledge entries one by one; what does not exist is ignored."""
        if self._state.acknowledge(positions):
            self._moved()

    def acknowledge_batch_index(self, position: Position, ack_set: Sequence[int], batch_size: int) -> None:
        """Acknowledge single messages of a batch: those whose bit is clear in `ack_set`."""
        if self._state.acknowledge_batch_index(position, ack_set, batch_size):
            self._moved()

    def acknowledge_cumulative(self, position: Position) -> None:
        """Acknowledge everything up to and including an entry."""
        if self._state.acknowledge_cumulative(position):
            self._moved()

    def put_property(self, name: str, value: str) -> None:
        """Set a property; it is written with the state."""
        self._state.put_property(name, value)
        self._moved()

    async def reset(self, position: Position) -> None:
        """Go to a place: `position` is the next to deliver. Durable when this returns; raises like `flush`."""
        self._check()
        self._state.reset(min(position, self._home.chain.next_position(self._home.chain.last_confirmed)))
        self._moved()
        async with self._home.record_lock:  # what a trim that is being stored takes is gone; from now on all else stays
            self._state.skip_missing()
        await self.flush()

    def ledgers_trimmed(self) -> None:
        """Ledgers left the chain: what is known of them goes."""
        if self._state.skip_missing():
            self._moved()

    def bookies_changed(self) -> None:
        """A bookie is lost or came back: when the state lies on too few, and there are enough, it moves soon."""
        if self._writer is not None and self._writer.should_move:
            self._moved()

    async def flush(self) -> None:
        """Write the state; returns when everything acknowledged before the call is durable.

        Raises StaleEpoch or LedgerFenced when the topic has another owner, AlreadyClosed, and NotEnoughBookies,
        MetadataUnavailable and the like when it cannot be written now.
        """
        if not self.durable:
            return
        self._check()
        if not self._dirty and self._writing is None:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._start_writing()
        await waiter

    # -- life --------------------------------------------------------------------------------------------------------

    async def create(self, needs: Guard) -> None:
        """Store a new cursor, provided that `needs` holds. Raises StaleEpoch or ConditionFailed when the topic is no
        longer ours, MetadataUnavailable, OutcomeUnknown.

        A stored one that the owner does not know comes from an earlier try, whose success was never reported.
        """
        home = self._home
        self._record = CursorRecord(home.epoch, None, self._state.pack(), self.kind)
        version: int | None = None
        while True:
            try:
                self._version = await put_certain(
                    home.env, home.metadata, self._key, self._record.pack(), version, needs=needs
                )
                return
            except (BadVersion, NoSuchKey):
                found = await home.metadata.get(self._key)
                if found is not None and CursorRecord.unpack(found.value).epoch > home.epoch:
                    raise StaleEpoch(f"cursor {self.name} of {home.topic_path} has another owner now") from None
                version = None if found is None else found.version

    @staticmethod
    async def open(home: CursorHome, name: str, value: bytes, version: int, end: Position) -> "Cursor":
        """Take over a stored cursor under the home's epoch, recovering its ledger if it has one.

        `end` is the highest place of the chain. A mark in a later ledger comes from newer metadata than the chain's. It
        goes back, durably: the chain's next ledgers may have lower ids, and would count as acknowledged.

        Raises StaleEpoch; whatever recovery and reading raise: a cursor that cannot be read is never guessed. One whose
        ledger was deleted after the backup that the metadata was restored from begins again.
        """
        key = metadata_keys.cursor(home.topic_path, name)
        while True:
            record = CursorRecord.unpack(value)
            if record.epoch > home.epoch:
                raise StaleEpoch(f"cursor {name} of {home.topic_path} is owned under epoch {record.epoch}")
            packed, deltas = await cursor_ledger.read_or_begin_again(home, name, record)
            state = CursorState.unpack(packed, home.chain, deltas)
            if ahead := state.go_back_to(end):
                logger.warning("cursor %s of %s starts again at %s", name, home.topic_path, end)
            cursor = Cursor(home, name, state, record.kind, durable=True)
            if ahead or (deltas and state.range_count <= SMALL_STATE_RANGES_MAX):
                packed, deltas = state.pack(), []
            inline = ahead or record.ledger_id is None or (not deltas and len(packed) <= INLINE_STATE_MAX_BYTES)
            stored = CursorRecord(home.epoch, None, packed, record.kind)
            cursor._record = stored if inline else record._replace(epoch=home.epoch)
            try:
                cursor._version = await put_certain(home.env, home.metadata, key, cursor._record.pack(), version)
            except (BadVersion, NoSuchKey):
                again = await home.metadata.get(key)
                if again is None:
                    raise StaleEpoch(f"another owner deleted cursor {name} of {home.topic_path}") from None
                value, version = again
                continue
            if inline and record.ledger_id is not None:
                await cursor._delete_ledger(record.ledger_id)
            return cursor

    async def close(self) -> None:
        """Write what is not written, in the cheapest form to open again, and stop. Raises like `flush`."""
        if self._closed:
            return
        self._closed = True
        self._cancel_timer()
        if not self.durable:
            return
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        self._fail_waiters(AlreadyClosed(f"cursor {self.name} is closed"))
        try:
            if self._ended is None and (self._dirty or self._log is not None):
                await self._write_last()
        finally:
            writer, self._log = self._writer, None
            if writer is not None:
                await writer.abandon()

    async def delete(self) -> None:
        """Delete the cursor. Raises StaleEpoch, MetadataUnavailable, OutcomeUnknown."""
        self._closed = True
        self._cancel_timer()
        if not self.durable:
            return
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        self._fail_waiters(AlreadyClosed(f"cursor {self.name} is deleted"))
        try:
            await self._home.metadata.delete(self._key, self._version)
        except BadVersion:
            raise StaleEpoch(f"cursor {self.name} has another owner now") from None
        except NoSuchKey:
            logger.info("cursor %s of %s was already deleted", self.name, self._home.topic_path)
        if self._writer is not None:
            await self._writer.abandon()
        if self._record.ledger_id is not None:
            await self._delete_ledger(self._record.ledger_id)

    def fence(self, error: MagnetarError) -> None:
        """The topic has another owner: nothing is written from now on."""
        if self._ended is None:
            self._ended = error
            self._cancel_timer()
            self._fail_waiters(error)

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def _writer(self) -> LedgerWriter | None:
        """Of the present cursor ledger, if any was written to."""
        return None if self._log is None else self._log.writer

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended.with_traceback(None)
        if self._closed:
            raise AlreadyClosed(f"cursor {self.name} is closed")

    def _moved(self) -> None:
        self._dirty = True
        if self.durable and self._timer is None and self._writing is None and not self._closed and self._ended is None:
            self._timer = asyncio.get_running_loop().call_later(
                self._home.settings.cursor_flush_interval_s, self._timer_fired
            )

    def _timer_fired(self) -> None:
        self._timer = None
        if self._dirty:
            self._start_writing()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_writing(self) -> None:
        self._cancel_timer()
        if self._writing is None and not self._closed and self._ended is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_rounds(), name=f"cursor-{self.name}")

    async def _write_rounds(self) -> None:
        failed = False
        try:
            while True:
                waiters, self._waiters = self._waiters, []
                try:
                    await self._write()
                except asyncio.CancelledError:
                    self._waiters = waiters + self._waiters
                    raise
                except Exception as error:
                    failed = True
                    self._dirty = True
                    if not isinstance(error, MagnetarError):  # of any kind: no caller may wait forever
                        logger.exception("cursor %s of %s could not be written", self.name, self._home.topic_path)
                        error = MetadataError(f"cursor {self.name} could not be written: {error!r}")
                    self._write_failed(error)
                    _resolve(waiters, error)
                else:
                    _resolve(waiters, None)
                    if not self._dirty:  # nothing moved during the write: it covers those who came meanwhile
                        waiters, self._waiters = self._waiters, []
                        _resolve(waiters, None)
                if not self._waiters or self._ended is not None or self._closed:
                    return
        finally:
            self._writing = None
            if self._ended is not None:
                self._fail_waiters(self._ended)
            elif self._dirty and not self._closed:
                interval_s = self._home.settings.cursor_flush_interval_s
                self._timer = asyncio.get_running_loop().call_later(
                    max(interval_s, RETRY_DELAY_MIN_S) if failed else interval_s, self._timer_fired
                )

    async def _write(self) -> None:
        mark, log = self._state.mark_delete, self._usable_log()
        self._dirty = False
        try:
            changes = self._state.take_changes() if log is not None else None
            if log is not None and changes is not None and log.takes_delta(len(changes)):
                await log.delta(changes)
            else:
                state = await self._packed()
                if log is not None:
                    await log.snapshot(state)
                else:
                    await self._switch_ledger(state)
        except BaseException:
            self._state.lose_changes()
            raise
        self.durable_mark_delete = mark

    async def _packed(self) -> bytes:
        """The whole state as it is now; a large one is packed off the loop."""
        whole = self._state.whole()
        if whole.size <= SMALL_STATE_RANGES_MAX:
            return whole.pack()
        return await self._home.env.offload.run(whole.pack)

    def _usable_log(self) -> CursorLog | None:
        """The present ledger's, if that is to be written on."""
        log, settings = self._log, self._home.settings
        if (
            log is None
            or self._switch_due
            or log.writer.ended is not None
            or log.writer.last_added + 1 >= settings.cursor_ledger_entries_max
            or log.writer.length >= CURSOR_LEDGER_SIZE_MAX_BYTES
            or log.writer.should_move
        ):
            return None
        return log

    async def _switch_ledger(self, state: bytes) -> None:
        """A new ledger with this state, then the compare-and-set, then the old one goes."""
        old, old_ledger = self._writer, self._record.ledger_id
        writer = await self._home.ledgers.create()
        log = CursorLog(writer)
        try:
            await log.snapshot(state)
            self._switch_due = True
            await self._put(self._record._replace(ledger_id=writer.ledger_id, state=None), needs=writer.guard)
        except Exception as error:
            await writer.abandon()
            # After an unknown outcome the record may name it: the next owner of the cursor settles it.
            if isinstance(error, MagnetarError) and not isinstance(error, OutcomeUnknown):
                self._switch_due = False
                await self._delete_unused(writer.ledger_id)
            raise
        self._log, self._switch_due = log, False
        if old is not None:
            await old.abandon()
        if old_ledger is not None:
            await self._delete_ledger(old_ledger)

    async def _write_last(self) -> None:
        mark = self._state.mark_delete
        if self._state.range_count <= SMALL_STATE_RANGES_MAX and await self._write_inline():
            self._dirty = False
            self.durable_mark_delete = mark
            return
        if self._dirty:
            await self._write()
        writer, self._log = self._writer, None
        if writer is not None:
            try:
                await writer.close()
            except LedgerFenced:
                raise
            except MagnetarError as error:
                logger.info("the next owner of cursor %s recovers its ledger: %s", self.name, error)

    async def _write_inline(self) -> bool:
        """Put a small state into the record and delete the ledger. Returns whether that was done."""
        state, old_ledger = self._state.pack(), self._record.ledger_id
        if len(state) > INLINE_STATE_MAX_BYTES:
            return False
        try:
            await self._put(self._record._replace(ledger_id=None, state=state), CLOSE_SETTLE_S)
        except StaleEpoch:
            raise
        except MagnetarError as error:
            # Into the ledger then. If the record was replaced all the same, it holds this very state.
            logger.info("the state of cursor %s goes to its ledger, not to its record: %s", self.name, error)
            return False
        if old_ledger is not None:
            await self._delete_ledger(old_ledger)
        return True

    async def _put(
        self, record: CursorRecord, settle_limit_s: float = SETTLE_LIMIT_S, *, needs: Guard | None = None
    ) -> None:
        try:
            self._version = await put_certain(
                self._home.env,
                self._home.metadata,
                self._key,
                record.pack(),
                self._version,
                needs=needs,
                settle_limit_s=settle_limit_s,
            )
        except (BadVersion, NoSuchKey):
            raise StaleEpoch(f"cursor {self.name} of {self._home.topic_path} has another owner now") from None
        self._record = record

    def _write_failed(self, error: MagnetarError) -> None:
        if isinstance(error, StaleEpoch | LedgerFenced):
            self.fence(error)
            if self.on_fenced is not None:
                self.on_fenced(error)
        else:
            logger.warning("cursor %s of %s is written again later: %s", self.name, self._home.topic_path, error)

    def _fail_waiters(self, error: MagnetarError) -> None:
        waiters, self._waiters = self._waiters, []
        _resolve(waiters, error)

    async def _delete_unused(self, ledger_id: int) -> None:
        """A new ledger that was given up. If the record names it after all (it was stored, the answer got lost, and the
        next owner replaced it), the next owner has it.
        """
        try:
            found = await self._home.metadata.get(self._key)
            if found is None or CursorRecord.unpack(found.value).ledger_id != ledger_id:
                await self._delete_ledger(ledger_id)
        except MagnetarError as error:
            logger.warning("ledger %d of a cursor is not deleted: %s", ledger_id, error)

    async def _delete_ledger(self, ledger_id: int) -> None:
        """A ledger that no record refers to. Failing costs space only."""
        try:
            await self._home.ledgers.delete(ledger_id)
        except MagnetarError as error:
            logger.warning("ledger %d of a cursor could not be deleted: %s", ledger_id, error)


def _resolve(waiters: list[asyncio.Future[None]], error: MagnetarError | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
