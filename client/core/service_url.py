"""Service URLs: `pulsar://host:port`, or several hosts of one cluster, `pulsar://a:1,b:2`.

With `pulsar+ssl://` the client speaks TLS. With `pulsar+proxy://` the client connects to these hosts only, and the
brokers there forward to the owners of topics.
"""

from ...protocol.addresses import Address, address_text, parse_address
from ...protocol.errors import InvalidUrl
from ...protocol.names import TLS_PORT

PORT_DEFAULT = 6650
_SCHEME = "pulsar://"
_PROXY_SCHEME = "pulsar+proxy://"
_TLS_SCHEME = "pulsar+ssl://"


def parse_service_url(url: str) -> list[Address]:
    """The addresses that a service URL names, in its order. Raises InvalidUrl."""
    scheme = next((one for one in (_SCHEME, _TLS_SCHEME, _PROXY_SCHEME) if url.startswith(one)), None)
    if scheme is None:
        raise InvalidUrl(
            f"{url!r} is not a service URL: it must start with {_SCHEME}, with {_TLS_SCHEME} or with {_PROXY_SCHEME}"
        )
    port = TLS_PORT if scheme == _TLS_SCHEME else PORT_DEFAULT
    addresses = [_parse_address(part, url, port) for part in url[len(scheme) :].rstrip("/").split(",")]
    return list(dict.fromkeys(addresses))


def asks_for_tls(url: str) -> bool:
    """Whether a service URL asks for TLS."""
    return url.startswith(_TLS_SCHEME)


def goes_through_proxy(url: str) -> bool:
    """Whether the hosts of a service URL forward to the owners of topics, which the client does not reach itself."""
    return url.startswith(_PROXY_SCHEME)


def _parse_address(text: str, url: str, port: int) -> Address:
    try:
        return parse_address(text, port)
    except ValueError as error:
        raise InvalidUrl(f"{text!r} in {url!r} {error}") from None


def format_address(address: Address, *, tls: bool = False) -> str:
    """`pulsar://host:port`, or with TLS `pulsar+ssl://host:port`."""
    return (_TLS_SCHEME if tls else _SCHEME) + address_text(address)
