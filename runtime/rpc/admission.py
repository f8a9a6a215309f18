"""How many connections a server of the internal RPC has: bounds that an unknown peer cannot turn against members.

Connections that have not proven themselves are bounded by `UNAUTHENTICATED_CONNECTIONS_MAX`. One more ends the oldest
of them, not the newest: a correct handshake takes milliseconds, so the oldest is not a member's. If the newest were
refused, an unknown peer could lock out members with a few silent connections. Proven connections are bounded by
`CONNECTIONS_MAX`; one more is refused.
"""

from typing import Generic, Protocol, TypeVar

from ...protocol.errors import HandshakeRefused

UNAUTHENTICATED_CONNECTIONS_MAX = 256
CONNECTIONS_MAX = 8192


class Abortable(Protocol):
    """What the oldest connection needs."""

    def fail(self, error: BaseException) -> None:
        """End at once."""
        ...


C = TypeVar("C", bound=Abortable)


class Admission(Generic[C]):
    """The connections of one server."""

    def __init__(self) -> None:
        self.connections: dict[C, None] = {}
        """All of them, in the order of arrival."""
        self.unauthenticated: dict[C, None] = {}

    def arrived(self, connection: C) -> None:
        """A connection was accepted, and its handshake begins."""
        if len(self.unauthenticated) >= UNAUTHENTICATED_CONNECTIONS_MAX:
            oldest = next(iter(self.unauthenticated))
            del self.unauthenticated[oldest]
            oldest.fail(HandshakeRefused("the handshake was aborted: too many connections are in their handshake"))
        self.connections[connection] = self.unauthenticated[connection] = None

    def check(self) -> None:
        """Raise HandshakeRefused if no further connection may be let in."""
        if len(self.connections) - len(self.unauthenticated) >= CONNECTIONS_MAX:
            raise HandshakeRefused(f"this process already has {CONNECTIONS_MAX} internal connections, its maximum")

    def authenticated(self, connection: C) -> None:
        """A connection has proven itself."""
        self.unauthenticated.pop(connection, None)

    def left(self, connection: C) -> None:
        """A connection has ended."""
        self.connections.pop(connection, None)
        self.unauthenticated.pop(connection, None)
