"""Readers against a broker with faults: starts, ends, reconnecting without a message twice or left out, seeking."""

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import OperationNotSupported
from support.clients.calls import TOPIC, numbers, publish
from support.fakes.broker import FakeBroker


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
