"""The sockets that a broker's clients connect to, and the URLs that they are told.

A broker binds to `host` and its port. Members reach it under the address of its node (`node_host`), clients under the
addresses that the settings say (`runtime.settings.addresses`). The broker fills in the placeholders when it starts, on
the node where it starts. So a broker that moves to another node advertises what holds there.

Each of `bindAddresses` is one more socket. It belongs to a listener: a client that connects there and names no listener
gets that one. With `pulsar+ssl://` it speaks TLS. So do `brokerServicePortTls` and, with `brokerServiceTlsOnly`, the
broker's own port. All these share one set of contexts, whose files are looked at from time to time.

Brokers of one node may share the socket of a listener that forwards, because any of them will do; the kernel divides
the connections. The socket of any other listener is one broker's alone: a second one fails to start.
"""

import asyncio
import os
from collections.abc import Callable, Iterable

from ...protocol.addresses import Address
from ...protocol.cluster_status import MemberData
from ...runtime.environment import Environment
from ...runtime.settings.addresses import Advertised
from ...runtime.settings.declarations import Settings
from ...runtime.settings.placeholders import BrokerPlace
from ...runtime.tasks import Tasks
from ...runtime.tls_contexts import ServerContexts
from ...runtime.tls_listener import TlsListener
from ..connections.forwarding import Forwards
from ..members.broker_addresses import addressed
from ..members.contracts_coordinator import BrokerInfo

BACKLOG = 1024
"""Connections that wait to be accepted, of one socket."""


class Listeners:
    """See the module. `make_connection(listener)` makes what serves one connection; the main socket has no listener.
    `answer_plain` makes what answers a client without TLS where TLS is spoken. `brokers` are the live
    brokers of the cluster, to which connections may be forwarded.
    """

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        broker_id: str,
        bound: Address,
        node_host: str,
        make_connection: Callable[[str], asyncio.Protocol],
        answer_plain: Callable[[], asyncio.Protocol],
        brokers: Callable[[], Iterable[BrokerInfo]],
    ) -> None:
        self.node_host = node_host
        self.address = bound
        """What is bound; the port is the real one once the socket is open."""
        self.told = Advertised("", "", {}, [])
        self.forwards = Forwards(env, settings, brokers, self._is_here)
        self._settings = settings
        self._broker_id = broker_id
        self._make_connection = make_connection
        self._answer_plain = answer_plain
        self._servers: list[asyncio.Server] = []
        self._tls_sockets: list[TlsListener] = []
        self._contexts = ServerContexts(env, settings.server_tls())
        self._tasks = Tasks()

    async def open(self) -> None:
        """Listen. Raises OSError when an address is taken, SettingError for addresses or files that cannot be."""
        host, port = self.address
        tls_only, port_tls = self._settings.broker_tls_only, self._settings.port_tls_of(self._broker_id)
        self.address = (host, await self._listen(host, port, "", tls=tls_only))
        if port_tls:
            await self._listen(host, port_tls, "", tls=True)
        place = BrokerPlace(self._broker_id, self.node_host, self.address[1], os.environ, port_tls)
        self.told = self._settings.advertised(place, tls_only=tls_only)
        for bind in self.told.binds:
            shared = not self.told.listeners[bind.name].first.direct
            await self._listen(*bind.address, bind.name, tls=bind.tls, shared=shared)

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of all listeners by name; of one that has two, that without TLS."""
        return {name: one.plain.url for name, one in self.told.listeners.items() if one.plain is not None}

    @property
    def urls_tls(self) -> dict[str, str]:
        """The URLs with TLS of all listeners by name."""
        return {name: one.tls.url for name, one in self.told.listeners.items() if one.tls is not None}

    def close(self) -> None:
        """Accept no more connections."""
        for server in (*self._servers, *self._tls_sockets):
            server.close()

    async def wait_closed(self) -> None:
        """End what is forwarded, and wait until the sockets are closed."""
        await self.forwards.close()
        await self._tasks.close()
        for server in (*self._servers, *self._tls_sockets):
            await server.wait_closed()

    def _is_here(self, address: Address) -> bool:
        return address == (self.node_host, self.address[1]) or addressed(self.data, self.told.first, address)

    @property
    def data(self) -> MemberData:
        """The addresses that the broker registers with."""
        told = self.told
        return {"url": told.first, "url_tls": told.url_tls, "listeners": self.urls, "listeners_tls": self.urls_tls}

    async def _listen(self, host: str, port: int, listener: str, *, tls: bool, shared: bool = False) -> int:
        """The port on which it listens from now on."""
        loop = asyncio.get_running_loop()

        def make() -> asyncio.Protocol:
            return self._make_connection(listener)

        if not tls:
            server = await loop.create_server(make, host, port, backlog=BACKLOG, reuse_port=shared or None)
            self._servers.append(server)
            return server.sockets[0].getsockname()[1]
        if not self._tls_sockets:
            await self._contexts.open()
            self._tasks.spawn(self._contexts.run(), "refresh-certificates")
        secure = TlsListener(self._contexts, make, self._answer_plain)
        await secure.open(host, port, backlog=BACKLOG, shared=shared)
        self._tls_sockets.append(secure)
        return secure.port
