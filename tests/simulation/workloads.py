"""What clients do to a simulated cluster, as setup / start / stop / check.

`Publishing`: a producer of keyed, numbered messages, in bursts. `Consuming`: consumers of one subscription, Exclusive
or Shared, that acknowledge some of what they receive. `LogReading` (at the end): each partition from its start.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import magnetar
from magnetar.client.client import AsyncClient
from magnetar.client.message_id import MessageId
from magnetar.protocol.errors import MagnetarError

from .cluster import SimCluster
from .history import History
from .process import Process

ANSWER_LIMIT_S = 60.0
"""I8: after healing, everything asked for happens within this time."""


class Workload:
    """One client in a process of its own."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str) -> None:
        self.name = name
        self.cluster = cluster
        self.history = history
        self.random = random
        self.process: Process = cluster.client_process(name)
        self.client: AsyncClient
        self.stopping = False
        self.tasks: list[asyncio.Task[Any]] = []

    async def run(self, step: Callable[[], Awaitable[Any]], limit_s: float = ANSWER_LIMIT_S) -> Any:
        """A step in this workload's process. Raises AssertionError (I8) when it takes longer."""

        async def within() -> Any:
            async with asyncio.timeout(limit_s):
                return await step()

        try:
            return await self.process.spawn(within(), step.__name__)
        except TimeoutError:
            raise AssertionError(f"I8: {self.name} {step.__name__} took over {limit_s:.0f} s") from None

    def begin(self, coroutine: Any, name: str) -> None:
        self.tasks.append(self.process.spawn(coroutine, name))

    async def setup(self) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def close(self) -> None:
        await self.client.close()

    async def again(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat what fails; the limit is the caller's."""
        while True:
            try:
                return await attempt()
            except (MagnetarError, TimeoutError) as error:
                self.history.counts[f"{attempt.__name__} failed: {type(error).__name__}"] += 1
                await asyncio.sleep(0.5)


class Publishing(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.pending: dict[bytes, None] = {}
        self._number = 0
        self._burst_max = random.choice((1, 5, 30))
        self._pace_s = random.choice((0.02, 0.05)) * self._burst_max
        self._options = {
            "batching_enabled": random.random() < 0.5,
            "batching_max_messages": random.choice((3, 1000)),
            "batching_max_publish_delay_ms": random.choice((1, 10)),
            "send_timeout_millis": random.choice((0, 0, 3_000)),
            "max_pending_messages": 500,
        }

    async def setup(self) -> None:
        self.client = self.cluster.client(self.process, operation_timeout_seconds=10)
        self.producer = await self.again(self._create)

    async def _create(self) -> Any:
        return await self.client.create_producer(self.topic, **self._options)

    async def start(self) -> None:
        self.begin(self._publish(), "publish")

    async def _publish(self) -> None:
        while not self.stopping:
            for _ in range(self.random.randint(1, self._burst_max)):
                if len(self.pending) < 300:
                    self._send()
            await asyncio.sleep(self.random.random() * 2 * self._pace_s)

    def _send(self) -> None:
        key = f"key-{self.random.randrange(4)}"
        payload = f"{self.name}:{key}:{self._number:06d}".encode()
        if self.random.random() < 0.02:
            payload = b"." * self.random.randrange(20_000) + payload
        self._number += 1
        self.pending[payload] = None
        self.history.sent[payload] = None
        self.producer.send_async(payload, lambda result, where: self._answer(payload, result, where), None, key)

    def _answer(self, payload: bytes, result: magnetar.Result, message_id: MessageId) -> None:
        self.pending.pop(payload, None)
        if result == magnetar.Result.Ok:
            partition = message_id.partition()
            topic = f"{self.producer.topic()}-partition-{partition}" if partition >= 0 else self.producer.topic()
            self.history.was_acknowledged(topic, payload, message_id)
        else:
            self.history.failed[payload] = str(result)
            self.history.counts[f"publishing failed: {result}"] += 1
            if result not in (magnetar.Result.Timeout, magnetar.Result.ProducerQueueIsFull):
                self.history.violated(f"I8: {payload!r} was refused for good: {result}")

    async def stop(self) -> None:
        """Everything outstanding is answered, and one more message can be published."""
        self.stopping = True
        for task in self.tasks:
            await task
        self._send()
        while self.pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        while not self.producer.is_connected():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class Consuming(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self._shared = random.random() < 0.5
        self._type = magnetar.ConsumerType.Shared if self._shared else magnetar.ConsumerType.Exclusive
        self._queue_size = random.choice((1, 10, 1000))
        self._acknowledged_share = random.choice((0.0, 0.7, 1.0))
        self._consumers: list[Any] = []

    async def setup(self) -> None:
        self.client = self.cluster.client(self.process, operation_timeout_seconds=10)
        for _ in range(self.random.randint(1, 3) if self._shared else 1):
            self._consumers.append(await self.again(self._subscribe))

    async def _subscribe(self) -> Any:
        return await self.client.subscribe(
            self.topic,
            self.name,
            self._type,
            receiver_queue_size=self._queue_size,
            initial_position=magnetar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=500,
        )

    async def start(self) -> None:
        for consumer in self._consumers:
            self.begin(self._consume(consumer, self._acknowledged_share), "consume")

    async def _consume(self, consumer: Any, acknowledged_share: float) -> None:
        while not self.stopping:
            try:
                message = await consumer.receive(500)
            except magnetar.Timeout:
                continue
            topic, payload, message_id = message.topic_name(), bytes(message.data()), message.message_id()
            self.history.was_delivered(topic, self.name, payload, message_id)
            if acknowledged_share < 0:
                continue
            draw = self.random.random()
            if draw < acknowledged_share:
                self.history.will_acknowledge(topic, self.name, message_id)
                await consumer.acknowledge(message)
            elif draw < acknowledged_share + 0.1:
                await consumer.negative_acknowledge(message)
            if self.random.random() < 0.1:
                await asyncio.sleep(self.random.random() * 0.1)

    async def stop(self) -> None:
        self.stopping = True
        for task in self.tasks:
            await task
        self.tasks.clear()
        for consumer in self._consumers:
            while not consumer.is_connected():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await consumer.close()

    async def drain(self, logs: dict[str, list[tuple[MessageId, bytes]]]) -> None:
        """I7: a new consumer is given everything that was not acknowledged."""
        self.stopping = False
        self._consumers = [await self.again(self._subscribe)]
        self.begin(self._consume(self._consumers[0], -1.0), "drain")
        # A negative share: nothing more is acknowledged, and nothing refused.
        while any(self.history.missing_deliveries(topic, self.name, log) for topic, log in logs.items()):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await self.stop()


class LogReading(Workload):
    """Keeps every message of its topics by a subscription that acknowledges nothing, and reads them at the end."""

    def __init__(
        self, cluster: SimCluster, history: History, random: Random, name: str, topics: list[str], limit: int = 100_000
    ) -> None:
        super().__init__(cluster, history, random, name)
        self.topics = topics
        self.logs: dict[str, dict[str, list[tuple[MessageId, bytes]]]] = {}

    async def setup(self) -> None:
        self.client = self.cluster.client(self.process, operation_timeout_seconds=10)
        for topic in self.topics:
            self._topic = topic
            consumer = await self.again(self._keep)
            await consumer.close()

    async def _keep(self) -> Any:
        return await self.client.subscribe(self._topic, "keeper", initial_position=magnetar.InitialPosition.Earliest)

    async def read(self) -> None:
        """Fills `logs`: topic → partition → (id, payload)."""
        for topic in self.topics:
            self._topic = topic
            self.logs[topic] = {}
            for partition in await self.again(self._partitions):
                self._topic = partition
                self.logs[topic][partition] = await self.again(self._read)

    async def _partitions(self) -> list[str]:
        return await self.client.get_topic_partitions(self._topic)

    async def _read(self) -> list[tuple[MessageId, bytes]]:
        reader = await self.client.create_reader(self._topic, MessageId.earliest)
        log: list[tuple[MessageId, bytes]] = []
        try:
            while await reader.has_message_available():
                message = await reader.read_next(20_000)
                log.append((message.message_id(), bytes(message.data())))
        finally:
            await reader.close()
        return log
