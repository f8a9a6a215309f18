"""Answers as tables that fit a terminal, or as JSON.

A list of names is one name a line. An object is a table of its values; objects of objects, and lists of objects, are
tables of their own below it. A `Table` chooses and orders what is shown; `--json` shows everything.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from ...protocol.plain_values import is_list, is_text_map

WIDTH_WITHOUT_TERMINAL = 200


@dataclass(frozen=True)
class Table:
    """What is shown of an answer. Nothing named shows all."""

    values: Sequence[str] = ()
    """Single values, in this order."""
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """By the name of an inner object or list: its columns."""


ALL = Table()


def show_json(value: object) -> None:
    """As JSON; nothing for an answer without content."""
    if value is not None:
        print(json.dumps(value, indent=2, ensure_ascii=False))


def show(value: object, table: Table | None) -> None:
    """For people; nothing for an answer without content."""
    if value is None:
        return
    if is_text_map(value):
        _show_object(value, table or ALL)
    elif is_list(value) and value and all(is_text_map(item) for item in value):
        _print(_rows("", [(None, cast("Mapping[str, object]", item)) for item in value], ()))
    elif is_list(value):
        for item in value:
            print(_text(item))
    else:
        print(_text(value))


def _show_object(value: Mapping[str, object], table: Table) -> None:
    names = [name for name in table.values if name in value] or [name for name in value if name not in table.parts]
    plain = {name: value[name] for name in names if not _is_part(value[name])}
    if plain:
        grid = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0))
        for name, item in plain.items():
            grid.add_row(escape(name), escape(_text(item)))
        _print(grid)
    chosen = table.parts or {name: () for name in value if _is_part(value[name])}
    for name, columns in chosen.items():
        rows = _rows_of(value.get(name))
        if rows:
            _print(_rows(name, rows, columns))


def _is_part(value: object) -> bool:
    return bool(_rows_of(value))


def _rows_of(value: object) -> list[tuple[str | None, Mapping[str, object]]]:
    """The rows of an inner table; empty for what is shown as a single value."""
    if is_text_map(value) and any(value.values()) and all(is_text_map(item) for item in value.values()):
        return [(name, cast("Mapping[str, object]", item)) for name, item in value.items()]
    if is_list(value) and value and all(is_text_map(item) for item in value):
        return [(None, cast("Mapping[str, object]", item)) for item in value]
    return []


def _rows(title: str, rows: Sequence[tuple[str | None, Mapping[str, object]]], columns: Sequence[str]) -> RichTable:
    names = list(columns) or list(dict.fromkeys(name for _, row in rows for name in row))
    grid = RichTable(title=escape(title) or None, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    named = any(name is not None for name, _ in rows)
    if named:
        grid.add_column("name", overflow="fold")
    for name in names:
        numbers = all(isinstance(row.get(name), int | float) for _, row in rows)
        grid.add_column(escape(name), justify="right" if numbers else "left", overflow="fold")
    for name, row in rows:
        cells = [escape(_text(row.get(column))) for column in names]
        grid.add_row(*([escape(name or "")] if named else []), *cells)
    return grid


def _print(table: RichTable) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_WITHOUT_TERMINAL)
    console.print(table)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, str):
        return value
    if is_list(value) and not any(is_text_map(item) or is_list(item) for item in value):
        return _joined(value)
    return json.dumps(value, ensure_ascii=False)


def _joined(items: Iterable[object]) -> str:
    return ", ".join(_text(item) for item in items) or "-"
