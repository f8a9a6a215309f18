"""Brokers that refuse connections, because they have as many as they may: clients go to another one."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pulsar
import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from magnetar.protocol.errors import ConnectError, NotAllowedError
from magnetar.protocol.pulsar_pb2 import ServerError
from support.clients.wire_peer import WirePeer
from support.fakes.broker import FakeBroker, FakeBrokerThread
from support.servers.embedded_cluster import EmbeddedCluster

FULL = ServerError.NotAllowedError
TOPIC = "persistent://public/default/t"
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
TRIES = 20


@pytest.fixture
async def full(broker: FakeBroker) -> AsyncIterator[FakeBroker]:
    """A second scripted broker, which refuses all connections."""
    started = await FakeBroker().start()
    started.connect_error = FULL
    yield started
    await started.stop()


async def begin_at(client: AsyncClient, number: int) -> None:
    """Have a client try the host of that number first, instead of one by chance."""
    lookup = client._running_core().lookup
    await lookup._refresh()
    lookup._current = number


def url_of(*brokers: FakeBroker) -> str:
    return "pulsar://" + ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)


async def test_the_next_host_is_tried_when_one_refuses_the_connection(broker: FakeBroker, full: FakeBroker) -> None:
    async with AsyncClient(url_of(full, broker), operation_timeout_seconds=5) as client:
        await begin_at(client, 0)
        producer = await client.create_producer("t")
        await producer.send(b"a")
        assert full.count("CONNECT") == 1  # the host that answers is kept
        assert len(broker.topic("persistent://public/default/t").entries) == 1


def test_a_blocking_client_tries_the_next_host_too(broker_thread: FakeBrokerThread) -> None:
    refusing = FakeBrokerThread()
    with refusing:
        refusing.call(setattr, refusing.broker, "connect_error", FULL)
        url = url_of(refusing.broker, broker_thread.broker)
        for _ in range(64):  # the first host is chosen by chance
            with magnetar.Client(url, operation_timeout_seconds=5) as client:
                client.create_producer("t").send(b"a")
            if refusing.broker.count("CONNECT"):
                return
    pytest.fail("no client tried the broker that refuses")


async def test_a_refusal_is_raised_at_once_when_all_hosts_refuse(broker: FakeBroker, full: FakeBroker) -> None:
    broker.connect_error = FULL
    async with AsyncClient(url_of(full, broker), operation_timeout_seconds=60) as client, asyncio.timeout(10):
        with pytest.raises(NotAllowedError, match="the test wants error"):
            await client.create_producer("t")
    assert full.count("CONNECT") == broker.count("CONNECT") == 1


async def test_a_host_that_is_down_is_waited_for_although_the_other_one_refuses(
    broker: FakeBroker, full: FakeBroker
) -> None:
    port = broker.port
    await broker.stop()
    async with AsyncClient(url_of(full, broker), operation_timeout_seconds=30) as client:
        creation = asyncio.ensure_future(client.create_producer("t"))
        await full.until(lambda: full.count("CONNECT") >= 2)
        assert not creation.done()
        await broker.start(port)
        await (await creation).send(b"a")


async def test_the_failure_names_the_host_that_is_down(broker: FakeBroker, full: FakeBroker) -> None:
    await broker.stop()
    async with AsyncClient(url_of(full, broker), operation_timeout_seconds=1) as client:
        with pytest.raises(ConnectError, match=f"cannot connect to pulsar://127.0.0.1:{broker.port}"):
            await client.create_producer("t")


async def test_a_broker_that_refuses_says_nothing_about_a_silent_one(broker: FakeBroker, full: FakeBroker) -> None:
    other = await FakeBroker(lambda topic: other.url).start()
    try:
        async with AsyncClient(url_of(broker), operation_timeout_seconds=5) as client:
            lookup = client._running_core().lookup
            suspect = await lookup.connection(TOPIC)
            lookup._hosts = [("127.0.0.1", one.port) for one in (full, other)]
            lookup._turn = 1  # the next question goes to the first of them first
            assert str(other.port) in await lookup.elsewhere(suspect, TOPIC, True)
            assert full.count("CONNECT") == 1
    finally:
        await other.stop()


async def test_our_client_is_told_why_it_is_refused_whatever_the_load(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, brokers=1, connections_max=1) as cluster:
        await broker_1_is_free(cluster)
        peer = await WirePeer.open(cluster.brokers[1].address[1])
        async with asyncio.TaskGroup() as group:
            for _ in range(TRIES):
                group.create_task(refused(cluster.service_url))
        await peer.close()
        async with asyncio.timeout(10):
            while cluster.brokers[1].connection_limits.refusals.open:  # noqa: ASYNC110 - the broker is on another thread
                await asyncio.sleep(0.005)


async def refused(url: str) -> None:
    async with AsyncClient(url, operation_timeout_seconds=60) as client:
        with pytest.raises(NotAllowedError, match=r"Reached the maximum.*connections.*raise brokerMaxConnections"):
            await client.create_producer("t")


def test_the_official_client_fails_as_with_pulsar_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, brokers=1, connections_max=1) as cluster:
        asyncio.run(broker_1_is_free(cluster))
        with socket.create_connection(cluster.brokers[1].address):
            client = pulsar.Client(cluster.service_url, operation_timeout_seconds=1, logger=QUIET)
            with pytest.raises(pulsar.Timeout):  # it asks again, as it does with Pulsar, and keeps the reason to itself
                client.create_producer("t")
            client.close()
        client = pulsar.Client(cluster.service_url, operation_timeout_seconds=30, logger=QUIET)
        assert client.create_producer("t").send(b"a")
        client.close()


def test_official_clients_go_to_the_broker_that_has_room(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, brokers=2, connections_max=2) as cluster:
        full, free = (cluster.brokers[number].address for number in (1, 2))

        async def prepare() -> str:
            async with AsyncClient(f"pulsar://127.0.0.1:{free[1]}") as client:
                topic = await topic_on(cluster, client, 2)
            await broker_1_is_free(cluster)
            return topic

        topic = asyncio.run(prepare())
        held = [socket.create_connection(full) for _ in range(2)]
        for _ in range(TRIES):
            official = pulsar.Client(cluster.service_url, operation_timeout_seconds=30, logger=QUIET)
            assert official.create_producer(topic).send(b"a")
            official.close()
        for one in held:
            one.close()


async def test_clients_go_to_the_broker_that_has_room(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, brokers=2, connections_max=2) as cluster:
        ports = [cluster.brokers[number].address[1] for number in (1, 2)]
        async with AsyncClient(f"pulsar://127.0.0.1:{ports[1]}") as client:
            topic = await topic_on(cluster, client, 2)
        await broker_1_is_free(cluster)
        peers = [await WirePeer.open(ports[0]) for _ in range(2)]
        async with AsyncClient(cluster.service_url, operation_timeout_seconds=10) as client:
            await begin_at(client, 0)
            await (await client.create_producer(topic)).send(b"a")
        for peer in peers:
            await peer.close()


async def test_a_client_has_itself_forwarded_by_another_host_when_one_forwards_enough(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path, brokers=3, proxy_connections_max=1) as cluster:
        ports = [cluster.brokers[number].address[1] for number in (1, 2, 3)]
        async with AsyncClient(f"pulsar://127.0.0.1:{ports[2]}") as client:
            topic = await topic_on(cluster, client, 3)
        entry = [f"127.0.0.1:{port}" for port in ports[:2]]
        async with (
            AsyncClient(f"pulsar+proxy://{entry[0]}", operation_timeout_seconds=10) as first,
            AsyncClient(f"pulsar+proxy://{','.join(entry)}", operation_timeout_seconds=10) as second,
        ):
            await (await first.create_producer(topic)).send(b"a")  # takes the one place
            await begin_at(second, 0)
            await (await second.create_producer(topic)).send(b"b")
            assert [len(cluster.brokers[number].forwards.open) for number in (1, 2)] == [1, 1]


async def broker_1_is_free(cluster: EmbeddedCluster) -> None:
    """Wait until the broker has seen the end of every client's connection."""
    async with asyncio.timeout(10):
        while cluster.brokers[1].connections:  # noqa: ASYNC110 - the broker is on another thread
            await asyncio.sleep(0.005)


async def topic_on(cluster: EmbeddedCluster, client: AsyncClient, broker: int) -> str:
    """The full name of a topic that belongs to a broker; of many topics, chance gives each broker some."""
    for number in range(256):
        topic = f"persistent://public/default/t{number}"
        producer = await client.create_producer(topic)
        owner = cluster.owner(topic)
        await producer.close()
        if owner == broker:
            return topic
    raise AssertionError(f"broker {broker} owns none of 256 topics")
