"""How far a bulk read has come, shown on a terminal and nowhere else."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ReadProgress:
    """A bar on standard error while the block runs. `shown` None means: if standard error is a terminal."""

    def __init__(self, description: str, entries: int, shown: bool | None = None) -> None:
        self.rows = 0
        self._description = description
        self._entries = entries
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed:,.0f}/{task.total:,.0f} entries, {task.fields[rows]:,} rows"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._description, total=self._entries, rows=0)
        return self

    def advance(self, entries: int, rows: int) -> None:
        """So many more entries were read, and gave so many rows."""
        self.rows += rows
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, advance=entries, rows=self.rows)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
