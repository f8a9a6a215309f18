"""A look at the machines: which data directory each Ray node sees, and which bookies lie in it.

A data directory is known by its file `machine-id`, which the first look writes. Ray's node ids change when a raylet is
started again, and addresses may. Several Ray nodes that find the same id may see one directory, of a shared file system
or of one computer. Or one directory is a copy of the other. So one of them writes a file with
a new name, and the others say whether they see it. Those that do not get a place of their own. The same cookie in two
places is then known for a copy.

A node that answers with an error becomes a machine with a problem. Nothing starts there, and its data is not gone.
"""

import json
import logging
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar, cast

from ...protocol.errors import ClusterError, MagnetarError
from ...runtime.files import make_private_directory, open_private
from ...runtime.ray_calls import RayNode, ask, draining_nodes, own_node_id, ray_nodes, remote, wait_for
from ..desired.planner import CookieFound, Machine

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

SURVEY_TIMEOUT_S = 60.0
LOOK_TIMEOUT_S = 20.0
"""A node that is lost, and that Ray still lists, keeps the others waiting for so long."""
LEFT_OUT = "the Ray node %s (%s) is left out, and is looked at again: %s"
"""A line of the log: a node's address, its id, and what is wrong with what to do."""
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


class UnreadableDirectory(ClusterError):
    """The data directory of a machine cannot be read. `bookies` are those that have directories in it."""

    def __init__(self, text: str, bookies: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.bookies = tuple(bookies)

    def __reduce__(self) -> tuple[type["UnreadableDirectory"], tuple[str, tuple[str, ...]]]:
        return UnreadableDirectory, (str(self), self.bookies)


class Look(NamedTuple):
    """What one machine found. `machine_id` is empty where the directory cannot be written."""

    machine_id: str
    cookies: dict[str, CookieFound]


class Surveyed(NamedTuple):
    """What a survey found: machines, and by Ray node id why others did not answer."""

    machines: list[Machine]
    silent: dict[str, str]


def look(data_directory: str) -> Look:
    """The data directory of this machine. Raises UnreadableDirectory for a directory or cookie that cannot be read."""
    try:
        names = sorted(name for name in os.listdir(data_directory) if name.startswith("bookie-"))
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise UnreadableDirectory(
            f"the data directory {data_directory} cannot be read ({error!r}): check the disk and its owner"
        ) from error
    found: dict[str, CookieFound] = {}
    for name in names:
        path = Path(data_directory) / name / COOKIE_FILE
        try:
            cookie: dict[str, object] = json.loads(path.read_bytes())
            found[name] = CookieFound(str(cookie["cluster_id"]), str(cookie["instance"]))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UnreadableDirectory(
                f"the cookie {path} cannot be read ({error!r}): check the disk and the owner of the file", names
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
    """All nodes of the Ray that we are connected to, ours first. Those that could not be looked at are logged.

    Raises ClusterError when ours could not be.
    """
    own = own_node_id()
    nodes = sorted(alive_nodes(), key=lambda node: (node["NodeID"] != own, node["NodeID"]))
    if only_own:
        nodes = nodes[:1]
    found = survey(nodes, data_directory, own=own)
    if found.machines and found.machines[0].problem:
        raise ClusterError(found.machines[0].problem)
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in nodes}
    left_out = {machine.ray_node_id: machine.problem for machine in found.machines if machine.problem}
    for one, problem in (left_out | found.silent).items():
        logger.warning(LEFT_OUT, addresses[one], one, problem)
    return found.machines


def alive_nodes() -> list[RayNode]:
    """Ray's nodes that are alive."""
    return [node for node in ray_nodes() if node["Alive"]]


def survey(nodes: Sequence[RayNode], data_directory: str, *, own: str = "") -> Surveyed:
    """Look at these nodes of Ray; `own` is ours, which needs no task.

    Ray lists a node that is lost for up to a minute, and starts nothing on one that it drains. So a node that does not
    answer is left out. One that drains is there, without its cookies: what runs there stays. One that answers with an
    error is a machine with a problem. Raises UnreadableDirectory for `own`.
    """
    leaving = draining_nodes()
    looks, problems, silent = _looks([node["NodeID"] for node in nodes if node["NodeID"] != own], data_directory)
    if own and any(node["NodeID"] == own for node in nodes):
        looks[own] = look(data_directory)
    looks.update((one, Look("", {})) for one in (*problems, *leaving) if one not in looks)
    unread = {one: error.bookies for one, error in problems.items()}
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
            str(problems.get(node["NodeID"], "")),
            unread.get(node["NodeID"], ()),
        )
        for node in nodes
        if node["NodeID"] in looks
    ]
    silent = {one: reason for one, reason in silent.items() if one not in looks}
    return Surveyed(tell_copies_apart(machines, data_directory), silent)


class _Looks(NamedTuple):
    """By Ray node: what it found, why it could not look, or why it did not answer."""

    looks: dict[str, Look]
    problems: dict[str, UnreadableDirectory]
    silent: dict[str, str]


def _looks(nodes: Sequence[str], data_directory: str) -> _Looks:
    """Have these Ray nodes look at their data directories."""
    from ray.exceptions import RayError, RayTaskError

    answers = dict(zip(nodes, _begin_on(nodes, look, data_directory), strict=True))
    pending = wait_for(list(answers.values()), LOOK_TIMEOUT_S)
    found = _Looks({}, {}, {})
    for node, answer in answers.items():
        try:
            if answer in pending:
                found.silent[node] = f"it did not answer within {LOOK_TIMEOUT_S:.0f} s: check its load and its network"
            else:
                found.looks[node] = ask(answer)
        except RayTaskError as error:
            found.problems[node] = _problem_of(cast("BaseException", error.cause))
        except RayError as error:
            found.silent[node] = f"{type(error).__name__}: {_first_line(error)}"
    return found


def _problem_of(cause: BaseException) -> UnreadableDirectory:
    """Why a node could not look, for the operator. Ray raises RuntimeError for a function that it cannot load there."""
    if isinstance(cause, UnreadableDirectory):
        return cause
    if isinstance(cause, MagnetarError):
        return UnreadableDirectory(str(cause))
    if isinstance(cause, ImportError) or "failed to import" in str(cause):
        reason = str(cause).strip().splitlines()[-1]
        return UnreadableDirectory(
            f"Magnetar cannot be loaded there ({reason}): install it on this node, in the version of the cluster"
        )
    return UnreadableDirectory(
        f"the look at its data directory failed ({type(cause).__name__}: {_first_line(cause)}): check its disk"
    )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def tell_copies_apart(machines: Sequence[Machine], data_directory: str) -> list[Machine]:
    """The same machines. Those whose directory is a copy of another one's get a place of their own.

    When that cannot be told of some machines, they have a problem.
    """
    found = list(machines)
    for leader in machines:
        same = [one for one in found if one.place_id == leader.place_id and one.place_id]
        if len(same) < 2 or same[0].ray_node_id != leader.ray_node_id:
            continue
        try:
            seen = _seen(leader.ray_node_id, [one.ray_node_id for one in same[1:]], data_directory)
        except ClusterError as error:
            found = [_untold(one, error) if one in same else one for one in found]
            continue
        found = [
            one if seen.get(one.ray_node_id, True) else replace(one, place_id=f"{one.place_id}@{one.ray_node_id}")
            for one in found
        ]
    return found


def _seen(leader: str, others: Sequence[str], data_directory: str) -> dict[str, bool]:
    """Which of the other Ray nodes see a file that the leader writes. Raises ClusterError."""
    name = secrets.token_hex(8)
    on_nodes([leader], witness, data_directory, name, True)
    try:
        return dict(zip(others, on_nodes(others, sees, data_directory, name), strict=True))
    finally:
        on_nodes([leader], witness, data_directory, name, False)


def _untold(machine: Machine, error: ClusterError) -> Machine:
    """A machine of which it is not known whether its directory is a copy."""
    problem = f"its data directory may be a copy of another one with the same {MACHINE_ID_FILE}: {error}"
    return replace(machine, cookies={}, place_id="", problem=problem, unread=tuple(machine.cookies))


def on_nodes(nodes: Sequence[str], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
    """The answers of a function on each of these Ray nodes. Raises ClusterError."""
    from ray.exceptions import RayError

    answers = _begin_on(nodes, function, *args, **kwargs)
    try:
        return ask(answers, SURVEY_TIMEOUT_S)
    except RayError as error:
        raise ClusterError(f"the data directories of some Ray nodes could not be read: {error}") from error


def _begin_on(nodes: Sequence[str], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[Awaitable[T]]:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    answers: list[Awaitable[T]] = []
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
