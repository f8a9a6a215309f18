"""What `get_stats` shows of producers and consumers, with both faces of the client."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator

import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.configuration import (
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    PartitionsRoutingMode,
)
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import (
    AlreadyClosed,
    ChecksumError,
    OperationNotSupported,
    ProducerQueueIsFull,
    TopicTerminated,
)
from support.clients.calls import TOPIC, numbers, publish, receive
from support.fakes.broker import FakeBroker
from support.servers.embedded_cluster import EmbeddedCluster

EARLIEST = InitialPosition.Earliest
LOGGERS = ("magnetar.client.producing.producer_statistics", "magnetar.client.consuming.topic_consumer")
_numbers = itertools.count()


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(broker.url, operation_timeout_seconds=10) as made:
        yield made


async def test_a_producer_shows_what_it_sent_its_receipts_and_their_latencies(
    broker: FakeBroker, client: AsyncClient
) -> None:
    broker.receipt_delay_s = 0.02
    producer = await client.create_producer("t", batching_enabled=True, batching_max_messages=5)
    await producer.send_many([b"12345"] * 10)
    await producer.send(b"123", {"with": "properties"}, partition_key="key")
    stats = producer.get_stats()
    assert isinstance(stats, magnetar.ProducerStats)
    assert (stats.num_msgs_sent, stats.num_bytes_sent, stats.num_acks_received) == (11, 53, 3)
    assert (stats.total_msgs_sent, stats.total_bytes_sent, stats.total_acks_received) == (11, 53, 3)
    assert (stats.num_send_failed, stats.total_send_failed, stats.pending_queue_size) == (0, 0, 0)
    assert 20 * 0.98 <= stats.send_latency_millis_50pct <= stats.send_latency_millis_99pct
    assert stats.send_latency_millis_99pct <= stats.send_latency_millis_999pct <= stats.send_latency_millis_max < 5_000
    assert stats.send_msgs_rate > 0
    assert stats.send_bytes_rate == pytest.approx(stats.send_msgs_rate * 53 / 11)
    assert stats.partition_stats == {}


async def test_what_waits_for_its_receipt_is_pending(broker: FakeBroker, client: AsyncClient) -> None:
    broker.mute_sends = True
    producer = await client.create_producer("t", send_timeout_millis=0)
    for payload in numbers(3):
        producer.send_async(payload, None)
    await broker.until(lambda: producer.get_stats().num_msgs_sent == 3)
    stats = producer.get_stats()
    assert (stats.num_msgs_sent, stats.num_acks_received, stats.pending_queue_size) == (3, 0, 3)
    assert stats.send_latency_millis_max == 0.0
    broker.mute_sends = False
    broker.drop_connections()


async def test_failed_messages_and_refused_calls_are_counted(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", max_pending_messages=1)
    broker.mute_sends = True
    producer.send_async(b"waits", lambda *_: None)
    with pytest.raises(ProducerQueueIsFull):
        await producer.send(b"no room")
    assert producer.get_stats().num_send_failed == 1
    broker.mute_sends = False
    broker.send_errors = [15]  # the topic was terminated
    broker.drop_connections()
    await broker.until(lambda: not broker.send_errors)
    with pytest.raises(TopicTerminated):
        await producer.send(b"too late")
    assert producer.get_stats().total_send_failed == 3
    await producer.close()
    assert producer.get_stats().total_send_failed == 3, "statistics outlive the producer"


@pytest.mark.promise("31.18")
async def test_partitions_of_a_producer_add_up_and_show_their_own(broker: FakeBroker, client: AsyncClient) -> None:
    broker.partitions[TOPIC] = 3
    producer = await client.create_producer(
        "t",
        message_routing_mode=PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, _: len(message.data()) % 3,
    )
    for payload in (b"", b"1", b"1", b"12"):
        await producer.send(payload)
    stats = producer.get_stats()
    assert (stats.num_msgs_sent, stats.num_bytes_sent, stats.num_acks_received) == (4, 4, 4)
    of = stats.partition_stats
    assert [(name, of[name].num_msgs_sent, of[name].num_bytes_sent) for name in sorted(of)] == [
        (f"{TOPIC}-partition-0", 1, 0),
        (f"{TOPIC}-partition-1", 2, 2),
        (f"{TOPIC}-partition-2", 1, 2),
    ]
    assert stats.send_latency_millis_max == max(one.send_latency_millis_max for one in of.values())


@pytest.mark.promise("31.18")
@pytest.mark.parametrize("batch", [1, 4])
async def test_a_message_counts_as_received_when_the_application_takes_it(
    broker: FakeBroker, client: AsyncClient, batch: int
) -> None:
    consumer = await client.subscribe("t", "s")
    await publish(client, [b"12345"] * 8, batch=batch)
    await broker.until(lambda: consumer.get_stats().msg_num_in_receiver_queue == 8)
    assert consumer.get_stats().num_msgs_received == 0
    await receive(consumer, 1)
    stats = consumer.get_stats()
    assert isinstance(stats, magnetar.ConsumerStats)
    assert (stats.num_msgs_received, stats.num_bytes_received, stats.msg_num_in_receiver_queue) == (1, 5, 7)
    assert len(await consumer.receive_many(2)) == 2
    stats = consumer.get_stats()
    assert (stats.total_msgs_received, stats.total_bytes_received, stats.msg_num_in_receiver_queue) == (3, 15, 5)
    assert stats.rate_msgs_received > 0
    assert stats.rate_bytes_received == pytest.approx(stats.rate_msgs_received * 5)
    await consumer.close()
    stats = consumer.get_stats()
    assert (stats.total_msgs_received, stats.msg_num_in_receiver_queue) == (3, 0), "what it had not taken is dropped"


async def test_messages_of_mixed_sizes_count_their_payloads(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    producer = await client.create_producer("t", batching_enabled=True)
    producer.send_async(b"123", None)
    producer.send_async(b"12345678", None, {"some": "property"})
    await producer.flush()
    await receive(consumer, 2)
    assert consumer.get_stats().num_bytes_received == producer.get_stats().num_bytes_sent == 11


async def test_messages_that_come_again_count_again_and_dropped_ones_do_not(
    broker: FakeBroker, client: AsyncClient
) -> None:
    consumer = await client.subscribe("t", "s", ConsumerType.Shared)
    await publish(client, numbers(6), batch=6)
    await receive(consumer, 2)
    consumer.redeliver_unacknowledged_messages()
    await receive(consumer, 6)
    stats = consumer.get_stats()
    assert (stats.total_msgs_received, stats.total_bytes_received, stats.msg_num_in_receiver_queue) == (8, 8, 0)


@pytest.mark.parametrize("batch", [1, 4])
async def test_acknowledged_messages_are_counted(broker: FakeBroker, client: AsyncClient, batch: int) -> None:
    consumer = await client.subscribe("t", "s", ack_group_time_ms=1)
    await publish(client, numbers(8), batch=batch)
    messages = [await consumer.receive(2_000) for _ in range(8)]
    for message in messages[:3]:
        await consumer.acknowledge(message)
    await consumer.acknowledge(messages[3].message_id())
    await broker.until(lambda: consumer.get_stats().num_acks_sent == 4)
    await consumer.acknowledge_cumulative(messages[7])
    await broker.until(lambda: consumer.get_stats().num_acks_sent == 5)
    assert consumer.get_stats().total_acks_sent == 5
    assert consumer.get_stats().num_acks_failed == 0


async def test_refused_acknowledgements_are_counted(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    with pytest.raises(OperationNotSupported):
        await consumer.acknowledge(MessageId(7, 1, 1))
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await consumer.acknowledge_many([MessageId(-1, 1, 1)])
    stats = consumer.get_stats()
    assert (stats.num_acks_failed, stats.total_acks_failed, stats.total_acks_sent) == (2, 2, 0)


async def test_an_entry_that_cannot_be_opened_counts_as_a_failure(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    broker.corrupt = 1
    await publish(client, [b"bad", b"good"])
    with pytest.raises(ChecksumError):
        await consumer.receive(2_000)
    await receive(consumer, 1)
    stats = consumer.get_stats()
    assert (stats.num_receive_failed, stats.total_received_failed, stats.num_msgs_received) == (1, 1, 1)


async def test_topics_of_a_consumer_add_up_and_show_their_own(broker: FakeBroker, client: AsyncClient) -> None:
    broker.partitions[TOPIC] = 2
    consumer = await client.subscribe(["t", "other"], "s", ack_group_time_ms=1)
    for name, count in (("t-partition-1", 2), ("other", 3)):
        await publish(client, numbers(count), topic=name)
    for _ in range(5):
        await consumer.acknowledge(await consumer.receive(2_000))
    await broker.until(lambda: consumer.get_stats().num_acks_sent == 5)
    stats = consumer.get_stats()
    assert (stats.num_msgs_received, stats.num_bytes_received) == (5, 5)
    assert {name: (one.num_msgs_received, one.num_acks_sent) for name, one in stats.partition_stats.items()} == {
        f"{TOPIC}-partition-0": (0, 0),
        f"{TOPIC}-partition-1": (2, 2),
        "persistent://public/default/other": (3, 3),
    }


async def test_dead_letters_show_their_producer(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe(
        "t",
        "s",
        ConsumerType.Shared,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=1,
    )
    assert consumer.get_stats().dead_letter_producer_stats is None
    await publish(client, [b"bad"])
    for _ in range(2):
        await consumer.negative_acknowledge(await consumer.receive(2_000))

    def stored() -> bool:
        letters = consumer.get_stats().dead_letter_producer_stats
        return letters is not None and (letters.total_msgs_sent, letters.total_acks_received) == (1, 1)

    await broker.until(stored)
    assert consumer.get_stats().retry_letter_producer_stats is None


@pytest.mark.promise("31.18")
async def test_an_interval_ends_is_logged_and_the_totals_go_on(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    async with AsyncClient(broker.url, stats_interval_in_seconds=1) as client:
        consumer = await client.subscribe("t", "s", consumer_name="reader")
        producer = await client.create_producer("t", producer_name="writer")
        await producer.send_many([b"12345"] * 6)
        await receive(consumer, 6)
        assert producer.get_stats().num_msgs_sent == 6
        await broker.until(lambda: len(caplog.messages) >= 2)
        sent, received = producer.get_stats(), consumer.get_stats()
        assert (sent.num_msgs_sent, sent.total_msgs_sent, sent.num_acks_received) == (0, 6, 0)
        assert (received.num_msgs_received, received.total_msgs_received) == (0, 6)
        assert sent.send_msgs_rate == pytest.approx(6.0, rel=0.3)
        assert received.rate_bytes_received == pytest.approx(30.0, rel=0.3)
        assert sent.send_latency_millis_max > 0
        assert [text.split(" (")[0] for text in sorted(caplog.messages)] == [
            f"consumer reader on {TOPIC} received 6 messages",
            f"producer writer on {TOPIC} sent 6 messages",
        ]
        await broker.until(lambda: producer.get_stats().send_latency_millis_max == 0.0)
        assert len(caplog.messages) == 2, "an interval in which nothing happened is not logged"


async def test_without_intervals_nothing_is_logged_and_figures_go_on(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for name in LOGGERS:
        caplog.set_level(logging.INFO, name)
    async with AsyncClient(broker.url, stats_interval_in_seconds=0) as client:
        producer = await client.create_producer("t")
        await producer.send_many(numbers(3))
        await asyncio.sleep(0)
        assert producer.get_stats().num_msgs_sent == 3
    assert not caplog.messages


def test_the_blocking_face_shows_the_same(cluster: EmbeddedCluster) -> None:
    topic = f"statistics-{next(_numbers)}"
    with magnetar.Client(cluster.service_url) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic, batching_enabled=True)
        producer.send_many([b"12345"] * 100)
        producer.send(b"123", {"a": "b"})
        for _ in range(60):
            consumer.acknowledge(consumer.receive(10_000))
        deadline = time.monotonic() + 10
        while not consumer.get_stats().msg_num_in_receiver_queue == 41 and time.monotonic() < deadline:
            time.sleep(0.01)
        sent, received = producer.get_stats(), consumer.get_stats()
        assert (sent.total_msgs_sent, sent.total_bytes_sent, sent.pending_queue_size) == (101, 503, 0)
        assert 0 < sent.send_latency_millis_50pct <= sent.send_latency_millis_max
        assert (received.total_msgs_received, received.total_bytes_received) == (60, 300)
        assert received.msg_num_in_receiver_queue == 41
        consumer.close()
    assert consumer.get_stats().total_msgs_received == 60
