"""What a cluster consists of: identity, settings, nodes. Made by `start`, carried to every process as an argument.

Plans pickle and hold plain values only. The cluster's plan contains its secret: it goes to the coordinator alone,
through Ray, which guards it by its own authentication, and is never logged. Every other process is handed a
`MemberPlan`, with its own keys and without the secret or the URL of the database.
"""

from dataclasses import dataclass, field

from ...protocol.names import ROLE_ADMIN, ROLE_BROKER, ROLE_COORDINATOR
from ...runtime.rpc.keys import NodeKeys, RootKeys
from ...runtime.settings.declarations import Settings


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

    @property
    def public_host(self) -> str:
        """The host of its URLs; an IPv6 address in brackets."""
        host = self.advertised_host or self.host
        return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class MemberPlan:
    """What the process of one bookie, broker or admin is handed."""

    cluster_id: str
    keys: NodeKeys
    settings: Settings
    node: NodePlan
    log_directory: str = ""


@dataclass(frozen=True)
class ClusterPlan:
    """A whole cluster."""

    cluster_id: str
    secret: bytes = field(repr=False)
    settings: Settings
    metadata_url: str = field(repr=False)  # may hold a password
    nodes: tuple[NodePlan, ...]
    data_directory: str = ""

    @property
    def coordinator(self) -> NodePlan:
        return next(node for node in self.nodes if node.role == ROLE_COORDINATOR)

    @property
    def members(self) -> tuple[NodePlan, ...]:
        """Everything except the coordinator, which keeps the others running."""
        return tuple(node for node in self.nodes if node.role != ROLE_COORDINATOR)

    @property
    def keys(self) -> RootKeys:
        """Everybody's keys."""
        return RootKeys(self.secret)

    @property
    def log_directory(self) -> str:
        """Where every process keeps its log, on its own machine."""
        return log_directory(self.data_directory)

    def member(self, node: NodePlan) -> MemberPlan:
        """What the process of that node is handed."""
        keys = self.keys.node(node.role, node.node_id)
        return MemberPlan(self.cluster_id, keys, self.settings, node, self.log_directory)

    @property
    def service_urls(self) -> list[str]:
        """`pulsar://host:port` of every broker."""
        return [f"pulsar://{node.public_host}:{node.port}" for node in self.nodes if node.role == ROLE_BROKER]

    @property
    def admin_url(self) -> str:
        """`http://host:port` of the admin; empty without one."""
        urls = [f"http://{node.public_host}:{node.port}" for node in self.nodes if node.role == ROLE_ADMIN]
        return urls[0] if urls else ""


def log_directory(data_directory: str) -> str:
    """Where the processes of a cluster on Ray keep their logs. They stay when the cluster is stopped."""
    return f"{data_directory}/logs"
