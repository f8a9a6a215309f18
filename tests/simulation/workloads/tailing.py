"""Readers that begin at the end of a topic, or at a time to come, and calls that are cancelled. `Tailing`.

- I4: a reader is given what was sent after it began, in order, nothing left out, nothing twice: also when its topic
  moves before the first message. A producer may send a message again, which is then stored twice: nothing deduplicates.
- I7: what a cancelled call had taken is given to a later call of the same consumer, in order. No new subscription is
  needed for that.
- I8: a reader that asks whether there is more gets an answer, and reads to the end.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import MagnetarError

from ..checkers.history import History
from ..world.cluster import SimCluster
from .workload import Workload

HOUR_MS = 3_600_000
READERS_MAX = 6
WAIT_MS = 20_000
GIVEN_LIMIT_S = 30.0


@dataclass
class Tail:
    """One reader: the first number that is sent after it began, and what it was given."""

    name: str
    reader: Any
    first: int
    given: list[int] = field(default_factory=list)
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """Where each of these stands."""

    def take(self, message: Any) -> None:
        """It was given this message."""
        self.given.append(int(message.data()))
        ledger_id, entry_id, index = message.message_id()[:3]
        self.places.append((ledger_id, entry_id, index))


class Tailing(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self._pause_max_s = random.choice((0.05, 0.5, 3.0))
        self._queue_size = random.choice((1, 10, 1000))
        self._next = 0
        """The number of the next message that is sent."""
        self._stored: dict[int, None] = {}
        """Numbers with a receipt, in this order."""
        self._order = asyncio.Lock()
        """Held from the draw of a number until its message is sent."""
        self._tails: list[Tail] = []
        self._given: dict[int, None] = {}
        """What the consumer was given, in the order of the first time."""

    async def setup(self) -> None:
        self.connect()
        self._reading_client = self.cluster.client(self.process, operation_timeout_seconds=10)
        partitions = await self.again(partial(self.client.get_topic_partitions, self.topic))
        self.topic = partitions[0]
        await self.again(partial(self.keep_ledgers, self.topic))
        self._consumer = await self.again(self._subscribe)
        self._producer = await self.again(
            partial(self.client.create_producer, self.topic, send_timeout_millis=0, batching_max_messages=5)
        )
        await self._begin_tail()

    async def _subscribe(self) -> Any:
        policy = magnetar.ConsumerBatchReceivePolicy(50, -1, 3_000)
        return await self.client.subscribe(
            self.topic,
            self.name,
            initial_position=magnetar.InitialPosition.Earliest,
            receiver_queue_size=self._queue_size,
            batch_receive_policy=policy,
        )

    async def close(self) -> None:
        await self._reading_client.close()
        await super().close()

    async def _begin_tail(self) -> None:
        if self.random.random() < 0.5:
            await self._make_tail()
            return
        async with self._order:
            await self._make_tail()
            # The connection ends before anything has come, and a message is stored before there is another one.
            for consumer in self._tails[-1].reader._reader.consumer.consumers:
                if (connection := consumer.registration.connection) is not None:
                    connection.close()
                    self.history.counts["readers cut off before their first message"] += 1
            await self._send_next(is_cut_short=False)

    async def _make_tail(self) -> None:
        seeks = self.random.random() < 0.4
        start = MessageId.earliest if seeks else MessageId.latest
        options = {"receiver_queue_size": self._queue_size}
        reader = await self.again(partial(self._reading_client.create_reader, self.topic, start, **options))
        if seeks:
            ahead_ms = self.process.env.clock.now_ms() + HOUR_MS
            await self.again(partial(reader.seek, ahead_ms))
            self.history.counts["seeks to a time to come"] += 1
        self._tails.append(Tail(f"{self.name}'s reader {len(self._tails)}", reader, self._next))

    async def start(self) -> None:
        self.begin(self._publish(), "publish")
        self.begin(self._consume(), "consume")
        self.begin(self._read(), "read")

    async def _pause(self) -> None:
        await asyncio.sleep(self.random.uniform(0.0, self._pause_max_s))

    async def _cut_short(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """What a call returns, None if it was cancelled before."""
        task = asyncio.ensure_future(call())
        await asyncio.sleep(self.random.choice((0.0, 0.001, 0.05, 0.5)))
        task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            self.history.counts["cancelled calls"] += 1
            return None

    async def _publish(self) -> None:
        while not self.stopping:
            await self._pause()
            for _ in range(self.random.randint(1, 5)):
                async with self._order:
                    await self._send_next(is_cut_short=self.random.random() < 0.2)

    async def _send_next(self, *, is_cut_short: bool) -> None:
        number, self._next = self._next, self._next + 1
        send = partial(self._send, number)
        try:
            await (self._cut_short(send) if is_cut_short else send())
        except (MagnetarError, TimeoutError):
            self.history.counts["tailing sends failed"] += 1

    async def _send(self, number: int) -> None:
        await self._producer.send(b"%d" % number)
        self._stored[number] = None

    async def _consume(self) -> None:
        calls: list[Callable[[], Awaitable[Any]]] = [
            self._consumer.batch_receive,
            self._consumer.receive,
            partial(self._consumer.receive_many, 7),
        ]
        while not self.stopping:
            try:
                got = await self._cut_short(self.random.choice(calls))
            except (MagnetarError, TimeoutError):
                continue
            if got is not None:
                await self._took([got] if isinstance(got, magnetar.Message) else [*got])

    async def _took(self, messages: list[Any]) -> None:
        for message in messages:
            number = int(message.data())
            if number not in self._given:
                missing = [one for one in self._stored if one < number and one not in self._given]
                if missing:
                    self.history.violated(f"I7: {self.name} is given {number} before {missing[:3]}")
                self._given[number] = None
        await self._consumer.acknowledge_many(messages)

    async def _read(self) -> None:
        while not self.stopping:
            tail = self.random.choice(self._tails)
            try:
                message = await self._cut_short(tail.reader.read_next)
            except (MagnetarError, TimeoutError):
                continue
            if message is not None:
                tail.take(message)
            elif len(self._tails) < READERS_MAX and self.random.random() < 0.05:
                await self._begin_tail()

    async def stop(self) -> None:
        self.stopping = True
        for task in self.tasks:
            await task
        await self._producer.flush()
        for tail in self._tails:
            while await self.again(tail.reader.has_message_available):
                tail.take(await tail.reader.read_next(WAIT_MS))
            self._check(tail)
            await tail.reader.close()
        try:
            async with asyncio.timeout(GIVEN_LIMIT_S):
                while not self._given.keys() >= self._stored.keys():
                    await self._took([await self._consumer.receive()])
        except TimeoutError:
            missing = [number for number in self._stored if number not in self._given]
            self.history.violated(f"I7: {self.name} is not given {missing[:3]}, {len(missing)} in all")
        self.history.counts["tailed messages"] += len(self._stored)

    def _check(self, tail: Tail) -> None:
        if tail.places != sorted({*tail.places}):
            self.history.violated(f"I4: {tail.name} is given {tail.places}, out of order or twice")
        # A message that its producer sent again may stand there twice: the first one counts.
        firsts = [*dict.fromkeys(number for number in tail.given if number >= tail.first)]
        if firsts != sorted(firsts):
            self.history.violated(f"I4: {tail.name} is given {firsts}, not in the order of sending")
        missing = [number for number in self._stored if number >= tail.first and number not in tail.given]
        if missing:
            self.history.violated(f"I4: {tail.name} began before {tail.first} and is not given {missing[:3]}")
