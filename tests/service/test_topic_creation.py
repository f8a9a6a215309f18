"""Who creates a topic: its first producer or consumer, and nobody who only asks."""

import asyncio
import dataclasses
from typing import Any

import pytest

from magnetar.protocol.errors import NotAllowedError, ServiceUnitNotReady, TopicNotFound
from magnetar.storage.metadata.keys import ASSIGNMENTS_PREFIX, TOPICS_PREFIX
from magnetar.storage.metadata.store import list_all
from support.servers.coordination import FAST, PREFIX, Coordination, coordination, create, eventually


async def records(cluster: Coordination) -> list[str]:
    """Keys of everything that is kept of topics."""
    found = [await list_all(cluster.store, prefix) for prefix in (TOPICS_PREFIX, ASSIGNMENTS_PREFIX)]
    return [key for part in found for key, _ in part]


async def test_a_name_that_is_looked_up_gets_a_broker_and_leaves_nothing() -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        urls: dict[str, int] = {}
        for index in range(400):
            topic = f"{PREFIX}only-asked-for-{index}"
            url = await one.client.call("lookup", topic=topic)
            assert await two.client.call("lookup", topic=topic) == url  # every broker answers the same
            assert await one.client.call("partitions", topic=topic, create=True) == 0
            urls[url] = urls.get(url, 0) + 1
        assert sorted(urls) == ["pulsar://broker-1:6650", "pulsar://broker-2:6650"]
        assert min(urls.values()) > 100
        assert await records(cluster) == []
        placement, registry = cluster.coordinator.office.placement, cluster.coordinator.office.registry
        assert not registry.topic_count and not placement._askers and not one.assignments


async def test_a_producer_has_the_topic_created_where_the_lookup_sent_it() -> None:
    async with coordination() as cluster:
        brokers = {f"pulsar://broker-{number}:6650": await cluster.broker(number) for number in (1, 2, 3)}
        asker = brokers["pulsar://broker-1:6650"]
        for index in range(30):
            topic = f"{PREFIX}t{index}"
            url = await asker.client.call("lookup", topic=topic)
            found = await brokers[url].client.call("assign", topic=topic)
            assert found["url"] == url
            assert await asker.client.call("lookup", topic=topic) == url
            assert found["grant"][0] == topic
        counts = [len(broker.owned()) for broker in brokers.values()]
        assert sum(counts) == 30 and min(counts) >= 3


async def test_a_broker_that_asks_for_a_topic_of_another_hears_of_its_owner() -> None:
    async with coordination() as cluster:
        one, two = await cluster.broker(1), await cluster.broker(2)
        answers = [await broker.client.call("assign", topic=PREFIX + "t") for broker in (one, two)]
        grants = [answer.pop("grant") for answer in answers]
        assert answers[0] == answers[1]
        assert [grant is not None for grant in grants] == [answers[0]["broker"] == f"broker-{one}" for one in (1, 2)]


async def test_partitions_stay_even_whichever_client_asks_for_them_first() -> None:
    async with coordination() as cluster:
        one, _ = await cluster.broker(1), await cluster.broker(2)
        await create(cluster, "p", 6)
        for index in range(6):
            await one.client.call("assign", topic=f"{PREFIX}p-partition-{index}")
        assert len(one.owned()) in (2, 3, 4)


async def test_a_subscriber_that_does_not_force_creates_nothing() -> None:
    async with coordination() as cluster:
        one = await cluster.broker(1)
        with pytest.raises(TopicNotFound):
            await one.client.call("assign", topic=PREFIX + "t", create=False)
        assert await records(cluster) == []


async def test_without_automatic_creation_a_missing_topic_is_not_found() -> None:
    settings = dataclasses.replace(FAST, allow_auto_topic_creation=False)
    async with coordination(settings) as cluster:
        one = await cluster.broker(1)
        for method, arguments in (("lookup", {}), ("assign", {}), ("partitions", {})):
            with pytest.raises(TopicNotFound):
                await one.client.call(method, topic=PREFIX + "t", **arguments)
        with pytest.raises(TopicNotFound):
            await one.client.call("lookup", topic="persistent://public/none/t")
        assert await records(cluster) == []


async def test_partitioned_creation_is_by_the_question_for_partitions() -> None:
    """As in Pulsar: only with `allowAutoTopicCreationType=partitioned` does that question create anything."""
    settings = dataclasses.replace(FAST, allow_auto_topic_creation_type="partitioned", default_num_partitions=3)
    async with coordination(settings) as cluster:
        call = (await cluster.broker(1)).client.call
        assert await call("lookup", topic=PREFIX + "t-partition-2") == "pulsar://broker-1:6650"
        with pytest.raises(TopicNotFound):
            await call("lookup", topic=PREFIX + "t-partition-3")
        with pytest.raises(TopicNotFound):
            await call("partitions", topic=PREFIX + "t", create=False)
        assert await records(cluster) == []
        assert await call("partitions", topic=PREFIX + "t", create=True) == 3
        assert len(await records(cluster)) == 1


async def test_a_lookup_without_any_broker_is_to_be_repeated() -> None:
    async with coordination() as cluster:
        admin = await cluster.join("admin", "admin")
        with pytest.raises(ServiceUnitNotReady):
            await admin.client.call("lookup", topic=PREFIX + "t")


async def test_the_chosen_broker_may_die_before_it_creates_the_topic() -> None:
    async with coordination() as cluster:
        members: dict[str, Any] = {f"pulsar://broker-{number}:6650": await cluster.broker(number) for number in (1, 2)}
        url = await members["pulsar://broker-1:6650"].client.call("lookup", topic=PREFIX + "t")
        await members.pop(url).close()
        ((other_url, other),) = members.items()
        await eventually(lambda: len(other.client.brokers) == 1)
        assert await other.client.call("lookup", topic=PREFIX + "t") == other_url
        assert await records(cluster) == []


async def test_topics_of_a_namespace_are_bounded_partitions_counted_one_by_one() -> None:
    settings = dataclasses.replace(FAST, topics_max_per_namespace=5)
    async with coordination(settings) as cluster:
        call = (await cluster.broker(1)).client.call
        await call("create_topic", topic=PREFIX + "p", partitions=3)
        with pytest.raises(NotAllowedError, match="Exceed maximum number of topics in namespace"):
            await call("create_topic", topic=PREFIX + "q", partitions=3)
        with pytest.raises(NotAllowedError):
            await call("grow_topic", topic=PREFIX + "p", partitions=6)
        made = await asyncio.gather(
            *(call("assign", topic=f"{PREFIX}t{index}") for index in range(10)), return_exceptions=True
        )
        refused = [one for one in made if isinstance(one, NotAllowedError)]
        assert len(refused) == 8 and len(await records(cluster)) == 3  # p and two topics
        await call("delete_topic", topic=PREFIX + "p")
        await call("create_topic", topic=PREFIX + "r", partitions=1)
        await call("grow_topic", topic=PREFIX + "r", partitions=3)
        with pytest.raises(NotAllowedError):
            await call("assign", topic=PREFIX + "one-more")
        await call("create_namespace", namespace="public/other")
        await call("create_topic", topic="persistent://public/other/t", partitions=5)
        # The next coordinator counts what it finds.
        await cluster.coordinator.close()
        await cluster.start_coordinator()
        await eventually(lambda: cluster.members[0].client.connected)
        with pytest.raises(NotAllowedError):
            await call("assign", topic=PREFIX + "one-more")
        assert cluster.coordinator.office.registry._counts == {"public/default": 5, "public/other": 5}
