"""What a cluster consists of: identity, settings, addresses, processes.

Made by `start`, carried to every process as an argument. Which brokers and bookies run is not here: it is a record in
the metadata (`desired.record`). `members` are those that `start` placed, so that their processes come
up while the coordinator does.

Plans pickle and hold plain values only. The cluster's plan contains its secret: it goes to the coordinator alone,
through Ray, which guards it by its own authentication, and is never logged. Every other process is handed a
`MemberPlan`, with its own keys and without the secret or the URL of the database.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from ...protocol.names import (
    ADMIN_ID,
    COORDINATOR_ID,
    ROLE_ADMIN,
    ROLE_BOOKIE,
    ROLE_BROKER,
    ROLE_COORDINATOR,
    port_of_broker,
)
from ...runtime.rpc.keys import NodeKeys, RootKeys
from ...runtime.settings.declarations import Settings
from ..desired.planner import Machine

IDENTITY_FILE = "cluster.json"
"""In the data directory: who the cluster is, and where its metadata lies."""


@dataclass(frozen=True)
class NodePlan:
    """One process: a coordinator, bookie, broker or admin."""

    role: str
    node_id: str
    host: str
    """The address to bind to."""
    port: int = 0
    """0 takes any free port."""
    advertised_host: str | None = None
    """What clients are told, if not `host` (which may be a wildcard)."""
    directory: str = ""
    """Coordinator and bookies: where the data lies."""
    lost_instance: str = ""
    """Bookies: the life of its disk (the cookie's) whose loss the operator accepted. The bookie may start with an empty
    disk in its place.
    """
    ray_node_id: str = ""
    """The Ray node on which it runs, and nowhere else; empty when embedded."""
    machine: str = ""
    """Bookies: the address of the machine. Copies of an entry go to different ones."""
    zone: str = ""
    """Bookies: the machine's rack or zone, if its Ray node has a label that says so."""

    @property
    def public_host(self) -> str:
        """The host of its URLs; an IPv6 address in brackets."""
        host = self.advertised_host or self.host
        return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class Layout:
    """Where processes listen and keep their data, wherever they run. Ports are real ones, never 0: a restarted process
    is found where its predecessor was.
    """

    host: str
    broker_port: int
    """Of broker-1; broker n listens on the n-th from there, on every machine. So brokers that move never collide."""
    admin_port: int
    coordinator_port: int
    data_directory: str
    lost_instances: Mapping[str, str] = field(default_factory=dict[str, str])
    """Bookies that may start with an empty disk, with the life of the disk whose loss was accepted."""

    def member(self, member: str, machine: Machine) -> NodePlan:
        """The process of a broker, a bookie or the admin on a machine."""
        role, _, number = member.rpartition("-")
        outer = machine.address if is_wildcard(self.host) else None
        if role == ROLE_BOOKIE:
            return NodePlan(
                role,
                member,
                self.inner_host(machine.address),
                directory=f"{self.data_directory}/{member}",
                lost_instance=self.lost_instances.get(member, ""),
                ray_node_id=machine.ray_node_id,
                machine=machine.address,
                zone=machine.zone,
            )
        if role == ROLE_BROKER:
            port = port_of_broker(self.broker_port, int(number))
            return NodePlan(role, member, self.host, port, outer, ray_node_id=machine.ray_node_id)
        return NodePlan(ROLE_ADMIN, ADMIN_ID, self.host, self.admin_port, outer, ray_node_id=machine.ray_node_id)

    def coordinator(self, machine: Machine) -> NodePlan:
        """The coordinator's process on a machine."""
        return NodePlan(
            ROLE_COORDINATOR,
            COORDINATOR_ID,
            self.inner_host(machine.address),
            self.coordinator_port,
            directory=f"{self.data_directory}/coordinator",
            ray_node_id=machine.ray_node_id,
            machine=machine.address,
        )

    def inner_host(self, address: str) -> str:
        """Where processes that only members talk to are bound: never to a wildcard, since members are told it."""
        return address if is_wildcard(self.host) else self.host


@dataclass(frozen=True)
class MemberPlan:
    """What the process of one bookie, broker or admin is handed."""

    cluster_id: str
    keys: NodeKeys
    settings: Settings
    node: NodePlan
    log_directory: str = ""
    launch: int = 0
    """See `Environment`."""


@dataclass(frozen=True)
class ClusterPlan:
    """A whole cluster. `machines` are those that `start` saw, that of the coordinator first."""

    cluster_id: str
    secret: bytes = field(repr=False)
    settings: Settings
    metadata_url: str = field(repr=False)  # may hold a password
    layout: Layout
    machines: tuple[Machine, ...]
    members: tuple[NodePlan, ...]

    @property
    def home(self) -> Machine:
        """The machine where `start` ran."""
        return self.machines[0]

    @property
    def coordinator(self) -> NodePlan:
        """The coordinator's process at its first start."""
        return self.layout.coordinator(self.home)

    @property
    def coordinator_is_bound(self) -> bool:
        """Whether the coordinator can run on one machine only, that of its SQLite file."""
        return self.metadata_url.startswith("sqlite:")

    @property
    def data_directory(self) -> str:
        return self.layout.data_directory

    @property
    def keys(self) -> RootKeys:
        """Everybody's keys."""
        return RootKeys(self.secret)

    @property
    def log_directory(self) -> str:
        """Where every process keeps its log, on its own machine."""
        return log_directory(self.data_directory)

    def member(self, node: NodePlan, launch: int = 0) -> MemberPlan:
        """What the process of that node is handed at this launch."""
        keys = self.keys.node(node.role, node.node_id)
        return MemberPlan(self.cluster_id, keys, self.settings, node, self.log_directory, launch)


def service_urls(nodes: Mapping[str, NodePlan], settings: Settings) -> list[str]:
    """`pulsar://host:port` of every broker, by number; with TLS if they have nothing else."""
    scheme = "pulsar+ssl" if settings.broker_tls_only else "pulsar"
    return [f"{scheme}://{node.public_host}:{node.port}" for node in _brokers(nodes)]


def service_urls_tls(nodes: Mapping[str, NodePlan], settings: Settings) -> list[str]:
    """`pulsar+ssl://host:port` of every broker, by number; empty without TLS."""
    if settings.broker_tls_only:
        return service_urls(nodes, settings)
    ports = [(node, settings.port_tls_of(node.node_id)) for node in _brokers(nodes)]
    return [f"pulsar+ssl://{node.public_host}:{port}" for node, port in ports if port]


def _brokers(nodes: Mapping[str, NodePlan]) -> list[NodePlan]:
    return sorted((node for node in nodes.values() if node.role == ROLE_BROKER), key=lambda node: node.port)


def admin_url(nodes: Mapping[str, NodePlan], settings: Settings) -> str:
    """`http://host:port` of the admin, `https://` if it has nothing else; empty without one."""
    node = nodes.get(ADMIN_ID)
    scheme = "https" if settings.admin_tls_only else "http"
    return f"{scheme}://{node.public_host}:{node.port}" if node is not None else ""


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


def log_directory(data_directory: str) -> str:
    """Where the processes of a cluster on Ray keep their logs. They stay when the cluster is stopped."""
    return f"{data_directory}/logs"
