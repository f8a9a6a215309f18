"""Producers and consumers whose topic is deleted by force and created again: they go on, as the official client."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.configuration import ConsumerType, InitialPosition
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import ProducerBlockedQuotaExceededException, Timeout, TopicTerminated
from magnetar.protocol.pulsar_pb2 import ServerError
from support.clients.sides import FACES, Side, connect
from support.fakes.broker import FakeBroker
from support.servers.broker_bench import until
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(allow_auto_topic_creation=False)


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


class Topics:
    """Creates and deletes the topics of one cluster."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster

    def create(self, topic: str, partitions: int) -> None:
        self._call("create_topic", topic=full(topic), partitions=partitions)

    def delete(self, topic: str) -> None:
        self._call("delete_topic", topic=full(topic), force=True)

    def _call(self, method: str, **arguments: Any) -> None:
        self._cluster.run(self._cluster.coordinator_call(method, **arguments))


@pytest.fixture
def topics(cluster: EmbeddedCluster) -> Topics:
    return Topics(cluster)


@pytest.fixture(params=FACES)
def side(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> Iterator[Side]:
    with connect(cluster.service_url, request.param) as connected:
        yield connected


def refused_once(caplog: pytest.LogCaptureFixture, what: str) -> bool:
    return any(f"the broker refuses the {what}" in record.message for record in caplog.records)


@pytest.mark.promise("31.19")
@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("kind", ["Exclusive", "Shared"])
def test_clients_go_on_when_their_topic_is_created_again(
    side: Side, topics: Topics, partitions: int, kind: str
) -> None:
    topic = f"again-{side.face}-{kind}-{partitions}"
    topics.create(topic, partitions)
    module = side.module
    consumer = side.client.subscribe(
        topic,
        "s",
        getattr(module.ConsumerType, kind),
        initial_position=module.InitialPosition.Earliest,
    )
    producer = side.client.create_producer(topic)
    producer.send(b"before")
    assert side.values(consumer, 1, acknowledge=True) == [b"before"]
    topics.delete(topic)
    sent: list[BaseException] = []

    def send() -> None:
        try:
            producer.send(b"while it was gone")
        except BaseException as error:
            sent.append(error)

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(module.Timeout):
        consumer.receive(300)
    topics.create(topic, partitions)
    sender.join(60)
    assert not sender.is_alive() and not sent
    producer.send(b"after")
    assert sorted(side.values(consumer, 2, acknowledge=True)) == [b"after", b"while it was gone"]
    assert consumer.is_connected() and producer.is_connected()


@pytest.mark.promise("31.19")
@pytest.mark.parametrize("listed", [False, True], ids=["one topic", "a list"])
@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 2), (0, 3), (3, 2), (2, 0)])
async def test_everything_in_the_new_topic_is_delivered(
    cluster: EmbeddedCluster, topics: Topics, before: int, after: int, listed: bool
) -> None:
    """Also what came before the consumer was back, and with another number of partitions than before."""
    topic = f"shape-{before}-{after}-{listed}"
    await asyncio.to_thread(topics.create, topic, before)
    async with AsyncClient(cluster.service_url) as client, AsyncClient(cluster.service_url) as other:
        consumer = await client.subscribe([topic] if listed else topic, "s", ConsumerType.Shared)
        await asyncio.to_thread(topics.delete, topic)
        with pytest.raises(Timeout):
            await consumer.receive(500)  # by then it was refused at least once
        await asyncio.to_thread(topics.create, topic, after)
        names = [f"{topic}-partition-{index}" for index in range(after)] or [topic]
        for name in names:
            producer = await other.create_producer(name)
            await producer.send(name.encode())
        found: list[bytes] = []
        for _ in names:
            message = await consumer.receive(20_000)
            await consumer.acknowledge(message)
            found.append(message.data())
        assert sorted(found) == [name.encode() for name in names]
        # The partition that is there no longer is found last: its consumer was refused most often.
        await until(lambda: [one.topic.full for one in consumer._consumer.consumers] == list(map(full, names)))


async def test_a_reader_goes_on_in_the_new_topic(cluster: EmbeddedCluster, topics: Topics) -> None:
    topic = "read-again"
    await asyncio.to_thread(topics.create, topic, 0)
    async with AsyncClient(cluster.service_url) as client:
        reader = await client.create_reader(topic, MessageId.earliest)
        producer = await client.create_producer(topic)
        await producer.send(b"0")
        assert (await reader.read_next(10_000)).data() == b"0"
        await asyncio.to_thread(topics.delete, topic)
        with pytest.raises(Timeout):
            await reader.read_next(300)
        await asyncio.to_thread(topics.create, topic, 0)
        await producer.send(b"1")
        assert (await reader.read_next(20_000)).data() == b"1"


# ---- Refusals of a scripted broker ----


@pytest.mark.parametrize(
    "error",
    [
        ServerError.AuthorizationError,
        ServerError.TopicNotFound,
        ServerError.SubscriptionNotFound,
        ServerError.IncompatibleSchema,
        ServerError.NotAllowedError,
        ServerError.InvalidTopicName,
    ],
)
async def test_a_consumer_and_a_producer_that_were_there_go_on_after_a_refusal(
    broker: FakeBroker, client: AsyncClient, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = await client.subscribe("t", "s", initial_position=InitialPosition.Earliest)
    producer = await client.create_producer("t")
    broker.subscribe_errors, broker.producer_errors = [error] * 2, [error] * 2
    broker.drop_connections()
    await producer.send(b"x")
    assert (await consumer.receive(10_000)).data() == b"x"
    assert refused_once(caplog, "consumer on") and refused_once(caplog, "producer on")
    assert not broker.subscribe_errors and not broker.producer_errors


async def test_a_used_up_quota_fails_what_is_pending_and_the_producer_goes_on(
    broker: FakeBroker, client: AsyncClient
) -> None:
    producer = await client.create_producer("t")
    broker.producer_errors = [ServerError.ProducerBlockedQuotaExceededException]
    broker.mute_sends = True
    pending = asyncio.ensure_future(producer.send(b"refused"))
    await broker.until(lambda: broker.count("SEND"))
    broker.mute_sends = False
    broker.drop_connections()
    with pytest.raises(ProducerBlockedQuotaExceededException):
        await pending
    await producer.send(b"stored")


async def test_a_terminated_topic_ends_its_producer_for_good(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t")
    broker.producer_errors = [ServerError.TopicTerminatedError]
    broker.drop_connections()
    with pytest.raises(TopicTerminated):
        await producer.send(b"x")
