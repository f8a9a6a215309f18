"""What clients do to a simulated cluster, as setup / start / stop / close, each client in a process of its own.

Here is what all workloads share. A workload that `may_crash` can be killed at any moment while it runs, and begun again
under the same names.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Any

from magnetar import InitialPosition
from magnetar.client.aio.client import AsyncClient
from magnetar.protocol.errors import MagnetarError

from ..checkers.history import History
from ..world.cluster import Node, SimCluster
from ..world.process import Process

ANSWER_LIMIT_S = 60.0
"""I8: after healing, everything asked for happens within this time."""


class Workload:
    """One client in a process of its own."""

    revived_limit_s = ANSWER_LIMIT_S
    revived_first = False
    """Whether others cannot be as far as before the faults until this one is."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str) -> None:
        self.name = name
        self.cluster = cluster
        self.history = history
        self.random = random
        self.process: Process = cluster.client_process(name)
        self.client: AsyncClient
        self.may_crash = False
        self.stopping = False
        self.tasks: list[asyncio.Task[Any]] = []
        self._reviving: asyncio.Task[Any] | None = None

    async def run(self, step: Callable[[], Awaitable[Any]], limit_s: float = ANSWER_LIMIT_S) -> Any:
        """A step in this workload's process. Raises AssertionError (I8) when it takes longer."""

        async def within() -> Any:
            async with asyncio.timeout(limit_s):
                return await step()

        try:
            return await self.process.spawn(within(), name_of(step))
        except TimeoutError:
            raise AssertionError(f"I8: {self.name} {name_of(step)} took over {limit_s:.0f} s") from None

    def begin(self, coroutine: Any, name: str) -> None:
        self.tasks.append(self.process.spawn(coroutine, name))

    def connect(self) -> None:
        """Make the client; called in the process."""
        self.client = self.cluster.client(self.process, operation_timeout_seconds=10)

    def watch(self, stack: ExitStack) -> None:
        """Put what only this workload's topics need beside the nodes, until the stack is left."""

    async def setup(self) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def close(self) -> None:
        await self.client.close()

    # -- crashing --------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """Its process is killed. What it had under way may happen or not."""
        self.process.kill()
        self.tasks.clear()
        self._reviving = None

    def revive(self) -> None:
        """Begin again in another process, unless one runs or everything is being stopped."""
        if self.process.alive or self.stopping:
            return
        self.process = self.cluster.client_process(self.name)
        self._reviving = self.process.spawn(self._begin_again(), "begin again")

    @property
    def begun_again(self) -> bool:
        """Whether it was revived, and so does its setup and its start by itself."""
        return self._reviving is not None

    def healed(self) -> None:
        """The faults are over: it makes none itself from now on."""

    async def revived(self) -> None:
        """Wait until it is as far as before."""
        if self._reviving is not None:
            await self._reviving

    async def _begin_again(self) -> None:
        await self.setup()
        await self.start()

    async def ended(self, process: Process, call: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any] | None":
        """The task of a call in another process, when it is over. None when the process ends before it."""
        task = process.spawn(call, name)
        while not task.done():  # what a killed process has begun never is
            if not process.alive:
                return None
            await asyncio.sleep(0.02)
        return task

    # -- operators ---------------------------------------------------------------------------------------------------

    async def ask(self, node: Node, order: Coroutine[Any, Any, Any], name: str) -> tuple[bool, Any]:
        """Have a node do something: whether it did so, and its answer. False when the node ends, or refuses.

        An error that is none of ours is raised.
        """
        assert node.process is not None
        task = await self.ended(node.process, order, name)
        if task is None:
            return False, None
        error = None if task.cancelled() else task.exception()
        if error is None:
            return not task.cancelled(), None if task.cancelled() else task.result()
        if not isinstance(error, MagnetarError | TimeoutError):
            raise error
        self.history.counts[f"{name} failed: {type(error).__name__}"] += 1
        return False, None

    def crash_coordinator(self, when: str) -> None:
        """Kill the coordinator. The next one begins at once."""
        node = self.cluster.coordinator
        if node.ready:
            self.history.counts[f"coordinator dies while {when}"] += 1
            self.cluster.stop(node)
            self.cluster.begin(node)

    # -- for steps ---------------------------------------------------------------------------------------------------

    async def again(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat what fails; the limit is the caller's."""
        while True:
            try:
                return await attempt()
            except (MagnetarError, TimeoutError) as error:
                self.history.counts[f"{name_of(attempt)} failed: {type(error).__name__}"] += 1
                await asyncio.sleep(0.5)

    async def keep_ledgers(self, topic: str) -> None:
        """Make a subscription that acknowledges nothing.

        Brokers delete what all durable subscriptions have acknowledged, also before a reader that is behind gets it.
        """
        keeper = await self.client.subscribe(topic, f"{self.name}-keeper", initial_position=InitialPosition.Earliest)
        await keeper.close()


def name_of(step: Callable[..., Any]) -> str:
    """What a step is called."""
    name: str = step.func.__name__ if isinstance(step, partial) else step.__name__
    return name.strip("_").replace("_", " ")
