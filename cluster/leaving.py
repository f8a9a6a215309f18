"""`magnetar leave`: a Ray node that is about to end gives up what runs on it.

The command tells Ray that it drains this node. The coordinator sees that within a second (`processes.ray_machines`):
its brokers give their topics to others and move, and its bookies get no new ledgers. `leave` waits for the brokers.
Data of bookies stays where it is: their ledgers have copies elsewhere, and the node may come back.

`ray start --block` does the same when it gets SIGTERM, but for the waiting: it ends after 30 s, or when nothing runs.
"""

import time
from collections.abc import Sequence

from ..protocol.cluster_status import ProcessStatus
from ..protocol.errors import ClusterError
from ..protocol.names import ROLE_BOOKIE
from ..runtime.ray_calls import drain_own_node, own_node_id
from .handle import Cluster

LEAVE_S = 45.0
POLL_S = 0.2
REASON = "magnetar leave: the node is about to end"


def leave_node(cluster: Cluster, wait_s: float = LEAVE_S) -> list[str]:
    """Have Ray drain this node, and wait until its brokers and its admin run elsewhere.

    Returns those that still run here after `wait_s`. Raises ClusterError when Ray refuses.
    """
    node = own_node_id()
    problem = drain_own_node(REASON, wait_s)
    if problem:
        raise ClusterError(f"Ray does not drain this node: {problem}")
    deadline = time.monotonic() + wait_s
    while left := moving_from(cluster.status()["processes"], node):
        if time.monotonic() > deadline:
            return left
        time.sleep(POLL_S)
    return []


def moving_from(processes: Sequence[ProcessStatus], ray_node_id: str) -> list[str]:
    """The members on that node which can run elsewhere."""
    return [one["node_id"] for one in processes if one["ray_node_id"] == ray_node_id and one["role"] != ROLE_BOOKIE]
