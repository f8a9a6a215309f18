"""A Ray node that ends: what has to move first."""

from magnetar.cluster.draining import moving_from
from magnetar.protocol.cluster_status import ProcessStatus


def process(node_id: str, ray_node_id: str) -> ProcessStatus:
    return {
        "node_id": node_id,
        "role": node_id.rpartition("-")[0] or node_id,
        "state": "running",
        "restarts": 0,
        "problem": "",
        "directory": "",
        "ray_node_id": ray_node_id,
    }


def test_brokers_and_the_admin_move_and_bookies_stay_with_their_data() -> None:
    processes = [process("bookie-1", "here"), process("broker-1", "here"), process("broker-2", "there")]
    assert moving_from([*processes, process("admin", "here")], "here") == ["broker-1", "admin"]
    assert moving_from(processes, "nowhere") == []
