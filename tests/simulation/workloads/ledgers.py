"""Who uses the ledgers of a `LedgerWorld`: `LedgerLife` writes one after the other, `TopicLife` owns a topic in turns.

The drivers are outside every process; what they begin runs in a host and is paused, killed and begun again with it. A
driver takes a ledger or topic away from its writer without asking it, which is what a broker that missed its session's
end looks like: so there are zombies whenever the seed makes a pause or a partition.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from magnetar.protocol.errors import LedgerFenced, MagnetarError, MessageTooBig, NoSuchEntry, NoSuchLedger, StaleEpoch
from magnetar.storage.managed.cursor import Cursor
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.managed.trimming import NO_RETENTION, Retention
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata

from ..checkers.ledger_history import LedgerHistory, Place
from ..world.chance import drawn_apart
from ..world.ledgers import Host, LedgerWorld

ENTRIES_PER_READ = 20
RETAINED_SHARE = 0.15
"""Of the topics: they keep everything for ever."""
READ_BYTES = 1 << 16


@dataclass
class Usage:
    """How a seed's writers behave. Sizes in bytes, times in seconds."""

    burst_max: int
    pace_s: float
    body_size_max: int
    entries_max: int
    life_s: float

    @staticmethod
    def draw(random: Random) -> "Usage":
        return Usage(
            burst_max=random.choice((1, 3, 10)),
            pace_s=random.choice((0.005, 0.02, 0.1)),
            body_size_max=random.choice((8, 8, 200, 2_000, 60_000)),
            entries_max=random.choice((2, 10, 40, 120)),
            life_s=random.choice((0.05, 0.3, 1.0)),
        )


class Life:
    """What the two kinds share. `stopping` ends the drivers, `pending` counts entries that nobody answered."""

    def __init__(self, world: LedgerWorld, history: LedgerHistory, random: Random, usage: Usage) -> None:
        self.world = world
        self.history = history
        self.random = random
        self.usage = usage
        self.stopping = False
        self.tasks: list[tuple[Host, asyncio.Task[Any]]] = []
        self._driver: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._driver = asyncio.get_running_loop().create_task(self._drive(), name=type(self).__name__)

    async def stop(self, limit_s: float) -> None:
        """No more new things; everything under way ends. Raises AssertionError (I8) when that takes longer."""
        self.stopping = True
        assert self._driver is not None
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)
        waiting = [task for host, task in self.tasks if host.process.alive and not task.done()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=limit_s)
            assert not late, f"I8: {[task.get_name() for task in late]} did not end within {limit_s:.0f} s"
        for host, task in self.tasks:
            if task.done() and not task.cancelled() and task.exception() is not None and host.process.alive:
                raise task.exception()  # type: ignore[misc]  # the scenario's own mistake

    async def _drive(self) -> None:
        while not self.stopping:
            host = self.any_host()
            if host is None:
                await asyncio.sleep(0.05)
            else:
                await self._turn(host)

    async def _turn(self, host: Host) -> None:
        raise NotImplementedError

    def any_host(self) -> Host | None:
        hosts = self.world.hosts()
        return self.random.choice(hosts) if hosts else None

    def begin(self, host: Host, coroutine: Coroutine[Any, Any, Any], name: str) -> "asyncio.Task[Any]":
        task = host.process.spawn(coroutine, name)
        self.tasks.append((host, task))
        return task

    async def wait(self, tasks: "list[asyncio.Task[Any]]", limit_s: float) -> None:
        """Until they are done, or for as long as a driver has patience: their process may be paused or dead."""
        if tasks:
            await asyncio.wait(tasks, timeout=limit_s)

    def padding(self) -> str:
        return "x" * self.random.randrange(self.usage.body_size_max)

    async def pause(self) -> None:
        await asyncio.sleep(self.random.random() * 2 * self.usage.pace_s)


# -- ledgers ---------------------------------------------------------------------------------------------------------


@dataclass
class OneLedger:
    """A ledger from its creation to its end."""

    ledger_id: int = -1
    told: str = ""
    """What its writer was told to do: `close`, `abandon`; nothing when it is taken over."""


class LedgerLife(Life):
    """See the module. Each ledger is closed by its writer, or taken over by one or two recoverers; some are deleted."""

    def __init__(self, world: LedgerWorld, history: LedgerHistory, random: Random, usage: Usage) -> None:
        super().__init__(world, history, random, usage)
        self._deletes = random.choice((0.0, 0.5, 0.9))
        self._takes_over = random.choice((0.3, 0.9))

    async def _turn(self, host: Host) -> None:
        random, one = self.random, OneLedger()
        writing = self.begin(host, self._write(host, one), "write")
        await asyncio.sleep(random.random() * 2 * self.usage.life_s)
        if one.ledger_id < 0:
            await self.wait([writing], 1.0)
        if one.ledger_id < 0:
            return
        if random.random() > self._takes_over:
            one.told = random.choice(("close", "abandon"))
            await self.wait([writing], random.random() * 2)
        recoverers = [self.any_host() for _ in range(random.choice((1, 1, 2)))]
        recovering: list[asyncio.Task[Any]] = []
        for recoverer in recoverers:
            if recoverer is not None:
                recovering.append(self.begin(recoverer, self._recover(recoverer, one.ledger_id), "recover"))
                if random.random() < 0.5:
                    await asyncio.sleep(random.random() * 0.02)
        await self.wait(recovering, 3.0)
        closed = [task for task in recovering if task.done() and not task.cancelled() and task.result() is not None]
        deleter = self.any_host()
        if closed and deleter is not None and random.random() < self._deletes:
            await self.wait([self.begin(deleter, self._delete(deleter, one.ledger_id), "delete")], 1.0)

    async def _write(self, host: Host, one: OneLedger) -> None:
        random = Random(self.random.getrandbits(64))
        try:
            writer = await host.ledgers.create()
        except MagnetarError as error:
            self.history.counts[f"not created: {type(error).__name__}"] += 1
            return
        one.ledger_id = writer.ledger_id
        self.history.used[writer.ledger_id] = None
        number = 0
        try:
            while not (one.told or self.stopping):
                for _ in range(random.randint(1, self.usage.burst_max) if number < self.usage.entries_max else 1):
                    body = f"ledger#{writer.ledger_id}:{self.padding()}:{number}".encode()
                    self.history.written[body] = None
                    with contextlib.suppress(MessageTooBig):
                        writer.add(body, partial(self._answered, (writer.ledger_id, number), body))
                        number += 1
                pace_s = self.usage.pace_s if number < self.usage.entries_max else 0.3
                await asyncio.sleep(random.random() * 2 * pace_s)
        except MagnetarError as error:
            self.history.counts[f"writer ended: {type(error).__name__}"] += 1
        try:
            if one.told == "close":
                await writer.close()
            else:
                await writer.abandon()
        except MagnetarError as error:
            self.history.counts[f"not closed: {type(error).__name__}"] += 1

    def _answered(self, expected: Place, body: bytes, place: Place | None, error: MagnetarError | None) -> None:
        if place is None:
            self.history.counts[f"not added: {type(error).__name__}"] += 1
        else:
            if place != expected:
                self.history.violated(f"I4: {body[:40]!r} was acknowledged at {place} instead of {expected}")
            self.history.was_acknowledged(place, body)
        if self.random.random() < 0.01:
            raise MagnetarError("what a writer is told may fail at the one who is told, and must not harm the others")

    async def _recover(self, host: Host, ledger_id: int) -> LedgerMetadata | None:
        for _ in range(10):
            try:
                metadata = await host.ledgers.recover(ledger_id)
                await read_ledger(host, self.history, metadata)
                return metadata
            except NoSuchLedger:
                return None
            except MagnetarError as error:
                self.history.counts[f"not recovered: {type(error).__name__}"] += 1
                if self.stopping:
                    return None
                await asyncio.sleep(self.random.random() * 0.5)
        return None

    async def _delete(self, host: Host, ledger_id: int) -> None:
        self.history.deleted[ledger_id] = None
        try:
            await host.ledgers.delete(ledger_id)
        except MagnetarError as error:
            self.history.counts[f"not deleted: {type(error).__name__}"] += 1


async def read_ledger(host: Host, history: LedgerHistory, metadata: LedgerMetadata) -> None:
    """Read a closed ledger and compare. Raises MagnetarError when that is not possible now.

    That no bookie holds an entry below the end is a loss, unless its user deleted the ledger.
    """
    try:
        entries = await host.ledgers.reader(metadata).read_all(0, metadata.last_entry)
    except NoSuchEntry as error:
        if metadata.ledger_id not in history.deleted:
            history.violated(f"I1: closed ledger {metadata.ledger_id} lacks an entry: {error}")
        return
    history.check_ledger(metadata.ledger_id, {entry.entry_id: bytes(entry.body) for entry in entries})


# -- topics ----------------------------------------------------------------------------------------------------------


@dataclass
class Ownership:
    """One owner of a topic, under an epoch of its own."""

    epoch: int
    told: bool = False
    number: int = 0
    managed: ManagedLedger | None = None
    ended: MagnetarError | None = None
    cursors: list[Cursor] = field(default_factory=list)


class TopicLife(Life):
    """See the module. Owners append, read, acknowledge, store cursors and trim, all at once."""

    def __init__(
        self, world: LedgerWorld, history: LedgerHistory, random: Random, usage: Usage, topic: str, subscriptions: int
    ) -> None:
        super().__init__(world, history, random, usage)
        self.topic = topic
        self._epoch = 0
        self._names = [f"subscription-{number}" for number in range(subscriptions)]
        self._acknowledged_share = random.choice((0.5, 0.9, 1.0))
        retained = drawn_apart(random).random() < RETAINED_SHARE
        self._retention = Retention(-1, -1) if retained else NO_RETENTION
        history.topics[topic].retained_for_ever = retained
        self._kinds = [
            (self._append, 6),
            (self._consume, 5),
            (self._flush, 1),
            (self._trim, 1),
            (self._seek, random.choice((0, 0, 1))),
        ]

    def take_ownership(self) -> Ownership:
        """The next owner's epoch."""
        self._epoch += 1
        return Ownership(self._epoch)

    async def _turn(self, host: Host) -> None:
        random, owner = self.random, self.take_ownership()
        owning = self.begin(host, self._own(host, owner), f"own-{owner.epoch}")
        await asyncio.sleep(random.random() * 4 * self.usage.life_s)
        if random.random() < 0.3:
            owner.told = True
            await self.wait([owning], random.random() * 2)
        if random.random() < 0.2:  # two take it at the same time
            other = self.any_host()
            if other is not None:
                self.begin(other, self._own(other, self.take_ownership()), f"own-{self._epoch}")

    async def _own(self, host: Host, owner: Ownership) -> None:
        try:
            await self.open(host, owner)
            while owner.ended is None and not (owner.told or self.stopping):
                await self._one_thing(owner)
                await self.pause()
        except MagnetarError as error:
            self.history.counts[f"topic lost: {type(error).__name__}"] += 1
        if owner.managed is not None:
            await self.close(owner)

    async def open(self, host: Host, owner: Ownership) -> None:
        """Open the topic and its cursors. Raises MagnetarError."""
        managed = owner.managed = await ManagedLedger.open(
            host.env, host.ledgers, host.store, self.topic, owner.epoch, host.settings
        )
        managed.trimmer.use_retention(self._retention)
        managed.on_fenced.append(lambda error: setattr(owner, "ended", error))
        for cursor in managed.cursors.values():
            self.history.check_cursor(self.topic, cursor, owner.epoch)
        for name in self._names:
            cursor = await managed.open_cursor(name, "earliest")
            self.history.topics[self.topic].cursors[name]  # from now on nothing may be trimmed before it has passed
            owner.cursors.append(cursor)

    async def close(self, owner: Ownership) -> None:
        assert owner.managed is not None
        try:
            await owner.managed.close()
        except MagnetarError as error:
            self.history.counts[f"topic not closed: {type(error).__name__}"] += 1

    async def _one_thing(self, owner: Ownership) -> None:
        kinds, weights = zip(*self._kinds, strict=True)
        kind: Callable[[Ownership], Awaitable[None]] = self.random.choices(kinds, weights)[0]
        try:
            await kind(owner)
        except (LedgerFenced, StaleEpoch) as error:
            owner.ended = error
        except MagnetarError as error:
            self.history.counts[f"{kind.__name__} failed: {type(error).__name__}"] += 1

    async def _append(self, owner: Ownership) -> None:
        assert owner.managed is not None
        for _ in range(self.random.randint(1, self.usage.burst_max)):
            self.append_one(owner, lambda error: None)

    def append_one(self, owner: Ownership, told: Callable[[MagnetarError | None], None]) -> None:
        """`told` hears of the outcome. Raises MagnetarError when the topic takes nothing."""
        assert owner.managed is not None
        body = f"{self.topic}#{owner.epoch}:{self.padding()}:{owner.number}".encode()
        owner.number += 1
        self.history.written[body] = None

        def answered(place: Place | None, error: MagnetarError | None) -> None:
            if place is None:
                self.history.counts[f"not appended: {type(error).__name__}"] += 1
            else:
                self.history.was_appended(self.topic, place, body)
            told(error)

        owner.managed.append(body, answered)

    async def _consume(self, owner: Ownership) -> None:
        managed, cursor = owner.managed, self.random.choice(owner.cursors)
        assert managed is not None
        entries = await managed.read(cursor.first_unacknowledged, ENTRIES_PER_READ, READ_BYTES)
        acknowledged = self.history.topics[self.topic].cursors[cursor.name].acknowledged
        chosen: list[Place] = []
        for place, body in entries:
            self.history.was_delivered(self.topic, place, body)
            if self.random.random() < self._acknowledged_share:
                chosen.append(place)
        for place in chosen:
            acknowledged[place] = max(owner.epoch, acknowledged.get(place, 0))
        if self.random.random() < 0.3 and len(chosen) == len(entries) and entries:
            cursor.acknowledge_cumulative(chosen[-1])
        else:
            cursor.acknowledge(chosen)

    async def _flush(self, owner: Ownership) -> None:
        cursor = self.random.choice(owner.cursors)
        history = self.history.topics[self.topic].cursors[cursor.name]
        covered = {place: by for place, by in history.acknowledged.items() if cursor.is_acknowledged(place)}
        await cursor.flush()
        for place, by in covered.items():
            if history.acknowledged.get(place) == by:  # not set back meanwhile
                history.stored[place] = by

    async def _trim(self, owner: Ownership) -> None:
        assert owner.managed is not None
        await owner.managed.trim()

    async def _seek(self, owner: Ownership) -> None:
        managed, cursor = owner.managed, self.random.choice(owner.cursors)
        assert managed is not None
        history = self.history.topics[self.topic].cursors[cursor.name]
        target = managed.first_position
        if self.random.random() < 0.5 and managed.last_confirmed > target:
            target = managed.last_confirmed
        history.will_seek(target, owner.epoch)
        await cursor.reset(target)
        history.has_sought(target, owner.epoch)

    async def judge(self, host: Host, limit_s: float) -> None:
        """After healing: a new owner opens the topic, everything is there, one more entry goes in (I8).

        `limit_s` is for all but the reading, and for each piece of that: a long log whose entries are asked for one by
        one of a slow disk takes half a minute, but no piece of it as long as a bookie that hangs.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while True:
            owner = self.take_ownership()
            try:
                async with asyncio.timeout_at(deadline) as bound:
                    await self._judge(host, owner, bound, limit_s)
                return
            except MagnetarError as error:
                self.history.counts[f"judging failed: {type(error).__name__}"] += 1
                last = error
            except TimeoutError:
                raise AssertionError(f"I8: {self.topic} cannot be used within {limit_s:.0f} s") from None
            finally:
                if owner.managed is not None:
                    await self.close(owner)
            assert loop.time() < deadline, f"I8: {self.topic} cannot be used within {limit_s:.0f} s: {last!r}"
            await asyncio.sleep(0.25)

    async def _judge(self, host: Host, owner: Ownership, bound: asyncio.Timeout, limit_s: float) -> None:
        await self.open(host, owner)
        managed = owner.managed
        assert managed is not None
        done: asyncio.Future[MagnetarError | None] = asyncio.get_running_loop().create_future()
        self.append_one(owner, lambda error: done.done() or done.set_result(error))
        error = await done
        if error is not None:
            raise error
        log: list[tuple[Place, bytes]] = []
        position = managed.first_position
        while position <= managed.last_confirmed:
            bound.reschedule(asyncio.get_running_loop().time() + limit_s)
            log += await managed.read(position, ENTRIES_PER_READ, READ_BYTES)
            position = managed.next_position(log[-1][0])
        self.history.check_log(self.topic, log)
