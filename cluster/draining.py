"""`magnetar scale`, `drain` and `undrain`: a change of what should run, and a bar for each member that drains."""

from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ..protocol.cluster_status import DesiredView, DrainView
from ..protocol.names import ROLE_BROKER
from .handle import Cluster
from .terminal.failures import clear_errors


def change_members(
    console: Console, data_directory: Path, change: Callable[[Cluster], DesiredView], *, wait: bool
) -> None:
    """Make the change on the running cluster, say what should run now, and wait until it does."""
    from .ray_cluster import find_on_ray

    with clear_errors():
        cluster = find_on_ray(data_directory)
        desired = change(cluster)
        for line in described(desired):
            console.print(line, highlight=False, soft_wrap=True)
        if wait:
            before = desired.get("left_over", {})
            for bookie, reason in wait_drained(console, cluster).items():
                if before.get(bookie) != reason:
                    console.print(f"[yellow]left over: {bookie}: {escape(reason)}[/yellow]", soft_wrap=True)
            console.print("done: everything that should run does", highlight=False)


def described(desired: DesiredView) -> list[str]:
    """What should run, as lines."""
    draining = desired["draining"]
    lines = [
        f"brokers    {', '.join(one for one in desired['brokers'] if one not in draining)}",
        f"bookies    {', '.join(one for one in desired['bookies'] if one not in draining)}",
    ]
    if draining:
        lines.append(f"draining   {', '.join(draining)}")
    return lines


def wait_drained(console: Console, cluster: Cluster) -> dict[str, str]:
    """Show how far each member that drains has come, until all have ended. Returns what is left over."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        bars = _Bars(progress)
        return cluster.wait_drained(on_progress=bars.show)


class _Bars:
    """One bar for each member that drains."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def show(self, draining: Mapping[str, DrainView]) -> None:
        for member, view in draining.items():
            if member not in self._tasks:
                self._tasks[member] = self._progress.add_task(member, total=None, left="")
            total = view["most"] if view["most"] > 0 else None
            done = view["most"] - view["left"] if total is not None else 0
            self._progress.update(self._tasks[member], total=total, completed=done, left=left_of(member, view))
        for member in [member for member in self._tasks if member not in draining]:
            self._progress.update(self._tasks.pop(member), total=1, completed=1, left="ended")


def left_of(member: str, view: DrainView) -> str:
    """What a member still has, in words."""
    if view["left"] < 0:
        return "counting"
    what = "topics" if member.startswith(f"{ROLE_BROKER}-") else "ledgers"
    return f"{view['left']} {what} left"
