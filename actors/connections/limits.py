"""How many clients' connections a broker takes, in all and from one IP address."""

from ...runtime.settings.declarations import Settings
from .refusals import Refusals

_WHAT_TO_DO = "close connections that you do not need, connect to another broker, or raise"


class ConnectionLimits:
    """Counts connections by the address that they come from. Refused ones are not counted; see `refusals`."""

    def __init__(self, settings: Settings) -> None:
        self._max = settings.connections_max
        self._max_per_address = settings.connections_max_per_ip
        self.refusals = Refusals()
        self._counts: dict[str, int] = {}
        self._total = 0

    def enter(self, address: str) -> str:
        """Count a connection, and return nothing; or return why it is refused: Pulsar's words, and what to do."""
        if 0 < self._max <= self._total:
            return f"Reached the maximum number of connections: {_WHAT_TO_DO} brokerMaxConnections"
        count = self._counts.get(address, 0)
        if 0 < self._max_per_address <= count:
            return (
                f"Reached the maximum number of connections on address {address}: {_WHAT_TO_DO} "
                "brokerMaxConnectionsPerIp"
            )
        self._counts[address] = count + 1
        self._total += 1
        return ""

    def leave(self, address: str) -> None:
        """A counted connection has ended."""
        self._total -= 1
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
