"""Pattern consumers on brokers without topic list watchers: they list the namespace from time to time."""

import asyncio

import pytest

from magnetar.client.aio.client import AsyncClient
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(
    bookies=2,
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=2,
    topic_watchers_enabled=False,
    pattern_evaluation_enabled=False,
)


@pytest.mark.promise("22.4")
async def test_a_pattern_consumer_polls_where_brokers_tell_nothing(cluster: EmbeddedCluster) -> None:
    async with AsyncClient(cluster.service_url) as client:
        consumer = await client.subscribe("polled-.*", "s", is_pattern_topic=True, pattern_auto_discovery_period=1)
        listing = consumer._consumer._discovery.listing
        assert listing is not None and not listing.watched
        producer = await client.create_producer("polled-a")
        async with asyncio.timeout(20):
            while not consumer._consumer.topics.partitions:  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(0.01)
        await producer.send(b"1")
        assert (await consumer.receive(10_000)).data() == b"1"
        assert not cluster.coordinator.office.watchers.namespaces
