"""What the coordinator offers about what should run. A part of `CoordinatorContract`."""

from ...protocol.cluster_status import DesiredView
from ...runtime.rpc.contract import Contract, method
from .permissions import ADMIN


class DesiredContract(Contract):
    """See the module. Members have ids such as `broker-2`."""

    @method(ADMIN)
    async def desired_state(self) -> DesiredView:
        """Which brokers and bookies should run, and how far those that drain have come. Raises ClusterError."""
        ...

    @method(ADMIN)
    async def scale(self, *, brokers: int | None = None, bookies: int | None = None) -> DesiredView:
        """Run so many; None leaves a role as it is. Raises NotAllowedError, ClusterError."""
        ...

    @method(ADMIN)
    async def drain(self, *, member: str) -> DesiredView:
        """Have a member give up what it has, and end. Raises NoSuchKey, NotAllowedError, ClusterError."""
        ...

    @method(ADMIN)
    async def undrain(self, *, member: str) -> DesiredView:
        """Have a member stay after all. Raises NoSuchKey, ClusterError."""
        ...
