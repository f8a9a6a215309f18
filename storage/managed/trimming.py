"""How the owner of a topic trims it: which ledgers may go, when the owner looks for them, and what becomes of them.

A ledger leaves the record before it is deleted. What cannot be deleted yet stays in the record as "deleting", so that a
later trim or the next owner finishes it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...protocol.errors import MagnetarError, StaleEpoch
from ...protocol.message_id import Position
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from .chain import LedgerInfo
from .chain_reader import ChainReads
from .chain_writer import ChainWriter
from .cursor import Cursor
from .cursor_storage import CursorHome
from .life import Life, ManagedLedgerState
from .pins import Pinned, Pins
from .record import ManagedLedgerRecord, OwnedRecord, holding

logger = logging.getLogger(__name__)

CHANGE_SPREAD_S = 1.0
"""A change of the policies of a namespace may concern a thousand topics: they are trimmed within this time."""
OPEN_SPREAD_S = 10.0
"""A broker that takes over a thousand topics trims them within this time, not all at once while they are loaded."""
RETRY_INITIAL_S = 5.0
RETRY_MAX_S = 600.0
PIN_LOOK_MIN_S = 0.1
LOOK_MIN_S = 0.01
"""Clocks may differ a little: the time of retention is over when the clock of the trim says so."""
PIN_LOOK_MAX_S = 60.0
UNBOUNDED = -1


class Retention(NamedTuple):
    """What a topic keeps although every durable cursor has passed it. Pure.

    As in Pulsar, a closed ledger is kept until its time is over, or until the ledgers behind it have the size of the
    retention. Its time begins when it was closed. So a message stays at least that long, unless the size is exceeded.
    A negative time is never over, and a negative size is never reached. With 0 for both nothing is kept.
    """

    time_ms: int = 0
    size_bytes: int = 0

    @staticmethod
    def of(minutes: float, size_mb: int) -> "Retention":
        """In the units of Pulsar's policy."""
        return Retention(
            round(minutes * 60_000) if minutes >= 0 else UNBOUNDED, size_mb << 20 if size_mb >= 0 else UNBOUNDED
        )

    def covers(self, info: LedgerInfo, size_behind_bytes: int, now_ms: int) -> bool:
        """Whether a closed ledger is kept. `size_behind_bytes` is the size of the ledgers behind it."""
        if 0 <= self.size_bytes <= size_behind_bytes:
            return False
        return self.time_ms < 0 or now_ms - _closed_ms(info) <= self.time_ms

    def ends_in_ms(self, info: LedgerInfo, now_ms: int) -> int | None:
        """How long a covered ledger is covered yet, unless the topic grows; None for ever."""
        return None if self.time_ms < 0 else max(_closed_ms(info) + self.time_ms + 1 - now_ms, 0)


NO_RETENTION = Retention()


def _nothing() -> None:
    pass


def _closed_ms(info: LedgerInfo) -> int:
    return max(info.closed_ms, info.created_ms)


class Needs(NamedTuple):
    """What keeps ledgers. `marks`: what the durable cursors have passed. Without any, nothing is kept for anybody."""

    marks: Sequence[Position]
    pinned: Collection[int]
    current_ledger_id: int | None
    retention: Retention = NO_RETENTION
    now_ms: int = 0


class Trimmable(NamedTuple):
    """Ids of the ledgers to delete, in the order of the chain, and when the next one may go by time: None if it is
    kept by more than the time of its retention."""

    gone: list[int]
    next_in_ms: int | None


def trimmable(infos: Sequence[LedgerInfo], needs: Needs) -> Trimmable:
    """Which ledgers may go now. Pure.

    Oldest first, stopping at the first one to keep. These ledgers are kept: the current one, those that are not closed,
    pinned ones, those with an entry that a durable cursor has not passed, and those that the retention covers.
    """
    slowest = min(needs.marks) if needs.marks else None
    size_behind = sum(info.size_bytes for info in infos)
    gone: list[int] = []
    for info in infos:
        if info.ledger_id == needs.current_ledger_id or not info.closed or info.ledger_id in needs.pinned:
            break
        if slowest is not None and (info.ledger_id, info.entries - 1) > slowest:
            break
        size_behind -= info.size_bytes
        if needs.retention.covers(info, size_behind, needs.now_ms):
            return Trimmable(gone, needs.retention.ends_in_ms(info, needs.now_ms))
        gone.append(info.ledger_id)
    return Trimmable(gone, None)


class TrimTimer:
    """When a topic is trimmed by itself: soon after it was opened, after a trim that failed or met pins, and when the
    time of retention of its oldest ledger is over.

    Nothing is periodic: the timer runs only while ledgers wait that may go, or could not be deleted yet. Of several
    reasons the earliest moment counts. `trim` is called on the loop; `close` ends it.
    """

    def __init__(self, env: Environment, trim: Callable[[], None]) -> None:
        self._env = env
        self._trim: Callable[[], None] | None = trim
        self._backoff: Backoff | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def within_s(self, delay_s: float) -> None:
        """Trim so much later at the latest."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        if self._closed or (self._timer is not None and self._timer.when() <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self._fire)

    @property
    def is_set(self) -> bool:
        return self._timer is not None

    def after_open(self) -> None:
        """The topic was opened, and something can go."""
        self.within_s(self._env.random.uniform(0, OPEN_SPREAD_S))

    def after_change(self) -> None:
        """Less is to be kept."""
        self.within_s(self._env.random.uniform(0, CHANGE_SPREAD_S))

    def after_failure(self) -> None:
        """Something could not be trimmed or deleted: again, later each time."""
        if self._backoff is None:
            self._backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        self.within_s(self._backoff.next_delay_s())

    def succeeded(self) -> None:
        """The next failure is the first one again."""
        self._backoff = None

    def close(self) -> None:
        self._closed = True
        self._trim = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        if self._trim is not None:
            self._trim()


class Trimmer:
    """Trims one managed ledger, when it is asked to and by itself. `cursors` are its durable ones, by name.
    `on_trimmed` are called when ledgers have left the chain.

    Nothing is trimmed as long as the retention is not known (None).
    """

    def __init__(
        self,
        home: CursorHome,
        owned: OwnedRecord,
        life: Life,
        pins: Pins,
        writer: ChainWriter,
        reads: ChainReads,
        cursors: Mapping[str, Cursor],
        on_trimmed: Sequence[Callable[[], None]],
    ) -> None:
        self._retention: Retention | None = None
        self._home = home
        self._chain = home.chain
        self._record_lock = home.record_lock
        self._owned = owned
        owned.on_adopted = self._adopted
        self._life = life
        self._pins = pins
        self._writer = writer
        self._reads = reads
        self._cursors = cursors
        self._on_trimmed = on_trimmed
        self._timer = TrimTimer(home.env, self._soon)
        self._tasks = Tasks()

    def opened(self, retention: Retention | None) -> None:
        """The topic was opened: what a previous owner left to trim or to delete goes soon."""
        self._retention = retention
        if self._owned.record.deleting or self._would_trim(in_memory=True):
            self._timer.after_open()

    def use_retention(self, retention: Retention) -> None:
        """This is to be kept from now on."""
        if retention != self._retention:
            is_change = self._retention is not None
            self._retention = retention
            if self._would_trim(in_memory=True):
                if is_change:
                    self._timer.after_change()
                else:
                    self._timer.after_open()

    def ended(self) -> None:
        """The topic has another owner, or closes: nothing is trimmed by itself from now on."""
        self._timer.close()

    async def close(self) -> None:
        """End what is under way."""
        self._timer.close()
        await self._tasks.close()

    async def trim_last(self) -> None:
        """The ledger that was written is closed, and the cursors are not: trim what may go now. Raises what trimming
        raises; the next owner then trims."""
        if self._retention is not None:
            await self._trim()

    def let_go(self) -> None:
        """The managed ledger is closed: it is freed without the garbage collector."""
        self._owned.on_adopted = _nothing

    async def trim(self) -> list[int]:
        """See `ManagedLedger.trim`."""
        self._life.check()
        try:
            gone = await self._trim()
        except MagnetarError:
            self._timer.after_failure()
            raise
        if not self._owned.record.deleting:
            self._timer.succeeded()
        return gone

    @property
    def has_duties(self) -> bool:
        """Whether something is to be trimmed or deleted later, also if the topic stays as it is."""
        if self._retention is None or self._owned.record.deleting or self._timer.is_set or len(self._tasks):
            return True
        return self._retention.time_ms > 0 and any(info.entries for info in self._chain.infos)

    async def is_pinned(self) -> bool:
        """Whether a planned read keeps ledgers. Raises StaleEpoch, MetadataUnavailable."""
        self._life.check()
        async with holding(self._owned, self._record_lock):
            return bool((await self._pins.pinned()).ledger_ids)

    def look(self) -> None:
        """Something may be free now: a ledger was closed, or a pin is gone."""
        if self._owned.record.deleting or self._would_trim(in_memory=True):
            self._soon()

    async def _trim(self) -> list[int]:
        if not self._would_trim(in_memory=True):
            await self.finish_deleting()
            return []
        await asyncio.gather(
            *(
                cursor.flush()
                for cursor in self._cursors.values()
                if cursor.durable_mark_delete < cursor.mark_delete_position
            )
        )
        async with holding(self._owned, self._record_lock):
            pinned = await self._pins.pinned()
            gone = self._would_trim(in_memory=False, pinned=pinned.ledger_ids)
            if len(self._would_trim(in_memory=False)) > len(gone):
                self._look_when_unpinned(pinned)
            if gone:
                await self._owned.change(lambda record: self._without(record, gone))
                self._forget(gone)
        if gone:
            await self._delete_all_but(pinned.ledger_ids)
        return gone

    def _would_trim(self, *, in_memory: bool, pinned: frozenset[int] = frozenset()) -> list[int]:
        """What may go now. Sets the timer for the next ledger that may go by time."""
        if self._retention is None:
            return []
        marks = [cursor.mark_delete_position for cursor in self._cursors.values()]
        if not in_memory:  # whichever is lower: a cursor may be on its way back
            marks += [cursor.durable_mark_delete for cursor in self._cursors.values()]
        now_ms = self._home.env.clock.now_ms()
        found = trimmable(
            self._chain.infos, Needs(marks, pinned, self._writer.current_ledger_id, self._retention, now_ms)
        )
        if found.next_in_ms is not None:
            self._timer.within_s(max(found.next_in_ms / 1000, LOOK_MIN_S))
        return found.gone

    def _without(self, record: ManagedLedgerRecord, gone: list[int]) -> ManagedLedgerRecord:
        kept = tuple(info for info in self._chain.as_known(record.ledgers) if info.ledger_id not in gone)
        return replace(record, ledgers=kept, deleting=tuple(dict.fromkeys((*record.deleting, *gone))))

    async def finish_deleting(self) -> None:
        """Delete what the record says is to be deleted, except what a bulk read has pinned. That may be a compacted
        ledger that was replaced while it is read. What fails is left to the next trim or owner.
        """
        if not self._owned.record.deleting:
            return
        try:
            async with holding(self._owned, self._record_lock):
                pinned = await self._pins.pinned()
        except StaleEpoch as error:
            self._writer.fence(error)
            return
        except MagnetarError as error:
            logger.info("the pins of %s could not be read; the next trim deletes: %s", self._owned.name, error)
            self._timer.after_failure()
            return
        if not pinned.ledger_ids.isdisjoint(self._owned.record.deleting):
            self._look_when_unpinned(pinned)
        await self._delete_all_but(pinned.ledger_ids)

    def _look_when_unpinned(self, pinned: Pinned) -> None:
        """Pins may be prolonged, or removed by others than us: look again, but not often."""
        if pinned.ends_in_s is not None:
            self._timer.within_s(min(max(pinned.ends_in_s, PIN_LOOK_MIN_S), PIN_LOOK_MAX_S))

    async def _delete_all_but(self, pinned: frozenset[int]) -> None:
        """A ledger that is to be deleted gets no new pin. So the pins may be those of a moment ago."""
        deleting = [one for one in self._owned.record.deleting if one not in pinned]
        if not deleting:
            return
        try:
            for ledger_id in deleting:
                await self._home.ledgers.delete(ledger_id)
            async with holding(self._owned, self._record_lock):
                await self._owned.change(
                    lambda record: replace(
                        record,
                        ledgers=self._chain.as_known(record.ledgers),
                        deleting=tuple(one for one in record.deleting if one not in deleting),
                    )
                )
        except StaleEpoch as error:
            self._writer.fence(error)
        except MagnetarError as error:
            logger.info(
                "%s: ledgers %s could not be deleted and are tried again: %s", self._owned.name, deleting, error
            )
            self._timer.after_failure()

    def _soon(self) -> None:
        if self._life.state is ManagedLedgerState.OPEN:
            self._tasks.spawn(self._trim_quietly(), f"trim {self._owned.name}")

    async def _trim_quietly(self) -> None:
        try:
            await self.trim()
        except MagnetarError as error:
            logger.info("%s could not be trimmed and is tried again: %s", self._owned.name, error)

    def _adopted(self) -> None:
        """A write of ours that was in doubt had happened: what it took from the chain is gone."""
        named = {info.ledger_id for info in self._owned.record.ledgers}
        gone = [info.ledger_id for info in self._chain.infos if info.ledger_id not in named]
        if gone:
            self._forget(gone)

    def _forget(self, gone: list[int]) -> None:
        self._chain.remove(gone)
        self._reads.forget(gone)
        for cursor in self._cursors.values():
            cursor.ledgers_trimmed()
        for listener in list(self._on_trimmed):
            listener()
