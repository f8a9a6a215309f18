"""An operator who restarts every process, one after the other, while clients are at work: `Restarting`.

The cluster is one whose members the real supervisor and reconciler keep (`world.supervision`), and the real `Restarts`
takes the steps, in the order of `magnetar restart`. The operator does what that command says: when a restart stops, it
goes on with the processes that are left. While faults strike it may lose its patience, and ask the next coordinator.
In some runs a coordinator is replaced while a bookie waits for its restart, and goes on when the next one restarts
another bookie.

- I17: `RestartWatch`.
- I8: once the faults are over, every process is restarted in time, whatever became of earlier restarts. Then every
  member runs, and none is kept from getting topics.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

from magnetar.actors.broker.service import BrokerService
from magnetar.actors.processes import restarts
from magnetar.cluster.handle import RESTART_ORDER
from magnetar.protocol.errors import MagnetarError
from magnetar.protocol.names import ADMIN_ID, COORDINATOR_ID
from magnetar.storage.managed import chain_writer

from ..checkers.history import History
from ..checkers.restart_watch import RestartWatch
from ..world.cluster import Node, SimCluster
from ..world.supervision import Carrier, Supervision
from .workload import Workload

MACHINES = 3
GRACE_S = 2.0
PACES_S = (0.2, 1.0)
PATIENCES_S = (1.0, 5.0, 100.0)
"""So long the operator waits for one process while faults strike."""
SAFE_S, BACK_S = 20.0, 30.0
"""Bounds of a restart, shorter than those of production: a run takes less than two minutes."""
ROLLOVERS_S = (0.2, 2.0)
"""How long a ledger that lost a bookie is kept."""
LAUNCHES_S = (0.0, 1.0, 2.0)
"""How long a process takes to begin."""
RESTART_LIMIT_S = 80.0
"""I8: every process is restarted so long after the faults are over."""
CALM_AFTER_S = 3.0
"""So long after the last fault what was on its way has arrived."""
REPLACED_SHARE = 0.3
"""Of the runs: a coordinator is replaced while it restarts a bookie."""
WAIT_MAX_S = 0.1
ASLEEP_MAX_S = 6.0
TICK_S = 0.05
AGAIN_S = 0.5


class Restarting(Workload):
    """See the module. `harmed` names the bookies whose disks have lost something."""

    revived_limit_s = RESTART_LIMIT_S + 60.0

    def __init__(
        self, cluster: SimCluster, history: History, random: Random, name: str, harmed: Callable[[], list[str]]
    ) -> None:
        super().__init__(cluster, history, random, name)
        cluster.settings = replace(cluster.settings, lost_bookie_grace_s=GRACE_S)
        self._supervision = Supervision(cluster, MACHINES)
        self._supervision.on_close = self._closes
        self._supervision.launch_s = random.choice(LAUNCHES_S)
        self._supervision.on_back = lambda node: self._watch.is_back(node.name)
        self._watch = RestartWatch(history, cluster.records)
        self._harmed = harmed
        self._pace_s = random.choice(PACES_S)
        self._patience_s = random.choice(PATIENCES_S)
        self._rollover_s = random.choice(ROLLOVERS_S)
        self._replaces = random.random() < REPLACED_SHARE

    def watch(self, stack: ExitStack) -> None:
        self._watch.install(stack)
        stack.enter_context(patch.object(restarts, "SAFE_TIMEOUT_S", SAFE_S))
        stack.enter_context(patch.object(restarts, "SETTLE_TIMEOUT_S", SAFE_S))
        stack.enter_context(patch.object(restarts, "BACK_TIMEOUT_S", BACK_S))
        stack.enter_context(patch.object(chain_writer, "DEGRADED_ROLLOVER_MIN_S", self._rollover_s))

    def _closes(self, node: Node, carrier: Carrier) -> None:
        kept = carrier.supervisor._kept.get(node.name)
        if kept is None or kept.target != kept.node:
            return  # it moves, or shall end
        there = [one.name for one in (*self.cluster.brokers, *self.cluster.bookies) if not one.gone]
        self._watch.waits_for([*there, ADMIN_ID])
        others = [one for one in (*self.cluster.brokers, *self.cluster.bookies) if one is not node and not one.gone]
        has_session = {session.node_id for session in carrier.office.membership.all()}
        down = [one.name for one in others if not one.running or not (one.ready or one.name in has_session)]
        takers = [one for one in others if one in self.cluster.brokers]
        service = node.service
        served = service.topics.table.all_granted() if isinstance(service, BrokerService) and takers else []
        serves = [topic.full_name for topic in served]
        self._watch.closes(node.name, carrier.process, down, serves)
        if node in self.cluster.bookies:
            stores = {one.name: one.service.store for one in others if one in self.cluster.bookies and one.ready}
            self._watch.copies(node.name, stores, self._harmed(), self.cluster.loop.now)

    # -- while faults strike -------------------------------------------------------------------------------------------

    async def setup(self) -> None:
        self.connect()

    async def start(self) -> None:
        self.begin(self._operate(), "operate")

    async def _operate(self) -> None:
        left: list[str] = []
        while not self.stopping:
            await asyncio.sleep(self.random.random() * 2 * self._pace_s)
            if self.stopping:
                return
            if self._replaces and await self._replace():
                return
            left = left or self._every()
            if left and await self._restart(left[0], self._patience_s):
                del left[0]

    async def _replace(self) -> bool:
        """Two coordinators restart a bookie each: one sleeps while it waits, and wakes when the next one is at work.

        Whether a coordinator was there to be replaced.
        """
        carrier, coordinator = self._carrier(), self.cluster.coordinator
        if carrier is None or carrier.process.paused:
            return False
        first, second = self.random.sample([node.name for node in self.cluster.bookies], 2)
        carrier.process.spawn(carrier.restarts.restart(first), "restart").add_done_callback(_heard)
        await asyncio.sleep(self.random.random() * WAIT_MAX_S)
        carrier.process.pause()
        self.history.counts["replaced amid a restart"] += 1
        try:
            if coordinator.process is carrier.process:
                self.cluster.replace(coordinator)
            end = self.cluster.loop.now + ASLEEP_MAX_S * self.random.random()
            while self.cluster.loop.now < end and not self.stopping:
                await self._restart(second, end - self.cluster.loop.now)
                await asyncio.sleep(TICK_S)
        finally:
            carrier.process.resume()
        return True

    def _every(self) -> list[str]:
        """All processes, in the order in which they are restarted; none while no coordinator has taken office."""
        carrier = self._supervision.carrier
        known = carrier.supervisor.status() if carrier is not None else []
        members = sorted(known, key=lambda one: RESTART_ORDER.index(one["role"]))
        return [*(one["node_id"] for one in members), COORDINATOR_ID] if members else []

    async def _restart(self, member: str, patience_s: float) -> bool:
        """Restart a process; whether that was done. As `RayCluster` does."""
        carrier = self._carrier()
        if carrier is None:
            return False
        if member != COORDINATOR_ID:
            return await self._order(carrier, carrier.restarts.restart(member), f"restart {member}", patience_s)
        await self._order(carrier, self._supervision.end_coordinator(carrier), "restart coordinator", patience_s)
        if self._carrier() is carrier:
            return False
        end = self.cluster.loop.now + patience_s
        while (following := self._carrier()) is None or following.office.epoch <= carrier.office.epoch:
            if self._gives_up(end):
                return False
            await asyncio.sleep(TICK_S)
        return await self._order(following, following.restarts.settle(member), "settle", patience_s)

    def _carrier(self) -> Carrier | None:
        """The coordinator that answers, with what carries it."""
        node, carrier = self.cluster.coordinator, self._supervision.carrier
        return carrier if node.ready and carrier is not None and carrier.process is node.process else None

    async def _order(self, carrier: Carrier, order: Coroutine[Any, Any, Any], name: str, patience_s: float) -> bool:
        """Have a coordinator do something; whether it says that it is done. What takes too long goes on by itself."""
        task = carrier.process.spawn(order, name)
        self.history.counts[name.partition(" ")[0]] += 1
        end = self.cluster.loop.now + patience_s
        while not task.done():
            if not carrier.process.alive or self._carrier() is not carrier or self._gives_up(end):
                task.add_done_callback(_heard)
                return False
            await asyncio.sleep(TICK_S)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, MagnetarError):
            raise error
        if error is not None:
            self.history.counts[f"restart failed: {type(error).__name__}"] += 1
        return error is None and not task.cancelled()

    def _gives_up(self, end: float) -> bool:
        return self.stopping or self.cluster.loop.now > end

    # -- afterwards ----------------------------------------------------------------------------------------------------

    async def revived(self) -> None:
        """The faults are over: restart every process, as long as the other clients are at work."""
        self.stopping = True
        for task in self.tasks:
            await task
        self.stopping = False
        end = self.cluster.loop.now + RESTART_LIMIT_S
        for lost in [node.name for node in self.cluster.bookies if node.gone]:
            await self._drain(lost, end)
        await asyncio.sleep(CALM_AFTER_S)
        before = {node.name: node.process for node in self.cluster.nodes}
        self._watch.calm = True
        while not (left := self._every()):  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)
        while left:
            if await self._restart(left[0], RESTART_LIMIT_S):
                if any(node.process is before[node.name] for node in self.cluster.nodes if node.name == left[0]):
                    self.history.violated(f"I8: {left[0]} is said to be restarted, and is as before")
                del left[0]
            elif self.cluster.loop.now > end:
                self.history.violated(f"I8: {left} are not restarted {RESTART_LIMIT_S:.0f} s after the last fault")
                return
            else:
                await asyncio.sleep(AGAIN_S)
        self._watch.calm = False
        carrier = self._carrier()
        resting = sorted(carrier.office.desired.emptied) if carrier is not None else ["nobody knows who"]
        if wrong := self._supervision.unsettled() + resting:
            self.history.violated(f"I8: after a restart of all, {wrong} do not run, or get no topics")

    async def _drain(self, member: str, end: float) -> None:
        """Strike a bookie off that is gone for good: nothing is restarted while it is missed."""
        ordered = False
        while member in self._supervision.desired:
            carrier = self._carrier()
            if carrier is not None and not ordered:
                ordered = await self._order(carrier, carrier.office.drains.desired.drain(member), "drain", AGAIN_S)
            assert self.cluster.loop.now < end, f"I8: {member} is not drained"
            await asyncio.sleep(TICK_S)


def _heard(task: "asyncio.Task[Any]") -> None:
    """Nobody waits for the answer any longer."""
    if not task.cancelled():
        task.exception()
