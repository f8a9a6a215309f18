"""Where a durable cursor's state lies: its metadata record and its cursor ledger.

The record is `{epoch, ledger, state}`. The first write of an owner creates a cursor ledger: sometimes a write is a
snapshot, otherwise a delta (see `cursor_ledger`). So the cost of a write depends on what changed. A large state is
packed off the loop, from a copy. At creation and on a clean close, a small state lies in the record itself, without a
ledger. So idle topics have nothing to recover.

The switch from a full or failed ledger is one compare-and-set, made when a complete snapshot is in the new ledger. The
old ledger is then deleted. When such a compare-and-set has an unknown outcome, nothing more goes to the old ledger. The
record may name the new one, and writes to the old one would be lost. `TRANSITIONS` has the states.

The record also names ledgers *beside* that of the state (`SideLedgers`). What is in them belongs to the cursor's owner,
and holds only together with the state: who sets the cursor back removes their names first. They are deleted with the
cursor.

Writes of the state and changes of these names take turns, under one lock.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from ...protocol.errors import (
    AlreadyClosed,
    BadVersion,
    LedgerFenced,
    MagnetarError,
    NoSuchKey,
    OutcomeUnknown,
    StaleEpoch,
)
from ...protocol.message_id import Position
from ...runtime.transitions import check_transition
from ..ledger.reader import LedgerReader
from ..ledger.writer import LedgerWriter
from ..metadata import keys as metadata_keys
from ..metadata.certain_writes import SETTLE_LIMIT_S, put_certain
from ..metadata.store import Guard, Write
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
CLOSE_SETTLE_S = 2.0


class StorageState(enum.Enum):
    """See `TRANSITIONS`."""

    NO_LEDGER = enum.auto()
    LEDGER = enum.auto()
    IN_DOUBT = enum.auto()
    ENDED = enum.auto()


_S = StorageState
TRANSITIONS: Mapping[StorageState, Collection[StorageState]] = {
    _S.NO_LEDGER: (  # this owner has no ledger: the state is in the record, or in the ledger of an earlier owner
        _S.IN_DOUBT,  # a snapshot is in a new ledger, and the compare-and-set that names it goes out
        _S.ENDED,  # `end` or `delete`
    ),
    _S.LEDGER: (  # the record names the ledger that writes go to
        _S.IN_DOUBT,  # as above; the old ledger is full, failed or on too few bookies
        _S.ENDED,
    ),
    _S.IN_DOUBT: (  # the record may name another ledger: the next write goes to a new one
        _S.LEDGER,  # the compare-and-set was made; or it certainly was not, and the old ledger stays
        _S.NO_LEDGER,  # it certainly was not made, and there is no old ledger
        _S.ENDED,
    ),
    _S.ENDED: (),
}


class CursorStorage:
    """See the module. Raises StaleEpoch or LedgerFenced wherever another owner has the cursor."""

    def __init__(self, home: CursorHome, name: str, kind: CursorKind) -> None:
        self.name = name
        self.state = StorageState.NO_LEDGER
        self._home = home
        self._key = metadata_keys.cursor(home.topic_path, name)
        self._version: int | None = None
        self._record = CursorRecord(home.epoch, None, None, kind)
        self._log: CursorLog | None = None
        self.idle_since_ms = 0
        """What the last owner stored in `CursorRecord`, then what this one is to store when it closes."""
        self.lock = asyncio.Lock()
        """Held while the record or the ledger is written."""

    @property
    def kind(self) -> CursorKind:
        return self._record.kind

    @property
    def beside(self) -> tuple[int, ...]:
        """The ledgers beside that of the state."""
        return self._record.beside

    @property
    def ledger_writer(self) -> LedgerWriter | None:
        """Of the present cursor ledger, if any was written to."""
        return None if self._log is None else self._log.writer

    # -- the beginning -----------------------------------------------------------------------------------------------

    async def create(self, state: CursorState, needs: Guard, also: Guard | None = None) -> None:
        """Store a new cursor, provided that `needs` and `also` hold. Raises StaleEpoch, ConditionFailed,
        MetadataUnavailable, OutcomeUnknown.

        A stored one that the owner does not know comes from an earlier try, whose success was never reported.
        """
        home = self._home
        self._record = self._record._replace(state=state.pack())
        version: int | None = None
        while True:
            try:
                self._version = await put_certain(
                    home.env, home.metadata, self._key, self._record.pack(), version, needs=needs, also=also
                )
                return
            except (BadVersion, NoSuchKey):
                found = await home.metadata.get(self._key)
                if found is not None and CursorRecord.unpack(found.value).epoch > home.epoch:
                    raise StaleEpoch(f"cursor {self.name} of {home.topic_path} has another owner now") from None
                version = None if found is None else found.version

    @staticmethod
    async def take_over(
        home: CursorHome, name: str, value: bytes, version: int, end: Position
    ) -> "tuple[CursorStorage, CursorState]":
        """Take over a stored cursor. See `Cursor.open`."""
        key = metadata_keys.cursor(home.topic_path, name)
        while True:
            record = CursorRecord.unpack(value)
            if record.epoch > home.epoch:
                raise StaleEpoch(f"cursor {name} of {home.topic_path} is owned under epoch {record.epoch}")
            packed, deltas, again_from_start = await cursor_ledger.read_or_begin_again(home, name, record)
            state = CursorState.unpack(packed, home.chain, deltas)
            ahead = _bring_back(state, record.kind, end)
            if ahead:
                place = state.first_unacknowledged
                logger.warning("cursor %s of %s was ahead, and goes on at %s", name, home.topic_path, place)
            storage = CursorStorage(home, name, record.kind)
            storage.idle_since_ms = record.idle_since_ms
            if ahead or (deltas and state.part_count <= SMALL_STATE_RANGES_MAX):
                packed, deltas = state.pack(), []
            inline = ahead or record.ledger_id is None or (not deltas and len(packed) <= INLINE_STATE_MAX_BYTES)
            beside = () if ahead or again_from_start else record.beside
            stored = CursorRecord(home.epoch, None, packed, record.kind)
            stored = stored if inline else record._replace(epoch=home.epoch, idle_since_ms=0)
            storage._record = stored._replace(beside=beside)
            try:
                storage._version = await put_certain(home.env, home.metadata, key, storage._record.pack(), version)
            except (BadVersion, NoSuchKey):
                again = await home.metadata.get(key)
                if again is None:
                    raise StaleEpoch(f"another owner deleted cursor {name} of {home.topic_path}") from None
                value, version = again
                continue
            for ledger_id in record.ledgers:
                if ledger_id not in storage._record.ledgers:
                    await storage.delete_ledger(ledger_id)
            return storage, state

    # -- writing -----------------------------------------------------------------------------------------------------

    async def write(self, state: CursorState) -> None:
        """Write the state to the ledger; what it is at the call is durable when this returns."""
        async with self.lock:
            await self._write(state)

    async def _write(self, state: CursorState) -> None:
        log = self._usable_log()
        try:
            changes = state.take_changes() if log is not None else None
            if log is not None and changes is not None and log.takes_delta(len(changes)):
                await log.delta(changes)
            else:
                packed = await self._packed(state)
                if log is not None:
                    await log.snapshot(packed)
                else:
                    await self._switch_ledger(packed)
        except BaseException:
            state.lose_changes()
            raise

    async def write_inline(self, state: CursorState) -> bool:
        """Put a small state into the record and delete the ledger. Returns whether that was done."""
        async with self.lock:
            return await self._write_inline(state)

    async def _write_inline(self, state: CursorState) -> bool:
        if state.part_count > SMALL_STATE_RANGES_MAX:
            return False
        packed, old_ledger = state.pack(), self._record.ledger_id
        if len(packed) > INLINE_STATE_MAX_BYTES:
            return False
        try:
            record = self._record._replace(ledger_id=None, state=packed, idle_since_ms=self.idle_since_ms)
            await self._put(record, CLOSE_SETTLE_S)
        except StaleEpoch:
            raise
        except MagnetarError as error:
            # Into the ledger then. If the record was replaced all the same, it holds this very state.
            logger.info("the state of cursor %s goes to its ledger, not to its record: %s", self.name, error)
            return False
        if old_ledger is not None:
            await self.delete_ledger(old_ledger)
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    async def close_ledger(self) -> None:
        """All is written: close the ledger, so that the next owner need not recover it."""
        writer = self._end()
        if writer is not None:
            try:
                await writer.close()
            except LedgerFenced:
                raise
            except MagnetarError as error:
                logger.info("the next owner of cursor %s recovers its ledger: %s", self.name, error)

    async def end(self) -> None:
        """Write no more. The ledger stays open, and the next owner recovers it."""
        writer = self._end()
        if writer is not None:
            await writer.abandon()

    async def delete(self) -> None:
        """Delete the record, and in the same transaction the ledgers that it names. So none of these is left behind.

        Raises StaleEpoch, MetadataUnavailable, OutcomeUnknown.
        """
        async with self.lock:
            assert self._version is not None
            known, ledgers = Guard(self._key, self._version), self._record.ledgers
            # The ledgers go first, and only while the record is the one that is deleted behind them.
            writes = [Write(metadata_keys.ledger(one), None, None, known) for one in ledgers]
            results = await self._home.metadata.write_many([*writes, Write(self._key, None, self._version)])
            if isinstance(results[-1], BadVersion):
                raise StaleEpoch(f"cursor {self.name} has another owner now")
            if isinstance(results[-1], NoSuchKey):
                logger.info("cursor %s of %s was already deleted", self.name, self._home.topic_path)
            elif isinstance(results[-1], MagnetarError):
                raise results[-1]
            await self.end()
            for ledger_id, result in zip(ledgers, results, strict=False):
                if isinstance(result, MagnetarError) and not isinstance(result, NoSuchKey):
                    await self.delete_ledger(ledger_id)

    async def put_beside(self, beside: tuple[int, ...], needs: Guard | None = None) -> None:
        """Name these ledgers beside that of the state, provided that `needs` holds. The caller has the lock.

        Raises AlreadyClosed, StaleEpoch, ConditionFailed, MetadataUnavailable (nothing changed), OutcomeUnknown.
        """
        if self.state is StorageState.ENDED:
            raise AlreadyClosed(f"cursor {self.name} is closed")
        await self._put(self._record._replace(beside=beside), CLOSE_SETTLE_S, needs=needs)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _become(self, state: StorageState) -> None:
        check_transition(TRANSITIONS, f"the storage of cursor {self.name}", self.state, state)
        self.state = state

    def _end(self) -> LedgerWriter | None:
        """Returns the writer of the ledger that was in use."""
        writer, self._log = self.ledger_writer, None
        if self.state is not StorageState.ENDED:
            self._become(StorageState.ENDED)
        return writer

    async def _packed(self, state: CursorState) -> bytes:
        """The whole state as it is now; a large one is packed off the loop."""
        whole = state.whole()
        if whole.size <= SMALL_STATE_RANGES_MAX:
            return whole.pack()
        return await self._home.env.offload.run(whole.pack)

    def _usable_log(self) -> CursorLog | None:
        """The present ledger's, if that is to be written on."""
        log, settings = self._log, self._home.settings
        if (
            log is None
            or self.state is StorageState.IN_DOUBT
            or log.writer.ended is not None
            or log.writer.last_added + 1 >= settings.cursor_ledger_entries_max
            or log.writer.length >= CURSOR_LEDGER_SIZE_MAX_BYTES
            or log.writer.should_move
        ):
            return None
        return log

    async def _switch_ledger(self, state: bytes) -> None:
        """A new ledger with this state, then the compare-and-set, then the old one goes."""
        old, old_ledger, before = self.ledger_writer, self._record.ledger_id, self.state
        writer = await self._home.ledgers.create()
        log = CursorLog(writer)
        try:
            await log.snapshot(state)
            if self.state is not StorageState.IN_DOUBT:
                self._become(StorageState.IN_DOUBT)
            await self._put(self._record._replace(ledger_id=writer.ledger_id, state=None), needs=writer.guard)
        except Exception as error:
            await writer.abandon()
            # After an unknown outcome the record may name it: the next owner of the cursor settles it.
            if isinstance(error, MagnetarError) and not isinstance(error, OutcomeUnknown):
                if self.state is not before:  # a doubt of an earlier try stays: this failure does not settle it
                    self._become(before)
                await self._delete_unused(writer.ledger_id)
            raise
        self._log = log
        self._become(StorageState.LEDGER)
        if old is not None:
            await old.abandon()
        if old_ledger is not None:
            await self.delete_ledger(old_ledger)

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

    async def _delete_unused(self, ledger_id: int) -> None:
        """A new ledger that was given up. If the record names it after all (it was stored, the answer got lost, and the
        next owner replaced it), the next owner has it.
        """
        try:
            found = await self._home.metadata.get(self._key)
            if found is None or CursorRecord.unpack(found.value).ledger_id != ledger_id:
                await self.delete_ledger(ledger_id)
        except MagnetarError as error:
            logger.warning("ledger %d of a cursor is not deleted: %s", ledger_id, error)

    async def delete_ledger(self, ledger_id: int) -> None:
        """A ledger that no record refers to. Failing costs space only."""
        try:
            await self._home.ledgers.delete(ledger_id)
        except MagnetarError as error:
            logger.warning("ledger %d of a cursor could not be deleted: %s", ledger_id, error)


def _bring_back(state: CursorState, kind: CursorKind, end: Position) -> bool:
    """Put a state that is ahead of its chain to a place that the chain has. Returns whether it was ahead.

    The metadata was restored from a backup then, and the cursor's ledger is newer than it. What a subscription passed
    stays passed. The sequence ids of deduplication would be those of entries that are not stored: a message with such
    an id would be confirmed and lost. So deduplication reads all entries again.
    """
    if kind is not CursorKind.DEDUPLICATION:
        return state.go_back_to(end)
    ahead = state.is_ahead(end)
    if ahead:
        state.begin_again()
    return ahead


class SideLedgers:
    """Ledgers that a cursor's record names beside that of its state. What is in them is the caller's.

    A ledger is written, all its entries are acknowledged, and it is closed. Then the record names it. When it leaves
    the record it is deleted. A crash in between leaves a ledger that nothing names, which the search for orphans
    deletes.

    A caller may have been replaced by another one while it waits. So each change asks `wanted` under the lock, right
    before it writes, and does nothing when that returns False. No cancellation breaks a change off: afterwards nobody
    would know what the record is.

    `on_stale` is called when the cursor turns out to have another owner.
    """

    def __init__(self, home: CursorHome, storage: CursorStorage, on_stale: Callable[[MagnetarError], None]) -> None:
        self._home = home
        self._storage = storage
        self._on_stale = on_stale
        self._changes: dict[asyncio.Task[bool], None] = {}

    @property
    def names(self) -> tuple[int, ...]:
        """The ledgers, in the order in which they were added."""
        return self._storage.beside

    @property
    def settled(self) -> bool:
        """Whether no change of the record is under way."""
        return not self._storage.lock.locked()

    async def settle(self) -> tuple[int, ...]:
        """The ledgers that are named when no change is under way."""
        async with self._storage.lock:
            return self._storage.beside

    async def add(self, bodies: Sequence[bytes], wanted: Callable[[], bool]) -> int | None:
        """Store entries, at least one, in a new ledger. Returns its id, or None when it is no longer wanted.

        Raises StaleEpoch, AlreadyClosed, NotEnoughBookies, MetadataUnavailable, OutcomeUnknown and what the writer's
        adds raise. But for OutcomeUnknown it is not named then.
        """
        writer = await self._home.ledgers.create()
        try:
            await cursor_ledger.add_all(writer, bodies)
            await writer.close()
            named = await self._change(lambda names: (*names, writer.ledger_id), wanted, writer)
        except BaseException as error:
            await writer.abandon()
            # After an unknown outcome, or a cancellation, the record may name it.
            if isinstance(error, MagnetarError) and not isinstance(error, OutcomeUnknown):
                await self._storage.delete_ledger(writer.ledger_id)
            raise
        if not named:
            await self._storage.delete_ledger(writer.ledger_id)
        return writer.ledger_id if named else None

    async def remove(self, ledger_ids: Collection[int], wanted: Callable[[], bool]) -> bool:
        """Take these ledgers out of the record, then delete them. Returns False when that is no longer wanted.

        Raises StaleEpoch, AlreadyClosed, MetadataUnavailable (nothing changed), OutcomeUnknown.
        """

        def others(names: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(one for one in names if one not in ledger_ids)

        if not await self._change(others, wanted):
            return False
        for ledger_id in ledger_ids:
            await self._storage.delete_ledger(ledger_id)
        return True

    async def clear(self) -> None:
        """Remove all of them. Raises like `remove`."""
        removed: list[int] = []

        def none(names: tuple[int, ...]) -> tuple[int, ...]:
            removed.extend(names)
            return ()

        if self.names or not self.settled:
            await self._change(none, lambda: True)
        for ledger_id in removed:
            await self._storage.delete_ledger(ledger_id)

    async def open(self, ledger_id: int) -> LedgerReader:
        """A reader of one of them. Raises NoSuchLedger, MetadataUnavailable."""
        return await self._home.ledgers.open(ledger_id)

    async def _change(
        self,
        change: Callable[[tuple[int, ...]], tuple[int, ...]],
        wanted: Callable[[], bool],
        writer: LedgerWriter | None = None,
    ) -> bool:
        task = asyncio.get_running_loop().create_task(self._change_names(change, wanted, writer))
        self._changes[task] = None
        task.add_done_callback(self._change_ended)
        return await asyncio.shield(task)

    def _change_ended(self, task: asyncio.Task[bool]) -> None:
        """Also of a change whose caller was cancelled: nobody else then sees its error."""
        del self._changes[task]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StaleEpoch):
            self._on_stale(error)

    async def _change_names(
        self,
        change: Callable[[tuple[int, ...]], tuple[int, ...]],
        wanted: Callable[[], bool],
        writer: LedgerWriter | None,
    ) -> bool:
        async with self._storage.lock:
            if not wanted():
                return False
            names = change(self._storage.beside)
            if names != self._storage.beside:
                await self._storage.put_beside(names, None if writer is None else writer.guard)
            return True
