"""Clients that have no topic created: `allow_auto_topic_creation` of a client."""

import asyncio

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.configuration import ConsumerType
from magnetar.protocol.errors import TopicNotFound
from support.servers.embedded_cluster import EmbeddedCluster


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


@pytest.mark.parametrize("partitions", [0, 2])
async def test_producers_and_consumers_end_with_their_topic_and_create_none(
    cluster: EmbeddedCluster, partitions: int
) -> None:
    topic = full(f"creation-{partitions}")

    async def call(method: str, **arguments: object) -> None:
        await asyncio.to_thread(lambda: cluster.run(cluster.coordinator_call(method, topic=topic, **arguments)))

    async with AsyncClient(cluster.service_url, allow_auto_topic_creation=False) as client:
        with pytest.raises(TopicNotFound):
            await client.create_producer(topic)
        with pytest.raises(TopicNotFound):
            await client.subscribe(topic, "s")
        await call("create_topic", partitions=partitions)
        producer = await client.create_producer(topic)
        consumer = await client.subscribe(topic, "s", ConsumerType.Shared)
        await producer.send(b"x")
        await consumer.acknowledge(await consumer.receive())
        receiving = asyncio.create_task(consumer.receive())
        await call("delete_topic", force=True)
        with pytest.raises(TopicNotFound):
            await asyncio.wait_for(receiving, 30)
        with pytest.raises(TopicNotFound):
            await producer.send(b"x")
        async with AsyncClient(cluster.service_url, allow_auto_topic_creation=False) as other:
            with pytest.raises(TopicNotFound):  # none of them has brought it back
                await other.subscribe(topic, "s")
