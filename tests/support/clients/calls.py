"""What the tests of the client's consumers and readers have in common."""

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import Timeout

from ..fakes.broker import FakeBroker, Subscription

TOPIC = "persistent://public/default/t"


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


async def publish(client: AsyncClient, payloads: list[bytes], batch: int = 1, topic: str = "t") -> list[MessageId]:
    """Publish in batches of `batch` messages; 1 = without batching."""
    producer = await client.create_producer(topic, batching_enabled=batch > 1, batching_max_messages=max(batch, 1))
    ids = await producer.send_many(payloads)
    await producer.close()
    return ids


async def receive(consumer: AsyncConsumer, count: int) -> list[bytes]:
    return [(await consumer.receive(2000)).data() for _ in range(count)]


async def nothing_more(consumer: AsyncConsumer) -> bool:
    with pytest.raises(Timeout):
        await consumer.receive(60)
    return True


def subscription(broker: FakeBroker, name: str = "s") -> Subscription:
    return broker.topic(TOPIC).subscriptions[name]
