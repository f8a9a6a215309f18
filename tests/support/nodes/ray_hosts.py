"""Ray on several hosts, and a Magnetar cluster on that Ray.

    node-1   the head of Ray: GCS and a raylet; `start_cluster` works here, unless told otherwise
    node-2…  a raylet each
    client   a host without Ray: tests and benchmarks talk to the cluster from here (`with hosts.client.network(): …`)

Ray asks for a token, as a Ray does that Magnetar starts. The head stays where it is: a Ray that loses its GCS is lost.
"""

import contextlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from magnetar.cluster.handle import Cluster
from magnetar.cluster.ray_head import CONNECT_VARIABLES
from magnetar.protocol.cluster_status import ClusterStatus, DesiredView, RestartView
from magnetar.protocol.names import COORDINATOR_ID, ROLE_ADMIN

from .driver_process import TESTS, DriverProcess
from .network import Cut, Host, Network

GCS_PORT = 6379
CPUS = 2
OBJECT_STORE_BYTES = 80 << 20  # Ray takes no less
CLUSTER_OPTIONS = {"host": "0.0.0.0", "insecure": True, "port": 6650, "admin_port": 8080}


class RayHosts:
    """`count` Ray nodes and a host for clients. A context manager that ends everything."""

    def __init__(self, count: int = 4, labels: Sequence[Mapping[str, str]] = (), path: Sequence[str] = ()) -> None:
        """`labels` are those of Ray's nodes, such as a zone, in the order of the nodes. On the hosts, Python looks for
        packages in `path` before it looks where this process does.
        """
        self.network = Network()
        self._clusters = 0
        self._drivers = contextlib.ExitStack()
        """What is left to close of programs that started clusters."""
        self._labels = [dict(one) for one in labels] + [{}] * (count - len(labels))
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_enable_worker_prestart": "false",
            # As docs/operations/upgrades.md recommends.
            "RAY_grpc_client_keepalive_timeout_ms": "10000",
            "RAY_raylet_liveness_self_check_interval_ms": "5000",
            **CONNECT_VARIABLES,
            "PYTHONPATH": os.pathsep.join([*path, str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "HOME": str(self.network.directory / "own"),
        }
        try:
            self.nodes = [self.network.add_host(f"node-{number + 1}") for number in range(count)]
            self.client = self.network.add_host("client")
            self.address = f"{self.head.address}:{GCS_PORT}"
            self.environment["RAY_ADDRESS"] = self.address
            self.start_ray(self.head)
            with ThreadPoolExecutor(count) as threads:
                list(threads.map(self.start_ray, self.nodes[1:]))  # raises what one of them does
        except BaseException:
            self.network.close()
            raise

    @property
    def head(self) -> Host:
        return self.nodes[0]

    def start_ray(self, node: Host) -> None:
        """Start the raylet of a host, and on the head the GCS. The host runs, without Ray."""
        parameters: dict[str, object] = {
            "node_ip_address": node.address,
            "num_cpus": CPUS,
            "object_store_memory": OBJECT_STORE_BYTES,
            "labels": self._labels[self.nodes.index(node)],
        }
        if node is self.head:
            parameters |= {"gcs_server_port": GCS_PORT, "temp_dir": f"{node.inside}/ray"}
        else:
            parameters |= {"gcs_address": self.address}
        self.run(node, "-P", "-m", "support.nodes.raylet", json.dumps(parameters))

    def has_raylet(self, node: Host) -> bool:
        """Whether a raylet runs on a node, whatever Ray's head knows of it."""
        return bool(node.namespaces.run("pgrep", "-x", "raylet", may_fail=True))

    def look_after(self, node: Host) -> None:
        """Start a raylet that has ended, as a machine does.

        One that Ray gave up while it was cut off ends when it hears of that, which may be after the cut.
        """
        if not self.has_raylet(node):
            self.start_ray(node)

    def run(self, node: Host, *arguments: str, **options: Any) -> str:
        """Run Python on a host, in the environment of Ray; returns what it prints."""
        return node.namespaces.run(sys.executable, *arguments, environment=self.environment, **options)

    def magnetar(self, *arguments: str, node: Host | None = None, **options: Any) -> str:
        """Run the command `magnetar` on a node, the head by default; returns what it prints."""
        environment = {**self.environment, "COLUMNS": "200"}
        return (node or self.head).namespaces.run(
            sys.executable, "-P", "-m", "magnetar.cluster.command_line", *arguments, environment=environment, **options
        )

    def start_cluster(self, *, at: Host | None = None, **options: Any) -> "NodesCluster":
        """Start a cluster on all nodes, as `magnetar.start` does with these options, by a program on the node `at`,
        which is the head if none is given. Each cluster gets a data directory of its own, unless `data_dir` names one.
        """
        self._clusters += 1
        directory = str(self.head.inside / f"data-{self._clusters}")
        cluster = NodesCluster(self, at or self.head, {**CLUSTER_OPTIONS, "data_dir": directory, **options})
        self._drivers.callback(cluster.leave)
        return cluster

    # -- faults --------------------------------------------------------------------------------------------------

    def kill(self, node: Host, *, silently: bool = False) -> None:
        """End all processes of a node; see `Host.kill`."""
        node.kill(silently=silently)

    def bring_back(self, node: Host) -> None:
        """Start a killed node again, with the same address and data, and a new raylet on it."""
        node.start()
        self.start_ray(node)

    def drain(self, node: Host) -> None:
        """Tell Ray that a node will end, as its autoscaler does, and `ray drain-node` on the node."""
        self.run(
            node, "-P", "-m", "ray.scripts.scripts", "drain-node", f"--address={self.address}",
            "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=it ends", "--deadline-remaining-seconds=120",
        )  # fmt: skip

    def cut(self, node: Host, how: Cut = Cut.BOTH_WAYS) -> None:
        """Lose the packets between a node and all other hosts; see `Network.cut`."""
        self.network.cut(node, how)

    def heal(self, node: Host) -> None:
        self.network.heal(node)

    def repair(self) -> None:
        """Take back all cuts, bring killed nodes back, and start raylets that have ended."""
        self.network.heal_all()
        for node in self.nodes:
            if not node.running:
                self.bring_back(node)
            else:
                self.look_after(node)

    def node_at(self, address: str) -> Host:
        """The node that has this address."""
        return next(node for node in self.nodes if node.address == address)

    def close(self) -> None:
        self.network.close()
        self._drivers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class NodesCluster(Cluster):
    """A cluster on the hosts. Clients of it belong into a block `with hosts.client.network():`."""

    def __init__(self, hosts: RayHosts, at: Host, options: Mapping[str, object]) -> None:
        self.hosts = hosts
        self.data_directory = Path(str(options["data_dir"]))
        """On each host."""
        self._driver = DriverProcess(at.namespaces, hosts.environment, at.directory / "driver.log")
        try:
            found = self.ask("start", **options)
        except BaseException:
            self.leave()
            raise
        super().__init__(found["cluster_id"], found["service_urls"], found["admin_url"])

    def ask(self, function: str, **arguments: object) -> Any:
        """Call a function of `driver.Driver`. Raises RuntimeError with the error of the other side."""
        return self._driver.ask(function, **arguments)

    def status(self) -> ClusterStatus:
        found: ClusterStatus = self.ask("status")
        return found

    def scale(self, *, brokers: int | None = None, bookies: int | None = None) -> DesiredView:
        found: DesiredView = self.ask("scale", brokers=brokers, bookies=bookies)
        return found

    def drain(self, member: str) -> DesiredView:
        found: DesiredView = self.ask("drain", member=member)
        return found

    def undrain(self, member: str) -> DesiredView:
        found: DesiredView = self.ask("undrain", member=member)
        return found

    def _restart_one(self, process: str) -> RestartView:
        found: RestartView = self.ask("restart", process=process)
        return found

    def refresh(self) -> None:
        self.service_urls, self.admin_url = self.ask("urls")

    def accept_lost_ledgers(self) -> list[list[int]]:
        found: list[list[int]] = self.ask("accept_lost_ledgers")
        return found

    def places(self) -> dict[str, Host]:
        """Where the coordinator is, and each live broker and bookie: by its id, such as `broker-2`."""
        status = self.status()
        found = {member["id"]: member["host"] for member in status["members"] if member["role"] != ROLE_ADMIN}
        found[COORDINATOR_ID] = status["coordinator"]["host"]
        return {process: self.hosts.node_at(address) for process, address in found.items()}

    def kill(self, process: str) -> None:
        """SIGKILL to one process, such as `bookie-1`."""
        place = self.places()[process]
        place.namespaces.signal_process(self.ask("process_id", process=process), signal.SIGKILL)

    def stop(self) -> None:
        if self._driver.running:
            try:
                self.ask("stop")
            finally:
                self.leave()

    def leave(self) -> None:
        """End the program that started the cluster, and leave the cluster as it is."""
        self._driver.close()
