"""Gives every topic an owner: the one task of the coordinator that changes assignments.

Work arrives as topic names ("look at this one"), never as instructions, and is done in rounds. A round looks at each
topic's *present* state. Owner alive → nothing to do. Owner gone, or none yet, or a move requested → a broker is chosen.
All choices of a round are written in grouped compare-and-sets, entered into the table, pushed to the brokers. A broker
that dies while a round is being written is noticed after it. So it does not matter in which order a death, a new topic
and a move arrive, nor how often a topic is named.

A topic waits without being looked at while
- its owner may still come back (the coordinator has just started: `Membership.in_grace`),
- it is held (a move or a deletion that is in progress will name it again),
- no broker is alive; callers that wait get an error at once. One that is draining takes topics only if there is no
  other.

A topic without a live owner goes where the table's evenness wants it. Only a topic without an earlier owner may go to a
broker of the caller's choice (`preferred`): the one to which its first client is connected. `candidate` tells clients
beforehand which broker that will be. It follows from the name, so that nothing is kept.

Failed metadata writes are tried again with back-off as long as the coordinator is active. After a lost answer the
records are read back first. An unexpected error ends one round, never the task.

A non-persistent topic without partitions has no records. It is assigned in memory. When its broker ends the topic ends,
too, unless a caller waits for it. The next coordinator does not know it: brokers give it up, and clients come again.

An assignment is created only while the topic's own record is as the coordinator knows it, tested in the same
transaction. So even a late write creates none for a topic that is deleted or marked as being deleted.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ...protocol.errors import MagnetarError, NoSuchKey, ServiceUnitNotReady
from ...protocol.names import ROLE_BROKER
from ...protocol.topics import TopicName, topic_of_path
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.store import Guard, Versioned, Write, list_all, pack, unpack
from ..members.contracts_coordinator import AssignmentChange
from .assignment_table import Assignment, AssignmentTable
from .membership import Membership

logger = logging.getLogger(__name__)

WRITES_PER_TRANSACTION = 250
RETRY_INITIAL_S = 0.02
RETRY_MAX_S = 1.0
EPOCH_SHIFT = 32
UNWRITTEN = -1
"""The version of an assignment that has no record."""


class TopicsKnown(Protocol):
    """What placement asks about topics."""

    def guard_of(self, topic: TopicName) -> Guard | None:
        """Holds while the topic exists. None when it does not, has no record, or is being deleted."""
        ...

    def passes(self, topic: TopicName) -> bool:
        """Whether it exists without a record."""
        ...

    def forget(self, full_name: str) -> None:
        """A topic without a record has ended."""
        ...


class Placement:
    """See the module. `push(changes)` tells the brokers."""

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        membership: Membership,
        push: Callable[[Sequence[AssignmentChange]], None],
        registry: "TopicsKnown",
    ) -> None:
        self.unexpected_errors = 0
        """Rounds that ended in an error that is none of ours; each was repeated."""
        self.table = AssignmentTable()
        self._env = env
        self._store = store
        self._membership = membership
        self._push = push
        self._guard_of = registry.guard_of
        self._registry = registry
        self._wanted: dict[str, None] = {}
        self._waiting: dict[str, None] = {}  # for a broker, or for the end of the grace
        self._doubtful: dict[str, None] = {}  # whose record may not be what the table says
        self._held: dict[str, int] = {}
        self._forced: dict[str, str | None] = {}
        self._askers: dict[str, list[asyncio.Future[Assignment]]] = {}
        self._preferred: dict[str, str] = {}  # topic with askers → broker
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._rounds = asyncio.Lock()
        self._tasks = Tasks()
        self._next_epoch = store.epoch << EPOCH_SHIFT

    async def start(self) -> None:
        """Read all assignments and begin. Raises MetadataUnavailable."""
        for key, record in await list_all(self._store, metadata_keys.ASSIGNMENTS_PREFIX):
            value = unpack(record.value)
            self.table.set(
                _topic_of(key), Assignment(value["broker"], value["incarnation"], value["epoch"], record.version)
            )
        self._waiting.update(dict.fromkeys(topic for topic, _ in self.table.items()))
        self._tasks.spawn(self._run(), "placement")

    async def close(self) -> None:
        await self._tasks.close()
        self._fail_askers(list(self._askers), ServiceUnitNotReady("the coordinator is closing"))

    # -- what happened -------------------------------------------------------------------------------------------

    def broker_joined(self) -> None:
        """A broker registered: whatever waits for one is looked at."""
        self.look_at_waiting()

    def broker_lost(self, broker: str) -> None:
        """A broker's session ended, or it lives on as another incarnation."""
        self._want(self.table.topics_of(broker))

    def look_at_waiting(self) -> None:
        """The grace is over, or a broker came: look again at what waited."""
        waiting, self._waiting = self._waiting, {}
        self._want(waiting)

    # -- questions and wishes ------------------------------------------------------------------------------------

    def candidate(self, topic: str) -> str:
        """The broker that shall create a topic which does not exist. Raises ServiceUnitNotReady without a broker.

        Of two brokers that the hash of the name gives, it is the one with fewer topics. So names are spread without a
        memory of earlier requests.
        """
        brokers = sorted(session.node_id for session in self._membership.takers())
        if not brokers:
            raise ServiceUnitNotReady("no broker is alive")
        first, second = divmod(zlib.crc32(topic.encode()), 1 << 16)
        either = (brokers[first % len(brokers)], brokers[second % len(brokers)])
        return min(either, key=self.table.count_of)

    async def assign(self, topic: str, preferred: str | None = None) -> Assignment:
        """The topic's assignment to a live broker, made if need be. Raises ServiceUnitNotReady without a broker.

        A topic that has no assignment goes to the broker `preferred`, if that one is alive.

        May take long (metadata away, topic held): the caller bounds it.
        """
        current = self.table.get(topic)
        if current is not None and topic not in self._held and self._is_settled(current):
            return current
        asker: asyncio.Future[Assignment] = asyncio.get_running_loop().create_future()
        self._askers.setdefault(topic, []).append(asker)
        if preferred is not None:
            self._preferred.setdefault(topic, preferred)
        self._want((topic,))
        try:
            return await asker
        finally:
            askers = self._askers.get(topic)
            if askers is not None and asker in askers:
                askers.remove(asker)
                if not askers:
                    del self._askers[topic]
            if topic not in self._askers:
                self._preferred.pop(topic, None)

    def hold(self, topics: Iterable[str]) -> None:
        """Leave these topics alone until `unhold`; may be nested."""
        for topic in topics:
            self._held[topic] = self._held.get(topic, 0) + 1

    def unhold(self, topics: Iterable[str]) -> None:
        """End a hold and look at the topics, if they have an assignment or callers that wait."""
        for topic in topics:
            self._held[topic] -= 1
            if not self._held[topic]:
                del self._held[topic]
                if topic in self.table or topic in self._askers:
                    self._want((topic,))

    def force(self, moves: Mapping[str, str | None]) -> None:
        """These topics shall leave their owners: for the broker named, or for any other (None).

        Each gets a new epoch, even if it has to stay because there is no other broker.
        """
        self._forced.update((topic, target) for topic, target in moves.items() if topic in self.table)
        self._want(moves)

    async def settle(self) -> None:
        """Wait until no work is left (topics that wait for a broker excepted)."""
        await self._idle.wait()

    def refuse(self, topics: Iterable[str]) -> None:
        """Callers that wait for an owner of these topics are told that they are being deleted."""
        self._fail_askers(topics, ServiceUnitNotReady("the topic is being deleted"))

    async def remove(self, topics: Sequence[str]) -> None:
        """Delete the assignments of topics that are marked as being deleted, whatever their owners, in one transaction.

        Raises what the store raises; some of them may then be gone, and it is to be called again.
        """
        self.refuse(topics)
        async with self._rounds:  # none that still writes one of them is under way
            keys = [_key_of(topic) for topic in topics]
            try:
                # Read first: a deletion that lands late must not hit what was assigned since.
                records = await self._store.get_many(keys)
                writes = [
                    Write(key, None, record.version)
                    for key, record in zip(keys, records, strict=True)
                    if record is not None
                ]
                results = await self._store.write_many(writes) if writes else []
            except BaseException:  # after any error: some may be gone, and their owners then can no longer load them
                self._doubtful.update(dict.fromkeys(topics))
                self._want(topics)
                raise
            for result in results:
                if isinstance(result, MagnetarError) and not isinstance(result, NoSuchKey):
                    raise result
            changes: list[AssignmentChange] = []
            for topic in topics:
                self._forced.pop(topic, None)
                if self.table.remove(topic) is not None:
                    changes.append(AssignmentChange(topic, None, "", self.take_epoch()))
            self._push(changes)

    # -- rounds --------------------------------------------------------------------------------------------------

    def _want(self, topics: Iterable[str]) -> None:
        self._wanted.update(dict.fromkeys(topics))
        if self._wanted:
            self._idle.clear()
            self._wake.set()

    async def _run(self) -> None:
        backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._wanted or self._doubtful:
                batch, self._wanted = self._wanted, {}
                try:
                    async with self._rounds:
                        if self._doubtful:
                            await self._refresh(list(self._doubtful))
                            self._doubtful = {}
                        self._doubtful |= await self._round(batch)
                    if not self._doubtful:
                        backoff.reset()
                        continue
                except MagnetarError as error:
                    logger.warning("assignments could not be written and are tried again: %s", error)
                    self._doubtful.update(batch)
                except Exception:
                    logger.exception("a round of assignments failed and is tried again")
                    self.unexpected_errors += 1
                    self._doubtful.update(batch)
                # Whatever went wrong with these records, they are read again and then looked at afresh.
                self._wanted.update(self._doubtful)
                await asyncio.sleep(backoff.next_delay_s())
            self._idle.set()

    async def _round(self, batch: Iterable[str]) -> dict[str, None]:
        """Look at each topic. Returns those whose record was not what the table says."""
        brokers = {session.node_id: session.incarnation for session in self._membership.takers()}
        to_place: dict[str, None] = {}
        leaving: dict[str, dict[str, None]] = {}
        targets: dict[str, str] = {}
        for topic in batch:
            current = self.table.get(topic)
            if topic in self._held:
                continue  # `unhold` names it again
            if current is None and topic not in self._askers:
                continue  # deleted, or no caller waits
            passes = self._registry.passes(TopicName.parse(topic))
            if current is None and not passes and self._guard_of(TopicName.parse(topic)) is None:
                self.refuse((topic,))
                continue
            if current is not None and passes and topic not in self._askers and not self._is_settled(current):
                self._let_go(topic)
                continue
            if current is not None and self._is_settled(current):
                if topic not in self._forced:
                    self._answer(topic, current)
                    continue
                target = self._forced[topic]
                if target in brokers:
                    targets[topic] = target
                elif [*brokers] == [current.broker]:
                    targets[topic] = current.broker  # under a new epoch, which ends the release
                else:
                    leaving.setdefault(current.broker, {})[topic] = None
            elif (
                current is not None
                and self._membership.in_grace
                and not self._membership.has_ended(current.broker, current.incarnation)
            ):
                self._waiting[topic] = None
            elif not brokers:
                self._fail_askers((topic,), ServiceUnitNotReady("no broker is alive"))
                if current is not None:
                    self._waiting[topic] = None
            elif current is None and self._preferred.get(topic) in brokers:
                targets[topic] = self._preferred[topic]
            else:
                to_place[topic] = None
        names = list(brokers)
        if to_place:
            targets |= self.table.place(list(to_place), names)
        for broker, topics in leaving.items():
            targets |= self.table.place(list(topics), [name for name in names if name != broker])
        doubtful: dict[str, None] = {}
        chosen = list(targets.items())
        for first in range(0, len(chosen), WRITES_PER_TRANSACTION):
            doubtful |= await self._write(chosen[first : first + WRITES_PER_TRANSACTION], brokers)
        return doubtful

    async def _write(self, chosen: Sequence[tuple[str, str]], brokers: Mapping[str, str]) -> dict[str, None]:
        writes: list[Write] = []
        wanted: list[tuple[str, str, int]] = []
        passing: list[tuple[str, str, int]] = []
        for topic, broker in chosen:
            current = self.table.get(topic)
            name = TopicName.parse(topic)
            if self._registry.passes(name):
                passing.append((topic, broker, self.take_epoch()))
                continue
            version = current.version if current is not None else None
            needs = self._guard_of(name) if version is None else None
            if version is None and needs is None:
                self.refuse((topic,))
                continue
            epoch = self.take_epoch()
            value = {"broker": broker, "incarnation": brokers[broker], "epoch": epoch}
            writes.append(Write(metadata_keys.assignment(name.path), pack(value), version, needs))
            wanted.append((topic, broker, epoch))
        results: list[int | MagnetarError] = [*(await self._store.write_many(writes))] if writes else []
        results += [UNWRITTEN] * len(passing)
        wanted += passing
        new: list[tuple[str, Assignment]] = []
        changes: list[AssignmentChange] = []
        doubtful: dict[str, None] = {}
        for (topic, broker, epoch), result in zip(wanted, results, strict=True):
            if isinstance(result, MagnetarError):
                logger.warning("the assignment of %s could not be written and is read again: %s", topic, result)
                doubtful[topic] = None
                continue
            assignment = Assignment(broker, brokers[broker], epoch, result)
            new.append((topic, assignment))
            self.table.set(topic, assignment)
            self._forced.pop(topic, None)
            changes.append(AssignmentChange(topic, assignment.broker, assignment.incarnation, assignment.epoch))
        self._push(changes)
        for topic, assignment in new:
            if self._is_settled(assignment):
                self._answer(topic, assignment)
            else:
                self._want((topic,))  # the chosen one died meanwhile
        return doubtful

    async def _refresh(self, topics: Sequence[str]) -> None:
        """Take over what the store says about these topics (after a lost answer, or a conflict)."""
        topics = [topic for topic in topics if not self._registry.passes(TopicName.parse(topic))]
        records = await self._store.get_many([_key_of(topic) for topic in topics])
        changes: list[AssignmentChange] = []
        for topic, record in zip(topics, records, strict=True):
            before = self.table.get(topic)
            after = _assignment_of(record)
            if after is None:
                if self.table.remove(topic) is not None:  # it was deleted, and the answer lost
                    changes.append(AssignmentChange(topic, None, "", self.take_epoch()))
            else:
                self.table.set(topic, after)
                self._next_epoch = max(self._next_epoch, after.epoch)
                if before is None or before.epoch != after.epoch:
                    self._forced.pop(topic, None)  # it was moved, and the answer lost
                    changes.append(AssignmentChange(topic, after.broker, after.incarnation, after.epoch))
        if changes:
            self._push(changes)

    def _let_go(self, topic: str) -> None:
        """The broker of a topic without a record has ended, and the topic with it."""
        self.table.remove(topic)
        self._forced.pop(topic, None)
        self._registry.forget(topic)
        self._push([AssignmentChange(topic, None, "", self.take_epoch())])

    def take_epoch(self) -> int:
        """Greater than every assignment epoch before, of this coordinator and of all before it."""
        self._next_epoch += 1
        return self._next_epoch

    def _is_settled(self, assignment: Assignment) -> bool:
        return self._membership.is_alive(ROLE_BROKER, assignment.broker, assignment.incarnation)

    def _answer(self, topic: str, assignment: Assignment) -> None:
        for asker in self._askers.pop(topic, ()):
            if not asker.done():
                asker.set_result(assignment)

    def _fail_askers(self, topics: Iterable[str], error: MagnetarError) -> None:
        for topic in list(topics):
            for asker in self._askers.pop(topic, ()):
                if not asker.done():
                    asker.set_exception(error)


def _key_of(topic: str) -> str:
    return metadata_keys.assignment(TopicName.parse(topic).path)


def _topic_of(key: str) -> str:
    return topic_of_path(key.removeprefix(metadata_keys.ASSIGNMENTS_PREFIX))


def _assignment_of(record: Versioned | None) -> Assignment | None:
    if record is None:
        return None
    value = unpack(record.value)
    return Assignment(value["broker"], value["incarnation"], value["epoch"], record.version)
