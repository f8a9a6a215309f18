"""Growth of a partitioned topic loses no message: official clients that are connected or away, crashes half-way."""

import asyncio
import itertools
from typing import Any

import pulsar
import pytest

from magnetar.actors.coordinator.topic_growth import TopicGrowths
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.actors.topics.topic import SubscriptionStart
from magnetar.protocol.topics import TopicName
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import list_all
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.growth_cases import (
    GROWTH_CASES,
    SUBSCRIPTION,
    GrowthCase,
    full,
    grow,
    read_all,
    subscribe,
)

_numbers = itertools.count()

pytestmark = pytest.mark.cluster_settings(brokers=2, auditor_interval_s=3600.0)


@pytest.fixture
def topic() -> str:
    """The full name of a topic that no other test uses."""
    return full(f"grows-{next(_numbers)}")


def call(cluster: EmbeddedCluster, method: str, **arguments: Any) -> Any:
    return cluster.run(cluster.coordinator_call(method, **arguments))


def cursors(cluster: EmbeddedCluster, topic: str) -> list[str]:
    """The stored subscriptions of a partition."""
    assert cluster.coordinator is not None
    prefix = metadata_keys.cursors_prefix(TopicName.parse(topic).path)
    found = cluster.run(list_all(cluster.coordinator.office.store, prefix))
    return [metadata_keys.subscription_of(key) for key, _ in found]


def loaded(cluster: EmbeddedCluster, topic: str, partition: int) -> PersistentTopic:
    name = f"{topic}-partition-{partition}"
    found = cluster.brokers[cluster.owner(name)].topics.loaded[name]
    assert isinstance(found, PersistentTopic)
    return found


def publish(client: pulsar.Client, topic: str, count: int) -> set[bytes]:
    """Publish to all partitions in turn, by a producer that asks for them now."""
    mode = pulsar.PartitionsRoutingMode.RoundRobinDistribution
    producer = client.create_producer(topic, message_routing_mode=mode, batching_enabled=False)
    contents = [b"new-%d" % number for number in range(count)]
    for content in contents:
        producer.send(content)
    producer.close()
    return {*contents}


def everything(found: dict[str, list[bytes]]) -> list[bytes]:
    return sorted(one for contents in found.values() for one in contents)


@pytest.mark.promise("23.13")
@pytest.mark.parametrize("case", GROWTH_CASES, ids=lambda case: case.name)
def test_every_message_arrives_after_a_growth_under_load(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str, case: GrowthCase
) -> None:
    figures = case.run(cluster, official_client, topic, 2, 6)
    assert figures.lost == 0 and figures.published >= 100
    assert figures.on_new_partitions > 0


async def subscribed(owner: PersistentTopic, name: str, properties: dict[str, str]) -> None:
    await owner.subscription(name, durable=True, start=SubscriptionStart(), properties=properties)


def test_new_partitions_have_the_subscriptions_with_their_properties(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    """Also those whose state is in a ledger, where only the owner of the first partition can read it."""
    call(cluster, "create_topic", topic=topic, partitions=1)
    publish(official_client, topic, 1)
    for name in ("idle", "moved"):
        cluster.run(subscribed(loaded(cluster, topic, 0), name, {"of": name}))
    consumer = official_client.subscribe(topic, "moved")
    publish(official_client, topic, 3)
    assert len(everything(read_all(consumer))) == 3
    consumer.close()
    reader = official_client.create_reader(topic + "-partition-0", pulsar.MessageId.earliest)
    grow(cluster, topic, 3)
    for index in (1, 2):
        assert cursors(cluster, f"{topic}-partition-{index}") == ["idle", "moved"]
        official_client.subscribe(f"{topic}-partition-{index}", "idle").close()
        subscriptions = loaded(cluster, topic, index).subscriptions
        found = {name: dict(one.cursor.properties) for (name, _), one in subscriptions.items()}
        assert found == {"idle": {"of": "idle"}, "moved": {"of": "moved"}}
    reader.close()


@pytest.mark.promise("23.13")
def test_a_growth_works_where_clients_may_not_create_subscriptions(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    call(cluster, "create_topic", topic=topic, partitions=2)
    subscribe(official_client, topic).close()
    policy = "auto_subscription_creation_override"
    call(cluster, "set_topic_policy", topic=topic, policy=policy, value={"allowAutoSubscriptionCreation": False})
    grow(cluster, topic, 6)
    contents = publish(official_client, topic, 30)
    consumer = subscribe(official_client, topic)
    assert everything(read_all(consumer)) == sorted(contents)
    consumer.close()


@pytest.mark.promise("23.13")
def test_a_subscription_that_is_created_while_the_topic_grows_has_the_new_partitions(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client asked for the partitions before the growth, and subscribes when the list has been made."""
    call(cluster, "create_topic", topic=topic, partitions=2)
    publish(official_client, topic, 4)
    carry_over, listed = TopicGrowths._carry_over, asyncio.Event()

    async def slowly(growths: TopicGrowths, *arguments: Any) -> None:
        await carry_over(growths, *arguments)
        listed.set()
        await asyncio.sleep(0.5)

    monkeypatch.setattr(TopicGrowths, "_carry_over", slowly)

    async def growth() -> Any:
        order = asyncio.ensure_future(cluster.coordinator_call("grow_topic", topic=topic, partitions=6))
        await listed.wait()
        return order

    order = cluster.run(growth())
    consumer = subscribe(official_client, topic)  # two partitions are known
    cluster.run(asyncio.wait_for(order, 30))
    contents = publish(official_client, topic, 30)
    found = read_all(consumer)
    consumer.close()
    consumer = subscribe(official_client, topic)
    for name, more in read_all(consumer).items():
        found.setdefault(name, []).extend(more)
    consumer.close()
    assert everything(found) == sorted(contents)


@pytest.mark.parametrize("earliest", [True, False], ids=["earliest", "latest"])
def test_a_client_that_has_not_heard_of_a_growth_subscribes_to_all_partitions(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str, earliest: bool
) -> None:
    """It names the partitions that it knew before, one by one, as clients do behind their back."""
    call(cluster, "create_topic", topic=topic, partitions=2)
    grow(cluster, topic, 6)
    before = publish(official_client, topic, 12)
    place = pulsar.InitialPosition.Earliest if earliest else pulsar.InitialPosition.Latest
    known = [
        official_client.subscribe(f"{topic}-partition-{one}", SUBSCRIPTION, initial_position=place) for one in (0, 1)
    ]
    after = publish(official_client, topic, 30)
    for consumer in known:
        consumer.close()
    consumer = subscribe(official_client, topic)
    assert {*everything(read_all(consumer))} == (before | after if earliest else after)
    consumer.close()
