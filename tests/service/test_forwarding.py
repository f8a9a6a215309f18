"""Clients that reach one broker only: it forwards them to the others. With both clients, and with hostile ones."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.protocol.commands import BROKER_REQUEST_ID
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandConnect, CommandLookupTopic, ServerError
from support.clients.sides import FACES, connect
from support.clients.wire_peer import WirePeer
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(
    brokers=2,
    advertised_listeners="internal:pulsar://{host}:{port},web:pulsar+proxy://entry.example.com:6650",
    keep_alive_interval_s=0.3,
)
TOPIC = "persistent://public/default/t"
TOPICS = [f"{TOPIC}-partition-{number}" for number in range(4)]


@pytest.fixture(scope="module", autouse=True)
def topics(cluster: EmbeddedCluster) -> None:
    """Partitions, so that each broker has some."""
    cluster.run(cluster.coordinator_call("create_topic", topic=TOPIC, partitions=len(TOPICS)))


def entry_url(cluster: EmbeddedCluster, scheme: str = "pulsar") -> str:
    """The only broker that clients are told of."""
    return f"{scheme}://127.0.0.1:{cluster.brokers[1].address[1]}"


def peers(cluster: EmbeddedCluster, number: int) -> int:
    """Connections of a broker that it serves itself."""

    async def count() -> int:
        return len(cluster.brokers[number].connections)

    return cluster.run(count())


def forwarded(cluster: EmbeddedCluster) -> int:
    async def count() -> int:
        return len(cluster.brokers[1].forwards.open)

    return cluster.run(count())


def exchange(side: Any, subscription: str) -> None:
    for topic in TOPICS:
        consumer = side.client.subscribe(topic, subscription)
        side.client.create_producer(topic).send(topic.encode())
        assert side.values(consumer, 1, acknowledge=True) == [topic.encode()]


def ways(cluster: EmbeddedCluster, face: str) -> list[tuple[str, dict[str, Any]]]:
    """How a client of a face has itself forwarded: by a listener, or by the scheme of its service URL."""
    by_listener = (entry_url(cluster), {"listener_name": "web"})
    return [by_listener] if face == "official" else [by_listener, (entry_url(cluster, "pulsar+proxy"), {})]


@pytest.mark.promise("30.20", "31.13")
@pytest.mark.parametrize("face", FACES)
def test_a_client_reaches_all_brokers_through_one(cluster: EmbeddedCluster, face: str) -> None:
    for number, (url, options) in enumerate(ways(cluster, face)):
        with connect(url, face, **options) as side:
            exchange(side, f"s-{face}-{number}")
            assert forwarded(cluster) == 1 and peers(cluster, 2) == 1
        wait_until(lambda: forwarded(cluster) == 0 and peers(cluster, 2) == 0)


@pytest.mark.parametrize("face", FACES)
def test_a_forwarded_connection_outlives_silence_and_takes_large_messages(cluster: EmbeddedCluster, face: str) -> None:
    with connect(entry_url(cluster), face, listener_name="web") as side:
        consumer = side.client.subscribe(TOPICS, f"large-{face}")
        producers = [side.client.create_producer(topic) for topic in TOPICS]
        assert forwarded(cluster) == 1
        threading.Event().wait(0.9)  # the owner asks after 0.3 s of silence, and closes after 0.6 s
        assert forwarded(cluster) == 1
        for producer in producers:
            producer.send(bytes(4_000_000))
        values = side.values(consumer, len(TOPICS), acknowledge=True)
        assert [len(value) for value in values] == [4_000_000] * len(TOPICS)


@pytest.mark.promise("30.20")
@pytest.mark.parametrize("face", FACES)
def test_a_forwarded_client_follows_its_topics_when_the_owner_goes(cluster: EmbeddedCluster, face: str) -> None:
    with connect(entry_url(cluster), face, listener_name="web") as side:
        consumer = side.client.subscribe(TOPICS, f"moved-{face}")
        producers = [side.client.create_producer(topic) for topic in TOPICS]
        for round_ in range(3):
            if round_ == 1:
                cluster.run(cluster.stop_broker(2))
            elif round_ == 2:
                cluster.run(cluster.start_broker(2))
            for number, producer in enumerate(producers):
                producer.send(b"%d %d" % (round_, number))
            got = {value for value in side.values(consumer, len(TOPICS), acknowledge=True)}
            assert got == {b"%d %d" % (round_, number) for number in range(len(TOPICS))}


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(3_000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come to this")


@pytest.mark.promise("30.20")
async def test_a_lookup_of_a_forwarding_listener_names_the_owner_and_says_so(cluster: EmbeddedCluster) -> None:
    peer = await WirePeer.open(cluster.brokers[1].address[1])
    for topic in TOPICS:
        plain = await peer.request(CommandLookupTopic(topic=topic, request_id=0))
        found = await peer.request(CommandLookupTopic(topic=topic, request_id=0, advertised_listener_name="web"))
        assert found.proxy_through_service_url and not plain.proxy_through_service_url
        assert found.brokerServiceUrl == plain.brokerServiceUrl
    await peer.close()


@pytest.mark.promise("30.20")
async def test_a_client_is_never_forwarded_to_anything_but_a_broker(cluster: EmbeddedCluster) -> None:
    assert cluster.coordinator is not None
    bookie = next(iter(cluster.bookies.values()))
    for port in (cluster.coordinator.address[1], bookie.address[1], 22):
        peer = await WirePeer.open(cluster.brokers[1].address[1], connect=False)
        peer.send(CommandConnect(client_version="t", protocol_version=21, proxy_to_broker_url=f"127.0.0.1:{port}"))
        refused = await peer.expect(BaseCommand.ERROR)
        assert (refused.request_id, refused.error) == (BROKER_REQUEST_ID, ServerError.ServiceNotReady)
        async with asyncio.timeout(10):
            await peer.ended.wait()
        await peer.close()
    wait_until(lambda: forwarded(cluster) == 0)
