"""`magnetar scale`, `drain` and `undrain`: a change of what should run, and a bar for each member that drains.

`magnetar leave`: a Ray node that is about to end gives up what runs on it.

The command tells Ray that it drains this node. The coordinator sees that within a second (`processes.ray_machines`):
its brokers give their topics to others and move, and its bookies get no new ledgers. `leave` waits for the brokers.
Data of bookies stays where it is: their ledgers have copies elsewhere, and the node may come back.

`ray start --block` does the same when it gets SIGTERM, but for the waiting: it ends after 30 s, or when nothing runs.

`magnetar restart`: processes are restarted one after the other, with a line for each.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.status import Status

from ..protocol.cluster_status import DesiredView, DrainView, ProcessStatus, RestartView
from ..protocol.errors import ClusterError
from ..protocol.names import ROLE_BOOKIE, ROLE_BROKER
from ..runtime.ray_calls import drain_own_node, own_node_id
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


LEAVE_S = 45.0
POLL_S = 0.2
REASON = "magnetar leave: the node is about to end"


def leave_node(cluster: Cluster, wait_s: float = LEAVE_S) -> list[str]:
    """Have Ray drain this node, and wait until its brokers and its admin run elsewhere.

    Returns those that still run here after `wait_s`. Raises ClusterError when Ray refuses.
    """
    node = own_node_id()
    problem = drain_own_node(REASON, wait_s)
    if problem:
        raise ClusterError(f"Ray does not drain this node: {problem}")
    deadline = time.monotonic() + wait_s
    while left := moving_from(cluster.status()["processes"], node):
        if time.monotonic() > deadline:
            return left
        time.sleep(POLL_S)
    return []


def moving_from(processes: Sequence[ProcessStatus], ray_node_id: str) -> list[str]:
    """The members on that node which can run elsewhere."""
    return [one["node_id"] for one in processes if one["ray_node_id"] == ray_node_id and one["role"] != ROLE_BOOKIE]


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
