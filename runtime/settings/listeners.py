"""The texts of `advertisedListeners` and `bindAddresses`: listeners by name, and the URLs of each.

    internal:pulsar://10.0.0.1:6650,external:pulsar://broker-1.example.com:6650,web:pulsar+proxy://entry.example.com:6652

A `pulsar://` URL leads to the broker itself, and a `pulsar+ssl://` URL does so with TLS; a listener may have both. A
`pulsar+proxy://` URL leads to any broker, which forwards: all brokers may have the same one.
"""

import re
from ipaddress import ip_address
from typing import NamedTuple

from ...protocol.addresses import Address, address_text, parse_address
from ...protocol.errors import SettingError

DIRECT = "pulsar"
TLS = "pulsar+ssl"
PROXY = "pulsar+proxy"
LISTENERS = "advertisedListeners"
BINDS = "bindAddresses"
INTERNAL = "internalListenerName"
_NAME = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}", re.ASCII)
_ENTRIES_MAX = 100


class ListenerUrl(NamedTuple):
    name: str
    scheme: str
    address: Address

    @property
    def url(self) -> str:
        """As lookups answer it."""
        return f"{self.scheme}://{address_text(self.address)}"

    @property
    def direct(self) -> bool:
        """Whether it leads to the broker itself, not to any broker that forwards."""
        return self.scheme != PROXY

    @property
    def tls(self) -> bool:
        """Whether one speaks TLS there."""
        return self.scheme == TLS


class Urls(NamedTuple):
    """The URLs of one listener. One of them is missing where it has only the other."""

    plain: ListenerUrl | None
    tls: ListenerUrl | None

    @property
    def first(self) -> ListenerUrl:
        """The one without TLS, if there is one."""
        found = self.plain or self.tls
        assert found is not None
        return found


def parse_listeners(text: str) -> dict[str, Urls]:
    """The listeners of `advertisedListeners` by name, in its order. Raises SettingError."""
    found: dict[str, Urls] = {}
    owners: dict[Address, str] = {}
    for one in _entries(LISTENERS, text):
        before = found.get(one.name, Urls(None, None))
        if (before.tls if one.tls else before.plain) is not None:
            raise SettingError(
                f"{LISTENERS} has the listener {one.name} twice: keep one URL, or one beside pulsar+ssl://"
            )
        forwards = not one.direct or (before.plain is not None and not before.plain.direct)
        if forwards and (one.tls or before.tls is not None):
            raise SettingError(
                f"the listener {one.name} of {LISTENERS} forwards, so it needs no pulsar+ssl:// URL: take that away"
            )
        other = owners.setdefault(one.address, one.name)
        if other != one.name:
            raise SettingError(
                f"{LISTENERS} gives {address_text(one.address)} to both {other} and {one.name}: each listener needs an "
                "address of its own"
            )
        found[one.name] = before._replace(tls=one) if one.tls else before._replace(plain=one)
    return found


def parse_bind_addresses(text: str, listeners: dict[str, Urls]) -> list[ListenerUrl]:
    """The sockets of `bindAddresses`: where to listen, and for which listener. Raises SettingError."""
    found: dict[Address, ListenerUrl] = {}
    for one in _entries(BINDS, text):
        if one.name not in listeners:
            raise SettingError(f"{BINDS} names the listener {one.name}, which {LISTENERS} does not have: add it there")
        if not one.direct:
            raise SettingError(
                f"{BINDS} takes pulsar:// and pulsar+ssl:// URLs, not {one.url}: the listener says what it forwards"
            )
        if one.address in found:
            raise SettingError(f"{BINDS} has {address_text(one.address)} twice: keep one")
        found[one.address] = one
    return list(found.values())


def internal_listener(listeners: dict[str, Urls], name: str) -> Urls | None:
    """The listener for clients that name none: that of `internalListenerName`, else the first that does not forward.

    None without any. Raises SettingError.
    """
    if not listeners:
        return None
    if not name:
        return next((one for one in listeners.values() if one.first.direct), None)
    if name not in listeners:
        raise SettingError(
            f"{INTERNAL} is {name[:100]}, which {LISTENERS} does not have: add it there, or choose another"
        )
    if not listeners[name].first.direct:
        raise SettingError(f"{INTERNAL} names {name}, which forwards: other brokers need a pulsar:// URL")
    return listeners[name]


def _entries(setting: str, text: str) -> list[ListenerUrl]:
    parts = [part for part in text.split(",") if part.strip()]
    if len(parts) > _ENTRIES_MAX:
        raise SettingError(f"{setting} has {len(parts)} entries: {_ENTRIES_MAX} are allowed")
    return [_entry(setting, part.strip()) for part in parts]


def _entry(setting: str, part: str) -> ListenerUrl:
    name, separator, url = (piece.strip() for piece in part.partition(":"))
    if not separator or not name or url.startswith("//"):
        raise SettingError(
            f"the entry {part[:200]!r} of {setting} does not begin with the name of a listener: write "
            "name:pulsar://host:port"
        )
    if not _NAME.fullmatch(name):
        raise SettingError(f"{name[:100]!r} in {setting} is no name of a listener: use letters, digits, _, . and -")
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() not in (DIRECT, TLS, PROXY):
        raise SettingError(
            f"the entry {part[:200]!r} of {setting} has another scheme than pulsar://, pulsar+ssl:// and "
            "pulsar+proxy://, which are all that brokers have"
        )
    try:
        address = parse_address(rest.rstrip("/"))
    except ValueError as error:
        raise SettingError(f"the entry {part[:200]!r} of {setting} is malformed: {rest[:200]!r} {error}") from None
    check_host(setting, address[0])
    return ListenerUrl(name, scheme.lower(), address)


def check_host(setting: str, host: str) -> None:
    """Raise SettingError for what can be neither a host name nor an IP address."""
    if not _HOST.fullmatch(host) and not _is_ipv6(host):
        raise SettingError(f"{setting} has {host[:100]!r}, which is no host name and no IP address")


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False
