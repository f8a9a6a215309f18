"""The coordinator's deputy: an actor on another machine that coordinates while the coordinator's machine is gone.

Ray takes seconds to find out that a machine is lost, and a new process takes seconds to start. The deputy runs already,
and watches the coordinator's lease (`lease`). There is one only where the metadata is in PostgreSQL, and
only while Ray has another node for it.

States:

    WATCHING ── the lease has lapsed ──→ ACTIVE      it takes office with the next epoch, and members find it
    ACTIVE ── superseded ──→ WATCHING                Ray has started the coordinator again, and that one took office

While it is active it does all that members need: sessions, topics, ledgers, metadata. It starts no processes: that
waits for the coordinator, which Ray starts again when it has found out. Members ask both actors for an address, and
take the one that answers (`ray_launcher.locate_coordinator`).
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...protocol.errors import CoordinatorUnavailable
from ...protocol.names import DEPUTY_ACTOR, DEPUTY_ID
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.ray_calls import find_actor, kill_actor, node_ip_address, own_node_id, start_actor
from ...runtime.tasks import Tasks
from ..desired.planner import Machine
from . import assembly
from .beginning import begin_process
from .lease import wait_lapsed
from .plan import ClusterPlan
from .ray_launcher import deputy_options

if TYPE_CHECKING:
    from .ray_machines import RayMachines

logger = logging.getLogger(__name__)

RETRY_INITIAL_S = 0.5
RETRY_MAX_S = 5.0
ADDRESS_WAIT_S = 3.0
"""How long a question for the address waits. Shorter than members wait, so questions do not pile up here."""
PLACE_TIMEOUT_S = 5.0
LOOK_EVERY_S = 2.0


class Deputy:
    """See the module. `start` it, and let it run for as long as its process lives."""

    def __init__(self, env: Environment, plan: ClusterPlan, address: str) -> None:
        self._env = env
        self._plan = plan
        self._host = address
        self._address = asyncio.get_running_loop().create_future()
        self._tasks = Tasks()

    def start(self) -> None:
        self._tasks.spawn(self._run(), "deputy")

    async def close(self) -> None:
        await self._tasks.close()

    async def address(self) -> tuple[str, int]:
        """Where it listens while it is active; waits a moment for that. Raises CoordinatorUnavailable."""
        try:
            async with asyncio.timeout(ADDRESS_WAIT_S):
                return await asyncio.shield(self._address)
        except TimeoutError:
            raise CoordinatorUnavailable("the deputy is not active: the coordinator is there") from None

    async def _run(self) -> None:
        backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        while True:
            try:
                await self._once(backoff)
            except Exception:  # of any kind: no other process would stand in
                logger.exception("the deputy met an error, and watches again")
            finally:
                self._address = asyncio.get_running_loop().create_future()
            await asyncio.sleep(backoff.next_delay_s())

    async def _once(self, backoff: Backoff) -> None:
        """Watch, then be active until superseded."""
        node = replace(self._plan.layout.coordinator(Machine(own_node_id(), self._host)), port=0)
        metadata = await assembly.open_metadata(self._env, self._plan)
        try:
            await wait_lapsed(metadata)
            logger.warning("the coordinator does not renew its lease: the deputy takes office")
            service = assembly.build_coordinator(self._env, self._plan, node, metadata)
            await service.start()
            try:
                self._address.set_result(service.address)
                backoff.reset()
                await service.wait_ended()
                logger.info("the coordinator is back: the deputy watches again")
            finally:
                await service.close()
        finally:
            await metadata.close()


class DeputyActor:
    """The deputy as a Ray actor."""

    def __init__(self, plan: ClusterPlan) -> None:
        begin_process(plan.log_directory, DEPUTY_ID)
        self._deputy = Deputy(Environment.real(), plan, node_ip_address())
        self._deputy.start()

    async def address(self) -> tuple[str, int]:
        """See `Deputy.address`."""
        return await self._deputy.address()

    async def ray_node_id(self) -> str:
        """The Ray node on which this process runs."""
        return own_node_id()


class DeputyKeeper:
    """Beside the coordinator: has a deputy run on another machine, for as long as there is one."""

    def __init__(self, env: Environment, plan: ClusterPlan, machines: "RayMachines") -> None:
        self._plan = plan
        self._machines = machines
        self._tasks = Tasks()

    def start(self) -> None:
        self._tasks.spawn(self._run(), "keep-deputy")

    async def end(self) -> None:
        """End the deputy, and see to it no longer."""
        await self._tasks.close()
        try:
            kill_actor(await asyncio.to_thread(find_actor, DEPUTY_ACTOR))
        except ValueError:
            logger.debug("there is no deputy to end")

    async def _run(self) -> None:
        seen: list[str] = []
        while True:
            others = _others(self._machines.machines)
            ids = sorted(machine.ray_node_id for machine in others)
            if others and ids != seen:
                try:
                    if await self._see_to(others):
                        seen = ids
                except Exception as error:  # of any kind: the cluster runs without a deputy, and it is tried again
                    logger.warning("the coordinator has no deputy yet: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _see_to(self, others: Sequence[Machine]) -> bool:
        """Whether a deputy now runs on one of these machines."""
        try:
            deputy: DeputyActor = await asyncio.to_thread(find_actor, DEPUTY_ACTOR)
        except ValueError:
            await asyncio.to_thread(self._create, others[0])
            return False  # looked at again, when it runs
        async with asyncio.timeout(PLACE_TIMEOUT_S):
            place = await deputy.ray_node_id()
        if any(machine.ray_node_id == place for machine in others):
            logger.info("the coordinator's deputy runs on Ray node %s", place)
            return True
        await asyncio.to_thread(kill_actor, deputy)
        return False

    def _create(self, machine: Machine) -> None:
        start_actor(DeputyActor, deputy_options(machine), self._plan)


def _others(machines: Sequence[Machine]) -> list[Machine]:
    """Those that the coordinator is not on, that stay, and that have no problem; first those in another zone."""
    own = own_node_id()
    zone = next((machine.zone for machine in machines if machine.ray_node_id == own), "")
    found = [
        machine for machine in machines if machine.ray_node_id != own and not machine.leaving and not machine.problem
    ]
    return sorted(found, key=lambda machine: bool(zone) and machine.zone == zone)
