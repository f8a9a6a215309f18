"""Finding and ending processes by what /proc says."""

import os
import subprocess
import sys

from magnetar.cluster import processes
from magnetar.cluster.processes import Process


def sleeper(marker: str, *, stubborn: bool = False) -> subprocess.Popen[str]:
    code = "import signal, time; " + ("signal.signal(signal.SIGTERM, signal.SIG_IGN); " if stubborn else "")
    code += "print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-S", "-c", code, marker], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_finds_by_argument_and_ends_politely() -> None:
    marker = f"marker-{os.getpid()}-polite"
    with sleeper(marker) as child:
        found = processes.with_argument(marker)
        assert [process.pid for process in found] == [child.pid]
        assert found[0].alive
        processes.end(found, 10)
        assert not found[0].alive
        assert child.wait(10) == -15
    assert processes.with_argument(marker) == []


def test_kills_who_ignores_the_request() -> None:
    marker = f"marker-{os.getpid()}-stubborn"
    with sleeper(marker, stubborn=True) as child:
        processes.end(processes.with_argument(marker), 0.2)
        assert child.wait(10) == -9


def test_a_reused_id_is_another_process() -> None:
    marker = f"marker-{os.getpid()}-reused"
    with sleeper(marker) as child:
        (found,) = processes.with_argument(marker)
        stranger = Process(found.pid, found.started - 1)
        assert not stranger.alive
        processes.end([stranger], 0.2)
        assert found.alive
        child.kill()


def test_nobody_has_an_impossible_id() -> None:
    assert processes.current(2**30) is None
    assert processes.current(os.getpid()) is not None
