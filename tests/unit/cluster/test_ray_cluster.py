"""On which Ray a command looks for the cluster of a data directory."""

from pathlib import Path

import pytest

from magnetar.cluster import ray_cluster, ray_session
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

    def connect(address: str, *, with_token: bool = False) -> None:
        assert with_token == (kind == "detached")
        raise Connected(address)

    monkeypatch.setattr(ray_session, "connect_to_ray", connect)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if given is not None:
        monkeypatch.setenv("RAY_ADDRESS", given)
    if kind is not None:
        session: SessionRecord = {"kind": kind, "address": "10.0.0.1:6379", "temporary_directory": "", "processes": []}
        ClusterDirectory(tmp_path).save_run({"cluster_id": "c", "ray": session})
    with pytest.raises(Connected, match=chosen):
        ray_cluster.find_on_ray(tmp_path)


def test_without_a_run_and_ray_address_no_cluster_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ClusterError, match="RAY_ADDRESS is not set"):
        ray_cluster.find_on_ray(tmp_path)
