"""A client whose broker falls silent, before any other fault: `CutOff`.

The broker that owns its topic is cut off all others, in both directions or in one, or off the client alone; or its
process stands still, for less than a session. Each takes a while. A producer sends all the time, and a consumer in
another client gets what it sent.

- I8: while the broker is cut off, every message is acknowledged within `gap_max_s` and delivered within
  `delivery_max_s`. These are bounds of the client: the coordinator needs a session's time-out of it to move the topic.
- I8: where the broker still owns the topic, the client stays, and afterwards goes on. It does not connect again, unless
  the broker has ended the connection. A broker does so behind two keep-alive intervals in which it heard nothing.
- I4: the first occurrences of messages are delivered in the order of sending.
- I1: each message with a receipt is delivered.
- I5: in half of the runs brokers deduplicate. Then the log has each message once, although the client sent again what
  had no receipt. In the others it has a message at most as often as the client sent it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.connection import ClientConnection
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.topics import TopicName

from ..checkers.history import Frame, History, Log
from ..world.chance import drawn_apart
from ..world.cluster import Node, SimCluster
from .reading import read_log
from .workload import ANSWER_LIMIT_S, Workload

MOVE_S = 3.5
"""Beyond the session's time-out: the question about the owner, and the recovery of the topic."""
DELIVERY_S = 3.0
"""More for a consumer, which is in no hurry at first."""
KEPT_MIN_S, KEPT_MAX_S = 0.5, 2.0
LOST_S = 12.0
PACE_S = 0.05
SUBSCRIPTION = "all"
KEEPER = "keeper"
"""Acknowledges nothing, so that the log is there at the end."""
TICK_S = 0.05


class CutOff(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        cluster.settings = replace(
            cluster.settings,
            allow_auto_topic_creation_type="non-partitioned",
            default_num_partitions=1,
            deduplication_enabled=drawn_apart(random).random() < 0.5,
        )
        history.deduplicates = cluster.settings.deduplication_enabled
        self.topic = TopicName.parse(topic)
        self.gap_max_s = cluster.settings.session_timeout_s + MOVE_S
        self.delivery_max_s = self.gap_max_s + DELIVERY_S
        self._receiving: AsyncClient
        self._sent: dict[bytes, float] = {}
        self._acked: dict[bytes, float] = {}
        self._delivered: dict[bytes, None] = {}
        self._ended = False

    async def setup(self) -> None:
        self.connect()
        self._receiving = self.cluster.client(self.process, operation_timeout_seconds=10)
        self._producer = await self.again(self._create)
        self._consumer = await self.again(self._subscribe)
        keeper = await self.again(partial(self._receiving.subscribe, self.topic.full, KEEPER))
        await keeper.close()

    async def _create(self) -> Any:
        return await self.client.create_producer(self.topic.full, send_timeout_millis=0, max_pending_messages=10_000)

    async def _subscribe(self) -> Any:
        return await self._receiving.subscribe(self.topic.full, SUBSCRIPTION)

    async def start(self) -> None:
        """The whole of it, where nothing else is wrong yet."""
        self.begin(self._send(), "send")
        self.begin(self._receive(), "receive")
        if self.cluster.calm:
            await asyncio.sleep(1.0)
            owner = self._owner()
            if owner is not None:
                self.history.counts["cut-off"] += 1
                await (self._lose(owner) if self.random.random() < 0.5 else self._keep(owner))

    def _owner(self) -> Node | None:
        full = self.topic.full
        found = [node for node in self.cluster.brokers if node.ready and full in node.service.topics.loaded]
        return found[0] if len(found) == 1 else None

    # -- faults ------------------------------------------------------------------------------------------------------

    async def _lose(self, owner: Node) -> None:
        """The owner is cut off all others."""
        others = [node.name for node in self.cluster.nodes if node is not owner]
        others += [process.name for process in self.cluster.clients]
        out, back = ([(owner.name, other) for other in others], [(other, owner.name) for other in others])
        cuts = self.random.choice((out, back, out + back))
        for cut in cuts:
            self.cluster.network.partition(*cut)
        try:
            await self._watch_for(LOST_S, self._check_progress)
        finally:
            for cut in cuts:
                self.cluster.network.heal(*cut)

    async def _keep(self, owner: Node) -> None:
        """The owner stands still, or cannot be reached from here, and stays the owner."""
        connection = self._connection()
        seconds = KEPT_MIN_S + (KEPT_MAX_S - KEPT_MIN_S) * self.random.random()
        process = owner.process
        assert process is not None
        if self.random.random() < 0.5:
            process.pause()
            undo: Callable[[], None] = process.resume
        else:
            cut = self.random.choice(((owner.name, self.process.name), (self.process.name, owner.name)))
            self.cluster.network.partition(*cut)
            seconds += KEPT_MAX_S

            def undo() -> None:
                self.cluster.network.heal(*cut)

        try:
            await asyncio.sleep(seconds)
        finally:
            undo()
        await asyncio.sleep(1.0)
        still = self._owner()
        if connection in self.cluster.left and still is owner and owner.process is process:
            self.history.violated(f"I8: {self.name} left {owner.name}, which still owns its topic")

    def _connection(self) -> ClientConnection | None:
        found = self.client._running_core().pool._connections.values()
        return next((one for one in found if one.producers and not one.closed), None)

    async def _watch_for(self, seconds: float, check: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and check():  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(TICK_S)

    def _check_progress(self) -> bool:
        """Whether everything is in time so far."""
        now = asyncio.get_running_loop().time()
        waiting = next((at for payload, at in self._sent.items() if payload not in self._acked), now)
        if now - waiting > self.gap_max_s:
            self.history.violated(f"I8: {self.name} waits for a receipt for over {self.gap_max_s:.1f} s")
            return False
        coming = next((at for payload, at in self._acked.items() if payload not in self._delivered), now)
        if now - coming > self.delivery_max_s:
            self.history.violated(f"I8: {self.name} waits for a message for over {self.delivery_max_s:.1f} s")
            return False
        return True

    # -- messages ----------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.stopping:
            payload = b"%06d" % len(self._sent)
            self._sent[payload] = loop.time()

            def answered(result: magnetar.Result, message_id: MessageId, payload: bytes = payload) -> None:
                if result == magnetar.Result.Ok:
                    self._acked[payload] = loop.time()
                else:
                    self.history.violated(f"I8: {self.name} failed to send: {result}")

            self._producer.send_async(payload, answered)
            await asyncio.sleep(PACE_S * 2 * self.random.random())

    async def _receive(self) -> None:
        latest = b""
        while not self._ended:
            try:
                message = await self._consumer.receive(500)
            except magnetar.Timeout:
                continue
            payload = message.data()
            if payload not in self._delivered:
                self._delivered[payload] = None
                if payload < latest:
                    self.history.violated(f"I4: {self.name} is given {payload!r} first after {latest!r}")
                latest = payload
            self.history.will_acknowledge(message.topic_name(), SUBSCRIPTION, message.message_id())
            await self._consumer.acknowledge(message)

    async def stop(self) -> None:
        self.stopping = True
        loop = asyncio.get_running_loop()
        end = loop.time() + ANSWER_LIMIT_S
        while len(self._acked) < len(self._sent) or any(one not in self._delivered for one in self._acked):
            if loop.time() > end - 1:
                missing = [one for one in self._acked if one not in self._delivered]
                break_of = "I1" if missing and len(self._acked) == len(self._sent) else "I8"
                self.history.violated(f"{break_of}: {self.name} misses {missing[:3]}, or receipts")
                break
            await asyncio.sleep(TICK_S)
        self._ended = True
        for task in self.tasks:
            await task
        self.check_log(await self.again(partial(read_log, self._receiving, self.topic.full)))

    def check_log(self, log: Log) -> None:
        """I5: what the log has more than once."""
        times: dict[bytes, int] = {}
        frames: dict[bytes, Frame] = {}
        for message in log:
            times[message.payload] = times.get(message.payload, 0) + 1
            frames[message.payload] = message.frame
        for payload, count in times.items():
            sent = 1 if self.cluster.settings.deduplication_enabled else self.history.frames[frames[payload]]
            self.history.counts["sent again"] += self.history.frames[frames[payload]] > 1
            if count > sent:
                self.history.violated(f"I5: {payload!r} is {count} times in the log of {self.topic.full}, not {sent}")
                return

    async def close(self) -> None:
        await self.client.close()
        await self._receiving.close()
