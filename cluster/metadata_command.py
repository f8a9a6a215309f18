"""`magnetar metadata`: backup, restore and migrate."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .data_directory_option import DataDirectory
from .directory import default_data_directory
from .terminal.failures import clear_errors

console = Console()
metadata_app = typer.Typer(
    help="Back up, restore and move the metadata of a cluster.", no_args_is_help=True, rich_markup_mode=None
)


@metadata_app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write. It must not exist.")],
    data_dir: DataDirectory = None,
) -> None:
    """Write the metadata of this moment to a file. The cluster may run meanwhile."""
    from .metadata_copies import backup as make

    with clear_errors(), _shown() as progress:
        count = make(data_dir or default_data_directory(), str(file), progress.show)
    console.print(f"{count} records are in {file}", highlight=False, soft_wrap=True)


@metadata_app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `magnetar metadata backup` wrote.")],
    data_dir: DataDirectory = None,
    metadata: Annotated[
        str | None, typer.Option(metavar="URL", help="An empty PostgreSQL database, instead of SQLite.")
    ] = None,
) -> None:
    """Make a new metadata store of a backup. A store that has records is never changed."""
    from .metadata_copies import restore as make

    with clear_errors(), _shown() as progress:
        found = make(data_dir or default_data_directory(), str(file), metadata, progress.show)
    made = f"{datetime.fromtimestamp(found.head.created_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    console.print(
        f"{found.records} records of cluster {found.head.cluster_id} are restored, as of {made}.\n"
        "Now run `magnetar start` with all bookies, then `magnetar status`: it shows what is in doubt.",
        highlight=False,
        soft_wrap=True,
    )


@metadata_app.command()
def migrate(
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="An empty PostgreSQL database, or `sqlite`.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take back a move that was interrupted.")] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting, as for `start`: allowAsynchronousMetadataStandbys."
        ),
    ] = None,
    data_dir: DataDirectory = None,
) -> None:
    """Move the metadata to another database. A cluster on Ray may run meanwhile: its coordinator moves along."""
    from .metadata_copies import cancel_migration
    from .metadata_copies import migrate as move
    from .planning import load_settings, parse_settings

    if cancel == (to is not None):
        raise typer.BadParameter("give either --to or --cancel")
    directory = data_dir or default_data_directory()
    if to is None:
        with clear_errors():
            url = cancel_migration(directory).url
        console.print(f"the move to {url} is taken back: the old store counts", highlight=False, soft_wrap=True)
        return
    with clear_errors(), _shown() as progress:
        moved = move(directory, to, progress.show, load_settings(given=parse_settings(settings or [])))
    what = "the metadata" if moved.records is None else f"the metadata, {moved.records} records,"
    console.print(f"{what} is at {moved.url} now", highlight=False, soft_wrap=True)
    if moved.stays_bound:
        console.print(
            "The cluster runs on. Its coordinator stays on its machine, and has no deputy, until the next `magnetar "
            "stop` and `magnetar start`.",
            highlight=False,
            soft_wrap=True,
        )


class _Shown:
    """A progress bar; one line of it for each thing that is done."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def show(self, what: str, done: int, of: int | None) -> None:
        task = self._tasks.get(what)
        if task is None:
            task = self._tasks[what] = self._bars.add_task(what, total=of)
        self._bars.update(task, completed=done)


@contextmanager
def _shown() -> Generator[_Shown]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield _Shown(bars)
