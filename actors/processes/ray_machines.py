"""The Ray nodes that are alive, as the coordinator watches them: which there are, what lies on each, which will go.

Ray tells of nodes only when it is asked, so the list of nodes is read every NODES_POLL_S: one call to Ray's GCS. A node
that was not there before is surveyed. The others are surveyed again only while a bookie waits for its data, with a
growing pause, because a disk may be mounted late.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from ...protocol.errors import MagnetarError
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.ray_calls import RayNode, draining_nodes
from ...runtime.tasks import Tasks
from ..desired.planner import Machine
from .survey import alive_nodes, survey

logger = logging.getLogger(__name__)

NODES_POLL_S = 1.0
SURVEY_AGAIN_INITIAL_S = 5.0
SURVEY_AGAIN_MAX_S = 60.0


class RayMachines:
    """See the module. `known` are machines that were surveyed already; only one of these is watched with `only`."""

    def __init__(self, env: Environment, data_directory: str, known: Sequence[Machine], *, only: str = "") -> None:
        self.on_change: Callable[[], None] = lambda: None
        self.machines: list[Machine] = list(known)
        """Those that are alive, in the order in which they were found."""
        self.data_awaited = False
        """Whether a bookie waits for a machine that has its data."""
        self._directory = data_directory
        self._only = only
        self._again = Backoff(env.random, SURVEY_AGAIN_INITIAL_S, SURVEY_AGAIN_MAX_S)
        self._not_before = 0.0
        self._tasks = Tasks()

    def start(self) -> None:
        self._tasks.spawn(self._run(), "watch-ray-nodes")

    async def close(self) -> None:
        await self._tasks.close()

    async def refresh(self) -> None:
        """Read the list of nodes, and survey those that are new. Raises ClusterError, RayError, OSError."""
        nodes, leaving = await asyncio.to_thread(_read_nodes)
        if self._only:
            nodes = [node for node in nodes if node["NodeManagerAddress"] == self._only]
        alive = {node["NodeID"]: node for node in nodes}
        known = {machine.ray_node_id: machine for machine in self.machines if machine.ray_node_id in alive}
        now = asyncio.get_running_loop().time()
        new = [node for one, node in alive.items() if one not in known]
        if not self.data_awaited:
            self._again.reset()
            self._not_before = 0.0
        elif now >= self._not_before:
            new = list(alive.values())
            self._not_before = now + self._again.next_delay_s()
        if new:
            surveyed = await asyncio.to_thread(survey, new, self._directory)
            known.update((machine.ray_node_id, machine) for machine in surveyed)
        found = [replace(machine, leaving=one in leaving) for one, machine in known.items()]
        if found != self.machines:
            self.machines = found
            self.on_change()

    async def _run(self) -> None:
        from ray.exceptions import RayError

        while True:
            try:
                await self.refresh()
            except (MagnetarError, RayError, OSError) as error:
                logger.warning("the nodes of Ray could not be looked at, and will be again: %s", error)
            except Exception:  # of any kind: without the watch nothing moves off a node that is gone
                logger.exception("the watch of Ray's nodes met an unexpected error")
            await asyncio.sleep(NODES_POLL_S)


def _read_nodes() -> tuple[list[RayNode], set[str]]:
    return alive_nodes(), draining_nodes()
