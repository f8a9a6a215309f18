"""What goes wrong in a whole cluster, besides what `common` has: zombies, races of restarts, orders of administrators,
crashes at a compare-and-set, disks wiped without a word, a bookie that is gone forever, clients that crash."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

from magnetar.actors.coordinator.office import Office
from magnetar.actors.coordinator.owner_methods import PlacementMethods
from magnetar.protocol.errors import MagnetarError
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned
from support.files.faulty_files import FaultyFiles

from ..checkers.history import History
from ..workloads.workload import Workload
from ..world.chance import drawn_apart
from ..world.cluster import BOOKIE, BROKER, SimCluster
from .common import Faults

logger = logging.getLogger("magnetar.simulation")

HARM = ("bit-flip", "misread", "disk-loss", "lost forever")
"""What is counted when a bookie's copies suffer."""
TRAPPED_PREFIXES = (
    "",
    metadata_keys.LEDGERS_PREFIX,
    metadata_keys.MANAGED_PREFIX,
    metadata_keys.CURSORS_PREFIX,
    metadata_keys.SLOTS_PREFIX,
    metadata_keys.TOPICS_PREFIX,
    metadata_keys.COORDINATOR_EPOCH,
)


NAMESPACE = "public/default"
POLICY_RUNS = 0.1
"""Share of runs in which policies change and no broker registers again, which would hide a change that was not told."""
TOPIC_SHARE = 0.5
"""Of the changes of policies."""
TOPICS_WITH_POLICIES = 4
TOPICS_MAX = 100
COMES_BACK_SHARE = 0.4
"""Of the slots that are told to move, those that are back before their owner has heard of that."""
COMES_BACK_LIMIT_S = 3.0
MOVES_ON_SHARE = 0.4
"""Of the topics that are told to move to a given broker, those that move on before it has heard of that."""
UNREACHED = (None, 0, 1 << 20, (1 << 20) + 1)
"""Bounds that nothing in a run reaches: a change shows in what brokers hold, and nowhere else."""


class ClusterFaults(Faults):
    """See the module. Each run draws which kinds it has. `workloads` are those that may be crashed."""

    def __init__(self, cluster: SimCluster, history: History, random: Random) -> None:
        super().__init__(cluster, history, random)
        self.workloads: list[Workload] = []
        self._wiped = random.choice([node for node in cluster.bookies if node is not self._damaged])
        self._own_disk = self._wiped.disk
        self._traps: list[tuple[str, Callable[[], None]]] = []
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.crash, self.pause, self.partition, self.isolate, self.reset, self.slow, self.metadata, self.full_disk,
            self.failing_sync, self.power_loss, self.usurp, self.damage, self.strike, self.zombie, self.restart_race,
            self.close_in_order, self.unload, self.move_slot, self.rebalance, self.crash_at_write, self.wipe,
            self.lose_forever, self.crash_client, self.pause_client, self.delay, self.crash_amid_writes, self.misread,
            self.stutter, self.fade, self.change_policy,
        ]  # fmt: skip
        share = random.choice((0.15, 0.4, 0.7))
        self._kinds = [kind for kind in kinds if random.random() < share] or [random.choice(kinds)]
        if random.random() < POLICY_RUNS:
            beside = (self.slow, self.delay, self.metadata, self.unload, self.crash_client)
            self._kinds = [self.change_policy, self.change_policy, random.choice(beside)]

    @property
    def harmed(self) -> list[str]:
        """The bookie whose disk has lost or mangled what was synced, if one has."""
        return [self._damaged.name] if any(self._history.counts[what] for what in HARM) else []

    async def heal(self) -> None:
        await super().heal()
        for workload in self.workloads:
            workload.revive()

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A write has landed, and nobody has heard of it yet."""
        for trap in [trap for trap in self._traps if key.startswith(trap[0])]:
            self._traps.remove(trap)
            trap[1]()

    # -- processes -------------------------------------------------------------------------------------------------

    async def zombie(self) -> None:
        """A broker or bookie sleeps until its session is over and its work is others', and wakes up."""
        node = self._node(BROKER, BOOKIE)
        process = node.process
        if process is None or not process.alive or process.paused:
            return
        process.pause()
        session_s = self._cluster.settings.session_timeout_s
        end = asyncio.get_running_loop().time() + session_s * (1.1 + self._random.random())
        await self._until(end, f"zombie {node.name}", process.resume)

    async def restart_race(self) -> None:
        """The supervisor begins a node again and again, and each process dies soon, perhaps while it starts."""
        node = self._node()
        self._history.counts["restart-race"] += 1
        logger.info("fault: restarts of %s", node.name)
        for _ in range(self._random.randint(2, 5)):
            self._cluster.stop(node)
            self._cluster.begin(node)
            await asyncio.sleep(self._random.random() ** 2 * 0.5)

    async def close_in_order(self) -> None:
        """A node is told to end, and is killed when it is done, or before that; then it begins again."""
        node = self._node()
        process = node.process
        if process is None or not process.alive or not node.ready:
            return
        patience_s = self._random.choice((0.01, 0.2, 5.0))
        node.wanted = False
        closing = process.spawn(node.service.close(), "close")
        closing.add_done_callback(_heard)

        def begin() -> None:
            self._cluster.stop(node)
            self._cluster.begin(node)

        end = asyncio.get_running_loop().time() + patience_s
        await self._until(end, f"close of {node.name}", begin, lambda: closing.done())

    async def crash_client(self) -> None:
        """A client is killed, and begun again under the same names."""
        candidates = [one for one in self.workloads if one.may_crash and one.process.alive and not one.stopping]
        if candidates:
            workload = self._random.choice(candidates)
            workload.crash()
            await self._for_a_while(f"client-crash of {workload.name}", 3.0, workload.revive)

    async def pause_client(self) -> None:
        """A client sleeps for longer than anybody waits for it, perhaps, and goes on as if nothing had been."""
        process = self._random.choice(self.workloads).process
        if process.alive and not process.paused:
            process.pause()
            await self._for_a_while(f"client-pause of {process.name}", 2 * self.pause_max_s, process.resume)

    async def crash_at_write(self) -> None:
        """A node dies when a compare-and-set has landed and nobody has heard of it: the coordinator, or any other."""
        node = self._cluster.coordinator if self._random.random() < 0.6 else self._node()
        prefix = self._random.choice(TRAPPED_PREFIXES)
        struck: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def strike() -> None:
            self._cluster.stop(node)
            if not struck.done():
                struck.set_result(None)

        trap = (prefix, strike)
        self._traps.append(trap)
        try:
            async with asyncio.timeout(3.0):
                await struck
        except TimeoutError:
            return
        finally:
            if trap in self._traps:
                self._traps.remove(trap)
            self._cluster.begin(node)
        self._history.counts["crash-at-write"] += 1
        logger.info("fault: crash of %s at a write of %s", node.name, prefix or "anything")

    # -- administrators ----------------------------------------------------------------------------------------------

    async def unload(self) -> None:
        """A topic is told to move. Perhaps it moves on before its new owner has heard of that."""
        office = self._office()
        topics = [name for name, _ in office.registry.list_topics(NAMESPACE, "", TOPICS_MAX)] if office else []
        if office is not None and topics:
            destination = self._random.choice((None, *(node.name for node in self._cluster.brokers)))
            topic = self._random.choice(topics)
            await self._order("unload", PlacementMethods(office).unload(topic=topic, destination=destination))
            apart = drawn_apart(self._random)
            if destination is not None and apart.random() < MOVES_ON_SHARE:
                await self._move_on(topic, destination, apart)

    async def _move_on(self, topic: str, late: str, random: Random) -> None:
        """What the coordinator says to a broker over that one's link waits, and a topic has to leave that broker."""
        network, coordinator = self._cluster.network, self._cluster.coordinator.name
        seconds = 0.05 + 0.5 * random.random()
        for connection in network.connections.values():
            asked, accepted = connection.ends
            if (asked.host, accepted.host) == (late, coordinator):
                network.hold(connection, seconds, coordinator)
        await asyncio.sleep(seconds * random.random())
        if (office := self._office()) is not None:
            await self._order("unload again", PlacementMethods(office).unload(topic=topic))

    async def move_slot(self) -> None:
        """A slot with topics is told to move. Perhaps its owner hears of that when it has the slot again."""
        office = self._office()
        used = [slot for slot in range(office.contents.slots) if not office.contents.is_empty(slot)] if office else []
        if office is not None and used:
            destination = self._random.choice((None, *(node.name for node in self._cluster.brokers)))
            slot = self._random.choice(used)
            apart = drawn_apart(self._random)
            if apart.random() < COMES_BACK_SHARE:
                await self._move_and_back(office, slot, apart)
            else:
                await self._order("move-slot", office.rebalancer.move({slot: destination}))

    async def _move_and_back(self, office: Office, slot: int, random: Random) -> None:
        """The request to release a slot is under way when its connection breaks: who asked goes on, and it comes late.
        The slot has left its owner by then, and has come back."""
        network, coordinator = self._cluster.network, self._cluster.coordinator.name
        owner = office.placement.table.get(slot).owner
        if owner is None:
            return
        asking = [
            connection
            for connection in network.connections.values()
            if tuple(end.host for end in connection.ends) == (coordinator, owner.broker)
        ]
        for connection in asking:
            network.hold(connection, random.choice((0.2, 1.0)) * (1.0 + random.random()), coordinator)
        await self._order("move-slot", office.rebalancer.move({slot: None}))
        await asyncio.sleep(0.01)
        for connection in asking:
            network.reset(connection, 1.0)
        end = asyncio.get_running_loop().time() + COMES_BACK_LIMIT_S
        while office.placement.table.get(slot).owner == owner and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        if self._office() is office:
            await self._order("move-slot back", office.rebalancer.move({slot: owner.broker}))

    async def rebalance(self) -> None:
        """Topics are told to spread."""
        office = self._office()
        if office is not None:
            await self._order("rebalance", office.rebalancer.rebalance())

    async def change_policy(self) -> None:
        """A bound of the namespace changes, or that of a topic."""
        office = self._office()
        if office is None:
            return
        policy = self._random.choice(("max_producers_per_topic", "max_unacked_messages_per_consumer"))
        value = self._random.choice(UNREACHED)
        topics = [topic for topic, _ in office.registry.list_topics(NAMESPACE, "", TOPICS_WITH_POLICIES)]
        if topics and self._random.random() < TOPIC_SHARE:
            topic = self._random.choice(topics)
            order = office.topic_policies.set_topic_policy(topic=topic, policy=policy, value=value)
            await self._order("topic policy", order)
        else:
            order = office.namespaces.set_policy(namespace=NAMESPACE, policy=policy, value=value)
            await self._order("policy", order)

    def _office(self) -> Office | None:
        node = self._cluster.coordinator
        return node.service.office if node.ready and node.running else None

    async def _order(self, what: str, order: Coroutine[Any, Any, None]) -> None:
        self._history.counts[what] += 1
        logger.info("fault: %s", what)
        assert self._cluster.coordinator.process is not None
        self._cluster.coordinator.process.spawn(order, what).add_done_callback(_heard)

    # -- disks -----------------------------------------------------------------------------------------------------

    async def wipe(self) -> None:
        """A bookie finds an empty disk under its name, and nobody said that this was to be: it must not serve."""
        node = self._wiped
        if not node.wanted or node.disk is not self._own_disk:
            return
        self._cluster.stop(node)
        node.disk = FaultyFiles(self._random.getrandbits(64))
        self._cluster.begin(node)

        def give_back() -> None:
            if node.ready:
                self._history.violated(f"I1: {node.name} serves from an empty disk that nobody accepted")
            self._cluster.stop(node)
            node.disk = self._own_disk
            self._cluster.begin(node)

        await self._for_a_while(f"wipe of {node.name}", self.down_max_s, give_back)

    async def lose_forever(self) -> None:
        """A bookie goes and never comes back: its copies have to be made again elsewhere."""
        node = self._damaged
        if len(self._cluster.bookies) < 4 or node.gone or node.disk_was_lost:
            return
        self._history.counts["lost forever"] += 1
        logger.info("fault: %s is lost forever", node.name)
        self._cluster.stop(node)
        node.gone = True

    # -- inside ----------------------------------------------------------------------------------------------------

    async def _until(
        self, end: float, what: str, undo: Callable[[], None], done: Callable[[], bool] = lambda: False
    ) -> None:
        """Keep a fault up until a moment, or until it is `done`; `heal` may undo it before."""
        keep = asyncio.get_running_loop().create_task(self._for_a_while(what, 60.0, undo))
        try:
            while asyncio.get_running_loop().time() < end and not done():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        finally:
            keep.cancel()
            await asyncio.gather(keep, return_exceptions=True)


def _heard(task: "asyncio.Task[Any]") -> None:
    """An order may fail; whatever else happens is a finding."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, MagnetarError | OSError | TimeoutError):
        asyncio.get_running_loop().call_exception_handler({"message": "an order failed", "exception": error})
