"""Keeps the cluster's processes running: restarts each that ends, with back-off.

The supervisor lives beside the coordinator. It decides only *that* a process runs, never which broker owns a topic. A
restarted broker or bookie is a new incarnation that registers like any other. Safety does not depend on it (fencing and
compare-and-set see to that), so a needless restart costs time and nothing else.

`TRANSITIONS` has the states of a node, each with its trigger.

Supervision ends with `close`, which leaves the processes as they are, or `stop_all`, which ends them in order.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from ...protocol.cluster_status import ProcessStatus
from ...protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from .plan import NodePlan

logger = logging.getLogger(__name__)

Handle = TypeVar("Handle")

RESTART_DELAY_INITIAL_S = 0.1
RESTART_DELAY_MAX_S = 10.0
HEALTHY_AFTER_S = 60.0
FAILED_STARTS_MAX = 4
STOP_TIMEOUT_S = 15.0
STOP_ORDER = (ROLE_ADMIN, ROLE_BROKER, ROLE_BOOKIE)
"""A role that calls is closed before the roles that answer it."""


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


class NodeState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"


TRANSITIONS: Mapping[NodeState, Collection[NodeState]] = {
    NodeState.STARTING: (
        NodeState.RUNNING,  # the process runs and its service has started, or it was found running (adopted)
        NodeState.WAITING,  # it could not be started
    ),
    NodeState.RUNNING: (NodeState.WAITING,),  # its process died, or its service ended by itself
    # The back-off is over: 0.1 s at first, doubled up to 10 s, reset by a minute of health.
    NodeState.WAITING: (NodeState.STARTING,),
}


class _Kept(Generic[Handle]):
    """What the supervisor knows of one node."""

    def __init__(self, node: NodePlan) -> None:
        self.node = node
        self.state = NodeState.STARTING
        self.handle: Handle | None = None
        self.restarts = 0
        self.problem = ""


class Supervisor(Generic[Handle]):
    """Keeps `nodes` running through `launcher`."""

    def __init__(self, env: Environment, launcher: Launcher[Handle], nodes: Sequence[NodePlan]) -> None:
        self._env = env
        self._launcher = launcher
        self._kept = {node.node_id: _Kept[Handle](node) for node in nodes}
        self._tasks = Tasks()
        self._changed = asyncio.Event()
        """Set, and replaced, whenever the state of a node changes."""

    def start(self) -> None:
        """Begin; returns at once."""
        for kept in self._kept.values():
            self._tasks.spawn(self._keep(kept), f"supervise-{kept.node.node_id}")

    async def wait_ready(self, timeout_s: float) -> dict[str, str]:
        """Wait until every node has run. Returns those that do not after `timeout_s`, or as soon as one has failed
        FAILED_STARTS_MAX times: node id → what keeps it from running.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        for kept in self._kept.values():
            try:
                async with asyncio.timeout_at(deadline):
                    while kept.state is not NodeState.RUNNING and not self._is_hopeless():
                        await self._changed.wait()
            except TimeoutError:
                continue
        return {
            kept.node.node_id: kept.problem or kept.state.value
            for kept in self._kept.values()
            if kept.state is not NodeState.RUNNING
        }

    def _is_hopeless(self) -> bool:
        return any(
            kept.state is not NodeState.RUNNING and kept.restarts >= FAILED_STARTS_MAX for kept in self._kept.values()
        )

    def status(self) -> list[ProcessStatus]:
        """One record for each node."""
        return [
            {
                "node_id": kept.node.node_id,
                "role": kept.node.role,
                "state": kept.state.value,
                "restarts": kept.restarts,
                "problem": kept.problem,
                "directory": kept.node.directory,
                "ray_node_id": kept.node.ray_node_id,
            }
            for kept in self._kept.values()
        ]

    async def close(self) -> None:
        """End the supervision; the processes run on."""
        await self._tasks.close()

    async def stop_all(self) -> None:
        """End the supervision, then the processes: admin, brokers, bookies; each closed in order, then killed."""
        await self.close()
        for role in STOP_ORDER:
            kept_of_role = [kept for kept in self._kept.values() if kept.node.role == role]
            handles = [kept.handle for kept in kept_of_role if kept.handle is not None]
            await asyncio.gather(*(self._stop(handle) for handle in handles))

    def _become(self, kept: _Kept[Handle], state: NodeState, problem: str = "") -> None:
        check_transition(TRANSITIONS, kept.node.node_id, kept.state, state)
        kept.state = state
        kept.problem = problem
        self._changed.set()
        self._changed = asyncio.Event()

    async def _stop(self, handle: Handle) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._launcher.close(handle)
        except Exception as error:
            logger.warning("a process did not close and is killed: %s", error)
        await self._launcher.kill(handle)

    async def _keep(self, kept: _Kept[Handle]) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(self._env.random, RESTART_DELAY_INITIAL_S, RESTART_DELAY_MAX_S)
        kept.handle = await self._launcher.adopt(kept.node)
        while True:
            try:
                if kept.handle is None:
                    kept.handle = await self._launcher.launch(kept.node)
                self._become(kept, NodeState.RUNNING)
                since = loop.time()
                problem = await self._launcher.ended(kept.handle)
                if loop.time() - since >= HEALTHY_AFTER_S:
                    backoff.reset()
                handle, kept.handle = kept.handle, None
                await self._launcher.kill(handle)  # a service that ended by itself leaves its process behind
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            delay_s = backoff.next_delay_s()
            kept.restarts += 1
            self._become(kept, NodeState.WAITING, problem)
            logger.warning("%s is not running (%s); the next start is in %.1f s", kept.node.node_id, problem, delay_s)
            await asyncio.sleep(delay_s)
            self._become(kept, NodeState.STARTING, problem)
