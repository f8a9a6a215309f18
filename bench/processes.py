"""The cluster's processes: which they are, and the processor time and memory that they use."""

import os
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


class Memory:
    """How much the resident set of a process has grown, of that process in which it has grown most."""

    def __init__(self, processes: list[int]) -> None:
        self._before = dict.fromkeys(processes, 0)
        self._most = dict.fromkeys(processes, 0)

    def begin(self) -> None:
        """Count from now on."""
        self._before = {process: _resident_bytes(process) for process in self._before}
        self._most = dict(self._before)

    def look(self) -> None:
        """See how much it is now."""
        self._most = {process: max(most, _resident_bytes(process)) for process, most in self._most.items()}

    @property
    def grown_mb(self) -> float:
        return max(most - self._before[process] for process, most in self._most.items()) / 1e6


def _resident_bytes(process: int) -> int:
    with open(f"/proc/{process}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
