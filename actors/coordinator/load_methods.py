"""The coordinator's methods about load: brokers report theirs, the admin asks for all of them."""

from collections.abc import Callable

from ...protocol.errors import StaleEpoch
from ...protocol.load_figures import ClusterLoad, LoadReport
from ...protocol.names import ROLE_BROKER
from ...runtime.rpc.connection import RpcConnection
from .load_balancer import LoadBalancer


class LoadMethods:
    """See the module. `is_alive(role, node_id, incarnation)` says who has a session."""

    def __init__(self, balancer: LoadBalancer, is_alive: Callable[[str, str, str], bool]) -> None:
        self._balancer = balancer
        self._is_alive = is_alive

    async def rpc_report_load(self, connection: RpcConnection, report: LoadReport) -> None:
        """See the contract."""
        peer = connection.peer
        if not self._is_alive(ROLE_BROKER, peer.node_id, peer.incarnation):
            raise StaleEpoch(f"{peer.node_id} has no session: register first")
        self._balancer.take(peer.node_id, report)

    async def rpc_cluster_load(self, connection: RpcConnection) -> ClusterLoad:
        """See the contract."""
        return self._balancer.view()
