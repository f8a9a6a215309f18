"""Calls into Ray, with types: the one place that looks at Ray's own, which do not say what actors answer.

Who calls an actor annotates it as the actor's class. What is really there are `ActorCalls`, whose methods have the same
names. Ray is imported late: services and tests load this file without it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Ray's handles are made at run time, and its functions are typed in part only.

import importlib
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, ParamSpec, TypedDict, TypeVar, cast, overload

from ..protocol.errors import ClusterError, InvalidConfiguration
from ..protocol.names import RAY_NAMESPACE

if TYPE_CHECKING:
    from ray.actor import ActorHandle

P = ParamSpec("P")
T = TypeVar("T")

OWN_ACTOR_OPTIONS = ("get_if_exists", "lifetime", "max_concurrency", "max_restarts", "max_task_retries", "name")
"""Options of actors that calls of ours set, and that an application cannot."""
CONNECT_TIMEOUT_S = 5.0
"""Until something at the address of a Ray takes a connection."""


class ActorCalls:
    """An actor, as the processes that hold its handle call it. Annotate it as the actor's class.

    Each call of a method is sent to the actor's process. It returns at once: await the answer, or `ask` for it. All
    methods of the class must be coroutines, since only the types of coroutines say that there is something to wait for.
    """

    def __init__(self, handle: "ActorHandle[Any]") -> None:
        self.ray_handle = handle

    def __getattr__(self, name: str) -> Callable[..., Awaitable[object]]:
        if name.startswith("_"):  # pickle looks for methods of its own; no actor has them
            raise AttributeError(name)
        return getattr(self.ray_handle, name).remote


class RayNode(TypedDict):
    NodeID: str
    Alive: bool
    NodeManagerAddress: str
    Resources: dict[str, float]
    Labels: NotRequired[dict[str, str]]


@overload
def ask(reference: Awaitable[T], timeout_s: float | None = None) -> T: ...
@overload
def ask(reference: Sequence[Awaitable[T]], timeout_s: float | None = None) -> list[T]: ...
def ask(reference: object, timeout_s: float | None = None) -> object:
    """Wait for the answer (or a list of answers) of remote calls. Raises what they raised, GetTimeoutError."""
    import ray

    return ray.get(cast("ray.ObjectRef[object]", reference), timeout=timeout_s)


def wait_for(answers: Sequence[Awaitable[T]], timeout_s: float) -> list[Awaitable[T]]:
    """Wait for all answers, at most `timeout_s`; returns those that are not there yet."""
    import ray

    references = cast("list[ray.ObjectRef[object]]", list(answers))
    _, pending = ray.wait(references, num_returns=len(references), timeout=timeout_s)
    return cast("list[Awaitable[T]]", pending)


def remote(target: Callable[..., object], **options: object) -> Any:
    """A class or function as Ray's actor class or task, with Ray's options; call its `remote`.

    Annotate what a function gives as an `Awaitable`. For a class call `start_actor`.
    """
    import ray

    wrapped = cast(Any, ray.remote(target))
    return wrapped.options(**options)


def start_actor(
    kind: Callable[P, T], options: Mapping[str, object], *arguments: P.args, **named_arguments: P.kwargs
) -> T:
    """Have Ray make an actor of this class, with Ray's options. What is returned are its `ActorCalls`.

    Raises ValueError when an actor of this name is there.
    """
    return cast("T", ActorCalls(remote(kind, **options).remote(*arguments, **named_arguments)))


def start_task_on(node_id: str, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Awaitable[T]:
    """Have Ray run a function on a node, without a CPU of its own. The answer raises an error if the node is gone."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return cast("Awaitable[T]", remote(function, num_cpus=0, scheduling_strategy=there).remote(*arguments, **named))


def find_actor(name: str) -> Any:
    """A named actor of ours, as `ActorCalls`; annotate it. Raises ValueError when there is none."""
    import ray

    return ActorCalls(cast("ActorHandle[Any]", ray.get_actor(name, RAY_NAMESPACE)))


def kill_actor(actor: object) -> None:
    """End the process of an actor that `start_actor` or `find_actor` gave. No error if it is gone."""
    import ray

    ray.kill(cast("ActorCalls", actor).ray_handle)


def put(value: object) -> object:
    """Store a value with Ray; returns the reference to it. This process owns it."""
    import ray

    return ray.put(value)


def ray_nodes() -> list[RayNode]:
    """All nodes of the Ray that this process is connected to."""
    import ray

    return cast("list[RayNode]", ray.nodes())


def asked_resources(options: Mapping[str, object]) -> dict[str, float]:
    """What an actor with these options asks Ray for, by Ray's names of resources."""
    asked = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus"), "memory": options.get("memory")}
    asked.update(cast("Mapping[str, object]", options.get("resources") or {}))
    return {name: amount for name, amount in asked.items() if isinstance(amount, int | float) and amount}


def known_resources() -> tuple[Mapping[str, float], Mapping[str, float]]:
    """What all nodes of this Ray have, and what of it is free."""
    import ray

    return ray.cluster_resources(), ray.available_resources()


def check_actor_options(kind: type, options: Mapping[str, Any], whose: str) -> None:
    """Raise ClusterError without a Ray, and InvalidConfiguration where Ray refuses these options of actors."""
    import ray

    if not ray.is_initialized():
        raise ClusterError("this process has not joined a Ray: call magnetar.connect() or magnetar.start() first")
    try:
        remote(kind, **options)
    except (TypeError, ValueError) as error:
        raise InvalidConfiguration(f"Ray refuses the options of the {whose}: {error}") from error


def why_unreachable(address: str) -> str:
    """Why nobody can join the Ray whose GCS is at `host:port`; empty if something listens there.

    Other kinds of addresses, such as `auto` and those of Ray Client, are not looked at. `ray.init` waits for minutes
    for a GCS that is not there.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in address:
        return ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return ""


def alive_nodes(address: str) -> list[str]:
    """Addresses of the nodes of the Ray whose GCS is at `address`. This process need not be connected to it."""
    from ray._raylet import GcsClient

    nodes = GcsClient(address=address).get_all_node_info()
    return [node.node_manager_address for node in nodes.values() if not node.state]


def draining_nodes() -> set[str]:
    """Ids of the nodes that Ray is about to end: of `ray drain-node`, and of the autoscaler."""
    from ray._private import state

    return set(state.state.get_draining_nodes())


def drain_own_node(reason: str, seconds: float) -> str:
    """Tell Ray that this node will end in so many seconds, as its autoscaler does; returns why Ray refuses, or ""."""
    from ray._raylet import GcsClient

    reasons = cast("Any", importlib.import_module("ray.core.generated.autoscaler_pb2"))
    deadline_ms = int((time.time() + seconds) * 1000)
    accepted, refusal = GcsClient(address=gcs_address()).drain_node(
        own_node_id(), reasons.DRAIN_NODE_REASON_PREEMPTION, reason, deadline_ms
    )
    return "" if accepted else refusal


def own_node_id() -> str:
    """The id of the node on which this process runs."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def own_ray_address() -> str:
    """Where the Ray of this process has its head, which all its processes say in the same way."""
    import ray

    return cast("str", ray.get_runtime_context().gcs_address)


def was_restarted() -> bool:
    """Whether this process carries an actor that Ray has started again."""
    import ray

    return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def node_ip_address() -> str:
    """This machine's address, as Ray finds it."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def init(**arguments: object) -> None:
    """Connect this process to a Ray, or start one; see `ray.init`."""
    import ray

    cast("Callable[..., object]", ray.init)(**arguments)


def shutdown() -> None:
    """Leave Ray; one that this process started ends."""
    import ray

    ray.shutdown()


def named_actors() -> list[str]:
    from ray.util import list_named_actors

    found = cast("list[dict[str, str]]", list_named_actors(all_namespaces=True))
    return [actor["name"] for actor in found if actor["namespace"] == RAY_NAMESPACE]


def is_name_taken(name: str) -> bool:
    """Whether an actor in this job's own namespace has the name. A handle that this process keeps of one that has ended
    holds the name.
    """
    import ray

    if not ray.is_initialized():  # to ask would start one
        return False
    try:
        ray.get_actor(name)
    except ValueError:
        return False
    return True


def cluster_cpus() -> float:
    """The CPUs of the Ray that this process is connected to."""
    import ray

    return float(ray.cluster_resources().get("CPU", 0))


def gcs_address() -> str:
    """The address of the Ray that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)
