"""Messages that the client library cannot open, among good ones, on a topic of their own.

A producer of another library stores chunks that make no sense, encrypted messages, batches that claim to be too large,
unknown compressions and bytes that decode to nothing; and on the way to the consumer good entries are damaged now and
then. The consumer acknowledges what it is handed, one by one, many at once or cumulatively. `AcknowledgeWatch` sees
whether anything else is acknowledged. In the end (I7) every good message has been handed over, and another consumer is
told of every message that cannot be opened, for all of them are still there.
"""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import magnetar
from magnetar.client.consuming.partition_consumer import PartitionConsumer
from magnetar.client.producing.outbox import Batch
from magnetar.client.producing.partition_producer import EntryEncoder
from magnetar.protocol.entries import build_entry, parse_entry
from magnetar.protocol.errors import ChecksumError, MagnetarError, Timeout
from magnetar.protocol.message_id import Position
from magnetar.protocol.pulsar_pb2 import EncryptionKeys, MessageMetadata

from ..checkers.history import History
from ..world.cluster import SimCluster
from .workload import Workload

BAD = b"cannot be opened"
DAMAGED_SHARE = 0.03


def _chunk(metadata: MessageMetadata) -> bytes:
    metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = "u", 2, 2
    return metadata.SerializeToString()


def _encrypt(metadata: MessageMetadata) -> bytes:
    metadata.encryption_keys.append(EncryptionKeys(key="k", value=b"v"))
    return metadata.SerializeToString()


def _exaggerate(metadata: MessageMetadata) -> bytes:
    metadata.compression, metadata.uncompressed_size = 1, 1 << 30  # type: ignore[assignment]
    return metadata.SerializeToString()


def _compress_otherwise(metadata: MessageMetadata) -> bytes:
    metadata.uncompressed_size = 1000
    return metadata.SerializeToString() + b"\x40\x09"


def _garble(metadata: MessageMetadata) -> bytes:
    metadata.compression, metadata.uncompressed_size = 2, 10  # type: ignore[assignment]
    return metadata.SerializeToString()


KINDS: tuple[Callable[[MessageMetadata], bytes], ...] = (
    _chunk, _encrypt, _exaggerate, _compress_otherwise, _garble,
)  # fmt: skip


class ForeignEncoder(EntryEncoder):
    """The encoder of another library: messages that begin with `BAD` become what ours cannot open."""

    def __init__(self, encoder: EntryEncoder, random: Random) -> None:
        super().__init__(encoder._compression)
        self.__dict__.update(encoder.__dict__)
        self._random = random

    def encode(self, batch: Batch, now_ms: int) -> list[bytes]:
        """As in EntryEncoder."""
        (entry,) = super().encode(batch, now_ms)
        if not batch.payloads[0].startswith(BAD):
            return [entry]
        metadata, payload = parse_entry(entry)
        return [build_entry(self._random.choice(KINDS)(metadata), payload)]


class Unopenable(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        shared = random.random() < 0.4
        self._type = magnetar.ConsumerType.Shared if shared else magnetar.ConsumerType.Exclusive
        self._cumulative = not shared and random.random() < 0.5
        self._many = random.random() < 0.5
        self._queue_size = random.choice((1, 10, 1000))
        self._batching = random.random() < 0.5
        self._number = 0
        self._stored: dict[bytes, Position] = {}
        """Good messages that have their receipt."""
        self._bad: dict[Position, None] = {}
        self._handed_over: dict[bytes, None] = {}
        self._pending = 0
        self._producers: list[Any] = []
        self._consumer: Any = None

    async def setup(self) -> None:
        self.connect()
        self._producers = [await self.again(self._create), await self.again(self._create_foreign)]
        self._consumer = await self.again(self._subscribe)

    async def _create(self) -> Any:
        return await self.client.create_producer(self.topic, send_timeout_millis=0, batching_enabled=self._batching)

    async def _create_foreign(self) -> Any:
        producer = await self.client.create_producer(self.topic, send_timeout_millis=0)
        for one in producer._producer.producers:
            one._encoder = ForeignEncoder(one._encoder, self.random)
        return producer

    async def _subscribe(self) -> Any:
        consumer = await self.client.subscribe(
            self.topic,
            self.name,
            self._type,
            receiver_queue_size=self._queue_size,
            initial_position=magnetar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=500,
        )
        for one in consumer._consumer.consumers:
            self._damage(one)
        return consumer

    def _damage(self, consumer: PartitionConsumer) -> None:
        """From now on some of what comes has a wrong byte, until this workload stops."""
        message = consumer.message

        def damaged(command: Any, entry: bytes) -> None:
            if not self.stopping and self.random.random() < DAMAGED_SHARE:
                self.history.counts["entries damaged on the way"] += 1
                entry = entry[:-1] + bytes([entry[-1] ^ 1])
            message(command, entry)

        consumer.message = damaged  # type: ignore[method-assign]

    async def start(self) -> None:
        self.begin(self._publish(), "publish what cannot be opened")
        self.begin(self._consume(), "consume what can be opened")

    # -- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while not self.stopping:
            for _ in range(self.random.randint(1, 5)):
                if self._pending < 100:
                    self._send(bad=self.random.random() < 0.3)
            await asyncio.sleep(self.random.random() * 0.1)

    def _send(self, *, bad: bool) -> None:
        payload = (BAD if bad else b"good") + b" %06d" % self._number
        self._number += 1
        self._pending += 1

        def answered(result: magnetar.Result, message_id: magnetar.MessageId) -> None:
            self._pending -= 1
            if result != magnetar.Result.Ok:
                self.history.violated(f"I8: {payload!r} was refused permanently: {result}")
            elif not bad:
                self._stored[payload] = message_id.position
            elif message_id.ledger_id() >= 0:  # else it is a duplicate, and the receipt has no place
                self._bad[message_id.position] = None

        self._producers[bad].send_async(payload, answered)

    # -- consuming ---------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        while not self.stopping:
            await self._take(self._consumer, 300)
            if self.random.random() < 0.1:
                await asyncio.sleep(self.random.random() * 0.1)

    async def _take(self, consumer: Any, wait_ms: int) -> MagnetarError | None:
        """Receive, and acknowledge what came; returns what was raised."""
        try:
            if self._many:
                messages = await consumer.receive_many(self.random.choice((1, 7, 100)), wait_ms)
            else:
                messages = [await consumer.receive(wait_ms)]
        except Timeout as error:
            return error
        except MagnetarError as error:
            if "entry_id" not in error.details:
                raise
            self._check_refused(error)
            return error
        for message in messages:
            if message.data().startswith(BAD):
                self.history.violated(f"I7: {message.data()!r} was handed over, and cannot be what was published")
            self._handed_over[message.data()] = None
        if self._cumulative:
            await consumer.acknowledge_cumulative(messages[-1])
        elif self._many:
            await consumer.acknowledge_many(messages)
        else:
            await consumer.acknowledge(messages[0])
        return None

    def _check_refused(self, error: MagnetarError) -> None:
        self.history.counts["messages not opened"] += 1
        if not isinstance(error, ChecksumError) and self.topic not in error.message:
            self.history.violated(f"I7: an error that does not name its topic: {error}")

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """What is stored and good is handed over; what cannot be opened is still there for another consumer."""
        self.stopping = True
        for task in self.tasks:
            await task
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        while any(payload not in self._handed_over for payload in self._stored):
            await self._take(self._consumer, 500)
        await self._consumer.close()
        another = await self.again(self._subscribe)
        told: dict[Position, None] = {}
        while any(position not in told for position in self._bad):
            error = await self._take(another, 500)
            if error is not None and "entry_id" in error.details:
                told[error.details["ledger_id"], error.details["entry_id"]] = None  # type: ignore[index]
        await another.close()
