"""When the state of a cursor is written, which callers wait for it, and when writing has ended.

Writing: at most once in `cursor_flush_interval_s` by itself; at once for `flush`, whose concurrent callers share one
write. A write that fails is repeated with the next, as a whole; callers of `flush` get its error. `TRANSITIONS` has the
states. `CursorStorage` writes, and says that another owner has the cursor; that ends the writing with `on_fenced`.

Invariants: a writer that is IDLE has nothing to write; one that is DUE has a timer and something to write. While it is
WRITING, `dirty` says that the state moved since the write began. Afterwards it says that the last state is not stored.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Mapping

from ...protocol.errors import AlreadyClosed, LedgerFenced, MagnetarError, MetadataError, StaleEpoch
from ...protocol.message_id import Position
from ...runtime.transitions import check_transition
from .cursor_record import CursorHome
from .cursor_state import CursorState
from .cursor_storage import CursorStorage

logger = logging.getLogger(__name__)

RETRY_DELAY_MIN_S = 1.0


class CursorWriterState(enum.Enum):
    """See `TRANSITIONS`."""

    IDLE = enum.auto()
    DUE = enum.auto()
    WRITING = enum.auto()
    FENCED = enum.auto()
    CLOSED = enum.auto()


_S = CursorWriterState
_END = (_S.FENCED, _S.CLOSED)
TRANSITIONS: Mapping[CursorWriterState, Collection[CursorWriterState]] = {
    _S.IDLE: (_S.DUE, *_END),  # the cursor moves
    _S.DUE: (_S.WRITING, *_END),  # the interval is over, or somebody calls `flush`
    # The last write has ended, and nobody waits: all is stored, or the cursor has moved meanwhile or the write failed.
    _S.WRITING: (_S.IDLE, _S.DUE, *_END),
    _S.FENCED: (_S.CLOSED,),  # another owner has the topic; `close` or `delete`
    _S.CLOSED: (),  # nothing moves it on; `error` still takes a later fence
}


class CursorWriter:
    """See the module. Without a `storage` the cursor lives in memory only, and nothing is written.

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
        check_transition(TRANSITIONS, f"the writer of cursor {self._name}", self.state, state)
        self.state = state

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
