"""From what the operator asked for to a plan: which node runs where, on which port, with which data.

Pure decisions; looking at machines and at metadata happens in `survey` and `starting`. Bookies are bound to their data:
each starts where its cookie lies. A registered bookie whose cookie no node holds is not created again, because its disk
may come back. It is created again if the operator accepts that its disk is lost. A new number is always created.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

from ..actors.processes.plan import NodePlan
from ..protocol.errors import ClusterError, SettingError
from ..protocol.names import (
    ADMIN_ID,
    COORDINATOR_ID,
    ROLE_ADMIN,
    ROLE_BOOKIE,
    ROLE_BROKER,
    ROLE_COORDINATOR,
    bookie_id,
    broker_id,
)
from ..runtime.settings.declarations import Settings

REPLICATION_NAMES = (
    "managedLedgerDefaultEnsembleSize",
    "managedLedgerDefaultWriteQuorum",
    "managedLedgerDefaultAckQuorum",
)


@dataclass(frozen=True)
class Machine:
    """A machine (a Ray node) that may run processes. `cookies` maps the ids of the bookies whose data lies there to
    their cluster.
    """

    ray_node_id: str
    address: str
    cookies: Mapping[str, str]


@dataclass(frozen=True)
class Wanted:
    """What the operator asked for. Ports are real ones here, never 0."""

    brokers: int
    bookies: int
    host: str
    broker_ports: Sequence[int]
    admin_port: int
    coordinator_port: int
    data_directory: str
    lost_instances: Mapping[str, str] = field(default_factory=dict[str, str])
    """Bookies that may start with an empty disk, with the life of the disk whose loss was accepted."""


def load_settings(
    ensemble: str | None = None,
    config: str | None = None,
    given: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings from the file `config`, the environment, `given` by name, and `ensemble` as `E/Qw/Qa`.

    Raises SettingError for anything unknown or impossible.
    """
    overrides = {name: _as_text(value) for name, value in (given or {}).items()}
    if ensemble is not None:
        parts = ensemble.split("/")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            raise SettingError(
                f"{ensemble!r} is not an ensemble: write ensemble size/write quorum/ack quorum, such as 3/3/2"
            )
        overrides.update(zip(REPLICATION_NAMES, parts, strict=True))
    return Settings.load(config, environment, overrides)


def check_size(brokers: int, bookies: int, settings: Settings) -> None:
    """Raise ClusterError for a cluster that could not acknowledge anything."""
    if brokers < 1:
        raise ClusterError(f"a cluster needs at least one broker, but {brokers} were asked for: raise --brokers")
    if bookies < settings.ack_quorum:
        raise ClusterError(
            f"{bookies} bookies are too few for an ack quorum of {settings.ack_quorum} "
            f"(ensemble {settings.ensemble_size}/{settings.write_quorum}/{settings.ack_quorum}): "
            "raise --bookies, or choose a smaller --ensemble"
        )


def is_wildcard(host: str) -> bool:
    """Whether `host` stands for every address of a machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether no process outside the machine can connect to `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_accepted(accepted: Sequence[str], registered: Sequence[str]) -> None:
    """Raise ClusterError for a bookie that cannot have lost its disk, because it never was."""
    for bookie in accepted:
        if bookie not in registered:
            there = ", ".join(sorted(registered, key=_number)) or "none yet"
            raise ClusterError(
                f"--accept-lost-disk names {bookie}, which is not a bookie of this cluster: choose one of {there}"
            )


def place_bookies(
    wanted: int,
    machines: Sequence[Machine],
    registered: Sequence[str],
    cluster_id: str,
    accepted: Sequence[str] = (),
) -> tuple[list[tuple[str, Machine]], list[str]]:
    """Which bookie runs on which machine, and which registered ones lie on none.

    The `accepted` ones of the latter start with an empty disk where the fewest bookies are, as new ones do.

    Raises ClusterError when a cookie belongs to another cluster, or lies on two machines.
    """
    places: dict[str, Machine] = {}
    for machine in machines:
        for bookie, owner in sorted(machine.cookies.items()):
            if owner != cluster_id:
                raise ClusterError(
                    f"{bookie} on {machine.address} belongs to cluster {owner}, not to {cluster_id}: "
                    "choose another --data-dir"
                )
            if bookie in places:
                raise ClusterError(
                    f"the data of {bookie} lies on {places[bookie].address} and on {machine.address}: one is a copy. "
                    "Move the copy out of the data directory"
                )
            places[bookie] = machine
    missing = sorted(set(registered) - set(places), key=_number)
    lost = [bookie for bookie in missing if bookie not in accepted]
    fresh = [bookie for bookie in missing if bookie in accepted]
    known = {*places, *registered}
    number = 1
    while len(known) < wanted:
        bookie = bookie_id(number)
        number += 1
        if bookie not in known:
            known.add(bookie)
            fresh.append(bookie)
    for bookie in fresh:
        carried = [sum(place is machine for place in places.values()) for machine in machines]
        places[bookie] = machines[carried.index(min(carried))]
    return sorted(places.items(), key=lambda item: _number(item[0])), lost


def plan_nodes(wanted: Wanted, machines: Sequence[Machine], bookies: Sequence[tuple[str, Machine]]) -> list[NodePlan]:
    """All processes of the cluster. The first machine carries coordinator and admin; brokers go round all machines."""
    home = machines[0]
    inner = _inner_host(wanted.host, home)
    outer = home.address if is_wildcard(wanted.host) else None
    nodes = [
        NodePlan(
            ROLE_COORDINATOR,
            COORDINATOR_ID,
            inner,
            wanted.coordinator_port,
            directory=f"{wanted.data_directory}/coordinator",
            ray_node_id=home.ray_node_id,
        )
    ]
    for bookie, machine in bookies:
        nodes.append(
            NodePlan(
                ROLE_BOOKIE,
                bookie,
                _inner_host(wanted.host, machine),
                directory=f"{wanted.data_directory}/{bookie}",
                lost_instance=wanted.lost_instances.get(bookie, ""),
                ray_node_id=machine.ray_node_id,
            )
        )
    for number in range(wanted.brokers):
        machine = machines[number % len(machines)]
        nodes.append(
            NodePlan(
                ROLE_BROKER,
                broker_id(number + 1),
                wanted.host,
                wanted.broker_ports[number // len(machines)],  # the i-th broker of a machine listens on port + i
                machine.address if is_wildcard(wanted.host) else None,
                ray_node_id=machine.ray_node_id,
            )
        )
    nodes.append(NodePlan(ROLE_ADMIN, ADMIN_ID, wanted.host, wanted.admin_port, outer, ray_node_id=home.ray_node_id))
    return nodes


def _inner_host(host: str, machine: Machine) -> str:
    """Where processes that only members talk to are bound: never to a wildcard, since this is also their address."""
    return machine.address if is_wildcard(host) else host


def _number(bookie: str) -> tuple[int, str]:
    digits = bookie.rpartition("-")[2]
    return (int(digits) if digits.isdecimal() else 0, bookie)


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
