"""Readers that subscribe again the way other clients do, beside ours: C++ (and Python upon it), and Go.

When its broker goes away, a reader of ours names the last entry that came. A C++ reader empties its queue and names the
message before the queue's head; a Go reader does the same, and never sends a batch index. Each drops what lies up to
the id that it named. What they are given is right only if the broker begins with the entry of that id.

I4: no message is left out, and none comes before one that the reader has yet to be given. A message may come twice:
in front of an entry without batch these clients name the entry before, and take a whole batch there for wanted.
"""

import asyncio
from collections import deque
from functools import partial
from random import Random
from typing import Any

from magnetar.client.core.connection import ClientConnection
from magnetar.protocol.commands import ack, encode, flow
from magnetar.protocol.entries import is_batch, parse_metadata
from magnetar.protocol.errors import ConnectionClosed
from magnetar.protocol.message_id import Position, WireMessageId, position_of
from magnetar.protocol.pulsar_pb2 import (
    CommandCloseConsumer,
    CommandGetLastMessageId,
    CommandGetLastMessageIdResponse,
    CommandSubscribe,
    CommandSuccess,
)
from magnetar.protocol.topics import TopicName

from ..checkers.history import History, Log, Place, place_of
from ..world.cluster import SimCluster
from .workload import Workload

EARLIEST = (-1, -1, -1)
REQUEST_TIMEOUT_S = 10.0
CPP, GO = "C++", "Go"

Where = tuple[int, int, int]
"""Ledger, entry, index in its batch (−1 for none)."""


def before(where: Where) -> Where:
    """The id that both clients take for that of the message before this one."""
    ledger_id, entry_id, index = where
    return (ledger_id, entry_id, index - 1) if index >= 0 else (ledger_id, entry_id - 1, -1)


def dropped(kind: str, start: Where, where: Where) -> bool:
    """Whether the client takes a message for one that lies up to its start."""
    if kind == GO:
        return where <= start
    if where[2] < 0:
        return where[0] == start[0] and where[1] <= start[1]
    return where[:2] == start[:2] and where[2] <= start[2]


class _Subscribed:
    """A reader, as its connection knows it: its endpoint, and what the connection takes for its registration."""

    def __init__(self, reader: "ForeignReading") -> None:
        self.topic = TopicName.parse(reader.partition)
        self.registration = reader
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class ForeignReading(Workload):
    """One reader on one partition, from its start."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.partition = ""
        self.taken: list[Where] = []
        self._kind = random.choice((CPP, GO))
        self._queue_size = random.choice((2, 10, 1000))
        self._pace_s = random.choice((0.0, 0.05, 0.2))
        self._drop_share = random.choice((0.0, 0.02, 0.1))
        """How often it loses its connection by itself, for each time that it looks into its queue."""
        self._queue: deque[Where] = deque()
        self._arrived = asyncio.Event()
        self._start: Where = EARLIEST
        self._credit = 0
        self._consumer_id = 0
        self._connection: ClientConnection | None = None
        self._subscribing: asyncio.Task[None] | None = None

    async def setup(self) -> None:
        self.connect()
        partitions = await self.again(partial(self.client.get_topic_partitions, self.topic))
        self.partition = self.random.choice(partitions)
        await self.again(self._subscribe)

    async def start(self) -> None:
        self.begin(self._read_along(), "read")

    # -- subscribing -------------------------------------------------------------------------------------------------

    async def _subscribe(self) -> None:
        core = self.client._running_core()
        connection = await core.lookup.connection(self.partition)
        self._consumer_id, request_id = core.next_id(), connection.next_request_id()
        if self._queue:
            self._start = before(self._queue[0])
        elif self.taken:
            self._start = self.taken[-1]
        self._queue.clear()
        ledger_id, entry_id, index = self._start
        start = WireMessageId(ledger_id, entry_id, batch_index=index if self._kind == CPP else -1)
        command = CommandSubscribe(
            topic=self.partition,
            subscription=self.name,
            subType=CommandSubscribe.Exclusive,
            consumer_id=self._consumer_id,
            request_id=request_id,
            durable=False,
            start_message_id=start.to_data(),
        )
        connection.consumers[self._consumer_id] = _Subscribed(self)
        try:
            await connection.request(command, request_id, REQUEST_TIMEOUT_S, CommandSuccess)
        except BaseException:
            if connection.consumers.pop(self._consumer_id, None) is not None:
                leave = CommandCloseConsumer(consumer_id=self._consumer_id, request_id=connection.next_request_id())
                connection.write(encode(leave))
            raise
        if self._consumer_id not in connection.consumers:
            raise ConnectionClosed("the broker closed the reader as soon as it had subscribed")
        self._connection, self._credit = connection, 0
        connection.write(flow(self._consumer_id, self._queue_size))

    # -- what the connection tells -----------------------------------------------------------------------------------

    def message(self, command: Any, entry: bytes) -> None:
        if command.consumer_id != self._consumer_id:
            return
        ledger_id, entry_id = position_of(command.message_id)
        metadata = parse_metadata(entry)
        indexes = range(metadata.num_messages_in_batch) if is_batch(metadata) else (-1,)
        for index in indexes:
            where = (ledger_id, entry_id, index)
            if dropped(self._kind, self._start, where):
                self._used(1)
            else:
                self._queue.append(where)
                self._arrived.set()

    def lost(self, connection: ClientConnection) -> None:
        """The connection has ended, or the broker closed the reader on it."""
        if connection is self._connection:
            self._connection = None
            if self._subscribing is None or self._subscribing.done():
                self._subscribing = self.process.spawn(self._come_back(), "subscribe again")

    async def _come_back(self) -> None:
        while self._connection is None:
            self.history.counts[f"{self._kind} reader subscribes again"] += 1
            await self.again(self._subscribe)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _used(self, messages: int) -> None:
        self._credit += messages
        if self._connection is not None and self._credit >= max(1, self._queue_size // 2):
            self._connection.write(flow(self._consumer_id, self._credit))
            self._credit = 0

    def _take(self) -> None:
        where = self._queue.popleft()
        self.taken.append(where)
        if self._connection is not None and (not self._queue or self._queue[0][:2] != where[:2]):
            position: Position = where[:2]
            self._connection.write(ack(self._consumer_id, [position], cumulative=True))
        self._used(1)

    async def _read_along(self) -> None:
        while not self.stopping:
            while self._queue and not self.stopping:
                self._take()
                if self._pace_s:
                    await asyncio.sleep(self._pace_s)
                self._perhaps_drop()
            await asyncio.sleep(0.05)

    def _perhaps_drop(self) -> None:
        if self._connection is not None and self.random.random() < self._drop_share:
            self._connection.close()

    async def _last(self) -> Position:
        connection = self._connection
        if connection is None:
            raise ConnectionClosed("the reader is not subscribed now")
        request_id = connection.next_request_id()
        command = CommandGetLastMessageId(consumer_id=self._consumer_id, request_id=request_id)
        answer = await connection.request(command, request_id, REQUEST_TIMEOUT_S, CommandGetLastMessageIdResponse)
        return position_of(answer.last_message_id)

    async def stop(self) -> None:
        """Read to the end, which is asked for once. By then no broker serves what it has lost."""
        self.stopping = True
        for task in self.tasks:
            await task
        await self._read_to(await self.again(self._last))

    async def _read_to(self, last: Position) -> None:
        while last >= (0, 0):
            while self._queue:
                self._take()
            if self.taken and self.taken[-1][:2] >= last:
                return
            self._arrived.clear()
            await self._arrived.wait()

    def check(self, log: Log) -> None:
        """Compare with what the log holds once everything is quiet."""
        places = {place_of(self.partition, message.message_id): number for number, message in enumerate(log)}
        due = 0
        for number, where in enumerate(self.taken):
            place: Place = (self.partition, *where)
            found = places.get(place)
            if found is None:
                self.history.violated(f"I1: {self.name} was given {place}, which is not in the log")
                return
            if found > due:
                behind = self.taken[number - 1] if number else "its start"
                self.history.violated(
                    f"I4: {self.name} ({self._kind}) was given {where} after {behind}, {found - due} left out"
                )
                return
            due = max(due, found + 1)
        self.history.check_end(self.name, self.taken[-1:], log[due:])
