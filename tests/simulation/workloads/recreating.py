"""A topic that is filled, deleted with everything in it, and made again, over and over.

What was told to be deleted must never be seen again: the payloads name their generation, and only the last one may be
in the log in the end (I2: a phantom otherwise). Nothing of it may be left in the metadata either.

A straggler, in some runs, goes on publishing while the topic is deleted, and may be the one that makes it again. The
topic's record in the metadata says what must become of its messages, and of all others: what was acknowledged before
the record was last removed must not be there (I2); what was sent after the record was last created and acknowledged has
to be there (I1), unless the record was marked for deletion since. Only a durable subscription keeps messages: in the
end one is made before the last messages are sent, and I1 is asked of what was sent after it.

In some runs the coordinator dies a moment after a deletion was ordered. The next one goes on with it, or is asked
again, while brokers are still on their way to it. With `moves_alone` an owner stands still before some deletions. The
next coordinator moves what that owner has open to another broker, and knows of the owner only what is stored.
"""

import asyncio
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.protocol.errors import KeyExists, MagnetarError, TopicNotFound
from magnetar.protocol.names import ROLE_ADMIN
from magnetar.protocol.topics import TopicName
from magnetar.runtime.rpc.keys import Identity
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned, unpack

from ..checkers.history import History
from ..world.chance import drawn_apart
from ..world.cluster import CLUSTER_ID, KEYS, SimCluster
from .reading import read_log
from .workload import Workload

DELETE_TIMEOUT_S = 20.0
CRASHES_SHARE = 0.5
CRASHES_MAX = 4
"""Deletions may go on for long after the faults: more would keep other work of the coordinator from its end."""
CRASH_WITHIN_S = 0.06
STRAGGLER_PACE_S = 0.1
STILL_MIN_S, STILL_MAX_S = 0.5, 3.0
"""So long an owner stands still."""
STRAGGLER = "straggler"
KEEPER = "keeper"


class Recreating(Workload):
    """See the module."""

    def __init__(
        self, cluster: SimCluster, history: History, random: Random, name: str, topic: str, *, moves_alone: bool = False
    ) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self._moves_alone = moves_alone
        self._generation = 0
        self._partitions = random.choice((0, 0, 2, 3))
        self._straggles = random.random() < 0.5
        self._apart = drawn_apart(random)
        self._crashes_left = self._apart.randint(1, CRASHES_MAX) if self._apart.random() < CRASHES_SHARE else 0
        self._key = metadata_keys.topic(TopicName.parse(topic).path)
        self._created_at = self._removed_at = 0.0
        self._kept_since = float("inf")
        """When the subscription that keeps the last messages was known to be there."""
        self._marked = False
        self._acknowledged: dict[bytes, tuple[float, float]] = {}
        """When each message was sent, and its receipt seen."""
        self._admin: CoordinatorClient
        cluster.on_record.append(self._record_changed)

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

    def _record_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        if key != self._key:
            return
        if after is None:
            self._removed_at = self.cluster.loop.now
        elif before is None:
            self._created_at, self._marked = self.cluster.loop.now, False
        elif unpack(after.value).get("deleting"):
            self._marked = True

    async def _create(self) -> None:
        try:
            await self._admin.call("create_topic", topic=self.topic, partitions=self._partitions)
        except KeyExists:
            return

    async def _fill(self) -> None:
        """Publish a few messages, and have a subscription read some of them."""
        if self._partitions:
            await self.again(self._create)
        producer = await self.again(partial(self.client.create_producer, self.topic, send_timeout_millis=3000))
        sends = [asyncio.create_task(self._send(producer, number)) for number in range(self.random.randint(1, 10))]
        if self.random.random() < 0.5:
            await self._consume()
        await asyncio.gather(*sends)
        await producer.close()

    async def _keep(self) -> None:
        """Make a durable subscription that acknowledges nothing: without one, a topic is trimmed when it is loaded."""
        if self._partitions:
            await self.again(self._create)
        consumer = await self.again(
            partial(
                self.client.subscribe,
                self.topic,
                KEEPER,
                magnetar.ConsumerType.Shared,
                initial_position=magnetar.InitialPosition.Earliest,
            )
        )
        await consumer.close()
        self._kept_since = self.cluster.loop.now

    async def _consume(self) -> None:
        """A few messages. Now and then the consumer stays, and makes the topic again when it comes back."""
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
        await self._publish(producer, f"{self.name}:{self._generation}:{number:06d}".encode())

    async def _publish(self, producer: Any, payload: bytes) -> None:
        sent_at = self.cluster.loop.now
        try:
            await producer.send(payload)
        except (MagnetarError, TimeoutError) as error:
            self.history.counts[f"publishing what is deleted: {type(error).__name__}"] += 1
        else:
            self._acknowledged[payload] = (sent_at, self.cluster.loop.now)

    async def _delete(self) -> None:
        straggler = None
        if self._straggles and not self.stopping:
            producer = await self.again(partial(self.client.create_producer, self.topic, send_timeout_millis=3000))
            straggler = asyncio.create_task(self._straggle(producer))
        if self._moves_alone and not self.stopping and self._apart.random() < 0.3:
            await self._move_alone()
        if self._crashes_left and not self.stopping and self._apart.random() < 0.7:
            self._crashes_left -= 1
            delay_s = self._apart.random() * CRASH_WITHIN_S
            asyncio.get_running_loop().call_later(delay_s, self.crash_coordinator, "a topic is deleted")
        await self.again(self._delete_once)
        self.history.counts["topics deleted"] += 1
        self._generation += 1
        if straggler is not None:
            straggler.cancel()
            await asyncio.wait((straggler,))

    async def _move_alone(self) -> None:
        """An owner stands still, another coordinator begins, and what that owner has open is moved alone."""
        own = TopicName.parse(self.topic)
        opened = [
            (node, full)
            for node in self.cluster.brokers
            if node.ready
            for full in node.service.topics.loaded
            if TopicName.parse(full).without_partition() == own
        ]
        if not opened:
            return
        node, full = self._apart.choice(opened)
        process = node.process
        assert process is not None
        process.pause()
        seconds = STILL_MIN_S + (STILL_MAX_S - STILL_MIN_S) * self._apart.random()
        asyncio.get_running_loop().call_later(seconds, process.resume)
        self.crash_coordinator("an owner stands still")
        await self.again(partial(self._admin.call, "unload", topic=full))
        self.history.counts["moved alone from an owner that stands still"] += 1

    async def _straggle(self, producer: Any) -> None:
        """Publish for as long as the topic is being deleted."""
        number = 0
        sends: list[asyncio.Task[None]] = []
        try:
            while True:
                payload = f"{self.name}:{STRAGGLER}:{self._generation}:{number:06d}".encode()
                sends.append(asyncio.create_task(self._publish(producer, payload)))
                number += 1
                await asyncio.sleep(STRAGGLER_PACE_S)
        finally:
            await producer.close()
            await asyncio.gather(*sends, return_exceptions=True)

    async def _delete_once(self) -> None:
        try:
            await self._admin.call("delete_topic", topic=self.topic, force=True, timeout_s=DELETE_TIMEOUT_S)
        except TopicNotFound:
            return

    async def stop(self) -> None:
        """Fill it once more, then look."""
        self.stopping = True
        for task in self.tasks:
            await task
        await self._keep()
        await self._fill()
        found: dict[bytes, None] = {}
        for partition in await self.again(partial(self.client.get_topic_partitions, self.topic)):
            for message in await self.again(partial(read_log, self.client, partition)):
                found[message.payload] = None
        self._compare(found)
        await self.client.close()
        await self._delete()
        records, topic = self.cluster.records, f"/{self.topic}"

        def consistent() -> bool:
            """It is gone with all that belongs to it, or somebody who was under way has made it again."""
            found = [key for key in records.by_key if topic in key]
            return not found or any(key.startswith(metadata_keys.TOPICS_PREFIX) for key in found)

        await self.cluster.until(consistent, 5.0, f"I2: {self.topic} is deleted, and parts of it are not")

    def _compare(self, found: dict[bytes, None]) -> None:
        """What is in the log, with what has to be, and what must not be there."""
        allowed = (str(self._generation).encode(), STRAGGLER.encode())
        for payload in found:
            _, seen_at = self._acknowledged.get(payload, (0.0, self._removed_at))
            if payload.split(b":")[1] not in allowed or seen_at < self._removed_at:
                self.history.violated(f"I2: phantom {payload!r}, deleted before generation {self._generation}")
        lost = [
            payload
            for payload, (sent_at, _) in self._acknowledged.items()
            if sent_at > self._kept_since and payload not in found
        ]
        if lost and not self._marked and self._created_at <= self._kept_since:
            self.history.violated(f"I1: {lost} of {self.topic}, acknowledged after its last deletion, are lost")

    async def close(self) -> None:
        await self._admin.close()
        await super().close()
