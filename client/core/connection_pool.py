"""The connections of one client, shared by address."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial

from ...protocol.addresses import Address
from ...protocol.errors import AlreadyClosed
from ...runtime.tasks import Tasks
from ...runtime.tls_contexts import ClientContexts
from ...runtime.token_file import VARIABLE, token_of_process
from .authentication import AuthenticationToken
from .configuration import ClientConfiguration
from .connection import ClientConnection, connect
from .ray_credentials import RayAuthentication
from .service_url import format_address

AskElsewhere = Callable[[ClientConnection, str, bool], Awaitable[str]]
"""See `Lookup.elsewhere`."""

ENDED_MAX = 64
"""Connections that have ended and stay known, so that their addresses are asked last. The oldest are forgotten."""


class ConnectionPool:
    """One connection for each address (and broker behind it, through a proxy), made when first asked for."""

    def __init__(self, configuration: ClientConfiguration) -> None:
        self.contexts: ClientContexts | None = None
        """Those of TLS, if the service URL asks for it."""
        self._configuration = configuration
        self._authentication = configuration.authentication
        if self._authentication is None and os.environ.get(VARIABLE):
            self._authentication = AuthenticationToken(lambda: token_of_process() or "")
        elif self._authentication is None and configuration.service_url is None:
            self._authentication = RayAuthentication()
        self._connections: dict[tuple[Address, Address | None], ClientConnection] = {}
        self._connecting: dict[tuple[Address, Address | None], asyncio.Task[ClientConnection]] = {}
        self.elsewhere: AskElsewhere | None = None
        """What connections ask when their broker is silent."""
        self._tasks = Tasks()
        self._closed = False

    def url(self, address: Address) -> str:
        """How messages name an address."""
        return format_address(address, tls=self.contexts is not None)

    def sockets(self) -> list[int]:
        """The numbers of the open connections' sockets."""
        return [number for number in (one.socket_number() for one in self._connections.values()) if number >= 0]

    async def get(self, address: Address, broker: Address | None = None) -> ClientConnection:
        """The connection to `address`. Raises ConnectError, AlreadyClosed."""
        if self._closed:
            raise AlreadyClosed("the client is closed: create a new one")
        key = (address, broker)
        found = self._connections.get(key)
        if found is not None and not found.closed:
            return found
        task = self._connecting.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(key), name=f"connect to {address}")
            task.add_done_callback(retrieve)
            self._connecting[key] = task
        # Shielded: others may be waiting for the same connection.
        return await asyncio.shield(task)

    def rank(self, address: Address) -> int:
        """How good `address` is to ask, lower is better: connected, unknown, silent or its connection has ended."""
        found = self._connections.get((address, None))
        if found is None:
            return 1
        return 2 if found.closed or found.liveness.doubted else 0

    def live(self, address: Address) -> ClientConnection | None:
        """The connection to `address`, if there is one, and its broker is not silent."""
        return None if self.rank(address) else self._connections[address, None]

    async def alone(self, address: Address, broker: Address | None) -> ClientConnection:
        """A new connection that nobody else uses; the caller closes it. Raises ConnectError."""
        return await connect(self._configuration, address, broker, self._authentication, self.contexts)

    async def _connect(self, key: tuple[Address, Address | None]) -> ClientConnection:
        try:
            connection = await connect(self._configuration, *key, self._authentication, self.contexts)
        finally:
            self._connecting.pop(key, None)
        if self._closed:
            connection.close()
            raise AlreadyClosed("the client is closed: create a new one")
        self._connections.pop(key, None)
        self._connections[key] = connection
        self._forget()
        if self.elsewhere is not None:
            connection.liveness.ask_by(partial(self.elsewhere, connection), self._tasks.spawn)
        return connection

    def _forget(self) -> None:
        ended = [key for key, one in self._connections.items() if one.closed]
        for key in ended[:-ENDED_MAX]:
            del self._connections[key]

    async def close(self) -> None:
        """Close all connections; endpoints that are still on them are told."""
        self._closed = True
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._tasks.close()
        for connection in list(self._connections.values()):
            connection.close(AlreadyClosed("the client is closed: create a new one"))
        self._connections.clear()


def retrieve(task: asyncio.Task[ClientConnection]) -> None:
    """Look at the outcome, so that a failure after all waiters have gone is not reported as forgotten."""
    if not task.cancelled():
        task.exception()
