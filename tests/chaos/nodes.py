"""A chaos run on several Ray nodes with addresses of their own, which it cuts off and kills.

The run itself is a process on the head's host, as a user's program would be. It cannot harm other hosts from there. So
it asks the process that made the hosts, over two pipes, in lines of JSON: the name of a function of `Harm`, and its
arguments. The head is never harmed, because a Ray that loses its GCS is lost.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from support.nodes.network import Cut
from support.nodes.ray_hosts import RayHosts

RAYLET_ENDS_S = 30.0
CONTROL = "MAGNETAR_CHAOS_CONTROL"


class Harm:
    """What a run may have done to the hosts. Nodes are named `node-2` and so on, or by their address."""

    def __init__(self, hosts: RayHosts) -> None:
        self._hosts = hosts
        self._nodes = {name: node for node in hosts.nodes for name in (node.name, node.address)}
        self._threads = ThreadPoolExecutor(len(hosts.nodes))
        self._returning: list[Future[None]] = []

    def signal(self, node: str, process: int, number: int) -> None:
        """Send a signal to a process, by the id that it has on that node. Nothing happens if it is gone."""
        found = self._nodes[node]
        if found.running:
            found.namespaces.run("kill", f"-{number}", str(process), may_fail=True)

    def cut(self, node: str, how: str) -> None:
        self._hosts.cut(self._nodes[node], Cut(how))

    def heal(self, node: str) -> None:
        self._hosts.heal(self._nodes[node])

    def kill(self, node: str) -> None:
        self._hosts.kill(self._nodes[node])

    def bring_back(self, node: str) -> None:
        """Begin to; other harm goes on meanwhile. What fails is raised by `settle`."""
        self._returning.append(self._threads.submit(self._hosts.bring_back, self._nodes[node]))

    def rejoin(self, node: str) -> None:
        """End a cut that outlasted Ray's patience. The raylet ends when it hears of that, and then a new one begins.

        Raises RuntimeError, in `settle`, when it goes on.
        """
        found = self._nodes[node]
        self._hosts.heal(found)

        def begin_again() -> None:
            ends = time.monotonic() + RAYLET_ENDS_S
            while self._hosts.has_raylet(found):
                if time.monotonic() > ends:
                    raise RuntimeError(f"Ray did not give {node} up while it was cut off")
                time.sleep(0.2)
            self._hosts.start_ray(found)

        self._returning.append(self._threads.submit(begin_again))

    def settle(self) -> None:
        """Wait until all nodes are back. Raises what went wrong."""
        while self._returning:
            self._returning.pop(0).result()


class Nodes:
    """The hosts as the run sees them: see `Harm`."""

    def __init__(self) -> None:
        place = json.loads(os.environ[CONTROL])
        self.directory = Path(place["directory"])
        """Of the harness; below it `hosts/NAME` is the own directory of each host."""
        self.inside = Path(place["inside"])
        """What each host sees of it."""
        self.addresses: dict[str, str] = place["addresses"]
        """Of the nodes that may be harmed, by name."""
        self._asking: IO[str] = os.fdopen(place["asking"], "w")
        self._told: IO[str] = os.fdopen(place["told"])
        self._lock = threading.Lock()

    def ask(self, function: str, *arguments: Any) -> None:
        with self._lock:
            print(json.dumps([function, arguments]), file=self._asking, flush=True)
            problem = json.loads(self._told.readline())
        if problem:
            raise RuntimeError(f"{function} of {arguments} failed: {problem}")

    def signal(self, address: str, process: int, number: int) -> None:
        self.ask("signal", address, process, number)

    @property
    def logs(self) -> list[Path]:
        """The directories of Ray's logs, of all nodes."""
        return sorted(self.directory.glob("hosts/*/ray/session_2*/logs"))


def on_nodes(count: int, program: str, arguments: Sequence[str]) -> int:
    """Run this program on the head of `count` nodes; returns its exit status."""
    with RayHosts(count) as hosts:
        asked, asking = os.pipe()
        told, telling = os.pipe()
        place = {
            "directory": str(hosts.network.directory),
            "inside": str(hosts.head.inside),
            "addresses": {node.name: node.address for node in hosts.nodes[1:]},
            "asking": asking,
            "told": told,
        }
        process = hosts.head.namespaces.popen(
            sys.executable, program, *arguments,
            environment={**hosts.environment, CONTROL: json.dumps(place)}, pass_fds=(asking, told),
        )  # fmt: skip
        os.close(asking)
        os.close(told)
        with os.fdopen(asked) as requests, os.fdopen(telling, "w") as answers:
            _serve(Harm(hosts), requests, answers)
            return process.wait()


def _serve(harm: Harm, requests: IO[str], answers: IO[str]) -> None:
    for line in requests:
        function, arguments = json.loads(line)
        try:
            getattr(harm, function)(*arguments)
            problem = ""
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        print(json.dumps(problem), file=answers, flush=True)
