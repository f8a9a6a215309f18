"""Our client against a whole cluster in this process: what a fake broker cannot vouch for."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import magnetar
from magnetar import (
    CompressionType,
    ConsumerBusy,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    PartitionsRoutingMode,
    Timeout,
)
from magnetar.cluster.handle import Cluster

EARLIEST = InitialPosition.Earliest
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("cluster")
    with magnetar.start(embedded=True, data_dir=directory, port=0, admin_port=0) as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[magnetar.Client]:
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"client-{next(_numbers)}"


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def publish(client: magnetar.Client, topic: str, payloads: list[bytes], batch: int) -> list[MessageId]:
    producer = client.create_producer(topic, batching_enabled=batch > 1, batching_max_messages=batch)
    ids = producer.send_many(payloads)
    producer.close()
    return ids


def receive(consumer: magnetar.Consumer, count: int) -> list[bytes]:
    return [consumer.receive(10_000).data() for _ in range(count)]


def nothing_more(consumer: magnetar.Consumer) -> bool:
    with pytest.raises(Timeout):
        consumer.receive(150)
    return True


def read_all(reader: magnetar.Reader) -> list[bytes]:
    got = []
    while reader.has_message_available():
        got.append(reader.read_next(10_000).data())
    return got


@pytest.mark.promise("1.1", "2.1", "2.2", "2.3", "2.7", "2.12", "10.1")
@pytest.mark.parametrize("compression", list(CompressionType))
def test_everything_on_a_message(client: magnetar.Client, topic: str, compression: CompressionType) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, "me", batching_enabled=True, compression_type=compression)
    sent = producer.send(b"x" * 500, {"ä": "ö"}, "key", "order", 7, event_timestamp=99)
    message = consumer.receive(10_000)
    assert (message.data(), message.properties(), message.partition_key()) == (b"x" * 500, {"ä": "ö"}, "key")
    assert (message.ordering_key(), message.sequence_id(), message.event_timestamp()) == ("order", 7, 99)
    assert (message.message_id(), message.producer_name()) == (sent, "me")
    assert producer.send(None, partition_key="key")
    assert consumer.receive(10_000).has_null_value()


@pytest.mark.promise("11.2")
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("inclusive", [True, False])
def test_seeking_and_reading_from_a_message(client: magnetar.Client, topic: str, batch: int, inclusive: bool) -> None:
    ids = publish(client, topic, numbers(16), batch)
    assert len(set(ids)) == 16 and ids == sorted(ids)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, start_message_id_inclusive=inclusive)
    assert receive(consumer, 16) == numbers(16)
    for target in (5, 0, 15, 7):
        first = target if inclusive else target + 1
        consumer.seek(ids[target])
        assert receive(consumer, 16 - first) == numbers(16 - first, first)
        assert nothing_more(consumer)
        with client.create_reader(topic, ids[target], start_message_id_inclusive=inclusive) as reader:
            assert read_all(reader) == numbers(16 - first, first)
    assert consumer.get_last_message_id() == ids[-1]


def test_the_ends_of_a_topic_and_times(client: magnetar.Client, topic: str) -> None:
    reader = client.create_reader(topic, MessageId.earliest)
    assert not reader.has_message_available()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert consumer.get_last_message_id() == MessageId.earliest
    publish(client, topic, numbers(6), 3)
    assert read_all(reader) == numbers(6)
    latest = client.create_reader(topic, MessageId.latest)
    last = client.create_reader(topic, MessageId.latest, start_message_id_inclusive=True)
    assert not latest.has_message_available()
    assert read_all(last) == [b"5"]
    first = consumer.receive(10_000)
    consumer.seek(MessageId.latest)
    assert nothing_more(consumer)
    consumer.seek(first.publish_timestamp())
    assert receive(consumer, 6) == numbers(6)
    reader.seek(MessageId.earliest)
    assert read_all(reader) == numbers(6)
    reader.seek(first.publish_timestamp() + 10_000_000)
    assert not reader.has_message_available()
    publish(client, topic, [b"new"], 1)
    assert read_all(latest) == [b"new"]


@pytest.mark.promise("5.1", "11.5", "11.6")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
@pytest.mark.parametrize("batch", [1, 5])
def test_what_is_not_acknowledged_comes_again(
    client: magnetar.Client, topic: str, kind: ConsumerType, batch: int
) -> None:
    publish(client, topic, numbers(20), batch)
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST)
    messages = [consumer.receive(10_000) for _ in range(20)]
    for message in messages[:7]:
        consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", kind)
    first = 7 if batch == 1 else 5
    assert sorted(receive(again, 20 - first)) == sorted(numbers(20 - first, first))
    assert nothing_more(again)
    again.redeliver_unacknowledged_messages()
    assert sorted(receive(again, 20 - first)) == sorted(numbers(20 - first, first))
    assert nothing_more(again)


@pytest.mark.promise("5.2")
def test_cumulative_acknowledgement_in_the_middle_of_a_batch(client: magnetar.Client, topic: str) -> None:
    publish(client, topic, numbers(20), 5)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    messages = [consumer.receive(10_000) for _ in range(20)]
    consumer.acknowledge_cumulative(messages[12])
    consumer.close()
    with client.subscribe(topic, "s") as again:
        assert receive(again, 10) == numbers(10, 10)


@pytest.mark.promise("1.5", "6.1", "6.4", "6.5", "17.13")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
def test_negative_acknowledgement(client: magnetar.Client, topic: str, kind: ConsumerType) -> None:
    publish(client, topic, numbers(4), 1)
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=200)
    messages: list[Message] = [consumer.receive(10_000) for _ in range(4)]
    consumer.acknowledge(messages[0])
    consumer.negative_acknowledge(messages[2])
    if kind is ConsumerType.Shared:
        again = consumer.receive(10_000)
        assert again.data() == b"2" and again.redelivery_count() == 1
    else:
        assert receive(consumer, 3) == numbers(3, 1)
    assert nothing_more(consumer)


@pytest.mark.promise("16.1", "16.2", "16.6", "17.1", "21.6")
def test_subscription_types(client: magnetar.Client, topic: str) -> None:
    exclusive = client.subscribe(topic, "one")
    with pytest.raises(ConsumerBusy):
        client.subscribe(topic, "one")
    consumers = [client.subscribe(topic, "many", ConsumerType.Shared, receiver_queue_size=10) for _ in range(2)]
    publish(client, topic, numbers(100), 1)
    got: list[list[bytes]] = [[], []]

    def take(index: int) -> None:
        while True:
            try:
                message = consumers[index].receive(1_000)
            except Timeout:
                return
            got[index].append(message.data())
            consumers[index].acknowledge(message)

    threads = [threading.Thread(target=take, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got[0] + got[1]) == sorted(numbers(100))
    assert all(got)
    assert receive(exclusive, 100) == numbers(100)
    exclusive.unsubscribe()
    with client.subscribe(topic, "one") as again:
        assert nothing_more(again)


@pytest.mark.promise("14.2")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
@pytest.mark.parametrize("batch", [1, 4])
def test_without_a_receiver_queue(client: magnetar.Client, topic: str, batch: int, kind: ConsumerType) -> None:
    ids = publish(client, topic, numbers(12), batch)
    consumer = client.subscribe(topic, "s", kind, initial_position=EARLIEST, receiver_queue_size=0)
    assert receive(consumer, 12) == numbers(12)
    consumer.seek(ids[3])
    assert receive(consumer, 8) == numbers(8, 4)


@pytest.mark.promise("23.3")
def test_partitioned_topics(cluster: Cluster, client: magnetar.Client, topic: str) -> None:
    import urllib.request

    url = f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic}/partitions"
    urllib.request.urlopen(urllib.request.Request(url, b"4", {"Content-Type": "application/json"}, method="PUT"))
    assert len(client.get_topic_partitions(topic)) == 4
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=2)
    results: list[MessageId] = []
    for number in range(400):
        producer.send_async(b"%d" % number, lambda result, one: results.append(one), partition_key=f"k{number % 20}")
    producer.flush()
    assert {one.partition() for one in results} == {0, 1, 2, 3}
    messages = [consumer.receive(10_000) for _ in range(400)]
    by_key: dict[str, list[int]] = {}
    for message in messages:
        by_key.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(own == sorted(own) for own in by_key.values()) and len(by_key) == 20
    consumer.acknowledge_many(messages)
    consumer.close()
    single = client.create_producer(topic, message_routing_mode=PartitionsRoutingMode.UseSinglePartition)
    assert len({one.partition() for one in single.send_many(numbers(10))}) == 1
    with client.create_reader(topic, MessageId.earliest) as reader:
        assert len(read_all(reader)) == 410
    with client.subscribe(topic, "s") as again:
        assert sorted(receive(again, 10)) == sorted(numbers(10))


@pytest.mark.promise("14.4")
async def test_the_asyncio_face(cluster: Cluster, topic: str) -> None:
    async with magnetar.AsyncClient(cluster.service_url) as client:
        consumer = await client.subscribe(topic, "s")
        producer = await client.create_producer(topic)
        ids = await producer.send_many(numbers(2_000))
        got = []
        while len(got) < 2_000:
            got += await consumer.receive_many(500, 10_000)
        assert [message.message_id() for message in got] == ids
        await consumer.acknowledge_cumulative(got[-1])
        reader = await client.create_reader(topic, ids[1_999])
        assert not await reader.has_message_available()
