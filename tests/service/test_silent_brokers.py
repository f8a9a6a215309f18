"""A broker whose network swallows everything, or one direction: when the client moves, and when it stays.

Each broker stands behind a proxy that can become a black hole. Times are a tenth of the defaults.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from support.fakes.broker import FakeBroker, Topic
from support.servers.black_hole import BlackHole
from support.servers.slow_link import SlowLink

OPTIONS = {"silence_timeout_ms": 100}
TOPIC = "persistent://public/default/t"


class Cluster:
    """Two brokers behind proxies. The first one owns the topic, until `move`."""

    def __init__(self) -> None:
        self.brokers = [FakeBroker(self._url), FakeBroker(self._url)]
        self.holes: list[BlackHole] = []
        self.owner = 0

    def _url(self, topic: str) -> str:
        return f"pulsar://127.0.0.1:{self.holes[self.owner].port}"

    @property
    def service_url(self) -> str:
        return "pulsar://" + ",".join(f"127.0.0.1:{hole.port}" for hole in self.holes)

    async def start(self) -> None:
        for broker in self.brokers:
            await broker.start()
            self.holes.append(await BlackHole(broker.port).start())

    async def stop(self) -> None:
        for hole in self.holes:
            await hole.stop()
        for broker in self.brokers:
            await broker.stop()

    def move(self) -> None:
        """The other broker owns the topic, with all that it holds."""
        self.owner = 1
        for name, topic in self.brokers[0].topics.items():
            self.brokers[1].topics[name] = Topic(topic.ledger_id, list(topic.entries))

    def stored(self, number: int = 0) -> int:
        return len(self.brokers[number].topics[TOPIC].entries)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    found = Cluster()
    await found.start()
    yield found
    await found.stop()


@pytest.mark.promise("31.12")
@pytest.mark.parametrize("cut", [{}, {"answers": False}, {"requests": False}], ids=["both", "requests", "answers"])
async def test_a_producer_moves_with_its_topic_from_a_cut_off_broker(cluster: Cluster, cut: dict[str, bool]) -> None:
    async with AsyncClient(cluster.service_url, **OPTIONS) as client:
        producer = await client.create_producer("t")
        await producer.send(b"0")
        cluster.holes[0].cut(**cut)
        sends = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(1, 6)]
        await asyncio.sleep(0.3)
        assert not any(send.done() for send in sends)
        cluster.move()
        async with asyncio.timeout(2):
            places = [str(await send) for send in sends]
        assert len(set(places)) == 5
        assert cluster.brokers[1].count("PRODUCER") == 1


async def test_a_consumer_and_a_reader_move_with_their_topic(cluster: Cluster) -> None:
    async with AsyncClient(cluster.service_url, **OPTIONS) as client, AsyncClient(cluster.service_url) as other:
        consumer = await client.subscribe("t", "s", initial_position=magnetar.InitialPosition.Earliest)
        reader = await client.create_reader("t", magnetar.MessageId.earliest)
        cluster.holes[0].cut()
        cluster.move()
        async with asyncio.timeout(4):
            producer = await other.create_producer("t")
            await producer.send(b"after")
            assert (await consumer.receive()).data() == b"after"
            assert (await reader.read_next()).data() == b"after"


@pytest.mark.promise("31.12")
async def test_a_producer_stays_at_a_silent_broker_that_owns_its_topic(cluster: Cluster) -> None:
    async with AsyncClient(cluster.service_url, **OPTIONS) as client:
        producer = await client.create_producer("t")
        await producer.send(b"0")
        before = cluster.holes[0].accepted
        cluster.holes[0].cut()
        send = asyncio.ensure_future(producer.send(b"1"))
        await asyncio.sleep(1.0)
        assert not send.done() and 2 <= cluster.brokers[1].count("LOOKUP") <= 25
        cluster.holes[0].heal()
        async with asyncio.timeout(2):
            await send
        assert cluster.holes[0].accepted == before, "no new connection"
        assert cluster.stored() == 2, "nothing was sent twice"


async def test_a_slow_broker_gets_pings_and_no_reconnects(cluster: Cluster) -> None:
    cluster.brokers[0].receipt_delay_s = 0.35
    async with AsyncClient(cluster.service_url, **OPTIONS) as client:
        producer = await client.create_producer("t", batching_enabled=False)
        before = cluster.holes[0].accepted
        await asyncio.gather(*(producer.send(b"%d" % number) for number in range(10)))
        assert cluster.holes[0].accepted == before and cluster.stored() == 10
        assert 1 <= cluster.brokers[0].count("PING") <= 10


async def test_a_lookup_goes_to_another_host_when_the_first_swallows_it(cluster: Cluster) -> None:
    cluster.move()
    for hole in (0, 1):
        cluster.owner = 1 - hole
        cluster.holes[hole].cut()
        async with AsyncClient(cluster.service_url, **OPTIONS) as client, asyncio.timeout(3):
            producer = await client.create_producer("t")
            await producer.send(b"x")
        cluster.holes[hole].heal()


async def test_a_single_broker_that_answers_on_a_new_connection_gets_one(cluster: Cluster) -> None:
    hole = cluster.holes[0]
    async with AsyncClient(f"pulsar://127.0.0.1:{hole.port}", **OPTIONS) as client:
        producer = await client.create_producer("t")
        await producer.send(b"0")
        old = hole.swallow_what_stands()
        async with asyncio.timeout(3):
            await producer.send(b"1")
        assert not any(event.is_set() for event in old) and hole.accepted >= 3, "the question, and the new connection"


async def test_a_large_message_on_a_slow_link_keeps_its_connection_to_a_single_broker(cluster: Cluster) -> None:
    link = await SlowLink(cluster.brokers[0].port, 4_000_000).start()
    cluster.holes[0].port, kept = link.port, cluster.holes[0].port  # what lookups answer
    try:
        async with AsyncClient(f"pulsar://127.0.0.1:{link.port}", **OPTIONS) as client:
            producer = await client.create_producer("t")
            await producer.send(b"0")
            before = link.accepted
            async with asyncio.timeout(5):
                await producer.send(bytes(4_000_000))  # ten times as long as the patience with a silent broker
            assert cluster.stored() == 2, "nothing was sent twice"
            assert cluster.brokers[0].count("PRODUCER") == 1 and link.accepted <= before + 1
    finally:
        cluster.holes[0].port = kept
        await link.stop()


async def test_a_broker_that_never_answers_connect_is_named_with_the_cause(cluster: Cluster) -> None:
    cluster.holes[0].cut()
    options = {"operation_timeout_seconds": 1, "connection_timeout_ms": 100}
    async with AsyncClient(f"pulsar://127.0.0.1:{cluster.holes[0].port}", **options) as client:
        with pytest.raises(magnetar.ConnectError, match="no answer in time"):
            await client.create_producer("t")
