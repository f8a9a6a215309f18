"""Desired state × machines → processes: gives each member its target, and ends those that were drained.

It runs beside the active coordinator. A pass follows each change of the desired state, of the machines, and of what a
process runs on. A pass reads the cookies that the metadata knows, asks `desired.planner`, and hands the targets to the
supervisor. So a pass that fails, or that was based on what is no longer true, is repaired by the next.

Members on a machine that leaves are told to the coordinator, which gives them nothing new and moves their topics. A
broker that moves or is restarted (`restarts`) is emptied first, for up to RELEASE_TIMEOUT_S.

EVEN_OUT_AFTER_S after the last change of machines or members, brokers are spread: one moves, then the next.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from ...protocol.errors import MagnetarError
from ...protocol.names import ROLE_BROKER
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ..desired.planner import Machine, Observed, RunOn, Targets, WaitFor, plan
from .plan import ClusterPlan, NodePlan
from .supervisor import Launcher, Supervisor, Target

if TYPE_CHECKING:
    from ..coordinator.office import Office

logger = logging.getLogger(__name__)

Handle = TypeVar("Handle")

EVEN_OUT_AFTER_S = 15.0
PASS_RETRY_S = 1.0
RELEASE_TIMEOUT_S = 20.0
RELEASE_PAUSE_S = 0.1
ERASE_TRIES = 3
"""How often a directory is removed at most: a large one takes longer than a look at a machine may."""


class MachineWatch(Protocol):
    """The machines that are alive."""

    on_change: Callable[[], None]
    data_awaited: bool

    @property
    def machines(self) -> Sequence[Machine]: ...
    def start(self) -> None: ...
    async def close(self) -> None: ...


class OneMachine:
    """The watch of an embedded cluster: one machine, always."""

    def __init__(self, machine: Machine) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.data_awaited = False
        self.machines: Sequence[Machine] = (machine,)

    def start(self) -> None:
        """Nothing is watched."""

    async def close(self) -> None:
        """Nothing is watched."""


class Reconciler(Generic[Handle]):
    """See the module."""

    def __init__(
        self,
        env: Environment,
        plan: ClusterPlan,
        supervisor: Supervisor[Handle],
        machines: MachineWatch,
        launcher: Launcher[Handle],
    ) -> None:
        self._env = env
        self._plan = plan
        self._supervisor = supervisor
        self._machines = machines
        self._launcher = launcher
        self._office: Office | None = None
        self._ended: dict[str, str | None] = {}
        """Members that a drain has ended, and the Ray node on which each ran; None for one that ran nowhere."""
        self._resumed: dict[str, str] = {}
        """Those that may be started again, and that have no target yet: they go back where they were."""
        self._leaving: list[str] = []
        self._resting = ""
        self._wake = asyncio.Event()
        self._even_out_at = 0.0
        self._tasks = Tasks()
        self.nodes: dict[str, NodePlan] = {node.node_id: node for node in plan.members}
        """The members that have a machine, and where they run or are about to."""
        machines.on_change = self._changed
        supervisor.release = self._release

    async def start(self, office: "Office", running_on: dict[str, str]) -> None:
        """Begin. `running_on` says on which Ray nodes members run already."""
        self._office = office
        try:
            await self._pass(running_on)
        except MagnetarError as error:
            logger.warning("the first look at what should run failed: %s", error)
        self._supervisor.on_moved = self._wake.set
        self._machines.start()
        self.follow(office)
        self._tasks.spawn(self._run(), "reconcile")

    def follow(self, office: "Office") -> None:
        """Work for this coordinator from now on. Members that the former one has ended run again: its drains do not go
        on. This one's begin again with those that still drain, and know of no other."""
        self._office = office
        for member in list(self._ended):
            self.resume(member)
        office.desired.on_change.append(self._changed)
        office.drains.processes = self
        self._changed()

    @property
    def office(self) -> "Office | None":
        """The coordinator's, None before the start."""
        return self._office

    def rest(self, member: str) -> None:
        """Have a member get nothing new until it is another's turn; empty for none."""
        self._resting = member
        if self._office is not None:
            self._tell_leaving(self._office)

    async def close(self) -> None:
        """End; the processes run on."""
        await self._tasks.close()
        await self._machines.close()

    # -- what a drain asks for -----------------------------------------------------------------------------------------

    async def end(self, member: str) -> None:
        """Close the process of a drained member, and keep it from being started; returns when it has ended."""
        self._ended.setdefault(member, self._supervisor.assigned_to().get(member))
        self._supervisor.retarget({one: node for one, node in self._supervisor.targets().items() if one != member})
        await self._supervisor.wait_gone(member)

    def resume(self, member: str) -> None:
        """It may be started again, and is if it is wanted."""
        place = self._ended.pop(member, None)
        if place is not None:
            self._resumed[member] = place
        self._wake.set()

    async def erase(self, bookie: str) -> str:
        """Remove the directory of a retired bookie. Returns why it is left over, and what to do; else nothing.

        A bookie that ran under this coordinator is known. Else a machine has its cookie, which is removed last.
        """
        self._ended.pop(bookie, None)
        reason = await self._erase(bookie)
        self.nodes.pop(bookie, None)  # not before: the next coordinator may have to go on
        return reason

    async def _erase(self, bookie: str) -> str:
        known = self.nodes.get(bookie)
        node = known if known is not None and self._is_alive(known.ray_node_id) else self._found(bookie)
        if node is None and known is not None:
            return f"its machine {known.machine} is away: remove {known.directory} there by hand"
        if node is None:
            return "no machine that is alive has its cookie: if its directory is elsewhere, remove it by hand"
        reason = ""
        for _ in range(ERASE_TRIES):
            try:
                await self._launcher.erase(node)
            except Exception as error:  # whatever it is, the bookie is retired
                reason = f"{node.directory} on {node.machine} could not be removed: {error}. Remove it by hand"
            else:
                return ""
            if not self._is_alive(node.ray_node_id):
                break
        return reason

    def _is_alive(self, ray_node_id: str) -> bool:
        return any(machine.ray_node_id == ray_node_id for machine in self._machines.machines)

    def _found(self, bookie: str) -> NodePlan | None:
        """A machine on which the bookie's cookie of this cluster lies."""
        for machine in self._machines.machines:
            cookie = machine.cookies.get(bookie)
            if cookie is not None and cookie.cluster_id == self._plan.cluster_id:
                return self._plan.layout.member(bookie, machine)
        return None

    # -- passes --------------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._even_out_at = asyncio.get_running_loop().time() + EVEN_OUT_AFTER_S
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause_s = max(self._even_out_at - loop.time(), 0.0) if self._even_out_at else None
            even_out = False
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                even_out, self._even_out_at = True, 0.0
            self._wake.clear()
            try:
                await self._pass(self._resumed | self._supervisor.assigned_to(), even_out=even_out)
            except MagnetarError as error:
                logger.warning("what should run could not be compared with what does, and will be again: %s", error)
                loop.call_later(PASS_RETRY_S, self._wake.set)
            except Exception:  # of any kind: nothing else gives members their machines
                logger.exception("an unexpected error met what should run; it is looked at again")
                loop.call_later(PASS_RETRY_S, self._wake.set)

    async def _pass(self, assigned_to: dict[str, str], *, even_out: bool = False) -> None:
        office = self._office
        if office is None or office.desired.state is None:
            return
        registered = await office.registered_instances()
        state = office.desired.state  # read after the wait, and used without another
        observed = Observed(self._machines.machines, assigned_to, registered, self._plan.layout.lost_instances)
        targets = plan(self._plan.cluster_id, state, observed, even_out=even_out)
        self._machines.data_awaited = any(isinstance(target, WaitFor) for target in targets.values())
        alive = {machine.ray_node_id: machine for machine in observed.machines}
        goals = {one: target.machine.ray_node_id for one, target in targets.items() if isinstance(target, RunOn)}
        moving = [one for one, node in assigned_to.items() if goals.get(one, node) != node]
        if moving:
            logger.info("these move to another machine: %s", ", ".join(moving))
            self._even_out_at = asyncio.get_running_loop().time() + EVEN_OUT_AFTER_S
        self._leaving = [
            member
            for member, node in self._supervisor.running_on().items()
            if member in state and node in alive and (alive[node].leaving or goals.get(member, node) != node)
        ]
        self._tell_leaving(office)
        self._supervisor.retarget(self._targets(targets, office.desired.retired))

    def _tell_leaving(self, office: "Office") -> None:
        office.desired.set_leaving([*self._leaving, self._resting] if self._resting else self._leaving)

    def _targets(self, targets: Targets, retired: Collection[str]) -> dict[str, Target]:
        found: dict[str, Target] = {}
        self._resumed = {member: place for member, place in self._resumed.items() if member in targets}
        for member, target in targets.items():
            if member in self._ended:
                continue
            self._resumed.pop(member, None)
            if isinstance(target, RunOn):
                self.nodes[member] = found[member] = self._plan.layout.member(member, target.machine)
            else:
                found[member] = target.reason
        for member in [member for member in self.nodes if member not in targets]:
            if member not in self._ended and member not in retired:
                del self.nodes[member]
        return found

    async def _release(self, node: NodePlan) -> None:
        """Move the topics of a broker elsewhere before its process is closed."""
        office = self._office
        alive = [machine.ray_node_id for machine in self._machines.machines]
        if office is None or node.role != ROLE_BROKER or node.ray_node_id not in alive:
            return
        if all(session.node_id == node.node_id for session in office.membership.takers()):
            return  # there is no other broker
        async with asyncio.timeout(RELEASE_TIMEOUT_S):
            # A topic that is being deleted, or that another move holds, is not this one's to move: look again.
            while await office.rebalancer.empty(node.node_id):  # noqa: ASYNC110
                await asyncio.sleep(RELEASE_PAUSE_S)
