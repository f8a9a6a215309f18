"""Delayed messages that are too many for memory, on real services, with our client and the official one."""

import asyncio
import itertools
import time
from datetime import timedelta
from types import SimpleNamespace

import pulsar
import pytest

import magnetar
from magnetar.actors.delays import buckets as buckets_module

TICK_MS = 100
MESSAGES = 100
DELAY_S = 2.5
pytestmark = pytest.mark.cluster_settings(
    delayed_delivery_tick_ms=TICK_MS,
    delayed_delivery_min_index_count_per_bucket=20,
    delayed_delivery_max_indexes_per_segment=8,
    cursor_flush_interval_s=0.05,
)

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due in two seconds is not soon."""
    monkeypatch.setattr(buckets_module, "SOON_MS", 0)
    monkeypatch.setattr(buckets_module, "AHEAD_MS", 100)


@pytest.fixture(params=[magnetar, pulsar], ids=["ours", "official"])
def side(request, cluster):
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if request.param is pulsar else {}
    client = request.param.Client(cluster.service_url, operation_timeout_seconds=10, **options)
    yield SimpleNamespace(module=request.param, client=client)
    client.close()


def buckets_of(cluster, topic: str):
    """What the loaded topic has in buckets, None where the subscription has no dispatcher yet."""
    loaded = next((one.topics.loaded[topic] for one in cluster.brokers.values() if topic in one.topics.loaded), None)
    subscription = loaded and loaded.subscriptions.get(("s", True))
    dispatcher = subscription and subscription.dispatcher
    return dispatcher and dispatcher.gate._spill


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (of another component)
            await asyncio.sleep(0.01)


@pytest.mark.promise("28.7")
@pytest.mark.parametrize("kind", ["Shared", "KeyShared"])
async def test_spilled_messages_come_in_their_time_behind_a_restart_unless_cancelled(side, cluster, kind: str) -> None:
    topic = f"persistent://public/default/spilled-{next(_numbers)}"
    consumer = side.client.subscribe(topic, "s", consumer_type=getattr(side.module.ConsumerType, kind))
    producer = side.client.create_producer(topic, batching_enabled=False)
    began = time.time()
    ids: dict = {}

    def sent(number: int):
        return lambda _, message_id: ids.__setitem__(number, message_id)

    for number in range(MESSAGES):
        due: dict = {"deliver_at": int((began + DELAY_S) * 1000)}
        if number % 2:
            due = {"deliver_after": timedelta(seconds=began + DELAY_S - time.time())}
        producer.send_async(b"%d" % number, sent(number), partition_key=f"k{number % 5}", **due)
    producer.flush()
    await until(lambda: len(ids) == MESSAGES)
    await until(lambda: (buckets := buckets_of(cluster, topic)) is not None and buckets.count >= 80)
    cancelled = {number for number in range(MESSAGES) if number % 10 == 3}
    for number in cancelled:
        consumer.acknowledge(ids[number])
    await asyncio.sleep(0.2)  # clients send acknowledgements together
    await cluster.coordinator_call("unload", topic=topic)
    await until(lambda: (buckets := buckets_of(cluster, topic)) is not None and buckets.count >= 80)
    assert time.time() < began + DELAY_S - TICK_MS / 1000
    got = []
    for _ in range(MESSAGES - len(cancelled)):
        message = consumer.receive(10_000)
        assert time.time() >= began + DELAY_S - TICK_MS / 1000 - 0.05
        got.append(int(message.data()))
        consumer.acknowledge(message)
    assert sorted(got) == [number for number in range(MESSAGES) if number not in cancelled]
    with pytest.raises(side.module.Timeout):
        consumer.receive(200)
