"""Calls that are cancelled: what they had taken from the receive queue is there for the next call, in order.

`ray.cancel` cancels an async method of an actor in the same way, and raises KeyboardInterrupt in a task.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.consuming.message import Message, ReceivedEntry
from magnetar.client.core.configuration import ConsumerBatchReceivePolicy, InitialPosition
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.compression import CompressionType
from support.clients.calls import numbers, publish, receive, subscription
from support.fakes.broker import FakeBroker, FakeBrokerThread

EARLIEST = InitialPosition.Earliest
ENDLESS = ConsumerBatchReceivePolicy(100_000, -1, -1)
QUEUE = 100


def values(messages: object) -> list[bytes]:
    return [message.data() for message in messages]  # type: ignore[attr-defined]


async def has_taken(consumer: AsyncConsumer, count: int) -> None:
    """Until so many messages in all have left the receive queue, while a call holds them."""
    while consumer.get_stats().total_msgs_received < count:  # noqa: ASYNC110 - statistics have no event
        await asyncio.sleep(0.001)


async def permits_are_right(broker: FakeBroker, client: AsyncClient, consumer: AsyncConsumer) -> None:
    """The broker may send what the queue has room for: not more, and enough to go on."""
    await publish(client, numbers(3 * QUEUE, 50_000))
    assert await receive(consumer, 3 * QUEUE) == numbers(3 * QUEUE, 50_000)
    (registered,) = subscription(broker).consumers
    await broker.until(lambda: QUEUE // 2 < registered.permits <= QUEUE)


async def test_a_cancelled_batch_receive_gives_back_what_it_had_taken(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s", receiver_queue_size=QUEUE, batch_receive_policy=ENDLESS)
    producer = await client.create_producer("t", batching_max_messages=5)
    for round_ in range(60):
        await producer.send_many(numbers(25, round_ * 25))
        call = asyncio.ensure_future(consumer.batch_receive())
        await has_taken(consumer, 25 * (round_ + 1))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await receive(consumer, 1500) == numbers(1500)
    await permits_are_right(broker, client, consumer)


async def test_a_call_that_waits_gets_what_another_one_gives_back(client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s", batch_receive_policy=ENDLESS)
    await publish(client, numbers(3), 3)
    call = asyncio.ensure_future(consumer.batch_receive())
    await has_taken(consumer, 3)
    waiting = asyncio.ensure_future(consumer.receive(20_000))
    await asyncio.sleep(0)  # it waits now
    call.cancel()
    assert (await waiting).data() == b"0"
    assert await receive(consumer, 2) == numbers(2, 1)


async def test_what_was_taken_before_a_new_subscription_is_not_given_back(
    broker: FakeBroker, client: AsyncClient
) -> None:
    """The broker delivers it again."""
    consumer = await client.subscribe("t", "s", batch_receive_policy=ENDLESS)
    await publish(client, numbers(10), 5)
    call = asyncio.ensure_future(consumer.batch_receive())
    await has_taken(consumer, 10)
    broker.drop_connections()
    await has_taken(consumer, 20)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await receive(consumer, 10) == numbers(10)
    await publish(client, numbers(5, 10), 5)
    assert await receive(consumer, 5) == numbers(5, 10)


@pytest.mark.parametrize("way", ["receive", "receive_in_time", "receive_many", "batch_receive", "read_next", "mixed"])
async def test_of_many_cancelled_calls_nothing_vanishes(broker: FakeBroker, client: AsyncClient, way: str) -> None:
    random, count = Random(way), 1500
    options: dict[str, Any] = {"receiver_queue_size": QUEUE}
    if way == "read_next":
        reader = await client.create_reader("t", MessageId.earliest, **options)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {"read_next": reader.read_next}
        consumer = reader._consumer
    else:
        policy = ConsumerBatchReceivePolicy(40, -1, 5)
        consumer = await client.subscribe("t", "s", batch_receive_policy=policy, **options)
        calls = {
            "receive": consumer.receive,
            "receive_in_time": lambda: consumer.receive(2),
            "receive_many": lambda: consumer.receive_many(7),
            "batch_receive": consumer.batch_receive,
        }
    found: list[bytes] = []

    async def call_and_cancel() -> None:
        chosen = calls[random.choice([*calls]) if way == "mixed" else way]
        call = asyncio.ensure_future(chosen())
        for _ in range(random.choice([0, 0, 0, 1, 1, 2, 5, 50])):
            await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError, magnetar.Timeout):
            got = await call
            found.extend([got.data()] if isinstance(got, Message) else values(got))

    producer = await client.create_producer("t", batching_max_messages=9)
    sent = asyncio.ensure_future(producer.send_many(numbers(count)))
    cancelled = 0
    async with asyncio.timeout(60):
        while len(found) < count:
            before = len(found)
            await call_and_cancel()
            cancelled += len(found) == before
    await sent
    assert found == numbers(count) and cancelled > 20
    if way != "read_next":
        await permits_are_right(broker, client, consumer)


async def test_cancelled_sends_leave_their_places_to_others(broker: FakeBroker, client: AsyncClient) -> None:
    """A message whose call was cancelled may be stored. It is stored once, and takes no room afterwards."""
    broker.mute_sends = True
    producer = await client.create_producer("t", max_pending_messages=10, block_if_queue_full=True)
    calls = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(40)]
    await broker.until(lambda: broker.count("SEND"))
    for call in calls[5:35]:  # five that are under way, and all that wait for room
        call.cancel()
    await asyncio.wait(calls[5:35])
    assert all(call.cancelled() for call in calls[5:35])
    broker.mute_sends = False
    broker.drop_connections()  # what is under way is sent again
    async with asyncio.timeout(20):
        await asyncio.gather(*calls[:5], *calls[35:])
        await asyncio.gather(*[producer.send(b"%d" % number) for number in range(100, 130)])
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    wanted = [*range(5), *range(35, 40), *range(100, 130)]
    found = [int(value) for value in await receive(consumer, 10 + len(wanted) - 5)]
    assert len({*found}) == len(found)
    assert [number for number in found if number in wanted] == wanted


async def test_one_thread_opens_an_entry_when_its_caller_is_cancelled(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads at once would each let the other's chunks go."""
    producer = await client.create_producer("t", compression_type=CompressionType.ZLib)
    await producer.send(bytes(400_000))
    active = 0
    most, begun, go = [0], threading.Event(), threading.Event()
    prepare = ReceivedEntry.prepare

    def slowly(entry: ReceivedEntry, size_max: int) -> None:
        nonlocal active
        active += 1
        most.append(active)
        begun.set()
        assert go.wait(20)
        prepare(entry, size_max)
        active -= 1

    monkeypatch.setattr(ReceivedEntry, "prepare", slowly)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    for _ in range(5):
        call = asyncio.ensure_future(consumer.receive())
        while not begun.is_set():  # noqa: ASYNC110 - a thread sets it
            await asyncio.sleep(0.001)
        for _ in range(10):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    call = asyncio.ensure_future(consumer.receive(20_000))
    await asyncio.sleep(0)
    go.set()
    assert len((await call).data()) == 400_000
    assert max(most) == 1


# ---- The blocking face ----


@pytest.fixture
def blocking(broker_thread: FakeBrokerThread) -> Iterator[magnetar.Client]:
    with magnetar.Client(broker_thread.broker.url, operation_timeout_seconds=20) as client:
        yield client


@pytest.fixture
def interrupt() -> Iterator[Callable[[Callable[[], bool]], threading.Thread]]:
    """Interrupts this thread, as Ctrl-C does, as soon as a condition holds."""

    armed, pause = threading.Event(), threading.Event()

    def interrupted(*_: object) -> None:
        if armed.is_set():
            armed.clear()
            raise KeyboardInterrupt

    former = signal.signal(signal.SIGUSR1, interrupted)
    here = threading.get_ident()

    def when(condition: Callable[[], bool]) -> threading.Thread:
        def watch() -> None:
            while not condition():
                pause.wait(0.001)
            while armed.is_set():  # again and again: one that comes just before this thread waits does not wake it
                signal.pthread_kill(here, signal.SIGUSR1)
                pause.wait(0.01)

        armed.set()
        thread = threading.Thread(target=watch)
        thread.start()
        return thread

    yield when
    signal.signal(signal.SIGUSR1, former)


def test_an_interrupted_batch_receive_gives_back_what_it_had_taken(
    blocking: magnetar.Client, interrupt: Callable[[Callable[[], bool]], threading.Thread]
) -> None:
    consumer = blocking.subscribe("t", "s", batch_receive_policy=ENDLESS)
    producer = blocking.create_producer("t", batching_max_messages=5)
    for round_ in range(10):
        producer.send_many(numbers(25, round_ * 25))
        wanted = 25 * (round_ + 1)
        watching = interrupt(lambda: consumer.get_stats().total_msgs_received >= wanted)  # noqa: B023 - it ends here
        with pytest.raises(KeyboardInterrupt):
            consumer.batch_receive()
        watching.join()
    assert [consumer.receive(10_000).data() for _ in range(250)] == numbers(250)


def test_a_paused_listener_keeps_nothing_that_a_seek_makes_void(blocking: magnetar.Client) -> None:
    """A message that came while the listener was paused waits in the queue."""
    heard: list[bytes] = []
    came = threading.Condition()

    def listen(consumer: magnetar.Consumer, message: magnetar.Message) -> None:
        with came:
            heard.append(message.data())
            came.notify_all()
        consumer.acknowledge(message)

    consumer = blocking.subscribe("t", "s", message_listener=listen)
    producer = blocking.create_producer("t", batching_enabled=False)
    ids = [producer.send(number) for number in numbers(3)]
    with came:
        assert came.wait_for(lambda: len(heard) == 3, 20)
    consumer.pause_message_listener()  # it waits for a message meanwhile
    producer.send(b"3")
    while (figures := consumer.get_stats()).total_msgs_received + figures.msg_num_in_receiver_queue < 4:
        time.sleep(0.001)
    consumer.seek(ids[-1])
    consumer.resume_message_listener()
    producer.send(b"4")
    with came:
        assert came.wait_for(lambda: heard[-1:] == [b"4"], 20)
    assert heard == numbers(5)
