"""Calls to the internal RPC of brokers or bookies, by node id: one connection each, made when first needed.

A node that came back as another incarnation listens elsewhere. So a connection belongs to an incarnation (or address)
and is made again when that has changed.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

from ...protocol.errors import RpcDisconnected, RpcTimeout, ServiceUnitNotReady
from ...runtime.environment import Environment
from ...runtime.rpc.connection import CALL_TIMEOUT_S, RpcConnection, rpc_connect
from ...runtime.rpc.contract import Contract
from ...runtime.rpc.keys import Identity, Keys

FRAME_SIZE_MAX = 64 << 20
CONNECT_TIMEOUT_S = 2.0

Offered = TypeVar("Offered", bound=Contract)

FindMember = Callable[[str], tuple[str, str, int] | None]
"""Node id → (incarnation, host, port) of its internal RPC, None when it is not alive."""


class MemberCalls(Generic[Offered]):
    """See the module. `identity` is the caller's, `contract` what the nodes offer."""

    def __init__(
        self,
        env: Environment,
        identity: Identity,
        keys: Keys,
        find: FindMember,
        contract: type[Offered],
        *,
        frame_size_max: int = FRAME_SIZE_MAX,
    ) -> None:
        self._contract = contract
        self._env = env
        self._identity = identity
        self._keys = keys
        self._find = find
        self._frame_size_max = frame_size_max
        self._connections: dict[str, tuple[str, RpcConnection]] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    def of(self, node_id: str, *, timeout_s: float | None = None) -> Offered:
        """The methods of a node. `timeout_s` takes the place of what each method declares.

        Each raises its error; ServiceUnitNotReady when the node is not there or does not answer (the call may have been
        carried out).
        """
        return self._contract(partial(self._call, node_id), timeout_s=timeout_s)

    async def _call(
        self, node_id: str, method: str, /, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: object
    ) -> object:
        try:
            connection = await self.connect(node_id)
            return await connection.call(method, timeout_s=timeout_s, **arguments)
        except (RpcDisconnected, RpcTimeout) as error:
            raise ServiceUnitNotReady(f"{node_id} did not answer {method}: {error}") from error

    async def close(self) -> None:
        """End all connections."""
        connections, self._connections = self._connections, {}
        for _, connection in connections.values():
            connection.close()
        for _, connection in connections.values():
            await connection.wait_closed()

    async def connect(self, node_id: str) -> RpcConnection:
        """The connection to a node, made when there is none. Raises ServiceUnitNotReady, and what connecting raises."""
        async with self._connecting.setdefault(node_id, asyncio.Lock()):
            found = self._find(node_id)
            if found is None:
                raise ServiceUnitNotReady(f"{node_id} is not alive")
            incarnation, host, port = found
            known = self._connections.get(node_id)
            if known is not None:
                if known[0] == incarnation and not known[1].closed:
                    return known[1]
                known[1].close()
            connection = await rpc_connect(
                self._env,
                host,
                port,
                self._identity,
                self._keys,
                expected_node_id=node_id,
                frame_size_max=self._frame_size_max,
                timeout_s=CONNECT_TIMEOUT_S,
            )
            self._connections[node_id] = (incarnation, connection)
            return connection
