"""Calls into Ray, with types: the one place that looks at Ray's own, which do not say what actors answer.

What an actor offers is declared as a Protocol whose properties are `RemoteMethod`s, beside those who call it. What Ray
hands out is then annotated as that Protocol. Ray is imported late: services and tests load this file without it.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# Ray's handles are made at run time, and its functions are typed in part only.

import importlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NotRequired, ParamSpec, Protocol, TypedDict, TypeVar, cast, overload

from ..protocol.names import RAY_NAMESPACE

P = ParamSpec("P")
T = TypeVar("T")
Answer_co = TypeVar("Answer_co", covariant=True)


class Answer(Protocol[Answer_co]):
    """What a remote call gives at once: its answer, to be awaited or asked for."""

    def __await__(self) -> Generator[object, None, Answer_co]: ...


class RemoteMethod(Protocol[P, Answer_co]):
    """A method of an actor, or a task."""

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> Answer[Answer_co]: ...


class RayNode(TypedDict):
    """A node of Ray, as Ray describes it."""

    NodeID: str
    Alive: bool
    NodeManagerAddress: str
    Resources: dict[str, float]
    Labels: NotRequired[dict[str, str]]


class GcsNode(Protocol):
    """A node of Ray, as its GCS describes it."""

    node_manager_address: str
    state: int
    """0 while it is alive."""


class Gcs(Protocol):
    """What is used of Ray's client of its GCS."""

    def get_all_node_info(self) -> Mapping[object, GcsNode]: ...


@overload
def ask(reference: Answer[T], timeout_s: float | None = None) -> T: ...
@overload
def ask(reference: Sequence[Answer[T]], timeout_s: float | None = None) -> list[T]: ...
def ask(reference: object, timeout_s: float | None = None) -> object:
    """Wait for the answer (or a list of answers) of remote calls. Raises what they raised, GetTimeoutError."""
    import ray

    return ray.get(cast("ray.ObjectRef[object]", reference), timeout=timeout_s)


def wait_for(answers: Sequence[Answer[T]], timeout_s: float) -> list[Answer[T]]:
    """Wait for all answers, at most `timeout_s`; returns those that are not there yet."""
    import ray

    references = cast("list[ray.ObjectRef[object]]", list(answers))
    _, pending = ray.wait(references, num_returns=len(references), timeout=timeout_s)
    return cast("list[Answer[T]]", pending)


def remote(target: Callable[..., object], **options: object) -> Any:
    """A class or function as Ray's actor class or task, with Ray's options; call its `remote`.

    Annotate what that gives: of a class the Protocol of its actor, of a function an `Answer`.
    """
    import ray

    wrapped = cast(Any, ray.remote(target))
    return wrapped.options(**options)


def find_actor(name: str) -> Any:
    """The handle of a named actor of ours; annotate it. Raises ValueError when there is none."""
    import ray

    return ray.get_actor(name, RAY_NAMESPACE)


def kill_actor(handle: object) -> None:
    """End an actor's process. No error if it is gone."""
    import ray
    from ray.actor import ActorHandle

    ray.kill(cast("ActorHandle[object]", handle))


def put(value: object) -> object:
    """Store a value with Ray; returns the reference to it. This process owns it."""
    import ray

    return ray.put(value)


def ray_nodes() -> list[RayNode]:
    """All nodes of the Ray that this process is connected to."""
    import ray

    return cast("list[RayNode]", ray.nodes())


def alive_nodes(address: str) -> list[str]:
    """Addresses of the nodes of the Ray whose GCS is at `address`. This process need not be connected to it."""
    client: Callable[..., Gcs] = getattr(importlib.import_module("ray._raylet"), "GcsClient")  # noqa: B009
    return [
        node.node_manager_address for node in client(address=address).get_all_node_info().values() if not node.state
    ]


def draining_nodes() -> set[str]:
    """Ids of the nodes that Ray is about to end: of `ray drain-node`, and of the autoscaler."""
    from ray._private import state

    return set(state.state.get_draining_nodes())


def drain_own_node(reason: str, seconds: float) -> str:
    """Tell Ray that this node will end in so many seconds, as its autoscaler does; returns why Ray refuses, or ""."""
    raylet = cast("Any", importlib.import_module("ray._raylet"))
    reasons = cast("Any", importlib.import_module("ray.core.generated.autoscaler_pb2"))
    deadline_ms = int((time.time() + seconds) * 1000)
    accepted, refusal = raylet.GcsClient(address=gcs_address()).drain_node(
        own_node_id(), reasons.DRAIN_NODE_REASON_PREEMPTION, reason, deadline_ms
    )
    return "" if accepted else str(refusal)


def own_node_id() -> str:
    """The id of the node on which this process runs."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


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
    """Names of all named actors of ours."""
    from ray.util import list_named_actors

    found = cast("list[dict[str, str]]", list_named_actors(all_namespaces=True))
    return [actor["name"] for actor in found if actor["namespace"] == RAY_NAMESPACE]


def cluster_cpus() -> float:
    """The CPUs of the Ray that this process is connected to."""
    import ray

    return float(ray.cluster_resources().get("CPU", 0))


def gcs_address() -> str:
    """The address of the Ray that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)
