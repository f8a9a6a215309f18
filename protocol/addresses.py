"""`host:port`, as text and as a pair."""

from collections.abc import Sequence

Address = tuple[str, int]

PORT_DIGITS_MAX = 5


def parse_address(text: str, port_default: int | None = None) -> Address:
    """The host and the port of `host:port`; an IPv6 address stands in brackets. Without a default the port is needed.

    Raises ValueError, whose text says what `text` is or lacks.
    """
    host, separator, port = text.rpartition(":")
    if port_default is not None and (not separator or port.endswith("]")):
        host, port = text, str(port_default)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("has an IPv6 address without brackets: write [address]:port")
    number = int(port) if port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX else 0
    if not host or "/" in host or not 0 < number < 65536:
        raise ValueError("is not host:port")
    return host, number


def address_text(address: Address) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"{bracketed(address[0])}:{address[1]}"


def joined_urls(urls: Sequence[str]) -> str:
    """One service URL with the hosts of several of one scheme; empty without any."""
    scheme = urls[0].partition("://")[0] if urls else ""
    hosts = ",".join(url.partition("://")[2].rstrip("/") for url in urls)
    return f"{scheme}://{hosts}" if urls else ""


def bracketed(host: str) -> str:
    """A host as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
