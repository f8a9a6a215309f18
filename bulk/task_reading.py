"""What a task of Spark or Ray Data does to read its split: the part of a read that runs in executors and workers.

Spark and Ray keep a process for many tasks. So the connections to bookies, and the loop that they live on, are kept,
too: one `_Worker` for each cluster and admin URL, until the process ends. A task prolongs the pins of its whole read,
also those of other partitions, because their tasks may begin last.
"""

# pyarrow brings no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import NamedTuple

import pyarrow as pa

from ..runtime.environment import Environment
from ..runtime.tasks import Tasks
from .access import ClusterAccess, locate_over_http
from .cluster_link import ClusterLink, Pin
from .decryption import NO_KEYS, ReadKeys
from .loop_thread import LoopThread
from .range_reader import RangeReader
from .read_plan import ReadSplit
from .typed.choice import RowShape

RETRY_LIMIT_S = 60.0
PROLONGED_PER_TTL = 3


class TaskRead(NamedTuple):
    """One task's part of a read. Pickled by the driver; holds the keys of a reader, and those of the messages."""

    admin_url: str
    access: ClusterAccess
    split: ReadSplit
    shape: RowShape
    pins: tuple[Pin, ...]
    pin_ttl_s: float
    keys: ReadKeys = NO_KEYS


class _Worker:
    """What this process keeps for one cluster."""

    def __init__(self, admin_url: str, access: ClusterAccess) -> None:
        self._env = Environment.real(threads_max=1)
        self._reader = RangeReader(self._env, access)
        self._link = ClusterLink(self._env, access, locate_over_http(admin_url))
        self._prolonged: tuple[tuple[Pin, ...], float] = ((), 0.0)
        """The pins that were prolonged last, and when, by the loop's clock."""
        self._tasks = Tasks()

    async def read(self, task: TaskRead) -> AsyncGenerator[pa.RecordBatch]:
        """The rows of a split, in order. Raises what `RangeReader.read` raises, if it lasts."""

        self._prolong(task)
        locate = self._link.bookies
        async for batch in self._reader.read_patiently(task.split, locate, task.shape, RETRY_LIMIT_S, task.keys):
            yield batch
            self._prolong(task)

    def _prolong(self, task: TaskRead) -> None:
        """Prolong the pins, if it is time. A broker that does not answer keeps no task from reading."""
        pins, prolonged_at = self._prolonged
        now = asyncio.get_running_loop().time()
        if pins != task.pins or now - prolonged_at > task.pin_ttl_s / PROLONGED_PER_TTL:
            self._prolonged = task.pins, now
            if not len(self._tasks):
                self._tasks.spawn(self._link.prolong(task.pins, task.pin_ttl_s), "prolong-pins")


_threads: dict[str, LoopThread] = {}  # one, made with the first task of this process
_workers: dict[tuple[str, str], _Worker] = {}


def read_split(task: TaskRead) -> Iterator[pa.RecordBatch]:
    """The rows of one task. Raises what `RangeReader.read` raises, if it lasts."""
    thread = _threads.get("read") or _threads.setdefault("read", LoopThread("magnetar-read"))

    async def begin() -> AsyncGenerator[pa.RecordBatch]:
        of = (task.access.cluster_id, task.admin_url)  # a cluster that was started again may have another URL
        worker = _workers.get(of)
        if worker is None:
            worker = _workers[of] = _Worker(task.admin_url, task.access)
        return worker.read(task)

    yield from thread.items(thread.run(begin()))
