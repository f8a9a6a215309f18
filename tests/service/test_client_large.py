"""Large compressed entries and coroutines: a thread opens them, and the application's loop goes on meanwhile."""

import asyncio
import threading
import zlib

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.consuming import message
from magnetar.client.core.configuration import InitialPosition
from magnetar.client.core.message_id import MessageId
from magnetar.protocol import compression
from magnetar.protocol.batches import encode_batch
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import InvalidMessage
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from support.clients.calls import TOPIC, numbers, publish
from support.fakes.broker import FakeBroker

EARLIEST = InitialPosition.Earliest
PAYLOADS = [b"%07d" % number * 100 for number in range(1000)]
"""700 KB: large."""


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads on which something was decompressed."""
    seen: list[str] = []
    decompress = compression.decompress

    def noting(*arguments: object) -> bytes:
        seen.append(threading.current_thread().name)
        return decompress(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(message, "decompress", noting)
    return seen


def large(*, damaged: bool = False) -> bytes:
    batch = encode_batch(PAYLOADS)
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=len(PAYLOADS))
    metadata.compression, metadata.uncompressed_size = 2, len(batch)  # type: ignore[assignment]
    squeezed = zlib.compress(batch)
    return build_entry(metadata, squeezed[:-9] if damaged else squeezed)


@pytest.mark.parametrize("queue_size", [0, 10, 5000])
async def test_a_large_entry_is_opened_on_a_thread_and_order_stays(
    broker: FakeBroker, client: AsyncClient, threads: list[str], queue_size: int
) -> None:
    await publish(client, numbers(2))
    broker.topic(TOPIC).entries += [large(), large()]
    await publish(client, numbers(2))
    expected = [*numbers(2), *PAYLOADS, *PAYLOADS, *numbers(2)]
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=queue_size)
    assert [(await consumer.receive(5000)).data() for _ in expected] == expected
    many = await client.subscribe("t", "many", initial_position=EARLIEST, receiver_queue_size=queue_size)
    found: list[bytes] = []
    while len(found) < len(expected):
        found += [message.data() for message in await many.receive_many(700, 5000)]
    assert found == expected
    assert len(threads) == 4 and threading.current_thread().name not in threads


async def test_receivers_that_wait_share_one_thread_and_a_seek_voids_what_it_prepares(
    broker: FakeBroker, client: AsyncClient, threads: list[str]
) -> None:
    broker.topic(TOPIC).entries.append(large())
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    messages = await asyncio.gather(*[consumer.receive(5000) for _ in range(5)])
    assert sorted(message.data() for message in messages) == PAYLOADS[:5] and len(threads) == 1
    await consumer.seek(MessageId.earliest)
    assert (await consumer.receive(5000)).data() == PAYLOADS[0]


async def test_a_large_entry_that_is_damaged_fails_its_receive(broker: FakeBroker, client: AsyncClient) -> None:
    broker.topic(TOPIC).entries.append(large(damaged=True))
    await publish(client, numbers(1))
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    with pytest.raises(InvalidMessage, match="cannot be decoded"):
        await consumer.receive(5000)
    assert (await consumer.receive(5000)).data() == b"0"


async def test_a_reader_sees_that_a_large_entry_is_there(broker: FakeBroker, client: AsyncClient) -> None:
    broker.topic(TOPIC).entries.append(large())
    reader = await client.create_reader("t", MessageId.earliest)
    found: list[bytes] = []
    while await reader.has_message_available():
        found.append((await reader.read_next(5000)).data())
    assert found == PAYLOADS
