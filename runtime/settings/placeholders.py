"""Placeholders in settings that each broker fills in for itself: `{number}`, `{port}`, `{env:POD_IP}`.

A setting holds for the whole cluster. Its placeholders are what makes it another one for each broker:

    {broker}     the broker's id, such as broker-3
    {number}     its number, 3; also {number+30000} and {number-1}
    {port}       its port; also {port+1000} and {port-1}
    {portTls}    its port for TLS, of brokerServicePortTls; also {portTls+1000} and {portTls-1}
    {host}       the address of its node, where other members reach it
    {env:NAME}   the variable NAME in the environment of its process, on its node
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...protocol.addresses import bracketed
from ...protocol.errors import SettingError

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_KNOWN = re.compile(r"broker|host|env:[A-Za-z_]\w*|(?:number|portTls|port)(?:[+-]\d{1,5})?", re.ASCII)
_SHIFTED = re.compile(r"(number|portTls|port)([+-]\d+)?", re.ASCII)
_NAMES = "{broker}, {number}, {port}, {portTls}, {host}, {env:NAME}, {number+N}, {port+N}"


@dataclass(frozen=True)
class BrokerPlace:
    """One broker, for the placeholders. `host` is the address of its node."""

    broker: str
    host: str
    port: int
    environment: Mapping[str, str]
    port_tls: int = 0
    """0 if it has none."""

    @property
    def number(self) -> int:
        """The number of the broker: 3 for broker-3. Raises SettingError for an id without one."""
        return number_of(self.broker)


def number_of(broker: str) -> int:
    """The number in a broker's id: 3 for broker-3. Raises SettingError for an id without one."""
    digits = broker.rpartition("-")[2]
    if not (digits.isascii() and digits.isdigit()):
        raise SettingError(f"{broker} has no number, from which its port or a placeholder {{number}} would follow")
    return int(digits)


def check_placeholders(name: str, text: str) -> None:
    """Raise SettingError for a placeholder that no broker could fill in, or a brace that belongs to none."""
    for found in _PLACEHOLDER.findall(text):
        if not _KNOWN.fullmatch(found):
            raise SettingError(f"{name} has the unknown placeholder {{{found[:40]}}}: choose from {_NAMES}")
    rest = _PLACEHOLDER.sub("", text)
    if "{" in rest or "}" in rest:
        raise SettingError(f"{name} has a brace that is not closed or not opened: {text[:200]!r}")


def sample(text: str) -> str:
    """The text with made-up values; different placeholders get different ones. For checks of all else in it."""
    seen: dict[str, str] = {}
    return _PLACEHOLDER.sub(lambda found: seen.setdefault(found[0], str(10_001 + len(seen))), text)


def filled_in(name: str, text: str, place: BrokerPlace) -> str:
    """The text for one broker. Raises SettingError for an unknown placeholder and a variable that is not set."""
    check_placeholders(name, text)
    return _PLACEHOLDER.sub(lambda found: _value(name, found[1], place), text)


def _value(name: str, placeholder: str, place: BrokerPlace) -> str:
    if shifted := _SHIFTED.fullmatch(placeholder):
        known = {"number": lambda: place.number, "port": lambda: place.port, "portTls": lambda: place.port_tls}
        return str(known[shifted[1]]() + int(shifted[2] or 0))
    if placeholder == "broker":
        return place.broker
    if placeholder == "host":
        return bracketed(place.host)
    variable = placeholder.removeprefix("env:")
    value = place.environment.get(variable, "").strip()
    if not value:
        raise SettingError(
            f"{name} takes {{{placeholder}}}, but the environment of {place.broker} on {place.host} has no variable "
            f"{variable}: set it where Ray starts on that node"
        )
    return value
