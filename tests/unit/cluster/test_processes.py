"""Recording and ending processes by what /proc says."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from magnetar.cluster import processes
from magnetar.cluster.processes import Process

MARK = "MAGNETAR_TEST_PROCESS"
SLEEPER = "import time; print('ready', flush=True); time.sleep(60)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER
PARENT = (
    f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {SLEEPER!r}]); import time; time.sleep(60)"
)
FORKING = (
    "import os, time; print('ready', flush=True)\n"
    "while True:\n    if os.fork() == 0: time.sleep(60)\n    time.sleep(0.005)"
)


@contextmanager
def running(code: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process that has said that it is ready."""
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.wait(10)
        child.stdout.close()


def found(child: subprocess.Popen[str]) -> Process:
    process = processes.current(child.pid)
    assert process is not None
    return process


@pytest.mark.parametrize("code", [SLEEPER, STUBBORN], ids=["polite", "ignores-sigterm"])
def test_a_recorded_process_is_killed(code: str) -> None:
    with running(code) as child:
        recorded = found(child)
        assert processes.kill([recorded], 10) == []
        assert not recorded.alive
        assert child.wait(10) == -signal.SIGKILL


def test_what_a_recorded_process_has_started_is_killed_too() -> None:
    with running(PARENT) as parent:
        family = processes.descendants([found(parent)])
        assert len(family) == 2
        assert processes.kill([found(parent)], 10) == []
        assert not any(process.alive for process in family)


def test_a_process_that_keeps_forking_leaves_none_behind() -> None:
    mark = f"forking-{os.getpid()}"
    with running(FORKING, **{MARK: mark}) as child:
        processes.kill([found(child)], 10)
        assert processes.with_environment(MARK, mark) == []


def test_a_process_with_the_same_command_line_is_left_alone() -> None:
    with running(SLEEPER, "/tmp/of-both") as ours, running(SLEEPER, "/tmp/of-both") as bystander:
        assert processes.kill([found(ours)], 10) == []
        assert found(bystander).alive


def test_a_reused_id_is_another_process() -> None:
    with running(SLEEPER) as child:
        recorded = found(child)
        stranger = Process(recorded.pid, recorded.started - 1)
        assert not stranger.alive
        assert processes.kill([stranger], 0.2) == []
        assert recorded.alive


def test_an_environment_is_matched_whole_and_inherited() -> None:
    mark = f"environment-{os.getpid()}"
    with running(PARENT, **{MARK: mark}) as parent, running(SLEEPER, **{MARK: mark + "x"}) as other:
        family = processes.descendants([found(parent)])
        assert processes.with_environment(MARK, mark) == sorted(family)
        assert found(other) not in family
        processes.kill(family, 10)


def test_this_process_is_never_among_the_killed() -> None:
    parent = processes.current(os.getppid())
    assert parent is not None
    assert os.getpid() not in [process.pid for process in processes.descendants([parent])]


def test_nobody_has_an_impossible_id() -> None:
    assert processes.current(2**30) is None
    assert processes.current(os.getpid()) is not None
