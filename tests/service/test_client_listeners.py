"""Listeners, pausing and resuming of our clients on a cluster: each message once, in order, none lost at an end."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import magnetar
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.aio.reader import AsyncReader
from magnetar.client.consuming.message import Message
from magnetar.client.core.configuration import ConsumerType, InitialPosition
from magnetar.client.core.interceptors import ConsumerInterceptor
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import AlreadyClosed, InvalidConfiguration, Timeout
from support.clients.calls import numbers, publish
from support.servers.embedded_cluster import EmbeddedCluster

EARLIEST = InitialPosition.Earliest
_numbers = itertools.count()


@pytest.fixture
async def client(cluster: EmbeddedCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"listened-{next(_numbers)}"


async def until(condition: Callable[[], object]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to pass")


async def rest(client: AsyncClient, topic: str, count: int) -> list[bytes]:
    """The messages that the subscription still has."""
    consumer = await client.subscribe(topic, "s", ConsumerType.Shared)
    found = [await consumer.receive(10_000) for _ in range(count)]
    with pytest.raises(Timeout):
        await consumer.receive(100)
    await consumer.close()
    return sorted(message.data() for message in found)


class Heard:
    """A listener that acknowledges, and notes what it got."""

    def __init__(self, fails_at: bytes | None = None) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._fails_at = fails_at

    async def __call__(self, consumer: AsyncConsumer, message: Message) -> None:
        assert isinstance(consumer, AsyncConsumer)
        self.messages.append((message.topic_name(), message.data()))
        if message.data() == self._fails_at:
            raise RuntimeError("the application's own")
        await consumer.acknowledge(message)

    @property
    def data(self) -> list[bytes]:
        return [data for _, data in self.messages]


# ---- Listeners of the asyncio face ----


@pytest.mark.promise("14.5")
async def test_a_listener_gets_every_message_once_and_may_fail(
    client: AsyncClient, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard(fails_at=b"3")
    consumer = await client.subscribe(topic, "s", ConsumerType.Shared, message_listener=heard)
    for call in (consumer.receive(), consumer.receive_many(1), consumer.batch_receive()):
        with pytest.raises(InvalidConfiguration, match="has a listener"):
            await call
    ids = await publish(client, numbers(20), topic=topic)
    await until(lambda: len(heard.messages) == 20)
    assert heard.data == numbers(20)
    assert f"on persistent://public/default/{topic} failed with message {ids[3].text}" in caplog.text
    await consumer.close()
    assert await rest(client, topic, 1) == [b"3"]


@pytest.mark.parametrize("queue_size", [1_000, 0])
async def test_a_plain_function_is_called_on_the_loop_and_its_outcome_awaited(
    client: AsyncClient, topic: str, queue_size: int
) -> None:
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    def listen(consumer: AsyncConsumer, message: Message) -> Awaitable[None]:
        queue.put_nowait(message.data())
        return consumer.acknowledge(message)

    consumer = await client.subscribe(topic, "s", message_listener=listen, receiver_queue_size=queue_size)
    await publish(client, numbers(5), batch=5 if queue_size else 1, topic=topic)
    assert [await queue.get() for _ in range(5)] == numbers(5)
    await consumer.close()
    assert await rest(client, topic, 0) == []


@pytest.mark.promise("14.5")
async def test_lists_patterns_and_partitions_have_one_listener_at_a_time(
    client: AsyncClient, topic: str, cluster: EmbeddedCluster
) -> None:
    await asyncio.to_thread(
        lambda: cluster.run(
            cluster.coordinator_call("create_topic", topic=f"persistent://public/default/{topic}-p", partitions=2)
        )
    )
    by_list, by_pattern = Heard(), Heard()
    await client.subscribe([f"{topic}-a", f"{topic}-p"], "s", message_listener=by_list)
    pattern = re.compile(f"persistent://public/default/{topic}-.*")
    await client.subscribe(pattern, "u", message_listener=by_pattern)
    for name in ("a", "p-partition-0", "p-partition-1"):
        await publish(client, numbers(10), batch=3, topic=f"{topic}-{name}")
    await until(lambda: len(by_list.messages) == len(by_pattern.messages) == 30)
    for heard in (by_list, by_pattern):
        for name in ("a", "p-partition-0", "p-partition-1"):
            full = f"persistent://public/default/{topic}-{name}"
            assert [data for where, data in heard.messages if where == full] == numbers(10)


@pytest.mark.promise("14.5")
async def test_no_message_is_lost_when_the_topic_is_unloaded_meanwhile(
    client: AsyncClient, topic: str, cluster: EmbeddedCluster
) -> None:
    heard = Heard()
    consumer = await client.subscribe(topic, "s", message_listener=heard, receiver_queue_size=10)
    producer = await client.create_producer(topic, batching_enabled=False)
    sending = asyncio.create_task(producer.send_many(numbers(300)))
    await until(lambda: len(heard.messages) > 20)
    full = f"persistent://public/default/{topic}"
    await asyncio.to_thread(lambda: cluster.run(cluster.coordinator_call("unload", topic=full)))
    await sending
    await until(lambda: len(set(heard.data)) == 300)
    assert list(dict.fromkeys(heard.data)) == numbers(300)

    def is_all_acknowledged() -> bool:
        """What was sent again, because its receipt was lost, may still be on its way."""
        loaded = [broker.topics.loaded[full] for broker in cluster.brokers.values() if full in broker.topics.loaded]
        return any(isinstance(one, PersistentTopic) and not one.ledger.cursors["s"].backlog_entries for one in loaded)

    await until(is_all_acknowledged)
    await consumer.close()
    assert await rest(client, topic, 0) == []


@pytest.mark.promise("14.5")
async def test_closing_waits_for_the_message_that_the_listener_handles(client: AsyncClient, topic: str) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    async def listen(consumer: AsyncConsumer, message: Message) -> None:
        began.set()
        await go_on.wait()
        await consumer.acknowledge(message)

    consumer = await client.subscribe(topic, "s", message_listener=listen)
    await publish(client, numbers(3), topic=topic)
    await began.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    go_on.set()
    await closing
    assert await rest(client, topic, 2) == [b"1", b"2"]


@pytest.mark.promise("14.5")
@pytest.mark.parametrize("what", ["consumer", "unsubscribe", "client"])
async def test_a_listener_may_close_what_it_listens_to(cluster: EmbeddedCluster, topic: str, what: str) -> None:
    client = AsyncClient(cluster.service_url, operation_timeout_seconds=10)
    heard: list[bytes] = []
    closed = asyncio.Event()

    async def listen(consumer: AsyncConsumer, message: Message) -> None:
        heard.append(message.data())
        close = {"consumer": consumer.close, "unsubscribe": consumer.unsubscribe, "client": client.close}[what]
        await close()
        with pytest.raises(AlreadyClosed):
            await consumer.acknowledge(message)
        closed.set()

    consumer = await client.subscribe(topic, "s", ConsumerType.Shared, message_listener=listen)
    await publish(client, numbers(3), topic=topic)
    await asyncio.wait_for(closed.wait(), 4)
    await consumer.close()
    await client.close()
    assert heard == [b"0"]
    async with AsyncClient(cluster.service_url) as another:
        left = [] if what == "unsubscribe" else numbers(3)
        assert await rest(another, topic, len(left)) == left


async def test_a_client_that_closes_lets_all_listeners_end(cluster: EmbeddedCluster, topic: str) -> None:
    seen: list[str] = []

    class Watch(ConsumerInterceptor):
        def close(self) -> None:
            seen.append("interceptor")

    async def listen(consumer: AsyncConsumer, message: Message) -> None:
        seen.append("began")
        await asyncio.sleep(0.02)
        await consumer.acknowledge(message)
        seen.append("ended")

    client = AsyncClient(cluster.service_url)
    consumer = await client.subscribe(topic, "s", message_listener=listen, interceptors=[Watch()])
    await publish(client, numbers(1), topic=topic)
    await until(lambda: seen)
    await asyncio.gather(consumer.close(), client.close())
    assert seen == ["began", "ended", "interceptor"]
    async with AsyncClient(cluster.service_url) as another:
        assert await rest(another, topic, 0) == []


async def test_a_client_that_is_shut_down_cancels_its_listener(cluster: EmbeddedCluster, topic: str) -> None:
    ended: list[type[BaseException]] = []

    async def listen(_: AsyncConsumer, message: Message) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            ended.append(type(error))
            raise

    client = AsyncClient(cluster.service_url)
    consumer = await client.subscribe(topic, "s", message_listener=listen)
    await publish(client, numbers(1), topic=topic)
    await until(lambda: consumer.get_stats().total_msgs_received == 1)
    client.shutdown()
    await client.close()
    assert ended == [asyncio.CancelledError]


async def test_pausing_a_listener_at_work_keeps_the_rest(client: AsyncClient, topic: str) -> None:
    heard: list[bytes] = []
    began, go_on = asyncio.Event(), asyncio.Event()

    async def listen(consumer: AsyncConsumer, message: Message) -> None:
        began.set()
        await go_on.wait()
        heard.append(message.data())
        await consumer.acknowledge(message)

    consumer = await client.subscribe(topic, "s", message_listener=listen)
    await publish(client, numbers(5), topic=topic)
    await began.wait()
    consumer.pause_message_listener()
    consumer.pause_message_listener()
    go_on.set()
    await until(lambda: heard)
    await asyncio.sleep(0.05)
    assert heard == [b"0"]
    consumer.resume_message_listener()
    consumer.resume_message_listener()
    await until(lambda: len(heard) == 5)
    assert heard == numbers(5)
    consumer.pause_message_listener()
    await publish(client, numbers(2, 5), topic=topic)
    await consumer.close()
    assert await rest(client, topic, 2) == [b"5", b"6"]


@pytest.mark.promise("14.5")
async def test_a_reader_has_a_listener(client: AsyncClient, topic: str) -> None:
    heard: list[bytes] = []

    async def listen(reader: AsyncReader, message: Message) -> None:
        assert isinstance(reader, AsyncReader)
        heard.append(message.data())
        if message.data() == b"2":
            raise RuntimeError("the application's own")

    await publish(client, numbers(5), batch=2, topic=topic)
    reader = await client.create_reader(topic, MessageId.earliest, reader_listener=listen)
    await publish(client, numbers(5, 5), topic=topic)
    await until(lambda: len(heard) == 10)
    assert heard == numbers(10) and not await reader.has_message_available()
    with pytest.raises(InvalidConfiguration, match="has a listener"):
        await reader.read_next()
    await reader.close()


async def test_impossible_listeners_are_refused_before_anything_is_opened(
    cluster: EmbeddedCluster, client: AsyncClient, topic: str
) -> None:
    with pytest.raises(InvalidConfiguration, match="message_listener must be a function"):
        await client.subscribe(topic, "s", message_listener="no function")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidConfiguration, match="reader_listener must be a function"):
        await client.create_reader(topic, MessageId.earliest, reader_listener=7)  # pyright: ignore[reportArgumentType]
    consumer = await client.subscribe(topic, "u")
    for call in (consumer.pause_message_listener, consumer.resume_message_listener):
        with pytest.raises(InvalidConfiguration, match="has no listener"):
            call()

    async def listen(*_: object) -> None: ...

    def refused() -> None:
        with magnetar.Client(cluster.service_url) as blocking:
            for listener in (listen, Heard()):
                with pytest.raises(InvalidConfiguration, match="message_listener is a coroutine function"):
                    blocking.subscribe(topic, "s", message_listener=listener)  # pyright: ignore[reportArgumentType]
            with pytest.raises(InvalidConfiguration, match="reader_listener is a coroutine function"):
                blocking.create_reader(topic, MessageId.earliest, reader_listener=listen)

    await asyncio.to_thread(refused)


# ---- Pausing a consumer ----


@pytest.mark.promise("14.1", "31.17")
async def test_a_paused_consumer_gets_what_was_permitted_and_then_nothing(client: AsyncClient, topic: str) -> None:
    consumer = await client.subscribe(topic, "s", receiver_queue_size=10)
    consumer.pause()
    consumer.pause()
    await publish(client, numbers(30), topic=topic)
    assert [(await consumer.receive(10_000)).data() for _ in range(10)] == numbers(10)
    with pytest.raises(Timeout):
        await consumer.receive(100)
    waiting = asyncio.create_task(consumer.receive(10_000))
    await asyncio.sleep(0)
    consumer.resume()
    consumer.resume()
    assert (await waiting).data() == b"10"
    assert [(await consumer.receive(10_000)).data() for _ in range(19)] == numbers(19, 11)
    consumer.pause()
    await consumer.close()
    consumer.resume()


@pytest.mark.promise("14.1", "31.17")
async def test_a_pause_outlasts_an_unload_and_holds_for_topics_that_join(
    client: AsyncClient, topic: str, cluster: EmbeddedCluster
) -> None:
    heard = Heard()
    pattern = re.compile(f"persistent://public/default/{topic}-.*")
    await publish(client, [], topic=f"{topic}-a")
    consumer = await client.subscribe(pattern, "s", initial_position=EARLIEST, message_listener=heard)
    consumer.pause()
    full = f"persistent://public/default/{topic}-a"
    await asyncio.to_thread(lambda: cluster.run(cluster.coordinator_call("unload", topic=full)))
    await publish(client, numbers(5), topic=f"{topic}-a")
    await publish(client, numbers(5), topic=f"{topic}-b")
    await until(lambda: len(consumer._consumer.consumers) == 2 and consumer.is_connected())  # pyright: ignore[reportPrivateUsage]
    await asyncio.sleep(0.1)
    assert heard.messages == []
    consumer.resume()
    await until(lambda: len(heard.messages) == 10)
    assert sorted(heard.data) == sorted(numbers(5) * 2)


@pytest.mark.promise("14.1", "31.17")
def test_the_blocking_client_pauses_a_consumer(cluster: EmbeddedCluster, topic: str) -> None:
    with magnetar.Client(cluster.service_url) as client:
        consumer = client.subscribe(topic, "s", receiver_queue_size=4)
        without = client.subscribe(topic, "u", receiver_queue_size=0)
        for one in (consumer, without):
            one.pause()
        client.create_producer(topic).send_many(numbers(10))
        assert [consumer.receive(10_000).data() for _ in range(4)] == numbers(4)
        for one in (consumer, without):
            with pytest.raises(Timeout):
                one.receive(100)
            one.resume()
        assert [consumer.receive(10_000).data() for _ in range(6)] == numbers(6, 4)
        assert [without.receive(10_000).data() for _ in range(10)] == numbers(10)
