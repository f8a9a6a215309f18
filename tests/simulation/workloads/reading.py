"""Readers: one that reads a partition along while everything happens, and the one that reads the logs at the end."""

import asyncio
from functools import partial
from random import Random
from typing import Any

import magnetar
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.errors import MagnetarError

from ..checkers.history import History, Log, LogMessage, Place, place_of
from ..world.cluster import SimCluster
from .workload import Workload


class LogReading(Workload):
    """Keeps every message of its topics by a subscription that acknowledges nothing, and reads them at the end."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topics: list[str]) -> None:
        super().__init__(cluster, history, random, name)
        self.topics = topics
        self.logs: dict[str, dict[str, Log]] = {}

    async def setup(self) -> None:
        self.connect()
        for topic in self.topics:
            consumer = await self.again(partial(self._keep, topic))
            await consumer.close()

    async def _keep(self, topic: str) -> Any:
        return await self.client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest)

    async def read(self) -> None:
        """Fills `logs`: topic → partition → messages."""
        for topic in self.topics:
            self.logs[topic] = {}
            for partition in await self.again(partial(self.client.get_topic_partitions, topic)):
                self.logs[topic][partition] = await self.again(partial(read_log, self.client, partition))


async def read_log(client: Any, partition: str) -> Log:
    """Everything that a partition holds. Raises what reading raises."""
    log: list[LogMessage] = []
    for message in await read_messages(client, partition):
        message_id = message.message_id()
        frame = (partition, message.producer_name(), message.sequence_id() - max(message_id.batch_index(), 0))
        log.append(LogMessage(message_id, bytes(message.data()), frame))
    return log


async def read_messages(client: Any, partition: str) -> list[Any]:
    """The same, as messages."""
    reader = await client.create_reader(partition, MessageId.earliest)
    messages: list[Any] = []
    try:
        while await reader.has_message_available():
            messages.append(await reader.read_next(20_000))
    finally:
        await reader.close()
    return messages


class Reading(Workload):
    """One reader on one partition, from its start; now and then it seeks to something that it has read.

    I4: between two seeks it is given what stands in the log, in order, nothing left out, nothing twice, whatever
    happens to brokers and connections. I1: in the end it is given everything up to the end (see `stop`).
    """

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self.partition = ""
        self.runs: list[tuple[Place | None, list[Place]]] = []
        """(what was sought, None for the start; what came then)."""
        self._seek_share = random.choice((0.0, 0.0, 0.01))
        self._queue_size = random.choice((1, 10, 1000))
        self.may_crash = random.random() < 0.3
        self._ids: list[MessageId] = []

    async def setup(self) -> None:
        self.connect()
        partitions = await self.again(partial(self.client.get_topic_partitions, self.topic))
        self.partition = self.partition or self.random.choice(partitions)
        self._reader = await self.again(self._create)
        self.runs.append((None, []))

    async def _create(self) -> Any:
        return await self.client.create_reader(self.partition, MessageId.earliest, receiver_queue_size=self._queue_size)

    async def start(self) -> None:
        self.begin(self._read_along(), "read")

    async def _read_along(self) -> None:
        while not self.stopping:
            try:
                if not await self._reader.has_message_available():
                    await asyncio.sleep(0.1)
                    continue
                await self._take(500)
            except (MagnetarError, TimeoutError):
                await asyncio.sleep(0.1)
            if self._ids and self.random.random() < self._seek_share:
                self.history.counts["seeks"] += 1
                target = self.random.choice(self._ids[-200:])
                await self.again(partial(self._reader.seek, target))
                self.runs.append((place_of(self.partition, target), []))

    async def _take(self, wait_ms: int) -> None:
        message = await self._reader.read_next(wait_ms)
        message_id = message.message_id()
        self._ids.append(message_id)
        self.runs[-1][1].append(place_of(self.partition, message_id))

    async def stop(self) -> None:
        """Read until the reader says once that it is at the end. By then no broker serves what it has lost."""
        self.stopping = True
        for task in self.tasks:
            await task
        while await self.again(self._reader.has_message_available):
            await self._take(20_000)
        await self._reader.close()

    def check(self, log: Log) -> None:
        """Compare with what the log holds once everything is quiet."""
        places = [place_of(self.partition, message.message_id) for message in log]
        for sought, taken in self.runs:
            self.history.check_reading(self.partition, self.name, taken, log)
            if sought is None or sought in places:
                first = 0 if sought is None else places.index(sought) + 1
                if taken and taken[:1] != places[first : first + 1]:
                    due = places[first : first + 1] or "nothing"
                    self.history.violated(f"I4: {self.name} behind {sought} was given {taken[0]}, not {due}")
        for sought, taken in self.runs[-1:]:
            last = taken[-1] if taken else sought
            if last is None or last in places:
                found = 0 if last is None else places.index(last) + 1
                self.history.check_end(self.name, last, log[found:])
