"""The Ray nodes that are alive, as the coordinator watches them: which there are, what lies on each, which will go.

Ray tells of nodes only when it is asked, so the list of nodes is read every NODES_POLL_S: one call to Ray's GCS. Nodes
that are gone leave the list at once. A node that was not there before is surveyed, beside these reads: a node that does
not answer takes up to LOOK_TIMEOUT_S. All are surveyed again only while a bookie waits for its data, with a growing
pause, because a disk may be mounted late.

States of a node:

    NEW ── the survey read its directory ──→ USABLE
    NEW ── it answered with an error ──→ LEFT OUT      a machine with a problem: nothing starts there
    NEW ── it did not answer ──→ LEFT OUT              no machine: Ray may not know yet that the node is lost
    USABLE ── a later survey met an error ──→ LEFT OUT
    LEFT OUT ── a later survey read its directory ──→ USABLE

A node that is left out is surveyed again after LOOK_AGAIN_INITIAL_S, then with a growing pause.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from ...protocol.cluster_status import LeftOutNode
from ...protocol.errors import MagnetarError
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.ray_calls import RayNode, draining_nodes
from ...runtime.tasks import Tasks
from ..desired.planner import Machine
from .survey import LEFT_OUT, Surveyed, alive_nodes, survey

logger = logging.getLogger(__name__)

NODES_POLL_S = 1.0
SURVEY_AGAIN_INITIAL_S = 5.0
SURVEY_AGAIN_MAX_S = 60.0
LOOK_AGAIN_INITIAL_S = 2.0
LOOK_AGAIN_MAX_S = 60.0


@dataclass
class _LeftOut:
    """A node that could not be looked at."""

    again: Backoff
    problem: str = ""
    not_before: float = 0.0


class RayMachines:
    """See the module. `known` are machines that were surveyed already; only one of these is watched with `only`."""

    def __init__(self, env: Environment, data_directory: str, known: Sequence[Machine], *, only: str = "") -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.machines: list[Machine] = list(known)
        """Those that are alive, in the order in which they were found."""
        self.data_awaited = False
        """Whether a bookie waits for a machine that has its data."""
        self._env = env
        self._directory = data_directory
        self._only = only
        self._again = Backoff(env.random, SURVEY_AGAIN_INITIAL_S, SURVEY_AGAIN_MAX_S)
        self._not_before = 0.0
        self._alive: dict[str, RayNode] = {}
        self._leaving: set[str] = set()
        self._left_out: dict[str, _LeftOut] = {}
        self._surveying: asyncio.Task[None] | None = None
        self._tasks = Tasks()

    def start(self) -> None:
        self._tasks.spawn(self._run(), "watch-ray-nodes")

    async def close(self) -> None:
        await self._tasks.close()

    def left_out(self) -> list[LeftOutNode]:
        """The nodes that are alive and cannot be used, with the reason."""
        problems = {machine.ray_node_id: machine.problem for machine in self.machines if machine.problem}
        problems |= {one: found.problem for one, found in self._left_out.items()}
        addresses = {machine.ray_node_id: machine.address for machine in self.machines}
        addresses |= {one: node["NodeManagerAddress"] for one, node in self._alive.items()}
        return [
            {"ray_node_id": one, "address": addresses[one], "problem": problem}
            for one, problem in sorted(problems.items())
        ]

    async def refresh(self) -> None:
        """Read the list of nodes, and survey those that are due. Raises RayError, OSError."""
        await self._read()
        await self._survey()

    async def _read(self) -> None:
        nodes, leaving = await asyncio.to_thread(_read_nodes)
        if self._only:
            nodes = [node for node in nodes if node["NodeManagerAddress"] == self._only]
        self._alive, self._leaving = {node["NodeID"]: node for node in nodes}, leaving
        self._left_out = {one: found for one, found in self._left_out.items() if one in self._alive}
        self._store({})

    async def _survey(self) -> None:
        due = self._due()
        if not due:
            return
        found = await asyncio.to_thread(survey, due, self._directory)
        machines = {machine.ray_node_id: machine for machine in found.machines}
        self._note(due, machines, found)
        self._store(machines)

    def _due(self) -> list[RayNode]:
        now = asyncio.get_running_loop().time()
        if not self.data_awaited:
            self._again.reset()
            self._not_before = 0.0
        elif now >= self._not_before:
            self._not_before = now + self._again.next_delay_s()
            return list(self._alive.values())
        usable = {machine.ray_node_id for machine in self.machines if not machine.problem}
        return [
            node
            for one, node in self._alive.items()
            if one not in usable and (one not in self._left_out or now >= self._left_out[one].not_before)
        ]

    def _note(self, due: Sequence[RayNode], machines: dict[str, Machine], found: Surveyed) -> None:
        """Remember which of the surveyed nodes are left out, and log each once for each reason."""
        known = {machine.ray_node_id for machine in self.machines}
        for node in due:
            one, address = node["NodeID"], node["NodeManagerAddress"]
            problem = machines[one].problem if one in machines else found.silent.get(one, "it did not answer")
            if one not in self._alive or (one not in machines and one in known and one not in self._left_out):
                continue  # it is gone; or it was usable, does not answer now, and Ray will tell whether it is lost
            if not problem:
                if self._left_out.pop(one, None) is not None:
                    logger.info("the Ray node %s (%s) could be looked at, and is used", address, one)
                continue
            left_out = self._left_out.setdefault(
                one, _LeftOut(Backoff(self._env.random, LOOK_AGAIN_INITIAL_S, LOOK_AGAIN_MAX_S))
            )
            if left_out.problem != problem:
                left_out.problem = problem
                logger.warning(LEFT_OUT, address, one, problem)
            left_out.not_before = asyncio.get_running_loop().time() + left_out.again.next_delay_s()

    def _store(self, surveyed: dict[str, Machine]) -> None:
        known = {machine.ray_node_id: machine for machine in self.machines} | surveyed
        found = [replace(machine, leaving=one in self._leaving) for one, machine in known.items() if one in self._alive]
        if found != self.machines:
            self.machines = found
            self.on_change()

    async def _run(self) -> None:
        while True:
            await self._guarded(self._read)
            if self._surveying is None or self._surveying.done():
                self._surveying = self._tasks.spawn(self._guarded(self._survey), "survey-ray-nodes")
            await asyncio.sleep(NODES_POLL_S)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do a part of the watch. What fails is logged, and is done again with the next poll."""
        from ray.exceptions import RayError

        try:
            await work()
        except (MagnetarError, RayError, OSError) as error:
            logger.warning("the nodes of Ray could not be looked at, and will be again: %s", error)
        except Exception:  # of any kind: without the watch nothing moves off a node that is gone
            logger.exception("the watch of Ray's nodes met an unexpected error")


def _read_nodes() -> tuple[list[RayNode], set[str]]:
    return alive_nodes(), draining_nodes()
