"""Processes of this machine, by Linux's /proc: found by an argument, named so that a reused id is not mistaken, ended.

`magnetar stop` ends only what `magnetar start` wrote down. A process id alone is no name, because ids are reused;
with its start time it is one.
"""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

POLL_INTERVAL_S = 0.05


class Process(NamedTuple):
    """A process: its id and its start time in clock ticks since boot."""

    pid: int
    started: int

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs; a zombie does not."""
        return _stat(self.pid) == self


def current(pid: int) -> Process | None:
    """The process that has this id now."""
    return _stat(pid)


def with_argument(text: str) -> list[Process]:
    """All processes, except this one, that have `text` somewhere in their command line."""
    wanted = text.encode()
    found: list[Process] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            matches = wanted in (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended, or belongs to somebody else
        process = _stat(int(entry.name)) if matches else None
        if process is not None:
            found.append(process)
    return sorted(found)


def end(processes: Iterable[Process], grace_s: float) -> None:
    """SIGTERM to all that still run, SIGKILL to those that do `grace_s` later; returns when none is left."""
    left = [process for process in processes if process.alive]
    _signal(left, signal.SIGTERM)
    left = _wait(left, grace_s)
    _signal(left, signal.SIGKILL)
    _wait(left, grace_s)


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


def _stat(pid: int) -> Process | None:
    try:
        # The second field is the command in parentheses, which may itself contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    state, started = fields[0], int(fields[19])
    return None if state in "ZX" else Process(pid, started)
