"""A read that this process has planned for the tasks of Spark or Ray Data, and whose ledgers it keeps meanwhile.

The plan's ledgers are pinned: brokers do not trim them. This process prolongs the pins until `KeptPins` is closed or
forgotten, or until it ends. Then they last for `pin_ttl_s` more, and tasks that run prolong them, too.
"""

import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

from ..runtime.environment import Environment
from .access import ClusterAccess, access_over_http, admin_through_ray, cluster_access, locate_over_http
from .cluster_link import Pin
from .decryption import ReadKeys
from .loop_thread import LoopThread
from .planner import PIN_TTL_S, Planner
from .read_plan import PartitionPlan, PointsInTopic, split_by_size
from .task_reading import TaskRead
from .typed.choice import RowShape, parse_choice, row_shape


class AskedRead(NamedTuple):
    """What a user asks for; see `magnetar.to_arrow`. `admin_url`: None finds the cluster through Ray."""

    topic: str
    start: PointsInTopic
    end: PointsInTopic
    columns: Sequence[str] | None
    schema: str | int | None
    is_read_compacted: bool
    keys: ReadKeys
    admin_url: str | None
    plan_timeout_s: float
    pin_ttl_s: float = PIN_TTL_S


class PlannedTopic(NamedTuple):
    """What is read. It may be pickled."""

    asked: AskedRead
    admin_url: str
    access: ClusterAccess
    plans: Sequence[PartitionPlan]
    shape: RowShape
    pins: tuple[Pin, ...]

    def shape_of(self, columns: Sequence[str] | None) -> RowShape:
        """What rows look like that have only these of the planned columns. None: all."""
        return self.shape if columns is None else self.shape._replace(columns=tuple(columns))

    def tasks(self, size_bytes: int, tasks_min: int, columns: Sequence[str] | None = None) -> list[TaskRead]:
        """The tasks, in the order of the topic: of about `size_bytes` each, and at least so many. `columns`: only
        these of the planned ones.
        """
        asked, shape = self.asked, self.shape_of(columns)
        return [
            TaskRead(self.admin_url, self.access, part, shape, self.pins, asked.pin_ttl_s, asked.keys)
            for part in split_by_size(self.plans, size_bytes, tasks_min)
        ]


class KeptPins:
    """The pins of a planned read, which this process prolongs."""

    def __init__(self, env: Environment, planner: Planner) -> None:
        self._env = env
        self._planner = planner
        self._closed = False

    def close(self) -> None:
        """Remove the pins. From any thread, without waiting; a second call does nothing."""
        loop_of_reads().start(self.end())

    def forget(self) -> None:
        """Prolong the pins no longer: tasks may still need them, so they only expire."""
        loop_of_reads().start(self.end(unpin=False))

    async def end(self, *, unpin: bool = True) -> None:
        """The same as `close` or `forget`, on the loop of the planner."""
        if self._closed:
            return
        self._closed = True
        if not unpin:
            self._planner.detach()
        await self._planner.close()
        self._env.close()


_lock = threading.Lock()
_threads: dict[str, LoopThread] = {}  # one, made with the first plan of this process


def loop_of_reads() -> LoopThread:
    """The loop on which the planners of this process are."""
    with _lock:
        return _threads.get("reads") or _threads.setdefault("reads", LoopThread("magnetar-reads"))


def plan_read(asked: AskedRead) -> tuple[PlannedTopic, KeptPins]:
    """Ask the owners of a topic what there is to read, and pin it. Leaves no pins behind when it fails.

    Raises what `magnetar.to_arrow` raises before it reads.
    """
    choice = parse_choice(asked.schema)
    if choice is None:
        row_shape(asked.columns)

    async def planned() -> tuple[PlannedTopic, KeptPins]:
        url = await admin_through_ray() if asked.admin_url is None else asked.admin_url
        access = await (cluster_access() if asked.admin_url is None else access_over_http(url))
        async with AsyncExitStack() as after_failure:
            env = Environment.real(threads_max=1)
            after_failure.callback(env.close)
            planner = Planner(
                env,
                access,
                asked.topic,
                timeout_s=asked.plan_timeout_s,
                pin_ttl_s=asked.pin_ttl_s,
                locate=locate_over_http(url),
            )
            after_failure.push_async_callback(planner.close)
            plans = await planner.plan(asked.start, asked.end, compacted=asked.is_read_compacted)
            shape = await planner.shape(asked.columns, choice)
            after_failure.pop_all()
            return PlannedTopic(asked, url, access, plans, shape, planner.pins), KeptPins(env, planner)

    return loop_of_reads().run(planned())
