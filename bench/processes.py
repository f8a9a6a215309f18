"""The cluster's processes: which they are, and the processor time that they have used."""

import time

import ray

from magnetar.protocol.cluster_status import ClusterStatus
from magnetar.protocol.names import ADMIN_ID, COORDINATOR_ID, RAY_NAMESPACE, actor_name
from magnetar.runtime.ray_calls import ask


def service_processes(status: ClusterStatus) -> dict[str, int]:
    """Process ids of coordinator, bookies, brokers and admin, by node id. `status` is the cluster's."""
    members = [record["node_id"] for record in status["processes"]]
    nodes = list(dict.fromkeys([COORDINATOR_ID, *members, ADMIN_ID]))
    actors = [ray.get_actor(actor_name(node), RAY_NAMESPACE) for node in nodes]
    found: list[int] = ask([actor.process_id.remote() for actor in actors], 30)
    return dict(zip(nodes, found, strict=True))


def cpu_seconds(process: int) -> float:
    """Processor time that a process has used with all its threads, user and system, to the nanosecond."""
    return time.clock_gettime((~process << 3) | 2)  # Linux's clock id of another process
