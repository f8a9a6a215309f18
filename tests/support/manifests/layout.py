"""The pods of a `RayCluster` as hosts, and the commands of `RayJob`s on them: what KubeRay makes of the manifests.

Each pod is a host of `support.nodes`: an address of its own, and a directory for its volumes. Ray starts there with the
command that KubeRay writes from `rayStartParams` and `labels`. What differs from Kubernetes:

- A volume is mounted elsewhere: the path of its mount is replaced in commands and in the environment.
- Ray gets its own address, a small object store, a place for its sockets, and no dashboard. Nothing reads its logs for
  drivers, and no autoscaler runs. Jobs start in a shell on the pod that Ray would choose, not by way of the dashboard.
  Probes run only when a test asks. Ray has no agent here, which would answer them.
- `ray start` does not stay in the foreground, except in pods that `start_in_foreground` starts.
- Names of hosts outside, such as that of a database, come from a file, and Services lead nowhere.
"""

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from magnetar.protocol.cluster_status import ClusterStatus
from support.nodes.driver_process import TESTS, DriverProcess
from support.nodes.namespaces import COMMAND_TIMEOUT_S
from support.nodes.network import Host, Network

from .kustomize import Manifest

GCS_PORT = 6379
OBJECT_STORE_BYTES = 80 << 20
TOOLS = str(Path(sys.executable).parent)
HEAD = "head"
ZONE_FIELD = "metadata.labels['topology.kubernetes.io/zone']"
START_ATTEMPTS = 4
RAY_GAVE_UP = "timed out during startup"
"""What `ray start` says after 30 s, which are too few on a machine with much else to do."""
JOB_TIMEOUT_S = 300.0
"""Of a job, which Kubernetes gives no end. It measures or moves much, and may share two processors with other pods."""
END_TIMEOUT_S = 60.0
"""Kubernetes' grace period of the pods of `k8s`."""


@dataclass(frozen=True)
class Pod:
    """A pod of a RayCluster, with its group. `name` is that of the group, with a number where it has several pods."""

    name: str
    group: Manifest

    @property
    def spec(self) -> Manifest:
        return self.group["template"]["spec"]

    @property
    def container(self) -> Manifest:
        return self.spec["containers"][0]

    def start_command(self, address: str) -> list[str]:
        """What KubeRay runs: `ray start` on the head, and elsewhere with the address of the head."""
        parameters: dict[str, str] = dict(self.group["rayStartParams"])
        cpus = self.container["resources"].get("limits", {}).get("cpu")
        if cpus is not None:
            parameters.setdefault("num-cpus", cpus)
        parameters["labels"] = ",".join(f"{name}={value}" for name, value in self.group["labels"].items())
        kind = ["--head"] if self.name == HEAD else [f"--address={address}"]
        return ["ray", "start", *kind, *(f"--{name}={value}" for name, value in parameters.items())]


def pods_of(cluster: Manifest) -> list[Pod]:
    """The pods of a RayCluster, the head first."""
    found = [Pod(HEAD, cluster["spec"]["headGroupSpec"])]
    for group in cluster["spec"]["workerGroupSpecs"]:
        numbers = range(1, group["replicas"] + 1)
        found += [Pod(group["groupName"] + (f"-{one}" if len(numbers) > 1 else ""), group) for one in numbers]
    return found


class Layout:
    """The pods of the objects of an overlay, which run. A context manager that ends them.

    `passwords` are the values of Secrets, by name and key. `network` may have other hosts, by name in `others`. `zones`
    are those of the Kubernetes nodes, by pod.
    """

    def __init__(
        self,
        objects: Sequence[Manifest],
        network: Network,
        passwords: Mapping[tuple[str, str], str] | None = None,
        others: Mapping[str, Host] | None = None,
        zones: Mapping[str, str] | None = None,
    ) -> None:
        cluster = _cluster(objects)
        self._maps = {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "ConfigMap"}
        self._passwords = dict(passwords or {})
        self._others = dict(others or {})
        self._zones = dict(zones or {})
        self._foreground: dict[str, subprocess.Popen[bytes]] = {}
        self._driver: DriverProcess | None = None
        self._token = secrets.token_hex(32)
        self.pods = {pod.name: pod for pod in pods_of(cluster)}
        self.network = network
        self.hosts = {name: network.add_host(name) for name in self.pods}
        self.client = network.add_host("client")
        self.start(*self.pods)

    @property
    def head(self) -> Host:
        return self.hosts[HEAD]

    @property
    def address(self) -> str:
        return f"{self.head.address}:{GCS_PORT}"

    def start(self, *names: str) -> None:
        """Start Ray in these pods, in the head first."""
        if HEAD in names:
            self._start(HEAD)
        failed: list[BaseException] = []

        def start(name: str) -> None:
            try:
                self._start(name)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=start, args=(name,)) for name in names if name != HEAD]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def add_new(self, objects: Sequence[Manifest]) -> list[str]:
        """Take the pods that changed objects have in addition; returns their names. They do not run yet."""
        new = {pod.name: pod for pod in pods_of(_cluster(objects)) if pod.name not in self.pods}
        self.pods |= new
        self.hosts |= {name: self.network.add_host(name) for name in new}
        return list(new)

    def start_in_foreground(self, name: str) -> None:
        """Start a pod with the command line that KubeRay gives its container: Ray stays in the foreground of a shell.

        It runs as soon as Ray has started it; `end` ends it.
        """
        self._prepare(name)
        note = f'echo $$ > "{self.hosts[name].inside}/first-process"'
        command = f"{note}; ulimit -n 65536; {self._ray_start(name)} --block"
        self._foreground[name] = self.hosts[name].namespaces.popen(
            "/bin/bash", "-c", "--", command, environment=self._environment(name), stdout=subprocess.DEVNULL
        )

    def end(self, name: str) -> None:
        """Delete a pod that runs in the foreground. SIGTERM has to end it within the grace period."""
        first = int((self.hosts[name].directory / "first-process").read_text())
        self.hosts[name].namespaces.signal_process(first, signal.SIGTERM)
        self._foreground.pop(name).wait(END_TIMEOUT_S)

    def kill(self, *names: str) -> None:
        """End these pods. What they had outside of claimed volumes is lost."""
        if HEAD in names:
            self._end_driver()
        for name in names:
            self.hosts[name].kill()
            for volume in self.pods[name].spec["volumes"]:
                if "persistentVolumeClaim" not in volume:
                    shutil.rmtree(self.hosts[name].directory / volume["name"])

    def run(self, name: str, command: str) -> str:
        """Run a command line in a pod; returns what it prints."""
        return self._run(name, self._moved(name, command))

    def status(self) -> ClusterStatus:
        """What `magnetar status --json` prints on the head. Raises RuntimeError with the error of the cluster."""
        if self._driver is None:
            environment = {**self._environment(HEAD), "PYTHONPATH": str(TESTS)}
            driver = DriverProcess(self.head.namespaces, environment, self.head.directory / "driver.log")
            try:
                driver.ask("connect")
            except RuntimeError:
                driver.close()
                raise
            self._driver = driver
        found: ClusterStatus = self._driver.ask("status")
        return found

    def _end_driver(self) -> None:
        if self._driver is not None:
            driver, self._driver = self._driver, None
            driver.close()

    def is_ready(self, name: str) -> bool:
        """Run the readiness probe of a pod, which has to be a command."""
        command: list[str] = self.pods[name].container["readinessProbe"]["exec"]["command"]
        try:
            self._run(name, shlex.join(command))
        except RuntimeError:
            return False
        return True

    def run_job(self, job: Manifest, further: str = "") -> str:
        """Run the entry point of a RayJob where Ray would: on the head, or where the processors are that it wants.

        Further arguments follow those of the entry point.
        """
        wanted = job["spec"].get("entrypointNumCpus", 0)
        name = HEAD if not wanted else next(name for name in self.pods if self._cpus(name) >= wanted)
        return self._run(name, self._moved(name, f"{job['spec']['entrypoint']} {further}"), JOB_TIMEOUT_S)

    def _cpus(self, name: str) -> float:
        (given,) = (one for one in self.pods[name].start_command("") if one.startswith("--num-cpus="))
        return float(given.partition("=")[2])

    def _start(self, name: str) -> None:
        """Start Ray in a pod, and the pod anew where Ray gave up too early, as Kubernetes does."""
        for attempts_left in reversed(range(START_ATTEMPTS)):
            self._prepare(name)
            try:
                self._run(name, self._ray_start(name))
                return
            except RuntimeError as error:
                if RAY_GAVE_UP not in str(error) or not attempts_left:
                    raise
                self.hosts[name].kill()

    def _prepare(self, name: str) -> None:
        host, pod = self.hosts[name], self.pods[name]
        if not host.running:
            host.start()
        for volume in pod.spec["volumes"]:
            place = host.directory / volume["name"]
            place.mkdir(exist_ok=True)
            for file, text in self._maps[volume["configMap"]["name"]].items() if "configMap" in volume else ():
                (place / file).write_text(text)
        names = "".join(f"{other.address} {one}\n" for one, other in self._others.items())
        (host.directory / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {host.name}\n{names}")
        host.namespaces.run("mount", "--bind", f"{host.inside}/hosts", "/etc/hosts")

    def _ray_start(self, name: str) -> str:
        host = self.hosts[name]
        ours = [
            f"--node-ip-address={host.address}",
            f"--object-store-memory={OBJECT_STORE_BYTES}",
            "--include-log-monitor=false",
            *([f"--temp-dir={host.inside}/ray", "--include-dashboard=false", "--no-monitor"] if name == HEAD else []),
        ]
        return shlex.join([*self.pods[name].start_command(self.address), *ours])

    def _run(self, name: str, command: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
        environment = self._environment(name)
        return self.hosts[name].namespaces.run("bash", "-c", command, environment=environment, timeout_s=timeout_s)

    def _environment(self, name: str) -> dict[str, str]:
        # What KubeRay sets for `authOptions`, and on every pod.
        environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._token, "RAY_ADDRESS": self.address}
        host = self.hosts[name]
        for one in self.pods[name].container["env"]:
            environment[one["name"]] = self._moved(name, self._value(name, one))
        return environment | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": f"{host.inside}/ray",
            "HOME": str(host.inside),
            "COLUMNS": "200",
            "PATH": f"{TOOLS}:{os.environ['PATH']}",
        }

    def _value(self, name: str, variable: dict[str, Any]) -> str:
        if "value" in variable:
            return variable["value"]
        source = variable["valueFrom"]
        if "fieldRef" in source:
            assert source["fieldRef"] == {"fieldPath": ZONE_FIELD}, "no other field is known here"
            return self._zones.get(name, "")
        reference = source["secretKeyRef"]
        return self._passwords[reference["name"], reference["key"]]

    def _moved(self, name: str, text: str) -> str:
        """The text with the places of the volumes in place of their mounts."""
        for mount in self.pods[name].container["volumeMounts"]:
            text = text.replace(mount["mountPath"], f"{self.hosts[name].inside}/{mount['name']}")
        return text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end_driver()
        self.network.close()


def _cluster(objects: Sequence[Manifest]) -> Manifest:
    (found,) = (one for one in objects if one["kind"] == "RayCluster")
    return found
