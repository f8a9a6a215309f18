"""From a plan to services: the one place that knows every service's constructor.

The Ray shells and the embedded cluster both build their services here, so that they cannot come apart. Nothing is
started, except that opening the metadata store touches its database.
"""

from collections.abc import Awaitable, Callable

from ..protocol.errors import ClusterError
from ..protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER
from ..runtime.environment import Environment
from ..storage.metadata_sql import SqlMetadataStore
from ..storage.metadata_store import MetadataStore
from .admin import AdminService
from .bookie import BookieService
from .broker import BrokerService
from .coordinator import CoordinatorService
from .plan import ClusterPlan, NodePlan

Locate = Callable[[], Awaitable[tuple[str, int]]]
"""Where the coordinator is now: (host, port). Raises CoordinatorUnavailable."""

MemberService = BookieService | BrokerService | AdminService


async def open_metadata(env: Environment, plan: ClusterPlan) -> MetadataStore:
    """The cluster's metadata store, which must exist. Raises ClusterError, MetadataUnavailable."""
    return await SqlMetadataStore.open(env, plan.metadata_url)


def build_coordinator(env: Environment, plan: ClusterPlan, metadata: MetadataStore, port: int) -> CoordinatorService:
    """The coordinator on `port`."""
    node = plan.coordinator
    return CoordinatorService(
        env, metadata, plan.cluster_id, plan.secret, plan.settings, node.host, port, node.directory
    )


def build_member(env: Environment, plan: ClusterPlan, node: NodePlan, locate: Locate) -> MemberService:
    """A bookie, broker or admin."""
    common = (plan.cluster_id, plan.secret, plan.settings, node.host, node.port, locate)
    if node.role == ROLE_BOOKIE:
        return BookieService(env, node.directory, node.node_id, *common)
    if node.role == ROLE_BROKER:
        return BrokerService(env, node.node_id, *common, advertised_host=node.advertised_host)
    if node.role == ROLE_ADMIN:
        return AdminService(env, *common)
    raise ClusterError(f"a node of role {node.role} is no member of a cluster")
