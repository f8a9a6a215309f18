"""Ray as the supervisor's launcher, and the way to the coordinator through its actor.

Members are named, detached actors bound to the Ray node of their target; `max_restarts=0`, because a restart has to be
the supervisor's decision. The coordinator alone is restarted by Ray, on any node. If its metadata is a SQLite file, the
node must have the address of the machine with the file. Ray's node ids are no good for that: they change when a
raylet is started again. Calls into Ray that block go to a thread, because the caller is a
service's event loop. Ray is imported late: services and tests load this file without it.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from ...protocol.errors import CoordinatorUnavailable
from ...protocol.names import COORDINATOR_ACTOR, DEPUTY_ACTOR, DEPUTY_ID, RAY_NAMESPACE, actor_name
from ...runtime.ray_calls import find_actor, kill_actor, named_actors, ray_nodes, start_actor
from ..desired.planner import Machine
from .erasing import remove_directory
from .plan import ClusterPlan, NodePlan
from .survey import on_nodes

if TYPE_CHECKING:
    from .ray_actors import CoordinatorActor, MemberActor
    from .ray_deputy import DeputyActor

logger = logging.getLogger(__name__)

LAUNCH_TIMEOUT_S = 120.0
LOCATE_TIMEOUT_S = 5.0
PLACE_TIMEOUT_S = 5.0
BOUND_SHARE = 0.0001
"""Of the resource by which Ray knows a node's address; it has 1 of it."""
UNAVAILABLE_PAUSE_S = 0.5
EPOCH_SHIFT = 32
"""A launch has a number: the epoch of the coordinator, then its launches."""
NOT_MEMBERS = (COORDINATOR_ACTOR, DEPUTY_ACTOR)
NICENESS = "0"
"""Ray runs all workers at nice 15. Publishes would then wait for every other program, and for Ray's users' tasks."""
CALLS_MAX = 1000
"""Calls into one actor that may be under way; some of ours wait for as long as the actor lives."""


def member_options(node: NodePlan) -> dict[str, object]:
    """Ray's options of the actor of a member."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node.ray_node_id, soft=False)
    return {**_options(node.node_id, restarts_max=0), "scheduling_strategy": strategy}


def coordinator_options(plan: ClusterPlan) -> dict[str, object]:
    """Ray's options of the coordinator's actor."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    node = plan.coordinator
    options = _options(node.node_id, restarts_max=-1)
    address = f"node:{node.machine}"
    if not plan.coordinator_is_bound:
        # Ray ignores a soft affinity of an actor that needs nothing, and takes a node by chance. Every node has memory.
        strategy = NodeAffinitySchedulingStrategy(node.ray_node_id, soft=True)
        return {**options, "memory": 1, "scheduling_strategy": strategy}
    if any(address in found["Resources"] for found in ray_nodes() if found["NodeID"] == node.ray_node_id):
        return {**options, "resources": {address: BOUND_SHARE}}
    return {**options, "scheduling_strategy": NodeAffinitySchedulingStrategy(node.ray_node_id, soft=False)}


def deputy_options(machine: Machine) -> dict[str, object]:
    """Ray's options of the actor of the coordinator's deputy, first on this machine."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(machine.ray_node_id, soft=True)
    return {**_options(DEPUTY_ID, restarts_max=-1), "memory": 1, "scheduling_strategy": strategy}


def _options(node_id: str, *, restarts_max: int) -> dict[str, object]:
    return {
        "name": actor_name(node_id),
        "namespace": RAY_NAMESPACE,
        "lifetime": "detached",
        "num_cpus": 0,
        "max_restarts": restarts_max,
        "max_task_retries": 0,
        "max_concurrency": CALLS_MAX,
        "runtime_env": {"env_vars": {"RAY_worker_niceness": NICENESS}},
    }


async def locate_coordinator() -> tuple[str, int]:
    """Where the coordinator listens, or its deputy: both actors are asked, and the first answer counts. A deputy
    answers only while it is active. Raises CoordinatorUnavailable when none does.
    """
    asked = [asyncio.ensure_future(_address_of(name)) for name in (COORDINATOR_ACTOR, DEPUTY_ACTOR)]
    problem = "it does not answer"
    try:
        for answer in asyncio.as_completed(asked, timeout=LOCATE_TIMEOUT_S):
            try:
                return await answer
            except CoordinatorUnavailable as error:
                problem = str(error)
    except TimeoutError:
        logger.debug("neither the coordinator nor its deputy answered within %s s", LOCATE_TIMEOUT_S)
    finally:
        for one in asked:
            one.cancel()
        await asyncio.wait(asked)
    raise CoordinatorUnavailable(f"the coordinator's actor does not answer: {problem}")


async def _address_of(name: str) -> tuple[str, int]:
    from ray.exceptions import RayError

    try:
        actor: CoordinatorActor | DeputyActor = await asyncio.to_thread(find_actor, name)
        host, port = await actor.address()
    except (ValueError, RayError) as error:
        raise CoordinatorUnavailable(str(error)) from error
    return host, port


def launch_ahead(plan: ClusterPlan, member: "type[MemberActor]") -> None:
    """Create the actors of all members, so that their processes come up while the coordinator does.

    Their services are started by the coordinator's supervisor, which adopts actors that it finds. What cannot be
    created here is created, or its failure told, by the supervisor.
    """
    for node in plan.members:
        try:
            _create(plan, member, node)
        except ValueError as error:
            logger.info("%s was not created; the supervisor creates it: %s", node.node_id, error)


def _create(plan: ClusterPlan, member: "type[MemberActor]", node: NodePlan, launch: int = 0) -> "MemberActor":
    return start_actor(member, member_options(node), plan.member(node, launch))


class RayLauncher:
    """Creates and watches the member actors of one cluster: instances of `member`, each made with its plan."""

    def __init__(self, plan: ClusterPlan, member: "type[MemberActor]") -> None:
        self.epoch = 0
        """Of the coordinator beside it. Its launches come after those of all coordinators before."""
        self._plan = plan
        self._member = member
        self._launches = 0

    async def adopt(self, node: NodePlan) -> "MemberActor | None":
        from ray.exceptions import RayError

        try:
            handle: MemberActor = await asyncio.to_thread(find_actor, actor_name(node.node_id))
        except ValueError:
            return None
        try:
            # `start` is idempotent: an actor whose creator died in between is started now.
            async with asyncio.timeout(LAUNCH_TIMEOUT_S):
                await handle.start()
        except (TimeoutError, RayError) as error:
            logger.warning(
                "%s, started by an earlier coordinator, does not answer (%s) and is replaced", node.node_id, error
            )
            await self.kill(handle)
            return None
        return handle

    async def launch(self, node: NodePlan) -> "MemberActor":
        from ray.exceptions import RayTaskError

        handle = await self._create(node)
        try:
            async with asyncio.timeout(LAUNCH_TIMEOUT_S):
                await handle.start()
        except RayTaskError as error:
            await self.kill(handle)
            raise error.cause from None  # what the service said; Ray adds the tracebacks of both sides
        except BaseException:
            await self.kill(handle)
            raise
        return handle

    async def ended(self, handle: "MemberActor") -> str:
        from ray.exceptions import ActorUnavailableError, RayError

        while True:
            try:
                return await handle.wait_ended()
            except ActorUnavailableError as error:
                # Ray cannot tell yet whether the process is gone or only out of reach; ask again.
                logger.info("an actor does not answer at the moment: %s", error)
                await asyncio.sleep(UNAVAILABLE_PAUSE_S)
            except RayError as error:
                return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"

    async def close(self, handle: "MemberActor") -> None:
        await handle.close()

    async def kill(self, handle: "MemberActor") -> None:
        await asyncio.to_thread(kill_actor, handle)

    async def running_on(self) -> dict[str, str]:
        """By member: the Ray node on which its actor runs. Actors that do not answer are left out."""
        names = await asyncio.to_thread(named_actors)
        prefix = actor_name("")
        members = [name.removeprefix(prefix) for name in names if name.startswith(prefix) and name not in NOT_MEMBERS]
        places = await asyncio.gather(*(self._place_of(member) for member in members))
        return {member: place for member, place in zip(members, places, strict=True) if place}

    async def erase(self, node: NodePlan) -> None:
        """Remove the directory of a retired bookie, on its machine."""
        await asyncio.to_thread(on_nodes, [node.ray_node_id], remove_directory, node.directory)

    async def _place_of(self, member: str) -> str:
        from ray.exceptions import RayError

        try:
            handle: MemberActor = await asyncio.to_thread(find_actor, actor_name(member))
            async with asyncio.timeout(PLACE_TIMEOUT_S):
                return await handle.ray_node_id()
        except (ValueError, TimeoutError, RayError) as error:
            logger.info("where %s runs is not known: %s", member, error)
            return ""

    async def _create(self, node: NodePlan) -> "MemberActor":
        """The actor. One of this name may be there: made by `launch_ahead`, or left on another node by a launch that
        was given up. The latter is ended.
        """
        self._launches += 1
        launch = (self.epoch << EPOCH_SHIFT) + self._launches
        try:
            return await asyncio.to_thread(_create, self._plan, self._member, node, launch)
        except ValueError:
            handle: MemberActor = await asyncio.to_thread(find_actor, actor_name(node.node_id))
            if await self._place_of(node.node_id) == node.ray_node_id:
                return handle
            await self.kill(handle)
            return await asyncio.to_thread(_create, self._plan, self._member, node, launch)
