"""`magnetar status` and `magnetar settings` as tables."""

import dataclasses

from rich.console import Console
from rich.table import Table

from ..runtime.settings import Settings


def print_settings(console: Console) -> None:
    """All settings: outside name, default, what it means."""
    table = Table(title="Settings (file, MAGNETAR_<name>, --set)", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("default", justify="right")
    table.add_column("meaning")
    for item in dataclasses.fields(Settings):
        default = str(item.default).lower() if isinstance(item.default, bool) else str(item.default)
        table.add_row(item.metadata["name"], default, item.metadata["doc"])
    console.print(table)
