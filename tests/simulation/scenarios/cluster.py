"""A whole cluster under simulation, from one seed: workloads composed with faults, and every checker beside them.

A run: start → set up → workloads under faults (safety) → heal → everything outstanding is done (liveness, I8) → read
the logs and compare → drain what is owed → restart the brokers in order, in some runs → collect garbage everywhere and
count copies → restore older metadata, in some runs → close. Each run draws a few of the workloads and of the faults, so
that some runs are crowded and some are about one thing only.
"""

import asyncio
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from magnetar.actors.broker.service import BrokerService
from magnetar.actors.coordinator import owner_methods
from magnetar.actors.topics.persistent import PersistentTopic
from magnetar.protocol.errors import MagnetarError
from magnetar.storage.managed.cursor import Cursor
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from magnetar.storage.metadata.slot_rows import SlotOwner
from magnetar.storage.metadata.store import Versioned

from ..checkers import publish_watch
from ..checkers.acknowledge_watch import AcknowledgeWatch
from ..checkers.apart import copies_are_apart
from ..checkers.copies_agree import copies_agree
from ..checkers.cursor_watch import CursorWatch
from ..checkers.deletion_watch import DeletionWatch
from ..checkers.delivery_watch import DeliveryWatch
from ..checkers.first_watch import FirstWatch
from ..checkers.history import History
from ..checkers.leave_watch import LeaveWatch
from ..checkers.metadata_watch import MetadataWatch
from ..checkers.policies_agree import policies_agree
from ..checkers.release_watch import ReleaseWatch
from ..checkers.rest_watch import RestWatch, topics_are_loaded
from ..checkers.slots_agree import owners_agree, slots_agree
from ..checkers.stall_watch import StallWatch
from ..checkers.store_watch import StoreWatch, missing_copies
from ..checkers.validation import Validation
from ..faults import silence_of_database
from ..faults.cluster import ClusterFaults
from ..workloads.asking import Asking
from ..workloads.chunked import Chunked
from ..workloads.compacting import Compacting
from ..workloads.consuming import Consuming
from ..workloads.electing import Electing
from ..workloads.foreign_reading import ForeignReading
from ..workloads.passing import Passing
from ..workloads.publishing import Publishing
from ..workloads.reading import LogReading, Reading
from ..workloads.reconsuming import Reconsuming
from ..workloads.recreating import Recreating
from ..workloads.restoring import Restoring
from ..workloads.unopenable import Unopenable
from ..workloads.watching import Watching
from ..workloads.workload import Workload
from ..world.chance import drawn_apart
from ..world.cluster import SLOTS, Node, SimCluster, draw_settings
from ..world.harness import Outcome, Prepared, run_seed
from ..world.loop import SimLoop
from ..world.transcript import Transcript
from . import kept

SAFETY_S = 8.0
CHUNKED_SHARE = 0.5
"""Of the clusters with messages that cannot be opened; they have messages in chunks instead."""
REPAIR_LIMIT_S = 90.0
"""I8: a bookie lost forever is in no record, so long after its grace."""
COLLECT_LIMIT_S = 30.0
POLICIES_LIMIT_S = 30.0
SLOTS_LIMIT_S = 30.0
LOADED_LIMIT_S = 60.0
LOOK_AGAIN_S = 1.0
ELECTION = "election"
ELECTING_SHARE = 0.1
"""In so many runs there are leaders, in the place of most publishers and consumers."""
LETTERS_SHARE = 0.1
PASSING_SHARE = 0.1
"""The same for retry letters, and for a topic that is not persistent."""
COMPACTING_SHARE = 0.1
"""The same for a topic that is compacted."""
WATCHING_SHARE = 0.1
"""In so many runs a list of topics is watched, in the place of most publishers and consumers."""
DELETION_DELAY_MAX_S = 3.0
"""So long a deletion may take in some runs: longer than brokers refuse a topic that they released, in some of these."""


class Scenario:
    """See the module."""

    def __init__(
        self,
        cluster: SimCluster,
        history: History,
        random: Random,
        faults: ClusterFaults | None,
        kept_share: float = kept.SHARE,
        kept_kind: str | None = None,
    ) -> None:
        self._cluster = cluster
        self._history = history
        self._random = random
        self._faults = faults
        topics = [f"topic-{number}" for number in range(random.randint(1, 2))]
        self._log_reading = LogReading(cluster, history, self._chance(), "reader", topics)
        self._publishers: list[Publishing] = []
        self._consumers: list[Consuming] = []
        self._readers: list[Reading | ForeignReading] = []
        self._recreating: list[Recreating] = []
        for topic in topics:
            mark = topic[-1]
            for number in range(random.randint(1, 2)):
                name = f"publisher-{mark}{number}"
                self._publishers.append(Publishing(cluster, history, self._chance(), name, topic))
            for number in range(random.randint(1, 2)):
                name = f"consumer-{mark}{number}"
                self._consumers.append(Consuming(cluster, history, self._chance(), name, topic))
            if random.random() < 0.3:
                self._readers.append(Reading(cluster, history, self._chance(), f"along-{mark}", topic))
            if random.random() < 0.4:
                self._readers.append(ForeignReading(cluster, history, self._chance(), f"foreign-{mark}", topic))
        if random.random() < 0.2:
            self._recreating.append(Recreating(cluster, history, self._chance(), "recreator", "fleeting"))
        self._acknowledges_all = random.random() < 0.5
        self._restarts = random.random() < 0.3
        self._unopenable: list[Unopenable | Chunked] = []
        if random.random() < 0.25:
            self._unopenable.append(Unopenable(cluster, history, self._chance(), "foreigner", "foreign"))
        self._restoring: Restoring | None = None
        if random.random() < 0.3 or kept_kind == kept.RESTORING:
            sends_again = kept_kind == kept.RESTORING
            self._restoring = Restoring(cluster, history, self._chance(), "restorer", topics, sends_again=sends_again)
        self._asking: list[Asking] = []
        if random.random() < 0.3:
            self._asking.append(Asking(cluster, history, self._chance(), "asker"))
        self._electing: list[Electing] = []
        apart = drawn_apart(random)
        if apart.random() < ELECTING_SHARE:
            del self._publishers[1:], self._consumers[1:]
            self._log_reading.topics.append(ELECTION)
            for number in range(apart.randint(2, 3)):
                chance = Random(apart.getrandbits(64))
                self._electing.append(Electing(cluster, history, chance, f"candidate-{number}", ELECTION))
        if self._unopenable and apart.random() < CHUNKED_SHARE:
            self._unopenable = [Chunked(cluster, history, Random(apart.getrandbits(64)), "chunker", "foreign")]
        self._besides: list[Workload] = []
        if apart.random() < LETTERS_SHARE:
            self._besides.append(Reconsuming(cluster, history, Random(apart.getrandbits(64)), "reconsumer", "lettered"))
        if apart.random() < PASSING_SHARE:
            self._besides.append(Passing(cluster, history, Random(apart.getrandbits(64)), "passer", "passing"))
        if self._besides:
            del self._publishers[1:], self._consumers[1:], self._readers[1:]
        self._watching: list[Watching] = []
        if apart.random() < WATCHING_SHARE:
            del self._publishers[1:], self._consumers[1:]
            self._watching.append(Watching(cluster, history, Random(apart.getrandbits(64)), "watcher"))
        if apart.random() < COMPACTING_SHARE:
            del self._publishers[1:], self._consumers[1:], self._readers[1:]
            self._besides.append(Compacting(cluster, history, Random(apart.getrandbits(64)), "compactor", "compacted"))
        if found := kept.draw(cluster, history, apart, kept_share, kept_kind, self._harmed):
            del self._publishers[1:], self._consumers[1:], self._readers[1:]
            self._besides += found
        if cluster.supervision is not None:
            self._restoring = None  # it would name bookies that were retired since
        self._workloads: list[Workload] = [
            *self._consumers, *self._publishers, *self._readers, *self._recreating, *self._unopenable,
            *self._asking, *self._electing, *self._besides, *self._watching,
        ]  # fmt: skip
        if faults is not None:
            faults.workloads = self._workloads

    def watch(self, stack: ExitStack) -> None:
        """Put what only some workloads need beside the nodes until the stack is left."""
        for workload in self._workloads:
            workload.watch(stack)

    def _harmed(self) -> list[str]:
        return self._faults.harmed if self._faults is not None else []

    def _chance(self) -> Random:
        return Random(self._random.getrandbits(64))

    async def run(self) -> None:
        """From start to end. Raises AssertionError, beginning with the invariant, where a wait is in vain."""
        await self._cluster.start()
        await self._safety()
        await self._quiet()
        await self._cluster.until(
            partial(policies_agree, self._cluster), POLICIES_LIMIT_S, "I8: a broker has policies of its own"
        )
        await self._cluster.until(
            partial(copies_agree, self._cluster), POLICIES_LIMIT_S, "I8: the coordinator knows what is not stored"
        )
        await self._cluster.until(
            partial(slots_agree, self._cluster), SLOTS_LIMIT_S, "I8: a broker has slots of its own"
        )
        await self._cluster.until(
            partial(topics_are_loaded, self._cluster), LOADED_LIMIT_S, "I18: a topic with something to do is not loaded"
        )
        self._compare()
        if self._history.violations:
            return
        await self._drain()
        if self._history.violations:
            return
        if self._restarts:
            await self._restart()
        await self._count_copies()
        for workload in (self._log_reading, *self._workloads):
            await workload.run(workload.close)
        await self._cluster.until(self._no_reader_left, 60.0, "I8: a reader's subscription outlives its client")
        if self._restoring is not None:
            await self._restore(self._restoring)
        self._history.counts["messages"] = len(self._history.sent)
        self._history.counts["acknowledged"] = len(self._history.acknowledged)
        await self._cluster.close()

    async def _restore(self, restoring: Restoring) -> None:
        self._history.protected = restoring.protected
        await restoring.restore()
        for node in self._cluster.bookies:
            if node.ready:
                await collect(self._cluster, node)

    def _no_reader_left(self) -> bool:
        brokers = [node.service for node in self._cluster.brokers if node.ready]
        topics = [topic for broker in brokers for topic in broker.topics.loaded.values()]
        return all(durable for topic in topics for _, durable in topic.subscriptions)

    async def _safety(self) -> None:
        faults = self._faults
        early = faults is not None and self._random.random() < 0.3
        if early and faults is not None:
            faults.start()
        limit_s = 120.0 if early else 60.0
        self._cluster.calm = not early
        await self._log_reading.run(self._log_reading.setup, limit_s)
        for workload in self._workloads:
            # One that was crashed before its turn does this when it is revived, which may have been already.
            if workload.process.alive and not workload.begun_again:
                await self._unless_killed(workload, workload.setup, limit_s)
        for workload in self._workloads:
            if workload.process.alive and not workload.begun_again:
                await self._unless_killed(workload, workload.start, limit_s)
        self._cluster.calm = False
        if faults is not None and not early:
            faults.start()
        if self._restoring is not None:
            self._restoring.back_up_within(SAFETY_S)
        await asyncio.sleep(SAFETY_S)
        if faults is not None:
            await faults.heal()
        await come_back(self._workloads)

    async def _unless_killed(self, workload: Workload, step: Any, limit_s: float) -> None:
        process = workload.process
        try:
            await workload.run(step, limit_s)
        except asyncio.CancelledError:
            if process.alive:
                raise

    async def _quiet(self) -> None:
        """I8: everything outstanding is done in time.

        First every client is told to begin nothing more. What one client begins while another one finishes costs time
        and finds nothing new.
        """
        for workload in self._workloads:
            workload.stopping = True
        await asyncio.gather(*(candidate.run(candidate.stop) for candidate in self._electing))  # one waits for another
        await finish(
            self._cluster,
            self._publishers,
            [
                *self._recreating,
                *self._readers,
                *self._unopenable,
                *self._asking,
                *self._besides,
                *self._watching,
            ],
        )
        await self._log_reading.run(self._log_reading.read)
        for consumer in self._consumers:
            await consumer.run(consumer.stop)

    def _compare(self) -> None:
        logs = self._log_reading.logs
        for topic, partitions in logs.items():
            for partition, log in partitions.items():
                self._history.check_log(partition, log)
                if topic == ELECTION:
                    self._history.check_leaders(partition, log)
        for consumer in self._consumers:
            consumer.check_seeks(logs[consumer.topic])
        for reader in self._readers:
            reader.check(logs[reader.topic][reader.partition])

    async def _drain(self) -> None:
        """I7: what no consumer acknowledged is given to another one."""
        self._history.begin_again()
        for consumer in self._consumers:
            logs = self._log_reading.logs[consumer.topic]
            try:
                await consumer.run(partial(consumer.drain, logs, acknowledge=self._acknowledges_all))
            except AssertionError:
                missing = {
                    partition: places
                    for partition, log in logs.items()
                    if (places := self._history.missing_deliveries(partition, consumer.name, log))
                }
                if not missing:
                    raise
                places = next(iter(missing.values()))
                self._history.violated(f"I7: {consumer.name} is not given {places[:3]} of {list(missing)}")
                return

    async def _restart(self) -> None:
        """I7: what brokers counted as acknowledged, and wrote when they were closed in order, does not come again."""
        cursors: dict[tuple[str, str], Cursor] = {}
        brokers = self._cluster.brokers
        await self._cluster.until(lambda: all(node.ready for node in brokers), 60.0, "I8: a broker does not start")
        for node in brokers:
            assert isinstance(node.service, BrokerService)
            for topic in node.service.topics.loaded.values():
                if not isinstance(topic, PersistentTopic):
                    continue
                cursors |= {(topic.name.full, name): cursor for name, cursor in topic.ledger.cursors.items()}
            await self._cluster.restart_in_order(node)
        for consumer in self._consumers:
            for place in await consumer.run(partial(consumer.look_again, LOOK_AGAIN_S)):
                cursor = cursors.get((place[0], consumer.name))
                if cursor is not None and not cursor._writer.dirty and cursor._writer.error is None:
                    batch = cursor.batches.get((place[1], place[2]))
                    by_index = self._cluster.settings.acknowledgment_at_batch_index_level_enabled
                    done = by_index and batch is not None and not batch[1] >> place[3] & 1
                    if done or cursor.is_acknowledged((place[1], place[2])):
                        self._history.violated(f"I7: {consumer.name} is given {place} again, acknowledged and written")

    async def _count_copies(self) -> None:
        """I9, and I8 for the copies of a bookie that is gone."""
        cluster = self._cluster
        here = [node for node in cluster.bookies if not node.gone]
        await cluster.until(lambda: all(node.ready for node in here), 60.0, "I8: a bookie does not start")
        gone = [node.name for node in cluster.bookies if node.gone]
        if gone:
            await self._repaired(gone[0])
        await cluster.until(
            partial(copies_are_apart, cluster),
            REPAIR_LIMIT_S,
            "I8: copies stay on one machine, though there are others",
        )
        for node in here:
            await collect(self._cluster, node)
        ledgers = [
            LedgerMetadata.unpack(record.value)
            for key, record in sorted(cluster.records.by_key.items())
            if key.startswith(metadata_keys.LEDGERS_PREFIX)
        ]
        stores = {node.name: node.service.store for node in here}

        def is_there(ledger_id: int) -> bool:
            return metadata_keys.ledger(ledger_id) in cluster.records.by_key

        for sentence in await missing_copies(ledgers, stores, self._harmed(), is_there):
            self._history.violated(sentence)

    async def _repaired(self, gone: str) -> None:
        cluster = self._cluster
        limit_s = cluster.settings.lost_bookie_grace_s * 2 + REPAIR_LIMIT_S
        end = cluster.loop.now + limit_s

        def names_it() -> list[str]:
            return [
                key
                for key, record in cluster.records.by_key.items()
                if key.startswith(metadata_keys.LEDGERS_PREFIX)
                and any(gone in fragment.bookies for fragment in LedgerMetadata.unpack(record.value).fragments)
            ]

        while names := names_it():
            if cluster.loop.now > end:
                self._history.violated(f"I8: {gone} is gone forever, and {names[:5]} name it after {limit_s:.0f} s")
                return
            if cluster.coordinator.ready:
                cluster.coordinator.service.office.auditor.wake()
            await asyncio.sleep(2.0)


async def come_back(workloads: Sequence[Workload]) -> None:
    """Wait until all workloads are as far as before the faults, first for those without which others cannot be.

    An operator may have ordered so many drains that nothing can be published until there are more bookies.
    """
    for workload in workloads:
        workload.healed()
    for workload in sorted(workloads, key=lambda one: not one.revived_first):
        await workload.run(workload.revived, workload.revived_limit_s)


async def finish(cluster: SimCluster, publishers: Sequence[Workload], others: Sequence[Workload]) -> None:
    """Stop the publishers, then the others, one after the other.

    Between the two every broker learns what it has lost: the system is not quiet before. Until then a broker may tell
    a reader of the end of the log that it knows, although another broker has acknowledged messages behind it.
    """
    for workload in publishers:
        await workload.run(workload.stop)
    await cluster.until(partial(owners_agree, cluster), SLOTS_LIMIT_S, "I8: a broker serves what it has lost")
    for workload in others:
        await workload.run(workload.stop)


async def collect(cluster: SimCluster, node: Node) -> None:
    """Let a bookie collect its garbage, until it does: an index may just be built again, or the coordinator change. A
    coordinator that slept since before the faults were over may take office long after that.
    """
    assert node.process is not None
    end = cluster.loop.now + COLLECT_LIMIT_S
    while True:
        try:
            await node.process.spawn(node.service.collect_garbage(major=True), "collect")
            return
        except MagnetarError as error:  # the bookie's own rounds try again, too
            assert cluster.loop.now < end, f"I8: {node.name} cannot collect garbage: {error}"
            await asyncio.sleep(0.1)


def simulate(
    seed: int,
    *,
    with_faults: bool = True,
    validate_every: int | None = None,
    transcript: Transcript | None = None,
    kept_share: float = kept.SHARE,
    kept_kind: str | None = None,
) -> Outcome:
    """Run one seed. `validate_every`: see `validation`; drawn if not given. For the last two see `kept`."""
    history = History()

    def prepare(loop: SimLoop, random: Random, stack: ExitStack) -> Prepared:
        settings = draw_settings(random)
        history.deduplicates = settings.deduplication_enabled
        cluster = SimCluster(loop, random, settings, random.choice((3, 4)), 2)
        cluster.deletion_delay_max_s = random.choice((0.0, 0.0, DELETION_DELAY_MAX_S))
        stack.enter_context(patch.object(owner_methods, "GRANTS_PER_PAGE", random.choice((2, 1000))))
        faults = ClusterFaults(cluster, history, Random(random.getrandbits(64))) if with_faults else None
        validation = Validation(Random(random.getrandbits(64)), cluster.records, validate_every)
        cluster.on_service = validation.watch
        if with_faults:
            share = 0.5 if kept_kind == kept.GROWING else silence_of_database.SHARE
            silence_of_database.install(drawn_apart(random), stack, share)
        watch(cluster, history, faults, stack)
        scenario = Scenario(cluster, history, random, faults, kept_share, kept_kind)
        scenario.watch(stack)

        def evidence() -> object:
            places = (list(history.acknowledged.items()), list(history.places), sorted(history.counts.items()))
            return cluster.network.random.random(), places

        return scenario.run(), evidence

    return run_seed(seed, history, prepare, transcript)


def watch(cluster: SimCluster, history: History, faults: ClusterFaults | None, stack: ExitStack) -> None:
    """Put the checkers beside the nodes until the stack is left."""
    metadata = MetadataWatch(history, cluster.records, topics=True)

    def changed(key: str, before: Versioned | None, after: Versioned | None) -> None:
        history.metadata_changed(key, before, after)
        metadata.changed(key, before, after)
        for listener in cluster.on_record:
            listener(key, before, after)
        if faults is not None:
            faults.metadata_changed(key, before, after)

    stack.enter_context(warnings.catch_warnings())
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # what a killed process had not begun
    cluster.records.watcher = changed
    StoreWatch(history, cluster.records, metadata.deleted).install(stack)
    DeliveryWatch(history).install(stack)
    FirstWatch(history).install(stack)
    AcknowledgeWatch(history).install(stack)
    CursorWatch(history, cluster.records).install(stack)
    leave_watch = LeaveWatch(history, cluster)
    leave_watch.install(stack)
    cluster.on_record.append(leave_watch.metadata_changed)
    rest_watch = RestWatch(history)
    rest_watch.install(stack)
    cluster.on_record.append(rest_watch.metadata_changed)
    ReleaseWatch(history, partial(broker_of, cluster)).install(stack)
    deletion_watch = DeletionWatch(history, cluster.records, SLOTS, partial(broker_of, cluster))
    deletion_watch.install(stack)
    cluster.on_record.append(deletion_watch.metadata_changed)
    publish_watch.install(history, stack)
    StallWatch(history).install(stack)


def broker_of(cluster: SimCluster, owner: SlotOwner) -> BrokerService | None:
    """The service of a broker's incarnation, if it runs."""
    for node in cluster.brokers:
        if node.name == owner.broker and node.running and isinstance(node.service, BrokerService):
            link = node.service.ownership.link
            if link is not None and link.identity.incarnation == owner.incarnation:
                return node.service
    return None
