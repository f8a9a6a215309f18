"""Where clients reach brokers: the addresses that brokers advertise, and the forwarding of clients' connections.

Each broker fills in the placeholders of these settings for itself; see `placeholders`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.addresses import address_text
from ...protocol.errors import SettingError
from .listeners import (
    BINDS,
    DIRECT,
    INTERNAL,
    LISTENERS,
    TLS,
    ListenerUrl,
    Urls,
    check_host,
    internal_listener,
    parse_bind_addresses,
    parse_listeners,
)
from .placeholders import BrokerPlace, check_placeholders, filled_in, sample
from .text import setting

ADDRESS = "advertisedAddress"

_PLACEHOLDERS = "Each broker fills in {broker}, {number}, {port}, {host} and {env:NAME}."


class Advertised(NamedTuple):
    """What one broker tells: `url` and `url_tls` to clients that name no listener, `listeners` by name. One of the URLs
    may be empty. It binds to `binds`, too.
    """

    url: str
    url_tls: str
    listeners: dict[str, Urls]
    binds: list[ListenerUrl]

    @property
    def first(self) -> str:
        """The URL by which the broker is known: the one without TLS, if it has one."""
        return self.url or self.url_tls


@dataclass(frozen=True)
class AddressSettings:
    """See the module."""

    advertised_address: str = setting(
        ADDRESS,
        "",
        "Host name or IP address that a broker tells clients, in place of the address of its node. " + _PLACEHOLDERS,
        original="the host's canonical name; the address of a Ray node can be reached without DNS",
    )
    advertised_listeners: str = setting(
        LISTENERS,
        "",
        "Addresses of a broker by the name of a listener: name:pulsar://host:port, several separated by commas. "
        "A listener may have one with pulsar+ssl:// for TLS, too. Clients choose one by its name. With "
        "name:pulsar+proxy://host:port brokers forward to each other. " + _PLACEHOLDERS,
    )
    internal_listener_name: str = setting(
        INTERNAL,
        "",
        "The listener for clients that name none. By default it is the first of advertisedListeners that does not "
        "forward.",
    )
    bind_addresses: str = setting(
        BINDS,
        "",
        "Further addresses that a broker listens on: name:pulsar://host:port, or name:pulsar+ssl://host:port with TLS, "
        "several separated by commas. Clients that connect there and name no listener get that one. " + _PLACEHOLDERS,
    )
    proxy_connections_max: int = setting(
        "brokerProxyMaxConnections",
        1_000,
        "Connections that one broker forwards to other brokers at the same time; 0 = it forwards none.",
        within=(0, 1 << 20),
        hostile=2,
        origin="magnetar",
    )
    proxy_connect_timeout_ms: int = setting(
        "brokerProxyConnectTimeoutMs",
        10_000,
        "When a broker forwards, connecting to the other broker fails after this long.",
        within=(1, 600_000),
    )
    proxy_read_timeout_ms: int = setting(
        "brokerProxyReadTimeoutMs",
        75_000,
        "A broker ends a forwarded connection on which neither side has sent anything for this long, but not before "
        "three keepAliveIntervalSeconds.",
        within=(1, 86_400_000),
    )

    def check_addresses(self) -> None:
        """Raise SettingError for what no broker could use. The values of placeholders are not known yet."""
        texts = {ADDRESS: self.advertised_address, LISTENERS: self.advertised_listeners, BINDS: self.bind_addresses}
        for name, text in texts.items():
            check_placeholders(name, text)
        if self.advertises_what_nodes_say:
            return  # a variable may hold anything, even several entries: the broker checks the result
        if self.advertised_address:
            check_host(ADDRESS, sample(self.advertised_address).strip("[]"))
        found = parse_listeners(sample(self.advertised_listeners))
        forwarding = [name for name, one in found.items() if not one.first.direct]
        if forwarding and not self.proxy_connections_max:
            raise SettingError(
                f"{LISTENERS} has {forwarding[0]} with pulsar+proxy://, but with brokerProxyMaxConnections=0 no broker "
                "forwards: raise it"
            )
        internal_listener(found, self.internal_listener_name)
        parse_bind_addresses(sample(self.bind_addresses), found)

    def advertised(self, place: BrokerPlace, *, tls_only: bool = False) -> Advertised:
        """What the settings mean for one broker; with `tls_only` its own port speaks TLS. Raises SettingError."""
        address = filled_in(ADDRESS, self.advertised_address, place).strip().strip("[]") or place.host
        check_host(ADDRESS, address)
        listeners = parse_listeners(filled_in(LISTENERS, self.advertised_listeners, place))
        internal = internal_listener(listeners, self.internal_listener_name)
        binds = parse_bind_addresses(filled_in(BINDS, self.bind_addresses, place), listeners)
        if internal is not None:
            urls = [one.url if one is not None else "" for one in (internal.plain, internal.tls)]
            return Advertised(urls[0], urls[1], listeners, binds)
        port_tls = place.port if tls_only else place.port_tls
        url_tls = f"{TLS}://{address_text((address, port_tls))}" if port_tls else ""
        url = "" if tls_only else f"{DIRECT}://{address_text((address, place.port))}"
        return Advertised(url, url_tls, listeners, binds)

    @property
    def advertises_what_nodes_say(self) -> bool:
        """Whether only a broker's node knows what the broker advertises: variables of its environment are in it."""
        return "{env:" in self.advertised_address + self.advertised_listeners + self.bind_addresses
