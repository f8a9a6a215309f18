"""A look at the machines: which data directory each Ray node sees, and which bookies lie in it.

A data directory is known by its file `machine-id`, which the first look writes. Ray's node ids change when a raylet is
started again, and addresses may. Several Ray nodes that find the same id may see one directory, of a shared file system
or of one computer. Or one directory is a copy of the other. So one of them writes a file with
a new name, and the others say whether they see it. Those that do not get a place of their own. The same cookie in two
places is then known for a copy.
"""

import json
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from ...protocol.errors import ClusterError
from ...runtime.files import make_private_directory, open_private
from ...runtime.ray_calls import Answer, RayNode, ask, draining_nodes, ray_nodes, remote, wait_for
from ..desired.planner import CookieFound, Machine

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

SURVEY_TIMEOUT_S = 60.0
LOOK_TIMEOUT_S = 20.0
"""A node that is lost, and that Ray still lists, keeps the others waiting for so long."""
MACHINE_ID_FILE = "machine-id"
COOKIE_FILE = "cookie"
"""A bookie's, in its directory."""
WITNESS_PREFIX = "seen-by-"
ZONE_LABELS = ("magnetar/zone", "rack", "zone", "ray.io/availability-zone", "topology.kubernetes.io/zone")
"""Labels of Ray nodes that say in which rack or zone a node is; the first that a node has counts."""
BOOKIES_LABEL = "magnetar.io/bookies"
BROKERS_LABEL = "magnetar.io/brokers"
ADMIN_LABEL = "magnetar.io/admin"
"""Labels of Ray nodes with the value `false`: no bookie, no broker, or not the admin starts there. With the id of a
bookie as the value of the first, only that one starts empty there.
"""


class Look(NamedTuple):
    """What one machine found. `machine_id` is empty where the directory cannot be written."""

    machine_id: str
    cookies: dict[str, CookieFound]


def look(data_directory: str) -> Look:
    """The data directory of this machine. Raises ClusterError for a cookie that cannot be read."""
    found: dict[str, CookieFound] = {}
    for path in sorted(Path(data_directory).glob(f"bookie-*/{COOKIE_FILE}")):
        try:
            cookie: dict[str, object] = json.loads(path.read_bytes())
            found[path.parent.name] = CookieFound(str(cookie["cluster_id"]), str(cookie["instance"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ClusterError(
                f"the cookie {path} cannot be read ({error!r}): check the disk and the owner of the file"
            ) from error
    return Look(machine_id(data_directory), found)


def machine_id(data_directory: str) -> str:
    """The id of this machine's data directory, made on the first call; empty where it cannot be written."""
    path = Path(data_directory) / MACHINE_ID_FILE
    try:
        make_private_directory(data_directory)
        if not path.exists():
            own = path.with_name(f"{MACHINE_ID_FILE}.{secrets.token_hex(8)}")
            _write(own, secrets.token_hex(8))
            try:
                os.link(own, path)  # of those that write at the same time, one wins
            except FileExistsError:
                pass
            finally:
                own.unlink()
        return path.read_text().strip()
    except OSError:
        return ""


def witness(data_directory: str, name: str, present: bool) -> None:
    """Write a file with this name for others to see, or remove it."""
    path = Path(data_directory) / f"{WITNESS_PREFIX}{name}"
    if present:
        _write(path, "")
    else:
        path.unlink(missing_ok=True)


def sees(data_directory: str, name: str) -> bool:
    """Whether a file that another machine wrote is here, too."""
    os.listdir(data_directory)  # a network file system looks at the directory again
    return (Path(data_directory) / f"{WITNESS_PREFIX}{name}").exists()


def _write(path: Path, text: str) -> None:
    descriptor = open_private(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


# -- on one machine or on all nodes of Ray -----------------------------------------------------------------------------


def this_machine(host: str, data_directory: str) -> Machine:
    """This machine without Ray."""
    found = look(data_directory)
    return Machine("", host, found.cookies, found.machine_id)


def ray_machines(data_directory: str, *, only_own: bool) -> list[Machine]:
    """All nodes of the Ray that we are connected to, ours first. Raises ClusterError."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    nodes = sorted(alive_nodes(), key=lambda node: (node["NodeID"] != own, node["NodeID"]))
    if only_own:
        nodes = nodes[:1]
    return survey(nodes, data_directory, own=own)


def alive_nodes() -> list[RayNode]:
    """Ray's nodes that are alive."""
    return [node for node in ray_nodes() if node["Alive"]]


def survey(nodes: Sequence[RayNode], data_directory: str, *, own: str = "") -> list[Machine]:
    """Look at these nodes of Ray; `own` is ours, which needs no task.

    Ray lists a node that is lost for up to a minute, and starts nothing on one that it drains. So a node that does not
    answer is left out. One that drains is there, without its cookies: what runs there stays. Raises ClusterError for a
    cookie that cannot be read.
    """
    leaving = draining_nodes()
    looks = _looks([node["NodeID"] for node in nodes if node["NodeID"] != own], data_directory)
    if own and any(node["NodeID"] == own for node in nodes):
        looks[own] = look(data_directory)
    looks.update((one, Look("", {})) for one in leaving if one not in looks)
    machines = [
        Machine(
            node["NodeID"],
            node["NodeManagerAddress"],
            looks[node["NodeID"]].cookies,
            looks[node["NodeID"]].machine_id,
            zone_of(node.get("Labels", {})),
            node["NodeID"] in leaving,
            takes(node.get("Labels", {}), BOOKIES_LABEL),
            only_bookie(node.get("Labels", {})),
            takes(node.get("Labels", {}), BROKERS_LABEL),
            takes(node.get("Labels", {}), ADMIN_LABEL),
        )
        for node in nodes
        if node["NodeID"] in looks
    ]
    return tell_copies_apart(machines, data_directory)


def _looks(nodes: Sequence[str], data_directory: str) -> dict[str, Look]:
    """What those of these Ray nodes found that answer. Raises what `look` raises."""
    from ray.exceptions import RayError, RayTaskError

    answers = dict(zip(nodes, _begin_on(nodes, look, data_directory), strict=True))
    silent = wait_for(list(answers.values()), LOOK_TIMEOUT_S)
    found: dict[str, Look] = {}
    for node, answer in answers.items():
        try:
            if answer not in silent:
                found[node] = ask(answer)
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            logger.info("the Ray node %s was not looked at: %s", node, error)
    return found


def tell_copies_apart(machines: Sequence[Machine], data_directory: str) -> list[Machine]:
    """The same machines. Those whose directory is a copy of another one's get a place of their own."""
    found = list(machines)
    for leader in machines:
        same = [one for one in found if one.place_id == leader.place_id and one.place_id]
        if len(same) < 2 or same[0].ray_node_id != leader.ray_node_id:
            continue
        name = secrets.token_hex(8)
        on_nodes([leader.ray_node_id], witness, data_directory, name, True)
        try:
            others = [one.ray_node_id for one in same[1:]]
            seen = dict(zip(others, on_nodes(others, sees, data_directory, name), strict=True))
        finally:
            on_nodes([leader.ray_node_id], witness, data_directory, name, False)
        found = [
            one if seen.get(one.ray_node_id, True) else replace(one, place_id=f"{one.place_id}@{one.ray_node_id}")
            for one in found
        ]
    return found


def on_nodes(nodes: Sequence[str], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
    """The answers of a function on each of these Ray nodes. Raises ClusterError."""
    from ray.exceptions import RayError

    answers = _begin_on(nodes, function, *args, **kwargs)
    try:
        return ask(answers, SURVEY_TIMEOUT_S)
    except RayError as error:
        raise ClusterError(f"the data directories of some Ray nodes could not be read: {error}") from error


def _begin_on(nodes: Sequence[str], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[Answer[T]]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    answers: list[Answer[T]] = []
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        answers.append(remote(function, num_cpus=0, scheduling_strategy=strategy).remote(*args, **kwargs))
    return answers


def zone_of(labels: Mapping[str, str]) -> str:
    """The rack or zone of a Ray node; empty when none of its labels says so."""
    return next((labels[name] for name in ZONE_LABELS if labels.get(name)), "")


def takes(labels: Mapping[str, str], name: str) -> bool:
    """Whether a Ray node takes such members: unless the label of this name says `false`."""
    return labels.get(name, "").lower() != "false"


def only_bookie(labels: Mapping[str, str]) -> str:
    """The one bookie that may start empty on a Ray node; empty for any."""
    value = labels.get(BOOKIES_LABEL, "")
    return "" if value.lower() in ("true", "false") else value
