"""What commands take: where a value goes in a request, and how its text is read.

A function that reads a text raises InvalidConfiguration, which names what was expected.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import cast

from ...protocol.errors import InvalidConfiguration
from ...protocol.topics import TopicName, parse_namespace


class ArgumentPlace(Enum):
    """Where a value goes."""

    PATH = "path"
    """Into the path, in the place of its name. A mapping fills several places."""
    QUERY = "query"
    FIELD = "field"
    """Into the body, which is an object."""
    BODY = "body"
    """It is the body."""
    NOWHERE = "nowhere"
    """The command itself uses it."""


@dataclass(frozen=True)
class Argument:
    """One argument of a command; without `flags` it is positional.

    `outside` is the name in the query or the body; by default the argument's own.
    """

    name: str
    help: str
    flags: tuple[str, ...] = ()
    place: ArgumentPlace = ArgumentPlace.PATH
    read: Callable[[str], object] = str
    default: str | None = None
    required: bool = True
    switch: bool = False
    """An option without a value; it is sent as true if it is given. `--a/--b` sends true or false."""
    many: bool = False
    """May be repeated, and given with commas; the value is a list."""
    outside: str = ""

    @property
    def word(self) -> str:
        return self.outside or self.name


def option(name: str, flags: str, help: str, place: ArgumentPlace = ArgumentPlace.QUERY, **more: object) -> Argument:
    """An option that may be left out. `flags` has all its names, with spaces."""
    return Argument(name, help, tuple(flags.split()), place, **{"required": False, **more})  # type: ignore[arg-type]


# -- resources ---------------------------------------------------------------------------------------------------


def _namespace_parts(text: str) -> Mapping[str, str]:
    tenant, namespace = parse_namespace(text)
    return {"tenant": tenant, "namespace": namespace}


def topic_parts(text: str) -> Mapping[str, str]:
    """The parts of a topic's name in a path. Raises InvalidTopicName."""
    topic = TopicName.parse(text)
    return {**_namespace_parts(topic.namespace), "domain": topic.domain, "topic": topic.local_name}


TENANT = Argument("tenant", "The tenant.")
NAMESPACE = Argument("namespace", "The namespace, as tenant/namespace.", read=_namespace_parts)
TOPIC = Argument("topic", "The topic, in any form of its name.", read=topic_parts)
SUBSCRIPTION = Argument("subscription", "The subscription.", ("-s", "--subscription"))
FORCE = option("force", "-f --force", "Disconnect clients first, or delete what it holds, too.", switch=True)


# -- values ------------------------------------------------------------------------------------------------------

_SIZE = re.compile(r"(\d+)\s*([kmgtKMGT]?)[bB]?", re.ASCII)
_TIME = re.compile(r"(\d+)\s*(ms|[smhdwy]?)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}
ENDLESS = "-1"


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise InvalidConfiguration(f"{text!r} is not a whole number") from None


def real(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise InvalidConfiguration(f"{text!r} is not a number") from None


def size(text: str) -> int:
    """Bytes, such as 10M or 16G; -1 for no limit."""
    if text == ENDLESS:
        return -1
    found = _SIZE.fullmatch(text)
    if found is None:
        raise InvalidConfiguration(f"{text!r} is not a size: write bytes, or 10K, 10M, 16G, 3T")
    return int(found[1]) << (10 * " kmgt".index(found[2].lower() or " "))


def megabytes(text: str) -> int:
    """A size in whole MB, rounded down; -1 for no limit."""
    found = size(text)
    return found if found < 0 else found >> 20


def _duration(unit: str, default: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        if text == ENDLESS:
            return -1
        found = _TIME.fullmatch(text)
        if found is None:
            raise InvalidConfiguration(f"{text!r} is not a time: write a number, or 10s, 5m, 3h, 2d, 1w")
        return round(int(found[1]) * _SECONDS[found[2] or default] / _SECONDS[unit])

    return read


seconds = _duration("s", "s")
"""Whole seconds; -1 for no limit."""
minutes = _duration("m", "m")
"""Whole minutes; -1 for no limit."""
milliseconds = _duration("ms", "s")
"""Milliseconds; a number without a unit has seconds."""


UNITS: Mapping[Callable[[str], object], str] = {
    size: "Bytes, or 10K, 10M, 16G; -1 = no limit.",
    megabytes: "Bytes, or 10M, 16G, 3T; -1 = no limit.",
    seconds: "Seconds, or 5m, 3h, 2d.",
    minutes: "Minutes, or 3h, 2d, 1w; -1 = no limit.",
    milliseconds: "Seconds, or 100ms, 5m, 3h.",
}
"""What an option of these takes."""


def moment(text: str) -> int:
    """A time in milliseconds since the epoch, or as ISO 8601 with its offset."""
    if text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidConfiguration(
            f"{text!r} is not a time: write ms since the epoch, or 2026-01-31T12:00:00Z"
        ) from None
    return round(found.timestamp() * 1000)


def position(text: str) -> object:
    """A place in a topic as the admin takes it: earliest, latest, or a message id."""
    return text if text in ("earliest", "latest") else message_id(text)


def message_id(text: str) -> dict[str, int]:
    """`ledger:entry`, also with more numbers behind them."""
    parts = text.split(":")
    if len(parts) < 2 or not all(part.removeprefix("-").isdigit() for part in parts):
        raise InvalidConfiguration(f"{text!r} is not a message id: write LEDGER:ENTRY, earliest or latest")
    return {"ledgerId": int(parts[0]), "entryId": int(parts[1])}


def choice(*words: str) -> Callable[[str], str]:
    """One of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise InvalidConfiguration(f"{text!r} is none of {', '.join(words)}")
        return text

    return read


def pairs(text: str) -> dict[str, str]:
    """`name=value`, several with commas."""
    found: dict[str, str] = {}
    for pair in text.split(","):
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise InvalidConfiguration(f"{pair!r} is not a property: write NAME=VALUE")
        found[name] = value
    return found


def json_value(text: str) -> object:
    """Any value, as JSON."""
    try:
        return cast("object", json.loads(text))
    except ValueError as error:
        raise InvalidConfiguration(f"{text[:40]!r} is no JSON: {error}") from None


def json_file(text: str) -> object:
    """The JSON in a file. Raises OSError, too."""
    try:
        return cast("object", json.loads(Path(text).read_bytes()))
    except ValueError as error:
        raise InvalidConfiguration(f"{text} holds no JSON: {error}") from None
