"""What a whole cluster waits for when the faults are over."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.protocol.errors import CoordinatorUnavailable, MagnetarError
from simulation.scenarios import cluster as scenario
from simulation.scenarios.cluster import collect, come_back, finish


class Client:
    """A workload that comes back when `ready` is set; with `provides` it sets that itself."""

    revived_limit_s = 5.0

    def __init__(self, ready: asyncio.Event, *, provides: bool) -> None:
        self.revived_first = provides
        self._ready = ready

    async def run(self, step: Callable[[], Awaitable[Any]], limit_s: float) -> None:
        async with asyncio.timeout(limit_s):
            await step()

    def healed(self) -> None:
        """It has made no faults."""

    async def revived(self) -> None:
        if self.revived_first:
            self._ready.set()
        await self._ready.wait()


async def test_clients_come_back_behind_the_operator_whom_they_need() -> None:
    """Seed 422612198: a publisher was waited for while too many bookies drained, and the operator came after it."""
    ready = asyncio.Event()
    clients: Any = [Client(ready, provides=False), Client(ready, provides=True), Client(ready, provides=False)]
    await come_back(clients)
    assert ready.is_set()


class Stopping:
    """A workload that writes down when it was stopped."""

    def __init__(self, name: str, order: list[str]) -> None:
        self._name = name
        self._order = order

    async def run(self, step: Callable[[], Awaitable[Any]]) -> None:
        await step()

    async def stop(self) -> None:
        self._order.append(self._name)


async def test_readers_look_for_the_end_when_no_broker_serves_what_it_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 826645690: a broker that was cut off told a reader of its end, behind which another one had acknowledged."""
    order: list[str] = []

    def agree(cluster: Any) -> bool:
        order.append("look")
        return order.count("look") == 3

    async def until(condition: Callable[[], bool], limit_s: float, complaint: str) -> None:
        while not condition():  # noqa: ASYNC110  # each look is counted
            await asyncio.sleep(0)

    monkeypatch.setattr(scenario, "owners_agree", agree)
    clients: Any = [Stopping("publisher", order)], [Stopping("reader", order), Stopping("other", order)]
    simulated: Any = SimpleNamespace(until=until)
    await finish(simulated, *clients)
    assert order == ["publisher", "look", "look", "look", "reader", "other"]


class Bookie:
    """Its collections end with these errors, then well."""

    name = "bookie-1"

    def __init__(self, errors: list[MagnetarError]) -> None:
        self.errors = errors
        self.process = self.service = self

    def spawn(self, collection: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(collection, name=name)

    async def collect_garbage(self, *, major: bool) -> None:
        if self.errors:
            raise self.errors.pop()


async def test_a_collection_outlasts_a_coordinator_that_takes_office_late() -> None:
    """Seed 4083 of watching."""
    cluster: Any = SimpleNamespace(loop=SimpleNamespace(now=0.0))
    node: Any = Bookie([CoordinatorUnavailable("the connection to the coordinator ended")])
    await collect(cluster, node)
    assert not node.errors


async def test_a_collection_that_never_ends_well_is_a_finding() -> None:
    moments = iter((0.0, 1.0, 1000.0))

    class Loop:
        """Time goes by with each look."""

        @property
        def now(self) -> float:
            return next(moments)

    cluster: Any = SimpleNamespace(loop=Loop())
    node: Any = Bookie([CoordinatorUnavailable("nobody is there") for _ in range(3)])
    with pytest.raises(AssertionError, match="I8: bookie-1 cannot collect garbage"):
        await collect(cluster, node)
