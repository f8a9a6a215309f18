"""An application that follows a topic in batches of rows, as `magnetar.data.follow` gives them: `Following`.

A publisher sends batches and messages in chunks, also with others in between. The application has one reader in a
process of its own. That process is killed now and then, and another one goes on behind what the application got. The
application itself dies, too. Then it begins with what it had stored. It finishes a batch when its rows, and with them
the positions, are stored. Some applications finish it before: then their positions ask for what is acknowledged.

- I1: in the end the application has stored each message that the log has. Never is it told that rows are gone.
- I4: it gets the rows of a partition in the order of the log.
- I5: an application that begins at its stored positions has each message of the log once.
- I7: one that begins where the subscription stands is left out no message that it has not stored.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa

import magnetar
from magnetar.bulk.decryption import NO_KEYS
from magnetar.bulk.typed.choice import row_shape
from magnetar.client.consuming.entry_feed import EntryFeed
from magnetar.client.consuming.message import ReceivedEntry
from magnetar.client.core.configuration import InitialPosition
from magnetar.client.core.message_id import MessageId
from magnetar.client.producing.partition_producer import EntryEncoder
from magnetar.data.entry_batches import FollowOrder
from magnetar.data.followed_feed import FollowedFeed
from magnetar.data.positions import FollowProgress, Marks, RowPlace, parse_positions
from magnetar.protocol.errors import ChecksumError, MagnetarError, NoSuchEntry, is_retriable
from magnetar.protocol.message_id import Position

from ..checkers.history import History
from ..world.cluster import SimCluster
from ..world.process import Process
from .chunked import SmallEntries
from .reading import read_log
from .viewing import PartEncoder
from .workload import Workload

SUBSCRIPTION = "followers"
PENDING_MAX = 20
HALVES_MAX = 3
LOOK_S = 0.02
KILL_SHARE = 0.03
DEATH_SHARE = 0.03
"""Of the batches, before whose end the reader is killed, or the application dies."""
LATE_S = 0.2
"""So long after a batch the application dies: what it has said may arrive."""
ALL_LIMIT_S = 40.0


class Row(NamedTuple):
    """One message: where it stands, and its payload."""

    ledger: int
    entry: int
    batch_index: int
    payload: bytes


class ReaderLost(Exception):
    """The reader's process is gone, or it cannot go on: another one can."""


@dataclass
class Reader:
    """A reader, in its process."""

    process: Process
    feed: FollowedFeed


class Following(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        self.topic = topic
        self._stores_positions = random.random() < 0.6
        self._finishes_first = self._stores_positions and random.random() < 0.4
        """Whether it says that it has finished a batch before it stores it.

        Not of the first rows of a partition: behind the place of an empty ledger, which is gone, nobody knows what lay.
        """
        self._chunks_share = random.choice((0.0, 0.3, 0.7))
        self._batch_rows = random.choice((1, 3, 10, None))
        self._queue_size = random.choice((1, 10, 1000))
        self._pause_max_s = random.choice((0.0, 0.1, 1.0))
        self._finishes_share = random.choice((0.2, 1.0))
        """Of the batches after which it says that it has finished."""
        self._number = 0
        self._pending = 0
        self._partitions: list[str] = []
        self._readers = 0
        self._reader: Reader | None = None
        self._positions: dict[str, str] = {}
        """What it has stored together with the rows."""
        self._rows: dict[str, list[Row]] = {}
        """By partition: what it has stored."""
        self._seen: dict[str, dict[Row, None]] = {}
        """The same, each once."""
        self._lives: dict[str, list[int]] = {}
        """By partition: how many rows it had stored when it began."""
        self._entries: dict[tuple[str, Position], ReceivedEntry] = {}
        """What readers took, by partition and place."""

    def watch(self, stack: ExitStack) -> None:
        """Which entries its readers take. Such an entry may be acknowledged when the application has it all."""
        take, receive = EntryFeed.take, EntryFeed.receive

        def taking(feed: EntryFeed) -> ReceivedEntry | None:
            entry = take(feed)
            if entry is not None:
                self._entries[entry.topic, entry.position] = entry
            return entry

        async def receiving(feed: EntryFeed) -> ReceivedEntry:
            entry = await receive(feed)
            self._entries[entry.topic, entry.position] = entry
            return entry

        stack.enter_context(patch.object(EntryFeed, "take", taking))
        stack.enter_context(patch.object(EntryFeed, "receive", receiving))

    async def setup(self) -> None:
        self.connect()
        self._partitions = await self.again(partial(self.client.get_topic_partitions, self.topic))
        await self.again(partial(self.keep_ledgers, self.topic))
        await self.again(self._make_subscription)
        self._rows = {name: [] for name in self._partitions}
        self._seen = {name: {} for name in self._partitions}
        self._lives = {name: [] for name in self._partitions}
        self._producers = [
            await self.again(partial(self._create, encoder)) for encoder in (None, SmallEntries, PartEncoder)
        ]

    async def _make_subscription(self) -> None:
        """Before anything is sent: all of it is wanted."""
        kind, first = magnetar.ConsumerType.Failover, InitialPosition.Earliest
        consumer = await self.client.subscribe(self.topic, SUBSCRIPTION, kind, initial_position=first)
        await consumer.close()

    async def _create(self, encoder: type[EntryEncoder] | None) -> Any:
        options: dict[str, Any] = {"batching_max_messages": 4}
        if encoder is not None:
            options = {"batching_enabled": False, "chunking_enabled": encoder is SmallEntries}
        producer = await self.client.create_producer(self.topic, send_timeout_millis=0, **options)
        if encoder is not None:
            for one in producer._producer.producers:
                one._encoder = encoder(one._encoder)
        return producer

    async def start(self) -> None:
        self.begin(self._publish(), "publish")
        self.begin(self._live(), "follow")

    # -- publishing --------------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        ordinary, chunking, halving = self._producers
        halves: list[str] = []
        """Messages in two chunks, of which the first one is sent."""
        while not self.stopping:
            await asyncio.sleep(self.random.random() * 0.3)
            if self._pending >= PENDING_MAX:
                continue
            if self.random.random() < self._chunks_share:
                self._send(chunking, self._next_payload(self.random.choice((100, 300))))
            if len(halves) < HALVES_MAX and self.random.random() < self._chunks_share:
                halves.append(f"u{self._number}")
                self._number += 1
                self._send_half(halving, halves[-1], 0)
            elif halves and self.random.random() < 0.5:
                self._send_half(halving, halves.pop(self.random.randrange(len(halves))), 1)
            for _ in range(self.random.randint(0, 6)):
                self._send(ordinary, self._next_payload(10))
        for half in halves:
            self._send_half(halving, half, 1)

    def _next_payload(self, size: int) -> bytes:
        self._number += 1
        return (b"%06d " % self._number) * (size // 7 + 1)

    def _send_half(self, producer: Any, uuid: str, number: int) -> None:
        self._send(producer, f"{uuid} {number}".encode(), partition_key=uuid)

    def _send(self, producer: Any, payload: bytes, **options: str) -> None:
        self._pending += 1

        def answered(result: magnetar.Result, message_id: magnetar.MessageId) -> None:
            self._pending -= 1
            if result != magnetar.Result.Ok:
                self.history.violated(f"I8: {payload[:7]!r} was refused permanently: {result}")

        producer.send_async(payload, answered, **options)

    # -- the application -----------------------------------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            try:
                await self._iterate()
            except (ReaderLost, MagnetarError, TimeoutError) as error:
                if isinstance(error, NoSuchEntry):
                    self.history.violated(f"I1: {self.name} is told that rows are gone: {error}")
                self.history.counts[f"following ended: {type(error).__name__}"] += 1
                await asyncio.sleep(0.5)
            finally:
                self._kill_reader()

    async def _iterate(self) -> None:
        """One life of the application, from its first reader to its death."""
        behind = dict(parse_positions(self._positions)) if self._stores_positions else {}
        order = self._order({name: behind[name] for name in self._partitions if name in behind})
        begins = await self._open(order)
        for name, rows in self._rows.items():
            self._lives[name].append(len(rows))
        progress = FollowProgress(begins, moves_by_itself=not self._stores_positions)
        order = replace(order, is_start=False)
        self._positions = self._positions or progress.positions()
        self.history.counts["applications that follow"] += 1
        while True:
            try:
                marks, rows = await self._next()
            except (ReaderLost, MagnetarError) as error:
                if isinstance(error, MagnetarError) and not (is_retriable(error) or isinstance(error, ChecksumError)):
                    raise
                order = await self._replace_reader(order, progress)
                continue
            if not self.stopping:
                await asyncio.sleep(self.random.random() * self._pause_max_s)
            moved = progress.passed(marks, has_rows=bool(rows))
            if self._finishes_first and all(self._rows[name] for name in marks):
                self._settle(rows)
                self._finish(progress.finish())
            if self.random.random() < DEATH_SHARE:
                self.history.counts["applications that die with a batch"] += 1
                await asyncio.sleep(self.random.random() * LATE_S)
                return
            self._store(rows, progress)
            self._settle(rows)
            if moved or self.random.random() < self._finishes_share:
                self._finish({**moved, **progress.finish()})
            if self.random.random() < KILL_SHARE:
                self.history.counts["readers killed"] += 1
                self._kill_reader()

    def _order(self, behind: Marks) -> FollowOrder:
        return FollowOrder(
            topics=tuple(self._partitions),
            subscription=SUBSCRIPTION,
            shape=row_shape(("value", "__topic", "__messageId")),
            keys=NO_KEYS,
            batch_rows=self._batch_rows,
            batch_wait_s=0.05,
            receiver_queue_size=self._queue_size,
            initial_position=InitialPosition.Earliest,
            behind=behind,
            is_start=True,
            service_url=None,
            admin_url=None,
        )

    def _store(self, rows: list[tuple[str, Row]], progress: FollowProgress) -> None:
        """In one transaction."""
        for name, row in rows:
            self._rows[name].append(row)
            self._seen[name][row] = None
        self._positions = progress.positions()

    def _settle(self, rows: list[tuple[str, Row]]) -> None:
        """Entries that the application has with all that they carry may be acknowledged."""
        for name, row in rows:
            entry = self._entries[name, (row.ledger, row.entry)]
            if row.batch_index < 0 or row.batch_index == entry.count - 1:
                for part in entry.chunks or (entry,):
                    self.history.given_up[name, SUBSCRIPTION, part.position] = None

    def _finish(self, marks: Marks) -> None:
        assert self._reader is not None
        reader = self._reader
        if reader.process.alive:
            reader.process.spawn(_do(partial(reader.feed.acknowledge, marks)), "acknowledge")

    # -- readers -------------------------------------------------------------------------------------------------------

    async def _open(self, order: FollowOrder) -> dict[str, RowPlace]:
        self._readers += 1
        process = self.cluster.client_process(f"{self.name}-reader-{self._readers}")
        client = await process.spawn(
            _do(partial(self.cluster.client, process, operation_timeout_seconds=10)), "connect"
        )
        feed = FollowedFeed(process.env, client, process.name, order)
        self._reader = Reader(process, feed)
        return await self._call(feed.open(), "open")

    async def _replace_reader(self, order: FollowOrder, progress: FollowProgress) -> FollowOrder:
        """Another reader goes on behind what came here. What is finished is said again."""
        self._kill_reader()
        order = replace(order, behind={**order.behind, **progress.given})
        while True:
            try:
                await self._open(order)
                break
            except (ReaderLost, MagnetarError, TimeoutError) as error:
                if isinstance(error, MagnetarError) and not is_retriable(error):
                    raise
                self._kill_reader()
                await asyncio.sleep(0.2)
        self._finish(progress.finished_of(frozenset(self._partitions)))
        return order

    async def _next(self) -> tuple[Marks, list[tuple[str, Row]]]:
        assert self._reader is not None
        table, marks = await self._call(self._reader.feed.next(), "read")
        return marks, _rows_of(table)

    async def _call(self, call: Coroutine[Any, Any, Any], name: str) -> Any:
        """What the reader answers. Raises what it raises, and ReaderLost when its process ends."""
        assert self._reader is not None
        process = self._reader.process
        if not process.alive:
            call.close()
            raise ReaderLost
        task = await self.ended(process, call, name)
        if task is None or task.cancelled() or not process.alive:
            raise ReaderLost
        return task.result()

    def _kill_reader(self) -> None:
        if self._reader is not None:
            self._reader.process.kill()

    # -- the end -------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """All that is stored comes to the application."""
        self.stopping = True
        await self.tasks[0]
        while self._pending:  # noqa: ASYNC110  # virtual time costs nothing
            await asyncio.sleep(0.05)
        logs: dict[str, list[Row]] = {}
        for name in self._partitions:
            log = await self.again(partial(read_log, self.client, name))
            logs[name] = [Row(*_place(one.message_id), one.payload) for one in log]
        try:
            async with asyncio.timeout(ALL_LIMIT_S):
                while any(len(self._seen[name]) < len(log) for name, log in logs.items()):  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            missing = {name: len(log) - len(self._seen[name]) for name, log in logs.items()}
            self.history.violated(f"I1: {self.name} does not get what is in the log: {missing}")
        for task in self.tasks:
            task.cancel()
        for name, log in logs.items():
            if self._stores_positions:
                self._compare(name, log)
            else:
                self._compare_lives(name, log)
        self.history.counts["rows followed"] += sum(map(len, logs.values()))

    def _compare(self, name: str, log: list[Row]) -> None:
        rows = self._rows[name]
        if log == rows:
            return
        number = next((i for i, (one, other) in enumerate(zip(log, rows, strict=False)) if one != other), -1)
        if number < 0:
            number = min(len(log), len(rows))
        invariant = "I5" if rows[number : number + 1] and rows[number] in rows[:number] else "I4"
        self.history.violated(
            f"{invariant}: {self.name} has {rows[number : number + 1]} as row {number} of {name}, where the log has "
            f"{log[number : number + 1]}"
        )

    def _compare_lives(self, name: str, log: list[Row]) -> None:
        """Each life gives rows in their order, and leaves out none that was not stored before it."""
        numbers = {row: number for number, row in enumerate(log)}
        stored: dict[int, None] = {}
        of_this_life: dict[int, None] = {}
        before = -1
        for place, row in enumerate(self._rows[name]):
            number = numbers.get(row, -1)
            if number < 0:
                self.history.violated(f"I2: {self.name} has {row} of {name}, which is not in the log")
                continue
            if place in self._lives[name]:
                stored |= of_this_life
                of_this_life, before = {}, -1
            if number <= before:
                self.history.violated(f"I4: {self.name} has {row} of {name} behind {log[before]}")
            left_out = next((one for one in range(before + 1, number) if one not in stored), None)
            if left_out is not None:
                self.history.violated(f"I7: {self.name} has {row} of {name}, and has not stored {log[left_out]}")
            of_this_life[number] = None
            before = number


async def _do(call: Any) -> Any:
    return call()


def _place(message_id: MessageId) -> tuple[int, int, int]:
    ledger, entry, index = message_id[:3]
    return ledger, entry, index


def _rows_of(table: pa.Table) -> list[tuple[str, Row]]:
    columns = (table[name].to_pylist() for name in ("value", "__topic", "__messageId"))
    return [
        (topic, Row(*_place(MessageId.deserialize(message_id)), payload))
        for payload, topic, message_id in zip(*columns, strict=True)
    ]
