"""A publisher of messages with delivery times, and consumers of one Shared or Key_Shared subscription: `Delaying`.

Some messages have no delivery time. Some are acknowledged by their ids before they were delivered, which cancels them.
In some runs an operator changes the policy of delays, or switches it off for a while. In half of the runs memory takes
only a few held messages, so that most of them go through buckets.

In some runs reads of the topic fail now and then. A Shared subscription sets aside what it cannot read, and reads it
again after `RECALL_INTERVAL_S`. These runs have delays that are longer than that: a message that is sent when it is
read again would be early.

Brokers look for stalled dispatch much more often than with their keep-alive (`StallWatch`).

- I12: nothing is delivered too early, nor after it was cancelled (`DelayWatch`).
- I7: what has its receipt and was not cancelled is delivered until it is acknowledged, whatever became of consumers and
  brokers.
"""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any
from unittest.mock import patch

import magnetar
from magnetar.actors.broker.service import BrokerService
from magnetar.actors.delays import buckets
from magnetar.actors.topics.pump import RECALL_INTERVAL_S
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import EntryUnknown, MagnetarError, Timeout
from magnetar.protocol.message_id import Position
from magnetar.protocol.topics import TopicName
from magnetar.storage.managed.managed_ledger import ManagedLedger

from ..checkers.delay_watch import DelayWatch
from ..checkers.history import History, show
from ..world.chance import drawn_apart
from ..world.cluster import SimCluster
from .admin import new_admin
from .workload import Workload

PENDING_MAX = 30
DELAYED_SHARE = 0.6
CANCELLED_SHARE = 0.1
"""Of the delayed messages."""
KEYS = 4
POLICY_MAX_S = 3.0
POLICIES = (None, *({"active": active, "tickTime": tick_ms} for active in (True, False) for tick_ms in (50, 1000)))
FAILING_SHARE = 0.4
"""Of the runs: reads fail in these, and delays are longer than a recall."""
FAILED_READS_SHARE = 0.2
LONG_DELAY_MAX_S = RECALL_INTERVAL_S + 7.0
LOOKS_MAX = 60
LOOK_MS = 500
STALLS_MAX_S = 0.4


class Delaying(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.may_crash = random.random() < 0.5
        cluster.settings = replace(
            cluster.settings,
            delayed_delivery_strict=random.random() < 0.5,
            delayed_delivery_tick_ms=random.choice((50, 200, 1000)),
        )
        self._spills = random.random() < 0.5
        self._ahead_ms = random.choice((0, 300, 1500))
        if self._spills:
            cluster.settings = replace(
                cluster.settings,
                delayed_delivery_min_index_count_per_bucket=random.choice((1, 3, 8)),
                delayed_delivery_max_indexes_per_segment=random.choice((1, 2, 5)),
            )
        self._type = random.choice((magnetar.ConsumerType.Shared, magnetar.ConsumerType.KeyShared))
        self._consumers_wanted = random.randint(1, 2)
        self._queue_size = random.choice((1, 10, 1000))
        self._delay_max_s = random.choice((0.5, 2.0, 4.0))
        self._acknowledged_share = random.choice((0.7, 1.0))
        self._leaving_share = random.choice((0.0, 0.1))
        """So often a consumer closes and comes back. Sometimes it is the last one."""
        self._changes_policy = random.random() < 0.3
        self._failing = drawn_apart(random)
        self._reads_fail = self._failing.random() < FAILING_SHARE
        if self._reads_fail:
            self._delay_max_s = LONG_DELAY_MAX_S
        self._watch = DelayWatch(history, name)
        self._number = 0
        self._pending: dict[bytes, None] = {}
        self._owed: dict[bytes, None] = {}
        """Messages with a receipt that were neither acknowledged nor cancelled."""
        self._acknowledged: dict[bytes, None] = {}
        self._consumers: list[Any] = []

    def watch(self, stack: ExitStack) -> None:
        self._watch.install(stack)
        if self._spills:
            # By default buckets keep only what is due in half a minute or later, which is longer than most runs.
            stack.enter_context(patch.object(buckets, "SOON_MS", self._ahead_ms))
            stack.enter_context(patch.object(buckets, "AHEAD_MS", self._ahead_ms))
        if self._reads_fail:
            self._have_reads_fail(stack)

    def _have_reads_fail(self, stack: ExitStack) -> None:
        """Until this workload is to stop, no bookie has an answer to some reads of the topic."""
        path, read = TopicName.parse(self.topic).path, ManagedLedger.read

        async def reading(
            ledger: ManagedLedger, first: Position, entries_max: int, bytes_max: int, upto: Position | None = None
        ) -> list[tuple[Position, bytes]]:
            of_this = ledger.name.startswith(path)  # also a partition
            if of_this and not self.stopping and self._failing.random() < FAILED_READS_SHARE:
                self.history.counts["failing-read"] += 1
                raise EntryUnknown(f"no bookie says whether it has {first} of {ledger.name}")
            return await read(ledger, first, entries_max, bytes_max, upto)

        stack.enter_context(patch.object(ManagedLedger, "read", reading))

    async def setup(self) -> None:
        self.connect()
        self._consumers = [await self.again(self._subscribe) for _ in range(self._consumers_wanted)]
        self._producer = await self.again(self._create)

    async def _create(self) -> Any:
        return await self.client.create_producer(self.topic, send_timeout_millis=0)

    async def _subscribe(self) -> Any:
        return await self.client.subscribe(
            self.topic,
            self.name,
            self._type,
            receiver_queue_size=self._queue_size,
            initial_position=magnetar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=300,
        )

    async def start(self) -> None:
        self.begin(self._publish(), "publish for later")
        for index in range(len(self._consumers)):
            self.begin(self._consume(index), "consume in time")
        if self._changes_policy:
            self.begin(self._change_policy_now_and_then(), "change delays")
        self.begin(self._have_brokers_look(), "look for stalled dispatch")

    def crash(self) -> None:
        super().crash()
        self._pending = {}

    # -- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while not self.stopping:
            for _ in range(self.random.randint(1, 3)):
                if len(self._pending) < PENDING_MAX:
                    self._send()
            await asyncio.sleep(self.random.random() * 0.3)

    def _send(self) -> None:
        payload = f"{self.name}:{self._number:06d}".encode()
        key = f"key-{self._number % KEYS}"
        self._number += 1
        pending = self._pending
        pending[payload] = None
        is_delayed = self.random.random() < DELAYED_SHARE
        is_cancelled = is_delayed and self.random.random() < CANCELLED_SHARE
        delay = timedelta(seconds=self.random.random() * self._delay_max_s) if is_delayed else None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            pending.pop(payload, None)
            if result != magnetar.Result.Ok:
                if pending is self._pending:  # else of a process that was killed
                    self.history.violated(f"I8: {show(payload)} was refused permanently: {result}")
            elif is_cancelled and pending is self._pending and message_id.ledger_id() >= 0:  # else it is a duplicate
                self.begin(self._cancel(message_id), "cancel")
            elif payload not in self._acknowledged:
                self._owed[payload] = None

        self._producer.send_async(payload, answered, None, key, deliver_after=delay)

    async def _cancel(self, message_id: MessageId) -> None:
        """Acknowledge a message that was not delivered yet."""
        partitions = await self.again(self._partitions)
        partition = partitions[max(message_id.partition(), 0)]
        self.history.counts["delayed messages cancelled"] += 1
        self.history.given_up[partition, self.name, (message_id.ledger_id(), message_id.entry_id())] = None
        try:
            await self._consumers[0].acknowledge(message_id)
        except MagnetarError as error:  # its consumer is just coming back
            self.history.counts[f"not cancelled: {type(error).__name__}"] += 1

    async def _partitions(self) -> list[str]:
        return await self.client.get_topic_partitions(self.topic)

    # -- consuming ---------------------------------------------------------------------------------------------------

    async def _consume(self, index: int) -> None:
        while not self.stopping:
            consumer = self._consumers[index]
            message = await self._receive(consumer)
            if message is not None:
                await self._settle(consumer, message)
            if self.random.random() < self._leaving_share:
                await consumer.close()
                await asyncio.sleep(self.random.random() * 0.3)
                self._consumers[index] = await self.again(self._subscribe)

    async def _receive(self, consumer: Any) -> Any:
        try:
            return await consumer.receive(LOOK_MS)
        except Timeout:
            return None

    async def _acknowledge(self, consumer: Any, message: Any) -> None:
        payload = bytes(message.data())
        self._acknowledged[payload] = None
        self._owed.pop(payload, None)
        await consumer.acknowledge(message)

    async def _settle(self, consumer: Any, message: Any) -> None:
        if self.random.random() < self._acknowledged_share:
            await self._acknowledge(consumer, message)
        else:
            await consumer.negative_acknowledge(message)

    async def _have_brokers_look(self) -> None:
        """Brokers look for stalled dispatch at once with their keep-alive, which is too seldom here."""
        while not self.stopping:
            await asyncio.sleep(self.random.random() * STALLS_MAX_S)
            for node in self.cluster.brokers:
                if node.ready and node.process is not None:
                    node.process.spawn(_look_for_stalls(node.service), "look for stalled dispatch")

    # -- the policy --------------------------------------------------------------------------------------------------

    async def _change_policy_now_and_then(self) -> None:
        """Switch delays off and on, and change how exact they are."""
        admin = await new_admin(self)
        topic = TopicName.parse(self.topic).full
        while not self.stopping:
            await asyncio.sleep(self.random.random() * POLICY_MAX_S)
            value = self.random.choice(POLICIES)
            try:
                await admin.call("set_topic_policy", topic=topic, policy="delayed_delivery", value=value)
                self.history.counts["delays changed"] += 1
            except (MagnetarError, TimeoutError) as error:
                self.history.counts[f"delays not changed: {type(error).__name__}"] += 1
        await admin.close()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Everything that is owed is delivered."""
        self.stopping = True
        for task in self.tasks:
            await task
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        looks = 0
        while self._owed and looks < LOOKS_MAX:
            for consumer in self._consumers:
                message = await self._receive(consumer)
                if message is not None:
                    await self._acknowledge(consumer, message)
                else:
                    looks += 1
        if self._owed:
            lost = ", ".join(map(show, list(self._owed)[:5]))
            self.history.violated(
                f"I7: {lost} of {self.topic}, which have receipts, are not delivered until they are acknowledged"
            )
        for consumer in self._consumers:
            await consumer.close()


async def _look_for_stalls(broker: BrokerService) -> None:
    broker.topics.check()
