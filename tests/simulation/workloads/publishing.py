"""A producer of keyed, numbered messages, in bursts: `Publishing`."""

import asyncio
from random import Random
from typing import Any

import magnetar
from magnetar.client.core.message_id import MessageId

from ..checkers.history import History, show
from ..world.cluster import SimCluster
from .workload import Workload


class Publishing(Workload):
    """See the module. It crashes only under a name of its own, since only that keeps an old and a new session apart."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.pending: dict[bytes, None] = {}
        self._number = 0
        self._burst_max = random.choice((1, 5, 30))
        self._pace_s = random.choice((0.02, 0.05)) * self._burst_max
        self._large_max_bytes = random.choice((20_000, 20_000, 20_000, 300_000))
        self._options = {
            "batching_enabled": random.random() < 0.5,
            "batching_max_messages": random.choice((3, 1000)),
            "batching_max_publish_delay_ms": random.choice((1, 10)),
            "send_timeout_millis": random.choice((0, 0, 3_000)),
            "max_pending_messages": 500,
        }
        self.may_crash = random.random() < 0.4
        if self.may_crash:
            self._options["producer_name"] = name

    async def setup(self) -> None:
        self.connect()
        self.producer = await self.again(self._create)

    async def _create(self) -> Any:
        return await self.client.create_producer(self.topic, **self._options)

    async def start(self) -> None:
        self.begin(self._publish(), "publish")

    def crash(self) -> None:
        super().crash()
        for payload in self.pending:
            self.history.failed[payload] = "its publisher crashed"
        self.history.counts["publishing cut off"] += len(self.pending)
        self.pending = {}

    async def _publish(self) -> None:
        while not self.stopping:
            for _ in range(self.random.randint(1, self._burst_max)):
                if len(self.pending) < 300:
                    self._send()
            await asyncio.sleep(self.random.random() * 2 * self._pace_s)

    def _send(self) -> None:
        key = f"key-{self.random.randrange(4)}"
        payload = f"{self.name}:{key}:{self._number:06d}".encode()
        if self.random.random() < 0.02:
            payload = b"." * self.random.randrange(self._large_max_bytes) + payload
        self._number += 1
        pending = self.pending
        pending[payload] = None
        self.history.sent[payload] = None

        def answered(result: magnetar.Result, message_id: MessageId) -> None:
            if pending is self.pending:  # not of a process that was killed
                self._answer(payload, result, message_id)

        self.producer.send_async(payload, answered, None, key)

    def _answer(self, payload: bytes, result: magnetar.Result, message_id: MessageId) -> None:
        self.pending.pop(payload, None)
        if result == magnetar.Result.Ok:
            partition = message_id.partition()
            topic = f"{self.producer.topic()}-partition-{partition}" if partition >= 0 else self.producer.topic()
            self.history.was_acknowledged(topic, payload, message_id)
        else:
            self.history.failed[payload] = str(result)
            self.history.counts[f"publishing failed: {result}"] += 1
            if result not in (magnetar.Result.Timeout, magnetar.Result.ProducerQueueIsFull):
                self.history.violated(f"I8: {show(payload)} was refused permanently: {result}")

    async def stop(self) -> None:
        """Everything outstanding is answered, and one more message can be published."""
        self.stopping = True
        for task in self.tasks:
            await task
        self._send()
        while self.pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        while not self.producer.is_connected():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
