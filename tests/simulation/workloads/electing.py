"""Candidates for the leadership of one topic, which is also the leader's log: `Electing`.

Each candidate creates a producer with exclusive access, mostly one that waits for it. While it leads it publishes; then
it steps down, is fenced out, is paused, or crashes. Each producer is another leader.

I2: no epoch is granted to two leaders, and no message of a leader stands behind one of the next leader in the log.
I8: in the end every candidate that waits gets its turn.
"""

import asyncio
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar import ProducerAccessMode
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import MagnetarError, ProducerBusy, ProducerFenced

from ..checkers.history import History, show
from ..world.cluster import SimCluster
from .workload import Workload

MODES = (
    *[ProducerAccessMode.WaitForExclusive] * 4,
    ProducerAccessMode.Exclusive,
    ProducerAccessMode.ExclusiveWithFencing,
)
PENDING_MAX = 50
FINAL = (magnetar.Result.ProducerFenced, magnetar.Result.AlreadyClosed)
"""What the messages of a leader get that was deposed, or has stepped down."""


class Electing(Workload):
    """See the module. One candidate; all candidates of a topic share its name."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.may_crash = random.random() < 0.5
        self._terms = 0
        self._pending: dict[bytes, None] = {}
        self._pace_s = random.choice((0.01, 0.05))
        self._named = random.random() < 0.5

    async def setup(self) -> None:
        self.connect()
        partitions = await self.again(partial(self.client.get_topic_partitions, self.topic))
        self._partition = partitions[0]

    async def start(self) -> None:
        self.begin(self._stand(), "stand for election")

    def crash(self) -> None:
        super().crash()
        for payload in self._pending:
            self.history.failed[payload] = "its leader crashed"
        self._pending = {}

    async def _stand(self) -> None:
        while not self.stopping:
            try:
                producer = await self._create()
            except (MagnetarError, TimeoutError) as error:
                self.history.counts[f"election lost: {type(error).__name__}"] += 1
                await asyncio.sleep(0.2 if isinstance(error, ProducerBusy | ProducerFenced) else 0.5)
                continue
            await self._lead(producer)
            await producer.close()

    async def _create(self) -> Any:
        self._terms += 1
        name = {"producer_name": f"{self.name}.{self._terms}"} if self._named else {}
        mode = MODES[0] if self.stopping else self.random.choice(MODES)
        return await self.client.create_producer(self._partition, access_mode=mode, send_timeout_millis=0, **name)

    async def _lead(self, producer: Any) -> None:
        epoch = producer._producer.producers[0]._topic_epoch
        leader = f"{producer.producer_name()}/{epoch}"
        self.history.has_been_elected(self._partition, epoch, leader)
        for number in range(self.random.choice((1, 10, 100))):
            if self.stopping or not self._publish(producer, f"{leader}:lead:{number:06d}".encode()):
                return
            while len(self._pending) >= PENDING_MAX:  # noqa: ASYNC110  # virtual time costs nothing
                await asyncio.sleep(self._pace_s)
            await asyncio.sleep(self.random.random() * 2 * self._pace_s)

    def _publish(self, producer: Any, payload: bytes) -> bool:
        """False when the leader was deposed."""
        pending, deposed = self._pending, []
        pending[payload] = None
        self.history.sent[payload] = None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            pending.pop(payload, None)
            if pending is not self._pending:  # of a process that was killed
                return
            if result == magnetar.Result.Ok:
                self.history.was_acknowledged(producer.topic(), payload, message_id)
                return
            deposed.append(result)
            self.history.failed[payload] = str(result)
            self.history.counts[f"leading failed: {result}"] += 1
            if result not in FINAL:
                self.history.violated(f"I8: {show(payload)} was refused permanently: {result}")

        producer.send_async(payload, answered)
        return not deposed

    async def stop(self) -> None:
        """The leader steps down, and each candidate that waits gets its turn, to step down at once."""
        self.stopping = True
        for task in self.tasks:
            await task
        assert not self._pending, f"I8: {len(self._pending)} messages of a leader were never answered"
