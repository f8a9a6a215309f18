"""A producer on many partitions: which one keyless messages go to, and the bound on pending messages that all share."""

import asyncio

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.consuming.message import ReceivedEntry
from magnetar.client.core.results import Result
from magnetar.protocol.entries import parse_entry
from magnetar.protocol.pulsar_pb2 import ServerError
from support.clients.calls import TOPIC, numbers
from support.fakes.broker import FakeBroker


def stored(broker: FakeBroker, topic: str) -> list[bytes]:
    """Every message of a topic, in order."""
    found: list[bytes] = []
    for entry_id, data in enumerate(broker.topic(topic).entries):
        entry = ReceivedEntry(topic, -1, 1, entry_id, *parse_entry(data))
        found += [message.data() for message in entry.open(1 << 24)]
    return found


@pytest.mark.promise("23.6")
async def test_keyless_messages_go_on_to_the_next_partition_when_a_batch_is_full(
    broker: FakeBroker, client: AsyncClient
) -> None:
    broker.partitions[TOPIC] = 4
    producer = await client.create_producer("t", batching_max_publish_delay_ms=10_000, batching_max_messages=5)
    for data in numbers(10):
        producer.send_async(data)
    await producer.send_many(numbers(18)[10:])
    contents = [stored(broker, f"{TOPIC}-partition-{index}") for index in range(4)]
    first = contents.index(numbers(5))
    assert contents[first:] + contents[:first] == [
        numbers(5), numbers(10)[5:], numbers(15)[10:], numbers(18)[15:],
    ]  # fmt: skip


@pytest.mark.parametrize("batched", [True, False])
async def test_all_partitions_share_the_bound_on_pending_messages(
    broker: FakeBroker, client: AsyncClient, batched: bool
) -> None:
    broker.partitions[TOPIC] = 8
    broker.mute_sends = True
    producer = await client.create_producer(
        "t",
        max_pending_messages_across_partitions=400,
        batching_enabled=batched,
        batching_max_messages=50,
        send_timeout_millis=0,
    )
    refused: list[Result] = []
    for number in range(600):
        producer.send_async(b"%d" % number, lambda result, _: refused.append(result))
    pending = 600 - len(refused)
    assert set(refused) == {Result.ProducerQueueIsFull} and 400 * 7 // 8 <= pending <= 400
    keyed = [one.outbox.pending for one in producer._producer.producers]
    assert sum(keyed) == pending and max(keyed) <= 100
    broker.mute_sends = False
    broker.drop_connections()
    await producer.flush()
    assert [one.outbox.pending for one in producer._producer.producers] == [0] * 8
    await producer.send_many(numbers(800))


async def test_senders_that_wait_go_on_when_another_partition_gives_room_back(
    broker: FakeBroker, client: AsyncClient
) -> None:
    broker.partitions[TOPIC] = 3
    producer = await client.create_producer(
        "t", max_pending_messages_across_partitions=6, batching_max_messages=2, block_if_queue_full=True
    )
    keys = [f"key-{number % 7}" for number in range(200)]
    async with asyncio.timeout(20):
        await asyncio.gather(
            *[producer.send(b"x", partition_key=key) for key in keys], producer.send_many(numbers(200))
        )


@pytest.mark.promise("23.6")
async def test_keyless_messages_stay_until_the_delay_has_passed(broker: FakeBroker, client: AsyncClient) -> None:
    broker.partitions[TOPIC] = 2
    producer = await client.create_producer("t", batching_max_publish_delay_ms=20, batching_max_messages=500)
    for data in numbers(20):
        producer.send_async(data)
    await producer.flush()
    sizes = sorted(len(stored(broker, f"{TOPIC}-partition-{index}")) for index in range(2))
    assert sizes == [0, 20]
    await asyncio.sleep(0.05)
    for data in numbers(20):
        producer.send_async(data)
        await asyncio.sleep(0.004)
    await producer.flush()
    assert min(len(stored(broker, f"{TOPIC}-partition-{index}")) for index in range(2)) > 0


@pytest.mark.promise("31.7")
async def test_a_producer_takes_partitions_that_are_added(broker: FakeBroker) -> None:
    broker.partitions[TOPIC] = 2
    async with AsyncClient(broker.url, partitions_update_interval_s=1) as client:
        producer = await client.create_producer("t", batching_enabled=False)
        broker.producer_errors = [ServerError.NotAllowedError]  # the first round fails, the next one makes good for it
        broker.partitions[TOPIC] = 4
        await broker.until(lambda: len(producer._producer.producers) == 4)
        for data in numbers(8):
            await producer.send(data)
        assert [len(stored(broker, f"{TOPIC}-partition-{index}")) for index in range(4)] == [2, 2, 2, 2]
        await producer.close()


@pytest.mark.parametrize("closing", ["close", "shutdown"])
async def test_a_producer_that_ends_asks_for_partitions_no_more(broker: FakeBroker, closing: str) -> None:
    broker.partitions[TOPIC] = 2
    client = AsyncClient(broker.url, partitions_update_interval_s=1)
    producer = await client.create_producer("t")
    growth = producer._producer._growth
    assert growth is not None and growth._task is not None
    if closing == "close":
        await producer.close()
    else:
        client.shutdown()
    await asyncio.wait([growth._task], timeout=2)
    assert growth._task.done()
    await client.close()
