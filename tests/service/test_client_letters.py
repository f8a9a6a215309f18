"""Retry letter and dead letter topics, on a whole cluster and on a scripted broker."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pulsar
import pytest

import magnetar
from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.aio.reader import AsyncReader
from magnetar.client.consuming.message import Message
from magnetar.client.core.configuration import (
    ConsumerDeadLetterPolicy,
    ConsumerType,
    DeadLetterProducerContext,
    InitialPosition,
)
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import InvalidMessage, OperationNotSupported, Timeout
from magnetar.protocol.pulsar_pb2 import ServerError
from support.clients.calls import TOPIC, numbers, publish
from support.fakes.broker import FakeBroker
from support.servers.embedded_cluster import EmbeddedCluster

SHARED, EARLIEST = ConsumerType.Shared, InitialPosition.Earliest
_numbers = itertools.count()


@pytest.fixture
async def on_cluster(cluster: EmbeddedCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"letters-{next(_numbers)}"


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


async def deliveries_until_dead(consumer: AsyncConsumer, content: bytes, dead: AsyncReader) -> tuple[int, Message]:
    """Negatively acknowledge `content` whenever it comes, acknowledge all else, until a dead letter comes: how often
    the message came, and the dead letter."""
    moved = asyncio.ensure_future(dead.read_next(30_000))
    times = 0
    while not moved.done():
        try:
            message = await consumer.receive(50)
        except Timeout:
            continue
        if message.data() == content:
            times += 1
            await consumer.negative_acknowledge(message)
        else:
            await consumer.acknowledge(message)
    return times, await moved


@pytest.mark.promise("9.1", "9.2", "9.4", "9.7", "9.10")
@pytest.mark.parametrize("batch", [1, 5])
async def test_a_message_moves_after_its_redeliveries_and_the_others_go_on(
    on_cluster: AsyncClient, cluster: EmbeddedCluster, topic: str, batch: int
) -> None:
    consumer = await on_cluster.subscribe(
        topic,
        "s",
        SHARED,
        dead_letter_policy=ConsumerDeadLetterPolicy(2),
        negative_ack_redelivery_delay_ms=1,
        consumer_name="worker",
    )
    producer = await on_cluster.create_producer(topic, batching_enabled=batch > 1, batching_max_messages=batch)
    ids = await producer.send_many(numbers(5))
    await producer.send(b"bad", {"mine": "1"}, partition_key="k", ordering_key="o", event_timestamp=7)
    dead = await on_cluster.create_reader(f"{topic}-s-DLQ", MessageId.earliest)
    times, moved = await deliveries_until_dead(consumer, b"bad", dead)
    assert times == 3
    assert (moved.data(), moved.partition_key(), moved.ordering_key(), moved.event_timestamp()) == (b"bad", "k", "o", 7)
    assert moved.properties()["REAL_TOPIC"] == full(topic) and moved.properties()["mine"] == "1"
    assert moved.properties()["ORIGIN_MESSAGE_ID"].split(":")[:2] == [str(ids[0].ledger_id()), moved_entry(ids, batch)]
    assert moved.producer_name().startswith(f"{full(topic)}-s-worker-") and moved.producer_name().endswith("-DLQ")
    assert not await dead.has_message_available()
    await consumer.close()
    again = await on_cluster.subscribe(topic, "s", SHARED)
    with pytest.raises(Timeout):  # everything is acknowledged, the dead letter too
        await again.receive(100)


def moved_entry(ids: list[MessageId], batch: int) -> str:
    return str(ids[-1].entry_id() + 1)


@pytest.mark.promise("9.11")
async def test_a_key_shared_subscription_has_dead_letters(on_cluster: AsyncClient, topic: str) -> None:
    consumer = await on_cluster.subscribe(
        topic,
        "s",
        ConsumerType.KeyShared,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=1,
    )
    producer = await on_cluster.create_producer(topic, batching_enabled=False)
    for content in (b"1", b"bad", b"2"):
        await producer.send(content, partition_key="k")
    dead = await on_cluster.create_reader(f"{topic}-s-DLQ", MessageId.earliest)
    times, moved = await deliveries_until_dead(consumer, b"bad", dead)
    assert times == 2
    assert (moved.data(), moved.partition_key()) == (b"bad", "k")


@pytest.mark.promise("9.10")
async def test_a_message_that_times_out_too_often_becomes_a_dead_letter(on_cluster: AsyncClient, topic: str) -> None:
    consumer = await on_cluster.subscribe(
        topic,
        "s",
        SHARED,
        dead_letter_policy=ConsumerDeadLetterPolicy(1),
        unacked_messages_timeout_ms=200,
        ack_timeout_tick_time_ms=100,
    )
    producer = await on_cluster.create_producer(topic, batching_enabled=False)
    dead = await on_cluster.create_reader(f"{topic}-s-DLQ", MessageId.earliest)
    await producer.send(b"forgotten")
    for _ in range(2):
        assert (await consumer.receive(10_000)).data() == b"forgotten"
    assert (await dead.read_next(10_000)).data() == b"forgotten"


@pytest.mark.promise("9.3", "9.8")
async def test_an_initial_subscription_keeps_the_first_dead_letter(on_cluster: AsyncClient, topic: str) -> None:
    policy = ConsumerDeadLetterPolicy(1, f"{topic}-dead", "keeper")
    consumer = await on_cluster.subscribe(
        topic, "s", SHARED, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=1
    )
    dead = await on_cluster.create_reader(f"{topic}-dead", MessageId.earliest)
    await publish(on_cluster, [b"bad"], topic=topic)
    assert (await deliveries_until_dead(consumer, b"bad", dead))[0] == 2
    keeper = await on_cluster.subscribe(f"{topic}-dead", "keeper")  # from the latest message, if it were new
    assert (await keeper.receive(10_000)).data() == b"bad"


@pytest.mark.promise("1.5", "8.2", "8.3", "8.4", "8.5", "8.6", "8.7", "8.9", "8.10", "8.11")
async def test_reconsuming_counts_waits_and_ends_in_the_dead_letter_topic(on_cluster: AsyncClient, topic: str) -> None:
    consumer = await on_cluster.subscribe(
        topic, "s", SHARED, enable_retry=True, dead_letter_policy=ConsumerDeadLetterPolicy(2)
    )
    assert consumer.topic() == full(topic)
    dead = await on_cluster.create_reader(f"{topic}-s-DLQ", MessageId.earliest)
    await publish(on_cluster, [b"bad"], batch=2, topic=topic)
    first = await consumer.receive(10_000)
    begun = time.time()
    await consumer.reconsume_later(first, 300, {"attempt": "one"})
    second = await consumer.receive(10_000)
    assert time.time() - begun >= 0.29
    assert second.topic_name() == f"{full(topic)}-s-RETRY" and second.data() == b"bad"
    origin = first.message_id().text
    assert second.properties() == {
        "DELAY_TIME": "300", "ORIGIN_MESSAGE_ID": origin, "ORIGIN_MESSAGE_IDY_TIME": origin, "RECONSUMETIMES": "1",
        "REAL_SUBSCRIPTION": "s", "REAL_TOPIC": full(topic), "attempt": "one",
    }  # fmt: skip
    await consumer.reconsume_later(second, timedelta(milliseconds=1), {"attempt": "two"})
    third = await consumer.receive(10_000)
    assert (third.properties()["RECONSUMETIMES"], third.properties()["attempt"]) == ("2", "two")
    assert (third.properties()["REAL_TOPIC"], third.properties()["ORIGIN_MESSAGE_ID"]) == (full(topic), origin)
    await consumer.reconsume_later(third)
    moved = await dead.read_next(10_000)
    assert moved.properties()["RECONSUMETIMES"] == "3" and moved.properties()["DELAY_TIME"] == "0"
    await consumer.close()
    for name in (topic, f"{topic}-s-RETRY"):
        rest = await on_cluster.subscribe(name, "s", SHARED)
        with pytest.raises(Timeout):
            await rest.receive(50)


@pytest.mark.promise("8.8", "9.10")
async def test_a_retry_letter_that_is_not_handled_becomes_a_dead_letter(on_cluster: AsyncClient, topic: str) -> None:
    consumer = await on_cluster.subscribe(
        topic, "s", SHARED, enable_retry=True, dead_letter_policy=ConsumerDeadLetterPolicy(1, f"{topic}-dead"),
        negative_ack_redelivery_delay_ms=1, retry_letter_topic=f"{topic}-again",
    )  # fmt: skip
    await publish(on_cluster, [b"bad"], topic=topic)
    copies = await on_cluster.create_reader(f"{topic}-again", MessageId.earliest)
    await consumer.reconsume_later(await consumer.receive(10_000))
    assert (await copies.read_next(10_000)).properties()["RECONSUMETIMES"] == "1"
    dead = await on_cluster.create_reader(f"{topic}-dead", MessageId.earliest)
    times, moved = await deliveries_until_dead(consumer, b"bad", dead)
    assert times == 2 and moved.properties()["RECONSUMETIMES"] == "1"


@pytest.mark.promise("8.13")
async def test_a_held_copy_goes_to_another_consumer_when_its_consumer_leaves(
    on_cluster: AsyncClient, topic: str
) -> None:
    consumer = await on_cluster.subscribe(topic, "s", SHARED, enable_retry=True)
    await publish(on_cluster, [b"x"], topic=topic)
    message = await consumer.receive(10_000)
    due = time.monotonic() + 0.69
    await consumer.reconsume_later(message, 700)
    with contextlib.suppress(Timeout):
        await consumer.receive(100)
        assert time.monotonic() >= due
    await consumer.close()
    other = await on_cluster.subscribe(topic, "s", SHARED, enable_retry=True)
    assert (await other.receive(10_000)).data() == b"x"
    assert time.monotonic() >= due


@pytest.mark.promise("8.1")
async def test_reconsuming_is_refused_where_it_cannot_be(on_cluster: AsyncClient, topic: str) -> None:
    plain = await on_cluster.subscribe(topic, "plain", SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(1))
    consumer = await on_cluster.subscribe(topic, "s", SHARED, enable_retry=True)
    await publish(on_cluster, [b"x"], topic=topic)
    message = await plain.receive(10_000)
    with pytest.raises(OperationNotSupported, match="enable_retry"):
        await plain.reconsume_later(message)
    own = await consumer.receive(10_000)
    with pytest.raises(InvalidMessage, match="takes a Message"):
        await consumer.reconsume_later(own.message_id())  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="a delay must be"):
        await consumer.reconsume_later(own, "soon")  # type: ignore[arg-type]
    with pytest.raises(InvalidMessage, match="property"):
        await consumer.reconsume_later(own, 1, {"a": 1})  # type: ignore[dict-item]
    elsewhere = await on_cluster.subscribe(f"{topic}-other", "s", SHARED)
    await publish(on_cluster, [b"y"], topic=f"{topic}-other")
    with pytest.raises(OperationNotSupported, match="does not have"):
        await consumer.reconsume_later(await elsewhere.receive(10_000))


@pytest.mark.promise("8.1")
def test_the_blocking_client_has_letters_too(cluster: EmbeddedCluster, topic: str) -> None:
    with magnetar.Client(cluster.service_url) as client:
        consumer = client.subscribe(
            topic, "s", SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(1), enable_retry=True,
            initial_position=EARLIEST,
        )  # fmt: skip
        client.create_producer(topic).send(b"x")
        consumer.reconsume_later(consumer.receive(10_000), 1, {"a": "b"})
        again = consumer.receive(10_000)
        assert again.properties()["a"] == "b"
        consumer.reconsume_later(again)
        dead = client.create_reader(f"{topic}-s-DLQ", MessageId.earliest)
        assert dead.read_next(10_000).data() == b"x"


@pytest.mark.promise("1.5", "8.4", "8.5", "8.6", "8.7", "8.9", "8.10")
def test_the_official_client_reads_retry_and_dead_letters_of_ours(
    cluster: EmbeddedCluster, official_client: pulsar.Client, topic: str
) -> None:
    """It has no `reconsume_later` itself. What it published comes back to it with the properties that Pulsar sets."""
    shared = {"consumer_type": pulsar.ConsumerType.Shared}
    copies, dead = [official_client.subscribe(f"{topic}-s-{end}", "watch", **shared) for end in ("RETRY", "DLQ")]
    with magnetar.Client(cluster.service_url) as client:
        policy = ConsumerDeadLetterPolicy(1)
        consumer = client.subscribe(topic, "s", SHARED, dead_letter_policy=policy, enable_retry=True)
        sent = official_client.create_producer(topic).send(b"x", {"mine": "1"}, partition_key="k")
        origin = f"{sent.ledger_id()}:{sent.entry_id()}:-1"
        consumer.reconsume_later(consumer.receive(10_000), 150, {"more": "2"})
        consumer.reconsume_later(consumer.receive(10_000))
    expected = {
        "ORIGIN_MESSAGE_ID": origin, "ORIGIN_MESSAGE_IDY_TIME": origin, "REAL_SUBSCRIPTION": "s",
        "REAL_TOPIC": full(topic), "mine": "1", "more": "2",
    }  # fmt: skip
    for side, times, delay in ((copies, "1", "150"), (dead, "2", "0")):
        message = side.receive(10_000)
        assert (message.data(), message.partition_key()) == (b"x", "k")
        assert message.properties() == {**expected, "RECONSUMETIMES": times, "DELAY_TIME": delay}
        side.acknowledge(message)
        with pytest.raises(pulsar.Timeout):
            side.receive(50)


@pytest.mark.promise("8.14")
async def test_customizers_change_the_producers_of_letters(on_cluster: AsyncClient, topic: str) -> None:
    contexts: list[DeadLetterProducerContext] = []

    def customize(context: DeadLetterProducerContext, options: dict[str, object]) -> None:
        contexts.append(context)
        options.update(producer_name=f"{context.default_topic_name}-customized", properties={"team": "a"})

    consumer = await on_cluster.subscribe(
        topic, "s", SHARED, enable_retry=True, dead_letter_policy=ConsumerDeadLetterPolicy(1),
        retry_letter_producer_customizer=customize, dead_letter_producer_customizer=customize,
    )  # fmt: skip
    await publish(on_cluster, [b"bad"], topic=topic)
    dead = await on_cluster.create_reader(f"{topic}-s-DLQ", MessageId.earliest)
    await consumer.reconsume_later(await consumer.receive(10_000))
    again = await consumer.receive(10_000)
    assert again.producer_name() == f"{full(topic)}-s-RETRY-customized"
    await consumer.reconsume_later(again)
    assert (await dead.read_next(10_000)).producer_name() == f"{full(topic)}-s-DLQ-customized"
    assert [one.default_topic_name for one in contexts] == [f"{full(topic)}-s-RETRY", f"{full(topic)}-s-DLQ"]


# ---- Order of steps, on a scripted broker ----


@pytest.mark.promise("7.7")
@pytest.mark.parametrize("timeout_ms", [None, 40])
async def test_a_dead_letter_policy_sets_no_time_out_of_its_own(
    broker: FakeBroker, client: AsyncClient, timeout_ms: int | None
) -> None:
    consumer = await client.subscribe(
        "t", "s", SHARED, dead_letter_policy=ConsumerDeadLetterPolicy(5), enable_retry=True,
        unacked_messages_timeout_ms=timeout_ms, ack_timeout_tick_time_ms=10,
    )  # fmt: skip
    await publish(client, [b"x"])
    assert (await consumer.receive(10_000)).data() == b"x"
    if timeout_ms is None:
        assert [one.acks.timeouts for one in consumer._consumer.consumers] == [None, None]
        await asyncio.sleep(0.1)
        assert not broker.count("REDELIVER_UNACKNOWLEDGED_MESSAGES")
    else:
        assert (await consumer.receive(10_000)).data() == b"x"


@pytest.mark.promise("8.3", "8.4")
async def test_the_original_is_acknowledged_only_when_the_copy_is_stored(
    broker: FakeBroker, client: AsyncClient
) -> None:
    consumer = await client.subscribe("t", "s", SHARED, enable_retry=True, ack_group_time_ms=0)
    await publish(client, [b"x"])
    message = await consumer.receive(10_000)
    broker.receipt_delay_s = 0.1
    under_way = asyncio.create_task(consumer.reconsume_later(message))
    await broker.until(lambda: broker.topic(f"{TOPIC}-s-RETRY").entries)
    assert not broker.count("ACK") and not under_way.done()
    await under_way
    await broker.until(lambda: broker.count("ACK"))
    kinds = [name for name, _ in broker.log]
    assert kinds.index("ACK") > len(kinds) - 1 - kinds[::-1].index("SEND")


async def test_when_the_copy_is_not_stored_the_original_stays(broker: FakeBroker, client: AsyncClient) -> None:
    consumer = await client.subscribe("t", "s", SHARED, enable_retry=True, ack_group_time_ms=0)
    await publish(client, [b"x"])
    message = await consumer.receive(10_000)
    broker.producer_errors = [ServerError.NotAllowedError]
    with pytest.raises(magnetar.NotAllowedError):
        await consumer.reconsume_later(message)
    assert not broker.count("ACK")
    await consumer.reconsume_later(message)  # the next attempt makes another producer
    await broker.until(lambda: broker.count("ACK"))


@pytest.mark.promise("8.4", "8.13")
async def test_a_consumer_that_dies_between_copy_and_acknowledgement_repeats_the_message(
    broker: FakeBroker, client: AsyncClient
) -> None:
    dying = AsyncClient(broker.url)
    consumer = await dying.subscribe("t", "s", SHARED, enable_retry=True, ack_group_time_ms=0)
    await publish(client, [b"x"])
    message = await consumer.receive(10_000)
    broker.receipt_delay_s = 60
    under_way = asyncio.create_task(consumer.reconsume_later(message))
    await broker.until(lambda: broker.topic(f"{TOPIC}-s-RETRY").entries)
    dying.shutdown()
    with pytest.raises(magnetar.AlreadyClosed):
        await under_way
    await dying.close()
    other = await client.subscribe("t", "s", SHARED, enable_retry=True)
    found = [await other.receive(10_000) for _ in range(2)]
    assert {one.topic_name() for one in found} == {TOPIC, f"{TOPIC}-s-RETRY"}  # repeated, and not lost


@pytest.mark.promise("9.9")
async def test_a_dead_letter_that_is_not_stored_comes_again(broker: FakeBroker, client: AsyncClient) -> None:
    policy = ConsumerDeadLetterPolicy(1)
    consumer = await client.subscribe(
        "t", "s", SHARED, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=1, ack_group_time_ms=0
    )
    await publish(client, [b"x"])
    broker.producer_errors = [ServerError.NotAllowedError] * 2  # as where subscriptions are not created by themselves
    for _ in range(2):
        await consumer.negative_acknowledge(await consumer.receive(10_000))
    await broker.until(lambda: broker.topic(f"{TOPIC}-s-DLQ").entries)
    await broker.until(lambda: broker.count("ACK"))
    with pytest.raises(Timeout):
        await consumer.receive(50)
    assert len(broker.topic(f"{TOPIC}-s-DLQ").entries) == 1
