"""The sockets that a broker's clients connect to, and the URLs that they are told.

A broker binds to `host` and its port. Members reach it under the address of its node (`node_host`), clients under the
addresses that the settings say (`runtime.settings.addresses`). The broker fills in the placeholders when it starts, on
the node where it starts. So a broker that moves to another node advertises what holds there.

Each of `bindAddresses` is one more socket. It belongs to a listener: a client that connects there and names no listener
gets that one. Brokers of one node may share the socket of a listener that forwards, because any of them will do; the
kernel divides the connections. The socket of any other listener is one broker's alone: a second one fails to start.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping

from ...protocol.addresses import Address
from ...runtime.settings.addresses import Advertised
from ...runtime.settings.declarations import Settings
from ...runtime.settings.placeholders import BrokerPlace
from ..connections.forwarding import Forwards
from ..members.broker_addresses import addressed
from ..members.contracts_coordinator import BrokerInfo

BACKLOG = 1024
"""Connections that wait to be accepted, of one socket."""


class Listeners:
    """See the module. `make_connection(listener)` makes what serves one connection; the main socket has no listener.
    `brokers` are the live brokers of the cluster, to which connections may be forwarded.
    """

    def __init__(
        self,
        settings: Settings,
        broker_id: str,
        host: str,
        port: int,
        node_host: str,
        make_connection: Callable[[str], asyncio.Protocol],
        brokers: Callable[[], Iterable[BrokerInfo]],
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self.node_host = node_host
        self.address: Address = (host, port)
        """What is bound; the port is the real one once the socket is open."""
        self.told = Advertised("", {}, [])
        self.forwards = Forwards(settings, brokers, self._is_here)
        self._settings = settings
        self._broker_id = broker_id
        self._make_connection = make_connection
        self._environment = environment
        self._servers: list[asyncio.Server] = []

    async def open(self) -> None:
        """Listen. Raises OSError when an address is taken, SettingError for addresses that cannot be."""
        host, port = self.address
        await self._listen(host, port, "", shared=False)
        self.address = (host, self._servers[0].sockets[0].getsockname()[1])
        place = BrokerPlace(self._broker_id, self.node_host, self.address[1], self._environment)
        self.told = self._settings.advertised(place)
        for bind in self.told.binds:
            await self._listen(*bind.address, bind.name, shared=not self.told.listeners[bind.name].direct)

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of all listeners by name."""
        return {name: one.url for name, one in self.told.listeners.items()}

    def close(self) -> None:
        """Accept no more connections."""
        for server in self._servers:
            server.close()

    async def wait_closed(self) -> None:
        """End what is forwarded, and wait until the sockets are closed."""
        await self.forwards.close()
        for server in self._servers:
            await server.wait_closed()

    def _is_here(self, address: Address) -> bool:
        return address == (self.node_host, self.address[1]) or addressed(
            {"listeners": self.urls}, self.told.url, address
        )

    async def _listen(self, host: str, port: int, listener: str, *, shared: bool) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: self._make_connection(listener), host, port, backlog=BACKLOG, reuse_port=shared or None
        )
        self._servers.append(server)
