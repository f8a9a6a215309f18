"""The client where several conditions meet: batches without a queue, seeks that fail, positions that others moved."""

import asyncio

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.configuration import ConsumerType, InitialPosition
from magnetar.client.core.message_id import MessageId
from magnetar.client.core.results import Result
from magnetar.protocol.errors import AlreadyClosed, ChecksumError, MessageTooBig, Timeout, UnknownError
from support.clients.calls import TOPIC, numbers, publish, receive, subscription
from support.fakes.broker import FakeBroker

EARLIEST = InitialPosition.Earliest


# ---- Producers ----


async def test_a_callback_between_messages_without_one_is_called(client: AsyncClient) -> None:
    producer = await client.create_producer("t")
    called: list[tuple[Result, int]] = []
    producer.send_async(b"a")
    producer.send_async(b"b", lambda result, message_id: called.append((result, message_id.batch_index())))
    producer.send_async(b"c")
    await producer.flush()
    assert called == [(Result.Ok, 1)]


async def test_a_flush_does_not_raise_what_failed_behind_it(broker: FakeBroker, client: AsyncClient) -> None:
    broker.receipt_delay_s = 0.1
    producer = await client.create_producer("t", batching_enabled=False)
    producer.send_async(b"before")
    flush = asyncio.ensure_future(producer.flush())
    await broker.until(lambda: broker.count("SEND"))
    with pytest.raises(MessageTooBig):
        await producer.send(b"x" * (broker.message_size_max + 1))
    await flush


# ---- Without a receiver queue ----


async def test_batches_without_a_queue(client: AsyncClient) -> None:
    await publish(client, numbers(20), 5)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=0)
    assert await receive(consumer, 20) == numbers(20)


@pytest.mark.parametrize("batch", [1, 3])
async def test_a_seek_without_a_queue(client: AsyncClient, batch: int) -> None:
    ids = await publish(client, numbers(6), batch)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=0)
    await consumer.seek(ids[2])
    assert await receive(consumer, 3) == numbers(3, 3)


async def test_a_corrupt_entry_without_a_queue(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(3))
    broker.corrupt = 1
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=0)
    with pytest.raises(ChecksumError):
        await consumer.receive(2000)
    assert await receive(consumer, 2) == numbers(2, 1)


# ---- Positions ----


async def test_a_cursor_that_was_set_back_takes_cumulative_acknowledgements_again(
    broker: FakeBroker, client: AsyncClient
) -> None:
    await publish(client, numbers(4))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    messages = [await consumer.receive(2000) for _ in range(4)]
    await consumer.acknowledge_cumulative(messages[3])
    await broker.until(lambda: subscription(broker).acked == {0, 1, 2, 3})
    found = subscription(broker)  # somebody resets it: an administrator, say
    found.acked.clear()
    found.start = found.next_entry = 0
    for connection in broker.connections:
        for consumer_id in list(connection.consumers):
            connection.close_consumer(consumer_id)
    messages = [await consumer.receive(2000) for _ in range(4)]
    await consumer.acknowledge(messages[0])
    await consumer.acknowledge_cumulative(messages[3])
    await broker.until(lambda: subscription(broker).acked == {0, 1, 2, 3})


async def test_a_seek_that_fails_loses_nothing(broker: FakeBroker, client: AsyncClient) -> None:
    async with AsyncClient(broker.url, operation_timeout_seconds=1) as impatient:
        ids = await publish(client, numbers(10))
        reader = await impatient.create_reader("t", MessageId.earliest)
        consumer = await impatient.subscribe("t", "s", initial_position=EARLIEST)
        assert [(await reader.read_next(2000)).data() for _ in range(3)] == numbers(3)
        assert await receive(consumer, 3) == numbers(3)
        broker.mute = True
        outcomes = await asyncio.gather(reader.seek(ids[7]), consumer.seek(ids[7]), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Timeout, Timeout]
        broker.mute = False
        broker.drop_connections()
        got = {(await reader.read_next(2000)).data() for _ in range(7)}
        assert got >= set(numbers(7, 3))
        assert set(await receive(consumer, 10)) == set(numbers(10))
        assert broker.topic(TOPIC).entries


async def test_a_surprise_while_reconnecting_reaches_those_who_wait(
    broker: FakeBroker, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await client.create_producer("t")
    consumer = await client.subscribe("t", "s")
    waiting = asyncio.ensure_future(consumer.receive())

    async def surprise(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("magnetar.client.core.lookup.Lookup.connection", surprise)
    broker.drop_connections()
    with pytest.raises(UnknownError):
        await producer.send(b"x")
    with pytest.raises(UnknownError):
        await waiting


async def test_a_seek_that_fails_acknowledges_nothing(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.fakes.broker.Connection.on_seek", lambda *_: None)
    async with AsyncClient(broker.url, operation_timeout_seconds=1) as client:
        ids = await publish(client, numbers(10))
        consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=2)
        with pytest.raises(Timeout):
            await consumer.seek(ids[7])
        assert subscription(broker).acked == set()
        assert set(await receive(consumer, 10)) == set(numbers(10))


async def test_many_negative_acknowledgements_are_told_in_portions(
    broker: FakeBroker, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.client.consuming.ack_sender.ENTRIES_PER_COMMAND_MAX", 3)
    await publish(client, numbers(8))
    consumer = await client.subscribe(
        "t", "s", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=20
    )
    for _ in range(8):
        await consumer.negative_acknowledge(await consumer.receive(2000))
    assert sorted(await receive(consumer, 8)) == numbers(8)
    told = [len(command.message_ids) for command in broker.commands("REDELIVER_UNACKNOWLEDGED_MESSAGES")]
    assert sum(told) == 8 and max(told) <= 3


async def test_a_close_that_is_given_up_still_ends_the_producer(broker: FakeBroker, client: AsyncClient) -> None:
    broker.receipts_lost = 10**9
    producer = await client.create_producer("t")
    waiting = asyncio.ensure_future(producer.send(b"x"))
    await broker.until(lambda: broker.count("SEND"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(), 0.05)
    with pytest.raises(AlreadyClosed):
        async with asyncio.timeout(1):
            await waiting
    await broker.until(lambda: broker.count("CLOSE_PRODUCER") == 1)


async def test_shutting_down_waits_for_nothing(broker: FakeBroker) -> None:
    broker.receipts_lost = 10**9
    client = AsyncClient(broker.url)
    producer = await client.create_producer("t")
    waiting = asyncio.ensure_future(producer.send(b"x"))
    await broker.until(lambda: broker.count("SEND"))
    client.shutdown()
    client.shutdown()
    with pytest.raises(AlreadyClosed):
        await waiting
    with pytest.raises(AlreadyClosed):
        await client.create_producer("t")
    await broker.until(lambda: not broker.connections)
    await client.close()
