"""The accepting side of the internal RPC: a listening socket in front of one service."""

import asyncio

from ..environment import Environment
from .admission import Admission
from .connection import RpcConnection, RpcService
from .keys import Identity, Keys


class RpcServer:
    """Accepts internal connections for one service, as many as `rpc.admission` allows."""

    def __init__(
        self, env: Environment, identity: Identity, keys: Keys, service: RpcService, *, frame_size_max: int
    ) -> None:
        self.identity = identity
        self._admission: Admission[RpcConnection] = Admission()
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
