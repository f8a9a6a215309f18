"""A non-persistent topic with a publisher and consumers of all types, some of them slow: `Passing`.

`PassingWatch` sees what brokers do with each entry (I11). The clients see that every send has its receipt, and:

- I5: no consumer is given a message more often than the publisher sent it.
- I4: an Exclusive or Failover consumer is given the messages of a key in the order of sending, by their first
  occurrence.
- I8: in the end, whatever crashed, the topic is there again, and each subscription gets what is published.
"""

import asyncio
from contextlib import ExitStack
from random import Random
from typing import Any

import magnetar
from magnetar.actors.topics.non_persistent import NonPersistentTopic
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import Timeout

from ..checkers.history import History, show
from ..checkers.passing_watch import PassingWatch
from ..world.cluster import SimCluster
from .workload import Workload

PENDING_MAX = 30
TYPES = (
    magnetar.ConsumerType.Exclusive,
    magnetar.ConsumerType.Shared,
    magnetar.ConsumerType.Failover,
    magnetar.ConsumerType.KeyShared,
)
NO_PLACE = (0, 0)


class Taking:
    """One consumer, and what it was given. A consumer that comes back after a crash is another one."""

    def __init__(self, consumer: Any, subscription: str, *, ordered: bool) -> None:
        self.consumer = consumer
        self.subscription = subscription
        self.ordered = ordered
        self.given: dict[bytes, int] = {}
        self.highest: dict[bytes, int] = {}


class Passing(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = f"non-persistent://public/default/{topic}"
        self.may_crash = random.random() < 0.4
        self._subscriptions = {f"{name}-{number}": random.choice(TYPES) for number in range(random.randint(1, 2))}
        self._consumers_wanted = random.randint(1, 3)
        self._queue_size = random.choice((1, 3, 100))
        self._slowness_s = random.choice((0.0, 0.05, 0.5))
        self._burst_max = random.choice((1, 10, 30))
        self._producer_options = {
            "send_timeout_millis": 0,
            "batching_enabled": random.random() < 0.5,
            "batching_max_messages": random.choice((3, 1000)),
        }
        self._watch = PassingWatch(history)
        self._takings: list[Taking] = []
        self._number = 0
        self._pending: dict[bytes, None] = {}
        self._heard: dict[str, int] = {}
        """The highest number that a subscription was given."""

    def watch(self, stack: ExitStack) -> None:
        self._watch.install(stack)

    async def setup(self) -> None:
        self.connect()
        self._producer = await self.again(self._create)
        self._takings = []
        for subscription, kind in self._subscriptions.items():
            several = kind is not magnetar.ConsumerType.Exclusive
            for _ in range(self._consumers_wanted if several else 1):

                async def subscribe(subscription: str = subscription, kind: Any = kind) -> Any:
                    return await self.client.subscribe(
                        self.topic, subscription, kind, receiver_queue_size=self._queue_size
                    )

                consumer = await self.again(subscribe)
                self._takings.append(Taking(consumer, subscription, ordered=kind in (TYPES[0], TYPES[2])))

    async def _create(self) -> Any:
        return await self.client.create_producer(self.topic, **self._producer_options)

    async def start(self) -> None:
        self.begin(self._publish(), "publish in passing")
        for taking in self._takings:
            self.begin(self._take_on(taking), "take in passing")

    def crash(self) -> None:
        super().crash()
        self._pending = {}

    async def _publish(self) -> None:
        while not self.stopping:
            for _ in range(self.random.randint(1, self._burst_max)):
                if len(self._pending) < PENDING_MAX:
                    self._send()
            await asyncio.sleep(self.random.random() * 0.1 * self._burst_max)

    def _send(self) -> None:
        key = f"key-{self.random.randrange(4)}"
        payload = f"{self.name}:{key}:{self._number:06d}".encode()
        self._number += 1
        pending = self._pending
        pending[payload] = None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            pending.pop(payload, None)
            if pending is not self._pending:  # of a process that was killed
                return
            if result != magnetar.Result.Ok:
                self.history.violated(f"I8: {show(payload)} was refused permanently: {result}")
            elif message_id.position != NO_PLACE:
                self.history.violated(f"I11: {show(payload)} is not stored, and its receipt names {message_id}")

        self._producer.send_async(payload, answered, None, key)

    # -- consuming ---------------------------------------------------------------------------------------------------

    async def _take_on(self, taking: Taking) -> None:
        while not self.stopping:
            await self._take(taking, 300)
            if self._slowness_s and self.random.random() < 0.5:
                await asyncio.sleep(self.random.random() * self._slowness_s)

    async def _take(self, taking: Taking, wait_ms: int) -> None:
        try:
            message = await taking.consumer.receive(wait_ms)
        except Timeout:
            return
        payload = bytes(message.data())
        index = max(message.message_id().batch_index(), 0)
        frame = (message.topic_name(), message.producer_name(), message.sequence_id() - index)
        taking.given[payload] = times = taking.given.get(payload, 0) + 1
        if times > self.history.frames[frame]:
            self.history.violated(
                f"I5: {taking.subscription} is given {show(payload)} {times} times, sent {self.history.frames[frame]}"
            )
        key, _, number = payload.rpartition(b":")
        if taking.ordered and times == 1 and int(number) < taking.highest.get(key, -1):
            self.history.violated(f"I4: {taking.subscription} is given {show(payload)} after {taking.highest[key]}")
        taking.highest[key] = max(int(number), taking.highest.get(key, -1))
        self._heard[taking.subscription] = max(int(number), self._heard.get(taking.subscription, -1))
        await taking.consumer.acknowledge(message)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Each subscription is given a message that is published now, and brokers have counted all of them."""
        self.stopping = True
        for task in self.tasks:
            await task
        first = self._number
        while any(self._heard.get(subscription, -1) < first for subscription in self._subscriptions):
            if len(self._pending) < PENDING_MAX:
                self._send()
            for taking in self._takings:
                await self._take(taking, 50)
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        for node in self.cluster.brokers:
            for topic in node.service.topics.loaded.values() if node.ready else ():
                if isinstance(topic, NonPersistentTopic):
                    self._watch.check_figures(topic, self.cluster.loop.time())
        for taking in self._takings:
            await taking.consumer.close()
        await self._producer.close()
