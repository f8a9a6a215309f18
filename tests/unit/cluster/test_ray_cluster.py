"""On which Ray a command looks for the cluster of a data directory, and what a stop does when it does not answer."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from magnetar.cluster import processes, ray_cluster, ray_session
from magnetar.cluster.directory import ClusterDirectory, SessionRecord
from magnetar.protocol.errors import ClusterError


class Connected(Exception):
    """Raised in place of a connection to Ray."""


@pytest.mark.parametrize(
    ("kind", "given", "chosen"),
    [
        ("joined", "10.0.0.2:6379", "10.0.0.2:6379"),
        ("joined", None, "10.0.0.1:6379"),
        ("joined", "local", "10.0.0.1:6379"),
        ("detached", "10.0.0.2:6379", "10.0.0.1:6379"),
        (None, "10.0.0.2:6379", "10.0.0.2:6379"),
    ],
)
def test_a_ray_that_was_only_joined_is_looked_for_at_ray_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str | None, given: str | None, chosen: str
) -> None:
    """The head's address changes when its pod is replaced. A Ray of ours is where it was started."""

    def connect(address: str, *, token_file: str = "") -> None:
        assert token_file == ("/data/token" if kind == "detached" else "")
        raise Connected(address)

    monkeypatch.setattr(ray_session, "connect_to_ray", connect)
    monkeypatch.setattr(ray_session.RaySession, "lost_carriers", [])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    if kind is not None:
        session: SessionRecord = {
            "kind": kind,  # type: ignore[typeddict-item]
            "address": "10.0.0.1:6379",
            "temporary_directory": "",
            "processes": [],
            "token_file": "/data/token" if kind == "detached" else "",
        }
        ClusterDirectory(tmp_path).save_run({"cluster_id": "c", "ray": session})
    with pytest.raises(Connected, match=chosen):
        ray_cluster.find_on_ray(tmp_path)


def test_without_a_run_and_ray_address_no_cluster_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ClusterError, match="RAY_ADDRESS is not set"):
        ray_cluster.find_on_ray(tmp_path)


def test_connect_says_where_the_cluster_runs_when_the_program_has_joined_another_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing() -> None:
        raise NONE

    session: SessionRecord = {
        "kind": "detached",
        "address": "10.0.0.1:6379",
        "temporary_directory": "",
        "processes": [],
    }
    ClusterDirectory(tmp_path).save_run({"cluster_id": "c", "ray": session})
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))  # type: ignore[arg-type]
    monkeypatch.setattr(ray_cluster, "_coordinator", nothing)
    monkeypatch.setattr(ray_cluster, "gcs_address", lambda: "10.0.0.9:6379")
    with pytest.raises(ClusterError, match=r"runs on the Ray at 10\.0\.0\.1:6379: do not call `ray\.init\(\)` before"):
        ray_cluster.find_on_ray(tmp_path)


# ---- Stopping ----

AWAY = ray_cluster.CoordinatorAway("the coordinator does not answer")
NONE = ClusterError("no Magnetar cluster runs on this Ray")


class Stopping:
    """What a stop does on a Ray. `answers` are those of `find_on_ray`, the last one again and again."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> None:
        self.directory = directory
        self.now = 0.0
        self.asked = 0
        self.did: list[str] = []
        self.told: list[str] = []
        self._answers = answers
        monkeypatch.setattr(ray_cluster, "find_on_ray", self._find)
        monkeypatch.setattr(ray_cluster, "_stop_actors", lambda: self.did.append("actors killed"))
        self.lost: list[str] = []
        monkeypatch.setattr(ray_session.RaySession, "lost_carriers", property(lambda session: self.lost))
        monkeypatch.setattr(ray_session, "kill", self._kill)
        monkeypatch.setattr(ray_cluster, "gcs_address", lambda: "10.0.0.1:6379")
        monkeypatch.setattr(ray_cluster, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep))

    def _sleep(self, pause_s: float) -> None:
        self.now += pause_s

    def _find(self, data_directory: Path) -> "Stopping":
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if answer is not None:
            raise answer
        return self

    def _kill(self, session: ray_session.RaySession) -> int:
        self.did.append(f"{session.kind} killed")
        return 3

    cluster_id = "c"

    def __enter__(self) -> "Stopping":
        return self

    def __exit__(self, *unused: object) -> None:
        self.did.append("stopped")

    def record(self, kind: str, address: str = "10.0.0.1:6379") -> None:
        session = {"kind": kind, "address": address, "temporary_directory": "", "processes": []}
        ClusterDirectory(self.directory).save_run({"cluster_id": "c", "ray": session})  # type: ignore[typeddict-item]

    @property
    def has_record(self) -> bool:
        return ClusterDirectory(self.directory).load_run() is not None

    def stop(self) -> str:
        return ray_cluster.stop_on_ray(self.directory, self.told.append)


StoppingOf = Callable[..., Stopping]


@pytest.fixture
def stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoppingOf:
    """`stopping(*answers)` is a `Stopping`."""
    return lambda *answers: Stopping(tmp_path, monkeypatch, *answers)


@pytest.mark.parametrize("kind", ["joined", "detached", None])
def test_a_stop_waits_for_a_coordinator_that_is_being_restarted(stopping: StoppingOf, kind: str | None) -> None:
    found = stopping(AWAY, AWAY, AWAY, None)
    if kind is not None:
        found.record(kind)
    assert found.stop().startswith("stopped cluster c")
    assert found.did == ["stopped"] and found.asked == 4
    assert len(found.told) == 3 and "waiting for the coordinator" in found.told[0]


def test_a_stop_kills_what_is_left_when_the_coordinator_stays_away(stopping: StoppingOf) -> None:
    found = stopping(AWAY)
    found.record("joined")
    assert "did not answer" in found.stop() and not found.has_record
    assert found.did == ["actors killed"]
    assert ray_cluster.COORDINATOR_WAIT_S < found.now < ray_cluster.COORDINATOR_WAIT_S + 1


def test_a_stop_kills_nothing_on_another_ray_than_the_one_that_was_written_down(stopping: StoppingOf) -> None:
    found = stopping(AWAY)
    found.record("joined", "10.0.0.9:6379")
    with pytest.raises(ClusterError, match="does not answer"):
        found.stop()
    assert not found.did and found.has_record


def test_a_stop_without_a_record_raises_when_the_coordinator_stays_away(stopping: StoppingOf) -> None:
    found = stopping(AWAY)
    with pytest.raises(ClusterError, match="does not answer"):
        found.stop()
    assert not found.did and found.now > ray_cluster.COORDINATOR_WAIT_S


def test_a_stop_says_so_when_nothing_runs_on_the_ray_that_was_joined(stopping: StoppingOf) -> None:
    found = stopping(NONE)
    found.record("joined")
    assert found.stop().startswith("there was nothing left to stop: no Magnetar cluster runs")
    assert not found.did and not found.has_record and found.asked == 1


def test_a_ray_of_its_own_is_ended_at_once_when_it_does_not_answer(stopping: StoppingOf) -> None:
    found = stopping(NONE)
    found.record("detached")
    assert "were killed" in found.stop() and not found.has_record
    assert found.did == ["detached killed"] and found.asked == 1


@pytest.mark.parametrize("kind", ["detached", "local"])
def test_a_ray_of_its_own_that_lost_its_raylet_is_ended_without_a_call_to_ray(stopping: StoppingOf, kind: str) -> None:
    """Ray waits for ever for a raylet on this machine."""
    found = stopping(None)
    found.record(kind)
    found.lost = ["raylet"]
    assert found.stop().startswith("its Ray had lost its raylet, so its processes were killed: 3 of them still ran")
    assert found.did == [f"{kind} killed"] and not found.asked and not found.has_record


class Hanging:
    """A call into Ray that does not return before the end of the test."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def __call__(self, *arguments: object) -> None:
        self.over.wait(60)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    found = Hanging()
    monkeypatch.setattr(ray_cluster, "STOP_BOUND_S", 0.05)
    yield found
    found.over.set()


def test_a_stop_that_does_not_end_kills_what_was_written_down(
    stopping: StoppingOf, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stopping(None)
    found.record("detached")
    monkeypatch.setattr(ray_cluster, "find_on_ray", hanging)
    assert found.stop().startswith("it did not stop within 0 s, so its processes were killed: 3")
    assert found.did == ["detached killed"] and not found.has_record


@pytest.mark.parametrize("kind", ["joined", None])
def test_a_stop_on_the_users_ray_that_does_not_end_says_so(
    stopping: StoppingOf, kind: str | None, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stopping(None)
    if kind is not None:
        found.record(kind)
    monkeypatch.setattr(ray_cluster, "find_on_ray", hanging)
    with pytest.raises(ClusterError, match="Its Ray was not started by Magnetar, and goes on: try again"):
        found.stop()
    assert not found.did


# ---- Starting where another run left something ----


class Left:
    """What the last run left: a session with one live process, and what was ended of it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, lost: list[str], others: list[str]) -> None:
        self.directory = ClusterDirectory(directory)
        self.killed = 0
        own = processes.current(os.getpid())
        assert own is not None
        session = ray_session.RaySession("detached", "10.0.0.1:6379", processes=(own,))
        self.directory.save_run({"cluster_id": "c", "ray": session.to_record()})
        monkeypatch.setattr(ray_session.RaySession, "lost_carriers", lost)
        monkeypatch.setattr(ray_session, "other_nodes", lambda session: others)
        monkeypatch.setattr(ray_session, "kill", self._kill)

    def _kill(self, session: ray_session.RaySession) -> int:
        self.killed += 1
        return 2


@pytest.mark.parametrize("lost", [["raylet"], ["gcs_server"], ["gcs_server", "raylet"]])
def test_a_start_ends_what_is_left_of_a_broken_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    left = Left(tmp_path, monkeypatch, lost, [])
    ray_cluster._clear_leftovers(left.directory)
    assert left.killed == 1 and left.directory.load_run() is None
    assert f"had lost its Ray ({' and '.join(lost)}): 2 processes that were left of it were ended" in caplog.text


def test_a_start_refuses_where_a_cluster_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Left(tmp_path, monkeypatch, [], [])
    with pytest.raises(ClusterError, match="already runs"):
        ray_cluster._clear_leftovers(left.directory)
    assert not left.killed and left.directory.load_run() is not None


def test_a_start_leaves_a_broken_ray_with_other_nodes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Left(tmp_path, monkeypatch, ["raylet"], ["10.0.0.2"])
    with pytest.raises(ClusterError, match=r"lost its raylet here, but goes on at 10\.0\.0\.2: `magnetar stop` ends"):
        ray_cluster._clear_leftovers(left.directory)
    assert not left.killed and left.directory.load_run() is not None
