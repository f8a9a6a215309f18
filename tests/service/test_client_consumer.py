"""Consumers against a broker with faults: permits, acknowledgement, redelivery, seeking, reconnecting."""

import asyncio

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.consumer import resize_receiver_queue
from magnetar.client.core.configuration import ConsumerBatchReceivePolicy, ConsumerType, InitialPosition
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import (
    AlreadyClosed,
    ConsumerBusy,
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    InvalidMessage,
    OperationNotSupported,
    Timeout,
)
from support.clients.calls import TOPIC, nothing_more, numbers, publish, receive, subscription
from support.fakes.broker import FakeBroker

EARLIEST = InitialPosition.Earliest


# ---- Receiving ----


@pytest.mark.parametrize("batch", [1, 7])
async def test_everything_comes_once_and_in_order(broker: FakeBroker, client: AsyncClient, batch: int) -> None:
    ids = await publish(client, numbers(50), batch)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=10)
    messages = [await consumer.receive(2000) for _ in range(50)]
    assert [message.data() for message in messages] == numbers(50)
    assert [message.message_id() for message in messages] == ids
    assert messages[0].topic_name() == TOPIC
    assert await nothing_more(consumer)
    assert consumer.is_connected()


@pytest.mark.promise("14.4")
async def test_waiting_receivers_are_served_as_messages_come(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    waiting = [asyncio.ensure_future(consumer.receive()) for _ in range(5)]
    await asyncio.sleep(0.01)
    await publish(client, numbers(5), 5)
    assert sorted([message.data() for message in await asyncio.gather(*waiting)]) == numbers(5)


async def test_receive_many_gives_what_is_there(client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    with pytest.raises(Timeout):
        await consumer.receive_many(10, 30)
    await publish(client, numbers(25), 10)
    got: list[bytes] = []
    while len(got) < 25:
        messages = await consumer.receive_many(7, 2000)
        assert 1 <= len(messages) <= 7
        got += [message.data() for message in messages]
    assert got == numbers(25)


async def test_batch_receive_ends_at_the_first_limit(client: AsyncClient) -> None:
    await publish(client, numbers(10), 5)
    policy = ConsumerBatchReceivePolicy(4, -1, 2000)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, batch_receive_policy=policy)
    assert [message.data() for message in await consumer.batch_receive()] == numbers(4)
    by_size = await client.subscribe(
        "t", "u", initial_position=EARLIEST, batch_receive_policy=ConsumerBatchReceivePolicy(-1, 3, 2000)
    )
    assert len(await by_size.batch_receive()) == 3
    by_time = await client.subscribe("t", "v", batch_receive_policy=ConsumerBatchReceivePolicy(-1, -1, 30))
    assert await by_time.batch_receive() == []


@pytest.mark.promise("14.1", "14.2")
async def test_permits_bound_what_the_broker_sends(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(100))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=10)
    await broker.until(lambda: subscription(broker).next_entry == 10)
    assert [command.messagePermits for command in broker.commands("FLOW")] == [10]
    await receive(consumer, 4)
    await asyncio.sleep(0.02)
    assert subscription(broker).next_entry == 10, "permits go back when half of the queue was taken"
    await receive(consumer, 1)
    await broker.until(lambda: subscription(broker).next_entry == 15)
    assert [command.messagePermits for command in broker.commands("FLOW")] == [10, 5]


async def test_all_partitions_share_a_queue_that_is_resized(broker: FakeBroker, client: AsyncClient) -> None:
    broker.partitions[TOPIC] = 2
    consumer = await client.subscribe("t", "s", receiver_queue_size=1)
    await broker.until(lambda: broker.count("FLOW") == 2)
    resize_receiver_queue(consumer, 20)
    await broker.until(lambda: broker.count("FLOW") == 4)
    assert sorted(command.messagePermits for command in broker.commands("FLOW")) == [1, 1, 9, 9]
    producer = await client.create_producer("t", batching_enabled=False)
    await producer.send_many(numbers(40))
    assert sorted(await receive(consumer, 40)) == sorted(numbers(40))


async def test_without_a_queue_each_receive_asks_for_one(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(5))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=0)
    await asyncio.sleep(0.02)
    assert broker.count("FLOW") == 0
    assert await receive(consumer, 3) == numbers(3)
    assert subscription(broker).next_entry == 3
    broker.partitions["persistent://public/default/p"] = 2
    with pytest.raises(InvalidConfiguration):
        await client.subscribe("p", "s", receiver_queue_size=0)


async def test_nonsense_from_the_broker_costs_the_connection_only(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(3))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    assert await receive(consumer, 3) == numbers(3)
    broker.connections[0].write(b"\x00\x00\x00\x08\x00\x00\x00\x04nope")
    assert await receive(consumer, 3) == numbers(3), "delivered again after reconnecting"


# ---- Acknowledgement ----


async def test_acknowledgements_go_out_together(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(10))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    for _ in range(10):
        await consumer.acknowledge(await consumer.receive(2000))
    assert broker.count("ACK") == 0
    await broker.until(lambda: subscription(broker).acked == set(range(10)))
    assert broker.count("ACK") == 1


async def test_a_thousand_acknowledgements_do_not_wait(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(1000))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=2000)
    messages = []
    while len(messages) < 1000:
        messages += await consumer.receive_many(1000, 2000)
    await consumer.acknowledge_many(messages)
    await asyncio.sleep(0)
    await broker.until(lambda: len(subscription(broker).acked) == 1000, 0.09)


async def test_options_that_the_official_signature_lacks_are_taken_by_name(
    broker: FakeBroker, client: AsyncClient
) -> None:
    """The gathering of acknowledgements: by number only, because the time would take a minute."""
    await publish(client, numbers(2))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, ack_group_time_ms=60_000, ack_group_max=2)
    for _ in range(2):
        await consumer.acknowledge(await consumer.receive(2000))
    await broker.until(lambda: subscription(broker).acked == {0, 1})
    with pytest.raises(TypeError, match=r"subscribe\(\) got an unexpected keyword argument 'ack_group_maximum'"):
        await client.subscribe("t", "s2", ack_group_maximum=2)


@pytest.mark.promise("5.1", "11.5")
async def test_a_batch_is_acknowledged_when_all_its_messages_are(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(6), 3)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    messages = [await consumer.receive(2000) for _ in range(6)]
    for index in (0, 2, 3, 5, 1):
        await consumer.acknowledge(messages[index].message_id())
    await broker.until(lambda: subscription(broker).acked == {0})
    await consumer.acknowledge(MessageId.deserialize(messages[4].message_id().serialize()))
    await broker.until(lambda: subscription(broker).acked == {0, 1})


async def test_acknowledging_many_at_once_is_exact(broker: FakeBroker, client: AsyncClient) -> None:
    """Whole batches, parts of batches, ids among messages, and the rest by and by."""
    await publish(client, numbers(60), 10)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    await broker.until(lambda: subscription(broker).next_entry == 6)
    messages = await consumer.receive_many(25, 2000)
    assert len(messages) == 25
    await consumer.acknowledge_many(messages)
    await broker.until(lambda: subscription(broker).acked == {0, 1})
    rest = [*await consumer.receive_many(100, 2000)]
    assert [message.data() for message in rest] == numbers(35, 25)
    await consumer.acknowledge_many(rest[:4])
    await consumer.acknowledge_many([rest[10].message_id(), *rest[5:10], rest[6], *rest[11:14]])
    await consumer.acknowledge(rest[25])
    await asyncio.sleep(0.15)
    assert subscription(broker).acked == {0, 1}
    await consumer.acknowledge_many((rest[4], rest[14]))
    await broker.until(lambda: subscription(broker).acked == {0, 1, 2, 3})
    await consumer.acknowledge_many(rest[:25:-1])
    await broker.until(lambda: subscription(broker).acked == {0, 1, 2, 3, 5})
    await consumer.acknowledge_many(iter(rest[15:25]))
    await broker.until(lambda: subscription(broker).acked == set(range(6)))
    await consumer.acknowledge_many([])


@pytest.mark.promise("5.3")
async def test_cumulative_acknowledgement(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(12), 3)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    messages = [await consumer.receive(2000) for _ in range(12)]
    await consumer.acknowledge_cumulative(messages[7])
    await broker.until(lambda: subscription(broker).acked == {0, 1})
    await consumer.acknowledge_cumulative(messages[8].message_id())
    await broker.until(lambda: subscription(broker).acked == {0, 1, 2})
    shared = await client.subscribe("t", "shared", ConsumerType.Shared, initial_position=EARLIEST)
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        await shared.acknowledge_cumulative(await shared.receive(2000))


async def test_what_cannot_be_acknowledged(client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    with pytest.raises(InvalidMessage):
        await consumer.acknowledge(b"message")  # type: ignore[arg-type]
    with pytest.raises(OperationNotSupported, match="unknown size"):
        await consumer.acknowledge(MessageId(-1, 1, 2, 3))
    with pytest.raises(OperationNotSupported, match="does not belong to"):
        await consumer.acknowledge(MessageId(5, 1, 2))
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await consumer.acknowledge(MessageId(-1, 1, 2))


async def test_closing_sends_what_waits(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(2))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    await consumer.acknowledge(await consumer.receive(2000))
    await consumer.close()
    await consumer.close()
    assert subscription(broker).acked == {0}
    with pytest.raises(AlreadyClosed):
        await consumer.receive()


async def test_closing_ends_those_who_wait(client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0.01)
    await consumer.close()
    with pytest.raises(AlreadyClosed):
        await waiting


# ---- Redelivery ----


@pytest.mark.promise("6.2", "6.4", "6.5", "6.9")
@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
async def test_negative_acknowledgement(broker: FakeBroker, client: AsyncClient, kind: ConsumerType) -> None:
    await publish(client, numbers(4))
    consumer = await client.subscribe("t", "s", kind, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=80)
    messages = [await consumer.receive(2000) for _ in range(4)]
    await consumer.acknowledge(messages[0])
    await consumer.negative_acknowledge(messages[2])
    await asyncio.sleep(0.03)
    assert broker.count("REDELIVER_UNACKNOWLEDGED_MESSAGES") == 0
    again = await consumer.receive(2000)
    if kind is ConsumerType.Shared:
        assert again.data() == b"2" and again.redelivery_count() == 1
    else:
        assert again.data() == b"1", "an ordered subscription goes back to the first unacknowledged message"
        assert await receive(consumer, 2) == [b"2", b"3"]
    assert await nothing_more(consumer)


@pytest.mark.promise("6.9")
async def test_an_acknowledgement_withdraws_the_negative_one(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(2), 2)
    consumer = await client.subscribe(
        "t", "s", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=60
    )
    messages = [await consumer.receive(2000) for _ in range(2)]
    await consumer.negative_acknowledge(messages[0])
    await consumer.acknowledge_many(messages)
    assert await nothing_more(consumer)
    assert broker.count("REDELIVER_UNACKNOWLEDGED_MESSAGES") == 0


async def test_one_negative_acknowledgement_brings_its_whole_batch(client: AsyncClient) -> None:
    await publish(client, numbers(3), 3)
    consumer = await client.subscribe(
        "t", "s", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=0
    )
    messages = [await consumer.receive(2000) for _ in range(3)]
    await consumer.negative_acknowledge(messages[1])
    assert await receive(consumer, 3) == numbers(3)


async def test_everything_unacknowledged_again(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(20))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=10)
    messages = [await consumer.receive(2000) for _ in range(3)]
    await consumer.acknowledge(messages[0])
    await consumer.acknowledge(messages[1])
    await broker.until(lambda: subscription(broker).acked == {0, 1})
    consumer.redeliver_unacknowledged_messages()
    assert await receive(consumer, 18) == numbers(18, 2)


@pytest.mark.parametrize("has_epochs", [True, False])
async def test_what_was_on_its_way_before_a_redelivery_is_not_taken_for_it(
    broker: FakeBroker, client: AsyncClient, has_epochs: bool
) -> None:
    """Else 4 came behind 1, and a cumulative acknowledgement of it acknowledged 2 and 3, which nobody had seen."""
    broker.has_epochs = has_epochs
    await publish(client, numbers(4))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=10)
    assert await receive(consumer, 2) == numbers(2)
    await broker.until(lambda: subscription(broker).next_entry == 4)
    broker.dispatching = False
    await publish(client, numbers(6, 4))
    consumer.redeliver_unacknowledged_messages()
    under_way = [] if has_epochs else numbers(6, 4)  # a broker that knows no epochs cannot tell
    assert await receive(consumer, 10 + len(under_way)) == [*under_way, *numbers(10)]
    await publish(client, numbers(30, 10))
    assert await receive(consumer, 30) == numbers(30, 10), "no permit was lost"
    assert await nothing_more(consumer)


# ---- Reconnecting ----


async def test_after_a_lost_connection_the_unacknowledged_comes_again(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(30))
    consumer = await client.subscribe(
        "t", "s", initial_position=EARLIEST, receiver_queue_size=10, ack_group_time_ms=60_000
    )  # on a slow machine the usual 100 ms may end before the client sees that the connection is gone
    messages = [await consumer.receive(2000) for _ in range(10)]
    for message in messages[:6]:
        await consumer.acknowledge(message)
    broker.drop_connections()
    assert await receive(consumer, 24) == numbers(24, 6), "acknowledgements that waited were sent first"
    assert await nothing_more(consumer)
    newest = broker.commands("FLOW")[-1].consumer_id
    permits = [command.messagePermits for command in broker.commands("FLOW") if command.consumer_id == newest]
    assert permits[0] == 10


async def test_a_broker_that_gives_the_topic_away(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    broker.subscribe_errors = [6, 5, 0]
    for connection in broker.connections:
        for consumer_id in list(connection.consumers):
            connection.close_consumer(consumer_id)
    await broker.until(lambda: broker.count("SUBSCRIBE") == 5)
    await publish(client, [b"x"])
    assert await receive(consumer, 1) == [b"x"]


async def test_refusals_at_creation(broker: FakeBroker, client: AsyncClient) -> None:
    broker.subscribe_errors = [6]
    await client.subscribe("t", "s")
    with pytest.raises(ConsumerBusy):
        await client.subscribe("t", "s")


# ---- Shared, partitioned ----


async def test_shared_consumers_divide_the_messages(client: AsyncClient) -> None:
    consumers = [await client.subscribe("t", "s", ConsumerType.Shared) for _ in range(2)]
    await publish(client, numbers(40))
    got = [await receive(consumer, 20) for consumer in consumers]
    assert sorted(got[0] + got[1]) == sorted(numbers(40))


async def test_a_partitioned_topic_is_consumed_as_one(broker: FakeBroker, client: AsyncClient) -> None:
    broker.partitions[TOPIC] = 3
    consumer = await client.subscribe("t", "s", max_total_receiver_queue_size_across_partitions=30)
    producer = await client.create_producer("t", batching_enabled=False)
    await producer.send_many(numbers(30))
    messages = [await consumer.receive(2000) for _ in range(30)]
    assert sorted(message.data() for message in messages) == sorted(numbers(30))
    assert {message.message_id().partition() for message in messages} == {0, 1, 2}
    await consumer.acknowledge_many(messages)
    for partition in range(3):
        found = broker.topic(f"{TOPIC}-partition-{partition}")
        await broker.until(lambda found=found: found.subscriptions["s"].acked == set(range(len(found.entries))))
    assert {command.messagePermits for command in broker.commands("FLOW")} == {10, 5}
    await consumer.seek(MessageId.earliest)
    again = [await consumer.receive(2000) for _ in range(30)]
    assert sorted(message.data() for message in again) == sorted(numbers(30))
    with pytest.raises(OperationNotSupported):
        await consumer.get_last_message_id()


async def test_one_partition_alone(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe("t-partition-2", "s")
    producer = await client.create_producer("t-partition-2")
    sent = await producer.send(b"x")
    message = await consumer.receive(2000)
    assert message.message_id() == sent and sent.partition() == 2
    await consumer.acknowledge(sent)


# ---- Seeking ----


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("inclusive", [True, False])
async def test_seeking_to_a_message(client: AsyncClient, batch: int, inclusive: bool) -> None:
    ids = await publish(client, numbers(16), batch)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, start_message_id_inclusive=inclusive)
    await receive(consumer, 16)
    for target in (5, 0, 15, 11):
        await consumer.seek(ids[target])
        first = target if inclusive else target + 1
        assert await receive(consumer, 16 - first) == numbers(16 - first, first)
        assert await nothing_more(consumer)


async def test_seeking_to_the_ends_and_to_a_time(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(5))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    first = await consumer.receive(2000)
    await consumer.seek(MessageId.latest)
    await publish(client, [b"new"])
    assert await receive(consumer, 1) == [b"new"]
    await consumer.seek(MessageId.earliest)
    assert await receive(consumer, 6) == [*numbers(5), b"new"]
    await consumer.seek(first.publish_timestamp())
    assert await receive(consumer, 1) == [b"0"]
    await consumer.seek(first.publish_timestamp() + 1_000_000)
    assert await nothing_more(consumer)
    with pytest.raises(InvalidConfiguration):
        await consumer.seek("yesterday")  # type: ignore[arg-type]


async def test_what_was_acknowledged_before_a_seek_counts_no_more(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(4))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    for _ in range(4):
        await consumer.acknowledge(await consumer.receive(2000))
    await consumer.seek(MessageId.earliest)
    assert await receive(consumer, 4) == numbers(4)
    await asyncio.sleep(0.15)
    assert subscription(broker).acked == set()


async def test_another_consumers_seek_reaches_all(broker: FakeBroker, client: AsyncClient) -> None:
    ids = await publish(client, numbers(4))
    one, two = [await client.subscribe("t", "s", ConsumerType.Shared, initial_position=EARLIEST) for _ in range(2)]
    await one.seek(ids[2])
    await broker.until(lambda: one.is_connected() and two.is_connected())
    await two.seek(MessageId.earliest)
    got: list[bytes] = []
    for consumer in (one, two):
        while True:
            try:
                got.append((await consumer.receive(80)).data())
            except Timeout:
                break
    assert set(got) >= set(numbers(4))


# ---- Other requests ----


async def test_the_last_message_id(client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    assert await consumer.get_last_message_id() == MessageId.earliest
    ids = await publish(client, numbers(3))
    assert await consumer.get_last_message_id() == ids[-1]
    ids = await publish(client, numbers(4), 4)
    assert await consumer.get_last_message_id() == ids[-1]


async def test_unsubscribing_deletes_the_subscription(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s")
    await consumer.unsubscribe()
    assert broker.topic(TOPIC).subscriptions == {}
    with pytest.raises(AlreadyClosed):
        await consumer.receive()
