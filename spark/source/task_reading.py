"""What a Spark task does to read its split: the part of the data source that runs in executors.

Spark keeps a Python worker for many tasks. So the connections to bookies, and the loop that they live on, are kept,
too: one `_Worker` for each cluster, until the process ends. A task prolongs the pins of its whole read, also those of
other partitions, because their tasks may begin last.
"""

# pyarrow brings no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from typing import NamedTuple

import pyarrow as pa

from ...bulk.access import ClusterAccess, locate_over_http
from ...bulk.cluster_link import ClusterLink, Pin
from ...bulk.loop_thread import LoopThread
from ...bulk.range_reader import RangeReader
from ...bulk.read_plan import ReadSplit
from ...protocol.errors import MagnetarError, is_retriable
from ...runtime.backoff import LimitedBackoff
from ...runtime.environment import Environment

logger = logging.getLogger(__name__)

RETRY_INITIAL_S = 0.2
RETRY_MAX_S = 2.0
RETRY_LIMIT_S = 60.0
PROLONGED_PER_TTL = 3


class TaskRead(NamedTuple):
    """One task's part of a read. Pickled by the driver; holds the keys of a reader."""

    admin_url: str
    access: ClusterAccess
    split: ReadSplit
    columns: tuple[str, ...]
    pins: tuple[Pin, ...]
    pin_ttl_s: float


class _Worker:
    """What this process keeps for one cluster."""

    def __init__(self, admin_url: str, access: ClusterAccess) -> None:
        self._env = Environment.real(threads_max=1)
        self._reader = RangeReader(self._env, access)
        self._link = ClusterLink(self._env, access, locate_over_http(admin_url))
        self._prolonged: tuple[tuple[Pin, ...], float] = ((), 0.0)
        """The pins that were prolonged last, and when, by the loop's clock."""

    async def read(self, task: TaskRead) -> AsyncGenerator[pa.RecordBatch]:
        """The rows of a split, in order. An attempt that failed before its first batch may be repeated."""
        backoff = LimitedBackoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S, RETRY_LIMIT_S)
        given = 0
        while True:
            await self._prolong(task)
            skipped = given  # batches that an earlier attempt gave: a split is read the same way each time
            try:
                async for batch in self._reader.read(task.split, await self._link.bookies(), task.columns):
                    if skipped:
                        skipped -= 1
                        continue
                    given += 1
                    yield batch
                    await self._prolong(task)
                return
            except MagnetarError as error:
                delay_s = backoff.next_delay_s() if is_retriable(error) else None
                if delay_s is None:
                    raise
                logger.warning("a read of %s failed and is tried again in %.1f s: %s", task.split.topic, delay_s, error)
            await asyncio.sleep(delay_s)

    async def _prolong(self, task: TaskRead) -> None:
        pins, prolonged_at = self._prolonged
        now = asyncio.get_running_loop().time()
        if pins != task.pins or now - prolonged_at > task.pin_ttl_s / PROLONGED_PER_TTL:
            self._prolonged = task.pins, now
            await self._link.prolong(task.pins, task.pin_ttl_s)


_threads: dict[str, LoopThread] = {}  # one, made with the first task of this process
_workers: dict[str, _Worker] = {}


def read_split(task: TaskRead) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Raises what `RangeReader.read` raises, if it lasts."""
    thread = _threads.get("read") or _threads.setdefault("read", LoopThread("magnetar-read"))

    async def begin() -> AsyncGenerator[pa.RecordBatch]:
        worker = _workers.get(task.access.cluster_id)
        if worker is None:
            worker = _workers[task.access.cluster_id] = _Worker(task.admin_url, task.access)
        return worker.read(task)

    yield from thread.items(thread.run(begin()))
