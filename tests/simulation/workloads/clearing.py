"""A namespace that is filled, deleted by force with all that is in it, and created again: `Clearing`.

Stragglers go on publishing and subscribing while the namespace is deleted, and may be the first after its creation.

- I2: nothing of a namespace outlives it (`NamespaceWatch`). A message that was acknowledged before its namespace was
  created for the last time is not in a log.
- I8: a deletion ends, also when its coordinator ends before it. Then the namespace can be created again.
- I1: what is acknowledged after the last creation is there, where a durable subscription keeps it.
"""

import asyncio
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.protocol.errors import KeyExists, MagnetarError, TopicNotFound
from magnetar.protocol.topics import TopicName

from ..checkers.history import History
from ..checkers.namespace_watch import NamespaceWatch
from ..world.cluster import SimCluster
from .admin import new_admin
from .reading import read_log
from .workload import Workload

NAMESPACE = "public/cleared"
TOPICS = 3
SEND_TIMEOUT_MS = 3000
DELETE_LIMIT_S = 60.0
LEFT_LIMIT_S = 30.0
KEEPER = "keeper"


class Clearing(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str) -> None:
        super().__init__(cluster, history, random, name)
        self._watch = NamespaceWatch(history, cluster.records, NAMESPACE)
        cluster.on_record.append(self._watch.metadata_changed)
        self._topics = [f"persistent://{NAMESPACE}/topic-{number}" for number in range(TOPICS)]
        self._straggles = random.random() < 0.7
        self._pause_max_s = random.choice((0.2, 1.0))
        self._number = 0
        self._acknowledged: dict[bytes, int] = {}
        """How often the namespace had been created when the receipt came."""
        self._admin: CoordinatorClient

    async def setup(self) -> None:
        self.connect()
        self._admin = await new_admin(self)

    async def start(self) -> None:
        self.begin(self._work(), "fill and clear")
        if self._straggles:
            self.begin(self._straggle(), "straggle")

    async def _work(self) -> None:
        while not self.stopping:
            await self.again(self._create)
            await asyncio.gather(*(self._fill(topic) for topic in self._topics))
            await asyncio.sleep(self.random.random() * self._pause_max_s)
            await self._clear()

    async def _straggle(self) -> None:
        while not self.stopping:
            await self._fill(self.random.choice(self._topics))
            await asyncio.sleep(self.random.random() * 0.1)

    # -- an operator ---------------------------------------------------------------------------------------------------

    async def _create(self) -> None:
        try:
            await self._admin.call("create_namespace", namespace=NAMESPACE, policies=None, properties=None)
        except KeyExists:
            if self._watch.marked:
                raise

    async def _clear(self) -> None:
        async with asyncio.timeout(DELETE_LIMIT_S):
            await self.again(self._delete)

    async def _delete(self) -> None:
        try:
            await self._admin.call("delete_namespace", namespace=NAMESPACE, force=True)
        except TopicNotFound:
            return

    # -- clients -------------------------------------------------------------------------------------------------------

    async def _fill(self, topic: str) -> None:
        """A few messages, and a subscription now and then. The namespace may go at any moment."""
        subscription = f"{self.name}-{self.random.randint(0, 1)}"
        try:
            producer = await self.client.create_producer(topic, send_timeout_millis=SEND_TIMEOUT_MS)
            try:
                await asyncio.gather(*(self._send(producer) for _ in range(self.random.randint(1, 4))))
                if self.random.random() < 0.5:
                    consumer = await self.client.subscribe(topic, subscription, magnetar.ConsumerType.Shared)
                    await consumer.close()
            finally:
                await producer.close()
        except (MagnetarError, TimeoutError) as error:
            self.history.counts[f"using what is deleted: {type(error).__name__}"] += 1

    async def _send(self, producer: Any) -> None:
        payload = f"{self.name}:{self._number:06d}".encode()
        self._number += 1
        await producer.send(payload)
        self._acknowledged[payload] = self._watch.created

    # -- the end -------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Begin once more, look, and clear for good."""
        self.stopping = True
        for task in self.tasks:
            await task
        await self._clear()
        await self.again(self._create)
        created = self._watch.created
        for topic in self._topics:
            await self._look(topic, created)
        await self._clear()
        await self.client.close()
        if self._watch.exists:
            self.history.violated(f"I8: the namespace {NAMESPACE} is deleted, and its record is there")
        await self.cluster.until(
            lambda: not self._watch.leftovers(), LEFT_LIMIT_S, f"I2: {NAMESPACE} is deleted, and parts of it are not"
        )

    async def _look(self, topic: str, created: int) -> None:
        subscribe = partial(self.client.subscribe, topic, KEEPER, initial_position=magnetar.InitialPosition.Earliest)
        consumer = await self.again(subscribe)
        await consumer.close()
        producer = await self.again(partial(self.client.create_producer, topic, send_timeout_millis=0))
        first = self._number
        await asyncio.gather(*(self._send(producer) for _ in range(3)))
        await producer.close()
        found: dict[bytes, None] = {}
        for partition in await self.again(partial(self.client.get_topic_partitions, topic)):
            for message in await self.again(partial(read_log, self.client, partition)):
                found[message.payload] = None
        for payload in found:
            if self._acknowledged.get(payload, created) < created:
                self.history.violated(f"I2: {payload!r} of {topic} has outlived its namespace")
        lost = [one for one in range(first, first + 3) if f"{self.name}:{one:06d}".encode() not in found]
        if lost:
            self.history.violated(f"I1: {lost} of {TopicName.parse(topic).full} are lost")

    async def close(self) -> None:
        await self._admin.close()
        await super().close()
