"""Under which address a client reaches a broker, and which broker a client means by an address.

Who owns a topic is found first, as the URL that its broker registered (`MemberData.url`). Here this becomes what the
client is told. That is the URL of the listener that it asked for, or that brokers forward to the owner. A client with
TLS takes `url_tls`, any other `url`. It is told both, as in Pulsar.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ...protocol.addresses import Address, parse_address
from ...protocol.cluster_status import MemberData
from ...protocol.errors import NoSuchListener, ServiceUnitNotReady
from ...runtime.settings.listeners import DIRECT, TLS
from .contracts_coordinator import BrokerInfo

_DIRECT_PREFIX = f"{DIRECT}://"
_TLS_PREFIX = f"{TLS}://"


class Reach(NamedTuple):
    """What a lookup answers. `url` or `url_tls` is empty where the broker has no such address. With `through_proxy` the
    client connects to a broker that forwards it to one of them.
    """

    url: str
    url_tls: str = ""
    through_proxy: bool = False

    def with_tls(self) -> "Reach":
        """The same for a client that speaks TLS with the broker that forwards. Such a client names the owner by
        `url_tls`, and the owner itself may have no TLS.
        """
        if not self.through_proxy or self.url_tls:
            return self
        return self._replace(url_tls=f"{_TLS_PREFIX}{self.url.removeprefix(_DIRECT_PREFIX)}")


def reach(brokers: Iterable[BrokerInfo], url: str, listener: str) -> Reach:
    """How a client of a listener reaches the broker with this URL; the empty listener is the internal one.

    Raises ServiceUnitNotReady for a listener that the broker does not have, as Pulsar does.
    """
    data = next((broker.data for broker in brokers if broker.url == url), None)
    plain = url if url.startswith(_DIRECT_PREFIX) else ""
    if not listener:
        return Reach(plain, data.get("url_tls", "") if data is not None else "" if plain else url)
    if data is None:
        raise ServiceUnitNotReady("the broker of this topic has just joined or left: try again")
    found, found_tls = data.get("listeners", {}).get(listener, ""), data.get("listeners_tls", {}).get(listener, "")
    if not found and not found_tls:
        # Pulsar's words: the C++ client and those on top of it know them, and do not try for 30 s.
        raise NoSuchListener(f"the broker do not have {listener[:100]} listener")
    if found and not found.startswith(_DIRECT_PREFIX):
        return Reach(f"{_DIRECT_PREFIX}{url.partition('://')[2]}", data.get("url_tls", ""), through_proxy=True)
    return Reach(found, found_tls)


def addressed(data: MemberData, url: str, target: Address) -> bool:
    """Whether an address is one under which clients reach this broker itself."""
    urls = [
        url,
        data.get("url_tls", ""),
        *data.get("listeners", {}).values(),
        *data.get("listeners_tls", {}).values(),
    ]
    return any(_matches(one, target) for one in urls if one.startswith((_DIRECT_PREFIX, _TLS_PREFIX)))


def target_address(text: str) -> Address:
    """The address in `proxy_to_broker_url`: `host:port`, as Pulsar's clients write it, or a URL.

    Raises ValueError.
    """
    prefix = _TLS_PREFIX if text.startswith(_TLS_PREFIX) else _DIRECT_PREFIX
    return parse_address(text.removeprefix(prefix).rstrip("/"))


def _matches(url: str, target: Address) -> bool:
    try:
        host, port = target_address(url)
    except ValueError:
        return False  # what another broker registered is not ours to trust
    return port == target[1] and host.lower() == target[0].lower()
