"""From a plan to services: the one place that knows every service's constructor.

The Ray shells and the embedded cluster both build their services here, so that they cannot come apart. Nothing is
started, except that opening the metadata store touches its database. Each service is imported when it is built. So a
process of one role neither waits for the modules of other roles nor holds them in memory.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...protocol.errors import ClusterError
from ...protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER
from ...protocol.plain_values import is_text_map
from ...runtime.environment import Environment
from ...runtime.files import Files
from ...runtime.rpc.connection import Locate
from ...storage.metadata.store import MetadataStore
from .plan import IDENTITY_FILE, ClusterPlan, MemberPlan, NodePlan

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
    """The cluster's metadata store, which must exist. Raises ClusterError, MetadataUnavailable.

    The plan may be older than a move of the metadata. Then the identity of the data directory, if this machine has it,
    says where the store is, with its password; else the old store says so.
    """
    from ...storage.metadata.sql import open_current

    known_url = await env.offload.run(_url_of_identity, env.files, plan)
    if known_url and not known_url.startswith("sqlite:"):
        store, _ = await open_current(env, known_url)
    else:
        store, _ = await open_current(env, plan.metadata_url)
    return store


def _url_of_identity(files: Files, plan: ClusterPlan) -> str:
    """The URL of the metadata in `cluster.json`, empty where that is not this cluster's."""
    path = f"{plan.data_directory}/{IDENTITY_FILE}"
    if not files.exists(path):
        return ""
    try:
        record = json.loads(files.read_bytes(path))
    except ValueError:
        return ""
    if not is_text_map(record) or record.get("cluster_id") != plan.cluster_id:
        return ""
    url = record.get("metadata_url")
    return url if isinstance(url, str) else ""


def build_coordinator(
    env: Environment, plan: ClusterPlan, node: NodePlan, metadata: MetadataStore
) -> "CoordinatorService":
    """The coordinator, as `node` says."""
    from ..coordinator.service import CoordinatorService

    return CoordinatorService(
        env, metadata, plan.cluster_id, plan.member(node).keys, plan.settings, node.host, node.port, node.directory
    )


def build_member(env: Environment, plan: MemberPlan, locate: Locate, on_fatal: OnFatal) -> MemberService:
    """A bookie, broker or admin. A bookie that cannot go on calls `on_fatal`; the others always can."""
    node = plan.node
    common = (plan.cluster_id, plan.keys, plan.settings, node.host, node.port, locate)
    if node.role == ROLE_BOOKIE:
        from ..bookie.service import BookieService

        bookie = BookieService(env, node.directory, node.node_id, *common, lost_instance=node.lost_instance)
        bookie.on_fatal = on_fatal
        bookie.place = {"node": node.machine, "zone": node.zone}
        return bookie
    if node.role == ROLE_BROKER:
        from ..broker.service import BrokerService

        return BrokerService(env, node.node_id, *common, advertised_host=node.advertised_host)
    if node.role == ROLE_ADMIN:
        from ..admin.service import AdminService

        return AdminService(env, *common, advertised_host=node.advertised_host)
    raise ClusterError(f"{node.role} is not a role of a cluster's process")
