"""Ways to receive, with each face of our client and, where it has them, the official one.

Batches of messages, null values, several topics, readers of several topics and of ranges of hashes, added partitions.
"""

import re
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

import magnetar
from support.clients.sides import FACES, Side, connect
from support.servers.embedded_cluster import EmbeddedCluster

OURS = pytest.mark.parametrize("side", ["ours", "asyncio"], indirect=True)
"""The official Python client has no such calls."""


@pytest.fixture(params=FACES)
def side(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> Iterator[Side]:
    with connect(cluster.service_url, request.param) as connected:
        yield connected


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def send(side: Side, topic: str, contents: list[Any], **options: Any) -> list[Any]:
    producer = side.client.create_producer(topic, batching_enabled=False, **options)
    ids = [producer.send(content) for content in contents]
    producer.close()
    return ids


@pytest.mark.promise("31.2")
def test_a_batch_receive_ends_at_its_first_limit(side: Side, topic: str) -> None:
    def received(name: str, *limits: int) -> list[bytes]:
        policy = side.module.ConsumerBatchReceivePolicy(*limits)
        consumer = side.client.subscribe(
            topic, name, initial_position=side.module.InitialPosition.Earliest, batch_receive_policy=policy
        )
        return [message.data() for message in consumer.batch_receive()]

    send(side, topic, numbers(10))
    assert received("number", 4, -1, 10_000) == numbers(4)
    assert received("bytes", -1, 3, 10_000) == numbers(3)
    assert received("time", 100, -1, 200) == numbers(10)


@pytest.mark.promise("31.3")
def test_a_null_value_is_told_from_an_empty_one(side: Side, topic: str) -> None:
    consumer = side.client.subscribe(topic, "s")
    producer = side.client.create_producer(topic)
    producer.send(None, partition_key="k")
    producer.send(b"", partition_key="k")
    null, empty = (consumer.receive(10_000) for _ in range(2))
    assert null.data() == empty.data() == b""
    assert null.has_null_value() and not empty.has_null_value()


@pytest.mark.promise("16.5")
def test_a_subscription_needs_a_name(side: Side, cluster: EmbeddedCluster, topic: str) -> None:
    with pytest.raises((magnetar.InvalidConfiguration, pulsar.NotAllowedError)):
        side.client.subscribe(topic, "")
    found = [broker.topics.loaded[topic] for broker in cluster.brokers.values() if topic in broker.topics.loaded]
    assert not any(one.subscriptions for one in found)


@pytest.mark.promise("22.2")
@pytest.mark.parametrize("pattern", ["persistent://public/.*/t", "public/.*"])
def test_a_pattern_beyond_one_namespace_is_refused(side: Side, pattern: str) -> None:
    with pytest.raises((magnetar.InvalidTopicName, pulsar.InvalidTopicName)):
        side.client.subscribe(re.compile(pattern), "s")


@pytest.mark.promise("22.1", "22.5")
def test_each_of_several_topics_keeps_its_order(side: Side, topic: str) -> None:
    topics = [f"{topic}-{letter}" for letter in "abc"]
    consumer = side.client.subscribe(topics, "s", initial_position=side.module.InitialPosition.Earliest)
    for one in topics:
        send(side, one, numbers(10))
    found: dict[str, list[bytes]] = {}
    for _ in range(30):
        message = consumer.receive(10_000)
        found.setdefault(message.topic_name(), []).append(message.data())
        consumer.acknowledge(message)
    assert found == {one: numbers(10) for one in topics}


@pytest.mark.promise("22.3", "22.4")
@OURS  # the official Python client looks every minute, whatever its period says
def test_a_topic_that_is_created_later_joins_a_pattern(side: Side, topic: str) -> None:
    earliest = side.module.InitialPosition.Earliest
    send(side, f"{topic}-a", [b"a"])
    consumer = side.client.subscribe(
        re.compile(f"{topic}-.*"), "s", initial_position=earliest, pattern_auto_discovery_period=1
    )
    assert side.values(consumer, 1) == [b"a"]
    send(side, f"{topic}-b", [b"b"])
    assert side.values(consumer, 1) == [b"b"]


@pytest.mark.promise("31.5")
@OURS
def test_seeking_and_the_last_ids_of_several_topics(side: Side, topic: str) -> None:
    first, second = topics = [f"{topic}-{letter}" for letter in "ab"]
    ids = {one: send(side, one, numbers(5)) for one in topics}
    consumer = side.client.subscribe(topics, "s", initial_position=magnetar.InitialPosition.Earliest)
    assert {one.topic_name(): one.entry_id() for one in consumer.last_message_ids()} == {first: 4, second: 4}
    assert len(side.values(consumer, 10, acknowledge=True)) == 10
    consumer.seek(lambda name: magnetar.MessageId.earliest if name == first else ids[second][3])
    again = [consumer.receive(10_000) for _ in range(6)]
    assert [message.data() for message in again if message.topic_name() == first] == numbers(5)
    assert [message.data() for message in again if message.topic_name() == second] == [b"4"]


@pytest.mark.promise("31.6")
@OURS
def test_readers_of_several_topics_and_of_ranges_of_hashes(side: Side, topic: str) -> None:
    def read(topics: str | list[str], **options: Any) -> list[bytes]:
        reader, found = side.client.create_reader(topics, magnetar.MessageId.earliest, **options), []
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data())
        reader.close()
        return found

    topics = [f"{topic}-{letter}" for letter in "ab"]
    for one in topics:
        producer = side.client.create_producer(one)
        for content in numbers(20):
            producer.send(content, partition_key=f"key-{content.decode()}")
    assert sorted(read(topics)) == sorted(numbers(20) * 2)
    halves = [read(topics[0], key_hash_ranges=[half]) for half in ((0, 32_767), (32_768, 65_535))]
    assert all(halves) and sorted(halves[0] + halves[1]) == sorted(numbers(20))


@pytest.mark.promise("31.7")
@pytest.mark.parametrize("face", ["ours", "asyncio"])
def test_a_consumer_notices_partitions_that_are_added(face: str, cluster: EmbeddedCluster, topic: str) -> None:
    """The official Python client has no option for the interval, which is a minute."""
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=1))
    with connect(cluster.service_url, face, partitions_update_interval_s=1) as side:
        consumer = side.client.subscribe(topic, "s")
        cluster.run(cluster.coordinator_call("grow_topic", topic=topic, partitions=2))
        send(side, f"{topic}-partition-1", numbers(3))
        assert side.values(consumer, 3, acknowledge=True) == numbers(3)
