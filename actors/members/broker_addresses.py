"""Under which address a client reaches a broker, and which broker a client means by an address.

Who owns a topic is found first, as the URL that its broker registered (`MemberData.url`). Here this becomes what the
client is told. That is the URL of the listener that it asked for, or that brokers forward to the owner.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ...protocol.addresses import Address, parse_address
from ...protocol.cluster_status import MemberData
from ...protocol.errors import NoSuchListener, ServiceUnitNotReady
from ...runtime.settings.listeners import DIRECT
from .contracts_coordinator import BrokerInfo

_DIRECT_PREFIX = f"{DIRECT}://"


class Reach(NamedTuple):
    """What a lookup answers. With `through_proxy` the client connects to a broker that forwards it to `url`."""

    url: str
    through_proxy: bool = False


def reach(brokers: Iterable[BrokerInfo], url: str, listener: str) -> Reach:
    """How a client of a listener reaches the broker with this URL; the empty listener is the internal one.

    Raises ServiceUnitNotReady for a listener that the broker does not have, as Pulsar does.
    """
    if not listener:
        return Reach(url)
    data = next((broker.data for broker in brokers if broker.url == url), None)
    if data is None:
        raise ServiceUnitNotReady("the broker of this topic has just joined or left: try again")
    found = data.get("listeners", {}).get(listener)
    if found is None:
        # Pulsar's words: the C++ client and those on top of it know them, and do not try for 30 s.
        raise NoSuchListener(f"the broker do not have {listener[:100]} listener")
    return Reach(found) if found.startswith(_DIRECT_PREFIX) else Reach(url, through_proxy=True)


def addressed(data: MemberData, url: str, target: Address) -> bool:
    """Whether an address is one under which clients reach this broker itself."""
    urls = [url, *data.get("listeners", {}).values()]
    return any(one.startswith(_DIRECT_PREFIX) and _matches(one, target) for one in urls)


def target_address(text: str) -> Address:
    """The address in `proxy_to_broker_url`: `host:port`, as Pulsar's clients write it, or a URL.

    Raises ValueError.
    """
    return parse_address(text.removeprefix(_DIRECT_PREFIX).rstrip("/"))


def _matches(url: str, target: Address) -> bool:
    try:
        host, port = target_address(url)
    except ValueError:
        return False  # what another broker registered is not ours to trust
    return port == target[1] and host.lower() == target[0].lower()
