"""The metadata database of a simulated cluster: in memory, slow, sometimes away, sometimes silent about an outcome.

The records outlive every coordinator. Whoever watches is told of each change, at the moment it happens.

A call may be refused; it may end with an unknown outcome that was carried out, was not, or will be carried out a while
later, when the database gets to what a broken connection left with it, perhaps after the caller's death. There are no
stale reads: production has one linearizable database and no replicas, so a simulated one that answered from the past
would find errors that cannot happen.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from random import Random
from typing import TypeVar

from magnetar.protocol.errors import MetadataError, MetadataUnavailable, OutcomeUnknown
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Guard, Versioned, Write, WriteResult, one_result
from support.stores.memory_store import MemoryMetadataStore, MemoryRecords

from .process import Process

T = TypeVar("T")

LATE_SHARES = (0.3, 0.9)
"""Of the writes that are not carried out before their caller is told that the outcome is unknown: carried out later."""
LATE_MAX_S = 1.5
"""How much later than its caller was told a write may be carried out."""

Watcher = Callable[[str, Versioned | None, Versioned | None], None]


class WatchedRecords(MemoryRecords):
    """Calls `watcher(key, before, after)` for every change.

    Changes of one transaction are told at its end, the deletions of ledgers last. Nobody ever sees a state in between.
    """

    def __init__(self) -> None:
        super().__init__()
        self._changes: list[tuple[str, Versioned | None, Versioned | None]] | None = None
        self.watcher: Watcher = lambda key, before, after: None

    def store(self, key: str, record: Versioned) -> None:
        before = self.by_key.get(key)
        super().store(key, record)
        self._changed(key, before, record)

    def remove(self, key: str) -> None:
        before = self.by_key.get(key)
        super().remove(key)
        self._changed(key, before, None)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is changed within the block is one transaction. The block awaits nothing that waits."""
        assert self._changes is None
        self._changes = []
        try:
            yield
        finally:
            changes, self._changes = self._changes, None
            for change in sorted(changes, key=_is_deletion_of_a_ledger):
                self.watcher(*change)

    def _changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        if self._changes is None:
            self.watcher(key, before, after)
        else:
            self._changes.append((key, before, after))


def _is_deletion_of_a_ledger(change: tuple[str, Versioned | None, Versioned | None]) -> bool:
    return change[2] is None and change[0].startswith(metadata_keys.LEDGERS_PREFIX)


class SimMetadataStore:
    """The connection of one process to the database. `trouble` is the share of calls that go wrong."""

    def __init__(self, process: Process, records: WatchedRecords, random: Random) -> None:
        self.trouble = 0.0
        self.delay_s = 0.002
        self._late_share = random.choice(LATE_SHARES)
        self._process = process
        self._records = records
        self._inner = MemoryMetadataStore(records)
        self._random = random
        self._late: list[asyncio.Task[None]] = []

    async def get(self, key: str) -> Versioned | None:
        return await self._read(lambda: self._inner.get(key))

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        return await self._read(lambda: self._inner.get_many(keys))

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> "list[tuple[str, Versioned]]":
        return await self._read(lambda: self._inner.list(prefix, after=after, limit=limit))

    async def put(self, key: str, value: bytes, expected_version: int | None) -> int:
        return one_result(await self.write_many([Write(key, value, expected_version)]))

    async def delete(self, key: str, expected_version: int | None) -> None:
        one_result(await self.write_many([Write(key, None, expected_version)]))

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> "list[WriteResult]":
        return await self._write(lambda: self._transact(writes, guard))

    async def _transact(self, writes: Sequence[Write], guard: Guard | None) -> "list[WriteResult]":
        with self._records.transaction():
            return await self._inner.write_many(writes, guard)

    async def allocate(self, counter: str, count: int, guard: Guard | None = None) -> int:
        return await self._write(lambda: self._inner.allocate(counter, count, guard))

    async def close(self) -> None:
        await self._inner.close()

    async def _pause(self) -> None:
        await self._process.loop.passing(self._random.random() * self.delay_s)
        if not self._process.alive:
            raise MetadataUnavailable("this process has ended")

    async def _read(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._pause()
        if self._random.random() < self.trouble / 2:
            raise MetadataUnavailable("the database is away")
        found = await call()
        await self._pause()
        return found

    async def _write(self, call: Callable[[], Awaitable[T]]) -> T:
        await self._pause()
        draw = self._random.random()
        if draw < self.trouble / 3:
            raise MetadataUnavailable("the database is away")
        if draw < self.trouble * 2 / 3:
            if self._random.random() < self._late_share:
                loop = asyncio.get_running_loop()
                self._late.append(loop.create_task(_later(call, self._random.random() * LATE_MAX_S), context=Context()))
            raise OutcomeUnknown("the connection broke before the write was carried out")
        result = await call()
        await self._pause()
        if draw < self.trouble:
            raise OutcomeUnknown("the connection broke after the write was carried out")
        return result


async def _later(call: Callable[[], Awaitable[object]], delay_s: float) -> None:
    """Of no process: the database carries it out whether or not who asked for it still lives."""
    await asyncio.sleep(delay_s)
    with contextlib.suppress(MetadataError):  # nobody is there to be told
        await call()
