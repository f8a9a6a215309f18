"""A raylet on a host, and on the head the GCS, as `ray start` starts them, without the processes that no test uses.

    python -P -m support.nodes.raylet '{"node_ip_address": …, …}'

The argument has the parameters of Ray's `RayParams`. Those with `gcs_address` join the Ray there. The command ends when
Ray has registered the node; the processes stay. `ray start` does the same in three times the time, with processes for a
dashboard, an autoscaler, logs and Ray's own clients.
"""

import json
import sys
import time

from ray._private import node, parameter

REGISTERED_TIMEOUT_S = 30.0
REGISTERED_POLL_S = 0.02


class Node(node.Node):
    """A node of Ray."""

    def start_api_server(self, **arguments: object) -> None:
        """Leave the dashboard out."""

    def start_ray_processes(self) -> None:
        """Return once the raylet has registered: Ray asks for it next, and asks again only a second later."""
        super().start_ray_processes()
        client = self.get_gcs_client()
        deadline = time.monotonic() + REGISTERED_TIMEOUT_S
        while time.monotonic() < deadline:
            if any(found.hex() == self.node_id for found in client.get_all_node_info(timeout=REGISTERED_TIMEOUT_S)):
                return
            time.sleep(REGISTERED_POLL_S)


def main() -> None:
    given = json.loads(sys.argv[1])
    parameters = parameter.RayParams(include_log_monitor=False, no_monitor=True, include_dashboard=False, **given)
    head = "gcs_address" not in given
    Node(parameters, head=head, shutdown_at_exit=False, spawn_reaper=False)


if __name__ == "__main__":
    main()
