"""How many clients' connections a broker takes, in all and from one IP address, and how many of everything one
connection may have. What single commands may hold is bounded in `protocol.bounds`.
"""

from ...protocol.errors import TooManyLookupRequestException
from ...runtime.settings.declarations import Settings
from .refusals import Refusals

PRODUCERS_MAX = 100_000
"""Of one connection. Pulsar has no such bound; a client has one connection to a broker for all its topics."""
CONSUMERS_MAX = 100_000
"""Of one connection."""
WATCHERS_MAX = 1000
"""Topic list watchers of one connection."""
DEPARTED_MAX = 10_000
"""Producers of one connection that the broker sent away, whose late messages it still knows."""

_WHAT_TO_DO = "close connections that you do not need, connect to another broker, or raise"


def check_number(what: str, number: int, number_max: int) -> None:
    """Raise TooManyLookupRequestException when a connection with so many is to have one more."""
    if number >= number_max:
        raise TooManyLookupRequestException(
            f"this connection has {number_max} {what} already: close some, or open a connection"
        )


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
