"""The loop of one subscription: which plan it reads by, when something changed before it began."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.actors.dispatch.consumer import Delivery
from magnetar.actors.dispatch.dispatcher import Entry, ReadPlan
from magnetar.actors.topics.pump import Pump
from magnetar.actors.topics.traffic import Traffic

LAST = 3


class Scripted:
    """A dispatcher that reads from the first entry to the last, and notes what it is asked and given."""

    gate = active = None
    set_aside_size = 0

    def __init__(self, begin: int) -> None:
        self.generation = 1
        self.next = begin
        self.plans = 0
        self.given: list[int] = []

    def next_read(self, tail: tuple[int, int]) -> ReadPlan | None:
        self.plans += 1
        return ReadPlan(self.generation, (1, self.next), 1) if (1, self.next) <= tail else None

    def distribute(self, plan: ReadPlan, entries: list[Entry]) -> list[Delivery]:
        if plan.generation == self.generation:
            self.given += [position[1] for position, _ in entries]
            self.next = entries[-1][0][1] + 1
        return []

    def rewind(self) -> None:
        self.generation += 1
        self.next = 0


class Host:
    """A topic with a few entries."""

    dispatch_bytes_max = 1000

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []
        self.reads: list[int] = []
        self.chain = SimpleNamespace(last_confirmed=(1, LAST))
        self.ledger = self
        self.counts = SimpleNamespace(markers_among=lambda entries: [], has_chunks=False)
        self.common = SimpleNamespace(traffic=Traffic())
        self.env = SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: 0))

    def spawn(self, coroutine, name: str) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def read(self, first: tuple[int, int], entries_max: int, bytes_max: int) -> list[Entry]:
        self.reads.append(first[1])
        return [(first, b"x")]


@pytest.fixture
async def host() -> Host:
    return Host()


@pytest.fixture
async def pump(host: Host) -> Pump:
    return Pump(host, "s", lambda now_s: "", lambda positions: None)


def scripted(pump: Pump, begin: int = 0) -> Scripted:
    """Give the loop a dispatcher that reads next from that entry on."""
    made = Scripted(begin)
    pump.dispatcher = cast(Any, made)
    return made


async def test_the_plan_that_woke_the_loop_is_the_one_that_it_reads_by(pump: Pump, host: Host) -> None:
    dispatcher = scripted(pump)
    pump.wake()
    pump.wake()
    await asyncio.gather(*host.tasks)
    assert (len(host.tasks), host.reads) == (1, [*range(LAST + 1)])
    assert dispatcher.given == host.reads and dispatcher.plans == LAST + 2, "one for each read, and none left"


async def test_a_rewind_before_the_loop_begins_makes_its_plan_void(pump: Pump, host: Host) -> None:
    dispatcher = scripted(pump, 2)
    pump.wake()
    dispatcher.rewind()
    await asyncio.gather(*host.tasks)
    assert dispatcher.given == [*range(LAST + 1)]


async def test_another_dispatcher_does_not_get_the_plan_of_the_one_before(pump: Pump, host: Host) -> None:
    before = scripted(pump, 2)
    pump.wake()
    after = scripted(pump)
    await asyncio.gather(*host.tasks)
    assert (before.given, after.given) == ([], [*range(LAST + 1)])


async def test_nothing_is_read_when_the_last_consumer_has_left_before_the_loop_begins(pump: Pump, host: Host) -> None:
    scripted(pump)
    pump.wake()
    pump.dispatcher = None
    await asyncio.gather(*host.tasks)
    assert host.reads == []
