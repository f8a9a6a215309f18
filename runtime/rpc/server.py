"""The accepting side of the internal RPC: a listening socket in front of one service.

How many connections a server of the internal RPC has: bounds that an unknown peer cannot turn against members.

Connections that have not proven themselves are bounded by `UNAUTHENTICATED_CONNECTIONS_MAX`. One more ends the oldest
of them, not the newest: a correct handshake takes milliseconds, so the oldest is not a member's. If the newest were
refused, an unknown peer could lock out members with a few silent connections. Proven connections are bounded by
`CONNECTIONS_MAX`; one more is refused.
"""

import asyncio

from ...protocol.errors import HandshakeRefused
from ..environment import Environment
from .connection import RpcConnection, RpcService
from .keys import Identity, Keys

UNAUTHENTICATED_CONNECTIONS_MAX = 256
CONNECTIONS_MAX = 8192


class Admission:
    """The connections of one server."""

    def __init__(self) -> None:
        self.connections: dict[RpcConnection, None] = {}
        """All of them, in the order of arrival."""
        self.unauthenticated: dict[RpcConnection, None] = {}

    def arrived(self, connection: RpcConnection) -> None:
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

    def authenticated(self, connection: RpcConnection) -> None:
        """A connection has proven itself."""
        self.unauthenticated.pop(connection, None)

    def left(self, connection: RpcConnection) -> None:
        self.connections.pop(connection, None)
        self.unauthenticated.pop(connection, None)


class RpcServer:
    """Accepts internal connections for one service, as many as the bounds allow."""

    def __init__(
        self, env: Environment, identity: Identity, keys: Keys, service: RpcService, *, frame_size_max: int
    ) -> None:
        self.identity = identity
        self._admission = Admission()
        self._env = env
        self._keys = keys
        self._service = service
        self._frame_size_max = frame_size_max
        self._server: asyncio.Server | None = None
        self._address = ("", 0)

    @property
    def connections(self) -> list[RpcConnection]:
        """All that are open, those in their handshake included."""
        return list(self._admission.connections)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the port is the real one when 0 was asked for."""
        return self._address

    async def start(self, host: str, port: int = 0) -> tuple[str, int]:
        """Listen. Raises OSError when the address is taken."""
        self._server = await asyncio.get_running_loop().create_server(self._accept, host, port)
        self._address = (host, self._server.sockets[0].getsockname()[1])
        return self._address

    async def close(self) -> None:
        """Stop listening and end every connection."""
        if self._server is not None:
            self._server.close()
        connections = self.connections
        for connection in connections:
            connection.close()
        for connection in connections:
            await connection.wait_closed()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def _accept(self) -> RpcConnection:
        connection = RpcConnection(
            self._env,
            self.identity,
            self._keys,
            self._service,
            initiator=False,
            frame_size_max=self._frame_size_max,
            on_ready=self._admission.authenticated,
            admit=self._admission.check,
        )
        self._admission.arrived(connection)
        connection.on_close.append(self._admission.left)
        return connection
