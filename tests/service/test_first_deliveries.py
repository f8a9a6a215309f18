"""Which messages a broker calls first deliveries, as our client sees it. Others see nothing of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.client.aio.client import AsyncClient, subscribe_marked
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.consuming.message import is_first_delivery
from magnetar.client.core.configuration import ConsumerType, InitialPosition
from magnetar.client.core.message_id import MessageId
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(brokers=2)

WAIT_MS = 20_000
SHARED_TYPES = pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])


@pytest.fixture
async def connected(cluster: EmbeddedCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.service_url) as made:
        yield made


async def subscribed(
    client: AsyncClient, topic: str, kind: ConsumerType = ConsumerType.Shared, **options: Any
) -> AsyncConsumer:
    return await subscribe_marked(
        client,
        topic=topic,
        subscription_name=options.pop("name", "s"),
        consumer_type=kind,
        initial_position=InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=50,
        **options,
    )


async def publish(client: AsyncClient, topic: str, *payloads: str, **options: Any) -> None:
    producer = await client.create_producer(topic, batching_enabled=False, **options)
    for payload in payloads:
        await producer.send(payload.encode(), partition_key="k")
    await producer.close()


async def received(consumer: AsyncConsumer, count: int) -> dict[str, bool]:
    """So many messages, unacknowledged, and whether each is called a first delivery."""
    messages = [await consumer.receive(WAIT_MS) for _ in range(count)]
    return {bytes(one.data()).decode(): is_first_delivery(one) for one in messages}


@pytest.mark.parametrize(
    "kind", [ConsumerType.Shared, ConsumerType.KeyShared, ConsumerType.Exclusive, ConsumerType.Failover]
)
async def test_what_is_published_to_a_subscription_comes_for_the_first_time_once(
    connected: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    consumer = await subscribed(connected, topic, kind)
    await publish(connected, topic, "a", "b")
    assert await received(consumer, 2) == {"a": True, "b": True}
    consumer.redeliver_unacknowledged_messages()
    assert await received(consumer, 2) == {"a": False, "b": False}
    await publish(connected, topic, "c")
    assert await received(consumer, 1) == {"c": True}


@SHARED_TYPES
async def test_what_a_consumer_that_left_had_is_no_first_delivery(
    connected: AsyncClient, topic: str, kind: ConsumerType
) -> None:
    leaving = await subscribed(connected, topic, kind)
    await publish(connected, topic, "a", "b")
    assert await received(leaving, 2) == {"a": True, "b": True}
    await leaving.close()  # the redelivery count stays 0
    other = await subscribed(connected, topic, kind)
    await publish(connected, topic, "c")
    assert await received(other, 3) == {"a": False, "b": False, "c": True}


async def test_a_negative_acknowledgement_and_a_seek_bring_no_first_deliveries(
    connected: AsyncClient, topic: str
) -> None:
    consumer = await subscribed(connected, topic)
    await publish(connected, topic, "a")
    message = await consumer.receive(WAIT_MS)
    await consumer.negative_acknowledge(message)
    again = await consumer.receive(WAIT_MS)
    assert (is_first_delivery(message), is_first_delivery(again)) == (True, False)
    await consumer.acknowledge(again)
    await consumer.seek(MessageId.earliest)
    assert await received(consumer, 1) == {"a": False}


async def test_a_new_owner_calls_only_what_it_stored_itself_a_first_delivery(
    cluster: EmbeddedCluster, connected: AsyncClient, topic: str
) -> None:
    consumer = await subscribed(connected, topic)
    await publish(connected, topic, "a", "b")
    assert await received(consumer, 2) == {"a": True, "b": True}
    await asyncio.to_thread(cluster.run, cluster.coordinator_call("unload", topic=topic))
    await publish(connected, topic, "c")
    assert await received(consumer, 3) == {"a": False, "b": False, "c": True}


async def test_what_lies_in_a_topic_before_its_subscription_is_in_doubt(connected: AsyncClient, topic: str) -> None:
    await subscribed(connected, topic, name="keeper")
    await publish(connected, topic, "a")
    consumer = await subscribed(connected, topic)
    assert await received(consumer, 1) == {"a": False}
    await consumer.unsubscribe()
    again = await subscribed(connected, topic)
    await publish(connected, topic, "b")
    assert await received(again, 2) == {"a": False, "b": True}


async def test_chunks_and_consumers_that_do_not_ask_are_told_nothing(connected: AsyncClient, topic: str) -> None:
    asking = await subscribed(connected, topic, name="asking")
    silent = await connected.subscribe(topic, "silent")
    large = "x" * (6 << 20)
    await publish(connected, topic, large, chunking_enabled=True)
    await publish(connected, topic, "a")
    assert await received(asking, 2) == {large: False, "a": True}
    assert await received(silent, 2) == {large: False, "a": False}
