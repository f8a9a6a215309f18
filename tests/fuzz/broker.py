"""Target: a broker's connection, over managed ledgers in memory. Whatever a client says, it is answered or sent away;
afterwards nothing of it is left, and the next client is served.
"""

import asyncio
import dataclasses
from random import Random

from magnetar.actors.broker.service import COMMAND_FAMILIES
from magnetar.actors.connections.connection import ServerConnection
from magnetar.actors.features.table import FEATURES
from magnetar.actors.topics.loaded_topics import Topics
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.protocol.commands import encode
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandConnect, CommandFlow, CommandProducer, CommandSubscribe
from magnetar.runtime.settings.declarations import Settings
from support.servers.broker_bench import TOPIC, BrokerFront

from .loop import MemoryTransport, make_env, run, turns
from .target import Target, Wrong
from .wire import FROM_CLIENTS, make_stream

_SETTINGS = dataclasses.replace(
    Settings(), connection_liveness_timeout_ms=10, reader_return_timeout_s=0.02, max_message_size_bytes=1 << 15
)
_GREETING = encode(CommandConnect(client_version="fuzz", protocol_version=21))
_REGISTERED = [
    CommandProducer(topic=TOPIC, producer_id=1, request_id=1),
    *[
        CommandSubscribe(
            topic=TOPIC,
            subscription=f"s{kind}",
            subType=kind,
            consumer_id=kind,
            request_id=2 + kind,  # type: ignore[arg-type]
        )
        for kind in range(4)
    ],
    *[CommandFlow(consumer_id=kind, messagePermits=3) for kind in range(4)],
]
_PREFACES = [b"", _GREETING, _GREETING + b"".join(encode(command) for command in _REGISTERED)]


def _front() -> BrokerFront:
    front = BrokerFront(_SETTINGS)
    front.env.close()
    front.env = make_env()
    ledgers = (front._open_ledger, front._delete_ledger, front._read_left)
    front.topics = Topics(front.env, _SETTINGS, *ledgers, front.lookups.claim, front.retire, features=FEATURES)  # type: ignore[arg-type]
    front.topics.policies.listing_began()
    front.topics.policies.listing_ended()
    front.topics.assign(TOPIC, 1, load=False)
    return front


async def _until_idle(front: BrokerFront) -> None:
    for _ in range(200):
        if not front.connections and not len(front.requests):
            return
        await asyncio.sleep(0.5)
    raise Wrong(f"{len(front.connections)} connections and {len(front.requests)} requests are left after 100 s")


async def _speak(front: BrokerFront, mode: int, stream: bytes) -> None:
    connection = ServerConnection(front, COMMAND_FAMILIES)
    transport = MemoryTransport(connection)
    transport.feed(_PREFACES[(mode & 3) % len(_PREFACES)])
    await turns(20)
    step = len(stream) if mode & 4 else 1 + mode * 7
    for start in range(0, len(stream), max(step, 1)):
        transport.feed(stream[start : start + step])
        if transport.closing:
            break
        await turns(2)
    await asyncio.sleep(0.1)
    if mode & 8:
        connection.tick()
        await asyncio.sleep(0.1)
    transport.close()
    await _until_idle(front)
    if transport.closing is not connection.closed:
        raise Wrong("the connection and its transport do not agree on having ended")


async def _serve_next(front: BrokerFront) -> None:
    """A well-behaved client gets all its answers."""
    decoder, answers = FrameDecoder(1 << 24), []
    connection = ServerConnection(front, COMMAND_FAMILIES)
    transport = MemoryTransport(connection, lambda data: answers.extend(decoder.feed(data)))
    transport.feed(_GREETING)
    transport.feed(encode(CommandSubscribe(topic=TOPIC, subscription="after", subType=1, consumer_id=1, request_id=9)))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    kinds = [answer.command.type for answer in answers]
    if kinds[:2] != [BaseCommand.CONNECTED, BaseCommand.SUCCESS]:
        raise Wrong(f"the next client got {answers}")
    transport.close()
    await _until_idle(front)


async def _main(data: bytes) -> None:
    front = _front()
    try:
        await _speak(front, data[0] if data else 0, data[1:])
        topic = front.topics.loaded.get(TOPIC)
        assert topic is None or isinstance(topic, PersistentTopic)
        if topic is not None and (topic.publishing.producers or any(s.consumers for s in topic.subscriptions.values())):
            raise Wrong("producers or consumers are left")
        if front.publish_budget.used_bytes:
            raise Wrong("part of the publish budget is gone")
        await _serve_next(front)
    finally:
        await front.topics.close()
        await front.requests.close()


def take(data: bytes) -> None:
    run(_main(data))


def make(random: Random) -> bytes:
    mode = 2 + 4 * random.getrandbits(2) if random.random() < 0.9 else random.randrange(64)
    return bytes([mode]) + make_stream(random, FROM_CLIENTS)


TARGETS = [Target("broker", make, take, share=3)]
