"""A broker's load reports: what they count, and that nothing ends them."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.broker import service
from magnetar.actors.broker.service import LoadReporting, counts_of_topic
from magnetar.actors.topics.subscription_members import SubscriptionMembers
from magnetar.protocol.errors import CoordinatorUnavailable
from magnetar.protocol.load_figures import LoadReport
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.runtime.meter import Meter
from magnetar.runtime.settings.declarations import Settings
from support.servers.coordination import eventually

NAME = TopicName.parse("persistent://public/default/t")


class Subscribed:
    """A subscription with one consumer, and what former ones got."""

    sent = SubscriptionMembers.sent

    def __init__(self) -> None:
        self._out = Meter(0.0)
        self.consumer = SimpleNamespace(out=Meter(0.0))
        self.dispatcher: Any = SimpleNamespace(consumers=[self.consumer])


class Loaded:
    """A topic of which only the counters matter. `broken`: its counters cannot be read."""

    def __init__(self) -> None:
        self.name = NAME
        self.epoch = 1
        self.broken = False
        self.subscribed = Subscribed()
        self.subscriptions = {("s", True): self.subscribed}
        self._publishing = SimpleNamespace(published=Meter(0.0))

    @property
    def publishing(self) -> Any:
        if self.broken:
            raise ValueError("a defect")
        return self._publishing


class Coordinator:
    """Takes reports; `failures` of them not."""

    def __init__(self) -> None:
        self.reports: list[LoadReport] = []
        self.failures = 0
        self.ask = self

    async def report_load(self, *, report: LoadReport) -> None:
        if self.failures:
            self.failures -= 1
            raise CoordinatorUnavailable("away")
        self.reports.append(report)


class World:
    """A broker with one topic, which reports every 10 ms."""

    def __init__(self, env: Environment) -> None:
        self.topic = Loaded()
        self.coordinator = Coordinator()
        loaded: Any = {NAME.full: self.topic}
        link: Any = self.coordinator
        settings = Settings(load_report_interval_ms=10)
        self._running = asyncio.create_task(LoadReporting(env, settings, loaded, lambda: link).run())

    async def next_report(self) -> LoadReport:
        count = len(self.coordinator.reports)
        await eventually(lambda: len(self.coordinator.reports) > count)
        return self.coordinator.reports[count]

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait([self._running])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    env = Environment.real()
    found = World(env)
    yield found
    await found.close()
    env.close()


async def reports_of(world: World, publish: int) -> LoadReport:
    """The first report that names the topic, after it was published to."""
    await world.next_report()
    world.topic.publishing.published.add(publish, 100 * publish, 1)
    while not (report := await world.next_report()).heaviest:
        continue
    return report


async def test_a_topic_is_named_once_it_moves_data(world: World) -> None:
    report = await reports_of(world, 8)
    assert [one.unit for one in report.heaviest] == [NAME.full]
    rates = report.heaviest[0].rates
    assert round(rates.messages_in * report.interval_s) == 8
    assert round(rates.entries_in * report.interval_s) == 1
    assert round(rates.bytes_in * report.interval_s) == 800
    assert (await world.next_report()).heaviest == []


async def test_a_report_that_did_not_get_through_is_lost_and_the_next_one_follows(world: World) -> None:
    await world.next_report()
    world.coordinator.failures = 3
    assert await world.next_report()
    assert world.coordinator.failures == 0


async def test_a_defect_of_one_topic_does_not_end_the_reports(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.next_report()
    world.topic.broken = True
    await eventually(lambda: "a load report failed" in caplog.text)
    world.topic.broken = False
    assert round((await reports_of(world, 2)).heaviest[0].rates.messages_in) > 0


def test_what_former_and_present_consumers_got_is_counted() -> None:
    topic: Any = Loaded()
    topic.publishing.published.add(5, 500, 2)
    topic.subscribed._out.add(3, 300, 1)
    topic.subscribed.consumer.out.add(4, 400, 2)
    assert counts_of_topic(topic) == (5, 2, 500, 7, 3, 700)
    topic.subscribed.dispatcher = None
    assert counts_of_topic(topic) == (5, 2, 500, 3, 1, 300)


async def test_many_topics_are_looked_at_in_several_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TOPICS_AT_A_TIME", 1)
    assert (await reports_of(world, 1)).topics == 1
