"""Ledgers under simulation, without brokers: cheap seeds that meet fencing, recovery and collection often.

A run: start → writers, recoverers and owners under faults (safety) → heal → what is under way ends (I8) → one bookie
may hang → a judge recovers and reads everything, and compares → collections and copies are complete → in
a share of the runs older metadata is restored, and a judge looks again → close.
"""

import asyncio
import dataclasses
import logging
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from magnetar.actors.auditor import orphans as orphan_ledgers
from magnetar.actors.auditor import service as auditor
from magnetar.actors.bookie import copying
from magnetar.actors.bookie import service as bookie
from magnetar.protocol.errors import MagnetarError, NoSuchLedger
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.bookie import entry_reads, entry_store, segment_reader
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.metadata.store import Versioned

from ..checkers.copies_watch import lacking_copies
from ..checkers.ledger_history import LedgerHistory
from ..checkers.metadata_watch import MetadataWatch
from ..checkers.moves_watch import MovesWatch
from ..checkers.store_watch import StoreWatch
from ..checkers.validation import Validation
from ..faults.ledgers import LedgerFaults
from ..workloads.idle_topic import IdleTopicLife
from ..workloads.ledgers import LedgerLife, Life, TopicLife, Usage, read_ledger
from ..workloads.restoring_ledgers import LedgerRestoring
from ..world.chance import drawn_apart
from ..world.cluster import BOOKIE
from ..world.harness import Outcome, Prepared, run_seed
from ..world.ledgers import Host, LedgerWorld
from ..world.loop import SimLoop
from ..world.process import Process
from ..world.transcript import Transcript

logger = logging.getLogger("magnetar.simulation")

SAFETY_S = 2.5
READY_LIMIT_S = 30.0
STOP_LIMIT_S = 60.0
JUDGE_LIMIT_S = 20.0
"""A recovery with all bookies but one has to come to its end much sooner than a time-out of `HANGING_READ_S`. One of a
hundred entries over a slow link takes 10 s."""
HANGING_READ_S = 60.0
WHOLE_LIMIT_S = 120.0
"""Besides the graces that are waited for."""
AUDIT_S = 20.0
"""So often an auditor looks at everything in the end, whatever its settings say."""
SCRUB_SOON_S = 3.0
RESTORED_SHARE = 0.15
"""Of the runs end with older metadata."""
DISK_STEPS_MAX = 10
"""An add that waits for others on a slow disk takes so many steps of its delay at most."""
HANDLES_MAX = 200_000
"""A run takes some 6,000, a long one 40,000."""

SEGMENT_BYTES = (4 << 10, 32 << 10, 1 << 20)
"""Small files are full, sealed and compacted often."""

QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (3, 2, 2), (4, 3, 2), (2, 2, 2))


def draw_settings(random: Random) -> Settings:
    """Short times, so that what takes a cluster minutes happens in a run; hostile values now and then."""
    hostile = {
        field.name: field.metadata["hostile"]
        for field in dataclasses.fields(Settings)
        if field.metadata.get("hostile") is not None and random.random() < 0.15
    }
    ensemble_size, write_quorum, ack_quorum = random.choice(QUORUMS)
    drawn = {
        "add_entry_timeout_s": random.choice((0.2, 0.5, 2.0)),
        "read_entry_timeout_s": random.choice((0.2, 1.0, HANGING_READ_S)),
        "ledger_entries_max": random.choice((3, 10, 50_000)),
        "ledger_rollover_min_minutes": 0,
        "cursor_flush_interval_s": random.choice((0.01, 0.2, 2.0)),
        "cursor_ledger_entries_max": random.choice((2, 50_000)),
        "cache_size_mb": random.choice((0, 64)),
        "gc_interval_ms": random.choice((100, 500, 900_000)),
        "major_compaction_interval_s": random.choice((0.5, 86400.0)),
        "auditor_interval_s": random.choice((1.0, 600.0)),
        "lost_bookie_grace_s": random.choice((0.3, 2.0, 60.0)),
        "ensemble_size": ensemble_size,
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "segment_size_bytes": 1 << 20,
        "disk_check_interval_ms": 500,
        "scrub_interval_s": random.choice((SCRUB_SOON_S, SCRUB_SOON_S, 604_800.0)),
        "scrub_bytes_per_s": 1 << 30,
        "bookie_pending_bytes_max": random.choice((1 << 16, 64 << 20)),
    }
    if random.random() < 0.2:
        drawn |= {"max_message_size_bytes": 30_000, "bookie_frame_size_max_bytes": 32_768}
    hostile.pop("session_timeout_s", None)
    return Settings(**{**hostile, **drawn})


class LedgerScenario:
    """One run. `simulate` makes and runs it."""

    def __init__(self, loop: SimLoop, random: Random, history: LedgerHistory, stack: ExitStack, faulty: bool) -> None:
        self.history = history
        self.random = random
        settings = draw_settings(random)
        count = max(settings.ensemble_size, 3) + random.choice((0, 0, 1, 2))
        self.audited = random.random() < 0.4
        self.orphans_hurried = history.unnamed_go = self.audited and random.random() < 0.3
        self.disk_delay_s = random.choice((0.0005, 0.0005, 0.005, 0.03))
        # A time-out that is shorter than what a bookie needs never ends a recovery while another bookie hangs.
        timeout_s = max(settings.add_entry_timeout_s, DISK_STEPS_MAX * self.disk_delay_s)
        self.settings = settings = dataclasses.replace(settings, add_entry_timeout_s=timeout_s)
        self.world = LedgerWorld(
            loop,
            random,
            settings,
            count,
            random.choice((2, 3)),
            auditor=self.audited,
            disk_delay_s=self.disk_delay_s,
        )
        self.faults = LedgerFaults(self.world, history, Random(random.getrandbits(64)))
        self.faulty = faulty
        self.restoring: LedgerRestoring | None = None
        if random.random() < RESTORED_SHARE and not self.orphans_hurried:  # unnamed ledgers must last until the end
            self.restoring = LedgerRestoring(self.world, history, Random(random.getrandbits(64)))
        self._watch(stack)

    def _watch(self, stack: ExitStack) -> None:
        records = self.world.records
        metadata = MetadataWatch(self.history, records)  # type: ignore[arg-type]  # it is only told of violations
        moves = MovesWatch(self.history, self._stores)

        def changed(key: str, before: Versioned | None, after: Versioned | None) -> None:
            self.history.metadata_changed(key, before, after)
            metadata.changed(key, before, after)
            moves.changed(key, before, after)
            self.world.record_changed(key, before, after)

        records.watcher = changed
        self.faults.install(stack)
        stack.enter_context(patch.object(entry_store, "TOMBSTONE_RUNS_MAX", self.random.choice((2, 4, 10_000))))
        small = partial(BookieStore, segment_bytes=self.random.choice(SEGMENT_BYTES))
        stack.enter_context(patch.object(bookie, "BookieStore", small))
        if self.random.random() < 0.5:
            stack.enter_context(patch.object(segment_reader, "ENTRIES_PER_READ_MAX", self.random.choice((1, 2, 5))))
        if self.random.random() < 0.5:  # ledgers too large for one question
            stack.enter_context(patch.object(entry_reads, "HELD_ENTRIES_MAX", self.random.choice((1, 3))))
            stack.enter_context(patch.object(entry_reads, "VERIFY_BYTES", 1))
            stack.enter_context(patch.object(entry_reads, "VERIFY_S", self.random.choice((0.0, 0.05))))
            apart = drawn_apart(self.random)
            stack.enter_context(patch.object(copying, "COPY_S", apart.choice((0.0, 0.05))))
            stack.enter_context(patch.object(copying, "LOOK_S", 0.0))
            stack.enter_context(patch.object(copying, "READ_BYTES", apart.choice((1, 1 << 20))))
        if self.random.random() < 0.5:
            stack.enter_context(patch.object(auditor, "FIRST_ROUND_DELAY_S", 0.2))
        if self.orphans_hurried:  # its safety does not rest on any of these times
            stack.enter_context(patch.object(orphan_ledgers, "ORPHAN_AFTER_S", 0.1))
            stack.enter_context(patch.object(orphan_ledgers, "SEARCH_PAUSE_S", 0.05))
        StoreWatch(self.history, records, metadata.deleted).install(stack)  # type: ignore[arg-type]

    async def run(self) -> None:
        """Raises AssertionError, beginning with the invariant, where a wait is in vain, or work leads nowhere."""
        loop = self.world.loop
        going = loop.create_task(self._run())
        while not going.done():
            await asyncio.wait([going], timeout=0.25)
            assert loop.handles_run < HANDLES_MAX, f"I8: {HANDLES_MAX} handles have run, and it goes on and on"
        await going

    async def _run(self) -> None:
        world, random = self.world, self.random
        await world.start()
        lives = self._draw_lives()
        for life in lives:
            life.start()
        if self.faulty:
            self.faults.start()
        if self.restoring is not None:
            self.restoring.back_up_within(SAFETY_S)
        await asyncio.sleep(SAFETY_S)
        if self.restoring is not None:
            await self.restoring.moved()
        if self.faulty:
            await self.faults.heal()
        nodes = [node for node in world.nodes if node.wanted]
        await world.until(lambda: all(node.ready for node in nodes), READY_LIMIT_S, "I8: a node does not start")
        idle = [life for life in lives if isinstance(life, IdleTopicLife)]
        busy = [life for life in lives if life not in idle]
        for life in busy:
            await life.stop(STOP_LIMIT_S)
        # A bookie that was full says so until it has looked at its disk again. A second one must not be silent then.
        await world.until(
            lambda: all(store.writable for store in self._stores().values()),
            READY_LIMIT_S,
            "I8: a bookie stays read-only",
        )
        judge = await self._make_judge("judge")
        hung = self._hang() if random.random() < 0.4 else None
        for life in busy:
            if isinstance(life, TopicLife):
                await judge.process.spawn(life.judge(judge, JUDGE_LIMIT_S), "judge")
        await self._settle_all(judge)
        if hung is not None:
            hung.resume()
        if self.audited:
            await self._repaired()
        for life in idle:
            await life.stop(STOP_LIMIT_S)
            await judge.process.spawn(life.judge(judge, JUDGE_LIMIT_S), "judge")
        if self.restoring is not None:
            await self.restoring.restore(self._make_judge, JUDGE_LIMIT_S)
        elif random.random() < 0.2:
            await world.close()

    def _draw_lives(self) -> list[Life]:
        world, history, random = self.world, self.history, self.random
        topics = random.choice((0, 0, 1))
        lives: list[Life] = []
        for number in range(topics):
            chance = Random(random.getrandbits(64))
            topic = f"persistent/public/default/topic-{number}"
            lives.append(TopicLife(world, history, chance, Usage.draw(random), topic, random.randint(1, 2)))
        for _ in range(random.choice((0, 1)) if topics else random.choice((1, 2, 3))):
            lives.append(LedgerLife(world, history, Random(random.getrandbits(64)), Usage.draw(random)))
        if random.random() < 0.3:
            chance, topic = Random(random.getrandbits(64)), "persistent/public/default/idle"
            lives.append(IdleTopicLife(world, history, chance, Usage.draw(random), topic, random.randint(1, 2)))
        return lives

    async def _make_judge(self, name: str) -> Host:
        """A host that has seen no fault, connected to every bookie."""
        process = self.world.client_process(name)

        async def make() -> Host:
            host = self.world.make_host(process)
            for node in self.world.bookies:
                try:
                    await host.client.read_lac(node.name, 0, 0, timeout_s=5.0)
                except NoSuchLedger:
                    continue
                except MagnetarError as error:
                    logger.info("%s cannot be asked yet: %s", node.name, error)
            return host

        return await process.spawn(make(), "make")

    def _hang(self) -> Any:
        """A bookie stops answering, without ending its connections: the one that may be damaged, so that the copies of
        every entry that the others hold suffice. None when the others could not go on alone."""
        settings = self.settings
        healthy = len(self.world.bookies) - 1
        if healthy < max(settings.ensemble_size, 3) and settings.write_quorum == settings.ack_quorum:
            return None
        if healthy < settings.ack_quorum:
            return None
        process = self.faults.damaged.process
        assert process is not None
        process.pause()
        logger.info("%s hangs", process.name)
        self.history.counts["hung bookies"] += 1
        return process

    async def _settle_all(self, judge: Host) -> None:
        """Recover and read every ledger that is left; each within the bound."""
        for ledger_id in self.history.used:
            try:
                await self._within(judge, self._settle(judge, ledger_id), f"settle-{ledger_id}")
            except AssertionError:
                if ledger_id not in self.history.deleted:  # while it was read: then a hung bookie is waited for
                    raise

    async def _settle(self, judge: Host, ledger_id: int) -> None:
        while True:
            try:
                metadata = await judge.ledgers.recover(ledger_id)
                await read_ledger(judge, self.history, metadata)
                return
            except NoSuchLedger:
                return
            except MagnetarError as error:
                self.history.counts[f"settling failed: {type(error).__name__}"] += 1
                await asyncio.sleep(0.25)

    async def _repaired(self) -> None:
        """I8: limbo ends, whatever is open and idle beside it, and (I8 copies) every copy comes back."""
        world = self.world
        limit_s = WHOLE_LIMIT_S + 2 * self.settings.lost_bookie_grace_s
        end, audit_at = world.loop.now + limit_s, world.loop.now + AUDIT_S
        while True:
            limbo = world.limbo()
            lacking = lacking_copies(self.history.ledgers, self._stores()) if self._scrubs_soon and not limbo else []
            if not limbo and not lacking:
                return
            if world.loop.now > end:
                for sentence in lacking or [f"I8: {', '.join(limbo)} does not leave limbo within {limit_s:.0f} s"]:
                    self.history.violated(sentence)
                return
            if world.loop.now > audit_at and world.coordinator.ready:
                audit_at = world.loop.now + AUDIT_S
                world.coordinator.service.wake()
            await asyncio.sleep(0.5)

    @property
    def _scrubs_soon(self) -> bool:
        return self.settings.scrub_interval_s <= SCRUB_SOON_S

    def _stores(self) -> dict[str, BookieStore]:
        return {node.name: node.service.store for node in self.world.bookies if node.ready and node.running}

    async def _within(self, judge: Host, coroutine: Any, name: str) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(JUDGE_LIMIT_S):
                await coroutine

        try:
            await judge.process.spawn(bounded(), name)
        except TimeoutError:
            raise AssertionError(f"I8: {name} took over {JUDGE_LIMIT_S:.0f} s") from None


def simulate(
    seed: int, *, with_faults: bool = True, validate_every: int | None = None, transcript: Transcript | None = None
) -> Outcome:
    """Run one seed. `validate_every`: see `validation`, of which bookies have their part here; drawn if not given."""
    history = LedgerHistory()

    def prepare(loop: SimLoop, random: Random, stack: ExitStack) -> Prepared:
        scenario = LedgerScenario(loop, random, history, stack, with_faults)
        validation = Validation(Random(random.getrandbits(64)), scenario.world.records, validate_every)

        def made(process: Process, kind: str, service: Any) -> None:
            if kind == BOOKIE:
                validation.watch(process, kind, service)

        scenario.world.on_service = made
        places, counts = history.places, history.counts
        return scenario.run(), lambda: (scenario.world.network.bytes_sent, list(places), sorted(counts.items()))

    return run_seed(seed, history, prepare, transcript)
