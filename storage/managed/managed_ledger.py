"""A topic's storage: a chain of ledgers with one writer, durable and other cursors, trimming, pins.

Opening, under the epoch that the coordinator granted:

1. read the record (a later epoch in it: StaleEpoch) and the metadata of all ledgers; a missing one fails the load;
2. recover every ledger that is not CLOSED, so that the previous owner can add nothing more;
3. write the own epoch by compare-and-set; if the record changed meanwhile begin again. From here on every write of the
   previous owner to the record fails;
4. list the cursors and take each over, with a compare-and-set of its own and recovery of its ledger.

`life.TRANSITIONS` has the states. A publish failure is not a state here: what was pending got the error, and the next
append first settles the failed ledger (see `chain_writer`).

Guarantees: acknowledged entries are readable, in order of append, until every durable cursor has durably passed their
ledger and no pin holds it. The record never names a deleted ledger. A ledger leaves the record before it is deleted,
and the next owner repeats an unfinished deletion.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal, TypeVar

from ...protocol.errors import (
    AlreadyClosed,
    ConditionFailed,
    MagnetarError,
    NotAllowedError,
    StaleEpoch,
    SubscriptionNotFound,
)
from ...protocol.message_id import EARLIEST_POSITION, Position
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import together
from ..ledger.ensemble import Copies
from ..ledger.entry_cache import EntryCache
from ..ledger.ledgers import Ledgers
from ..ledger.writer import AddCallback
from ..ledger.writer_state import PendingEntry
from ..metadata import keys as metadata_keys
from ..metadata.store import Guard, MetadataStore, list_all
from . import publish_times
from .chain import LedgerChain, LedgerInfo, ledgers_before
from .chain_reader import ChainReads
from .chain_writer import ChainWriter
from .compacted import CompactedStorage
from .cursor import Cursor
from .cursor_state import CursorState
from .cursor_storage import CursorHome, CursorKind
from .life import Life, ManagedLedgerState, Termination, settle
from .pins import BulkReadPlan, Pins
from .record import OwnedRecord, TopicEpoch, holding
from .trimming import NO_RETENTION, Trimmer

OPEN_ATTEMPTS_MAX = 20

Created = TypeVar("Created")


class ManagedLedger:
    """See the module. Made by `open`."""

    def __init__(
        self,
        env: Environment,
        ledgers: Ledgers,
        metadata: MetadataStore,
        settings: Settings,
        owned: OwnedRecord,
        chain: LedgerChain,
        cache: EntryCache,
    ) -> None:
        self.name = owned.name
        self.epoch = owned.epoch
        self.cursors: dict[str, Cursor] = {}
        """The durable ones of every kind, by name."""
        self.on_appended: list[Callable[[], None]] = []
        """Called once for each run of acknowledged entries, after their callbacks."""
        self.on_fenced: list[Callable[[MagnetarError], None]] = []
        self.on_trimmed: list[Callable[[], None]] = []
        """Called when ledgers have left the chain, behind the durable cursors."""
        self._ledgers = ledgers
        self._owned = owned
        self.chain = chain
        """The ledgers and where they end. Each append asks for that several times."""
        self._cache = cache
        self._record_lock = asyncio.Lock()
        self._writer = ChainWriter(env, ledgers, settings, chain, owned, self._record_lock)
        self._writer.on_confirmed = self._confirmed
        self._writer.on_terminal = self._fenced
        self._writer.on_rolled = self._rolled
        self._writer.on_bookies_changed = self._bookies_changed
        self.topic_epoch = TopicEpoch(owned, self._record_lock, chain, self._writer.fence)
        writer = self._writer
        self._reads = ChainReads(ledgers, chain, cache, lambda: writer.current_metadata)
        self._pins = Pins(env, metadata, owned.name)
        self._home = CursorHome(env, ledgers, metadata, settings, owned.name, owned.epoch, chain, self._record_lock)
        self._life = Life(owned.name)
        self.trimmer = Trimmer(
            self._home, owned, self._life, self._pins, self._writer, self._reads, self.cursors, self.on_trimmed
        )
        self.compacted = CompactedStorage(
            self._home, owned, self._reads, cache, self.trimmer.finish_deleting, self._writer
        )
        self._deleting: dict[str, asyncio.Event] = {}
        """Cursors that are being deleted. Who opens one gets a new one, when it is gone."""
        self.termination = Termination(owned, self._record_lock, chain, self._writer, self.trimmer.look)
        self._notify_scheduled = False
        self.arrivals = publish_times.Arrivals(chain, env.clock)

    # -- opening -----------------------------------------------------------------------------------------------------

    @staticmethod
    async def open(
        env: Environment,
        ledgers: Ledgers,
        metadata: MetadataStore,
        name: str,
        epoch: int,
        settings: Settings,
        *,
        needs: Guard | None = None,
        cache: EntryCache | None = None,
    ) -> "ManagedLedger":
        """Open the topic with this path as its owner under `epoch`. A broker's topics share one `cache`; without one
        the topic gets its own, of the size in the settings.

        With `needs` it is opened only while the topic's own record is as the coordinator named it. Nothing is trimmed
        then before `trimmer.use_retention`: the topic has policies, which say what is kept.

        Raises StaleEpoch, ConditionFailed (the topic's record has changed), NoSuchLedger, RecoveryFailed,
        MetadataUnavailable and what reading cursors raises.
        """
        owned = OwnedRecord(env, metadata, name, epoch, needs=needs)
        is_new = False
        for _ in range(OPEN_ATTEMPTS_MAX):
            record = await owned.load()
            is_new = not owned.stored
            infos = await settle(env, ledgers, record)
            if await owned.claim(infos):
                break
        else:
            raise StaleEpoch(f"other brokers keep opening {name}: try again", epoch=epoch)
        if cache is None:
            cache = EntryCache(settings.cache_size_mb << 20)
        chain = LedgerChain(list(infos))
        if owned.record.compacted is not None:  # perhaps nothing else is left of the topic
            chain.last_confirmed = max(chain.last_confirmed, owned.record.compacted.horizon)
        managed = ManagedLedger(env, ledgers, metadata, settings, owned, chain, cache)
        managed.termination.opened()
        try:
            if not is_new:  # cursors are made beside a record, and deleted before it
                await managed._open_cursors()
        except BaseException:
            await managed._writer.abandon()
            raise
        managed.trimmer.opened(NO_RETENTION if needs is None else None)
        return managed

    async def _open_cursors(self) -> None:
        found = await list_all(self._home.metadata, metadata_keys.cursors_prefix(self.name))
        highest = max(self.chain.last_ledger_id, self._owned.record.highest_ledger_id)
        end = max(self.chain.last_confirmed, (highest, -1))
        cursors = await together(
            Cursor.open(self._home, metadata_keys.subscription_of(key), value, version, end)
            for key, (value, version) in found
        )
        for cursor in cursors:
            cursor.when_fenced(self._writer.fence)
            self.cursors[cursor.name] = cursor
            if cursor.kind is CursorKind.COMPACTION:
                await self.compacted.take_over(cursor)

    # -- writing -----------------------------------------------------------------------------------------------------

    def append(self, body: bytes, callback: AddCallback) -> None:
        """Append an entry. `callback(position, None)` when it is safe, `callback(None, error)` when that is unknown.

        Callbacks come in the order of appends, never from within this call. After LedgerFenced or StaleEpoch the topic
        belongs to another owner. After any other error every append that was pending got it too, and the next append
        starts a new ledger. Raises MessageTooBig, AlreadyClosed, LedgerFenced, StaleEpoch.
        """
        self._writer.append(body, callback)

    async def settle(self) -> None:
        """After failed appends: wait until it is known which of them were stored. Those are readable then.

        Raises what has ended the topic here.
        """
        while (start := self._writer.start()) is not None:
            await asyncio.wait([start])
        self._life.check()

    @property
    def pending_entries(self) -> int:
        """Appends whose outcome is not known."""
        return self._writer.pending_entries

    def _confirmed(self, ledger_id: int, entries: list[PendingEntry]) -> None:
        put = self._cache.put
        for entry in entries:
            put((ledger_id, entry.entry_id), entry.body)
        self._notify()

    def _notify(self) -> None:
        if not self._notify_scheduled:
            self._notify_scheduled = True
            asyncio.get_running_loop().call_soon(self._appended)

    def _appended(self) -> None:
        self._notify_scheduled = False
        self.arrivals.appended()
        for listener in list(self.on_appended):
            listener()

    def use_copies(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Ledgers that are begun from now on get these. Without this call they get those of the settings."""
        self._writer.copies = Copies(ensemble_size, write_quorum, ack_quorum)

    # -- positions and reading ---------------------------------------------------------------------------------------

    @property
    def last_confirmed(self) -> Position:
        """The last acknowledged entry, (−1, −1) for none."""
        return self.chain.last_confirmed

    @property
    def first_position(self) -> Position:
        """The first entry that is kept; the place of the next one when there is none."""
        return self.chain.first_position

    @property
    def size_bytes(self) -> int:
        """Bytes of the bodies of all entries that are kept."""
        return self.chain.size_bytes

    @property
    def created_ms(self) -> int:
        """When the topic was opened for the first time, in milliseconds since the epoch; 0 if that is not known."""
        return self._owned.record.created_ms

    @property
    def ledger_infos(self) -> list[LedgerInfo]:
        """The ledgers of the chain, for statistics."""
        return list(self.chain.infos)

    def next_position(self, position: Position) -> Position:
        """The first entry behind a position; the place of the next one to come when there is none."""
        return self.chain.next_position(position)

    def position_before(self, position: Position) -> Position:
        """The last entry in front of a position, (−1, −1) if there is none."""
        return self.chain.position_before(position)

    def count_after(self, position: Position) -> int:
        """Acknowledged entries behind a position."""
        return self.chain.count_between(position, self.chain.last_confirmed)

    def entries_between(self, after: Position, last: Position) -> int:
        """Acknowledged entries behind `after` up to and including `last`."""
        return self.chain.count_between(after, min(last, self.chain.last_confirmed))

    async def read(
        self, first: Position, entries_max: int, bytes_max: int, upto: Position | None = None
    ) -> list[tuple[Position, bytes]]:
        """See `ChainReads.read`."""
        return await self._reads.read(first, entries_max, bytes_max, upto)

    async def find_by_publish_time(self, publish_time_ms: int) -> Position:
        """The first entry published at that time or later, else the place of the next one to come."""
        return await publish_times.find_by_publish_time(self.chain, self._reads, publish_time_ms)

    # -- cursors -----------------------------------------------------------------------------------------------------

    @property
    def subscription_cursors(self) -> dict[str, Cursor]:
        """The durable cursors of subscriptions, by name."""
        return {name: one for name, one in self.cursors.items() if one.kind is CursorKind.SUBSCRIPTION}

    async def open_cursor(
        self,
        name: str,
        initial: Position | Literal["earliest", "latest"] = "latest",
        properties: Mapping[str, str] | None = None,
        kind: CursorKind = CursorKind.SUBSCRIPTION,
        needs: Guard | None = None,
    ) -> Cursor:
        """The durable cursor of that name, created at `initial` (the first position to deliver) if there is none.

        With `needs` it is created only while another record has a version. Durable when this returns. Raises
        NotAllowedError where the name has a cursor of another kind, ConditionFailed (`needs` does not hold, nothing was
        created), StaleEpoch, MetadataUnavailable, OutcomeUnknown.
        """
        while (found := await self._kept_cursor(name, kind)) is None:
            state = CursorState(self.chain, EARLIEST_POSITION, properties)
            async with holding(self._owned, self._record_lock):  # the trim must not take what it starts with
                if name in self.cursors:
                    continue  # it was made meanwhile, and perhaps is being deleted already
                start = self._initial(initial)  # readers of the compacted ledger begin in front of what is kept
                state.reset(start if start <= self.compacted.horizon else max(start, self.chain.first_position))
                creation = Cursor.create(self._home, name, state, kind, self._owned.guard, needs)
                cursor = await self._created_beside(creation, needs)
                cursor.when_fenced(self._writer.fence)
                self.cursors[name] = cursor
            return cursor
        return found

    def new_non_durable_cursor(self, position: Position) -> Cursor:
        """A cursor that lives in memory only and keeps nothing from being trimmed."""
        state = CursorState(self.chain, EARLIEST_POSITION)
        state.reset(self._initial(position))
        return Cursor(self._home, state)

    async def delete_cursor(self, name: str, kind: CursorKind = CursorKind.SUBSCRIPTION) -> None:
        """Remove a durable cursor. Raises SubscriptionNotFound, StaleEpoch, MetadataUnavailable."""
        cursor = self.cursors.get(name)
        if cursor is None or cursor.kind is not kind or name in self._deleting:
            raise SubscriptionNotFound(f"the subscription {name} does not exist")
        ended = self._deleting[name] = asyncio.Event()
        try:
            await cursor.delete()
            self.cursors.pop(name, None)
        finally:
            del self._deleting[name]
            ended.set()

    async def _kept_cursor(self, name: str, kind: CursorKind) -> Cursor | None:
        """The cursor of that name, if there is one. Waits until none of that name is being deleted."""
        self._life.check()
        while (ended := self._deleting.get(name)) is not None:
            await ended.wait()
            self._life.check()
        return self._cursor_of(name, kind)

    def _cursor_of(self, name: str, kind: CursorKind) -> Cursor | None:
        found = self.cursors.get(name)
        if found is not None and found.kind is not kind:
            raise NotAllowedError(f"{name} is the name of the {found.kind} cursor of {self.name}: choose another name")
        return found

    def _initial(self, initial: Position | Literal["earliest", "latest"]) -> Position:
        if initial == "earliest":
            return self.chain.first_position
        end = self.chain.next_position(self.chain.last_confirmed)
        return end if initial == "latest" else min(initial, end)

    # -- trimming and pins ---------------------------------------------------------------------------------------------

    async def trim(self) -> list[int]:
        """Delete the ledgers that no cursor and no pin needs; returns their ids.

        Cursors whose place is not yet stored are written first. What fails is tried again later, by itself. Raises
        StaleEpoch, MetadataUnavailable.
        """
        return await self.trimmer.trim()

    def _bookies_changed(self) -> None:
        for cursor in self.cursors.values():
            cursor.bookies_changed()

    def _rolled(self) -> None:
        """A ledger was closed behind a rollover or a failure."""
        self._notify()
        self.trimmer.look()

    async def pin(self, ledger_ids: list[int], ttl_s: float) -> str:
        """Keep ledgers from being trimmed for `ttl_s` seconds or until `unpin`; returns the pin's id."""
        self._life.check()
        async with holding(self._owned, self._record_lock):
            return await self._created_beside(self._pins.add(ledger_ids, ttl_s, self._owned.guard))

    async def prolong_pin(self, pin_id: str, ttl_s: float) -> bool:
        """Let a pin last `ttl_s` seconds from now on. Returns whether it was there."""
        return await self._pins.prolong(pin_id, ttl_s)

    async def unpin(self, pin_id: str) -> bool:
        """Let go of pinned ledgers. Returns whether the pin was there."""
        found = await self._pins.remove(pin_id)
        if found:
            self.trimmer.look()
        return found

    async def plan(
        self,
        start: Position,
        end: Position | None = None,
        ttl_s: float = 3600.0,
        *,
        compacted_from: Position | None = None,
        before_bytes: int = 0,
    ) -> BulkReadPlan:
        """Plan a bulk read of the entries `start`…`end` (inclusive, at most to the last acknowledged one), pinned.

        With `compacted_from` the log is read behind the horizon only, and the compacted ledger before it, unless it has
        nothing from that position on. The pin holds both. It is stored under the record that names them.

        The plan also has the ledgers before `start` that hold about `before_bytes`, if there is something to read.

        Raises StaleEpoch, MetadataUnavailable.
        """
        self._life.check()
        async with holding(self._owned, self._record_lock):
            last = self.chain.last_confirmed if end is None else min(end, self.chain.last_confirmed)
            beside: list[int] = []
            compacted = None if compacted_from is None else self.compacted.current
            if compacted is not None and compacted_from is not None:
                start = max(start, self.chain.next_position(compacted.horizon))
                if compacted.ledger_id is not None and compacted_from <= compacted.horizon:
                    beside = [compacted.ledger_id]
            first = self.chain.ceiling(start)
            wanted: list[int] = []
            if first is None or first > last:
                first = self.chain.next_position(last)
            else:
                within = [info for info in self.chain.infos if first[0] <= info.ledger_id <= last[0]]
                wanted = [info.ledger_id for info in within if info.entries]
                wanted = [*ledgers_before(self.chain.infos, first, before_bytes), *wanted]
            if not wanted and not beside:
                return BulkReadPlan(first, last, (), None)
            pin_id = await self._created_beside(self._pins.add([*beside, *wanted], ttl_s, self._owned.guard))
            current = self._writer.current_metadata
            records = await self._ledgers.records.get_many([*beside, *wanted])
            ledgers = [
                current if current is not None and current.ledger_id == record.metadata.ledger_id else record.metadata
                for record in records
            ]
            tail = self.chain.infos[-1]  # whose metadata does not say how large it is before it is closed
            open_entry_bytes = tail.size_bytes // tail.entries if tail.entries and not tail.closed else 0
            of_log, of_compaction = tuple(ledgers[len(beside) :]), ledgers[0] if beside else None
            return BulkReadPlan(first, last, of_log, pin_id, of_compaction, open_entry_bytes)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close(self, *, at_rest: bytes = b"") -> None:
        """Write the cursors, close the current ledger, stop. Pending appends get an error.

        With `at_rest` perhaps nobody opens the topic for long. So the ledgers that nothing needs are deleted. When
        everything was done, the record keeps these bytes until the topic is opened again (`left_behind`).

        Everything is tried; raises the first error of what could not be done (the next owner recovers it).
        """
        if self._life.state is ManagedLedgerState.OPEN:
            self._life.become(ManagedLedgerState.CLOSED, AlreadyClosed(f"{self.name} is closed"))
        await self.trimmer.close()
        await self._reads.close()
        steps = [self._writer.close(), *(cursor.close() for cursor in self.cursors.values())]
        outcomes: list[BaseException | None] = []
        if at_rest:
            outcomes += await asyncio.gather(steps.pop(0), return_exceptions=True)
            outcomes += await asyncio.gather(self.trimmer.trim_last(), return_exceptions=True)
        outcomes += await asyncio.gather(*steps, return_exceptions=True)
        if at_rest and not any(isinstance(one, BaseException) for one in outcomes):
            outcomes += await asyncio.gather(self._owned.leave(self.chain, at_rest), return_exceptions=True)
        writer = self._writer  # no cycle is left: what is closed is freed without the garbage collector
        writer.on_confirmed = writer.on_terminal = writer.on_rolled = writer.on_bookies_changed = None
        self.trimmer.let_go()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _created_beside(self, creation: Coroutine[Any, Any, Created], needs: Guard | None = None) -> Created:
        """A record beside our own that needs ours as we know it. Raises StaleEpoch when the topic has moved on.
        ConditionFailed: only `needs`, a condition of the caller, did not hold.
        """
        try:
            return await creation
        except (ConditionFailed, StaleEpoch) as error:
            if needs is not None and error.details.get("needs") == needs.key:
                raise
            stale = error if isinstance(error, StaleEpoch) else StaleEpoch(f"{self.name} has another owner now")
            self._writer.fence(stale)
            raise stale from error

    def _fenced(self, error: MagnetarError) -> None:
        """Another owner has the topic."""
        if self._life.state is not ManagedLedgerState.OPEN:
            return
        self._life.become(ManagedLedgerState.FENCED, error)
        self.trimmer.ended()
        for cursor in self.cursors.values():
            cursor.fence(error)
        for listener in list(self.on_fenced):
            listener(error)
