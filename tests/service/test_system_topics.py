"""System topics: nobody else creates them, lists leave them out, and brokers use theirs for the health check."""

import asyncio
from dataclasses import replace

import pulsar
import pytest

import magnetar
from magnetar.actors.broker.health import HealthMethods
from magnetar.protocol.errors import NotAllowedError, ServiceUnitNotReady, TopicNotFound
from magnetar.protocol.topics import TopicName
from support.servers.admin_http import Http, admin_of, join_broker
from support.servers.coordination import FAST, coordination
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(brokers=2, heartbeat_interval_s=0.2, session_timeout_s=20.0)

NAMES = ["__change_events", "__transaction_buffer_snapshot", "orders-sub__transaction_pending_ack"]
PATH = "/admin/v2/persistent/public/default"


async def created(http: Http, name: str) -> list[int]:
    return [(await http("PUT", f"{PATH}/{name}"))[0], (await http("PUT", f"{PATH}/{name}-p/partitions", 2))[0]]


@pytest.mark.promise("25.6", "25.7")
async def test_the_admin_creates_no_system_topic_and_lists_those_that_are_there_on_request(http: Http) -> None:
    for name in NAMES:
        assert await http("PUT", f"{PATH}/{name}") == (
            400,
            {"reason": f"persistent://public/default/{name} is the name of a system topic: choose another name"},
        )
        assert (await http("PUT", f"{PATH}/{name}/partitions", 4))[0] == 400
    assert (await http("PUT", f"{PATH}/ordinary"))[0] == 204
    registry = http.cluster.coordinator.office.registry
    own, ordinary = (f"persistent://public/default/{name}" for name in ("__change_events", "ordinary"))
    await registry.create(TopicName.parse(own), 2, system=True)
    partitions = [f"{own}-partition-{number}" for number in range(2)]
    for path in (PATH, "/admin/v2/namespaces/public/default/topics"):
        assert await http("GET", path) == (200, [ordinary])
        assert await http("GET", f"{path}?includeSystemTopic=false") == (200, [ordinary])
        assert await http("GET", f"{path}?includeSystemTopic=true") == (200, [*partitions, ordinary])
    assert await http("GET", f"{PATH}/partitioned") == (200, [])
    assert await http("GET", f"{PATH}/partitioned?includeSystemTopic=true") == (200, [own])


@pytest.mark.promise("25.8")
async def test_without_system_topics_the_names_are_ordinary_and_health_stores_nothing() -> None:
    settings = replace(FAST, system_topic_enabled=False, ack_quorum=2)
    async with coordination(settings) as cluster:
        member = await join_broker(cluster, 1)
        async with admin_of(cluster, settings) as http:
            assert await created(http, NAMES[0]) == [204, 204]
            await http("GET", "/admin/v2/brokers/health")
            assert member.rpc.health_checks == 0


@pytest.mark.promise("25.6")
def test_clients_create_no_system_topic_and_see_none_by_a_pattern(cluster: EmbeddedCluster) -> None:
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=10) as client:
        for name in NAMES:
            topic = f"persistent://public/default/{name}"
            with pytest.raises((magnetar.NotAllowedError, magnetar.TopicNotFound)):
                client.create_producer(topic)
            with pytest.raises(TopicNotFound):
                cluster.run(cluster.coordinator_call("partitions", topic=topic))
        with pytest.raises(NotAllowedError):
            cluster.run(cluster.coordinator_call("assign", topic="__change_events", create=True))
        client.create_producer("persistent://public/default/seen").close()

        async def create() -> None:
            assert cluster.coordinator is not None
            own = TopicName.parse("persistent://public/default/__change_events")
            await cluster.coordinator.office.registry.create(own, 0, system=True)

        cluster.run(create())
        broker = cluster.brokers[1]
        names = cluster.run(broker.lookups.topics("public/default", domain=None, size_max_bytes=1 << 20))
        assert names == ["persistent://public/default/seen"]


@pytest.mark.promise("25.6")
def test_the_official_client_creates_no_system_topic(cluster: EmbeddedCluster, official_client: pulsar.Client) -> None:
    cluster.run(cluster.coordinator_call("create_namespace", namespace="public/official"))
    for name in NAMES:
        topic = f"persistent://public/official/{name}"
        for create in (
            lambda topic=topic: official_client.create_producer(topic),
            lambda topic=topic: official_client.subscribe(topic, "s"),
        ):
            with pytest.raises(pulsar.PulsarException):
                create()
        with pytest.raises(TopicNotFound):
            cluster.run(cluster.coordinator_call("partitions", topic=topic))


def health(cluster: EmbeddedCluster, number: int) -> float:
    broker = cluster.brokers[number]

    async def ask() -> float:
        methods = HealthMethods(broker.env, broker.topics, lambda: broker._coordinator().ask.heartbeat_topic())
        async with asyncio.timeout(20):
            while True:
                try:
                    return await methods.check_health()
                except ServiceUnitNotReady:
                    await asyncio.sleep(0.02)

    return cluster.run(ask())


def heartbeat(cluster: EmbeddedCluster, number: int) -> str:
    return f"persistent://pulsar/127.0.0.1:{cluster.brokers[number].address[1]}/heartbeat"


@pytest.mark.promise("25.3")
def test_each_broker_stores_and_reads_in_its_own_topic_also_after_it_was_elsewhere(cluster: EmbeddedCluster) -> None:
    for number in (1, 2):
        assert 0 < health(cluster, number) < 20
        assert cluster.owner(heartbeat(cluster, number)) == number
    topic = heartbeat(cluster, 1)
    before = cluster.brokers[1].topics.loaded[topic].ledger.last_confirmed  # type: ignore[attr-defined]
    cluster.run(cluster.coordinator_call("unload", topic=topic, destination="broker-2"))
    assert 0 < health(cluster, 1)
    assert cluster.owner(topic) == 1
    assert cluster.brokers[1].topics.loaded[topic].ledger.last_confirmed > before  # type: ignore[attr-defined]


@pytest.mark.promise("25.3")
def test_a_broker_whose_bookies_are_away_is_not_healthy(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("unhealthy")
    with EmbeddedCluster(directory, bookies=2, heartbeat_interval_s=0.1, session_timeout_s=0.5) as cluster:
        assert 0 < health(cluster, 1)
        broker = cluster.brokers[1]
        cluster.run(cluster.stop_bookie(1))

        async def ask() -> float:
            methods = HealthMethods(broker.env, broker.topics, lambda: broker._coordinator().ask.heartbeat_topic())
            async with asyncio.timeout(1.0):
                return await methods.check_health()

        with pytest.raises((TimeoutError, magnetar.MagnetarError)):
            cluster.run(ask())
