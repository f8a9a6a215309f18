"""Whose clock decides what a topic gives up and refuses: see `storage.managed.publish_times`."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.keeping.topic_keeping import TopicKeeping
from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.protocol.errors import ProducerBlockedQuotaExceededException
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.managed.managed_ledger import ManagedLedger
from support.clients.wire_peer import entry
from support.fakes.bookies import FakeCluster
from support.stores.managed_ledger_kit import NAME, append

SECOND = 1000
HOUR = 3600 * SECOND
YEAR = 365 * 24 * HOUR


class SetClock:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def cpu_s(self) -> float:
        return 0.0


class Kept:
    """A topic with the subscription `s`, and its keeping. `publish` sends entries whose producers' clocks are off."""

    def __init__(self, cluster: FakeCluster, clock: SetClock) -> None:
        self.clock = clock
        self.settings = dataclasses.replace(cluster.settings)
        self._cluster = cluster
        self._epoch = 0

    async def load(self) -> None:
        """As a broker does that gains the topic; the one before did not close it."""
        self._epoch += 1
        ledgers = self._cluster.new_ledgers()
        opened = (self._cluster.env, ledgers, self._cluster.metadata, NAME, self._epoch, self._cluster.settings)
        self.ledger = await ManagedLedger.open(*opened)
        self.cursor = await self.ledger.open_cursor("s", "earliest")
        subscription = SimpleNamespace(
            name="s", durable=True, cursor=self.cursor, closed=False, pass_over=self._pass_over
        )
        policies = EffectivePolicies.resolve(self.settings)
        host: Any = SimpleNamespace(
            env=self._cluster.env,
            name=SimpleNamespace(full=NAME),
            policies=policies,
            ledger=self.ledger,
            subscriptions={("s", True): subscription},
            has_producers=False,
            is_open=True,
        )
        self.subscription: Any = subscription
        self.keeping = TopicKeeping(host)

    def _pass_over(self, place: tuple[int, int], *, expired: bool) -> int:
        before = self.cursor.backlog_entries
        self.cursor.acknowledge_cumulative(min((place[0], place[1] - 1), self.ledger.last_confirmed))
        return before - self.cursor.backlog_entries

    async def publish(self, *skews_ms: int, every_ms: int = 0) -> None:
        for skew in skews_ms:
            await append(self.ledger, [entry(at=self.clock.ms + skew)])
            self.clock.ms += every_ms

    async def expire(self, age_ms: int) -> int:
        return await self.keeping.expire(self.subscription, age_ms / 1000)


@asynccontextmanager
async def kept(**changes: Any) -> AsyncIterator[Kept]:
    cluster = FakeCluster(settings=Settings(ledger_entries_max=10, ledger_rollover_min_minutes=0, **changes))
    clock = SetClock()
    cluster.env = dataclasses.replace(cluster.env, clock=clock)
    topic = Kept(cluster, clock)
    await topic.load()
    try:
        yield topic
    finally:
        await topic.ledger.close()
        await cluster.close()


@pytest.mark.promise("28.10")
@pytest.mark.parametrize("moved", [False, True])
async def test_a_producer_whose_clock_is_an_hour_behind_expires_nothing_that_is_fresh(moved: bool) -> None:
    async with kept() as topic:
        await topic.publish(*[-HOUR if number % 5 < 2 else 0 for number in range(100)], every_ms=20)
        if moved:
            await topic.load()
        assert await topic.expire(HOUR // 2) == 0
        topic.clock.ms += HOUR // 2 + 3 * SECOND
        assert await topic.expire(HOUR // 2) == 100


@pytest.mark.parametrize("moved", [False, True])
async def test_a_message_of_next_year_expires_and_so_do_those_behind_it(moved: bool) -> None:
    async with kept() as topic:
        await topic.publish(YEAR, *[0] * 30, every_ms=20)
        if moved:
            await topic.load()
        assert await topic.expire(60 * SECOND) == 0
        topic.clock.ms += 63 * SECOND
        assert await topic.expire(60 * SECOND) == 31


async def test_what_is_older_expires_and_what_came_later_stays() -> None:
    async with kept() as topic:
        await topic.publish(*[0] * 25, every_ms=SECOND)
        topic.clock.ms += 40 * SECOND
        await topic.publish(*[-HOUR, 0] * 6, every_ms=SECOND)
        topic.clock.ms += SECOND
        assert [await topic.expire(seconds * SECOND) for seconds in (80, 68, 60, 30)] == [0, 10, 8, 7]
        assert topic.cursor.backlog_entries == 12


async def test_after_a_load_stamps_count_within_the_time_of_their_ledger() -> None:
    async with kept() as topic:
        await topic.publish(*[0] * 8, every_ms=60 * SECOND)
        await topic.load()
        assert await topic.expire(210 * SECOND) == 5
        await topic.publish(0)
        assert topic.cursor.backlog_entries == 4


@pytest.mark.parametrize("stamp", [0, -HOUR, YEAR])
async def test_the_age_of_a_backlog_is_that_of_its_arrival(stamp: int) -> None:
    async with kept(backlog_quota_time_s=60, backlog_quota_policy="producer_exception") as topic:
        assert topic.keeping.age_s() == -1
        await topic.publish(stamp - topic.clock.ms if stamp == 0 else stamp)
        topic.clock.ms += 30 * SECOND
        await topic.keeping.check_quotas()
        topic.keeping.check_producer()
        assert topic.keeping.age_s() == 30
        topic.clock.ms += 31 * SECOND
        with pytest.raises(ProducerBlockedQuotaExceededException):
            topic.keeping.check_producer()
