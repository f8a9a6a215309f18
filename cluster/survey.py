"""A look at the machines: which of them hold bookies of this data directory."""

import json
from pathlib import Path

from ..protocol.errors import ClusterError
from ..runtime.ray_calls import Answer, ask, ray_nodes, remote
from .planning import Machine, is_loopback

SURVEY_TIMEOUT_S = 60.0


def find_cookies(data_directory: str) -> dict[str, str]:
    """The bookies whose cookie lies below `data_directory` on this machine: id → cluster id. Raises ClusterError."""
    found: dict[str, str] = {}
    for path in sorted(Path(data_directory).glob("bookie-*/cookie")):
        try:
            cookie: dict[str, object] = json.loads(path.read_bytes())
            found[path.parent.name] = str(cookie["cluster_id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ClusterError(
                f"the cookie {path} cannot be read ({error!r}): check the disk and the owner of the file"
            ) from error
    return found


def this_machine(host: str, data_directory: str) -> Machine:
    """This machine without Ray."""
    return Machine("", host, find_cookies(data_directory))


def ray_machines(host: str, data_directory: str) -> list[Machine]:
    """All nodes of the Ray that we are connected to, ours first; only ours if `host` is a loopback address."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    own = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray_nodes() if node["Alive"]]
    nodes.sort(key=lambda node: (node["NodeID"] != own, node["NodeID"]))
    if is_loopback(host):
        nodes = nodes[:1]
    looks: dict[str, Answer[dict[str, str]]] = {}
    for node in nodes[1:]:
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        looks[node["NodeID"]] = remote(find_cookies, num_cpus=0, scheduling_strategy=strategy).remote(data_directory)
    try:
        cookies = dict(zip(looks, ask(list(looks.values()), SURVEY_TIMEOUT_S), strict=True))
    except RayError as error:
        raise ClusterError(f"the data directories of some Ray nodes could not be read: {error}") from error
    cookies[own] = find_cookies(data_directory)
    return [Machine(node["NodeID"], node["NodeManagerAddress"], cookies[node["NodeID"]]) for node in nodes]
