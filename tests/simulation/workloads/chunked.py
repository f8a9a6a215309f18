"""Messages in chunks, among ordinary ones, from two producers, on a topic of their own.

An entry holds a few bytes of payload, so that messages of a hundred have several chunks. One or two consumers take
them on a Shared subscription, or one on an Exclusive one. They acknowledge, one by one or cumulatively, or say that a
message failed. A message counts as handed over when all of its bytes are right. `AcknowledgeWatch` sees whether a chunk
is acknowledged before its message was handed over. In the end (I7) every message that has its receipt was handed over.
"""

import asyncio
from random import Random
from typing import Any

import magnetar
from magnetar.client.core.message_id import ChunkedMessageId
from magnetar.client.producing.partition_producer import EntryEncoder
from magnetar.protocol.errors import Timeout

from ..checkers.history import History
from ..world.cluster import SimCluster
from .workload import Workload

ENTRY_MAX_BYTES = 140


class SmallEntries(EntryEncoder):
    """An encoder for a broker that takes small entries."""

    def __init__(self, encoder: EntryEncoder) -> None:
        super().__init__(encoder._compression)
        self.__dict__.update({name: value for name, value in encoder.__dict__.items() if name != "size_max_bytes"})

    @property
    def size_max_bytes(self) -> int:  # type: ignore[override]
        """What an entry may have."""
        return ENTRY_MAX_BYTES

    @size_max_bytes.setter
    def size_max_bytes(self, size_bytes: int) -> None:
        """The broker's own bound is larger."""


class Chunked(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        shared = random.random() < 0.6
        self._type = magnetar.ConsumerType.Shared if shared else magnetar.ConsumerType.Exclusive
        self._consumers_wanted = random.randint(1, 2) if shared else 1
        self._cumulative = not shared and random.random() < 0.5
        self._queue_size = random.choice((0, 1, 5, 1000))
        self._number = 0
        self._pending = 0
        self._stored: dict[bytes, None] = {}
        self._handed_over: dict[bytes, None] = {}
        self._producers: list[Any] = []
        self._consumers: list[Any] = []

    async def setup(self) -> None:
        self.connect()
        self._producers = [await self.again(self._create) for _ in range(2)]
        if len(await self.again(self._partitions)) > 1:
            self._queue_size = max(self._queue_size, 1)  # a consumer of several partitions needs a queue
        self._consumers = [await self.again(self._subscribe) for _ in range(self._consumers_wanted)]

    async def _partitions(self) -> list[str]:
        return await self.client.get_topic_partitions(self.topic)

    async def _create(self) -> Any:
        producer = await self.client.create_producer(
            self.topic, send_timeout_millis=0, batching_enabled=False, chunking_enabled=True
        )
        for one in producer._producer.producers:
            one._encoder = SmallEntries(one._encoder)
        return producer

    async def _subscribe(self) -> Any:
        return await self.client.subscribe(
            self.topic,
            self.name,
            self._type,
            receiver_queue_size=self._queue_size,
            initial_position=magnetar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=500,
            expire_time_of_incomplete_chunked_message_ms=0,
            max_pending_chunked_message=0,
        )

    async def start(self) -> None:
        self.begin(self._publish(), "publish in chunks")
        for consumer in self._consumers:
            self.begin(self._consume(consumer), "consume chunks")

    async def _publish(self) -> None:
        while not self.stopping:
            for producer in self._producers:
                if self._pending < 20:
                    self._send(producer)
            await asyncio.sleep(self.random.random() * 0.3)

    def _send(self, producer: Any) -> None:
        size = self.random.choice((10, 100, 300))
        payload = (b"%06d " % self._number) * (size // 7 + 1)
        self._number += 1
        self._pending += 1

        def answered(result: magnetar.Result, message_id: magnetar.MessageId) -> None:
            self._pending -= 1
            if result != magnetar.Result.Ok:
                self.history.violated(f"I8: {payload[:7]!r} was refused permanently: {result}")
            else:
                self._stored[payload] = None

        producer.send_async(payload, answered)

    async def _consume(self, consumer: Any) -> None:
        while not self.stopping:
            await self._take(consumer, 300)

    async def _take(self, consumer: Any, wait_ms: int) -> None:
        try:
            message = await consumer.receive(wait_ms)
        except Timeout:
            return
        content = message.data()
        if content != content[:7] * (len(content) // 7) or len(content) // 7 not in (2, 15, 43):
            self.history.violated(f"I7: {content[:7]!r} was handed over with {len(content)} bytes that are not its own")
        in_chunks = isinstance(message.message_id(), ChunkedMessageId)
        self.history.counts["messages in chunks" if in_chunks else "messages among chunks"] += 1
        if not self.stopping and not self._cumulative and self.random.random() < 0.1:
            await consumer.negative_acknowledge(message)
            return
        self._handed_over[content] = None
        if self._cumulative:
            await consumer.acknowledge_cumulative(message)
        else:
            await consumer.acknowledge(message)

    async def stop(self) -> None:
        """What is stored is handed over, whole."""
        self.stopping = True
        for task in self.tasks:
            await task
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        while any(payload not in self._handed_over for payload in self._stored):
            for consumer in self._consumers:
                await self._take(consumer, 200)
        for consumer in self._consumers:
            await consumer.close()
