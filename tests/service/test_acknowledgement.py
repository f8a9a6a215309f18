"""Acknowledgement by batch index, receipts, time-outs and delays, with our client and the official one."""

import asyncio
import itertools
import time
from collections.abc import Iterator

import pulsar
import pytest

import magnetar
from magnetar import ConsumerType, InitialPosition, MultiplierRedeliveryBackoff
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.protocol.errors import AlreadyClosed
from magnetar.storage.managed.cursor import Cursor
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import until

pytestmark = pytest.mark.cluster_settings(cursor_flush_interval_s=0.05)

_numbers = itertools.count()
SHARED = {"consumer_type": ConsumerType.Shared, "initial_position": InitialPosition.Earliest}
INDEXES = {"batch_index_ack_enabled": True, "negative_ack_redelivery_delay_ms": 20, "ack_group_time_ms": 5}


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/acks-{next(_numbers)}"


@pytest.fixture
def client(cluster: EmbeddedCluster) -> Iterator[magnetar.Client]:
    with magnetar.Client(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


def publish(client: magnetar.Client, topic: str, count: int, batch: int) -> None:
    with client.create_producer(topic, batching_enabled=True, batching_max_messages=batch) as producer:
        producer.send_many([b"%d" % number for number in range(count)])


def take(consumer: magnetar.Consumer, count: int) -> list[magnetar.Message]:
    return [consumer.receive(10_000) for _ in range(count)]


def values(messages: list[magnetar.Message]) -> list[int]:
    return sorted(int(message.data()) for message in messages)


def nothing_more(consumer: magnetar.Consumer, wait_ms: int = 150) -> bool:
    try:
        consumer.receive(wait_ms)
    except magnetar.Timeout:
        return True
    return False


def cursor_of(cluster: EmbeddedCluster, topic: str) -> Cursor:
    loaded = cluster.brokers[cluster.owner(topic)].topics.loaded[topic]
    assert isinstance(loaded, PersistentTopic)
    return loaded.ledger.cursors["s"]


# ---- Batch-index acknowledgement ----


@pytest.mark.promise("5.5", "12.2", "12.4")
def test_only_open_messages_of_a_batch_come_again(client: magnetar.Client, topic: str) -> None:
    with client.subscribe(topic, "s", **SHARED, **INDEXES) as consumer:
        publish(client, topic, 10, 5)
        messages = take(consumer, 10)
        for message in messages:
            if int(message.data()) % 3:
                consumer.acknowledge(message)
            else:
                consumer.negative_acknowledge(message)
        again = take(consumer, 4)
        assert values(again) == [0, 3, 6, 9] and {one.redelivery_count() for one in again} == {1}
        consumer.acknowledge_many(again)
        assert nothing_more(consumer)


@pytest.mark.promise("12.6")
def test_open_messages_come_to_another_consumer_and_complete_the_batch(client: magnetar.Client, topic: str) -> None:
    """The second one does not acknowledge by index: it knows of the acknowledged messages from the broker alone."""
    first = client.subscribe(topic, "s", **SHARED, **INDEXES)
    publish(client, topic, 6, 6)
    first.acknowledge_many(take(first, 4))
    first.close()
    with client.subscribe(topic, "s", **SHARED) as second:
        rest = take(second, 2)
        assert values(rest) == [4, 5]
        second.acknowledge_many(rest)
    with client.subscribe(topic, "s", **SHARED) as third:
        assert nothing_more(third)


def test_a_small_receive_queue_does_not_run_dry_on_partly_acknowledged_batches(
    client: magnetar.Client, topic: str
) -> None:
    """Permits of client and broker must agree: both count only open messages."""
    first = client.subscribe(topic, "s", **SHARED, **INDEXES)
    publish(client, topic, 200, 10)
    messages = take(first, 200)
    first.acknowledge_many([one for one in messages if int(one.data()) % 10 != 7])
    first.close()
    with client.subscribe(topic, "s", **SHARED, receiver_queue_size=3) as second:
        rest = take(second, 20)
        assert values(rest) == list(range(7, 200, 10))
        second.acknowledge_many(rest)
        assert nothing_more(second)


def test_cumulative_acknowledgement_ends_inside_a_batch(client: magnetar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest, **INDEXES)
    publish(client, topic, 12, 4)
    messages = take(consumer, 12)
    consumer.acknowledge_cumulative(messages[5])
    consumer.close()
    with client.subscribe(topic, "s", **INDEXES) as again:
        assert [int(one.data()) for one in take(again, 6)] == [6, 7, 8, 9, 10, 11]


@pytest.mark.promise("12.2", "12.3")
def test_without_the_consumers_switch_the_whole_batch_comes_again(client: magnetar.Client, topic: str) -> None:
    with client.subscribe(topic, "s", **SHARED, **{**INDEXES, "batch_index_ack_enabled": False}) as consumer:
        publish(client, topic, 5, 5)
        messages = take(consumer, 5)
        consumer.acknowledge_many(messages[:4])
        consumer.negative_acknowledge(messages[4])
        assert values(take(consumer, 5)) == [0, 1, 2, 3, 4]


@pytest.mark.promise("12.5")
def test_acknowledged_indexes_survive_the_broker(cluster: EmbeddedCluster, client: magnetar.Client, topic: str) -> None:
    with client.subscribe(topic, "s", **SHARED, **INDEXES, ack_receipt_enabled=True) as consumer:
        publish(client, topic, 8, 8)
        consumer.acknowledge_many(take(consumer, 8)[::2])
        number = cluster.owner(topic)
        cluster.run(cluster.stop_broker(number))
        cluster.run(cluster.start_broker(number))
        assert values(take(consumer, 4)) == [1, 3, 5, 7]


@pytest.mark.promise("5.1")
def test_a_hundred_thousand_scattered_holes_survive_the_broker(
    cluster: EmbeddedCluster, client: magnetar.Client, topic: str
) -> None:
    """Every second message is acknowledged: as whole entries here and there, and within 200 batches."""
    holes, singles = 100_000, 500
    with client.subscribe(topic, "s", **INDEXES, ack_receipt_enabled=True) as consumer:
        publish(client, topic, singles, 1)
        publish(client, topic, 2 * holes - singles, 1_000)
        received: list[magnetar.Message] = []
        while len(received) < 2 * holes:
            received += consumer.receive_many(10_000, 10_000)
        consumer.acknowledge_many(received[1::2])
        number = cluster.owner(topic)
        cluster.run(cluster.stop_broker(number))
        cluster.run(cluster.start_broker(number))
        open_ = [one.message_id() for one in received[::2]]
        again: list[magnetar.MessageId] = []
        while len(again) < holes:
            again += [one.message_id() for one in consumer.receive_many(10_000, 10_000)]
        assert again == open_
        assert nothing_more(consumer)


@pytest.mark.promise("12.2", "12.4", "12.6")
async def test_the_asyncio_face_acknowledges_by_index(cluster: EmbeddedCluster, topic: str) -> None:
    async with magnetar.AsyncClient(cluster.service_url) as client:
        consumer = await client.subscribe(topic, "s", **SHARED, **INDEXES)
        producer = await client.create_producer(topic, batching_max_messages=6)
        await producer.send_many([b"%d" % number for number in range(6)])
        messages = [await consumer.receive(10_000) for _ in range(6)]
        assert len({message.message_id().entry_id() for message in messages}) == 1
        await consumer.acknowledge_many(messages[::2])
        await consumer.close()
        again = await client.subscribe(topic, "s", **SHARED, **INDEXES)
        rest = [await again.receive(10_000) for _ in range(3)]
        assert [message.data() for message in rest] == [b"1", b"3", b"5"]
        await again.acknowledge_many(rest)
        await again.close()
        last = await client.subscribe(topic, "s", **SHARED)
        with pytest.raises(magnetar.Timeout):
            await last.receive(100)


@pytest.mark.promise("5.5", "12.4", "12.6")
def test_the_official_client_acknowledges_by_index(official_client: pulsar.Client, topic: str) -> None:
    options = {"consumer_type": pulsar.ConsumerType.Shared, "negative_ack_redelivery_delay_ms": 100}
    consumer = official_client.subscribe(topic, "s", batch_index_ack_enabled=True, **options)
    producer = official_client.create_producer(
        topic, batching_enabled=True, batching_max_messages=6, batching_max_publish_delay_ms=5_000
    )
    for number in range(6):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()
    messages = [consumer.receive(10_000) for _ in range(6)]
    for message in messages:
        if int(message.data()) in (1, 4):
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    again = [consumer.receive(10_000) for _ in range(2)]
    assert sorted(int(one.data()) for one in again) == [1, 4]
    for message in again:
        consumer.acknowledge(message)
    consumer.close()
    with pytest.raises(pulsar.Timeout):
        official_client.subscribe(topic, "s", **options).receive(300)


@pytest.mark.promise("12.5")
def test_indexes_that_the_official_client_acknowledged_survive_the_broker(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    shared = pulsar.ConsumerType.Shared
    consumer = official_client.subscribe(topic, "s", consumer_type=shared, batch_index_ack_enabled=True)
    producer = official_client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=5_000)
    for number in range(8):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()
    messages = [consumer.receive(10_000) for _ in range(8)]
    for message in messages[::2]:
        consumer.acknowledge(message)
    place = (messages[0].message_id().ledger_id(), messages[0].message_id().entry_id())
    until(lambda: cursor_of(cluster, topic).batches.ack_set(place) == [0b10101010])
    number = cluster.owner(topic)
    cluster.run(cluster.stop_broker(number))
    cluster.run(cluster.start_broker(number))
    assert sorted(int(consumer.receive(10_000).data()) for _ in range(4)) == [1, 3, 5, 7]


# ---- Receipts ----


@pytest.mark.promise("31.20")
def test_an_acknowledgement_with_receipt_is_stored_when_the_call_returns(
    cluster: EmbeddedCluster, client: magnetar.Client, topic: str
) -> None:
    with client.subscribe(topic, "s", ack_receipt_enabled=True) as consumer:
        publish(client, topic, 3, 1)
        messages = take(consumer, 3)
        consumer.acknowledge(messages[0])
        cursor = cursor_of(cluster, topic)
        assert cursor.durable_mark_delete == messages[0].message_id().position
        consumer.acknowledge_cumulative(messages[2])
        assert cursor.durable_mark_delete == messages[2].message_id().position


@pytest.mark.promise("31.20")
async def test_tasks_that_acknowledge_together_share_a_receipt(cluster: EmbeddedCluster, topic: str) -> None:
    async with magnetar.AsyncClient(cluster.service_url) as client:
        consumer = await client.subscribe(topic, "s", consumer_type=ConsumerType.Shared, ack_receipt_enabled=True)
        producer = await client.create_producer(topic)
        for number in range(50):
            await producer.send(b"%d" % number)
        messages = [await consumer.receive(5_000) for _ in range(50)]
        cursor = cursor_of(cluster, topic)
        await asyncio.gather(*[consumer.acknowledge(message) for message in messages])
        assert cursor.durable_mark_delete == messages[-1].message_id().position
        await consumer.close()
        with pytest.raises(AlreadyClosed):
            await consumer.acknowledge(messages[0])


@pytest.mark.promise("31.20")
def test_an_acknowledgement_without_a_receipt_fails(
    cluster: EmbeddedCluster, client: magnetar.Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.subscribe(topic, "s", ack_receipt_enabled=True) as consumer:
        publish(client, topic, 1, 1)
        message = consumer.receive(10_000)
        cursor = cursor_of(cluster, topic)

        async def failing() -> None:
            raise magnetar.BrokerPersistenceError("the cursor cannot be written now")

        with monkeypatch.context() as patched:
            patched.setattr(cursor, "flush", failing)
            with pytest.raises(magnetar.BrokerPersistenceError, match="cannot be written now"):
                consumer.acknowledge(message)
        consumer.acknowledge(message)


# ---- Time-out and delays ----


@pytest.mark.promise("1.5", "7.2", "7.3", "7.5")
def test_what_is_not_acknowledged_in_time_comes_again(client: magnetar.Client, topic: str) -> None:
    with client.subscribe(
        topic, "s", **SHARED, unacked_messages_timeout_ms=400, ack_timeout_tick_time_ms=100, ack_group_time_ms=5
    ) as consumer:
        publish(client, topic, 3, 1)
        began = time.monotonic()
        messages = take(consumer, 3)
        consumer.acknowledge(messages[1])
        again = take(consumer, 2)
        assert values(again) == [0, 2] and {one.redelivery_count() for one in again} == {1}
        assert 0.4 <= time.monotonic() - began < 5
        consumer.acknowledge_many(again)
        assert nothing_more(consumer, 700)


@pytest.mark.promise("7.2")
def test_on_an_ordered_subscription_the_time_out_begins_at_the_first_open_message(
    client: magnetar.Client, topic: str
) -> None:
    with client.subscribe(
        topic, "s", unacked_messages_timeout_ms=300, ack_timeout_tick_time_ms=100, ack_group_time_ms=5
    ) as consumer:
        publish(client, topic, 6, 2)
        messages = take(consumer, 6)
        consumer.acknowledge_cumulative(messages[1])
        assert [int(one.data()) for one in take(consumer, 4)] == [2, 3, 4, 5]


@pytest.mark.promise("7.6", "11.6")
def test_a_time_out_without_index_acknowledgement_brings_the_whole_batch(client: magnetar.Client, topic: str) -> None:
    with client.subscribe(
        topic, "s", **SHARED, unacked_messages_timeout_ms=300, ack_timeout_tick_time_ms=100
    ) as consumer:
        publish(client, topic, 4, 4)
        consumer.acknowledge_many(take(consumer, 4)[:3])
        assert values(take(consumer, 4)) == [0, 1, 2, 3]


def test_a_time_out_with_index_acknowledgement_brings_the_open_messages(client: magnetar.Client, topic: str) -> None:
    with client.subscribe(
        topic, "s", **SHARED, **INDEXES, unacked_messages_timeout_ms=300, ack_timeout_tick_time_ms=100
    ) as consumer:
        publish(client, topic, 4, 4)
        consumer.acknowledge_many(take(consumer, 4)[:3])
        assert values(take(consumer, 1)) == [3]


@pytest.mark.promise("6.7")
def test_a_negative_acknowledgement_leaves_the_time_out(client: magnetar.Client, topic: str) -> None:
    """Its delay is longer than the time-out: the message must not come again for the time-out meanwhile."""
    with client.subscribe(
        topic, "s", **SHARED, unacked_messages_timeout_ms=200, ack_timeout_tick_time_ms=50,
        negative_ack_redelivery_delay_ms=1_000,
    ) as consumer:  # fmt: skip
        publish(client, topic, 1, 1)
        message = consumer.receive(10_000)
        given = time.monotonic()
        consumer.negative_acknowledge(message)
        assert consumer.receive(10_000).redelivery_count() == 1
        assert time.monotonic() - given >= 1.0


@pytest.mark.promise("7.4")
def test_a_back_off_makes_each_time_out_longer(client: magnetar.Client, topic: str) -> None:
    """The table of the page, a hundred times as fast."""
    backoff = MultiplierRedeliveryBackoff(min_delay_ms=10, max_delay_ms=60, multiplier=2)
    with client.subscribe(
        topic, "s", **SHARED, unacked_messages_timeout_ms=100, ack_timeout_tick_time_ms=10,
        ack_timeout_redelivery_backoff=backoff,
    ) as consumer:  # fmt: skip
        publish(client, topic, 1, 1)
        began = time.monotonic()
        assert consumer.receive(10_000).redelivery_count() == 0
        delays_s = [0.11, 0.12, 0.14, 0.16, 0.16]
        for count in range(1, 6):
            assert consumer.receive(10_000).redelivery_count() == count
            assert sum(delays_s[:count]) <= time.monotonic() - began < sum(delays_s[:count]) + 5 * count


@pytest.mark.promise("6.3")
def test_a_back_off_delays_each_redelivery_longer(client: magnetar.Client, topic: str) -> None:
    backoff = MultiplierRedeliveryBackoff(min_delay_ms=50, max_delay_ms=200, multiplier=2)
    with client.subscribe(topic, "s", **SHARED, negative_ack_redelivery_backoff=backoff) as consumer:
        publish(client, topic, 1, 1)
        message = consumer.receive(10_000)
        for count, delay_s in enumerate([0.05, 0.1, 0.2, 0.2]):
            assert message.redelivery_count() == count
            given = time.monotonic()
            consumer.negative_acknowledge(message)
            message = consumer.receive(10_000)
            assert delay_s <= time.monotonic() - given < delay_s + 5
