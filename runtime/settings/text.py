"""Settings as text: reading a file of `name=value` lines, values from text, bounds, unknown names.

Works on dataclass fields with the metadata that `settings` gives them, and knows no setting by itself.
It names the features of Pulsar that a setting of `broker.conf` belongs to, when Magnetar has not got them.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

from ...protocol.errors import SettingError

FEATURES = {
    "tiered storage": r"offload|tieredStorage|s3Managed|gcsManaged|fileSystem(Profile|URI)",
    "WebSocket proxy": r"webSocket",
    "functions": r"functions?Worker|functionsEnabled",
    "transactions": r"transaction|^numIOThreads.*Txn",
    "Kerberos, Athenz, OpenID Connect or credentials between brokers": r"brokerClient(?!.*tls)|sasl|kinit|jaas|athenz|"
    r"^openID|tokenSettingPrefix|strictAuthMethod|RoleLoggingAnonymizer",
    "TLS by key stores or providers": r"tls(Enabled|Provider|Hostname)|keyStore|trustStore|ssl|"
    r"webServiceTls(Protocols|Ciphers)|brokerClientTls|bookkeeper(tls|.*certificate)",
    "ZooKeeper": r"zookeeper|^zk|zkSession|metadataStore|configurationStore",
    "geo-replication": r"replicat(or|edSubscription)|replicationConnections|replicationProducer|replicationMetrics|"
    r"replicationPolicyCheck|replicationTls|enableReplicat",
    "resource groups": r"resourceGroup|resourceUsageTransport",
    "protocol handlers and plug-ins": r"protocolHandler|messagingProtocols|additionalServlet|interceptor|entryFilter|"
    r"PluginClass|FactoryClassName",
}
"""Names that several patterns fit belong to the first."""


def absent_feature(name: str) -> str | None:
    """The feature that is missing, and to which a setting of this name belongs in Pulsar."""
    return next((feature for feature, names in FEATURES.items() if re.search(names, name, re.IGNORECASE)), None)


Value = bool | int | float | str
DefaultValue = TypeVar("DefaultValue", bool, int, float, str)
Field = dataclasses.Field[object]

SIMILAR = 0.6
"""How alike a name is that is suggested in place of an unknown one. With less, the suggestions are misleading."""

Fields = Mapping[str, Field]
"""Fields by outside name."""


Origin = Literal["pulsar", "bookkeeper", "magnetar"]
"""Whose name, unit and meaning a setting has."""

_UNITS = {"bytes": "bytes", "mb": "MB", "ms": "ms", "s": "s", "minutes": "min", "chars": "characters"}


def setting(
    name: str,
    default: DefaultValue,
    doc: str,
    *,
    within: tuple[float, float] | tuple[None, None] = (None, None),
    hostile: DefaultValue | None = None,
    choices: tuple[str, ...] = (),
    origin: Origin = "pulsar",
    original: str = "",
) -> DefaultValue:
    """Declare a field of `Settings`.

    A number lies `within` two bounds. `origin` says whose setting it is. `original` is the default there, if ours
    differs. `hostile` is a legal value that makes trouble likely (tiny buffers, short time-outs); the simulator draws
    from it.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "name": name,
            "origin": origin,
            "original": original,
            "doc": doc,
            "minimum": within[0],
            "maximum": within[1],
            "hostile": hostile,
            "choices": choices,
        },
    )


def unit_of(item: Field) -> str:
    """The unit of a setting, which its field's name says last; empty for counts, shares, texts and switches."""
    words = item.name.removesuffix("_max").split("_")
    if words[-2:] == ["per", "s"]:
        return "bytes/s"
    return _UNITS.get(words[-1], "")


def check_names(by_name: Fields, names: Iterable[str]) -> None:
    """Raise SettingError that tells all names that are no settings: those of features that are missing, and others."""
    unknown = [name for name in names if name not in by_name]
    if not unknown:
        return
    missing: dict[str, list[str]] = {}
    parts: list[str] = []
    for name in unknown:
        feature = absent_feature(name)
        if feature is not None:
            missing.setdefault(feature, []).append(name)
            continue
        near = difflib.get_close_matches(name, by_name, n=1, cutoff=SIMILAR)
        parts.append(f"{name} (did you mean {near[0]}?)" if near else name)
    told = [f"unknown setting{'s' if len(parts) > 1 else ''} {', '.join(parts)}"] if parts else []
    told += [f"Magnetar has no {feature}, so take away {', '.join(found)}" for feature, found in missing.items()]
    raise SettingError(f"{'; '.join(told)}. `magnetar settings` lists all")


def parse(item: Field, text: str) -> Value:
    """A value from its text. Raises SettingError when it is of another kind."""
    name = item.metadata["name"]
    try:
        if item.type in (bool, "bool"):
            return {"true": True, "false": False}[text.lower()]
        if item.type in (int, "int"):
            return int(text.replace("_", ""))
        if item.type in (float, "float"):
            return float(text)
    except (KeyError, ValueError):
        kind = {"bool": "true or false", "int": "a whole number", "float": "a number"}[
            getattr(item.type, "__name__", str(item.type))
        ]
        raise SettingError(f"{name} takes {kind}, not {text!r}") from None
    return text


def check(item: Field, value: object) -> None:
    """Raise SettingError unless the value has the type and lies within the bounds."""
    name, low, high, choices = (item.metadata[key] for key in ("name", "minimum", "maximum", "choices"))
    kind = getattr(item.type, "__name__", str(item.type))
    fits = {
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
    }[kind]
    if not fits:
        raise SettingError(f"{name} must be of type {kind}, not {value!r}")
    if low is not None and not low <= value <= high:  # a NaN fails this too
        raise SettingError(f"{name} must be between {low} and {high}, not {value}")
    if choices and value not in choices:
        raise SettingError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def read_file(path: str) -> dict[str, str]:
    """Names and values of a settings file. Raises SettingError when it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"the settings file {path} cannot be read: {error}") from error
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not equals:
            raise SettingError(f"{path}, line {number}: this is not NAME=VALUE")
        values[name.strip()] = value
    return values
