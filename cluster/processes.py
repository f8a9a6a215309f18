"""Processes of this machine, by Linux's /proc: recorded so that a reused id is not mistaken, and ended with what they
started.

`magnetar stop` ends what `magnetar start` wrote down, and the descendants of that. A process id alone is no name,
because ids are reused; with its start time it is one. What a command line contains says nothing: a user may look at
the same files.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

POLL_INTERVAL_S = 0.02


class Process(NamedTuple):
    """A process: its id and its start time in clock ticks since boot."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs; a zombie does not."""
        return current(self.pid) == self


def current(pid: int) -> Process | None:
    """The process that has this id now."""
    found = _stat(pid)
    return None if found is None else found[0]


def with_environment(name: str, value: str) -> list[Process]:
    """All processes, except this one, that were started with `name` set to `value`, or inherited it."""
    wanted = f"{name}={value}".encode()
    found: list[Process] = []
    for pid in _all_pids():
        try:
            matches = wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended, or belongs to another user
        process = current(pid) if matches else None
        if process is not None and pid != os.getpid():
            found.append(process)
    return sorted(found)


def descendants(processes: Iterable[Process]) -> list[Process]:
    """Those of `processes` that still run, and everything that they have started and that runs, except this process."""
    children: dict[int, list[Process]] = {}
    for pid in _all_pids():
        stat = _stat(pid)
        if stat is not None:
            children.setdefault(stat[1], []).append(stat[0])
    return list(_descend([process for process in processes if process.alive], children))


def names(processes: Iterable[Process]) -> list[str]:
    """What the kernel calls each of `processes` that still runs: the first 15 bytes of its program's name."""
    found: list[str] = []
    for process in processes:
        try:
            found.append(Path(f"/proc/{process.pid}/comm").read_text().strip())
        except OSError:
            continue
    return found


def kill(processes: Iterable[Process], timeout_s: float) -> list[Process]:
    """SIGKILL to `processes` and their descendants. Returns those that still run after `timeout_s`.

    All are stopped first, so that none of them can start another one meanwhile.
    """
    roots = list(processes)
    stopped: dict[Process, None] = {}
    while fresh := [process for process in descendants(roots) if process not in stopped]:
        _signal(fresh, signal.SIGSTOP)
        stopped.update(dict.fromkeys(fresh))
    _signal(stopped, signal.SIGKILL)
    return _wait(list(stopped), timeout_s)


def _descend(roots: list[Process], children: Mapping[int, list[Process]]) -> Iterator[Process]:
    seen: set[Process] = set()
    left = roots
    while left:
        process = left.pop()
        if process in seen or process.pid == os.getpid():
            continue
        seen.add(process)
        yield process
        left.extend(children.get(process.pid, ()))


def _signal(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        if process.alive:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue


def _wait(processes: list[Process], timeout_s: float) -> list[Process]:
    """Those that still run after the time-out. /proc has no event for processes that are not our children."""
    deadline = time.monotonic() + timeout_s
    while processes := [process for process in processes if process.alive]:
        if time.monotonic() >= deadline:
            break
        time.sleep(POLL_INTERVAL_S)
    return processes


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _stat(pid: int) -> tuple[Process, int] | None:
    """A process that runs, and its parent's id."""
    try:
        # The second field is the command in parentheses, which may itself contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, parent, started = fields[0], int(fields[1]), int(fields[19])
    return None if state in "ZX" else (Process(pid, started), parent)
