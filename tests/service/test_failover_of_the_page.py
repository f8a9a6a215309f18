"""Who is active on Failover subscriptions, with each face of our client and with the official one.

The examples are those of Pulsar's page: consumers by name, and how many partitions each of them has.
"""

from collections.abc import Iterator
from typing import Any

import pytest

import magnetar
from magnetar.actors.dispatch.failover import FailoverTopic, choose_by_ring
from support.clients.sides import FACES, Side, connect
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import figures, loaded, until

pytestmark = pytest.mark.cluster_settings(brokers=1, active_consumer_failover_delay_ms=20)


@pytest.fixture(scope="module", params=FACES)
def side(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> Iterator[Side]:
    with connect(cluster.service_url, request.param) as connected:
        yield connected


def join(side: Side, topic: str, name: str, subscription: str, **options: Any) -> Any:
    return side.client.subscribe(
        topic,
        subscription,
        consumer_type=side.module.ConsumerType.Failover,
        initial_position=side.module.InitialPosition.Earliest,
        consumer_name=name,
        **options,
    )


def own(topic: str) -> str:
    """A name for a subscription that no other topic has: the same names on several topics bring the hash ring."""
    return topic.rpartition("/")[2]


def actives(cluster: EmbeddedCluster, topics: list[str], subscription: str) -> list[str]:
    """The active consumer of each topic, as statistics show it."""
    return [figures(cluster, topic)["subscriptions"][subscription]["activeConsumerName"] for topic in topics]


def partitioned(cluster: EmbeddedCluster, topic: str, partitions: int) -> list[str]:
    """The names of the partitions of a new topic."""
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=partitions))
    return [f"{topic}-partition-{index}" for index in range(partitions)]


def each_partition_reaches(
    side: Side, cluster: EmbeddedCluster, members: dict[str, Any], partitions: list[str], expected: list[str]
) -> None:
    """One message to each partition goes to the expected consumer, and to nobody else. All are acknowledged then."""
    for partition in partitions:
        producer = side.client.create_producer(partition)
        producer.send(partition.encode())
        producer.close()
    for name, consumer in members.items():
        mine = [partition.encode() for partition, owner in zip(partitions, expected, strict=True) if owner == name]
        assert sorted(side.values(consumer, len(mine), acknowledge=True)) == mine
    until(lambda: not any(cursor.backlog_entries for one in partitions for cursor in cursors(cluster, one)))


def cursors(cluster: EmbeddedCluster, topic: str) -> list[Any]:
    return list(loaded(cluster, topic).ledger.cursors.values())


FIFTEEN = [f"c{index:02}" for index in range(15)]


@pytest.mark.promise("17.2", "17.5", "17.6", "17.7", "23.4")
@pytest.mark.parametrize(
    ("partitions", "names", "expected"),
    [(2, list("ABCD"), list("AB")), (9, list("ABC"), list("ABC") * 3), (3, FIFTEEN, FIFTEEN[:3])],
    ids=["two_and_four", "nine_and_three", "three_and_fifteen"],
)
def test_partitions_go_to_the_consumers_of_the_page(
    side: Side, cluster: EmbeddedCluster, topic: str, partitions: int, names: list[str], expected: list[str]
) -> None:
    topics, subscription = partitioned(cluster, topic, partitions), own(topic)
    members = {name: join(side, topic, name, subscription) for name in reversed(names)}
    assert actives(cluster, topics, subscription) == expected
    each_partition_reaches(side, cluster, members, topics, expected)
    for name in names[:2]:
        members.pop(name).close()
    left = names[2:]
    expected = [left[index % len(left)] for index in range(partitions)]  # two partitions: C and D, as on the page
    until(lambda: actives(cluster, topics, subscription) == expected)
    each_partition_reaches(side, cluster, members, topics, expected)


@pytest.mark.promise("17.4", "31.4")
@pytest.mark.parametrize("face", ["ours", "asyncio"])
def test_only_the_best_priority_level_takes_part(face: str, cluster: EmbeddedCluster, topic: str) -> None:
    """The official Python client has no option for it; `parity` shows it by raw frames."""
    topics, subscription = partitioned(cluster, topic, 3), own(topic)
    levels = {"A": 1, "B": 1, "D": 0, "C": 0}
    with connect(cluster.service_url, face) as side:
        members = {name: join(side, topic, name, subscription, priority_level=level) for name, level in levels.items()}
        expected = ["C", "D", "C"]
        until(lambda: actives(cluster, topics, subscription) == expected)
        each_partition_reaches(side, cluster, members, topics, expected)


@pytest.mark.promise("17.9")
def test_topics_with_the_same_names_are_shared_by_the_hash_ring(
    side: Side, cluster: EmbeddedCluster, topic: str
) -> None:
    topics, subscription = [f"{topic}-{index}" for index in range(6)], own(topic)
    members = {name: [join(side, one, name, subscription) for one in topics] for name in "AB"}

    def chosen() -> list[str]:
        found = [(one, loaded(cluster, one).subscriptions[subscription, True].consumers) for one in topics]
        return [choose_by_ring(consumers, FailoverTopic(one)).name for one, consumers in found]

    expected = chosen()
    assert set(expected) == {"A", "B"}, "in the order of subscribing A would be active everywhere"
    until(lambda: actives(cluster, topics, subscription) == expected)
    for index, one in enumerate(topics):
        side.client.create_producer(one).send(one.encode())
        assert side.values(members[expected[index]][index], 1, acknowledge=True) == [one.encode()]


@pytest.mark.promise("17.12")
def test_shared_gives_messages_to_its_consumers_in_turns(side: Side, topic: str) -> None:
    shared = side.module.ConsumerType.Shared
    members = [side.client.subscribe(topic, "s", consumer_type=shared) for _ in range(2)]
    producer = side.client.create_producer(topic, batching_enabled=False)
    for number in range(10):
        producer.send(b"%d" % number)
    found = [side.values(member, 5, acknowledge=True) for member in members]
    assert sorted(found[0] + found[1]) == [b"%d" % number for number in range(10)]


@pytest.mark.promise("31.4")
@pytest.mark.parametrize("face", ["ours", "asyncio"])
def test_shared_prefers_the_best_priority_level_while_it_has_permits(
    face: str, cluster: EmbeddedCluster, topic: str
) -> None:
    with connect(cluster.service_url, face) as side:
        options = {"consumer_type": magnetar.ConsumerType.Shared, "receiver_queue_size": 4}
        low = side.client.subscribe(topic, "s", priority_level=1, **options)
        high = side.client.subscribe(topic, "s", priority_level=0, **options)
        producer = side.client.create_producer(topic, batching_enabled=False)
        for number in range(6):
            producer.send(b"%d" % number)
        assert side.values(low, 2) == [b"4", b"5"], "what the better one had no permits for"
        assert side.values(high, 4) == [b"0", b"1", b"2", b"3"]
