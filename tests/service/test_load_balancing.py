"""Load reports over real sockets: who may report, and topics that move for their load by the usual hand-over."""

import asyncio
import dataclasses
import time
from collections import Counter
from pathlib import Path

import pytest

import magnetar
from magnetar.protocol.errors import MagnetarError, StaleEpoch
from magnetar.protocol.load_figures import LoadReport, Rates, UnitRates
from support.servers.admin_http import admin_of
from support.servers.coordination import (
    FAST,
    PREFIX,
    Coordination,
    Member,
    assign_all,
    coordination,
    create,
    eventually,
)
from support.servers.embedded_cluster import EmbeddedCluster

REPORTS = "/admin/v2/broker-stats/load-report"
BALANCING = dataclasses.replace(
    FAST,
    load_report_interval_ms=100,
    load_shedding_interval_minutes=0.2 / 60,
    load_history_share=0.5,
    load_least_entries_over_mean=1,
)
HEAVY = 1000.0


async def report(member: Member, heavy: list[str]) -> None:
    """What a broker says of itself: those of the heavy topics that it owns."""
    named = [UnitRates(topic, Rates(entries_in=HEAVY)) for topic in member.owned() if topic in heavy]
    await member.client.ask.report_load(report=LoadReport(0.1, named, Rates(), len(named), 0.1))


async def reporting(members: list[Member], heavy: list[str]) -> None:
    while True:
        for member in members:
            await report(member, heavy)
        await asyncio.sleep(0.1)


async def evenly_spread(cluster: Coordination, brokers: int, partitions: int) -> list[Member]:
    members = [await cluster.broker(number + 1) for number in range(brokers)]
    await create(cluster, "t", partitions)
    await assign_all(cluster, "t", partitions)
    each = partitions // brokers
    await eventually(lambda: all(len(one.owned()) == each for one in members))
    await eventually(lambda: not cluster.coordinator.office.membership.in_grace)
    return members


async def test_heavy_topics_of_one_broker_spread_over_all_and_are_released_first() -> None:
    async with coordination(BALANCING) as cluster:
        members = await evenly_spread(cluster, 3, 9)
        heavy = members[0].owned()
        task = asyncio.create_task(reporting(members, heavy))
        await eventually(lambda: all(len(set(one.owned()) & set(heavy)) == 1 for one in members))
        moved = sorted(set(heavy) - set(members[0].owned()))
        assert sorted(members[0].rpc.released) == moved
        await asyncio.sleep(1.0)
        task.cancel()
        assert all(len(set(one.owned()) & set(heavy)) == 1 for one in members)
        status = await cluster.coordinator.status()
        assert status["load_moves"] == 2  # type: ignore[typeddict-item]
        loads = [member["load"] for member in status["members"] if member["role"] == "broker"]  # type: ignore[typeddict-item]
        assert loads == [HEAVY, HEAVY, HEAVY]


async def test_topics_that_an_operator_unloaded_stay_where_they_were_put() -> None:
    async with coordination(BALANCING) as cluster:
        members = await evenly_spread(cluster, 2, 4)
        heavy = members[0].owned()
        other = members[1].owned()[0]
        await members[0].client.ask.unload(topic=other, destination="broker-1")
        await eventually(lambda: other in members[0].owned())
        task = asyncio.create_task(reporting(members, [*heavy, other]))
        await eventually(lambda: len(members[0].owned()) == 2)
        await asyncio.sleep(0.5)
        task.cancel()
        assert other in members[0].owned()


async def test_a_broker_that_drains_gets_nothing_for_its_load() -> None:
    async with coordination(BALANCING) as cluster:
        members = await evenly_spread(cluster, 3, 6)
        heavy = members[0].owned()
        cluster.coordinator.office.membership.draining = frozenset({"broker-3"})
        before = members[2].owned()
        task = asyncio.create_task(reporting(members, heavy))
        await eventually(lambda: len(set(members[1].owned()) & set(heavy)) == 1)
        await asyncio.sleep(0.5)
        task.cancel()
        assert members[2].owned() == before


async def test_only_a_live_broker_may_report() -> None:
    async with coordination(BALANCING) as cluster:
        one = await cluster.broker(1)
        await report(one, [])
        cluster.coordinator._require_active().sessions.end(
            next(iter(cluster.coordinator.office.membership.all())), "test"
        )
        with pytest.raises(MagnetarError):
            await report(one, [])
        admin = await cluster.join("admin", "admin")
        with pytest.raises(StaleEpoch, match="admin has no session"):
            await report(admin, [])
        assert (await admin.client.ask.cluster_load()).moves == 0


@pytest.mark.promise("32.8")
async def test_the_admin_shows_what_brokers_reported() -> None:
    async with coordination(BALANCING) as cluster, admin_of(cluster) as http:
        assert await http("GET", REPORTS) == (200, {})
        one, two = await evenly_spread(cluster, 2, 2)
        await eventually(lambda: len(http.admin._coordinator.brokers) == 2)
        heavy = one.owned()
        await report(one, heavy)
        await report(two, [])
        status, found = await http("GET", REPORTS)
        assert status == 200 and sorted(found) == ["broker-1:6650", "broker-2:6650"]
        shown = found["broker-1:6650"]
        assert (shown["load"], shown["msgRateIn"], shown["numTopics"]) == (HEAVY, 0.0, 1)
        assert list(shown["lastStats"]) == heavy and shown["cpu"] == {"usage": 10.0, "limit": 100.0}
        assert (await http("GET", REPORTS + "?brokerId=broker-2:6650"))[1]["load"] == 0.0
        status, answer = await http("GET", REPORTS + "?brokerId=broker-9:6650")
        assert status == 404 and "no live broker broker-9:6650 has reported its load" in str(answer)
        metrics = (await http("GET", "/metrics"))[1]
        assert 'magnetar_brokers_load_skew{node="admin",service="admin"} 2.0' in metrics
        assert f'magnetar_brokers_load{{node="admin",service="admin"}} {HEAVY}' in metrics


def test_running_producers_move_off_the_busiest_broker_and_lose_nothing(tmp_path: Path) -> None:
    with (
        EmbeddedCluster(
            tmp_path,
            brokers=2,
            load_report_interval_ms=100,
            load_shedding_interval_minutes=0.3 / 60,
            load_shedding_grace_minutes=0,
            load_history_share=0.5,
            load_least_entries_over_mean=1,
        ) as cluster,
        magnetar.Client(cluster.service_url) as client,
    ):
        topics = [PREFIX + f"t-{number}" for number in range(4)]
        consumers = [client.subscribe(topic, "all") for topic in topics]
        producers = [client.create_producer(topic, batching_enabled=False) for topic in topics]
        for topic in topics:
            cluster.run(cluster.coordinator_call("unload", topic=topic, destination="broker-1"))
        assert cluster.coordinator is not None
        owner_of = cluster.coordinator.office.rebalancer.owner_of

        def is_even() -> bool:
            return Counter(map(owner_of, topics)) == Counter({"broker-1": 2, "broker-2": 2})

        assert not is_even()
        sent = 0
        deadline = time.monotonic() + 30
        while not is_even():
            assert time.monotonic() < deadline
            for producer in producers:
                producer.send(b"%d" % sent)
            sent += 1
        for _ in range(100):
            for producer in producers:
                producer.send(b"%d" % sent)
            sent += 1
        for consumer in consumers:
            received: set[int] = set()
            while len(received) < sent:
                received.add(int(consumer.receive(timeout_millis=10_000).data()))
            assert received == set(range(sent))
