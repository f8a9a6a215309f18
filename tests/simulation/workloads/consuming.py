"""Consumers of one subscription that acknowledge some of what they receive, in a way drawn from the seed.

Shared and KeyShared: one by one, with negative acknowledgements; visitors that come and go in storms. Exclusive: one by
one or cumulatively; now and then the subscription is moved back or forth, or deleted and made again. Failover: one by
one or cumulatively, by the active one; visitors come and go as well. Any of them may crash. An acknowledgement has no
receipt here, so whatever was about to be acknowledged counts as perhaps acknowledged.
"""

import asyncio
from collections import deque
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import MagnetarError

from ..checkers.history import History, Log, Place, place_of
from ..world.cluster import SimCluster
from .workload import Workload

VISITORS_MAX = 4
SOUGHT_FROM_MAX = 50
DRAIN_QUEUE_SIZE = 1000
"""A backlog of a thousand messages is drained in a few reads, not in a thousand."""


class Consuming(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        shared = random.random() < 0.5
        self._type = magnetar.ConsumerType.Shared if shared else magnetar.ConsumerType.Exclusive
        other = random.random()
        if shared and other < 0.5:
            self._type = magnetar.ConsumerType.KeyShared
        elif not shared and other < 0.4:
            self._type = magnetar.ConsumerType.Failover
        failover = self._type is magnetar.ConsumerType.Failover
        self._consumers_max = random.randint(1, 3) if shared or failover else 1
        self._queue_size = random.choice((1, 10, 1000))
        self._acknowledged_share = random.choice((0.0, 0.7, 1.0))
        self._cumulative = not shared and random.random() < 0.4
        self._storms = (shared or failover) and random.random() < 0.4
        exclusive = not shared and not failover
        self._seek_share = 0.01 if exclusive and random.random() < 0.3 else 0.0
        self._unsubscribe_share = 0.003 if exclusive and random.random() < 0.2 else 0.0
        self.may_crash = random.random() < 0.4
        apart = Random()
        apart.setstate(random.getstate())  # takes no draw from `random`
        self._by_index = apart.random() < 0.5
        """Whether single messages of batches are acknowledged, where the brokers have that switched on."""
        self._consumers: list[Any] = []
        self._recent: list[tuple[str, MessageId]] = []
        self._sought: dict[str, Place] = {}
        """Where a partition's next delivery has to begin at the latest."""
        self.began: list[tuple[Place, Place]] = []
        """(where a seek led, what came first after it)."""

    async def setup(self) -> None:
        self.connect()
        self._consumers = []
        for _ in range(self._consumers_max):
            self._consumers.append(await self.again(self._subscribe))

    async def _subscribe(self) -> Any:
        return await self.client.subscribe(
            self.topic,
            self.name,
            self._type,
            receiver_queue_size=self._queue_size,
            initial_position=magnetar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=500,
            batch_index_ack_enabled=self._by_index,
        )

    async def start(self) -> None:
        for index in range(len(self._consumers)):
            self.begin(self._consume(index), "consume")
        if self._storms:
            self.begin(self._storm(), "storm")

    def crash(self) -> None:
        super().crash()
        self._sought.clear()

    # -- receiving -------------------------------------------------------------------------------------------------

    async def _consume(self, index: int) -> None:
        while not self.stopping:
            consumer = self._consumers[index]
            message = await self._receive(consumer)
            if message is None:
                continue
            await self._settle(consumer, message)
            if self._seek_share and self.random.random() < self._seek_share:
                await self._seek(consumer)
            if self._unsubscribe_share and self.random.random() < self._unsubscribe_share:
                self._consumers[index] = await self._unsubscribe(consumer)
            if self.random.random() < 0.1:
                await asyncio.sleep(self.random.random() * 0.1)

    async def _receive(self, consumer: Any, wait_ms: int = 500) -> Any:
        try:
            message = await consumer.receive(wait_ms)
        except magnetar.Timeout:
            return None
        topic, message_id = message.topic_name(), message.message_id()
        self.history.was_delivered(topic, self.name, bytes(message.data()), message_id)
        sought = self._sought.pop(topic, None)
        if sought is not None:
            self.began.append((sought, place_of(topic, message_id)))
        self._recent.append((topic, message_id))
        del self._recent[:-SOUGHT_FROM_MAX]
        return message

    async def _settle(self, consumer: Any, message: Any) -> None:
        topic, message_id = message.topic_name(), message.message_id()
        draw = self.random.random()
        if draw < self._acknowledged_share:
            if self._cumulative:
                if self.random.random() < 0.2:
                    self.history.will_acknowledge_up_to(topic, self.name, message_id)
                    await consumer.acknowledge_cumulative(message)
            else:
                self.history.will_acknowledge(topic, self.name, message_id)
                await consumer.acknowledge(message)
        elif draw < self._acknowledged_share + 0.1:
            await consumer.negative_acknowledge(message)

    # -- coming and going --------------------------------------------------------------------------------------------

    async def _storm(self) -> None:
        visits: list[asyncio.Task[Any]] = []
        while not self.stopping:
            await asyncio.sleep(self.random.random() * 0.6)
            visits = [visit for visit in visits if not visit.done()]
            for _ in range(self.random.randint(1, VISITORS_MAX)):
                if len(visits) < VISITORS_MAX:
                    visits.append(asyncio.create_task(self._visit()))
        await asyncio.gather(*visits)

    async def _visit(self) -> None:
        self.history.counts["visitors"] += 1
        try:
            visitor = await self._subscribe()
        except (MagnetarError, TimeoutError):
            return
        for _ in range(self.random.randint(0, 20)):
            message = await self._receive(visitor, 100)
            if message is not None:
                await self._settle(visitor, message)
        await visitor.close()

    # -- moving and ending the subscription --------------------------------------------------------------------------

    async def _seek(self, consumer: Any) -> None:
        """To the start, or behind a message that was delivered lately; repeated until it is certain."""
        topic, message_id = self.random.choice(self._recent)
        behind: Place | None = None
        if self.random.random() < 0.3:
            message_id = MessageId.earliest
        else:
            behind = next_to(place_of(topic, message_id))
            self.history.will_seek(topic, self.name, behind)
        self.history.counts["seeks"] += 1
        await self.again(partial(consumer.seek, message_id))
        self._sought.clear()
        for partition, name in list(self.history.subscriptions):
            if name == self.name and (behind is None or topic == partition):
                self.history.has_sought(partition, self.name)
                self._sought[partition] = behind or (partition, -1, -1, -1)

    async def _unsubscribe(self, consumer: Any) -> Any:
        self.history.counts["unsubscribed"] += 1
        await self.again(consumer.unsubscribe)
        self._sought.clear()
        for partition, name in list(self.history.subscriptions):
            if name == self.name:
                self.history.has_unsubscribed(partition, self.name)
        return await self.again(self._subscribe)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        self.stopping = True
        for task in self.tasks:
            await task
        self.tasks.clear()
        for consumer in self._consumers:
            while not consumer.is_connected():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await consumer.close()

    def check_seeks(self, logs: dict[str, Log]) -> None:
        """I7: what came first after a seek is the first that the log has there (or something before that)."""
        for sought, began in self.began:
            for message in logs.get(sought[0], ()):
                if sought <= (place := place_of(sought[0], message.message_id)) < began:
                    self.history.violated(f"I7: {self.name} was moved to {sought}, and given {began} before {place}")
                    return

    async def drain(self, logs: dict[str, Log], *, acknowledge: bool) -> None:
        """I7: a new consumer is given everything that was not acknowledged; it acknowledges that, or nothing."""
        self._queue_size = DRAIN_QUEUE_SIZE
        consumer = await self.again(self._subscribe)
        owed = deque[Place]()
        for topic, log in logs.items():
            owed.extend(self.history.missing_deliveries(topic, self.name, log))
        while owed:
            if not self.history.owes(self.name, owed[0]):
                owed.popleft()
                continue
            message = await self._receive(consumer, 200)
            if message is not None and acknowledge:
                self.history.will_acknowledge(message.topic_name(), self.name, message.message_id())
                await consumer.acknowledge(message)
        await consumer.close()

    async def look_again(self, wait_s: float) -> list[Place]:
        """What another consumer is given now; it keeps nothing."""
        consumer = await self.again(self._subscribe)
        given: list[Place] = []
        while (message := await self._receive(consumer, int(wait_s * 1000))) is not None:
            given.append(place_of(message.topic_name(), message.message_id()))
        await consumer.close()
        return given


def next_to(place: Place) -> Place:
    """Right behind a message; an index within a batch or not."""
    return (*place[:3], place[3] + 1)
