"""Whatever bytes and commands come, a broker answers or closes the connection: it never stumbles and keeps nothing."""

import asyncio
import random

import pytest
from google.protobuf.descriptor import FieldDescriptor

from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.protocol.commands import encode, send_header
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandConnect, CommandProducer, CommandSubscribe
from support.clients.wire_peer import entry
from support.servers.broker_bench import TOPIC, broker_front, until

TEXTS = ["", "t", TOPIC, "persistent://public/default/x-partition-0", "bad//name", "ü" * 50, "non-persistent://a/b/c"]
USUAL = (  # what clients say; most of the rest ends the connection at once
    "subscribe producer send ack flow unsubscribe success close_producer close_consumer ping pong "
    "redeliverUnacknowledgedMessages partitionMetadata lookupTopic seek getLastMessageId getTopicsOfNamespace getSchema"
).split()
NUMBERS = [0, 1, 2, 7, 1000, (1 << 31) - 1]


def fill(message, rng, depth=0):
    """Random values in all required and some optional fields, extremes preferred."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and rng.random() < 0.5:
            continue
        if field.is_repeated:
            if field.message_type is not None and depth < 2:
                fill(getattr(message, field.name).add(), rng, depth + 1)
            continue
        if field.message_type is not None:
            if depth < 2 or field.is_required:
                getattr(message, field.name).SetInParent()
                fill(getattr(message, field.name), rng, depth + 1)
        elif field.enum_type is not None:
            setattr(message, field.name, rng.choice(field.enum_type.values).number)
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, rng.choice(TEXTS))
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, rng.randbytes(rng.randrange(8)))
        elif field.type == FieldDescriptor.TYPE_BOOL:
            setattr(message, field.name, rng.random() < 0.5)
        elif field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
            setattr(message, field.name, rng.random())
        else:
            wide = field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_UINT32)
            top = (1 << (64 if field.type == FieldDescriptor.TYPE_UINT64 else 32)) - 1
            setattr(message, field.name, rng.choice([*NUMBERS, top] if wide else [*NUMBERS, -1]))


def commands(rng, count):
    """Frames of random commands of every type that has one."""
    kinds = [field for field in BaseCommand.DESCRIPTOR.fields if field.message_type is not None]
    usual = [field for field in kinds if field.name in USUAL]
    for _ in range(count):
        field = rng.choice(kinds if rng.random() < 0.02 else usual)
        content = getattr(BaseCommand(), field.name)
        fill(content, rng)
        if field.name in ("send", "message"):
            body = entry(rng.randbytes(20))
            yield send_header(1, 0, 0, 1, len(body)) + body if field.name == "send" else b""
        else:
            yield encode(content)


async def speak(front, data):
    """Say something on a connection that has a producer and a consumer, until it ends or everything is read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    writer.write(encode(CommandConnect(client_version="fuzz")))
    writer.write(encode(CommandProducer(topic=TOPIC, producer_id=1, request_id=1)))
    writer.write(encode(CommandSubscribe(topic=TOPIC, subscription="s", subType=1, consumer_id=1, request_id=2)))
    await asyncio.sleep(0.002)
    try:
        for chunk in data:
            writer.write(chunk)
            await writer.drain()
        async with asyncio.timeout(0.01):
            while await reader.read(1 << 16):
                pass
    except (ConnectionError, TimeoutError):
        pass
    finally:
        writer.close()


@pytest.mark.parametrize("seed", range(12))
async def test_random_commands(seed, caplog):
    rng = random.Random(seed)
    async with broker_front(connection_liveness_timeout_ms=10, reader_return_timeout_s=0.02) as front:
        for _ in range(6):
            await speak(front, list(commands(rng, 40)))
        await until(lambda: not front.connections and not len(front.requests))
        topic = front.topics.loaded.get(TOPIC)
        assert topic is None or (
            isinstance(topic, PersistentTopic)
            and not topic.publishing.producers
            and not any(s.consumers for s in topic.subscriptions.values())
        )
        peer = await front.peer()
        assert not hasattr(await peer.subscribe(TOPIC, "after"), "error")
        await peer.close()
    assert not [record for record in caplog.records if record.exc_info], caplog.text


@pytest.mark.parametrize("seed", range(6))
async def test_damaged_streams(seed, caplog):
    rng = random.Random(1000 + seed)
    async with broker_front() as front:
        for _ in range(10):
            stream = bytearray(b"".join(commands(rng, 20)))
            for _ in range(rng.randrange(1, 6)):
                stream[rng.randrange(len(stream))] = rng.randrange(256)
            cut = rng.randrange(len(stream))
            await speak(front, [bytes(stream[:cut]), bytes(stream[cut:])])
        await until(lambda: not front.connections and not len(front.requests))
        peer = await front.peer()
        await peer.settle()
        await peer.close()
    assert not [record for record in caplog.records if record.exc_info], caplog.text
