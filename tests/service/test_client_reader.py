"""Readers against a broker with faults: starts, ends, reconnecting without a message twice or left out, seeking."""

import asyncio
import time
from typing import Any

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.reader import AsyncReader
from magnetar.client.core.message_id import MessageId
from magnetar.client.crypto.keys import ConsumerCryptoFailureAction
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import AlreadyClosed, OperationNotSupported, Timeout
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from support.clients.calls import TOPIC, numbers, publish
from support.fakes.broker import Connection, FakeBroker


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("inclusive", [True, False])
async def test_reading_from_a_message(broker: FakeBroker, client: AsyncClient, batch: int, inclusive: bool) -> None:
    ids = await publish(client, numbers(16), batch)
    for target in (0, 5, 7, 15):
        reader = await client.create_reader("t", ids[target], start_message_id_inclusive=inclusive)
        got = []
        while await reader.has_message_available():
            got.append((await reader.read_next(2000)).data())
        first = target if inclusive else target + 1
        assert got == numbers(16 - first, first)
        await reader.close()


async def test_reading_from_the_ends(client: AsyncClient) -> None:
    empty = await client.create_reader("t", MessageId.earliest)
    assert not await empty.has_message_available()
    await publish(client, numbers(6), 3)
    assert await empty.has_message_available()
    assert (await empty.read_next(2000)).data() == b"0"
    latest = await client.create_reader("t", MessageId.latest)
    assert not await latest.has_message_available()
    last = await client.create_reader("t", MessageId.latest, start_message_id_inclusive=True)
    assert await last.has_message_available()
    assert (await last.read_next(2000)).data() == b"5"
    await publish(client, [b"new"])
    assert await latest.has_message_available()
    assert (await latest.read_next(2000)).data() == b"new"
    assert (await last.read_next(2000)).data() == b"new"


async def test_a_reader_goes_on_exactly_where_it_was(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(300), 7)
    reader = await client.create_reader("t", MessageId.earliest, receiver_queue_size=20)
    got: list[bytes] = []
    for round in range(30):
        for _ in range(10):
            got.append((await reader.read_next(2000)).data())
        if round % 5 == 1:
            broker.drop_connections()
    assert got == numbers(300)
    assert not await reader.has_message_available()


async def test_a_reader_seeks(client: AsyncClient) -> None:
    ids = await publish(client, numbers(12), 4)
    reader = await client.create_reader("t", MessageId.latest)
    await reader.seek(ids[5])
    assert await reader.has_message_available()
    got = [(await reader.read_next(2000)).data() for _ in range(6)]
    assert got == numbers(6, 6)
    assert not await reader.has_message_available()
    await reader.seek(MessageId.earliest)
    assert (await reader.read_next(2000)).data() == b"0"
    await reader.seek(1)
    assert await reader.has_message_available()
    assert (await reader.read_next(2000)).data() == b"0"


async def test_a_partitioned_topic_is_read_from_its_ends_only(broker: FakeBroker, client: AsyncClient) -> None:
    broker.partitions[TOPIC] = 2
    producer = await client.create_producer("t", batching_enabled=False)
    ids = await producer.send_many(numbers(10))
    reader = await client.create_reader("t", MessageId.earliest)
    got = []
    while await reader.has_message_available():
        got.append((await reader.read_next(2000)).data())
    assert sorted(got) == sorted(numbers(10))
    with pytest.raises(OperationNotSupported):
        await client.create_reader("t", ids[3])


# ---- Starts that only the broker knows ----


@pytest.mark.parametrize("filled", [0, 5])
@pytest.mark.parametrize("rounds", [1, 3])
async def test_a_reader_at_latest_keeps_its_place_before_anything_came(
    broker: FakeBroker, client: AsyncClient, filled: int, rounds: int
) -> None:
    """The topic moves, and messages are published before the reader has subscribed again."""
    await publish(client, numbers(filled))
    reader = await client.create_reader("t", MessageId.latest)
    for _ in range(rounds - 1):
        await _subscribes_again(broker, 0)
    await _subscribes_again(broker, 3)
    assert [(await reader.read_next(5000)).data() for _ in range(3)] == numbers(3, 100)
    assert not await reader.has_message_available()


async def _subscribes_again(broker: FakeBroker, published: int) -> None:
    """Connections end, and that much is stored before a client is back."""
    before = broker.count("FLOW")
    broker.drop_connections()
    for value in numbers(published, 100):
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        broker.topic(TOPIC).entries.append(build_entry(metadata, value))
    await broker.until(lambda: broker.count("FLOW") > before)


async def test_a_reader_that_sought_the_end_keeps_its_place(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(5))
    reader = await client.create_reader("t", MessageId.earliest)
    assert (await reader.read_next(5000)).data() == b"0"
    await reader.seek(MessageId.latest)
    await _subscribes_again(broker, 3)
    assert [(await reader.read_next(5000)).data() for _ in range(3)] == numbers(3, 100)


async def test_a_reader_that_is_sent_away_before_it_knows_its_place_subscribes_again(
    broker: FakeBroker, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, sent_away = Connection.on_get_last_message_id, []

    def close_first(connection: Connection, command: Any, entry: Any) -> None:
        if not sent_away:
            sent_away.append(command.consumer_id)
            connection.close_consumer(command.consumer_id)
        else:
            answer(connection, command, entry)

    monkeypatch.setattr(Connection, "on_get_last_message_id", close_first)
    await publish(client, numbers(2))
    reader = await client.create_reader("t", MessageId.latest)
    assert sent_away and broker.count("SUBSCRIBE") == 2
    await publish(client, numbers(2, 7))
    assert [(await reader.read_next(5000)).data() for _ in range(2)] == numbers(2, 7)
    assert len(broker.topic(TOPIC).subscriptions) == 1


@pytest.mark.parametrize("moved", [False, True])
async def test_a_reader_sought_ahead_of_the_producers_clock_gets_what_comes(
    broker: FakeBroker, client: AsyncClient, moved: bool
) -> None:
    await publish(client, numbers(5))
    reader = await client.create_reader("t", MessageId.earliest)
    await reader.seek(int(time.time() * 1000) + 3_600_000)
    assert not await reader.has_message_available()
    if moved:
        await _subscribes_again(broker, 0)
    await publish(client, numbers(5, 5))
    assert await reader.has_message_available()
    assert [(await reader.read_next(5000)).data() for _ in range(5)] == numbers(5, 5)


async def test_clocks_apart_hide_nothing_behind_the_first_message_of_a_sought_time(
    broker: FakeBroker, client: AsyncClient
) -> None:
    """The second producer's clock is slow."""
    await publish(client, numbers(1))
    for value, publish_time in ((b"1", 100), (b"2", 5000), (b"3", 200), (b"4", 6000), (b"5", 300)):
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=publish_time)
        broker.topic(TOPIC).entries.append(build_entry(metadata, value))
    broker.topic(TOPIC).entries.pop(0)
    reader = await client.create_reader("t", MessageId.latest)
    await reader.seek(150)
    found = []
    while await reader.has_message_available():
        found.append((await reader.read_next(5000)).data())
    assert found == numbers(4, 2)


# ---- Tails that are never delivered ----


def _chunk(index: int, uuid: str) -> bytes:
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, uuid=uuid, chunk_id=index, num_chunks_from_msg=3,
        total_chunk_msg_size=3, partition_key="lost",
    )  # fmt: skip
    return build_entry(metadata, b"x")


def _encrypted() -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key="lost")
    metadata.encryption_keys.add(key="k", value=b"v")
    return build_entry(metadata, b"x")


TAILS = {
    "incomplete chunks": [_chunk(0, "u"), _chunk(1, "u")],
    "a chunk sent again": [_chunk(0, "u"), _chunk(1, "u"), _chunk(1, "u")],
    "discarded": [_encrypted(), _encrypted()],
}


@pytest.mark.parametrize("queue_size", [1, 100])
@pytest.mark.parametrize("tail", TAILS)
async def test_a_tail_that_is_never_delivered_is_not_available(
    broker: FakeBroker, client: AsyncClient, tail: str, queue_size: int
) -> None:
    options: dict[str, Any] = {"crypto_failure_action": ConsumerCryptoFailureAction.DISCARD}
    await publish(client, numbers(5))
    broker.topic(TOPIC).entries += TAILS[tail]
    reader = await client.create_reader("t", MessageId.earliest, receiver_queue_size=queue_size, **options)
    found = []
    async with asyncio.timeout(20):
        while await reader.has_message_available():
            found.append((await reader.read_next(5000)).data())
        assert found == numbers(5) and not await reader.has_message_available()
        behind = await client.create_reader("t", MessageId(-1, 1, 4), receiver_queue_size=queue_size, **options)
        assert not await behind.has_message_available()
        await publish(client, numbers(3, 5))
        while await reader.has_message_available():
            found.append((await reader.read_next(5000)).data())
    assert found == numbers(8)


@pytest.mark.parametrize("tail", ["incomplete chunks", "a chunk sent again"])
async def test_a_table_view_is_there_although_the_tail_is_never_delivered(
    broker: FakeBroker, client: AsyncClient, tail: str
) -> None:
    producer = await client.create_producer("t", batching_enabled=False)
    await producer.send(b"1", partition_key="a")
    broker.topic(TOPIC).entries += TAILS[tail]
    async with asyncio.timeout(20):
        view = await client.create_table_view("t")
    assert view.get("a") == b"1" and len(view) == 1
    changed = asyncio.Event()
    view.for_each_and_listen(lambda key, _: changed.set() if key == "b" else None)
    await producer.send(b"2", partition_key="b")
    async with asyncio.timeout(20):
        await changed.wait()
    await view.close()


async def test_what_the_broker_passes_over_is_not_available(broker: FakeBroker, client: AsyncClient) -> None:
    """It moves the subscription's position there and sends nothing, as for keys of other ranges."""
    await publish(client, numbers(3))
    reader = await client.create_reader("t", MessageId.earliest)
    await _read(reader, 3)
    (found,) = broker.topic(TOPIC).subscriptions.values()
    found.next_entry = 5  # the next two are not for this reader
    await publish(client, numbers(2, 3))
    asked = asyncio.ensure_future(reader.has_message_available())
    before = broker.count("GET_LAST_MESSAGE_ID")
    await broker.until(lambda: broker.count("GET_LAST_MESSAGE_ID") > before + 1)
    assert not asked.done()
    found.acked |= {0, 1, 2, 3, 4}
    async with asyncio.timeout(20):
        assert not await asked


async def test_what_no_broker_sends_is_a_timeout(broker: FakeBroker) -> None:
    async with AsyncClient(broker.url, operation_timeout_seconds=1) as client:
        await publish(client, numbers(3))
        reader = await client.create_reader("t", MessageId.earliest)
        await _read(reader, 3)
        (found,) = broker.topic(TOPIC).subscriptions.values()
        found.next_entry = 4
        await publish(client, numbers(1, 3))
        with pytest.raises(Timeout):
            await reader.has_message_available()


async def test_a_reader_that_is_closed_ends_the_question(broker: FakeBroker, client: AsyncClient) -> None:
    await publish(client, numbers(3))
    reader = await client.create_reader("t", MessageId.earliest)
    await _read(reader, 3)
    (found,) = broker.topic(TOPIC).subscriptions.values()
    found.next_entry = 4
    await publish(client, numbers(1, 3))
    asked = asyncio.ensure_future(reader.has_message_available())
    before = broker.count("GET_LAST_MESSAGE_ID")
    await broker.until(lambda: broker.count("GET_LAST_MESSAGE_ID") > before)
    await reader.close()
    with pytest.raises(AlreadyClosed):
        await asked


async def _read(reader: AsyncReader, count: int) -> None:
    for number in range(count):
        assert (await reader.read_next(5000)).data() == b"%d" % number
