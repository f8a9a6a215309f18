"""Table views, readers of hash ranges, interceptors, priority levels: with both faces of the client."""

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Sequence

import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.reader import key_hash
from magnetar.client.core.configuration import ConsumerType, InitialPosition
from magnetar.client.core.interceptors import ConsumerInterceptor
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import (
    CumulativeAcknowledgementNotAllowedError,
    InvalidConfiguration,
    MagnetarError,
)
from support.clients.calls import numbers, publish
from support.fakes.broker import FakeBroker
from support.servers.embedded_cluster import EmbeddedCluster

EARLIEST = InitialPosition.Earliest
_numbers = itertools.count()


@pytest.fixture
async def on_cluster(cluster: EmbeddedCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"extras-{next(_numbers)}"


@pytest.mark.promise("31.1")
async def test_a_table_view_has_the_last_value_of_each_key(on_cluster: AsyncClient, topic: str) -> None:
    producer = await on_cluster.create_producer(topic, batching_enabled=True)
    for key, value in [("a", b"1"), ("b", b"2"), ("a", b"3"), ("c", b"4"), ("c", None), (None, b"no key")]:
        await producer.send(value, partition_key=key)
    table = await on_cluster.create_table_view(topic, subscription_name="table")
    seen: dict[str, bytes] = {}
    table.for_each(seen.__setitem__)
    assert (len(table), table.get("a"), table.get("c"), seen) == (2, b"3", None, {"a": b"3", "b": b"2"})
    changes: list[tuple[str, bytes]] = []
    arrived = asyncio.Event()

    def changed(key: str, value: bytes) -> None:
        changes.append((key, value))
        if len(changes) == 4:
            arrived.set()

    table.for_each_and_listen(changed)
    await producer.send(b"5", partition_key="d")
    await producer.send(None, partition_key="a")
    await asyncio.wait_for(arrived.wait(), 10)
    assert changes == [("a", b"3"), ("b", b"2"), ("d", b"5"), ("a", b"")]
    assert table.get("a") is None and table.get("d") == b"5"
    with pytest.raises(InvalidConfiguration, match="schema"):
        await on_cluster.create_table_view(topic, schema=object())
    await table.close()
    await table.close()


@pytest.mark.promise("31.1")
def test_the_blocking_client_has_table_views_too(cluster: EmbeddedCluster, topic: str) -> None:
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer(topic)
        producer.send(b"1", partition_key="a")
        table = client.create_table_view(topic)
        arrived = threading.Event()
        table.for_each_and_listen(lambda key, value: arrived.set() if (key, value) == ("b", b"2") else None)
        assert len(table) == 1 and not arrived.is_set()
        producer.send(b"2", partition_key="b")
        assert arrived.wait(10) and table.get("b") == b"2"
        table.close()


async def test_readers_of_hash_ranges_share_a_topic(on_cluster: AsyncClient, topic: str) -> None:
    producer = await on_cluster.create_producer(topic, batching_enabled=True)
    for number in range(40):
        await producer.send(b"%d" % number, partition_key=f"key-{number}")
    found: list[list[bytes]] = []
    for ranges in ([(0, 9_999), (50_000, 65_535)], [(10_000, 49_999)]):
        reader = await on_cluster.create_reader(topic, MessageId.earliest, key_hash_ranges=ranges)
        contents: list[bytes] = []
        while await reader.has_message_available():
            message = await reader.read_next(10_000)
            assert any(start <= key_hash(message) <= end for start, end in ranges)
            contents.append(message.data())
        assert contents == sorted(contents, key=int)
        found.append(contents)
    assert sorted(found[0] + found[1], key=int) == numbers(40) and min(map(len, found)) > 5


@pytest.mark.promise("31.6")
@pytest.mark.parametrize("ranges", [[], [(0, 65_536)], [(-1, 5)], [(5, 4)], [(0, 5), (5, 9)], [(1,)], [(0, "9")]])
async def test_impossible_hash_ranges_are_refused(on_cluster: AsyncClient, ranges: object) -> None:
    with pytest.raises(InvalidConfiguration):
        await on_cluster.create_reader("t", MessageId.earliest, key_hash_ranges=ranges)


class Recorder(ConsumerInterceptor):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def before_consume(self, consumer: object, message: object) -> object:
        assert isinstance(message, magnetar.Message)
        self.told.append(("consume", message.data()))
        return message

    def on_acknowledge(self, consumer: object, message_id: MessageId, error: MagnetarError | None) -> None:
        self.told.append(("acknowledge", error and type(error)))

    def on_acknowledge_cumulative(self, consumer: object, message_id: MessageId, error: MagnetarError | None) -> None:
        self.told.append(("cumulative", error and type(error)))

    def on_negative_acks_send(self, consumer: object, message_ids: Sequence[MessageId]) -> None:
        self.told.append(("again", len(message_ids)))

    def on_ack_timeout_send(self, consumer: object, message_ids: Sequence[MessageId]) -> None:
        self.told.append(("late", len(message_ids)))

    def close(self) -> None:
        self.told.append(("close", None))
        raise RuntimeError("the client logs this")


@pytest.mark.promise("31.16")
async def test_interceptors_hear_of_everything_and_cannot_break_it(broker: FakeBroker, client: AsyncClient) -> None:
    recorder = Recorder()
    broken = ConsumerInterceptor()
    broken.before_consume = lambda consumer, message: None  # type: ignore[method-assign]
    consumer = await client.subscribe(
        "t", "s", ConsumerType.Shared, interceptors=[broken, recorder], priority_level=3,
        negative_ack_redelivery_delay_ms=1,
    )  # fmt: skip
    assert broker.commands("SUBSCRIBE")[0].priority_level == 3
    await publish(client, numbers(2))
    first = await consumer.receive(2000)
    second = await consumer.receive(2000)
    await consumer.acknowledge(first)
    with pytest.raises(CumulativeAcknowledgementNotAllowedError):
        await consumer.acknowledge_cumulative(second)
    await consumer.negative_acknowledge(second)
    await consumer.acknowledge_many([await consumer.receive(2000)])
    await consumer.close()
    await consumer.close()
    assert recorder.told == [
        ("consume", b"0"), ("consume", b"1"), ("acknowledge", None),
        ("cumulative", CumulativeAcknowledgementNotAllowedError), ("again", 1), ("consume", b"1"),
        ("acknowledge", None), ("close", None),
    ]  # fmt: skip
    with pytest.raises(InvalidConfiguration, match="interceptors"):
        await client.subscribe("t", "s", interceptors=[object()])


@pytest.mark.promise("31.16")
async def test_interceptors_hear_of_acknowledgement_time_outs(broker: FakeBroker, client: AsyncClient) -> None:
    recorder = Recorder()
    consumer = await client.subscribe(
        "t", "s", ConsumerType.Shared, interceptors=[recorder],
        unacked_messages_timeout_ms=40, ack_timeout_tick_time_ms=20,
    )  # fmt: skip
    await publish(client, numbers(1))
    await consumer.receive(2000)
    assert (await consumer.receive(5000)).redelivery_count() == 1
    assert recorder.told[:3] == [("consume", b"0"), ("late", 1), ("consume", b"0")]


@pytest.mark.promise("31.16")
def test_a_blocking_consumer_is_shown_to_its_interceptors(cluster: EmbeddedCluster, topic: str) -> None:
    shown: list[object] = []

    class Shown(ConsumerInterceptor):
        def before_consume(self, consumer: object, message: object) -> object:
            shown.append(consumer)
            return message

    with magnetar.Client(cluster.service_url) as client:
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST, interceptors=[Shown()])
        client.create_producer(topic).send(b"x")
        consumer.acknowledge(consumer.receive(10_000))
        assert shown == [consumer]


@pytest.mark.promise("21.4")
async def test_a_reader_may_have_the_name_of_a_durable_subscription(on_cluster: AsyncClient, topic: str) -> None:
    consumer = await on_cluster.subscribe(topic, "same", initial_position=EARLIEST)
    await publish(on_cluster, numbers(3), topic=topic)
    await consumer.acknowledge(await consumer.receive(10_000))
    reader = await on_cluster.create_reader(topic, MessageId.earliest, subscription_name="same")
    assert [(await reader.read_next(10_000)).data() for _ in range(3)] == numbers(3)
    assert [(await consumer.receive(10_000)).data() for _ in range(2)] == numbers(2, 1)
    await reader.close()
    await consumer.close()
    again = await on_cluster.subscribe(topic, "same")
    assert (await again.receive(10_000)).data() == b"1"
