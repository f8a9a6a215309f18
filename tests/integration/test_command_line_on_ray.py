"""`magnetar start --detach`, `status`, `stop` as an operator types them, with a Ray of its own each time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.cluster import processes
from magnetar.cluster.ray_head import MARK
from magnetar.cluster.ray_session import RaySession

COMMAND = [sys.executable, "-P", "-m", "magnetar.cluster.command_line"]
TIMEOUT_S = 180


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No Ray is known but the one that is started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "MAGNETAR_DATA_DIR": str(tmp_path / "data"), "RAY_USAGE_STATS_ENABLED": "0"}


def magnetar(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.fixture
def detached(environment: dict[str, str]) -> Iterator[dict[str, object]]:
    """The record of a detached cluster of two bookies."""
    started = magnetar(
        environment, "start", "--detach", "--bookies", "2", "--brokers", "1", "--ensemble", "2/2/2", "--port", "0",
        "--admin-port", "0",
    )  # fmt: skip
    try:
        assert started.returncode == 0, started.stderr
        assert "broker-1" in started.stdout
        yield json.loads((Path(environment["MAGNETAR_DATA_DIR"]) / "run.json").read_text())
    finally:
        magnetar(environment, "stop")


def test_detached_cluster_outlives_its_command_and_ends_whole(
    detached: dict[str, dict[str, str]], environment: dict[str, str]
) -> None:
    status = magnetar(environment, "status", "--json")
    assert status.returncode == 0, status.stderr
    found = json.loads(status.stdout)
    client = pulsar.Client(found["service_url"], logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    client.create_producer("detached").send(b"hello")
    client.close()

    sent = magnetar(environment, "produce", "detached", "-m", "found without a URL")
    assert (sent.returncode, sent.stdout) == (0, "1 messages successfully produced\n"), sent.stderr
    counted = magnetar(environment, "admin", "topics", "stats", "detached", "--json")
    assert json.loads(counted.stdout)["msgInCounter"] == 2, counted.stderr

    again = magnetar(environment, "start", "--detach", "--port", "0", "--admin-port", "0")
    assert again.returncode == 1
    assert "already runs" in again.stderr

    session = RaySession.from_record(detached["ray"])
    directory = session.temporary_directory
    everything = {*processes.with_environment(MARK, directory), *processes.descendants(session.processes)}
    assert everything == set(session.processes), "all of its Ray is written down"
    log = f"{directory}/session_latest/logs/raylet.out"
    with subprocess.Popen(["tail", "-f", log], stdout=subprocess.DEVNULL) as bystander:
        stopped = magnetar(environment, "stop")
        assert bystander.poll() is None, "who looks at Ray's files is left alone"
        bystander.kill()
    assert stopped.returncode == 0, stopped.stderr
    assert found["cluster_id"] in stopped.stdout
    logs = Path(found["log_directory"])
    assert f"logs are in {logs}" in stopped.stdout.replace("\n", " ")
    assert "serves" in (logs / "bookie-1.log").read_text()
    assert {"admin.log", "broker-1.log", "coordinator.log"} <= {path.name for path in logs.iterdir()}
    assert not any(process.alive for process in everything), "its Ray is gone"
    assert not Path(directory).exists()

    gone = magnetar(environment, "status")
    assert gone.returncode == 1
    assert "no running cluster" in gone.stderr


def test_ctrl_c_stops_a_foreground_cluster_cleanly(environment: dict[str, str]) -> None:
    options = ("--bookies", "2", "--brokers", "1", "--ensemble", "2/2/2", "--port", "0", "--admin-port", "0")
    command = [*COMMAND, "start", *options]
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell without job control starts what it puts into the background, these tests too, with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if "Ctrl-C" in line:
                    break
            assert "Ctrl-C" in "".join(lines[-1:]), "".join(lines)
            status = magnetar(environment, "status")
            assert status.returncode == 0, status.stderr
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            rest = process.stdout.read()
            assert process.wait(60) == 0, rest
            assert time.monotonic() - begin < 60
            assert "Traceback" not in rest
        finally:
            process.kill()
    assert not (Path(environment["MAGNETAR_DATA_DIR"]) / "run.json").exists()
