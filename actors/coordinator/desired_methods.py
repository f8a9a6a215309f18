"""The coordinator's methods about what should run; see `members.contracts_coordinator`."""

from ...protocol.cluster_status import DesiredView
from ...protocol.errors import ClusterError
from ...runtime.rpc.connection import RpcConnection
from ..desired.state import DesiredMembers
from .drains import Drains


class DesiredMethods:
    """See the module."""

    def __init__(self, desired: DesiredMembers, drains: Drains) -> None:
        self._desired = desired
        self._drains = drains

    async def rpc_desired_state(self, connection: RpcConnection) -> DesiredView:
        """See the contract."""
        return self.view()

    async def rpc_scale(
        self, connection: RpcConnection, brokers: int | None = None, bookies: int | None = None
    ) -> DesiredView:
        """See the contract."""
        return await self.scale(brokers, bookies)

    async def rpc_drain(self, connection: RpcConnection, member: str) -> DesiredView:
        """See the contract."""
        return await self.drain(member)

    async def rpc_undrain(self, connection: RpcConnection, member: str) -> DesiredView:
        """See the contract."""
        return await self.undrain(member)

    async def scale(self, brokers: int | None, bookies: int | None) -> DesiredView:
        """Run so many; None leaves a role as it is. Raises NotAllowedError, ClusterError."""
        await self._desired.scale(brokers, bookies)
        return self.view()

    async def drain(self, member: str) -> DesiredView:
        """Empty and end a member. Raises NoSuchKey, NotAllowedError, ClusterError."""
        await self._desired.drain(member)
        return self.view()

    async def undrain(self, member: str) -> DesiredView:
        """Have a member stay after all. Raises NoSuchKey, ClusterError."""
        await self._desired.undrain(member)
        return self.view()

    def view(self) -> DesiredView:
        """What should run. Raises ClusterError in a cluster that has no record of it."""
        found = self.find()
        if found is None:
            raise ClusterError("this cluster has no record of what should run: start it again with `magnetar start`")
        return found

    def find(self) -> DesiredView | None:
        """The same; None without a record."""
        state = self._desired.state
        if state is None:
            return None
        return {
            "brokers": state.broker_ids,
            "bookies": state.bookie_ids,
            "draining": self._drains.view(),
            "leaving": sorted(self._desired.leaving),
            "left_over": dict(self._drains.left_over),
        }
