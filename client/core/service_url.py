"""Service URLs: `pulsar://host:port`, or several hosts of one cluster, `pulsar://a:1,b:2`.

With `pulsar+proxy://` the client connects to these hosts only, and the brokers there forward to the owners of topics.
Brokers have no TLS yet, so `pulsar+ssl://` is refused.
"""

from ...protocol.addresses import Address, address_text, parse_address
from ...protocol.errors import InvalidUrl, OperationNotSupported

PORT_DEFAULT = 6650
_SCHEME = "pulsar://"
_PROXY_SCHEME = "pulsar+proxy://"
_TLS_SCHEME = "pulsar+ssl://"


def parse_service_url(url: str) -> list[Address]:
    """The addresses that a service URL names, in its order. Raises InvalidUrl, OperationNotSupported."""
    refuse_tls(url)
    scheme = _PROXY_SCHEME if goes_through_proxy(url) else _SCHEME
    if not url.startswith(scheme):
        raise InvalidUrl(f"{url!r} is not a service URL: it must start with {_SCHEME} or {_PROXY_SCHEME}")
    addresses = [_parse_address(part, url) for part in url[len(scheme) :].rstrip("/").split(",")]
    return list(dict.fromkeys(addresses))


def refuse_tls(url: str) -> None:
    """Raise OperationNotSupported for a service URL that asks for TLS."""
    if url.startswith(_TLS_SCHEME):
        raise OperationNotSupported(
            f"{url!r} asks for TLS, which Magnetar's client and brokers do not have yet: use {_SCHEME} and the "
            f"brokers' own port, {PORT_DEFAULT} by default"
        )


def goes_through_proxy(url: str) -> bool:
    """Whether the hosts of a service URL forward to the owners of topics, which the client does not reach itself."""
    return url.startswith(_PROXY_SCHEME)


def _parse_address(text: str, url: str) -> Address:
    try:
        return parse_address(text, PORT_DEFAULT)
    except ValueError as error:
        raise InvalidUrl(f"{text!r} in {url!r} {error}") from None


def format_address(address: Address) -> str:
    """`pulsar://host:port`."""
    return _SCHEME + address_text(address)
