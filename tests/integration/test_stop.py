"""`magnetar stop` on a Ray that goes on, while the coordinator is away."""

from pathlib import Path
from typing import Any

import pytest

from magnetar.cluster import ray_cluster
from magnetar.protocol.names import COORDINATOR_ID, actor_name
from magnetar.runtime.files import RealFiles
from magnetar.runtime.ray_calls import named_actors
from support.servers import ray_nodes


def cluster_actors() -> list[str]:
    return [name for name in named_actors() if name.startswith(actor_name(""))]


def test_a_coordinator_that_is_being_restarted_is_waited_for(start_smallest: Any, tmp_path: Path) -> None:
    start_smallest(tmp_path / "data")
    told: list[str] = []
    ray_nodes.kill(COORDINATOR_ID)
    done = ray_cluster.stop_on_ray(tmp_path / "data", told.append)
    assert done.startswith("stopped cluster") and told
    assert not cluster_actors() and not (tmp_path / "data" / "run.json").exists()
    with start_smallest(tmp_path / "data") as again, again.client() as client:
        client.create_producer("after").send(b"it starts again")


def test_a_start_waits_for_the_lock_of_a_process_that_is_about_to_end(
    start_smallest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_smallest(tmp_path / "data").stop()
    lock = RealFiles().lock(str(tmp_path / "data" / "coordinator" / "metadata.lock"))
    told: list[str] = []

    def release_on_first(text: str, *values: object) -> None:
        if not told:
            lock.release()
        told.append(text % values)

    monkeypatch.setattr(ray_cluster.logger, "info", release_on_first)
    with start_smallest(tmp_path / "data") as again, again.client() as client:
        client.create_producer("after").send(b"it starts again")
    assert told and "metadata.lock is locked" in told[0]


def test_the_actors_are_killed_when_the_coordinator_does_not_come_back(
    start_smallest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COORDINATOR_WAIT_S", "ANSWER_TIMEOUT_S", "STOP_TIMEOUT_S"):
        monkeypatch.setattr(ray_cluster, name, 1.0)
    start_smallest(tmp_path / "data")
    with ray_nodes.Stopped(COORDINATOR_ID):
        done = ray_cluster.stop_on_ray(tmp_path / "data")
    assert "did not answer" in done and "were killed" in done
    assert not cluster_actors() and not (tmp_path / "data" / "run.json").exists()
