"""A topic whose subscriptions expire: one has a consumer all the time, others have one now and then. `Leaving`.

`UseWatch` sees at the brokers that no subscription expires too early (I7). The clients see:

- I7: what has its receipt is given to the subscription that has a consumer, unless that expired while it had none.
- I8: in the end each subscription that nobody uses expires.
"""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import magnetar
from magnetar.actors.keeping import topic_keeping
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import Timeout
from magnetar.protocol.topics import TopicName

from ..checkers.history import History
from ..checkers.policies_agree import policies_agree
from ..checkers.use_watch import UseWatch
from ..world.cluster import SimCluster
from .admin import new_admin
from .workload import Workload

POLICY = "subscription_expiration_time_minutes"
MINUTE_S = 6.0
"""Here a minute of this policy is as short. The clocks of two nodes are apart by less."""
CHECKS_EVERY_S = 0.5
EXPIRY_LIMIT_S = 4 * MINUTE_S
PENDING_MAX = 20
LOOKS_MAX = 60
LOOK_MS = 500


class Leaving(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.may_crash = random.random() < 0.3
        self._full = TopicName.parse(topic).full
        cluster.settings = replace(cluster.settings, subscription_expiry_check_interval_minutes=CHECKS_EVERY_S / 60)
        self._watch = UseWatch(history, cluster.loop, self._full, MINUTE_S)
        self._leavers = [f"{name}-{number}" for number in range(2)]
        self._away_max_s = random.choice((1.0, MINUTE_S, 2 * MINUTE_S))
        self._number = 0
        self._pending: dict[bytes, None] = {}
        self._stored: dict[bytes, str] = {}
        """Messages with a receipt, and in which partition they are."""
        self._given: dict[bytes, None] = {}

    def watch(self, stack: ExitStack) -> None:
        stack.enter_context(patch.object(topic_keeping, "MINUTE_MS", int(MINUTE_S * 1000)))
        self._watch.install(stack)

    async def setup(self) -> None:
        self.connect()
        self._partitions = await self.again(partial(self.client.get_topic_partitions, self.topic))
        self._consumer = await self.again(partial(self._subscribe, self.name))
        self._producer = await self.again(self._create)
        admin = await new_admin(self)
        await self.again(partial(admin.call, "set_topic_policy", topic=self._full, policy=POLICY, value=1))
        await admin.close()

    async def _subscribe(self, subscription: str) -> Any:
        return await self.client.subscribe(
            self.topic,
            subscription,
            magnetar.ConsumerType.Shared,
            initial_position=magnetar.InitialPosition.Earliest,
            receiver_queue_size=5,
        )

    async def _create(self) -> Any:
        return await self.client.create_producer(self.topic, send_timeout_millis=0, batching_enabled=False)

    async def start(self) -> None:
        self.begin(self._publish(), "publish")
        self.begin(self._stay(), "stay")
        for leaver in self._leavers:
            self.begin(self._come_and_go(leaver), "come and go")

    def crash(self) -> None:
        super().crash()
        self._pending = {}

    async def _publish(self) -> None:
        while not self.stopping:
            if len(self._pending) < PENDING_MAX:
                self._send()
            await asyncio.sleep(self.random.random() * 0.4)

    def _send(self) -> None:
        payload = f"{self.name}:{self._number:06d}".encode()
        self._number += 1
        pending = self._pending
        pending[payload] = None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            pending.pop(payload, None)
            if result == magnetar.Result.Ok and message_id.ledger_id() >= 0:  # else it is a duplicate
                partition = self._partitions[max(message_id.partition(), 0)]
                self._stored[payload] = TopicName.parse(partition).path

        self._producer.send_async(payload, answered)

    async def _stay(self) -> None:
        while not self.stopping:
            await self._take()

    async def _take(self) -> bool:
        try:
            message = await self._consumer.receive(LOOK_MS)
        except Timeout:
            return False
        self._given[bytes(message.data())] = None
        await self._consumer.acknowledge(message)
        return True

    async def _come_and_go(self, subscription: str) -> None:
        while not self.stopping:
            consumer = await self.again(partial(self._subscribe, subscription))
            await asyncio.sleep(self.random.random())
            await consumer.close()
            await asyncio.sleep(self.random.random() * self._away_max_s)

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """The one that stays is given all that it is owed; then the others expire."""
        self.stopping = True
        for task in self.tasks:
            await task
        looks = 0
        while (self._pending or self._owed()) and looks < LOOKS_MAX:
            looks += not await self._take()
        if self._pending:
            raise AssertionError(f"I8: {len(self._pending)} messages to {self.topic} have no receipt")
        if owed := self._owed():
            self.history.violated(f"I7: {self.name} of {self.topic} is never given {owed[:3]}")
        await self.cluster.until(lambda: policies_agree(self.cluster), EXPIRY_LIMIT_S, f"I8: no {POLICY} everywhere")
        await self.cluster.until(
            lambda: not self._left(), EXPIRY_LIMIT_S, f"I8: subscriptions of {self.topic} do not expire"
        )
        await self._consumer.close()

    def _owed(self) -> list[bytes]:
        """What is stored and was not given, in partitions in which the subscription did not expire."""
        kept = {path for path in self._stored.values() if (path, self.name) not in self._watch.expired}
        return [one for one, path in self._stored.items() if one not in self._given and path in kept]

    def _left(self) -> list[str]:
        """Subscriptions without a consumer that an owner still has."""
        loaded = [topic for node in self.cluster.brokers if node.ready for topic in node.service.topics.loaded.values()]
        return [
            name
            for topic in loaded
            if isinstance(topic, PersistentTopic) and topic.name.partitioned_name == self._full
            for name, _ in topic.subscriptions
            if name != self.name
        ]
