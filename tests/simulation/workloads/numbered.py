"""A source of numbered records that is deduplicated: `Numbered`.

It publishes each record with its number as the sequence id, under a name of its own. Now and then, and after each
crash, it goes back to an earlier record, as a source does that continues from a checkpoint. All from there on is sent
again. A consumer of its own acknowledges everything, so that the topic is trimmed: the snapshots of deduplication alone
keep what is not in them.

- I5: each number stands at one place, and one whose receipt says that it is a duplicate stands somewhere.
- I4: the numbers of a partition ascend.
- I1: each number with a receipt is given to the consumer.
"""

import asyncio
from dataclasses import replace
from random import Random
from typing import Any

import magnetar
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import Timeout

from ..checkers.history import History
from ..checkers.number_watch import NumberWatch
from ..world.cluster import SimCluster
from .workload import Workload

PENDING_MAX = 30
KEYS = 4
LOOKS_MAX = 60
LOOK_MS = 500


class Numbered(Workload):
    """See the module. It switches deduplication on, for all topics of the run."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.may_crash = random.random() < 0.7
        cluster.settings = replace(
            cluster.settings,
            deduplication_enabled=True,
            deduplication_entries_interval=random.choice((2, 5, 1000)),
            deduplication_snapshot_interval_s=random.choice((1, 1, 120)),
            ledger_entries_max=random.choice((3, 20)),
        )
        history.deduplicates = True
        self._watch = NumberWatch(history, topic)
        self._back_max = random.choice((5, 30))
        self._back_share = random.choice((0.05, 0.3))
        self._pace_s = random.choice((0.05, 0.2))
        self._burst_max = random.choice((1, 5))
        self._next = 0
        self._pending: dict[int, None] = {}

    async def setup(self) -> None:
        self.connect()
        self._consumer = await self.again(self._subscribe)
        self._producer = await self.again(self._create)

    async def _subscribe(self) -> Any:
        return await self.client.subscribe(
            self.topic, self.name, initial_position=magnetar.InitialPosition.Earliest, receiver_queue_size=100
        )

    async def _create(self) -> Any:
        # Other batches with the same records would be other entries, and no duplicates, as in Pulsar.
        return await self.client.create_producer(
            self.topic, producer_name=self.name, send_timeout_millis=0, batching_enabled=False
        )

    async def start(self) -> None:
        self.begin(self._publish(), "publish numbers")
        self.begin(self._consume(), "consume numbers")

    def crash(self) -> None:
        super().crash()
        self._pending = {}
        self._go_back()

    def _go_back(self) -> None:
        """To a record of which everything before it has its receipt, and perhaps others behind it, too."""
        self._next = max(0, self._watch.confirmed - self.random.randint(0, self._back_max))
        self.history.counts["sources went back"] += 1

    # -- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while not self.stopping:
            if not self._pending and self.random.random() < self._back_share:
                self._go_back()
            for _ in range(self.random.randint(1, self._burst_max)):
                if len(self._pending) < PENDING_MAX:
                    self._send()
            await asyncio.sleep(self.random.random() * 2 * self._pace_s)

    def _send(self) -> None:
        number = self._next
        self._next += 1
        pending = self._pending
        pending[number] = None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            if pending is not self._pending:  # of a process that was killed
                return
            pending.pop(number, None)
            if result == magnetar.Result.Ok:
                self._watch.has_receipt(number, message_id)
            else:
                self.history.violated(f"I8: number {number} of {self.topic} was refused permanently: {result}")

        self._producer.send_async(str(number).encode(), answered, None, f"key-{number % KEYS}", None, number)

    # -- consuming ---------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        while not self.stopping:
            await self._take()

    async def _take(self) -> None:
        try:
            message = await self._consumer.receive(LOOK_MS)
        except Timeout:
            return
        self._watch.was_given(message.topic_name(), int(bytes(message.data())), message.message_id())
        await self._consumer.acknowledge(message)

    async def stop(self) -> None:
        """Everything has its receipt; then the source goes back once more."""
        self.stopping = True
        for task in self.tasks:
            await task
        await self._all_answered()
        self._go_back()
        while self._next <= self._watch.highest:
            self._send()
            if len(self._pending) >= PENDING_MAX:
                await self._all_answered()
        self._send()
        await self._all_answered()
        looks = 0
        while self._watch.missing and looks < LOOKS_MAX:
            looks += 1
            for _ in range(len(self._watch.missing)):
                await self._take()
        self._watch.check_nothing_missing()
        await self._consumer.close()

    async def _all_answered(self) -> None:
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
