"""From a plan to services: the one place that knows every service's constructor.

The Ray shells and the embedded cluster both build their services here, so that they cannot come apart. Nothing is
started, except that opening the metadata store touches its database. Each service is imported when it is built. So a
process of one role neither waits for the modules of other roles nor holds them in memory.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...protocol.errors import ClusterError
from ...protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER
from ...runtime.environment import Environment
from ...runtime.rpc.connection import Locate
from ...storage.metadata.store import MetadataStore
from .plan import ClusterPlan, MemberPlan

if TYPE_CHECKING:
    from ..coordinator.service import CoordinatorService

OnFatal = Callable[[BaseException], None]


class MemberService(Protocol):
    """What bookies, brokers and the admin have in common."""

    @property
    def address(self) -> tuple[str, int]: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...


async def open_metadata(env: Environment, plan: ClusterPlan) -> MetadataStore:
    """The cluster's metadata store, which must exist. Raises ClusterError, MetadataUnavailable."""
    from ...storage.metadata.sql import SqlMetadataStore

    return await SqlMetadataStore.open(env, plan.metadata_url)


def build_coordinator(env: Environment, plan: ClusterPlan, metadata: MetadataStore, port: int) -> "CoordinatorService":
    """The coordinator on `port`."""
    from ..coordinator.service import CoordinatorService

    node = plan.coordinator
    return CoordinatorService(
        env, metadata, plan.cluster_id, plan.member(node).keys, plan.settings, node.host, port, node.directory
    )


def build_member(env: Environment, plan: MemberPlan, locate: Locate, on_fatal: OnFatal) -> MemberService:
    """A bookie, broker or admin. A bookie that cannot go on calls `on_fatal`; the others always can."""
    node = plan.node
    common = (plan.cluster_id, plan.keys, plan.settings, node.host, node.port, locate)
    if node.role == ROLE_BOOKIE:
        from ..bookie.service import BookieService

        bookie = BookieService(env, node.directory, node.node_id, *common, lost_instance=node.lost_instance)
        bookie.on_fatal = on_fatal
        return bookie
    if node.role == ROLE_BROKER:
        from ..broker.service import BrokerService

        return BrokerService(env, node.node_id, *common, advertised_host=node.advertised_host)
    if node.role == ROLE_ADMIN:
        from ..admin.service import AdminService

        return AdminService(env, *common, advertised_host=node.advertised_host)
    raise ClusterError(f"{node.role} is not a role of a cluster's process")
