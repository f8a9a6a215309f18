"""A topic that an operator terminates while messages are published, and a consumer that reads it: `Terminating`.

- I13: it ends at the place that the operator was told, and nowhere else (`TerminationWatch`).
- I1: the consumer is given every message that has its receipt.
- I8: the topic can be terminated, and the consumer is told in the end that nothing will come any more.
"""

import asyncio
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import Timeout, TopicTerminated
from magnetar.protocol.message_id import Position
from magnetar.protocol.topics import TopicName

from ..checkers.history import History, show
from ..checkers.termination_watch import TerminationWatch
from ..world.cluster import SimCluster
from .workload import Workload

PENDING_MAX = 30
BEGIN_MAX_S = 7.0
AGAIN_MAX_S = 1.5
LOOKS_MAX = 60
LOOK_MS = 500
ENDED = (magnetar.Result.TopicTerminated, magnetar.Result.AlreadyClosed)
"""What messages get that are published to a topic that was terminated."""


class Terminating(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.may_crash = random.random() < 0.4
        self._watch = TerminationWatch(history)
        cluster.on_record.append(self._watch.metadata_changed)
        self._pace_s = random.choice((0.01, 0.1))
        self._burst_max = random.choice((1, 5, 20))
        self._batched = random.random() < 0.5
        self._begun = False
        self._producer: Any = None
        self._number = 0
        self._pending: dict[bytes, None] = {}
        self._stored: dict[bytes, None] = {}
        self._given: dict[bytes, None] = {}
        self._last: dict[str, Position] = {}
        """Of each partition: the last entry that was given."""

    async def setup(self) -> None:
        self.connect()
        partitions = await self.again(partial(self.client.get_topic_partitions, self.topic))
        self._partitions = [TopicName.parse(one).path for one in partitions]
        self._consumer = await self.again(self._subscribe)
        self._producer = await self.again(self._create)

    async def _subscribe(self) -> Any:
        return await self.client.subscribe(
            self.topic, self.name, initial_position=magnetar.InitialPosition.Earliest, receiver_queue_size=100
        )

    async def _create(self) -> Any:
        try:
            return await self.client.create_producer(
                self.topic, send_timeout_millis=0, batching_enabled=self._batched, batching_max_messages=4
            )
        except TopicTerminated:
            self._check_begun("a producer")
            return None

    async def start(self) -> None:
        self.begin(self._publish(), "publish until the end")
        self.begin(self._consume(), "consume until the end")
        self.begin(self._terminate_sometime(), "terminate")

    def crash(self) -> None:
        super().crash()
        self._pending = {}

    # -- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        while not self.stopping and self._producer is not None:
            for _ in range(self.random.randint(1, self._burst_max)):
                if len(self._pending) < PENDING_MAX:
                    self._send()
            await asyncio.sleep(self.random.random() * 2 * self._pace_s * self._burst_max)

    def _send(self) -> None:
        payload = f"{self.name}:{self._number:06d}".encode()
        self._number += 1
        pending = self._pending
        pending[payload] = None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            pending.pop(payload, None)
            if result == magnetar.Result.Ok:
                self._stored[payload] = None
                if message_id.ledger_id() >= 0:  # else it is a duplicate
                    partition = self._partitions[max(message_id.partition(), 0)]
                    self._watch.has_receipt(partition, (message_id.ledger_id(), message_id.entry_id()))
            elif pending is self._pending:  # else of a process that was killed
                self.history.counts["published behind the end"] += 1
                if result not in ENDED:
                    self.history.violated(f"I8: {show(payload)} was refused permanently: {result}")
                self._check_begun(show(payload))

        self._producer.send_async(payload, answered)

    def _check_begun(self, what: str) -> None:
        if not self._begun:
            self.history.violated(f"I8: {what} is refused by {self.topic}, which nobody has terminated")

    # -- terminating -------------------------------------------------------------------------------------------------

    async def _terminate_sometime(self) -> None:
        await asyncio.sleep(self.random.random() * BEGIN_MAX_S)
        while not self.stopping:
            await self._terminate()
            await asyncio.sleep(self.random.random() * AGAIN_MAX_S)

    async def _terminate(self) -> None:
        """Once on each partition that a broker has loaded, or believes to have loaded."""
        self._begun = True
        for node in self.cluster.brokers:
            if not node.ready or node.process is None:
                continue
            for topic in list(node.service.topics.loaded.values()):
                if isinstance(topic, PersistentTopic) and topic.is_open and topic.name.path in self._partitions:
                    done, end = await self.ask(node, topic.terminate(), "terminate")
                    if done:
                        self._watch.was_told(topic.name.path, end)

    # -- consuming ---------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        while not self.stopping:
            await self._take()

    async def _take(self) -> bool:
        try:
            message = await self._consumer.receive(LOOK_MS)
        except Timeout:
            return False
        self._given[bytes(message.data())] = None
        partition, message_id = TopicName.parse(message.topic_name()).path, message.message_id()
        position = (message_id.ledger_id(), message_id.entry_id())
        self._last[partition] = max(position, self._last.get(partition, position))
        await self._consumer.acknowledge(message)
        return True

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Everything has its answer, all partitions are terminated, and all of them were read to the end."""
        self.stopping = True
        for task in self.tasks:
            await task
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        while len(self._watch.ends) < len(self._partitions):
            await self._terminate()
            await asyncio.sleep(0.1)
        looks = 0
        while not self._consumer.has_reached_end_of_topic() and looks < LOOKS_MAX:
            looks += not await self._take()
        if not self._consumer.has_reached_end_of_topic():
            raise AssertionError(f"I8: {self.name} is not told that {self.topic} has ended")
        if lost := [payload for payload in self._stored if payload not in self._given]:
            self.history.violated(f"I1: {', '.join(map(show, lost[:5]))} of {self.topic} have receipts, and are lost")
        for partition, end in self._watch.ends.items():
            last = self._last.get(partition, (-1, -1))
            if last < end or self._watch.is_behind(partition, last, end):
                self.history.violated(f"I13: {partition} ended at {end}, and was read to {last}")
        await self._consumer.close()
