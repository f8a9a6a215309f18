"""The metadata record of a topic's chain of ledgers, and compare-and-set on it under the owner's epoch.

Only the owner writes it, and every write carries the owner's epoch. Opening raises the epoch in the record, so that the
next write of a superseded owner is refused. BadVersion on a record with another epoch, or with foreign content, becomes
StaleEpoch.

A record that does not exist refuses no writer. So a topic is taken over only while the topic's own record (`topics/…`)
has the version that the coordinator named together with the epoch. A deletion marks that record, and one that is
created again never has the same version. A broker that was paused since finds another version, or none, and creates
nothing. And what the owner creates beside the record (cursors, pins) needs the record as it is known here, in the same
transaction.

A write whose outcome stays unknown leaves a doubt: it may have landed, may still land, or never will. `settle` ends it
by a compare-and-set on the version from before. When that succeeds, the doubtful write can no longer land. When it
finds the doubtful value stored, one version on, that was our write, and it is adopted (`on_adopted` is told). Nothing
is decided by the record, and nothing created beside it, before the doubt has ended.

`terminated` names the last entry that the topic will ever have. Once it is stored no ledger is added to the chain.

`deleting` names ledgers that left the chain but whose deletion is not known to be complete; the topic's owner repeats
it.

`rests` says that the last owner closed the topic, had finished everything that it had to do, and nobody has opened it
since. The bytes say under what that is so. They are the owner's, and mean nothing here.

`compacted` names the compacted ledger, `compacting` the one that a compaction writes; see `compacted`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from ...protocol.errors import (
    BadVersion,
    ConditionFailed,
    MagnetarError,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    OutcomeUnknown,
    ProtocolError,
    StaleEpoch,
)
from ...protocol.message_id import Position
from ...runtime.environment import Environment
from ..metadata import keys as metadata_keys
from ..metadata.certain_writes import SETTLE_LIMIT_S, put_certain
from ..metadata.record_kinds import RecordKind
from ..metadata.store import Guard, MetadataStore, pack, unpack
from .chain import LedgerChain, LedgerInfo

LEAVE_LIMIT_S = 2.0
"""How long the end of a topic waits for the answer to its last write."""
RECORD_WAIT_S = 10.0
"""How long a subscriber, a pin or a trim waits while others change the record, before it fails."""


class CompactedLedger(NamedTuple):
    """A topic's messages up to and including `horizon`, compacted. `ledger_id` is None when none of them is left."""

    ledger_id: int | None
    horizon: Position
    entries: int
    size_bytes: int


@dataclass(frozen=True)
class ManagedLedgerRecord:
    """See the module. Ledgers in the order of the chain.

    `highest_ledger_id` remembers the last id of the chain also when all its ledgers are trimmed: positions, and with
    them cursors, must never go back.
    """

    epoch: int
    ledgers: tuple[LedgerInfo, ...] = ()
    deleting: tuple[int, ...] = ()
    highest_ledger_id: int = -1
    topic_epoch: int = -1
    created_ms: int = 0
    """When the record was written for the first time, 0 in records of earlier versions."""
    terminated: Position | None = None
    """The last entry of a topic that was terminated, (−1, −1) for an empty one; None while the topic takes entries."""
    compacted: CompactedLedger | None = None
    compacting: int | None = None
    rests: bytes = b""

    @property
    def ledgers_beside(self) -> tuple[int, ...]:
        """The ledgers of compaction: the one that is read, and the one that is being written."""
        read = None if self.compacted is None else self.compacted.ledger_id
        return tuple(one for one in (read, self.compacting) if one is not None)

    def pack(self) -> bytes:
        record: dict[str, object] = {
            "epoch": self.epoch,
            "ledgers": [
                [info.ledger_id, info.created_ms, info.entries, info.size_bytes, info.closed, info.closed_ms]
                for info in self.ledgers
            ],
            "deleting": list(self.deleting),
            "highest_ledger_id": self.highest_ledger_id,
        }
        if self.topic_epoch >= 0:
            record["topic_epoch"] = self.topic_epoch
        if self.created_ms:
            record["created_ms"] = self.created_ms
        if self.terminated is not None:
            record["terminated"] = list(self.terminated)
        if self.compacted is not None:
            record["compacted"] = [
                self.compacted.ledger_id,
                *self.compacted.horizon,
                self.compacted.entries,
                self.compacted.size_bytes,
            ]
        if self.compacting is not None:
            record["compacting"] = self.compacting
        if self.rests:
            record["rests"] = self.rests
        return pack(record)

    @staticmethod
    def unpack(value: bytes) -> "ManagedLedgerRecord":
        """The inverse of `pack`. Raises MetadataError for anything else."""
        try:
            record = cast("Mapping[str, Any]", unpack(value))
            epoch, end = int(record["epoch"]), record.get("terminated")
            topic_epoch = int(record.get("topic_epoch", -1))
            if topic_epoch < -1:
                raise ValueError(f"topic epoch {topic_epoch}")
            return ManagedLedgerRecord(
                epoch=epoch,
                ledgers=tuple(
                    LedgerInfo(int(one), int(created), int(entries), int(size), bool(closed), int(closed_ms))
                    for one, created, entries, size, closed, closed_ms in record["ledgers"]
                ),
                deleting=tuple(map(int, record["deleting"])),
                highest_ledger_id=int(record["highest_ledger_id"]),
                topic_epoch=topic_epoch,
                created_ms=int(record.get("created_ms", 0)),
                terminated=None if end is None else (int(end[0]), int(end[1])),
                compacted=_compacted(record.get("compacted")),
                compacting=_ledger_id(record.get("compacting")),
                rests=memoryview(record.get("rests", b"")).tobytes(),
            )
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, ProtocolError) as error:
            raise MetadataError(f"the record of a managed ledger cannot be decoded: {error!r}") from error


CHAIN_RECORDS = RecordKind(
    metadata_keys.MANAGED_PREFIX,
    ManagedLedgerRecord.unpack,
    lambda record: (*(info.ledger_id for info in record.ledgers), *record.ledgers_beside, *record.deleting),
    brokers_write=True,
)
"""A record keeps the ledgers of the chain, those of compaction, and those that left it: their deletion is the owner's.
"""


class OwnedRecord:
    """The record as its owner last wrote or read it. The caller lets only one change be under way at a time."""

    def __init__(
        self,
        env: Environment,
        store: MetadataStore,
        name: str,
        epoch: int,
        *,
        needs: Guard | None = None,
    ) -> None:
        """`needs`: the topic's own record as the coordinator named it. None for topics that have no such record."""
        self.name = name
        self.epoch = epoch
        self.record = ManagedLedgerRecord(epoch)
        self.on_adopted: Callable[[], None] = lambda: None
        self._doubtful: list[ManagedLedgerRecord] = []
        self._key = metadata_keys.managed_ledger(name)
        self._env = env
        self._store = store
        self._version: int | None = None
        self._needs = needs

    @property
    def guard(self) -> Guard:
        """Holds while the record is what was last read or written here. Not before `claim`."""
        assert self._version is not None
        return Guard(self._key, self._version)

    @property
    def stored(self) -> bool:
        """Whether there was a record when it was last read or written here."""
        return self._version is not None

    async def load(self) -> ManagedLedgerRecord:
        """Read it; a topic without one has an empty chain.

        Raises StaleEpoch when a later owner was here, ConditionFailed when the topic's own record has changed since the
        coordinator named it: ask the coordinator again.
        """
        self._doubtful = []
        if (needs := self._needs) is not None:
            found, topic = await self._store.get_many([self._key, needs.key])
            if topic is None or topic.version != needs.version:
                raise ConditionFailed(f"{self.name} is not opened: the record of the topic has changed", key=self._key)
        else:
            found = await self._store.get(self._key)
        if found is None:
            self.record = ManagedLedgerRecord(self.epoch, created_ms=self._env.clock.now_ms())
            self._version = None
        else:
            self.record, self._version = ManagedLedgerRecord.unpack(found.value), found.version
            if self.record.epoch > self.epoch:
                raise StaleEpoch(
                    f"{self.name} was opened under epoch {self.record.epoch}, which supersedes epoch {self.epoch}",
                    epoch=self.record.epoch,
                )
        return self.record

    async def claim(self, ledgers: tuple[LedgerInfo, ...], *, deleting: tuple[int, ...] | None = None) -> bool:
        """Write the own epoch, with what is known of the ledgers. False when the record, or the topic's own, changed
        since `load`.

        A compaction of an earlier owner has ended with its ownership: the ledger that it wrote is to be deleted. With
        `deleting` nothing is left of the topic but these ledgers.
        """
        claimed = without_compacting(replace(self.record, epoch=self.epoch, ledgers=_copies(ledgers), rests=b""))
        if deleting is not None:
            claimed = replace(claimed, deleting=deleting, compacted=None)
        try:
            # Only a record that does not exist yet needs it: an existing record refuses a writer that did not see its
            # last version.
            await self._put(claimed, SETTLE_LIMIT_S, self._needs if self._version is None else None)
            return True
        except (BadVersion, NoSuchKey, ConditionFailed):
            return False

    async def change(
        self,
        transform: Callable[[ManagedLedgerRecord], ManagedLedgerRecord],
        *,
        needs: Guard | None = None,
        settle_limit_s: float = SETTLE_LIMIT_S,
    ) -> ManagedLedgerRecord:
        """Replace the record by what `transform` makes of it, provided that `needs` holds (see `Write`).

        Raises StaleEpoch when it is no longer ours, MetadataUnavailable or ConditionFailed (nothing changed),
        OutcomeUnknown.
        """
        while True:
            changed = transform(self.record)
            wanted = replace(changed, epoch=self.epoch, ledgers=_copies(changed.ledgers))
            try:
                await self._put(wanted, settle_limit_s, needs)
            except (BadVersion, NoSuchKey):
                if not await self._adopt():
                    raise StaleEpoch(f"{self.name} has another owner now", epoch=self.epoch) from None
            else:
                return self.record

    async def settle(self, settle_limit_s: float = SETTLE_LIMIT_S) -> None:
        """End a doubt, if there is one. See the module. Raises like `change`: the doubt then stays."""
        if self._doubtful:
            await self.change(lambda record: record, settle_limit_s=settle_limit_s)

    async def _adopt(self) -> bool:
        """Take over what is stored if it is what a doubtful write of ours wanted."""
        if not self._doubtful or self._version is None:
            return False
        found = await self._store.get(self._key)
        if found is None or found.version != self._version + 1:
            return False
        for record in self._doubtful:
            if record.pack() == found.value:
                self.record, self._version, self._doubtful = record, found.version, []
                self.on_adopted()
                return True
        return False

    async def leave(self, chain: LedgerChain, rests: bytes) -> None:
        """The last change of an owner that has finished everything: see `rests`. Raises like `change`.

        Nothing is written where a ledger is open: the next owner has to recover it, though nobody asks. It failed
        before, or it was stored by a doubtful write, and is not in `chain`.
        """
        await self.settle(LEAVE_LIMIT_S)
        ledgers = chain.as_known(self.record.ledgers)
        if all(info.closed for info in ledgers):
            await self.change(
                lambda record: replace(record, ledgers=ledgers, rests=rests), settle_limit_s=LEAVE_LIMIT_S
            )

    async def names(self, ledger_id: int) -> bool:
        """Whether the record as it is stored now, by any owner, names a ledger. Raises MetadataUnavailable."""
        found = await self._store.get(self._key)
        if found is None:
            return False
        return ledger_id in CHAIN_RECORDS.ledgers_named_by(self._key, found.value)

    async def delete(self) -> None:
        """Remove the record. Raises StaleEpoch when it is no longer ours."""
        if self._version is None:
            return
        try:
            await self._store.delete(self._key, self._version)
        except BadVersion:
            raise StaleEpoch(f"{self.name} has another owner now", epoch=self.epoch) from None
        except NoSuchKey:
            return

    async def _put(self, record: ManagedLedgerRecord, settle_limit_s: float, needs: Guard | None = None) -> None:
        try:
            self._version = await put_certain(
                self._env,
                self._store,
                self._key,
                record.pack(),
                self._version,
                needs=needs,
                settle_limit_s=settle_limit_s,
            )
        except OutcomeUnknown:
            self._doubtful.append(record)
            raise
        self.record = record
        self._doubtful = []


class LeftBehind(NamedTuple):
    """How the last owner left a topic: its `rests`, and when its open ledger was begun. That is 0 if there is none."""

    rests: bytes = b""
    begun_ms: int = 0


async def left_behind(store: MetadataStore, names: Sequence[str]) -> list[LeftBehind]:
    """How the topics with these paths were left, with one question. Raises MetadataUnavailable.

    One that nobody ever opened, or whose record cannot be read, was not left at rest: opening it tells the rest.
    """
    found: list[LeftBehind] = []
    for stored in await store.get_many([metadata_keys.managed_ledger(name) for name in names]):
        try:
            record = ManagedLedgerRecord.unpack(stored.value) if stored is not None else ManagedLedgerRecord(0)
        except MetadataError:
            record = ManagedLedgerRecord(0)
        last = record.ledgers[-1] if record.ledgers else None
        found.append(LeftBehind(record.rests, last.created_ms if last is not None and not last.closed else 0))
    return found


def without_compacting(record: ManagedLedgerRecord) -> ManagedLedgerRecord:
    """The record with the ledger of a compaction that has ended early among those to delete."""
    if record.compacting is None:
        return record
    return replace(record, compacting=None, deleting=(*record.deleting, record.compacting))


@asynccontextmanager
async def holding(owned: OwnedRecord, lock: asyncio.Lock) -> AsyncGenerator[None]:
    """Nobody else changes the record meanwhile, and what is stored is known.

    Raises MetadataUnavailable when the lock is not free in time, and what settling a doubt raises.
    """
    try:
        async with asyncio.timeout(RECORD_WAIT_S):
            await lock.acquire()
    except TimeoutError:
        raise MetadataUnavailable(
            f"an earlier write of {owned.name} still waits for the metadata store: try again"
        ) from None
    try:
        await owned.settle(RECORD_WAIT_S)
        yield
    finally:
        lock.release()


class TopicEpoch:
    """The topic epoch of the producers' access modes, as it is stored with the topic.

    Each grant of exclusive access raises it, before the producer may publish. Pulsar keeps it with the properties of
    the managed ledger. Only the topic's owner can raise it, and the next owner knows it. It never falls.

    `on_stale` is called when the topic turns out to have another owner.
    """

    def __init__(
        self,
        owned: OwnedRecord,
        record_lock: asyncio.Lock,
        chain: LedgerChain,
        on_stale: Callable[[MagnetarError], None],
    ) -> None:
        self._owned = owned
        self._record_lock = record_lock
        self._chain = chain
        self._on_stale = on_stale

    @property
    def stored(self) -> int:
        """The epoch as this owner last read or wrote it, −1 for none."""
        return self._owned.record.topic_epoch

    async def raise_to(self, epoch: int) -> None:
        """Store an epoch; a higher one that is stored already stays.

        Raises StaleEpoch when the topic has another owner, MetadataUnavailable (nothing changed), OutcomeUnknown.
        """

        def raised(record: ManagedLedgerRecord) -> ManagedLedgerRecord:
            known = self._chain.as_known(record.ledgers)
            return replace(record, ledgers=known, topic_epoch=max(record.topic_epoch, epoch))

        try:
            async with holding(self._owned, self._record_lock):
                if self._owned.record.topic_epoch < epoch:
                    await self._owned.change(raised)
        except StaleEpoch as error:
            self._on_stale(error)
            raise


def _compacted(value: Sequence[int | None] | None) -> CompactedLedger | None:
    if value is None:
        return None
    ledger_id, *numbers = value
    horizon_ledger, horizon_entry, entries, size_bytes = [int(one or 0) for one in numbers]
    return CompactedLedger(_ledger_id(ledger_id), (horizon_ledger, horizon_entry), entries, size_bytes)


def _ledger_id(value: int | None) -> int | None:
    return None if value is None else int(value)


def _copies(ledgers: tuple[LedgerInfo, ...]) -> tuple[LedgerInfo, ...]:
    """What was written stays as it was written, while the chain's own objects go on counting."""
    return tuple(replace(info) for info in ledgers)
