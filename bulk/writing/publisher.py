"""The connected side of a write task: producers of partitions, and entries on their way. It runs on a loop of its own.

What is on its way has a bound in bytes: `send` waits until there is room. The first failure of an entry is raised by
the next `send`, or by `finish`.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...client.aio.client import AsyncClient
from ...client.core.configuration import CompressionType, HashingScheme, ProducerConfiguration
from ...client.producing.outbox import Batch, ignore
from ...client.producing.outgoing import Outgoing
from ...client.producing.topic_producer import TopicProducer
from ...client.schemas.schema import Schema, SchemaInfo
from ...protocol.errors import ProducerBusy
from ...runtime import retry
from ...runtime.backoff import LimitedBackoff
from ...runtime.environment import SystemChance

IN_FLIGHT_MAX_BYTES = 32 << 20
"""Of entries without a receipt, of one task."""
MESSAGES_PENDING_MAX = 1 << 24
"""Of one producer: more than fit into the bytes in flight."""
SEND_TIMEOUT_MS = 120_000
"""Longer than a fail-over. Then the attempt fails, and Spark makes another one."""
OPERATION_TIMEOUT_S = 60
MESSAGES_MAX = 10_000
BYTES_MAX = 512 << 10
OPENING_MAX = 64
"""Producers that are opened at the same time."""
BUSY_INITIAL_S = 0.1
BUSY_MAX_S = 2.0
BUSY_LIMIT_S = 120.0
"""How long another producer of the name is waited for. A broker notices in 60 s at most that a machine is gone."""


@dataclass(frozen=True)
class WritePlan:
    """What the driver tells each task."""

    service_url: str
    topic: str | None
    """Full name. None: each row names its topic."""
    producer_name: str | None = None
    """What the write is called, if each row is to be stored once."""
    compression_type: CompressionType = CompressionType.NONE
    hashing_scheme: HashingScheme = HashingScheme.JavaStringHash
    messages_max: int = MESSAGES_MAX
    """In an entry."""
    bytes_max: int = BYTES_MAX
    """Of an entry before it is compressed. A larger message has an entry of its own."""
    send_timeout_ms: int = SEND_TIMEOUT_MS
    order_by: tuple[str, ...] = ()
    """Columns by which a task sorts its rows before it publishes them."""
    schema: SchemaInfo | None = None
    """What producers register. The columns are fields then, and a task encodes them."""


class EncodedRecords(Schema):
    """Registers a schema whose values are encoded before a producer gets them."""

    def __init__(self, info: SchemaInfo) -> None:
        self.info = info


class OutgoingEntry(NamedTuple):
    """Messages that are published in one piece."""

    producer: TopicProducer
    payload: memoryview
    messages: int
    first_sequence_id: int
    last_sequence_id: int
    size_bytes: int
    """Of the payloads of its messages."""
    first: Outgoing | None
    """What the entry shows of its first message: the keys."""


class TaskPublisher:
    """See the module. Use on one loop, and `close` or `abandon` it at the end."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._client = AsyncClient(plan.service_url, operation_timeout_seconds=OPERATION_TIMEOUT_S)
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._in_flight: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._in_flight_bytes = 0

    async def partitions(self, topic: str) -> list[str]:
        """The full names of a topic's partitions, or of the topic if it has none. The broker creates one that does not
        exist, if it may. Raises what the client raises.
        """
        return await self._client.get_topic_partitions(topic)

    async def open(self, topics: Iterable[str], name: str | None) -> list[TopicProducer]:
        """A connected producer of each topic or partition, of that name. Raises ProducerBusy if another producer keeps
        the name, and what the client raises.
        """
        opening = [asyncio.ensure_future(self._open(topic, name)) for topic in topics]
        try:
            return await asyncio.gather(*opening)
        except BaseException:
            for one in opening:
                one.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
            raise

    async def _open(self, topic: str, name: str | None) -> TopicProducer:
        configuration = ProducerConfiguration(
            topic,
            name,
            None if self._plan.schema is None else EncodedRecords(self._plan.schema),
            send_timeout_millis=self._plan.send_timeout_ms,
            compression_type=self._plan.compression_type,
            max_pending_messages=MESSAGES_PENDING_MAX,
            batching_enabled=True,
            stop_on_failure=True,
        )

        async def attempt() -> TopicProducer:
            async with self._opening:
                return await self._client.open_producer(configuration)

        backoff = LimitedBackoff(SystemChance(), BUSY_INITIAL_S, BUSY_MAX_S, BUSY_LIMIT_S)
        return await retry.limited(backoff, attempt, retriable=_is_busy, on_retry=retry.silently)

    async def send(self, entries: Sequence[OutgoingEntry]) -> None:
        """Publish entries, in order. Returns when all are on their way. Raises the first failure so far."""
        for entry in entries:
            while self._in_flight and self._in_flight_bytes + len(entry.payload) > IN_FLIGHT_MAX_BYTES:
                await self._settle_oldest()
            (producer,) = entry.producer.producers
            batch = Batch(
                [entry.payload],  # pyright: ignore[reportArgumentType] (they are joined, and may be any buffers)
                [ignore] * entry.messages,
                entry.first_sequence_id,
                entry.last_sequence_id,
                batched=True,
                encoded=True,
                attributes=entry.first,
                size_bytes=entry.size_bytes,
            )
            self._in_flight.append((len(entry.payload), producer.send_entry(batch)))
            self._in_flight_bytes += len(entry.payload)
        while self._in_flight and self._in_flight[0][1].done():
            await self._settle_oldest()

    async def _settle_oldest(self) -> None:
        size_bytes, receipt = self._in_flight[0]
        await receipt
        self._in_flight.popleft()
        self._in_flight_bytes -= size_bytes

    async def finish(self) -> None:
        """Wait until all entries are stored. Raises the first failure."""
        while self._in_flight:
            await self._settle_oldest()

    async def ask_again(self, producers: Sequence[TopicProducer], name: str) -> list[int]:
        """Close producers of that name, and ask the brokers for the last sequence id of each."""
        await asyncio.gather(*[producer.close() for producer in producers])
        opened = await self.open([producer.topic.full for producer in producers], name)
        return [producer.last_sequence_id for producer in opened]

    async def close(self) -> None:
        """Close all producers and connections. What is on its way is stored first."""
        await self._client.close()

    async def abandon(self) -> None:
        """End all connections at once. What is on its way may be stored or not."""
        self._client.shutdown()
        await self._client.close()
        await asyncio.gather(*[receipt for _, receipt in self._in_flight], return_exceptions=True)


def _is_busy(error: Exception) -> bool:
    return isinstance(error, ProducerBusy)
