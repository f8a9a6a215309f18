"""Topics of a list that do not exist yet, where brokers create none by themselves."""

import asyncio

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.protocol.errors import TopicNotFound
from support.clients.calls import publish
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(allow_auto_topic_creation=False)
THERE, LATER = "persistent://public/default/there", "persistent://public/default/later"


async def create(cluster: EmbeddedCluster, topic: str) -> None:
    await asyncio.to_thread(lambda: cluster.run(cluster.coordinator_call("create_topic", topic=topic)))


@pytest.mark.promise("22.4")
async def test_a_topic_of_a_list_is_joined_when_it_is_created(cluster: EmbeddedCluster) -> None:
    await create(cluster, THERE)
    async with AsyncClient(cluster.service_url) as client:
        with pytest.raises(TopicNotFound):
            await client.subscribe(LATER, "s")
        consumer = await client.subscribe([THERE, LATER], "s", pattern_auto_discovery_period=1)
        await publish(client, [b"0"], topic=THERE)
        assert (await consumer.receive(10_000)).topic_name() == THERE
        await create(cluster, LATER)
        for _ in range(1_000):
            if len(consumer._consumer.topics.partitions) == 2:
                break
            await asyncio.sleep(0.01)
        await publish(client, [b"1"], topic=LATER)
        assert (await consumer.receive(10_000)).topic_name() == LATER
