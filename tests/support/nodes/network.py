"""Hosts that are joined by a router, and cuts between them.

    host 10.77.0.1 ── router ── 10.77.0.2 host
                        └────── 10.77.0.3 host …

The router is a namespace, too, so that the machine's own network is not touched, and several tests may run at once. It
drops packets by rules on their source and their target. A dropped packet leaves no trace: nobody is told, neighbours
stay known, and a sender waits. This is what a network of several switches does, and the worst for those who wait.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Self

from .namespaces import Namespaces, Place

ROUTER_ADDRESS = "10.77.255.254"
PREFIX = "mn-"
LINK_TIMEOUT_S = 10.0
LINK_POLL_S = 0.005


class Cut(StrEnum):
    """Which packets of a host are lost."""

    BOTH_WAYS = "both ways"
    OUTGOING = "outgoing"
    """What the host sends. It still hears the others."""
    INCOMING = "incoming"
    """What is sent to the host. The others still hear it."""


class Host:
    """A place on the network. It keeps its address and its directory when it is killed and started again."""

    def __init__(self, network: "Network", name: str, number: int) -> None:
        self.name = name
        self.address = f"10.77.0.{number}"
        self.directory = network.directory / "hosts" / name
        """Its own directory, as the test sees it."""
        self.inside = network.directory / "own"
        """Its own directory, as the host sees it; the same path on each host."""
        self._network = network
        self._number = number
        self._namespaces: Namespaces | None = None

    @property
    def running(self) -> bool:
        return self._namespaces is not None

    @property
    def namespaces(self) -> Namespaces:
        assert self._namespaces is not None, f"the host {self.name} is not running"
        return self._namespaces

    def start(self) -> None:
        """Switch the host on. Nothing runs there yet."""
        assert self._namespaces is None, f"the host {self.name} runs already"
        self._namespaces = Namespaces(self.name, Place(self.directory, self.inside))
        self._network.join(self, self._number)

    def kill(self, *, silently: bool = False) -> None:
        """End all processes of the host at once. Linux then ends their connections, and their peers hear of it, unless
        the host ends `silently`, as a machine does that loses its power.
        """
        if self._namespaces is None:
            return
        ended, self._namespaces = self._namespaces, None
        if silently:
            self._network.unplug(self._number)
        ended.end()
        self._network.unplug(self._number)

    @contextmanager
    def network(self) -> Iterator[None]:
        """Sockets that this thread makes within the block are the host's. See `Namespaces.network`."""
        with self.namespaces.network():
            yield


class Network:
    """A router and its hosts; a context manager that ends all of them, and removes their directories."""

    def __init__(self) -> None:
        # Short, because the sockets of Ray below it have to fit into the 107 bytes that Unix allows.
        _remove_left_behind()
        self.directory = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir="/tmp"))
        self.hosts: list[Host] = []
        self._router = Namespaces("router")
        self._router.run("sysctl", "-q", "-w", "net.ipv4.ip_forward=1")
        self._cuts: dict[Host, list[str]] = {}

    def add_host(self, name: str) -> Host:
        """A new host, switched on."""
        host = Host(self, name, len(self.hosts) + 1)
        self.hosts.append(host)
        host.start()
        return host

    def cut(self, host: Host, how: Cut = Cut.BOTH_WAYS, of: Host | None = None) -> None:
        """Lose the packets between the host and all others, or only those between it and the host `of`. The host need
        not run. Another cut of the same host comes on top.
        """
        peer = of.address if of is not None else "all"
        wanted = {
            Cut.OUTGOING: [f"from {host.address} to {peer}"],
            Cut.INCOMING: [f"from {peer} to {host.address}"],
        }
        rules = wanted.get(how) or wanted[Cut.OUTGOING] + wanted[Cut.INCOMING]
        self._ip(*(f"rule add {rule} blackhole" for rule in rules))
        self._cuts.setdefault(host, []).extend(rules)

    def heal(self, host: Host) -> None:
        """Take back all cuts of this host."""
        self._ip(*(f"rule del {rule} blackhole" for rule in self._cuts.pop(host, [])))

    def heal_all(self) -> None:
        for host in list(self._cuts):
            self.heal(host)

    def join(self, host: Host, number: int) -> None:
        """Plug a host in that was just switched on, and wait until the link carries packets.

        Both ends know each other's hardware address. Else the first packet would ask for it, and what is lost while a
        link comes up would be asked again a second later.
        """
        near, far = f"02:4d:4e:00:00:{number:02x}", f"02:4d:4e:00:01:{number:02x}"
        first = host.namespaces.process_id
        self._ip(
            f"link add v{number} address {near} type veth peer name eth0 address {far} netns {first}",
            f"addr add {ROUTER_ADDRESS} peer {host.address} dev v{number}",
            f"link set v{number} up",
            f"neigh replace {host.address} lladdr {far} dev v{number} nud permanent",
        )
        setup = [
            f"addr add {host.address} peer {ROUTER_ADDRESS} dev eth0",
            "link set eth0 up",
            f"neigh replace {ROUTER_ADDRESS} lladdr {near} dev eth0 nud permanent",
            f"route add default via {ROUTER_ADDRESS}",
        ]
        host.namespaces.run("ip", "-batch", "-", given="\n".join(setup))
        deadline = time.monotonic() + LINK_TIMEOUT_S
        while not (
            "state UP" in self._router.run("ip", "link", "show", f"v{number}")
            and "state UP" in host.namespaces.run("ip", "link", "show", "eth0")
        ):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the link of {host.name} does not come up")
            time.sleep(LINK_POLL_S)

    def unplug(self, number: int) -> None:
        """Take a host's link away. The kernel may be about to do so, because the host has ended."""
        self._router.run("ip", "link", "del", f"v{number}", network_only=True, may_fail=True)

    def close(self) -> None:
        for host in self.hosts:
            host.kill()
        self._router.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ip(self, *commands: str) -> None:
        if commands:
            # Names of network namespaces are process ids, which mean something to the test's own /proc only.
            self._router.run("ip", "-batch", "-", given="\n".join(commands), network_only=True)


def _remove_left_behind() -> None:
    """Remove the directories of networks whose programs were killed. Their names say whose they were."""
    for path in Path("/tmp").glob(f"{PREFIX}*-*"):
        owner = path.name.split("-")[1]
        if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(path, ignore_errors=True)
