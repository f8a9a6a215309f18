"""A consumer with retry letters and dead letters, and a publisher for it, on a topic of their own: `Reconsuming`.

Of what it is given it acknowledges some, asks for some later, at once or with a delay, and says that some failed. It
crashes in some runs, also between the step that stores a copy and the step that acknowledges the original.

`LetterWatch` sees whether anything is acknowledged too early (I1). In the end every message that has its receipt was
consumed, or lies in the dead letter topic. A copy has the content of the message that it names.
"""

import asyncio
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar import ConsumerDeadLetterPolicy
from magnetar.client.core.message_id import MessageId
from magnetar.client.letters.handling import ORIGIN_MESSAGE_ID, REAL_TOPIC
from magnetar.protocol.errors import MagnetarError, Timeout
from magnetar.protocol.topics import TopicName

from ..checkers.history import History, show
from ..checkers.letter_watch import LetterWatch, Origin
from ..world.cluster import SimCluster
from .reading import read_log
from .workload import Workload

PENDING_MAX = 20
LOOKS_MAX = 40
LOOK_MS = 500
KEEPER = "keeper"


class Reconsuming(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.may_crash = random.random() < 0.7
        self._consumers_wanted = random.randint(1, 2)
        self._consumer_options = {
            "consumer_type": magnetar.ConsumerType.Shared,
            "receiver_queue_size": random.choice((1, 10, 1000)),
            "initial_position": magnetar.InitialPosition.Earliest,
            "negative_ack_redelivery_delay_ms": 300,
            "ack_group_time_ms": random.choice((0, 0, 100)),
            "enable_retry": True,
            "dead_letter_policy": ConsumerDeadLetterPolicy(random.randint(1, 3), None, KEEPER),
        }
        self._producer_options = {
            "send_timeout_millis": 0,
            "batching_enabled": random.random() < 0.5,
            "batching_max_messages": 3,
        }
        self._later_share = random.choice((0.3, 0.8))
        self._letters = LetterWatch(history, TopicName.parse(topic).full, name)
        self._number = 0
        self._pending: dict[bytes, None] = {}
        self._stored: dict[bytes, None] = {}
        """Messages with a receipt that were neither consumed nor seen among the dead letters."""
        self._ended: dict[bytes, None] = {}
        self._contents: dict[Origin, bytes] = {}

    def watch(self, stack: ExitStack) -> None:
        self._letters.install(stack)

    async def setup(self) -> None:
        self.connect()
        self._consumers = [await self.again(self._subscribe) for _ in range(self._consumers_wanted)]
        self._producer = await self.again(self._create)

    async def _create(self) -> Any:
        return await self.client.create_producer(self.topic, **self._producer_options)

    async def _subscribe(self) -> Any:
        return await self.client.subscribe(self.topic, self.name, **self._consumer_options)

    async def start(self) -> None:
        self.begin(self._publish(), "publish")
        for consumer in self._consumers:
            self.begin(self._consume(consumer), "consume or later")

    def crash(self) -> None:
        super().crash()
        self._pending = {}

    # -- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while not self.stopping:
            for _ in range(self.random.randint(1, 3)):
                if len(self._pending) < PENDING_MAX:
                    self._send()
            await asyncio.sleep(self.random.random() * 0.5)

    def _send(self) -> None:
        payload = f"{self.name}:letter:{self._number:06d}".encode()
        self._number += 1
        pending = self._pending
        pending[payload] = None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            pending.pop(payload, None)
            if result == magnetar.Result.Ok:
                if payload not in self._ended:
                    self._stored[payload] = None
            elif pending is self._pending:  # else of a process that was killed
                self.history.violated(f"I8: {show(payload)} was refused permanently: {result}")

        self._producer.send_async(payload, answered)

    # -- consuming ---------------------------------------------------------------------------------------------------

    async def _consume(self, consumer: Any) -> None:
        while not self.stopping:
            message = await self._receive(consumer)
            if message is not None:
                await self._settle(consumer, message)

    async def _receive(self, consumer: Any) -> Any:
        try:
            message = await consumer.receive(LOOK_MS)
        except Timeout:
            return None
        message_id, properties = message.message_id(), message.properties()
        origin = (TopicName.parse(message.topic_name()).partitioned_name, message_id.text)
        if origin[0] == self._letters.retry_topic:
            origin = (properties.get(REAL_TOPIC, ""), properties.get(ORIGIN_MESSAGE_ID, ""))
        self._check_content(origin, bytes(message.data()))
        return message

    def _check_content(self, origin: Origin, content: bytes) -> None:
        known = self._contents.setdefault(origin, content)
        if known != content:
            self.history.violated(f"I1: {show(content)} is said to be {origin}, where {show(known)} was")

    async def _settle(self, consumer: Any, message: Any) -> None:
        draw = self.random.random()
        if draw < self._later_share:
            await self._later(consumer, message)
        elif draw < self._later_share + 0.1:
            await consumer.negative_acknowledge(message)
        else:
            await self._acknowledge(consumer, message)

    async def _later(self, consumer: Any, message: Any) -> None:
        self.history.counts["asked for later"] += 1
        try:
            await consumer.reconsume_later(message, self.random.choice((0, 0, 100, 1000)))
        except (MagnetarError, TimeoutError) as error:
            self.history.counts[f"not stored for later: {type(error).__name__}"] += 1
            await consumer.negative_acknowledge(message)

    async def _acknowledge(self, consumer: Any, message: Any) -> None:
        message_id = message.message_id()
        self._letters.consumed(message.topic_name(), message_id.position, message_id.batch_index())
        self._has_ended(bytes(message.data()))
        await consumer.acknowledge(message)

    def _has_ended(self, payload: bytes) -> None:
        self._ended[payload] = None
        self._stored.pop(payload, None)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Everything that is stored is consumed, or is a dead letter."""
        self.stopping = True
        for task in self.tasks:
            await task
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        for consumer in self._consumers:
            await consumer.close()
        consumer, looks = await self.again(self._subscribe), 0
        while self._stored and looks < LOOKS_MAX:
            message = await self._receive(consumer)
            if message is not None:
                await self._acknowledge(consumer, message)
            else:
                looks += 1
                await self._look_at_dead_letters()
        if self._stored:
            lost = ", ".join(map(show, self._stored))
            self.history.violated(f"I1: {lost} of {self.topic}, which have receipts, are neither consumed nor letters")
        await consumer.close()

    async def _look_at_dead_letters(self) -> None:
        if not self._letters.has_dead_letters:
            return  # the question would create the topic
        for partition in await self.again(partial(self.client.get_topic_partitions, self._letters.dead_letter_topic)):
            for letter in await self.again(partial(read_log, self.client, partition)):
                self._has_ended(letter.payload)
