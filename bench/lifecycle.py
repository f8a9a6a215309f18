"""How long `magnetar start --detach` and `magnetar stop` take, as an operator types them: 3 bookies, 2 brokers, admin.

The anchor is Ray alone, measured in turns with ours: `ray start --head`, as many empty detached actors as the cluster
has actors, and SIGKILL for these processes. Both begin without any Ray.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import Report, Row

from magnetar.cluster import processes
from magnetar.cluster.ports import free_ports

ROUNDS = 3
START_TARGET_S = 6.0
STOP_TARGET_S = 4.0
TIMEOUT_S = 180.0
MARK = "MAGNETAR_BENCH_RAY"
MAGNETAR = [sys.executable, "-P", "-m", "magnetar.cluster.command_line"]
ACTORS = 7
EMPTY_ACTORS = f"""
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
@ray.remote(num_cpus=0, lifetime="detached")
class Empty:
    def answer(self):
        return 1
actors = [Empty.options(name="empty-" + str(number)).remote() for number in range({ACTORS})]
ray.get([actor.answer.remote() for actor in actors])
"""


def run(directory: Path, report: Report) -> None:
    """Both rows."""
    starts: list[float] = []
    stops: list[float] = []
    bare_starts: list[float] = []
    bare_stops: list[float] = []
    for number in range(ROUNDS):
        started, stopped = _ours(directory / f"lifecycle-{number}")
        starts.append(started)
        stops.append(stopped)
        started, stopped = _bare_ray()
        bare_starts.append(started)
        bare_stops.append(stopped)
    report.limits["ray start and as many actors, s"] = statistics.median(bare_starts)
    report.limits["end of ray, s"] = statistics.median(bare_stops)
    for name, figures, target, bare in (
        ("`magnetar start --detach`", starts, START_TARGET_S, bare_starts),
        ("`magnetar stop`", stops, STOP_TARGET_S, bare_stops),
    ):
        note = f"median of {ROUNDS}; Ray and {ACTORS} empty actors {statistics.median(bare):.1f} s"
        samples = [round(figure, 2) for figure in figures]
        report.rows.append(Row(name, round(statistics.median(figures), 2), "lower", target, samples, "s", note))


def _ours(directory: Path) -> tuple[float, float]:
    environment = {**_without_ray(), "MAGNETAR_DATA_DIR": str(directory)}
    options = ("--detach", "--port", "0", "--admin-port", "0")
    try:
        started = _timed([*MAGNETAR, "start", *options], environment)
    finally:
        stopped = _timed([*MAGNETAR, "stop"], environment)
    return started, stopped


def _bare_ray() -> tuple[float, float]:
    (port,) = free_ports("127.0.0.1", 1)
    # Short, because of the sockets below it.
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        environment = {**_without_ray(), "RAY_AUTH_MODE": "disabled", MARK: directory}
        head = ("--head", f"--port={port}", f"--temp-dir={directory}", "--include-dashboard=false", "--no-monitor")
        try:
            started = _timed([sys.executable, "-m", "ray.scripts.scripts", "start", *head], environment)
            address = (Path(directory) / "ray_current_cluster").read_text().strip()
            started += _timed([sys.executable, "-c", EMPTY_ACTORS, address], environment)
        finally:
            begin = time.monotonic()
            left = processes.kill(processes.with_environment(MARK, directory), TIMEOUT_S)
            stopped = time.monotonic() - begin
    if left:
        raise RuntimeError(f"these processes of Ray do not end: {left}")
    return started, stopped


def _timed(command: list[str], environment: dict[str, str]) -> float:
    begin = time.monotonic()
    subprocess.run(command, env=environment, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def _without_ray() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "RAY_USAGE_STATS_ENABLED": "0"}
