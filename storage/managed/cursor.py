"""A subscription's place in a topic, durable or not: what is acknowledged, and when and where that is written.

What is acknowledged is a `CursorState`. A `CursorWriter` decides when it is written, and who waits for that. A
`CursorStorage` has the metadata record and the cursor ledger of a durable cursor.

Guarantees: a state for which `flush` returned survives the broker. `durable_mark_delete` is never ahead of what is
stored. Once another owner has opened the topic, no write succeeds here, because the ledger is fenced and the record has
a higher epoch. That ends the cursor with `on_fenced`.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from ...protocol.errors import AlreadyClosed, LedgerFenced, MagnetarError, MetadataError, StaleEpoch
from ...protocol.message_id import Position
from ...runtime.transitions import check_transition
from ..metadata.store import Guard
from .acknowledged import BatchIndexes, OpenMessages
from .cursor_state import CursorState
from .cursor_storage import CursorHome, CursorKind, CursorStorage, SideLedgers

logger = logging.getLogger(__name__)

RETRY_DELAY_MIN_S = 1.0


class CursorWriterState(enum.Enum):
    """See `WRITER_TRANSITIONS`."""

    IDLE = enum.auto()
    DUE = enum.auto()
    WRITING = enum.auto()
    FENCED = enum.auto()
    CLOSED = enum.auto()


_S = CursorWriterState
_END = (_S.FENCED, _S.CLOSED)
WRITER_TRANSITIONS: Mapping[CursorWriterState, Collection[CursorWriterState]] = {
    _S.IDLE: (_S.DUE, *_END),  # the cursor moves
    _S.DUE: (_S.WRITING, *_END),  # the interval is over, or somebody calls `flush`
    # The last write has ended, and nobody waits: all is stored, or the cursor has moved meanwhile or the write failed.
    _S.WRITING: (_S.IDLE, _S.DUE, *_END),
    _S.FENCED: (_S.CLOSED,),  # another owner has the topic; `close` or `delete`
    _S.CLOSED: (),  # nothing moves it on; `error` still takes a later fence
}


class CursorWriter:
    """When the state of a cursor is written, which callers wait for it, and when writing has ended.

    Writing: at most once in `cursor_flush_interval_s` by itself; at once for `flush`, whose concurrent callers share
    one write. A write that fails is repeated with the next, as a whole; callers of `flush` get its error.
    `WRITER_TRANSITIONS` has the states. `CursorStorage` writes, and says that another owner has the cursor; that ends
    the writing with `on_fenced`.

    Invariants: a writer that is IDLE has nothing to write; one that is DUE has a timer and something to write. While it
    is WRITING, `dirty` says that the state moved since the write began. Afterwards it says that the last state is not
    stored.

    Without a `storage` the cursor lives in memory only, and nothing is written.

    `error` is what fenced it, and what callers get from then on.
    """

    def __init__(
        self,
        home: CursorHome,
        name: str,
        cursor_state: CursorState,
        storage: CursorStorage | None,
    ) -> None:
        self.state = CursorWriterState.IDLE
        self.durable_mark_delete: Position = cursor_state.mark_delete
        self.cursor_state = cursor_state
        self.storage = storage
        self.dirty = False
        self.error: MagnetarError | None = None
        self._home = home
        self._name = name
        self.on_fenced: Callable[[MagnetarError], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._rounds: asyncio.Task[None] | None = None

    def check(self) -> None:
        """Raises what ended the writing."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        if self.state is CursorWriterState.CLOSED:
            raise AlreadyClosed(f"cursor {self._name} is closed")

    def moved(self) -> None:
        """The state has changed: it is written when the interval is over."""
        self.dirty = True
        if self.storage is not None and self.state is CursorWriterState.IDLE:
            self._write_in(self._home.settings.cursor_flush_interval_s)

    async def flush(self) -> None:
        """See `Cursor.flush`."""
        if self.storage is None:
            return
        self.check()
        if not self.dirty and self.state is not CursorWriterState.WRITING:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if self.state is CursorWriterState.DUE:
            self._start(self.storage)
        await waiter

    def fence(self, error: MagnetarError) -> None:
        """The topic has another owner: nothing is written from now on."""
        if self.error is None:
            self.error = error
            if self.state is not CursorWriterState.CLOSED:
                self._become(CursorWriterState.FENCED)
            self._cancel_timer()
            self._fail_waiters(error)

    def fenced(self, error: MagnetarError) -> None:
        """A write has found out that the topic has another owner."""
        self.fence(error)
        if self.on_fenced is not None:
            self.on_fenced(error)

    async def close(self, idle_since_ms: int = 0) -> None:
        """Write what is not written, in the cheapest form to open again, and stop. Raises like `flush`."""
        if self.state is CursorWriterState.CLOSED:
            return
        await self._end(AlreadyClosed(f"cursor {self._name} is closed"))
        if self.storage is None:
            return
        try:
            self.storage.idle_since_ms = idle_since_ms
            has_news = self.dirty or self.storage.ledger_writer is not None or idle_since_ms
            if self.error is None and has_news:
                await self._write_last(self.storage)
        finally:
            await self.storage.end()

    async def delete(self) -> None:
        """Stop, and delete what is stored. Raises StaleEpoch, MetadataUnavailable, OutcomeUnknown."""
        await self._end(AlreadyClosed(f"cursor {self._name} is deleted"))
        if self.storage is not None:
            await self.storage.delete()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _become(self, state: CursorWriterState) -> None:
        check_transition(WRITER_TRANSITIONS, self, self.state, state)
        self.state = state

    def __str__(self) -> str:
        return f"the writer of cursor {self._name}"

    async def _end(self, error: AlreadyClosed) -> None:
        """Begin no more writes; returns when none is under way."""
        if self.state is not CursorWriterState.CLOSED:
            self._become(CursorWriterState.CLOSED)
        self._cancel_timer()
        if self._rounds is not None:
            await asyncio.gather(self._rounds, return_exceptions=True)
        self._fail_waiters(error)

    def _write_in(self, delay_s: float) -> None:
        self._become(CursorWriterState.DUE)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if self.storage is not None:
            self._start(self.storage)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start(self, storage: CursorStorage) -> None:
        self._cancel_timer()
        self._become(CursorWriterState.WRITING)
        rounds = self._write_rounds(storage)
        self._rounds = asyncio.get_running_loop().create_task(rounds, name=f"cursor-{self._name}")

    async def _write_rounds(self, storage: CursorStorage) -> None:
        failed = False
        try:
            while True:
                waiters, self._waiters = self._waiters, []
                try:
                    await self._write(storage)
                except asyncio.CancelledError:
                    self._waiters = waiters + self._waiters
                    raise
                except Exception as error:
                    failed = True
                    self.dirty = True
                    if not isinstance(error, MagnetarError):  # of any kind: no caller may wait forever
                        logger.exception("cursor %s of %s could not be written", self._name, self._home.topic_path)
                        error = MetadataError(f"cursor {self._name} could not be written: {error!r}")
                    self._write_failed(error)
                    _resolve(waiters, error)
                else:
                    _resolve(waiters, None)
                    if not self.dirty:  # nothing moved during the write: it covers those who came meanwhile
                        waiters, self._waiters = self._waiters, []
                        _resolve(waiters, None)
                if not self._waiters or self.state is not CursorWriterState.WRITING:
                    return
        finally:
            self._rounds = None
            if self.error is not None:
                self._fail_waiters(self.error)
            elif self.state is CursorWriterState.WRITING:
                if self.dirty:
                    interval_s = self._home.settings.cursor_flush_interval_s
                    self._write_in(max(interval_s, RETRY_DELAY_MIN_S) if failed else interval_s)
                else:
                    self._become(CursorWriterState.IDLE)

    async def _write(self, storage: CursorStorage) -> None:
        mark = self.cursor_state.mark_delete
        self.dirty = False
        await storage.write(self.cursor_state)
        self.durable_mark_delete = mark

    async def _write_last(self, storage: CursorStorage) -> None:
        mark = self.cursor_state.mark_delete
        if await storage.write_inline(self.cursor_state):
            self.dirty = False
            self.durable_mark_delete = mark
            return
        if self.dirty:
            await self._write(storage)
        await storage.close_ledger()

    def _write_failed(self, error: MagnetarError) -> None:
        if isinstance(error, StaleEpoch | LedgerFenced):
            self.fenced(error)
        else:
            logger.warning("cursor %s of %s is written again later: %s", self._name, self._home.topic_path, error)

    def _fail_waiters(self, error: MagnetarError) -> None:
        waiters, self._waiters = self._waiters, []
        _resolve(waiters, error)


def _resolve(waiters: list[asyncio.Future[None]], error: MagnetarError | None) -> None:
    for waiter in waiters:
        if waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)


class Cursor:
    """See the module. Made by `ManagedLedger`. All but `flush`, `reset`, `close` and `delete` happen at once.

    A cursor without a `storage` lives in memory only.
    """

    def __init__(self, home: CursorHome, state: CursorState, storage: CursorStorage | None = None) -> None:
        self.name = "" if storage is None else storage.name
        self.kind = CursorKind.SUBSCRIPTION if storage is None else storage.kind
        self.durable = storage is not None
        self.batches: BatchIndexes = state.batches
        """What is acknowledged of single batches; to look at."""
        self.properties: Mapping[str, str] = state.properties
        self._home = home
        self._state = state
        self.idle_since_ms = 0 if storage is None else storage.idle_since_ms
        """Since when its subscription had no consumer when the topic was closed; 0 if that is not known."""
        self.idle_at_close_ms = 0
        """What `close` is to store for the next owner. It is not stored if the state does not fit into the record."""
        self._writer = CursorWriter(home, self.name, state, storage)
        self.side = None if storage is None else SideLedgers(home, storage, self._writer.fenced)
        """What its owner stores beside the state; None for a cursor in memory. `reset` removes it."""
        self._on_passed: Callable[[], None] | None = None

    # -- where it is -----------------------------------------------------------------------------------------------

    @property
    def view(self) -> CursorState:
        """What dispatch asks for each entry; to look at."""
        return self._state

    @property
    def mark_delete_position(self) -> Position:
        """Everything up to here is acknowledged."""
        return self._state.mark_delete

    @property
    def durable_mark_delete(self) -> Position:
        """The mark-delete position of the state that was written last."""
        return self._writer.durable_mark_delete

    @property
    def first_unacknowledged(self) -> Position:
        return self._state.first_unacknowledged

    @property
    def backlog_entries(self) -> int:
        return self._state.backlog_entries()

    @property
    def backlog_bytes(self) -> int:
        """Bytes behind the mark-delete position, about."""
        return self._home.chain.bytes_after(self._state.mark_delete)

    def is_acknowledged(self, position: Position) -> bool:
        return self._state.is_acknowledged(position)

    def unacknowledged_run(self, position: Position) -> int:
        """See `CursorState`."""
        return self._state.unacknowledged_run(position)

    def next_unacknowledged(self, position: Position) -> Position:
        """The first place at or behind `position` that is not acknowledged."""
        return self._state.next_unacknowledged(position)

    def ranges_before(self, position: Position) -> int:
        """How many acknowledged ranges beyond the mark begin in front of `position`, partly acknowledged batches
        included."""
        return self._state.ranges_before(position)

    @property
    def acknowledged_ranges(self) -> int:
        """Ranges acknowledged beyond the mark-delete position."""
        return self._state.range_count

    def details(self, ranges_max: int) -> tuple[int, list[tuple[int, int, int]]]:
        """The ledger it is written to, −1 for none, and the first of these ranges: ledger, first and last entry."""
        storage = self._writer.storage
        writer = None if storage is None else storage.ledger_writer
        ranges = [(ledger_id, first, last) for ledger_id, first, last in islice(self._state.ranges(), ranges_max)]
        return -1 if writer is None else writer.ledger_id, ranges

    # -- moving ------------------------------------------------------------------------------------------------------

    def acknowledge(self, positions: Iterable[Position]) -> None:
        """Acknowledge entries one by one; what does not exist is ignored."""
        if self._state.acknowledge(positions):
            self._writer.moved()

    def acknowledge_batch_index(self, position: Position, ack_set: Sequence[int], batch_size: int) -> None:
        """Acknowledge single messages of a batch: those whose bit is clear in `ack_set`.

        Raises NotAllowedError beyond the bounds of `BatchIndexes`.
        """
        if self._state.acknowledge_batch_index(position, ack_set, batch_size):
            self._writer.moved()

    def acknowledge_cumulative(self, position: Position) -> None:
        """Acknowledge everything up to and including an entry."""
        if self._state.acknowledge_cumulative(position):
            self._writer.moved()
            self._passed()

    def take_snapshot(self, position: Position, properties: Mapping[str, str]) -> None:
        """Acknowledge everything up to and including an entry, with properties that replace all others.

        What is stored has both or neither.
        """
        self._state.take_snapshot(position, properties)
        self._writer.moved()

    async def reset(self, position: Position, part: OpenMessages | None = None) -> None:
        """Go to a place: `position` is the next to deliver, and `part` says which messages of the batch there. Durable
        when this returns; raises like `flush`, and NotAllowedError beyond the bounds of `BatchIndexes`."""
        self._writer.check()
        if self.side is not None:
            await self.side.clear()
        self._state.reset(min(position, self._home.chain.next_position(self._home.chain.last_confirmed)), part)
        self._writer.moved()
        async with self._home.record_lock:  # what a trim that is being stored takes is gone; from now on all else stays
            self._state.skip_missing()
        await self.flush()

    def ledgers_trimmed(self) -> None:
        """Ledgers left the chain: what is known of them goes."""
        if self._state.skip_missing():
            self._writer.moved()
        self._passed()

    def when_passed(self, listener: Callable[[], None] | None) -> None:
        """`listener` is called when entries need no delivery any longer which were not acknowledged one by one: all in
        front of `first_unacknowledged`. It is set later because the managed ledger makes cursors before there is a
        subscription. None ends it."""
        self._on_passed = listener

    def _passed(self) -> None:
        if self._on_passed is not None:
            self._on_passed()

    def bookies_changed(self) -> None:
        """A bookie is lost or came back: when the state lies on too few, and there are enough, it moves soon."""
        storage = self._writer.storage
        if storage is not None and (writer := storage.ledger_writer) is not None and writer.should_move:
            self._writer.moved()

    async def flush(self) -> None:
        """Write the state; returns when everything acknowledged before the call is durable.

        Raises StaleEpoch or LedgerFenced when the topic has another owner, AlreadyClosed, and NotEnoughBookies,
        MetadataUnavailable and the like when it cannot be written now.
        """
        await self._writer.flush()

    # -- life --------------------------------------------------------------------------------------------------------

    @staticmethod
    async def create(
        home: CursorHome, name: str, state: CursorState, kind: CursorKind, needs: Guard, also: Guard | None = None
    ) -> "Cursor":
        """Store a new cursor, provided that `needs` and `also` hold. Raises StaleEpoch, ConditionFailed,
        MetadataUnavailable, OutcomeUnknown.
        """
        storage = CursorStorage(home, name, kind)
        await storage.create(state, needs, also)
        return Cursor(home, state, storage)

    @staticmethod
    async def open(home: CursorHome, name: str, value: bytes, version: int, end: Position) -> "Cursor":
        """Take over a stored cursor under the home's epoch, recovering its ledger if it has one.

        `end` is the highest place of the chain. A mark in a later ledger comes from newer metadata than the chain's. It
        goes back, durably: the chain's next ledgers may have lower ids, and would count as acknowledged. The cursor of
        deduplication begins again, so that its sequence ids are those of entries that exist.

        Raises StaleEpoch; whatever recovery and reading raise: a cursor that cannot be read is never guessed. One whose
        ledger was deleted after the backup that the metadata was restored from begins again.
        """
        storage, state = await CursorStorage.take_over(home, name, value, version, end)
        return Cursor(home, state, storage)

    async def close(self) -> None:
        """Write what is not written, in the cheapest form to open again, and stop. Raises like `flush`."""
        await self._writer.close(self.idle_at_close_ms)

    async def delete(self) -> None:
        """Delete the cursor. Raises StaleEpoch, MetadataUnavailable, OutcomeUnknown."""
        await self._writer.delete()

    def fence(self, error: MagnetarError) -> None:
        """The topic has another owner: nothing is written from now on."""
        self._writer.fence(error)

    def when_fenced(self, listener: Callable[[MagnetarError], None]) -> None:
        """`listener` is called once a write has found out that the topic has another owner."""
        self._writer.on_fenced = listener
