"""An operator who scales, drains and undrains brokers and bookies while clients are at work: `Draining`.

The cluster is one whose members the real supervisor and reconciler keep (`world.supervision`). The operator also lets a
machine nearly go, so that brokers move to others, and drains bookies that are gone for good.

- I9: `RetirementWatch`.
- I8: once the faults are over and there are enough bookies, every drain ends, every member that should run does, and
  brokers that were retired own nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any

from magnetar.actors.coordinator.desired_methods import DesiredMethods

from ..checkers.history import History
from ..checkers.retirement_watch import RetirementWatch
from ..world.cluster import Node, SimCluster
from ..world.supervision import Supervision
from .workload import Workload

MACHINES = 3
BROKERS_MAX = 4
BOOKIES_EVER_MAX = 9
"""So many bookies a run begins at most: each costs time."""
GRACE_S = 2.0
PACES_S = (0.5, 1.5)
ORDERS_MAX = (2, 4, 1000)
"""After the last order what was ordered has to happen by itself, whatever becomes of the coordinator."""
LATE_SHARE = 0.5
"""Of the drains that are taken back: at the last moment."""
LATE_LIMIT_S = 4.0
LATE_TICK_S = 0.005
LATE_MAX_S = 0.08
SETTLE_LIMIT_S = 55.0
"""I8: everything is as it should be so long after the last order."""
TICK_S = 0.1


class Draining(Workload):
    """See the module. `harmed` names the bookies whose disks have lost something."""

    revived_first = True

    def __init__(
        self, cluster: SimCluster, history: History, random: Random, name: str, harmed: Callable[[], list[str]]
    ) -> None:
        super().__init__(cluster, history, random, name)
        cluster.settings = replace(cluster.settings, lost_bookie_grace_s=GRACE_S)
        cluster.client_hosts = [f"broker-{number}" for number in range(1, BROKERS_MAX + 1)]
        self._supervision = Supervision(cluster, MACHINES)
        self._supervision.on_retired = self._retired
        self._supervision.on_erased = self._erased
        self._retirement = RetirementWatch(history, cluster.records)
        self._harmed = harmed
        self._pace_s = random.choice(PACES_S)
        self._orders_max = random.choice(ORDERS_MAX)
        self._gone: dict[str, None] = {}
        """Brokers that were retired."""

    def watch(self, stack: ExitStack) -> None:
        self._retirement.install(stack)

    def _retired(self, node: Node) -> None:
        if node in self.cluster.brokers:
            self._gone[node.name] = None
        others = [one for one in self.cluster.bookies if one is not node and one.ready and one.running]
        stores = {one.name: one.service.store for one in others}
        self._retirement.retired(node.name, serves(node), stores, self._harmed())

    def _erased(self, node: Node) -> None:
        self._retirement.erased(node.name, serves(node), self._supervision.desired)

    # -- while faults strike -------------------------------------------------------------------------------------------

    async def setup(self) -> None:
        self.connect()

    async def start(self) -> None:
        self.begin(self._operate(), "operate")

    async def _operate(self) -> None:
        for _ in range(self._orders_max):
            await asyncio.sleep(self.random.random() * 2 * self._pace_s)
            if self.stopping:
                return
            await self.random.choice((self._scale, self._drain, self._drain, self._undrain, self._leave))()

    async def _scale(self) -> None:
        brokers = self.random.choice((None, self.random.randint(1, BROKERS_MAX)))
        wanted = len(self._supervision.desired.wanted_bookies)
        bookies = self.random.choice((None, wanted - 1, wanted + 1))
        if bookies is not None and bookies > wanted and self._supervision.desired.bookies_ever >= BOOKIES_EVER_MAX:
            bookies = None
        await self._order("scale", lambda desired: desired.scale(brokers=brokers, bookies=bookies))

    async def _drain(self) -> None:
        desired = self._supervision.desired
        member = self.random.choice([*desired.wanted_brokers, *desired.wanted_bookies])
        if member in desired.wanted_bookies and len(desired.wanted_bookies) <= self.cluster.settings.ensemble_size:
            if desired.bookies_ever >= BOOKIES_EVER_MAX:
                return
            more = len(desired.wanted_bookies) + 1
            await self._order("scale", lambda desired: desired.scale(bookies=more))
        await self._order("drain", lambda desired: desired.drain(member=member))

    async def _undrain(self) -> None:
        draining = sorted(self._supervision.desired.draining)
        if not draining:
            return
        member = self.random.choice(draining)
        if self.random.random() < LATE_SHARE:
            await self._until_ended(member)
        await self._order("undrain", lambda desired: desired.undrain(member=member))

    async def _until_ended(self, member: str) -> None:
        """Wait until its process has ended because it is empty: soon nothing can keep it any longer."""
        node = next((one for one in self.cluster.nodes if one.name == member), None)
        end = self.cluster.loop.now + LATE_LIMIT_S
        while node is not None and node.running and self.cluster.loop.now < end:  # noqa: ASYNC110
            await asyncio.sleep(LATE_TICK_S)
        await asyncio.sleep(self.random.random() * LATE_MAX_S)

    async def _leave(self) -> None:
        """A machine is about to go, or stays after all."""
        machine = self.random.choice(self._supervision.machine_names)
        leaves = machine not in self._supervision.leaving and len(self._supervision.leaving) < MACHINES - 1
        self.history.counts["machines leaving"] += leaves
        self._supervision.leave(machine, leaves=leaves)

    async def _order(self, name: str, order: Callable[[DesiredMethods], Coroutine[Any, Any, Any]]) -> bool:
        node = self.cluster.coordinator
        if not node.running or not node.ready:
            return False
        self.history.counts[name] += 1
        done, _ = await self.ask(node, order(node.service.desired), name)
        return done

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def revived(self) -> None:
        """The faults are over: have enough bookies, or nothing could be published. Else what was ordered has to do."""
        self.stopping = True
        for task in self.tasks:
            await task
        self.stopping = False
        for machine in list(self._supervision.leaving):
            self._supervision.leave(machine, leaves=False)
        lost = [node.name for node in self.cluster.bookies if node.gone]
        enough = self.cluster.settings.ensemble_size + len(lost)
        if len(self._supervision.desired.wanted_bookies) >= enough:
            return
        while not await self._order("scale", lambda desired: desired.scale(brokers=2, bookies=enough)):  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)
        for member in lost:
            if self.random.random() < 0.5:
                await self._order("drain", lambda desired, member=member: desired.drain(member=member))  # type: ignore[misc]

    async def stop(self) -> None:
        """Wait until all is as the desired state says."""
        self.stopping = True
        end = self.cluster.loop.now + SETTLE_LIMIT_S
        while left := self._supervision.unsettled() or self._left_behind():
            if self.cluster.loop.now > end:
                self.history.violated(f"I8: {left} are not as the desired state says after {SETTLE_LIMIT_S:.0f} s")
                return
            await asyncio.sleep(TICK_S)

    def _left_behind(self) -> list[str]:
        """Topics of brokers that are retired."""
        if not self.cluster.coordinator.ready:
            return ["the coordinator"]
        table = self.cluster.coordinator.service.office.placement.table
        desired = self._supervision.desired
        gone = [broker for broker in self._gone if broker not in desired]
        return [one for broker in gone for one in (*map(str, table.slots_of(broker)), *table.exceptions_of(broker))]


def serves(node: Node) -> bool:
    """Whether a process runs that has registered. One that is refused does no harm."""
    return node.running and node.ready
