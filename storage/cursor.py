"""A subscription's place in a topic, durable or not: `CursorState` plus when and where it is written.

A durable cursor has a metadata record `{epoch, ledger, state}`. While it moves, snapshots go to a cursor ledger, which
is created with the first write; at creation and on a clean close a small state lies in the record itself and there is
no ledger, so that idle topics have nothing to recover.

Writing: at most once in `cursor_flush_interval_s` by itself; at once for `flush`, whose concurrent callers share one
write. A write that fails is repeated with the next; callers of `flush` hear of it. The switch from a full or failed
ledger is one compare-and-set, made when a complete snapshot is in the new one; the old one is then deleted.

Guarantees: what `flush` returned for survives the broker; `durable_mark_delete` is never ahead of what is stored; once
another owner has opened the topic no write succeeds here (its ledger is fenced and its record has a higher epoch),
which ends the cursor with `on_fenced`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ..protocol import metadata_keys
from ..protocol.errors import (
    AlreadyClosed,
    BadVersion,
    LedgerFenced,
    MagnetarError,
    MetadataError,
    NoSuchKey,
    OutcomeUnknown,
    ProtocolError,
    StaleEpoch,
)
from ..protocol.message_id import Position
from ..runtime.environment import Environment
from ..runtime.settings import Settings
from . import cursor_ledger
from .cursor_state import CursorState
from .ledger_chain import LedgerChain
from .ledger_writer import LedgerWriter
from .ledgers import Ledgers
from .metadata_cas import SETTLE_LIMIT_S, put_certain
from .metadata_store import Guard, MetadataStore, pack, unpack

logger = logging.getLogger(__name__)

INLINE_STATE_MAX_BYTES = 16 << 10
"""A state up to this size may lie in the metadata record."""
CURSOR_LEDGER_SIZE_MAX_BYTES = 64 << 20
RETRY_DELAY_MIN_S = 1.0
CLOSE_SETTLE_S = 2.0


class CursorRecord(NamedTuple):
    """The metadata record. `state` is the packed state when `ledger_id` is None, else None or an older one."""

    epoch: int
    ledger_id: int | None
    state: bytes | None

    def pack(self) -> bytes:
        return pack({"epoch": self.epoch, "ledger": self.ledger_id, "state": self.state})

    @staticmethod
    def unpack(value: bytes) -> "CursorRecord":
        """Raises MetadataError for anything that is no such record."""
        try:
            record = cast("Mapping[str, Any]", unpack(value))
            ledger_id, state = record["ledger"], record["state"]
            return CursorRecord(
                int(record["epoch"]),
                None if ledger_id is None else int(ledger_id),
                # bytes() of a number would be as many zeros
                None if state is None else memoryview(state).tobytes(),
            )
        except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            raise MetadataError(f"not the record of a cursor: {error!r}") from error


class CursorHome(NamedTuple):
    """Where the cursors of one managed ledger live."""

    env: Environment
    ledgers: Ledgers
    metadata: MetadataStore
    settings: Settings
    topic_path: str
    epoch: int
    chain: LedgerChain
    record_lock: asyncio.Lock


class Cursor:
    """See the module. Made by `ManagedLedger`. All but `flush`, `reset`, `close` and `delete` happen at once."""

    def __init__(self, home: CursorHome, name: str, state: CursorState, *, durable: bool) -> None:
        self.name = name
        self.durable = durable
        self.on_fenced: Callable[[MagnetarError], None] | None = None
        self.durable_mark_delete: Position = state.mark_delete
        self._home = home
        self._state = state
        self._key = metadata_keys.cursor(home.topic_path, name)
        self._version: int | None = None
        self._record = CursorRecord(home.epoch, None, None)
        self._writer: LedgerWriter | None = None
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
        self._state.properties[name] = value
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

        A stored one that the owner does not know is what an earlier try left, of which nobody heard that it succeeded.
        """
        home = self._home
        self._record = CursorRecord(home.epoch, None, self._state.pack())
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
    async def open(home: CursorHome, name: str, value: bytes, version: int) -> "Cursor":
        """Take over a stored cursor under the home's epoch, recovering its ledger if it has one.

        Raises StaleEpoch; whatever recovery and reading raise: a cursor that cannot be read is never guessed.
        """
        key = metadata_keys.cursor(home.topic_path, name)
        while True:
            record = CursorRecord.unpack(value)
            if record.epoch > home.epoch:
                raise StaleEpoch(f"cursor {name} of {home.topic_path} is owned under epoch {record.epoch}")
            state = record.state
            if record.ledger_id is not None:
                metadata = await home.ledgers.recover(record.ledger_id)
                found = await cursor_ledger.read_last(home.ledgers.reader(metadata), metadata.last_entry)
                state = state if found is None else found
            if state is None:
                raise MetadataError(f"cursor {name} of {home.topic_path} has no state")
            cursor = Cursor(home, name, CursorState.unpack(state, home.chain), durable=True)
            inline = record.ledger_id is None or len(state) <= INLINE_STATE_MAX_BYTES
            cursor._record = CursorRecord(home.epoch, None, state) if inline else record._replace(epoch=home.epoch)
            try:
                cursor._version = await put_certain(home.env, home.metadata, key, cursor._record.pack(), version)
            except (BadVersion, NoSuchKey):
                again = await home.metadata.get(key)
                if again is None:
                    raise StaleEpoch(f"cursor {name} of {home.topic_path} was deleted meanwhile") from None
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
        writer, self._writer = self._writer, None
        try:
            if self._ended is None and (self._dirty or writer is not None):
                await self._write_last(writer)
        finally:
            if writer is not None:
                await writer.abandon()

    async def delete(self) -> None:
        """Remove the cursor for good. Raises StaleEpoch, MetadataUnavailable, OutcomeUnknown."""
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
            logger.info("cursor %s of %s was deleted before", self.name, self._home.topic_path)
        if self._writer is not None:
            await self._writer.abandon()
        if self._record.ledger_id is not None:
            await self._delete_ledger(self._record.ledger_id)

    def fence(self, error: MagnetarError) -> None:
        """The topic has another owner: nothing is written any more."""
        if self._ended is None:
            self._ended = error
            self._cancel_timer()
            self._fail_waiters(error)

    # -- writing -----------------------------------------------------------------------------------------------------

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
                    if not isinstance(error, MagnetarError):  # whatever it was: nobody may wait for ever
                        logger.exception("cursor %s of %s cannot be written", self.name, self._home.topic_path)
                        error = MetadataError(f"cursor {self.name} cannot be written: {error!r}")
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
        mark, state = self._state.mark_delete, self._state.pack()
        self._dirty = False
        settings = self._home.settings
        writer = self._writer
        if (
            writer is not None
            and writer.ended is None
            and writer.last_added + 1 < settings.cursor_ledger_entries_max
            and writer.length < CURSOR_LEDGER_SIZE_MAX_BYTES
            and not writer.should_move
        ):
            await cursor_ledger.append(writer, state)
        else:
            await self._switch_ledger(state)
        self.durable_mark_delete = mark

    async def _switch_ledger(self, state: bytes) -> None:
        """A new ledger with this state, then the compare-and-set, then the old one goes."""
        old_writer, old_ledger = self._writer, self._record.ledger_id
        writer = await self._home.ledgers.create()
        try:
            await cursor_ledger.append(writer, state)
            await self._put(CursorRecord(self._home.epoch, writer.ledger_id, None), needs=writer.guard)
        except Exception as error:
            await writer.abandon()
            # After an unknown outcome the record may name it: whoever opens the cursor next sorts it out.
            if isinstance(error, MagnetarError) and not isinstance(error, OutcomeUnknown):
                await self._delete_unused(writer.ledger_id)
            raise
        self._writer = writer
        if old_writer is not None:
            await old_writer.abandon()
        if old_ledger is not None:
            await self._delete_ledger(old_ledger)

    async def _write_last(self, writer: LedgerWriter | None) -> None:
        mark, state = self._state.mark_delete, self._state.pack()
        old_ledger = self._record.ledger_id
        if len(state) <= INLINE_STATE_MAX_BYTES:
            try:
                await self._put(CursorRecord(self._home.epoch, None, state), CLOSE_SETTLE_S)
            except StaleEpoch:
                raise
            except MagnetarError as error:
                # Into the ledger then. If the record was replaced all the same, it holds this very state.
                logger.info("cursor %s is left to recovery: %s", self.name, error)
            else:
                self._dirty = False
                self.durable_mark_delete = mark
                if old_ledger is not None:
                    await self._delete_ledger(old_ledger)
                return
        if self._dirty:
            if writer is None:
                await self._switch_ledger(state)
                writer, self._writer = self._writer, None
            else:
                await cursor_ledger.append(writer, state)
            self._dirty = False
            self.durable_mark_delete = mark
        if writer is not None:
            try:
                await writer.close()
            except LedgerFenced:
                raise
            except MagnetarError as error:
                logger.info("the ledger of cursor %s is left to recovery: %s", self.name, error)

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
            logger.warning("cursor %s of %s cannot be written now: %s", self.name, self._home.topic_path, error)

    def _fail_waiters(self, error: MagnetarError) -> None:
        waiters, self._waiters = self._waiters, []
        _resolve(waiters, error)

    async def _delete_unused(self, ledger_id: int) -> None:
        """A new ledger that was given up. If the record names it after all (it was stored, the answer got lost, and the
        next owner wrote on top), it is the next owner's."""
        try:
            found = await self._home.metadata.get(self._key)
            if found is None or CursorRecord.unpack(found.value).ledger_id != ledger_id:
                await self._delete_ledger(ledger_id)
        except MagnetarError as error:
            logger.warning("ledger %d of a cursor stays behind: %s", ledger_id, error)

    async def _delete_ledger(self, ledger_id: int) -> None:
        """A ledger that nothing refers to any more. Failing costs space only."""
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
