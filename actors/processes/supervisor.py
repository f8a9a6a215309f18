"""Keeps the processes of the cluster's members running, each where its target says, and restarts those that end.

The supervisor lives beside the coordinator. It decides only *that* a process runs, never which broker owns a topic, nor
where a process should run: `desired.planner` does. A restarted broker or bookie is a new incarnation that registers
like any other. Safety does not depend on it (fencing and compare-and-set see to that), so a needless restart costs time
and nothing else.

`TRANSITIONS` has the states of a member, each with its trigger. A member without a target ends. One whose target is
another machine is closed in good order, then started there; so is one that `restart` names, where it was. A launch
that is under way for an old target is given up.

Supervision ends with `close`, which leaves the processes as they are, or `stop_all`, which ends them in order.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from ...protocol.cluster_status import ProcessStatus
from ...protocol.errors import ClusterError
from ...protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from .plan import NodePlan

logger = logging.getLogger(__name__)

Handle = TypeVar("Handle")
T = TypeVar("T")

RESTART_DELAY_INITIAL_S = 0.1
RESTART_DELAY_MAX_S = 10.0
HEALTHY_AFTER_S = 60.0
FAILED_STARTS_MAX = 4
STOP_TIMEOUT_S = 15.0
STOP_ORDER = (ROLE_ADMIN, ROLE_BROKER, ROLE_BOOKIE)
"""A role that calls is closed before the roles that answer it."""

Target = NodePlan | str
"""Where a member runs, or why it cannot run now."""


class Launcher(Protocol[Handle]):
    """Starts and watches processes; the handle is whatever it likes."""

    async def adopt(self, node: NodePlan) -> Handle | None:
        """The handle of this node's process if it runs already (the coordinator was restarted, not the cluster)."""
        ...

    async def launch(self, node: NodePlan) -> Handle:
        """Create the process and start its service. Raises whatever went wrong, with nothing left behind."""
        ...

    async def ended(self, handle: Handle) -> str:
        """Wait until the process has died or its service has ended by itself; say why."""
        ...

    async def close(self, handle: Handle) -> None:
        """Ask the service to close in good order."""
        ...

    async def kill(self, handle: Handle) -> None:
        """End the process; no error if it is gone."""
        ...

    async def erase(self, node: NodePlan) -> None:
        """Remove the directory of a retired bookie, on its machine."""
        ...


class NodeState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    ABSENT = "absent"
    ENDED = "ended"


TRANSITIONS: Mapping[NodeState, Collection[NodeState]] = {
    NodeState.STARTING: (
        NodeState.RUNNING,  # the process runs and its service has started, or it was found running (adopted)
        NodeState.WAITING,  # it could not be started
        NodeState.ABSENT,  # its machine is gone
        NodeState.ENDED,  # it is not wanted
    ),
    NodeState.RUNNING: (
        NodeState.WAITING,  # its process died, or its service ended by itself
        NodeState.STARTING,  # it moves to another machine, or is restarted
        NodeState.ABSENT,
        NodeState.ENDED,
    ),
    NodeState.WAITING: (
        # The back-off is over: 0.1 s at first, doubled up to 10 s, reset by a minute of health. Or it gets another
        # machine, which ends the back-off.
        NodeState.STARTING,
        NodeState.ABSENT,
        NodeState.ENDED,
    ),
    NodeState.ABSENT: (
        NodeState.STARTING,  # it gets a machine
        NodeState.ENDED,
    ),
    NodeState.ENDED: (),
}


class _Kept(Generic[Handle]):
    """What the supervisor knows of one member. `node` is where it runs, or ran last."""

    def __init__(self, member: str, target: Target) -> None:
        self.member = member
        self.target: Target | None = target
        self.node: NodePlan | None = target if isinstance(target, NodePlan) else None
        self.state = NodeState.STARTING
        self.handle: Handle | None = None
        self.restarts = 0
        self.started = 0
        self.problem = ""
        self.retargeted = asyncio.Event()
        self.ended = asyncio.Event()

    @property
    def role(self) -> str:
        return self.member.rpartition("-")[0] or self.member


class Supervisor(Generic[Handle]):
    """See the module. `release` is awaited before a process that runs is closed because it moves or ends.
    `on_moved` is called when a member goes on elsewhere."""

    def __init__(self, env: Environment, launcher: Launcher[Handle]) -> None:
        self.release: Callable[[NodePlan], Awaitable[None]] | None = None
        self.on_moved: Callable[[], None] | None = None
        self._env = env
        self._launcher = launcher
        self._kept: dict[str, _Kept[Handle]] = {}
        self._tasks = Tasks()
        self._changed = asyncio.Event()
        """Set, and replaced, whenever the state of a member changes."""

    def retarget(self, targets: Mapping[str, Target]) -> None:
        """These members run, and no others. Returns at once."""
        for member, target in targets.items():
            kept = self._kept.get(member)
            if kept is None:
                kept = self._kept[member] = _Kept[Handle](member, target)
                self._tasks.spawn(self._keep(kept), f"supervise-{member}")
            elif kept.target is not None and kept.target != target:
                kept.target = target
                kept.retargeted.set()
        for member, kept in self._kept.items():
            if member not in targets and kept.target is not None:
                kept.target = None
                kept.retargeted.set()

    async def wait_gone(self, member: str) -> None:
        """Return when a member that has no target has ended."""
        kept = self._kept.get(member)
        if kept is not None:
            await kept.ended.wait()

    def targets(self) -> dict[str, Target]:
        """What each member was last told."""
        return {member: kept.target for member, kept in self._kept.items() if kept.target is not None}

    def assigned_to(self) -> dict[str, str]:
        """By member: the Ray node on which it shall run; of one that has none now, that of its last."""
        found = self.running_on()
        found.update((one, node.ray_node_id) for one, node in self.targets().items() if isinstance(node, NodePlan))
        return found

    def running_on(self) -> dict[str, str]:
        """By member: the Ray node on which it runs, or ran last."""
        return {member: kept.node.ray_node_id for member, kept in self._kept.items() if kept.node is not None}

    async def wait_ready(self, timeout_s: float) -> dict[str, str]:
        """Wait until every member that has a machine runs. Returns those that do not after `timeout_s`, or as soon as
        one has failed FAILED_STARTS_MAX times: member → what keeps it from running.
        """
        settled = (NodeState.RUNNING, NodeState.ABSENT, NodeState.ENDED)
        try:
            async with asyncio.timeout(timeout_s):
                while not self._is_hopeless() and any(kept.state not in settled for kept in self._kept.values()):
                    await self._changed.wait()
        except TimeoutError:
            logger.info("not every member runs after %s s", timeout_s)
        return {
            member: kept.problem or kept.state.value for member, kept in self._kept.items() if kept.state not in settled
        }

    def _is_hopeless(self) -> bool:
        return any(
            kept.state is not NodeState.RUNNING and kept.restarts >= FAILED_STARTS_MAX for kept in self._kept.values()
        )

    def status(self) -> list[ProcessStatus]:
        """One record for each member."""
        return [
            {
                "node_id": member,
                "role": kept.role,
                "state": kept.state.value,
                "restarts": kept.restarts,
                "problem": kept.problem,
                "directory": kept.node.directory if kept.node is not None else "",
                "ray_node_id": kept.node.ray_node_id if kept.node is not None else "",
            }
            for member, kept in self._kept.items()
        ]

    async def restart(self, member: str) -> None:
        """Close a process that runs in good order, and start it again where it was. Returns when it runs again.

        Raises ClusterError for a member that does not run, one that ends meanwhile, and one that could not be started
        FAILED_STARTS_MAX times; it is started again nevertheless.
        """
        kept = self._kept.get(member)
        if kept is None or kept.state is not NodeState.RUNNING:
            why = "it is no process of this cluster" if kept is None else kept.problem or kept.state.value
            raise ClusterError(f"{member} does not run: {why}")
        started, failed = kept.started, kept.restarts
        kept.retargeted.set()
        while kept.started == started:
            if kept.ended.is_set():
                raise ClusterError(f"{member} was to end, so it was not started again")
            if kept.restarts - failed >= FAILED_STARTS_MAX:
                raise ClusterError(f"{member} cannot be started: {kept.problem}")
            await self._changed.wait()

    async def close(self) -> None:
        """End the supervision; the processes run on."""
        await self._tasks.close()

    async def stop_all(self) -> None:
        """End the supervision, then the processes: admin, brokers, bookies; each closed in order, then killed."""
        await self.close()
        for role in STOP_ORDER:
            handles = [kept.handle for kept in self._kept.values() if kept.role == role and kept.handle is not None]
            await asyncio.gather(*(self._stop(handle) for handle in handles))

    def _become(self, kept: _Kept[Handle], state: NodeState, problem: str = "") -> None:
        kept.problem = problem
        if kept.state is state:
            return
        check_transition(TRANSITIONS, kept.member, kept.state, state)
        kept.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def _stop(self, handle: Handle) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._launcher.close(handle)
        except Exception as error:
            logger.warning("a process did not close and is killed: %s", error)
        await self._launcher.kill(handle)

    # -- one member ------------------------------------------------------------------------------------------------

    async def _keep(self, kept: _Kept[Handle]) -> None:
        backoff = Backoff(self._env.random, RESTART_DELAY_INITIAL_S, RESTART_DELAY_MAX_S)
        adopting = True
        while (target := kept.target) is not None:
            kept.retargeted.clear()
            if isinstance(target, str):
                self._become(kept, NodeState.ABSENT, target)
                await kept.retargeted.wait()
                continue
            moved, kept.node = kept.node != target, target
            if moved and self.on_moved is not None:
                self.on_moved()
            self._become(kept, NodeState.STARTING, kept.problem)
            problem = await self._run(kept, target, backoff, adopting)
            adopting = False
            if problem is None or kept.retargeted.is_set():  # that it ended there is no failure of the next place
                backoff.reset()
                continue
            delay_s = backoff.next_delay_s()
            kept.restarts += 1
            self._become(kept, NodeState.WAITING, problem)
            logger.warning("%s is not running (%s); the next start is in %.1f s", kept.member, problem, delay_s)
            await self._unless_retargeted(kept, asyncio.sleep(delay_s))
        self._become(kept, NodeState.ENDED)
        del self._kept[kept.member]
        kept.ended.set()
        logger.info("%s has ended: it is not wanted", kept.member)

    async def _run(self, kept: _Kept[Handle], target: NodePlan, backoff: Backoff, adopting: bool) -> str | None:
        """Have the process run until it ends. Returns why it ended, None when it got another target."""
        loop = asyncio.get_running_loop()
        try:
            handle = await self._unless_retargeted(kept, self._begin(target, adopting))
            if handle is None:
                return None
            kept.handle = handle
            kept.started += 1
            self._become(kept, NodeState.RUNNING)
            since = loop.time()
            ended = await self._unless_retargeted(kept, self._launcher.ended(handle))
            if ended is None:
                await self._leave(target, handle)
            elif loop.time() - since >= HEALTHY_AFTER_S:
                backoff.reset()
            kept.handle = None
            await self._launcher.kill(handle)  # a service that ended by itself leaves its process behind
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ended

    async def _begin(self, target: NodePlan, adopting: bool) -> Handle:
        handle = await self._launcher.adopt(target) if adopting else None
        return handle if handle is not None else await self._launcher.launch(target)

    async def _leave(self, target: NodePlan, handle: Handle) -> None:
        """Close a process in good order, because it moves, ends or is restarted."""
        if self.release is not None:
            try:
                await self.release(target)
            except Exception as error:  # whatever it is: the process must go
                logger.warning("%s is closed without a release: %s", target.node_id, error)
        await self._stop(handle)

    async def _unless_retargeted(self, kept: _Kept[Handle], work: Coroutine[object, object, T]) -> T | None:
        """The result of `work`; None when the member got another target before, which cancels the work."""
        task = asyncio.ensure_future(work)
        other = asyncio.ensure_future(kept.retargeted.wait())
        try:
            await asyncio.wait({task, other}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            return None
        finally:
            other.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
