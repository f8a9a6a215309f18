"""A topic that is filled, deleted with everything in it, and made again, over and over.

What was told to be deleted must never be seen again: the payloads name their generation, and only the last one may be
in the log in the end (I2: a phantom otherwise). Nothing of it may be left in the metadata either. What was acknowledged
in the last one has to be there (I1), unless a deletion before it had an unknown outcome: such a one may still take
effect, at any time.
"""

import asyncio
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.actors.coordinator_client import CoordinatorClient
from magnetar.protocol import metadata_keys
from magnetar.protocol.errors import MagnetarError, TopicNotFound
from magnetar.protocol.names import ROLE_ADMIN
from magnetar.runtime.rpc_keys import Identity

from .cluster import CLUSTER_ID, KEYS, SimCluster
from .history import History
from .reading import read_log
from .workloads import Workload

DELETE_TIMEOUT_S = 10.0


class Recreating(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self._generation = 0
        self._acknowledged: dict[bytes, None] = {}
        self._doubtful = False
        self._admin: CoordinatorClient

    async def setup(self) -> None:
        self.connect()
        env = self.process.env
        identity = Identity(CLUSTER_ID, ROLE_ADMIN, self.name, env.random.hex(8))
        keys = KEYS.node(ROLE_ADMIN, self.name)
        self._admin = CoordinatorClient(env, identity, keys, self.cluster.settings, self.cluster.locate)
        await self.again(self._admin.start)

    async def start(self) -> None:
        self.begin(self._work(), "fill and delete")

    async def _work(self) -> None:
        while not self.stopping:
            await self._fill()
            await asyncio.sleep(self.random.random() * 0.5)
            await self._delete()

    async def _fill(self) -> None:
        """Publish a few messages, and have a subscription read some of them."""
        producer = await self.again(partial(self.client.create_producer, self.topic, send_timeout_millis=3000))
        sends = [asyncio.create_task(self._send(producer, number)) for number in range(self.random.randint(1, 10))]
        if self.random.random() < 0.5:
            await self._consume()
        await asyncio.gather(*sends)
        await producer.close()

    async def _consume(self) -> None:
        """A few messages. Now and then the consumer stays, and makes the topic anew when it comes back."""
        try:
            consumer = await self.client.subscribe(
                self.topic,
                self.name,
                magnetar.ConsumerType.Shared,
                initial_position=magnetar.InitialPosition.Earliest,
            )
        except (MagnetarError, TimeoutError) as error:
            self.history.counts[f"consuming what is deleted: {type(error).__name__}"] += 1
            return
        try:
            for _ in range(3):
                await consumer.acknowledge(await consumer.receive(300))
        except (MagnetarError, TimeoutError) as error:
            self.history.counts[f"consuming what is deleted: {type(error).__name__}"] += 1
        if self.random.random() < 0.8:
            await consumer.close()

    async def _send(self, producer: Any, number: int) -> None:
        payload = f"{self.name}:{self._generation}:{number:06d}".encode()
        try:
            await producer.send(payload)
        except (MagnetarError, TimeoutError) as error:
            self.history.counts[f"publishing what is deleted: {type(error).__name__}"] += 1
        else:
            self._acknowledged[payload] = None

    async def _delete(self) -> None:
        await self.again(self._delete_once)
        self.history.counts["topics deleted"] += 1
        self._generation += 1
        self._acknowledged.clear()

    async def _delete_once(self) -> None:
        try:
            await self._admin.call("delete_topic", topic=self.topic, force=True, timeout_s=DELETE_TIMEOUT_S)
        except TopicNotFound:
            return
        except (MagnetarError, TimeoutError):
            self._doubtful = True
            raise

    async def stop(self) -> None:
        """Fill it once more, then look."""
        self.stopping = True
        for task in self.tasks:
            await task
        await self._fill()
        found: dict[bytes, None] = {}
        for partition in await self.again(partial(self.client.get_topic_partitions, self.topic)):
            for message in await self.again(partial(read_log, self.client, partition)):
                found[message.payload] = None
                if message.payload.split(b":")[1] != str(self._generation).encode():
                    self.history.violated(
                        f"I2: phantom {message.payload!r}, deleted before generation {self._generation}"
                    )
        lost = [payload for payload in self._acknowledged if payload not in found]
        if lost and not self._doubtful:
            self.history.violated(f"I1: {lost} of {self.topic}, acknowledged after its last deletion, are lost")
        await self.client.close()
        await self._delete()
        records, topic = self.cluster.records, f"/{self.topic}"

        def consistent() -> bool:
            """It is gone with all that belongs to it, or somebody who was under way has made it anew."""
            found = [key for key in records.by_key if topic in key]
            return not found or any(key.startswith(metadata_keys.TOPICS_PREFIX) for key in found)

        await self.cluster.until(consistent, 5.0, f"I2: {self.topic} is deleted, and parts of it are not")

    async def close(self) -> None:
        await self._admin.close()
        await super().close()
