"""What a test asks of the cluster through Ray, answered by a process on one of the hosts.

    python -P -m support.nodes.driver

A request is a line of JSON: the name of a function below and its arguments. So is the answer: `{"answer": …}`, or
`{"error": text}`. The process ends with its standard input.
"""

import contextlib
import json
import os
import sys
import traceback
from typing import Any

import ray

import magnetar
from magnetar.cluster.handle import Cluster
from magnetar.protocol.names import actor_name
from magnetar.runtime.ray_calls import ask, find_actor
from support.checks.replicas import missing_copies

ANSWER_S = 20.0


class Driver:
    """The functions."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None

    @property
    def cluster(self) -> Cluster:
        assert self._cluster is not None, "no cluster was started"
        return self._cluster

    def start(self, **options: Any) -> dict[str, Any]:
        """`magnetar.start`; what a client needs to know."""
        self._cluster = magnetar.start(**options)
        return {
            "cluster_id": self._cluster.cluster_id,
            "service_urls": self._cluster.service_urls,
            "admin_url": self._cluster.admin_url,
        }

    def connect(self) -> None:
        """Find the cluster that somebody else has started."""
        self._cluster = magnetar.connect()

    def stop(self) -> None:
        """End the cluster in good order."""
        self.cluster.stop()

    def status(self) -> Any:
        """As `magnetar status` shows it."""
        return self.cluster.status()

    def scale(self, **numbers: int | None) -> Any:
        return self.cluster.scale(**numbers)

    def drain(self, member: str) -> Any:
        return self.cluster.drain(member)

    def undrain(self, member: str) -> Any:
        return self.cluster.undrain(member)

    def restart(self, process: str) -> Any:
        return self.cluster.restart([process])[0]

    def urls(self) -> tuple[list[str], str]:
        """Those of brokers and admin, read again."""
        self.cluster.refresh()
        return self.cluster.service_urls, self.cluster.admin_url

    def accept_lost_ledgers(self) -> list[list[int]]:
        return self.cluster.accept_lost_ledgers()

    def process_id(self, process: str) -> int:
        """The id that a process of the cluster has on its host."""
        return ask(find_actor(actor_name(process)).process_id(), ANSWER_S)

    def actor_id(self, process: str) -> str:
        """Another one after the actor was made anew."""
        return str(find_actor(actor_name(process)).ray_handle._actor_id.hex())

    def missing_copies(self, copies: int) -> list[Any]:
        """See `support.checks.replicas`."""
        return missing_copies(copies)

    def nodes(self) -> list[dict[str, Any]]:
        """Ray's nodes: id, address, and whether Ray takes it for alive."""
        return [
            {"id": node["NodeID"], "address": node["NodeManagerAddress"], "alive": node["Alive"]}
            for node in ray.nodes()
        ]


def main() -> None:
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    driver = Driver()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            found = {"answer": getattr(driver, request["function"])(**request["arguments"])}
        except Exception as error:
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found, default=str), file=told, flush=True)
    with contextlib.suppress(Exception):
        ray.shutdown()


if __name__ == "__main__":
    main()
