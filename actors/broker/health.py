"""The health check of a broker: it stores an entry in its topic `heartbeat`, and reads it again.

The topic has the broker's address in its name. The coordinator makes it when it is needed, and moves it to its broker
when it is elsewhere. When nobody asks any longer it is deleted, as an inactive topic.
"""

import asyncio
from collections.abc import Awaitable, Callable

from ...protocol.entries import build_entry
from ...protocol.errors import ServiceUnitNotReady
from ...protocol.message_id import Position
from ...protocol.pulsar_pb2 import MessageMetadata
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...storage.managed.managed_ledger import ManagedLedger
from ..members.contracts_broker import HealthContract
from ..topics.loaded_topics import Topics
from ..topics.persistent import PersistentTopic

PRODUCER = "healthcheck"

HeartbeatTopic = Callable[[], Awaitable[str]]
"""Gives the full name of this broker's topic, made and assigned to it if need be."""


class HealthMethods(HealthContract):
    """See the module."""

    def __init__(self, env: Environment, topics: Topics, heartbeat_topic: HeartbeatTopic) -> None:
        self._env = env
        self._topics = topics
        self._heartbeat_topic = heartbeat_topic

    async def check_health(self) -> float:
        name = TopicName.parse(await self._heartbeat_topic())
        topic = await self._topics.get(name)
        if not isinstance(topic, PersistentTopic):
            raise ServiceUnitNotReady(f"{name.full} is not persistent")
        topic.keeping.inactivity.used()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        metadata = MessageMetadata(producer_name=PRODUCER, sequence_id=0, publish_time=self._env.clock.now_ms())
        entry = build_entry(metadata, self._env.random.hex(8).encode())
        position = await _append(topic.ledger, entry)
        found = await topic.ledger.read(position, 1, 1, upto=position)
        if not found or bytes(found[0][1]) != entry:
            raise ServiceUnitNotReady(f"the entry {position} of {name.full} is not read as it was stored")
        return loop.time() - began_s


async def _append(ledger: ManagedLedger, entry: bytes) -> Position:
    done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def completed(position: Position | None, error: BaseException | None) -> None:
        if done.done():
            return
        if position is not None:
            done.set_result(position)
        else:
            done.set_exception(error or ServiceUnitNotReady("the entry was not stored"))

    ledger.append(entry, completed)
    return await done
