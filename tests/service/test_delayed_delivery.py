"""Delayed delivery: messages with a delivery time, on real services, with our client and the official one."""

import asyncio
import itertools
import time
from datetime import timedelta
from types import SimpleNamespace

import pulsar
import pytest

import magnetar
from magnetar.actors.admin.topic_figures import topic_json
from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.configuration import ConsumerType
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import NotAllowedError, Timeout
from support.servers.embedded_cluster import EmbeddedCluster

TICK_MS = 100
SLACK_S = 1.0
"""How much later than its time a message may come on a machine that is busy."""
pytestmark = pytest.mark.cluster_settings(
    delayed_delivery_tick_ms=TICK_MS,
    cursor_flush_interval_s=0.05,
    ledger_entries_max=10,
    ledger_rollover_min_minutes=0,
)

_numbers = itertools.count()


@pytest.fixture(params=[magnetar, pulsar], ids=["ours", "official"])
def side(request, cluster):
    client = connect(request.param, cluster.service_url)
    yield SimpleNamespace(module=request.param, client=client, cluster=cluster)
    client.close()


@pytest.fixture
async def on_cluster(cluster):
    async with AsyncClient(cluster.service_url, operation_timeout_seconds=10) as made:
        yield made


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/delayed-{next(_numbers)}"


def connect(module, url: str):
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if module is pulsar else {}
    return module.Client(url, operation_timeout_seconds=10, **options)


def until(condition, timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


async def figures(cluster, topic: str, subscription: str) -> dict:
    found = next(one for one in cluster.brokers.values() if topic in one.topics.loaded)
    return topic_json(found.topics.loaded[topic].describe())["subscriptions"][subscription]


@pytest.mark.promise("28.1", "28.3", "28.5", "28.6")
def test_shared_types_wait_for_the_time_and_the_others_do_not(side, topic) -> None:
    types = side.module.ConsumerType
    consumers = {
        kind: side.client.subscribe(topic, kind.name, consumer_type=kind)
        for kind in (types.Shared, types.KeyShared, types.Exclusive, types.Failover)
    }
    producer = side.client.create_producer(topic, batching_enabled=False)
    began = time.time()
    producer.send(b"late", partition_key="k", deliver_at=int(began * 1000) + 1200)
    producer.send(b"later", partition_key="k", deliver_after=timedelta(seconds=1.6))
    producer.send(b"now", partition_key="k")
    for kind in (types.Exclusive, types.Failover):
        assert [consumers[kind].receive(5000).data() for _ in range(3)] == [b"late", b"later", b"now"]
    assert time.time() < began + 1.1
    for kind in (types.Shared, types.KeyShared):
        assert consumers[kind].receive(5000).data() == b"now"
    for content, after_s in ((b"late", 1.2), (b"later", 1.6)):
        for kind in (types.Shared, types.KeyShared):
            message = consumers[kind].receive(5000)
            early_s = began + after_s - time.time()
            assert (message.data(), message.redelivery_count()) == (content, 0)
            assert -SLACK_S < early_s <= TICK_MS / 1000
            consumers[kind].acknowledge(message)


@pytest.mark.promise("28.2")
async def test_held_messages_show_in_the_figures_and_an_acknowledged_one_never_comes(
    on_cluster: AsyncClient, cluster, topic: str
) -> None:
    consumer = await on_cluster.subscribe(topic, "s", ConsumerType.Shared)
    producer = await on_cluster.create_producer(topic)
    ids = [await producer.send(b"%d" % one, deliver_after=timedelta(seconds=0.8)) for one in range(3)]
    await producer.send(b"now")
    assert (await consumer.receive(5000)).data() == b"now"
    shown = await figures(cluster, topic, "s")
    assert (shown["msgDelayed"], shown["msgBacklog"], shown["msgBacklogNoDelayed"]) == (3, 4, 1)
    assert shown["delayedMessageIndexSizeInBytes"] > 0
    await consumer.acknowledge(ids[1])
    assert [(await consumer.receive(5000)).data() for _ in range(2)] == [b"0", b"2"]
    with pytest.raises(Timeout):
        await consumer.receive(100)
    shown = await figures(cluster, topic, "s")
    assert (shown["msgDelayed"], shown["delayedMessageIndexSizeInBytes"]) == (0, 0)


@pytest.mark.promise("28.2")
@pytest.mark.parametrize("kind", [ConsumerType.Shared, ConsumerType.KeyShared])
async def test_unloading_loses_no_held_message_and_doubles_none(
    on_cluster: AsyncClient, cluster, topic: str, kind: ConsumerType
) -> None:
    consumer = await on_cluster.subscribe(topic, "s", kind)
    producer = await on_cluster.create_producer(topic)
    for one in range(20):
        delay = timedelta(seconds=0.3 if one % 4 == 0 else 1.5)
        await producer.send(b"%d" % one, partition_key=f"{one % 3}", deliver_after=delay)
    first = []
    for _ in range(5):
        message = await consumer.receive(5000)
        first.append(int(message.data()))
        await consumer.acknowledge(message)
    assert sorted(first) == [0, 4, 8, 12, 16]
    async with asyncio.timeout(10):
        while (await figures(cluster, topic, "s"))["msgBacklog"] > 15:  # noqa: ASYNC110 (of another component)
            await asyncio.sleep(0.01)
    await cluster.coordinator_call("unload", topic=topic)
    rest = []
    for _ in range(15):
        message = await consumer.receive(10_000)
        rest.append(int(message.data()))
        await consumer.acknowledge(message)
    assert sorted([*first, *rest]) == list(range(20))
    with pytest.raises(Timeout):
        await consumer.receive(300)


@pytest.mark.promise("28.2")
async def test_a_seek_holds_messages_again_and_redelivery_does_not(on_cluster: AsyncClient, topic: str) -> None:
    consumer = await on_cluster.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=1)
    producer = await on_cluster.create_producer(topic)
    await producer.send(b"later", deliver_after=timedelta(seconds=1))
    await consumer.seek(MessageId.earliest)
    began = time.monotonic()
    message = await consumer.receive(5000)
    await consumer.negative_acknowledge(message)
    message = await consumer.receive(5000)
    assert (message.data(), message.redelivery_count()) == (b"later", 1)
    assert time.monotonic() - began < 1 + SLACK_S
    await consumer.acknowledge(message)
    with pytest.raises(Timeout):
        await consumer.receive(100)


@pytest.mark.promise("28.4")
async def test_a_policy_bounds_the_delay_and_frees_what_is_held(on_cluster: AsyncClient, cluster, topic: str) -> None:
    consumer = await on_cluster.subscribe(topic, "s", ConsumerType.Shared)
    producer = await on_cluster.create_producer(topic)
    await producer.send(b"held", deliver_after=timedelta(hours=1))
    loaded = next(one.topics.loaded[topic] for one in cluster.brokers.values() if topic in one.topics.loaded)

    async def use(policy: dict) -> None:
        await cluster.coordinator_call(
            "set_policy", namespace="public/default", policy="delayed_delivery", value=policy or None
        )
        while policy and loaded.policies.delayed_delivery.active is not policy["active"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    with pytest.raises(Timeout):
        await consumer.receive(200)
    await use({"active": False})
    assert (await consumer.receive(5000)).data() == b"held"
    await producer.send(b"at once", deliver_after=timedelta(hours=1))
    assert (await consumer.receive(5000)).data() == b"at once"
    await use({"active": True, "tickTime": 50, "maxDeliveryDelayInMillis": 60_000})
    with pytest.raises(NotAllowedError, match="more than 60000 ms away"):
        await producer.send(b"too far", deliver_after=timedelta(hours=1))
    await use({})


@pytest.mark.promise("28.8")
def test_a_long_delay_keeps_its_ledger_and_all_behind_it(side, cluster, topic) -> None:
    consumer = side.client.subscribe(topic, "s", consumer_type=side.module.ConsumerType.Shared)
    producer = side.client.create_producer(topic, batching_enabled=False)
    far = producer.send(b"far", deliver_after=timedelta(hours=1))
    for number in range(30):
        producer.send(b"%d" % number)
    for _ in range(30):
        consumer.acknowledge(consumer.receive(5000))

    def ledger():
        return next(one.topics.loaded[topic].ledger for one in cluster.brokers.values() if topic in one.topics.loaded)

    until(lambda: ledger().cursors["s"].backlog_entries == 1)
    cluster.run(ledger().cursors["s"].flush())
    assert cluster.run(ledger().trim()) == []
    assert len(ledger().ledger_infos) >= 3
    consumer.acknowledge(far)
    until(lambda: len(ledger().ledger_infos) == 1)


@pytest.mark.promise("28.6")
@pytest.mark.parametrize("module", [magnetar, pulsar], ids=["ours", "official"])
def test_a_strict_broker_delivers_nothing_early(module, tmp_path) -> None:
    """The tick is longer than the delay, so a broker that is not strict would deliver at once."""
    with EmbeddedCluster(tmp_path, delayed_delivery_strict=True, delayed_delivery_tick_ms=1000) as cluster:
        client = connect(module, cluster.service_url)
        consumer = client.subscribe("strict", "s", consumer_type=module.ConsumerType.Shared)
        producer = client.create_producer("strict", batching_enabled=False)
        due_ms = int(time.time() * 1000) + 600
        producer.send(b"late", deliver_at=due_ms)
        producer.send(b"now")
        assert [consumer.receive(5000).data() for _ in range(2)] == [b"now", b"late"]
        assert 0 <= time.time() * 1000 - due_ms < 1000 + 1000 * SLACK_S
        client.close()


@pytest.mark.promise("28.4")
@pytest.mark.parametrize("module", [magnetar, pulsar], ids=["ours", "official"])
def test_without_delayed_delivery_messages_come_at_once_and_nothing_is_held(module, tmp_path) -> None:
    with EmbeddedCluster(tmp_path, delayed_delivery_enabled=False) as cluster:
        client = connect(module, cluster.service_url)
        name = "persistent://public/default/off"
        consumer = client.subscribe(name, "s", consumer_type=module.ConsumerType.Shared)
        producer = client.create_producer(name, batching_enabled=False)
        for number in range(10):
            producer.send(b"%d" % number, deliver_after=timedelta(hours=1))
        assert [consumer.receive(5000).data() for _ in range(10)] == [b"%d" % number for number in range(10)]
        shown = cluster.run(figures(cluster, name, "s"))
        assert (shown["msgDelayed"], shown["delayedMessageIndexSizeInBytes"]) == (0, 0)
        client.close()
