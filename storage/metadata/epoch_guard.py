"""The metadata store in the hands of one coordinator: every write carries the epoch it took office with.

`take_office` raises the epoch by compare-and-set. From then on each change is made only while no other coordinator has
raised it again, tested in the same transaction. A coordinator that was stopped, replaced and woken up therefore changes
nothing: its writes raise MetadataUnavailable, and `on_superseded` tells it to go.

A creation names no version, only that the record is not there. One whose outcome is unknown could be carried out after
a later try had created the record, and somebody had deleted it: the record would come back. So before the first
deletion behind such a creation, the coordinator writes the record of its epoch once more. The guard has a higher
version then, and everything that was asked for under the old one is always refused. A write under way that is refused
for this reason alone is asked for again under the new guard.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from ...protocol.errors import (
    BadVersion,
    ClusterError,
    MetadataError,
    MetadataUnavailable,
    OutcomeUnknown,
    StaleEpoch,
)
from . import keys as metadata_keys
from .moved_store import check_counts
from .store import Guard, MetadataStore, Versioned, Write, WriteResult, pack, unpack

TRIES_MAX = 20
Answer = TypeVar("Answer")


class EpochMetadataStore(MetadataStore):
    """A `MetadataStore` whose writes are guarded by `guard`. Made by `take_office`.

    `epoch` is greater than that of every coordinator before. `on_superseded` is called once. `on_written` is told of
    changes once their outcome is known, or nobody waits for it any longer: they were made, or may have been.
    """

    def __init__(self, inner: MetadataStore, epoch: int, guard: Guard) -> None:
        self.epoch = epoch
        self.superseded = False
        self.on_superseded: Callable[[], None] | None = None
        self.on_written: Callable[[Sequence[Write]], None] = _nobody
        self._inner = inner
        self._guard = guard
        self._doubtful_under: Guard | None = None
        """The guard under which a creation may still be carried out, although it was given up."""

    async def get(self, key: str) -> Versioned | None:
        return await self._inner.get(key)

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        return await self._inner.get_many(keys)

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        self._refuse_guard(guard)
        try:
            if self._doubtful_under is self._guard and any(write.value is None for write in writes):
                await self._renew_guard()
            return await self._guarded(lambda guard: self._inner.write_many(writes, guard))
        except (OutcomeUnknown, asyncio.CancelledError):
            if any(write.value is not None and write.expected_version is None for write in writes):
                self._doubtful_under = self._guard
            raise
        finally:
            self.on_written(writes)

    async def allocate(self, counter: str, count: int, guard: Guard | None = None) -> int:
        self._refuse_guard(guard)
        return await self._guarded(lambda guard: self._inner.allocate(counter, count, guard))

    async def verify(self) -> None:
        """Check whether this coordinator is still active; one that writes nothing would never learn that it is not.

        Raises MetadataUnavailable.
        """
        await self._read_guard()

    async def close(self) -> None:
        """Does nothing: the store beneath belongs to the caller that opened it."""

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        return await self._inner.list(prefix, after=after, limit=limit)

    # -- the guard -----------------------------------------------------------------------------------------------

    async def _guarded(self, call: Callable[[Guard], Awaitable[Answer]]) -> Answer:
        """What the call gives under the present guard. Raises MetadataUnavailable if this coordinator is superseded."""
        while True:
            used = self._guard
            try:
                return await call(used)
            except StaleEpoch as error:
                if self._guard is used:
                    await self._read_guard()
                if self._guard is used:
                    raise self._end(error) from error

    async def _read_guard(self) -> None:
        """Take over the version that the record of this epoch has. Raises MetadataUnavailable, also if another
        coordinator has raised the epoch, or the record is an older one."""
        guard = self._guard
        record = await self._inner.get(guard.key)
        if record is None or record.value != _epoch_record(self.epoch) or record.version < guard.version:
            raise self._end(StaleEpoch(f"{guard.key} is no longer at version {guard.version}"))
        self._has_version(record.version)

    async def _renew_guard(self) -> None:
        """Have everything refused that was asked for before. Raises MetadataUnavailable, OutcomeUnknown."""
        guard = self._guard
        try:
            self._has_version(await self._inner.put(guard.key, _epoch_record(self.epoch), guard.version))
        except BadVersion:
            await self._read_guard()  # an earlier try was carried out, or this coordinator is superseded

    def _has_version(self, version: int) -> None:
        """The record of this epoch has had this version. An answer may come behind that of a later one."""
        if version > self._guard.version:
            self._guard = Guard(self._guard.key, version)

    def _refuse_guard(self, guard: Guard | None) -> None:
        if guard is not None:
            raise MetadataError("a write through the coordinator is guarded by its epoch and takes no other guard")

    def _end(self, error: StaleEpoch) -> MetadataUnavailable:
        if not self.superseded:
            self.superseded = True
            if self.on_superseded is not None:
                self.on_superseded()
        return MetadataUnavailable(f"this coordinator (epoch {self.epoch}) was superseded: {error}")


async def take_office(store: MetadataStore) -> EpochMetadataStore:
    """Raise the coordinator's epoch.

    Raises ClusterError in a store without a cluster, or one that has moved (`moved_store`), and MetadataUnavailable.
    """
    await check_counts(store)
    office = await raise_epoch(store)
    await check_counts(store)  # again: a move may have begun before the epoch was raised
    return office


async def raise_epoch(store: MetadataStore) -> EpochMetadataStore:
    """The store, guarded by an epoch of its own. Raises like `take_office`, but for a store that has moved."""
    for _ in range(TRIES_MAX):
        record = await store.get(metadata_keys.COORDINATOR_EPOCH)
        if record is None:
            raise ClusterError("the metadata store holds no cluster: create one with `magnetar start`")
        epoch = int(unpack(record.value)["epoch"]) + 1
        try:
            version = await store.put(metadata_keys.COORDINATOR_EPOCH, _epoch_record(epoch), record.version)
        except (BadVersion, OutcomeUnknown):
            continue  # another one was faster, or it may have been us: go above it, an epoch more does not matter
        return EpochMetadataStore(store, epoch, Guard(metadata_keys.COORDINATOR_EPOCH, version))
    raise MetadataUnavailable(
        f"the coordinator's epoch could not be raised in {TRIES_MAX} tries: other coordinators keep starting"
    )


def _epoch_record(epoch: int) -> bytes:
    return pack({"epoch": epoch})


def _nobody(writes: Sequence[Write]) -> None:
    """Nobody is told."""
