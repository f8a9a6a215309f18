"""`magnetar settings`: what can be set, and what the running cluster was started with.

In a terminal each setting takes a few lines that fit its width. Elsewhere it takes one line with tabs, for `grep` and
`cut`: name, value, unit, origin, meaning.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, TypedDict

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from ..protocol.errors import ClusterError
from ..protocol.plain_values import is_text_map
from ..runtime.settings.declarations import Settings
from ..runtime.settings.text import Field, unit_of
from .admin.session import AdminSession
from .planning import as_text
from .terminal.addresses import Finder, admin_url_of
from .terminal.failures import clear_errors

RUNTIME_PATH = "/admin/v2/brokers/configuration/runtime"
INDENT = 4


class SettingView(TypedDict):
    """One setting as `--json` prints it."""

    name: str
    value: object
    default: object
    unit: str
    origin: str
    meaning: str


def settings(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="List only those whose name or meaning has all these words."),
    ] = None,
    running: Annotated[
        bool, typer.Option("--running", help="Show the values of the running cluster in place of the defaults.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    admin_url: Annotated[
        str | None, typer.Option(metavar="URL", help="With --running: the admin HTTP, as http://host:port.")
    ] = None,
) -> None:
    """List all settings with their defaults, or with the values of the running cluster."""
    with clear_errors():
        if admin_url is not None and not running:
            raise ClusterError("--admin-url is only of use with --running")
        finder = context.ensure_object(Finder)
        values = running_values(finder, admin_url) if running else None
        found = views(words or (), values)
        if not found:
            raise ClusterError(f"no setting has {' and '.join(map(repr, words or ()))} in its name or meaning")
        if as_json:
            print(json.dumps(found, indent=2))
        elif sys.stdout.isatty():
            print_settings(Console(), found)
        else:
            for one in found:
                print(line(one))


def running_values(finder: Finder, given: str | None) -> dict[str, str]:
    """What the running cluster says of itself, at the admin URL that was given, if any. Raises MagnetarError."""
    admin_url, headers = admin_url_of(finder, given), finder.credential.headers(through_ray=not given)
    answer = AdminSession(admin_url, finder.tls, headers=headers).ask("GET", RUNTIME_PATH, {}, {}).value()
    if not is_text_map(answer):
        raise ClusterError(f"the admin HTTP at {admin_url} answers with no settings: is it that of Magnetar?")
    return {name: as_text(value) for name, value in answer.items()}


def views(words: Sequence[str], values: Mapping[str, str] | None) -> list[SettingView]:
    """The settings that have all words, with their defaults or with these values. A value is a text then."""
    found = [_view(item, values) for item in dataclasses.fields(Settings)]
    lowered = [word.lower() for word in words]
    found = [one for one in found if all(word in f"{one['name']} {one['meaning']}".lower() for word in lowered)]
    return sorted(found, key=lambda one: one["name"].lower())


def _view(item: Field, values: Mapping[str, str] | None) -> SettingView:
    name = str(item.metadata["name"])
    return {
        "name": name,
        # A cluster of an older release does not have all settings.
        "value": item.default if values is None else values.get(name),
        "default": item.default,
        "unit": unit_of(item),
        "origin": str(item.metadata["origin"]),
        "meaning": str(item.metadata["doc"]),
    }


def line(one: SettingView) -> str:
    """One setting in one line."""
    return "\t".join((one["name"], _shown(one["value"]), one["unit"], one["origin"], one["meaning"]))


def print_settings(console: Console, found: Sequence[SettingView]) -> None:
    """All of them for a person: name and value, then what it means."""
    for one in found:
        default = _shown(one["default"])
        changed = (
            "" if one["value"] is None or _shown(one["value"]) == default else f", by default {default or 'empty'}"
        )
        about = ", ".join(part for part in (one["unit"], one["origin"]) if part) + changed
        shown = f"[bold]{one['name']}[/bold] = {escape(_shown(one['value']))}  [dim]({escape(about)})[/dim]"
        console.print(shown, highlight=False, soft_wrap=True)
        console.print(Padding(escape(one["meaning"]), (0, 0, 0, INDENT)), highlight=False)


def _shown(value: object) -> str:
    return "" if value is None else as_text(value)
