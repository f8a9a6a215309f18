"""The metadata store in SQL: SQLite on the coordinator's node (the default), or PostgreSQL through a URL.

One connection on one thread. Operations that arrive while the thread is busy are executed together, in their order, in
one transaction with one sync at its end. So a thousand compare-and-sets cost about as much as one. A group holds at
most `GROUP_OPERATIONS_MAX` operations, so that a reader behind it does not wait for long.

SQLite runs in WAL mode with `synchronous=FULL`: a returned write survives power loss. Every transaction takes the write
lock first, so another one can never make it fail half-way. The directory is locked by flock for as long as the store is
open; a Ray actor's name is no lock.

PostgreSQL may be written by two coordinators for a moment (one was stopped, another started, the first goes on). The
compare-and-sets are exact there too. Until it ends, a transaction locks the rows that it is about to change, and those
of its guards shared.

**When PostgreSQL is away**, because it restarts or fails over, operations wait for it, up to `AWAY_LIMIT_S`. They are
tried again with a back-off. The coordinator keeps its office meanwhile. A member waits longer than that for its answer.
So it is told MetadataUnavailable, and need not take the outcome for unknown.

What an error means: before COMMIT was sent nothing was executed (MetadataUnavailable, DiskFull); a connection lost
during COMMIT leaves the outcome open (OutcomeUnknown). The store never creates its table unless told to: an empty
database behind a running cluster is an accident that must not go unnoticed.
"""

import asyncio
import logging
import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy.engine import URL

from ...protocol.errors import ClusterError, MetadataError, MetadataUnavailable
from ...runtime.backoff import Backoff
from ...runtime.database_url import parse_url, shown_url
from ...runtime.environment import Chance, Environment
from ...runtime.files import FileLock, Files
from ...runtime.offload import Lane
from . import keys as metadata_keys
from .moved_store import complete_copy, moved_to, unfinished
from .sql_database import Database, NotReached
from .sql_transaction import Allocate, Get, List, Operation, WriteMany
from .store import Guard, MetadataStore, Versioned, Write, WriteResult, check_key, check_limit, check_write

logger = logging.getLogger(__name__)

GROUP_OPERATIONS_MAX = 256
QUEUED_OPERATIONS_MAX = 20_000
LOCK_FILE = "metadata.lock"
AWAY_LIMIT_S = 4.0
AWAY_RETRY_INITIAL_S = 0.05
AWAY_RETRY_MAX_S = 0.5


@dataclass
class _Queued:
    operation: Operation
    answer: "asyncio.Future[Any]"
    since: float


_Group = list[_Queued]


def make_private(files: Files, path: str) -> None:
    """SQLite gives its log and its index the mode of the database file, which it would make readable by others."""
    for suffix in ("", "-wal", "-shm"):
        if not suffix or files.exists(path + suffix):
            files.open(path + suffix, create=True).close()


def sqlite_url(path: str) -> str:
    """The URL of the SQLite database in the file `path`."""
    return URL.create("sqlite", database=path).render_as_string()


class SqlMetadataStore(MetadataStore):
    """A `MetadataStore` in an SQL database. Made by `open`."""

    def __init__(self, lane: Lane, database: Database, lock: FileLock | None, chance: Chance) -> None:
        self._lane = lane
        self._away = Backoff(chance, AWAY_RETRY_INITIAL_S, AWAY_RETRY_MAX_S)
        self._database = database
        self._lock = lock
        self._queue: list[_Queued] = []
        self._flush_scheduled = False
        self._busy = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls, env: Environment, url: str, *, create: bool = False, beside: bool = False
    ) -> "SqlMetadataStore":
        """Open the store at an SQLAlchemy URL (`sqlite:////path/file`, `postgresql://user@host/database`).

        `create` makes directory, file and table where they are missing. With `beside` the SQLite file may be open in a
        running coordinator; SQLite itself keeps their transactions apart. Raises SettingError for an invalid URL, and
        DirectoryLocked when another process has the SQLite file open. Raises ClusterError when there is no store and
        `create` is false, and MetadataUnavailable when the database cannot be reached.
        """
        parsed = parse_url(url)
        lock: FileLock | None = None
        is_new = False
        path = parsed.database or ""
        if parsed.get_backend_name() == "sqlite":
            directory = os.path.dirname(path)
            is_new = not await env.offload.run(env.files.exists, path)
            if is_new and not create:
                raise ClusterError(f"the metadata store {path} does not exist: create a cluster with `magnetar start`")
            if create:
                await env.offload.run(env.files.make_directory, directory)
            if not beside:
                lock = await env.offload.run(env.files.lock, os.path.join(directory, LOCK_FILE))
            await env.offload.run(make_private, env.files, path)
        lane = env.offload.lane("metadata")
        database = Database(parsed)
        try:
            await lane.run(database.open, create)
            if is_new:
                await env.offload.run(env.files.sync_directory, os.path.dirname(path))
        except BaseException:
            lane.submit(database.close, (), lambda result, error: None)
            lane.close()
            if lock is not None:
                lock.release()
            raise
        return cls(lane, database, lock, env.random)

    @property
    def failover_loses_changes(self) -> bool:
        """Whether the URL names several hosts of PostgreSQL, and none of the standbys is synchronous."""
        return self._database.several_hosts and self._database.asynchronous

    async def get(self, key: str) -> Versioned | None:
        return (await self.get_many([key]))[0]

    async def get_many(self, keys: Sequence[str]) -> list[Versioned | None]:
        for key in keys:
            check_key(key)
        return cast("list[Versioned | None]", await self._run(Get(tuple(keys))))

    async def write_many(self, writes: Sequence[Write], guard: Guard | None = None) -> list[WriteResult]:
        for write in writes:
            check_write(write)
        return cast("list[WriteResult]", await self._run(WriteMany(tuple(writes), guard)))

    async def allocate(self, counter: str, count: int, guard: Guard | None = None) -> int:
        if count < 1:
            raise MetadataError(f"cannot allocate {count} numbers")
        key = metadata_keys.counter(counter)
        check_key(key)
        return cast(int, await self._run(Allocate(key, count, guard)))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        abandoned, self._queue = self._queue, []
        for queued in abandoned:
            if not queued.answer.done():
                queued.answer.set_exception(MetadataUnavailable("the metadata store is closed"))
        await self._idle.wait()
        await self._lane.run(self._database.close)
        self._lane.close()
        if self._lock is not None:
            self._lock.release()

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        return cast("list[tuple[str, Versioned]]", await self._run(List(prefix, after, check_limit(limit))))

    # -- grouping ------------------------------------------------------------------------------------------------

    async def _run(self, operation: Operation) -> Any:
        if self._closed:
            raise MetadataUnavailable("the metadata store is closed")
        if len(self._queue) >= QUEUED_OPERATIONS_MAX:
            raise MetadataUnavailable(f"{QUEUED_OPERATIONS_MAX} metadata operations already wait: try again")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append(_Queued(operation, answer, self._loop.time()))
        if not self._busy and not self._flush_scheduled:
            self._flush_scheduled = True  # after this turn of the loop, so that all of its operations are one group
            self._loop.call_soon(self._flush)
        return await answer

    def _flush(self) -> None:
        self._flush_scheduled = False
        group = [queued for queued in self._queue[:GROUP_OPERATIONS_MAX] if not queued.answer.done()]
        del self._queue[:GROUP_OPERATIONS_MAX]
        if not group:
            if self._queue:
                self._flush()
            return
        self._busy = True
        self._idle.clear()

        def finished(results: Any, error: BaseException | None) -> None:
            self._busy = False
            if isinstance(error, NotReached):
                self._try_again(group, error)
                return
            self._away.reset()
            for index, queued in enumerate(group):
                if queued.answer.done():
                    continue
                outcome: object = results[index] if error is None else error
                if isinstance(outcome, BaseException):
                    queued.answer.set_exception(outcome)
                else:
                    queued.answer.set_result(outcome)
            if self._queue:
                self._flush()
            if not self._busy:
                self._idle.set()

        self._lane.submit(self._database.execute, ([queued.operation for queued in group],), finished)

    def _try_again(self, group: _Group, error: NotReached) -> None:
        """The database is away. Operations that have waited long enough fail, the others wait for the next try."""
        now = self._loop.time()
        waiting: _Group = []
        for queued in group + self._queue:
            if queued.answer.done():
                continue
            if self._closed or now - queued.since >= AWAY_LIMIT_S:
                queued.answer.set_exception(error.failure)
            else:
                waiting.append(queued)
        self._queue = waiting
        self._idle.set()
        if waiting and not self._flush_scheduled:
            delay_s = self._away.next_delay_s()
            logger.warning("the metadata waits for its database, the next try is in %.2f s: %s", delay_s, error)
            self._flush_scheduled = True
            self._loop.call_later(delay_s, self._flush)


async def open_current(
    env: Environment, url: str, known_url: str = "", *, beside: bool = False
) -> tuple[SqlMetadataStore, str]:
    """The store that counts, and its URL: the one at `url`, or the one that its records were moved to.

    `known_url` is a URL of the same place that may have a password; the record of a move has none. `beside` is that of
    `open`. Raises what `open` raises, and ClusterError for a move that was neither finished nor cancelled.
    """
    store = await SqlMetadataStore.open(env, url, beside=beside)
    try:
        to = await moved_to(store)
        if to is None:
            return store, url
        if not to[0].done:
            raise unfinished(to[0])
    except BaseException:
        await store.close()
        raise
    await store.close()
    move = to[0]
    new_url = known_url if known_url and shown_url(known_url) == move.url else move.url
    logger.warning("the metadata was moved to %s", move.url)
    store, new_url = await open_current(env, new_url, beside=beside)
    try:
        await complete_copy(store, move.id)
    except BaseException:
        await store.close()
        raise
    return store, new_url
