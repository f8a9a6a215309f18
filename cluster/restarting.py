"""`magnetar restart`: processes are restarted one after the other, with a line for each."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status

from ..protocol.cluster_status import RestartView
from .terminal.failures import clear_errors


def restart_processes(console: Console, data_directory: Path, processes: Sequence[str]) -> None:
    """Restart these processes of the running cluster, all if none is named, and say how long each took."""
    from .ray_cluster import find_on_ray

    with clear_errors():
        cluster = find_on_ray(data_directory)
        with console.status("looking at the cluster …") as spinner:
            found = cluster.restart(processes, on_progress=_Lines(console, spinner).show)
        console.print(f"done: {len(found)} processes were restarted", highlight=False)


class _Lines:
    """A line for each process that was restarted, and what is under way."""

    def __init__(self, console: Console, spinner: Status) -> None:
        self._console = console
        self._spinner = spinner

    def show(self, process: str, view: RestartView | None) -> None:
        if view is None:
            self._spinner.update(f"restarting {process} …")
        else:
            self._console.print(line_of(view), highlight=False, soft_wrap=True)


def line_of(view: RestartView) -> str:
    """How the restart of a process went."""
    return (
        f"{view['process']} restarted: away for {view['away_s']:.1f} s, waited {view['waited_s']:.1f} s before and "
        f"{view['settled_s']:.1f} s after"
    )
