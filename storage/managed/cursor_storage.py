"""Where a durable cursor's state lies: its metadata record and its cursor ledger.

The record is `{epoch, ledger, state}`. The first write of an owner creates a cursor ledger: sometimes a write is a
snapshot, otherwise a delta (see below). So the cost of a write depends on what changed. A large state is
packed off the loop, from a copy. At creation and on a clean close, a small state lies in the record itself, without a
ledger. So idle topics have nothing to recover.

The switch from a full or failed ledger is one compare-and-set, made when a complete snapshot is in the new ledger. The
old ledger is then deleted. When such a compare-and-set has an unknown outcome, nothing more goes to the old ledger. The
record may name the new one, and writes to the old one would be lost. `TRANSITIONS` has the states.

The record also names ledgers *beside* that of the state (`SideLedgers`). What is in them belongs to the cursor's owner,
and holds only together with the state: who sets the cursor back removes their names first. They are deleted with the
cursor.

Writes of the state and changes of these names take turns, under one lock.

How a cursor's state lies in its ledger: snapshots, and behind each what changed since, one record for each write.

    part of a snapshot   msgpack [part, parts, bytes]     parts of one snapshot follow each other, counted from 0
    delta                msgpack [base, number, changes, parts]
                         base: entry of the snapshot's first part; number: from 0, without a gap; parts: the snapshot's

The state is the last snapshot of which all parts are there, with the deltas behind it applied in order. A snapshot
counts from its last part on and not before: however many entries a state needs, it switches at once. What stands behind
an incomplete snapshot is an error, for its writer had ended. Nothing is cut off to make it fit, and an unexpected
record is an error. Reading returns a state that was written, or raises.

A write costs as much as what changed. A snapshot is due when the deltas are as large as the snapshot before them. So
snapshots cost no more than deltas, and both bounds limit what a recovery reads.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

from ...protocol.errors import (
    AlreadyClosed,
    BadVersion,
    LedgerFenced,
    MagnetarError,
    MetadataError,
    NoSuchEntry,
    NoSuchKey,
    OutcomeUnknown,
    ProtocolError,
    StaleEpoch,
)
from ...protocol.message_id import Position
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...runtime.transitions import check_transition
from ..ledger.ledgers import Ledgers
from ..ledger.reader import LedgerReader
from ..ledger.writer import LedgerWriter
from ..metadata import keys as metadata_keys
from ..metadata.certain_writes import SETTLE_LIMIT_S, put_certain
from ..metadata.record_kinds import RecordKind
from ..metadata.store import Guard, MetadataStore, Write, pack, unpack
from .chain import LedgerChain
from .cursor_state import CursorState

logger = logging.getLogger(__name__)


class CursorKind(enum.StrEnum):
    """Who a durable cursor belongs to. Each kind keeps what it has not passed; only subscriptions are shown as such."""

    SUBSCRIPTION = "subscription"
    DEDUPLICATION = "deduplication"
    REPLICATOR = "replicator"
    COMPACTION = "compaction"


class CursorRecord(NamedTuple):
    """The metadata record. `state` is the packed state when `ledger_id` is None, else None or an older one.

    `beside` are ledgers that hold something else for the cursor's owner (`SideLedgers`).

    The stored record has a kind only where that is not a subscription, and `beside` only where there are some: records
    were written before there were these.

    `idle_since_ms` says since when a subscription has had no consumer, 0 if that is not known. Only an owner that
    closed in order leaves it: its successor takes it out in the write with which it takes the cursor over.
    """

    epoch: int
    ledger_id: int | None
    state: bytes | None
    kind: CursorKind = CursorKind.SUBSCRIPTION
    idle_since_ms: int = 0
    beside: tuple[int, ...] = ()

    @property
    def ledgers(self) -> tuple[int, ...]:
        """All that it names."""
        return self.beside if self.ledger_id is None else (self.ledger_id, *self.beside)

    def pack(self) -> bytes:
        record: dict[str, Any] = {"epoch": self.epoch, "ledger": self.ledger_id, "state": self.state}
        if self.kind is not CursorKind.SUBSCRIPTION:
            record["kind"] = self.kind.value
        if self.idle_since_ms:
            record["idle_since_ms"] = self.idle_since_ms
        if self.beside:
            record["beside"] = list(self.beside)
        return pack(record)

    @staticmethod
    def unpack(value: bytes) -> "CursorRecord":
        """Raises MetadataError for anything that is no such record, a kind of a later version included."""
        try:
            record = cast("Mapping[str, Any]", unpack(value))
            ledger_id, state = record["ledger"], record["state"]
            return CursorRecord(
                int(record["epoch"]),
                None if ledger_id is None else int(ledger_id),
                # bytes() of a number would be as many zeros
                None if state is None else memoryview(state).tobytes(),
                CursorKind(record.get("kind", CursorKind.SUBSCRIPTION)),
                int(record.get("idle_since_ms", 0)),
                tuple(map(int, record.get("beside", ()))),
            )
        except (KeyError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            raise MetadataError(f"the record of a cursor cannot be decoded: {error!r}") from error


CURSOR_RECORDS = RecordKind(
    metadata_keys.CURSORS_PREFIX,
    CursorRecord.unpack,
    lambda record: record.ledgers,
    brokers_write=True,
)


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


PART_SIZE_MAX_BYTES = 1 << 20
DELTAS_MAX = 1000
DELTAS_SIZE_MIN_BYTES = 64 << 10
"""So much of deltas is allowed behind a small snapshot."""


class Stored(NamedTuple):
    """What a cursor ledger holds: a packed state and the packed changes since."""

    snapshot: bytes
    deltas: list[bytes]


class CursorLog:
    """The records of one cursor ledger that is being written. One write at a time; a failed one ends its use."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.writer = writer
        self._base = -1
        self._parts = 0
        self._snapshot_bytes = 0
        self._deltas = 0
        self._delta_bytes = 0

    def takes_delta(self, size: int) -> bool:
        """Whether changes of that size are better written as a delta than in a new snapshot."""
        room = max(DELTAS_SIZE_MIN_BYTES, self._snapshot_bytes) - self._delta_bytes
        return self._parts > 0 and self._deltas < DELTAS_MAX and size <= min(room, PART_SIZE_MAX_BYTES)

    async def snapshot(self, state: bytes) -> None:
        """Write a whole state; returns when all of it is durable. Raises what the writer's adds raise."""
        base = self.writer.last_added + 1
        self._parts = 0  # until it is complete there is nothing that a delta could rest on
        parts = await append(self.writer, state)
        self._base, self._parts, self._snapshot_bytes = base, parts, len(state)
        self._deltas = self._delta_bytes = 0

    async def delta(self, changes: bytes) -> None:
        """Write what changed; durable when this returns. Raises like `snapshot`."""
        parts, self._parts = self._parts, 0
        await add_all(self.writer, [pack([self._base, self._deltas, changes, parts])])
        self._parts = parts
        self._deltas += 1
        self._delta_bytes += len(changes)


def split(state: bytes, part_size_max: int = PART_SIZE_MAX_BYTES) -> list[bytes]:
    """The entry bodies of a snapshot."""
    pieces = [state[start : start + part_size_max] for start in range(0, len(state), part_size_max)] or [b""]
    return [pack([number, len(pieces), piece]) for number, piece in enumerate(pieces)]


async def append(writer: LedgerWriter, state: bytes, part_size_max: int = PART_SIZE_MAX_BYTES) -> int:
    """Write a snapshot; returns the number of its parts when all are durable. Raises what the writer's adds raise."""
    bodies = split(state, part_size_max)
    await add_all(writer, bodies)
    return len(bodies)


async def add_all(writer: LedgerWriter, bodies: Sequence[bytes]) -> None:
    """Write entries, at least one; returns when all are durable. Raises what the writer's adds raise."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def added(position: tuple[int, int] | None, error: MagnetarError | None, *, last: bool) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif last:
            done.set_result(None)

    for number, body in enumerate(bodies):
        is_last = number == len(bodies) - 1
        writer.add(body, lambda position, error, last=is_last: added(position, error, last=last))
    await done


async def read_state(ledgers: Ledgers, record: CursorRecord) -> tuple[bytes | None, list[bytes]]:
    """A stored cursor's last whole state, None when there is none, and the changes since; recovers its ledger.

    Raises what recovery and `read_last` raise.
    """
    if record.ledger_id is None:
        return record.state, []
    metadata = await ledgers.recover(record.ledger_id)
    return await read_last(ledgers.reader(metadata), metadata.last_entry) or (record.state, [])


async def read_or_begin_again(home: CursorHome, name: str, record: CursorRecord) -> tuple[bytes, list[bytes], bool]:
    """Like `read_state`, for a cursor that has a state. Whether it begins again comes last.

    The metadata may have been restored from a backup that names a ledger which was deleted since, when the cursor went
    on in another one. Its position is then unknown. It goes to the first entry that exists, durably: messages come
    again, and none is lost. Without this its topic could never be opened again.

    Raises like `read_state`, and MetadataError when there is no state and no restore that explains it.
    """
    try:
        packed, deltas = await read_state(home.ledgers, record)
    except NoSuchEntry:
        if not _may_be_deleted(home, record):
            raise
        packed, deltas = None, []
    if packed is not None:
        return packed, deltas, False
    if not _may_be_deleted(home, record):
        raise MetadataError(f"cursor {name} of {home.topic_path} has no state")
    first = home.chain.first_position
    logger.error(
        "cursor %s of %s: its state was in ledger %s, which was deleted after the backup. The metadata was "
        "restored from that backup, so the cursor starts again at %s",
        name,
        home.topic_path,
        record.ledger_id,
        first,
    )
    state = CursorState(home.chain, first)
    state.reset(first)
    return state.pack(), [], True


def _may_be_deleted(home: CursorHome, record: CursorRecord) -> bool:
    return record.ledger_id is not None and home.ledgers.client.directory.in_doubt(record.ledger_id)


async def read_last(reader: LedgerReader, last_entry: int) -> Stored | None:
    """What a closed cursor ledger holds in the end, None when it has no complete snapshot.

    Raises what reading raises, and MetadataError: an unreadable cursor is an error, never an empty one.
    """
    end = last_entry
    while end >= 0:
        record = _decode((await reader.read(end, end, 1))[0].body)
        if isinstance(record, _Delta):
            return await _read_from(reader, record.base, record.parts, end)
        if record.part == record.parts - 1:
            return await _read_from(reader, end - record.part, record.parts, end)
        end -= 1  # of a snapshot whose writing was broken off
    return None


async def _read_from(reader: LedgerReader, first: int, parts: int, end: int) -> Stored:
    """The snapshot of so many parts at `first`, and deltas up to `end`."""
    last_part = first + parts - 1
    if first < 0 or last_part > end:
        raise MetadataError(f"a cursor's snapshot of {parts} parts cannot start at {reader.ledger_id}:{first}")
    pieces: list[bytes] = []
    deltas: list[bytes] = []
    for entry in await reader.read_all(first, end):
        record, number = _decode(entry.body), entry.entry_id - first
        if isinstance(record, _Part) and record[:2] == (number, parts):
            pieces.append(record.piece)
        elif isinstance(record, _Delta) and record[:3] == (first, number - parts, parts):
            deltas.append(record.changes)
        else:
            raise MetadataError(f"entry {reader.ledger_id}:{entry.entry_id} is not the cursor's record of that place")
    return Stored(b"".join(pieces), deltas)


class _Part(NamedTuple):
    part: int
    parts: int
    piece: bytes


class _Delta(NamedTuple):
    base: int
    number: int
    parts: int
    changes: bytes


def _decode(body: bytes) -> _Part | _Delta:
    try:
        fields = cast("list[Any]", unpack(body))
        if len(fields) == 4:
            base, number, changes, parts = fields
            record = _Delta(_count(base), _count(number), _count(parts), memoryview(changes).tobytes())
            if not record.parts:
                raise ValueError("a delta names a snapshot without parts")
            return record
        part, parts, piece = fields
        record = _Part(_count(part), _count(parts), memoryview(piece).tobytes())
        if record.part >= record.parts:
            raise ValueError(f"part {part} of {parts}")
        return record
    except (TypeError, ValueError, OverflowError, ProtocolError) as error:
        raise MetadataError(f"an entry of a cursor's ledger cannot be decoded: {error!r}") from error


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return value


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
            packed, deltas, again_from_start = await read_or_begin_again(home, name, record)
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
            await add_all(writer, bodies)
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
