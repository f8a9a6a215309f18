"""The coordinator's methods about what should run; see `members.contracts_coordinator`."""

from ...protocol.cluster_status import DesiredView
from ...protocol.errors import ClusterError
from ..desired.state import DesiredMembers
from ..members.contracts_coordinator import DesiredContract
from .drains import Drains


class DesiredMethods(DesiredContract):
    """See the module."""

    def __init__(self, desired: DesiredMembers, drains: Drains) -> None:
        self._desired = desired
        self._drains = drains

    async def desired_state(self) -> DesiredView:
        found = self.find()
        if found is None:
            raise ClusterError("this cluster has no record of what should run: start it again with `magnetar start`")
        return found

    async def scale(self, *, brokers: int | None = None, bookies: int | None = None) -> DesiredView:
        await self._desired.scale(brokers, bookies)
        return await self.desired_state()

    async def drain(self, *, member: str) -> DesiredView:
        await self._desired.drain(member)
        return await self.desired_state()

    async def undrain(self, *, member: str) -> DesiredView:
        await self._desired.undrain(member)
        return await self.desired_state()

    def find(self) -> DesiredView | None:
        """What `desired_state` answers; None without a record."""
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
