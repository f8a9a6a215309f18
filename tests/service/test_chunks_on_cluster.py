"""Chunked messages through real brokers, with our client and with the official one, each reading the other's."""

import os
from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from support.clients.sides import FACES, connect
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import figures

SIZE_MAX = 20_000
LARGE = [os.urandom(3 * SIZE_MAX + number) for number in range(4)]

pytestmark = pytest.mark.cluster_settings(max_message_size_bytes=SIZE_MAX)


@pytest.fixture
async def ours(cluster: EmbeddedCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=20) as client:
        yield client


def official_producer(client: pulsar.Client, topic: str, **options: Any) -> pulsar.Producer:
    return client.create_producer(topic, chunking_enabled=True, batching_enabled=False, **options)


async def our_producer(client: AsyncClient, topic: str, **options: Any) -> Any:
    return await client.create_producer(topic, chunking_enabled=True, batching_enabled=False, **options)


async def some(consumer: Any) -> list[magnetar.Message]:
    """What comes soon, if anything does."""
    try:
        return [*await consumer.receive_many(10, 50)]
    except magnetar.Timeout:
        return []


@pytest.mark.promise("13.4", "13.8")
async def test_each_client_reads_the_chunks_of_the_other(ours: AsyncClient, official_client: pulsar.Client) -> None:
    theirs_consumer = official_client.subscribe("both", "theirs")
    our_consumer = await ours.subscribe("both", "ours")
    producer = await our_producer(ours, "both", compression_type=magnetar.CompressionType.ZSTD)
    other = official_producer(official_client, "both", compression_type=pulsar.CompressionType.LZ4)
    ids = [await producer.send(LARGE[0]), other.send(LARGE[1]), await producer.send(b"small")]
    for expected, message_id in zip([LARGE[0], LARGE[1], b"small"], ids, strict=True):
        theirs, own = theirs_consumer.receive(5000), await our_consumer.receive(5000)
        assert theirs.data() == own.data() == expected
        assert str(theirs.message_id()) == str(own.message_id()) == str(message_id)
        assert theirs.message_id().serialize() == own.message_id().serialize() == message_id.serialize()
        theirs_consumer.acknowledge(theirs)
        await our_consumer.acknowledge(own)


@pytest.mark.promise("13.9", "13.10")
@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared"])
async def test_interwoven_chunks_of_two_producers(ours: AsyncClient, official_client: pulsar.Client, kind: str) -> None:
    topic = f"interwoven-{kind}"
    consumer_type = magnetar.ConsumerType[kind]
    consumers = [await ours.subscribe(topic, "s", consumer_type=consumer_type, ack_group_time_ms=0)]
    if kind != "Exclusive":
        consumers.append(await ours.subscribe(topic, "s", consumer_type=consumer_type, ack_group_time_ms=0))
    theirs = official_client.subscribe(topic, "theirs", pulsar.ConsumerType.Exclusive)
    one, other = await our_producer(ours, topic), official_producer(official_client, topic)
    sent: list[bytes] = []
    for number, content in enumerate(LARGE * 3):
        marked = b"%d:" % number + content
        sent.append(marked)
        if number % 2:
            other.send_async(marked, lambda *_: None)
        else:
            one.send_async(marked, lambda *_: None)
    await one.flush()
    other.flush()
    found: list[bytes] = []
    while len(found) < len(sent):
        for consumer in consumers:
            for message in await some(consumer):
                found.append(message.data())
                await consumer.acknowledge(message)
    assert sorted(found) == sorted(sent) == sorted(theirs.receive(5000).data() for _ in sent)


@pytest.mark.promise("13.10")
async def test_a_shared_subscription_redelivers_whole_messages(ours: AsyncClient) -> None:
    options: dict[str, Any] = {
        "consumer_type": magnetar.ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 50, "ack_group_time_ms": 0
    }  # fmt: skip
    one = await ours.subscribe("again", "s", **options)
    producer = await our_producer(ours, "again")
    for content in LARGE:
        await producer.send(content)
    for _ in LARGE:
        await one.negative_acknowledge(await one.receive(5000))
    other = await ours.subscribe("again", "s", **options)
    found: set[bytes] = set()
    while len(found) < len(LARGE):
        for consumer in (one, other):
            for message in await some(consumer):
                assert message.redelivery_count() > 0
                found.add(message.data())
                await consumer.acknowledge(message)
    assert found == set(LARGE)


@pytest.mark.promise("13.10")
async def test_a_leaving_consumer_hands_whole_messages_over(ours: AsyncClient) -> None:
    shared = magnetar.ConsumerType.Shared
    leaving = await ours.subscribe("handover", "s", consumer_type=shared, receiver_queue_size=2)
    staying = await ours.subscribe("handover", "s", consumer_type=shared)
    producer = await our_producer(ours, "handover")
    for content in LARGE:
        await producer.send(content)
    await leaving.close()
    assert sorted([(await staying.receive(5000)).data() for _ in LARGE]) == sorted(LARGE)


@pytest.mark.promise("13.6", "20.8")
@pytest.mark.parametrize("face", FACES)
def test_figures_count_chunks(cluster: EmbeddedCluster, face: str) -> None:
    topic = f"persistent://public/default/figures-{face}"
    with connect(cluster.service_url, face) as side:
        producer = side.client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
        consumer = side.client.subscribe(topic, "s")
        producer.send(b"x")
        shown = figures(cluster, topic)
        assert not shown["msgChunkPublished"] and shown["publishers"][0]["chunkedMessageRate"] == 0
        producer.send(LARGE[0])
        assert side.values(consumer, 2) == [b"x", LARGE[0]]
        shown = figures(cluster, topic)
        assert shown["msgChunkPublished"] and shown["publishers"][0]["chunkedMessageRate"] > 0
        subscription = shown["subscriptions"]["s"]
        assert subscription["chunkedMessageRate"] == subscription["consumers"][0]["chunkedMessageRate"] > 0


@pytest.mark.promise("31.10")
@pytest.mark.parametrize("inclusive", [True, False])
async def test_seek_and_readers_start_at_the_first_chunk(
    ours: AsyncClient, official_client: pulsar.Client, inclusive: bool
) -> None:
    topic = f"seek-{inclusive}"
    producer = await our_producer(ours, topic)
    ids = [await producer.send(content) for content in LARGE]
    expected = LARGE[1:] if inclusive else LARGE[2:]
    consumer = await ours.subscribe(topic, "s", start_message_id_inclusive=inclusive)
    await consumer.seek(ids[1])
    assert [(await consumer.receive(5000)).data() for _ in expected] == expected
    reader = await ours.create_reader(topic, ids[1], start_message_id_inclusive=inclusive)
    assert [(await reader.read_next(5000)).data() for _ in expected] == expected
    assert not await reader.has_message_available()
    theirs = official_client.subscribe(topic, "t", start_message_id_inclusive=inclusive)
    theirs.seek(pulsar.MessageId.deserialize(ids[1].serialize()))
    assert theirs.receive(5000).data() == expected[0]


@pytest.mark.promise("13.1")
def test_the_blocking_face(cluster: EmbeddedCluster) -> None:
    with magnetar.Client(cluster.service_url) as client:
        consumer = client.subscribe("blocking", "s")
        producer = client.create_producer("blocking", chunking_enabled=True, batching_enabled=False)
        sent = producer.send(LARGE[0])
        message = consumer.receive(5000)
        assert message.data() == LARGE[0] and message.message_id() == sent
        consumer.acknowledge(message)
