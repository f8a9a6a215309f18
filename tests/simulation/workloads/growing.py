"""A partitioned topic that grows, again and again, while it is written, read, and subscribed to: `Growing`.

- I1: each subscription, with and without a consumer, is given every message that was sent after it was made and has a
  receipt, whichever partition it went to.
- I8: the topic has in the end as many partitions as were ordered. What the coordinator knows of it, and of topics that
  are created meanwhile, is what is stored (`copies_agree`).

In some runs the coordinator dies a moment after a growth was ordered.
"""

import asyncio
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.protocol.errors import InvalidConfiguration, KeyExists, MagnetarError, Timeout

from ..checkers.history import History, show
from ..world.cluster import SimCluster
from .admin import new_admin
from .workload import Workload

PARTITIONS_MAX = 9
GROWTHS_MAX = 3
SUBSCRIPTIONS_MAX = 4
CRASH_WITHIN_S = 0.06
LOOK_MS = 400
LOOKS_MAX = 40
GROW_TIMEOUT_S = 20.0
NOTED = 6


class Growing(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self._partitions = random.choice((1, 2, 2))
        self._crashes = random.random() < 0.5
        self._number = 0
        self._stored: dict[bytes, float] = {}
        """Messages with a receipt, and when they were sent."""
        self._subscribed: dict[str, float] = {}
        """Subscriptions, and when they were known to be there."""
        self._given: dict[str, dict[bytes, None]] = {}
        self._admin: CoordinatorClient

    async def setup(self) -> None:
        self.connect()
        self._admin = await new_admin(self)
        await self.again(self._create)
        await self._subscribe("idle", stays=False)

    async def _create(self) -> None:
        try:
            await self._admin.ask.create_topic(topic=self.topic_name, partitions=self._partitions)
        except KeyExists:
            return

    @property
    def topic_name(self) -> str:
        return f"persistent://public/default/{self.topic}"

    async def start(self) -> None:
        self.begin(self._publish(), "publish while it grows")
        self.begin(self._grow(), "grow")
        self.begin(self._subscribe_more(), "subscribe while it grows")
        self.begin(self._note(), "note properties")

    # -- growing -----------------------------------------------------------------------------------------------------

    async def _grow(self) -> None:
        for _ in range(self.random.randint(1, GROWTHS_MAX)):
            await asyncio.sleep(self.random.random() * 3.0)
            if self.stopping:
                return
            self._partitions = min(self._partitions + self.random.randint(0, 3), PARTITIONS_MAX)
            if self._crashes and self.random.random() < 0.7:
                delay_s = self.random.random() * CRASH_WITHIN_S
                asyncio.get_running_loop().call_later(delay_s, self.crash_coordinator, "a topic grows")
            await self._order()

    async def _order(self) -> None:
        try:
            await self._admin.call(
                "grow_topic", topic=self.topic_name, partitions=self._partitions, timeout_s=GROW_TIMEOUT_S
            )
        except InvalidConfiguration:
            self.history.violated(f"I8: {self.topic} has more partitions than the {self._partitions} that were ordered")
        except (MagnetarError, TimeoutError) as error:
            self.history.counts[f"growing failed: {type(error).__name__}"] += 1

    async def _note(self) -> None:
        """Create topics and give them properties, each once: nothing else makes up for a write that is in doubt."""
        for number in range(NOTED):
            await asyncio.sleep(self.random.random() * 1.5)
            noted = f"{self.topic_name}-noted-{number}"
            for order in (
                partial(self._admin.ask.create_topic, topic=noted),
                partial(self._admin.ask.change_topic_properties, topic=noted, put={"noted": "once"}),
            ):
                if self.stopping:
                    return
                try:
                    await order()
                except (MagnetarError, TimeoutError) as error:
                    self.history.counts[f"noting failed: {type(error).__name__}"] += 1

    # -- publishing and consuming ------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """By one producer after the other: each asks how many partitions there are."""
        while not self.stopping:
            producer = await self.again(partial(self.client.create_producer, self.topic, batching_enabled=False))
            for _ in range(self.random.randint(1, 12)):
                await self._send(producer)
            await producer.close()
            await asyncio.sleep(self.random.random() * 0.3)

    async def _send(self, producer: Any) -> None:
        payload, sent_at = f"{self.name}:{self._number:06d}".encode(), self.cluster.loop.now
        self._number += 1
        try:
            await producer.send(payload)
        except (MagnetarError, TimeoutError) as error:
            self.history.counts[f"publishing to what grows: {type(error).__name__}"] += 1
        else:
            self._stored[payload] = sent_at

    async def _subscribe_more(self) -> None:
        for number in range(self.random.randint(1, SUBSCRIPTIONS_MAX)):
            await asyncio.sleep(self.random.random() * 3.0)
            if not self.stopping:
                await self._subscribe(f"more-{number}", stays=self.random.random() < 0.5)

    async def _subscribe(self, subscription: str, *, stays: bool) -> None:
        """One that begins at the end of the topic. With `stays` its consumer takes messages until the end."""
        consumer = await self.again(partial(self._consumer, subscription))
        self._subscribed.setdefault(subscription, self.cluster.loop.now)
        given = self._given.setdefault(subscription, {})
        if stays:
            self.begin(self._consume(consumer, given), f"consume {subscription}")
        else:
            await consumer.close()

    async def _consumer(self, subscription: str) -> Any:
        return await self.client.subscribe(self.topic, subscription, magnetar.ConsumerType.Shared)

    async def _consume(self, consumer: Any, given: dict[bytes, None]) -> None:
        while not self.stopping:
            await _take(consumer, given)
        await consumer.close()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """It has grown, and consumers that know all partitions are given what is left of every subscription."""
        self.stopping = True
        for task in self.tasks:
            await task
        while await self.again(partial(self._admin.ask.partitions, topic=self.topic_name)) < self._partitions:
            await self._order()
            await asyncio.sleep(0.1)
        producer = await self.again(partial(self.client.create_producer, self.topic, batching_enabled=False))
        for _ in range(2 * self._partitions):
            await self._send(producer)
        await producer.close()
        await asyncio.gather(*map(self._read_on, self._subscribed))

    async def _read_on(self, subscription: str) -> None:
        given, since = self._given[subscription], self._subscribed[subscription]
        consumer = await self.again(partial(self._consumer, subscription))
        looks = 0
        while (missing := self._missing(given, since)) and looks < LOOKS_MAX:
            looks += not await _take(consumer, given)
        await consumer.close()
        if missing:
            lost = ", ".join(map(show, missing[:5]))
            self.history.violated(f"I1: {len(missing)} messages of {self.topic} are lost for {subscription}: {lost}")

    def _missing(self, given: dict[bytes, None], since: float) -> list[bytes]:
        return [payload for payload, sent_at in self._stored.items() if sent_at > since and payload not in given]

    async def close(self) -> None:
        await self._admin.close()
        await super().close()


async def _take(consumer: Any, given: dict[bytes, None]) -> bool:
    try:
        message = await consumer.receive(LOOK_MS)
    except Timeout:
        return False
    given[bytes(message.data())] = None
    await consumer.acknowledge(message)
    return True
