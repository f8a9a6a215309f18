"""Service URLs: `pulsar://host:port`, or several hosts of one cluster, `pulsar://a:1,b:2`."""

from ...protocol.errors import InvalidUrl

Address = tuple[str, int]

PORT_DEFAULT = 6650
_SCHEME = "pulsar://"


def parse_service_url(url: str) -> list[Address]:
    """The addresses that a service URL names, in its order. Raises InvalidUrl."""
    if not url.startswith(_SCHEME):
        raise InvalidUrl(f"{url!r} is not a service URL: it must start with {_SCHEME}")
    addresses = [_parse_address(part, url) for part in url[len(_SCHEME) :].rstrip("/").split(",")]
    return list(dict.fromkeys(addresses))


def _parse_address(text: str, url: str) -> Address:
    host, separator, port = text.rpartition(":")
    if not separator or port.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidUrl(f"{url!r} has an IPv6 address without brackets: write [address]:port")
    if not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidUrl(f"{text!r} in {url!r} is not host:port")
    return host, int(port)


def format_address(address: Address) -> str:
    """`pulsar://host:port`."""
    host, port = address
    return f"{_SCHEME}[{host}]:{port}" if ":" in host else f"{_SCHEME}{host}:{port}"
