"""A consumer of several topics: by list, by pattern, with topics and partitions that come and go."""

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Callable

import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.core.configuration import ConsumerType, InitialPosition, RegexSubscriptionMode
from magnetar.client.core.message_id import MessageId, TopicMessageId
from magnetar.protocol.errors import (
    InvalidConfiguration,
    InvalidTopicName,
    OperationNotSupported,
    Timeout,
)
from support.clients.calls import numbers, publish
from support.servers.embedded_cluster import EmbeddedCluster

EARLIEST = InitialPosition.Earliest
_numbers = itertools.count()


@pytest.fixture
async def client(cluster: EmbeddedCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def name() -> str:
    """The beginning of topic names that no other test uses."""
    return f"several-{next(_numbers)}"


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


async def contents(consumer: AsyncConsumer, count: int) -> dict[str, list[bytes]]:
    """The next messages, by topic, in order."""
    found: dict[str, list[bytes]] = {}
    for _ in range(count):
        message = await consumer.receive(10_000)
        found.setdefault(message.topic_name(), []).append(message.data())
        await consumer.acknowledge(message)
    return found


async def until(condition: Callable[[], object]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


@pytest.mark.promise("22.1", "22.5")
async def test_a_list_of_topics_keeps_the_order_of_each(
    client: AsyncClient, name: str, cluster: EmbeddedCluster
) -> None:
    await cluster_call(cluster, "create_topic", topic=full(f"{name}-p"), partitions=2)
    topics = [f"{name}-a", f"public/default/{name}-b", f"{name}-p", full(f"{name}-a")]
    consumer = await client.subscribe(topics, "s", initial_position=EARLIEST)
    assert consumer.topic() == ",".join(full(f"{name}-{one}") for one in "abp") and consumer.is_connected()
    await publish(client, numbers(20), topic=f"{name}-a")
    await publish(client, numbers(20), batch=7, topic=f"{name}-b")
    await publish(client, numbers(20), topic=f"{name}-p-partition-1")
    assert await contents(consumer, 60) == {
        full(f"{name}-a"): numbers(20), full(f"{name}-b"): numbers(20), full(f"{name}-p-partition-1"): numbers(20),
    }  # fmt: skip


async def cluster_call(cluster: EmbeddedCluster, method: str, **arguments: object) -> None:
    await asyncio.to_thread(lambda: cluster.run(cluster.coordinator_call(method, **arguments)))


async def test_ids_find_their_topic_and_others_are_refused(client: AsyncClient, name: str) -> None:
    topics = [f"{name}-a", f"{name}-b"]
    consumer = await client.subscribe(topics, "s", consumer_type=ConsumerType.Shared, initial_position=EARLIEST)
    for topic in topics:
        await publish(client, numbers(3), topic=topic)
    messages = [await consumer.receive(10_000) for _ in range(6)]
    ids = [message.message_id() for message in messages]
    assert {one.topic_name() for one in ids if isinstance(one, TopicMessageId)} == {full(topic) for topic in topics}
    for message_id in ids[:4]:
        assert isinstance(message_id, TopicMessageId)
        await consumer.acknowledge(MessageId.deserialize(message_id.serialize(), message_id.topic_name()))
    await consumer.negative_acknowledge(ids[4])
    bare = MessageId.deserialize(ids[5].serialize())
    with pytest.raises(OperationNotSupported, match="does not say of which topic"):
        await consumer.acknowledge(bare)
    with pytest.raises(OperationNotSupported, match="of a topic that this consumer does not have"):
        await consumer.acknowledge(MessageId.deserialize(ids[5].serialize(), "elsewhere"))
    with pytest.raises(OperationNotSupported, match="last_message_ids"):
        await consumer.get_last_message_id()
    last = {one.topic_name(): one.entry_id() for one in await consumer.last_message_ids()}
    assert last == {full(f"{name}-a"): 2, full(f"{name}-b"): 2}
    await consumer.close()
    again = await client.subscribe(topics, "s", consumer_type=ConsumerType.Shared)
    left = [(await again.receive(10_000)).message_id() for _ in range(2)]
    assert sorted(left) == sorted(ids[4:])
    with pytest.raises(Timeout):
        await again.receive(50)


@pytest.mark.promise("31.5")
async def test_seek_of_several_topics_by_id_by_time_and_by_a_function(client: AsyncClient, name: str) -> None:
    topics = [f"{name}-a", f"{name}-b"]
    first, second = [full(topic) for topic in topics]
    consumer = await client.subscribe(topics, "s", initial_position=EARLIEST)
    for topic in topics:
        await publish(client, numbers(5), topic=topic)
    ids: dict[str, list[MessageId]] = {}
    for _ in range(10):
        message = await consumer.receive(10_000)
        ids.setdefault(message.topic_name(), []).append(message.message_id())
    await consumer.seek(ids[first][2])
    assert await contents(consumer, 2) == {first: numbers(2, 3)}
    await consumer.seek(lambda topic: MessageId.earliest if topic == second else ids[first][3])
    assert await contents(consumer, 6) == {first: [b"4"], second: numbers(5)}
    await consumer.seek(0)
    assert await contents(consumer, 10) == {first: numbers(5), second: numbers(5)}
    await consumer.seek(MessageId.earliest)
    assert await contents(consumer, 10) == {first: numbers(5), second: numbers(5)}
    for wrong in ("x", -1, True, lambda topic: None):
        with pytest.raises(InvalidConfiguration, match="seek takes"):
            await consumer.seek(wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.promise("22.3", "22.4")
async def test_a_pattern_finds_topics_that_are_created_and_leaves_deleted_ones(
    client: AsyncClient, name: str, cluster: EmbeddedCluster
) -> None:
    await publish(client, [b"0"], topic=f"{name}-in-1")
    await publish(client, [b"0"], topic=f"{name}-out")
    await cluster_call(cluster, "create_topic", topic=full(f"{name}-in-p"), partitions=2)
    pattern = re.compile(f"persistent://public/default/{name}-in-.*")
    consumer = await client.subscribe(pattern, "s", pattern_auto_discovery_period=1)
    members = consumer._consumer.topics.partitions
    assert {topic.local_name: count for topic, count in members.items()} == {f"{name}-in-1": 0, f"{name}-in-p": 2}
    await publish(client, [b"1"], topic=f"{name}-in-1")
    await publish(client, [b"2"], topic=f"{name}-in-p-partition-1")
    assert await contents(consumer, 2) == {full(f"{name}-in-1"): [b"1"], full(f"{name}-in-p-partition-1"): [b"2"]}
    producer = await client.create_producer(f"{name}-in-new")
    await until(lambda: len(members) == 3)
    await producer.send(b"3")
    assert await contents(consumer, 1) == {full(f"{name}-in-new"): [b"3"]}
    await producer.close()
    await cluster_call(cluster, "delete_topic", topic=full(f"{name}-in-1"), force=True)
    await until(lambda: len(members) == 2)
    await publish(client, [b"4"], topic=f"{name}-in-new")
    assert await contents(consumer, 1) == {full(f"{name}-in-new"): [b"4"]}
    records = await asyncio.to_thread(
        lambda: cluster.run(cluster.coordinator_call("topic_records", namespace="public/default"))
    )
    assert full(f"{name}-in-1") not in [record[0] for record in records]  # nobody created it again


@pytest.mark.promise("31.7")
async def test_partitions_that_are_added_are_read_from_their_first_message(cluster: EmbeddedCluster, name: str) -> None:
    await cluster_call(cluster, "create_topic", topic=full(name), partitions=1)
    async with AsyncClient(cluster.service_url, partitions_update_interval_s=1) as client:
        consumer = await client.subscribe(name, "s")
        await cluster_call(cluster, "grow_topic", topic=full(name), partitions=3)
        await publish(client, numbers(3), topic=f"{name}-partition-2")
        assert await contents(consumer, 3) == {full(f"{name}-partition-2"): numbers(3)}
        assert [one.partition for one in consumer._consumer.consumers] == [0, 1, 2]


@pytest.mark.promise("23.1", "31.7")
def test_the_blocking_client_publishes_to_and_reads_added_partitions(cluster: EmbeddedCluster, name: str) -> None:
    cluster.run(cluster.coordinator_call("create_topic", topic=full(name), partitions=1))
    with magnetar.Client(cluster.service_url, partitions_update_interval_s=1) as client:
        consumer, producer = client.subscribe(name, "s"), client.create_producer(name)
        assert producer.send(b"before").partition() == 0
        cluster.run(cluster.coordinator_call("grow_topic", topic=full(name), partitions=3))
        used: set[int] = set()
        sent = [b"before"]
        while used != {0, 1, 2}:
            assert len(sent) < 1_000
            sent.append(b"%d" % len(sent))
            used.add(producer.send(sent[-1]).partition())
            time.sleep(0.02)
        received = [consumer.receive(10_000) for _ in sent]
        assert sorted(one.data() for one in received) == sorted(sent)
        assert {one.message_id().partition() for one in received} == {0, 1, 2}


@pytest.mark.promise("22.2")
@pytest.mark.parametrize(
    ("topic", "options", "error"),
    [
        ([], {}, InvalidConfiguration),
        (["a", 3], {}, InvalidConfiguration),
        ("", {}, InvalidConfiguration),
        (None, {}, InvalidConfiguration),
        (["a", "x/y"], {}, InvalidTopicName),
        (["a"], {"receiver_queue_size": 0}, InvalidConfiguration),
        (re.compile("public/.*/x"), {}, InvalidTopicName),
        (re.compile("public/default"), {}, InvalidTopicName),
        (re.compile("other://public/default/.*"), {}, InvalidTopicName),
        (re.compile("public/default/a|persistent://public/other/b"), {}, InvalidTopicName),
        (re.compile(b"a"), {}, InvalidConfiguration),
        ("(", {"is_pattern_topic": True}, InvalidConfiguration),
        (
            re.compile("persistent://public/default/.*"),
            {"regex_subscription_mode": RegexSubscriptionMode.NonPersistentOnly},
            InvalidConfiguration,
        ),
        ("a", {"regex_subscription_mode": 7}, InvalidConfiguration),
        ("a", {"pattern_auto_discovery_period": 0}, InvalidConfiguration),
    ],
)
async def test_what_is_no_topic_list_or_pattern_is_refused(
    client: AsyncClient, topic: object, options: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await client.subscribe(topic, "s", **options)  # pyright: ignore[reportArgumentType]


async def test_a_topic_and_its_partition_in_one_list_are_refused(
    client: AsyncClient, name: str, cluster: EmbeddedCluster
) -> None:
    await cluster_call(cluster, "create_topic", topic=full(name), partitions=2)
    with pytest.raises(InvalidConfiguration, match="named twice"):
        await client.subscribe([name, f"{name}-partition-0"], "s")


async def test_a_reader_of_several_topics_knows_where_each_one_ends(client: AsyncClient, name: str) -> None:
    topics = [f"{name}-a", f"{name}-b"]
    for topic in topics:
        await publish(client, numbers(4), batch=2, topic=topic)
    reader = await client.create_reader(topics, MessageId.earliest)
    found: list[bytes] = []
    while await reader.has_message_available():
        found.append((await reader.read_next(10_000)).data())
    assert sorted(found) == sorted(numbers(4) * 2)
    await reader.seek(lambda topic: MessageId.earliest if topic == full(f"{name}-a") else MessageId.latest)
    found = []
    while await reader.has_message_available():
        found.append((await reader.read_next(10_000)).data())
    assert found == numbers(4)
    with pytest.raises(InvalidConfiguration, match="a reader takes topics by name"):
        await client.create_reader(re.compile(".*"), MessageId.earliest)  # pyright: ignore[reportArgumentType]


@pytest.mark.promise("22.1")
def test_the_blocking_client_takes_lists_and_patterns(cluster: EmbeddedCluster, name: str) -> None:
    with magnetar.Client(cluster.service_url) as client:
        producers = [client.create_producer(f"{name}-{letter}") for letter in "ab"]
        by_list = client.subscribe([f"{name}-a", f"{name}-b"], "list", initial_position=EARLIEST)
        by_pattern = client.subscribe(re.compile(f"{name}-.*"), "pattern", initial_position=EARLIEST)
        by_text = client.subscribe(f"{name}-.*", "text", initial_position=EARLIEST, is_pattern_topic=True)
        for number, producer in enumerate(producers):
            producer.send(b"%d" % number)
        for consumer in (by_list, by_pattern, by_text):
            messages = [consumer.receive(10_000) for _ in range(2)]
            assert sorted(message.data() for message in messages) == [b"0", b"1"]
            consumer.acknowledge_many(messages)
            consumer.seek(lambda topic: 0)
            assert {consumer.receive(10_000).topic_name() for _ in range(2)} == {full(f"{name}-a"), full(f"{name}-b")}
            assert len(consumer.last_message_ids()) == 2
        by_pattern.unsubscribe()


async def test_a_pattern_that_matches_nothing_yet_waits(client: AsyncClient, name: str) -> None:
    consumer = await client.subscribe(re.compile(f"{name}-.*"), "s", pattern_auto_discovery_period=1)
    with pytest.raises(Timeout):
        await consumer.receive(10)
    assert await consumer.last_message_ids() == []
    producer = await client.create_producer(f"{name}-first")
    await until(lambda: consumer._consumer.topics.partitions)
    await producer.send(b"x")
    assert (await consumer.receive(10_000)).data() == b"x"
