"""How the owner of a topic trims it: which ledgers may go, when the owner looks for them, and what becomes of them.

A ledger leaves the record before it is deleted. What cannot be deleted yet stays in the record as "deleting", so that a
later trim or the next owner finishes it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from ...protocol.errors import MagnetarError, StaleEpoch
from ...protocol.message_id import Position
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from .chain import LedgerInfo
from .chain_reader import ChainReads
from .chain_writer import ChainWriter
from .cursor import Cursor
from .cursor_record import CursorHome
from .life import Life, ManagedLedgerState
from .pins import Pinned, Pins
from .record import ManagedLedgerRecord, OwnedRecord, holding

logger = logging.getLogger(__name__)

OPEN_SPREAD_S = 10.0
"""A broker that takes over a thousand topics trims them within this time, not all at once while they are loaded."""
RETRY_INITIAL_S = 5.0
RETRY_MAX_S = 600.0
PIN_LOOK_MIN_S = 0.1
PIN_LOOK_MAX_S = 60.0


def trimmable(
    infos: Sequence[LedgerInfo],
    durable_marks: Iterable[Position],
    pinned: Collection[int],
    current_ledger_id: int | None,
) -> list[int]:
    """Ids of the ledgers to delete, in the order of the chain. `durable_marks`: what each durable cursor has stored.

    Oldest first, stopping at the first one to keep. These ledgers are kept: the current one, those that are not closed,
    pinned ones, and those with an entry that a durable cursor has not durably passed. Without any durable cursor
    nothing is kept for anybody. Pure.
    """
    marks = list(durable_marks)
    slowest = min(marks) if marks else None
    gone: list[int] = []
    for info in infos:
        if info.ledger_id == current_ledger_id or not info.closed or info.ledger_id in pinned:
            break
        if slowest is not None and (info.ledger_id, info.entries - 1) > slowest:
            break
        gone.append(info.ledger_id)
    return gone


class TrimTimer:
    """When a topic is trimmed by itself: soon after it was opened, and after a trim that failed or met pins.

    Nothing is periodic: the timer runs only while ledgers wait that could not be trimmed or deleted yet. Of several
    reasons the earliest moment counts. `trim` is called on the loop; `close` ends it.
    """

    def __init__(self, env: Environment, trim: Callable[[], None]) -> None:
        self._env = env
        self._trim = trim
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

    def after_open(self) -> None:
        """The topic was opened, and something can go."""
        self.within_s(self._env.random.uniform(0, OPEN_SPREAD_S))

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._trim()


class Trimmer:
    """Trims one managed ledger, when it is asked to and by itself. `cursors` are its durable ones, by name."""

    def __init__(
        self,
        home: CursorHome,
        owned: OwnedRecord,
        life: Life,
        pins: Pins,
        writer: ChainWriter,
        reads: ChainReads,
        cursors: Mapping[str, Cursor],
    ) -> None:
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
        self._timer = TrimTimer(home.env, self._soon)
        self._tasks = Tasks()

    def opened(self) -> None:
        """The topic was opened: what a previous owner left to trim or to delete goes soon."""
        if self._owned.record.deleting or self._would_trim(in_memory=True):
            self._timer.after_open()

    def ended(self) -> None:
        """The topic has another owner, or closes: nothing is trimmed by itself from now on."""
        self._timer.close()

    async def close(self) -> None:
        """End what is under way."""
        self._timer.close()
        await self._tasks.close()

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
        marks = [cursor.mark_delete_position for cursor in self._cursors.values()]
        if not in_memory:  # whichever is lower: a cursor may be on its way back
            marks += [cursor.durable_mark_delete for cursor in self._cursors.values()]
        return trimmable(self._chain.infos, marks, pinned, self._writer.current_ledger_id)

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
