"""The data directory: identity once, refusals that protect data."""

import dataclasses
import json
import stat
from pathlib import Path

import pytest

from magnetar.cluster.directory import ClusterDirectory
from magnetar.protocol.errors import ClusterError, SettingError


def complete(directory: ClusterDirectory) -> None:
    """What a first `start` leaves behind."""
    identity = directory.establish_identity(None, [])
    store = directory.path / "coordinator" / "metadata.db"
    store.parent.mkdir()
    store.write_bytes(b"sql")
    directory.save_identity(dataclasses.replace(identity, state="ready"))


def test_identity_is_created_once_and_kept(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "data")
    first = directory.establish_identity(None, [])
    assert first.state == "new"
    assert len(first.secret) == 32
    assert ClusterDirectory(tmp_path / "data").establish_identity(None, []) == first


def test_files_with_the_secret_are_private(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    directory.establish_identity(None, [])
    directory.save_run({"ray_address": "127.0.0.1:1"})
    for name in ("cluster.json", "run.json"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.tmp"))


def test_refuses_data_without_an_identity(tmp_path: Path) -> None:
    (tmp_path / "bookie-2").mkdir()
    (tmp_path / "bookie-2" / "cookie").write_text("{}")
    with pytest.raises(ClusterError, match=r"no cluster\.json.*bookie-2/cookie"):
        ClusterDirectory(tmp_path).establish_identity(None, [])


def test_refuses_cookies_found_on_other_nodes_without_an_identity(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="node-7"):
        ClusterDirectory(tmp_path).establish_identity(None, ["node-7:/data/bookie-1/cookie"])


def test_refuses_an_identity_whose_metadata_store_is_gone(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    complete(directory)
    (tmp_path / "coordinator" / "metadata.db").unlink()
    with pytest.raises(ClusterError, match=r"metadata\.db.*is missing"):
        directory.establish_identity(None, [])


def test_another_url_changes_nothing_in_a_directory_whose_store_is_complete(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    complete(directory)
    before = (tmp_path / "cluster.json").read_bytes()
    identity = directory.establish_identity("postgresql://elsewhere/magnetar", [])
    assert identity.metadata_url == directory.sqlite_url
    assert (tmp_path / "cluster.json").read_bytes() == before


WRONG = "postgresql://magnetar:s3cret@127.0.0.1:1/magnetar"


@pytest.mark.parametrize(
    ("corrected", "same_cluster"),
    [
        ("postgresql://magnetar:0ther@127.0.0.1:1/magnetar", True),
        # The database that was named first may hold the first cluster's id.
        ("postgresql://magnetar:s3cret@db:5432/magnetar", False),
        ("sqlite", False),
    ],
)
def test_the_url_of_a_store_that_was_never_completed_can_be_corrected(
    tmp_path: Path, corrected: str, same_cluster: bool
) -> None:
    directory = ClusterDirectory(tmp_path)
    first = directory.establish_identity(WRONG, [])
    assert "s3cret" not in repr(first) and first.secret.hex() not in repr(first)
    second = directory.establish_identity(corrected, [])
    assert second.metadata_url == (directory.sqlite_url if corrected == "sqlite" else corrected)
    assert directory.load_identity() == second == directory.establish_identity(None, [])
    assert (second.cluster_id == first.cluster_id) == same_cluster
    assert stat.S_IMODE((tmp_path / "cluster.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "url", ["mysql://u:s3cret@h/d", "host=h password=s3cret", "postgresql://u:s3@cret@h/d", "sqlite:////other.db"]
)
def test_a_url_of_no_metadata_store_leaves_nothing_behind(tmp_path: Path, url: str) -> None:
    with pytest.raises((ClusterError, SettingError)) as refused:
        ClusterDirectory(tmp_path).establish_identity(url, [])
    assert "s3" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_first_start_is_completed(tmp_path: Path) -> None:
    first = ClusterDirectory(tmp_path).establish_identity(None, [])
    assert ClusterDirectory(tmp_path).establish_identity(None, []).cluster_id == first.cluster_id


def test_refuses_cookies_beside_an_unfinished_first_start(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    directory.establish_identity(None, [])
    (tmp_path / "bookie-1").mkdir()
    (tmp_path / "bookie-1" / "cookie").write_text("{}")
    with pytest.raises(ClusterError, match="never completed"):
        directory.establish_identity(None, [])


def test_a_directory_that_was_moved_keeps_its_store(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "before")
    complete(directory)
    (tmp_path / "before").rename(tmp_path / "after")
    moved = ClusterDirectory(tmp_path / "after").establish_identity(None, [])
    assert moved.metadata_url == f"sqlite:///{tmp_path}/after/coordinator/metadata.db"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 1}', '{"format": 99}'])
def test_a_damaged_identity_is_an_error_never_a_fresh_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(ClusterError):
        ClusterDirectory(tmp_path).establish_identity(None, [])


@pytest.mark.parametrize(
    "field, value",
    [
        ("state", "text"),
        ("secret", ""),
        ("cluster_id", ""),
        ("cluster_id", 7),
        ("created_ms", "now"),
        ("metadata_url", 1),
    ],
)
def test_an_identity_with_a_value_that_nobody_writes_is_damaged(tmp_path: Path, field: str, value: object) -> None:
    """Found by `tests/fuzz` (target settings): a state of another name passed, and with it a lost metadata store."""
    directory = ClusterDirectory(tmp_path)
    directory.establish_identity(None, [])
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(ClusterError, match="damaged"):
        directory.load_identity()


def test_a_file_of_endless_brackets_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[" * 50_000)
    with pytest.raises(ClusterError, match="cannot read"):
        ClusterDirectory(tmp_path).load_run()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first, second = ClusterDirectory(tmp_path), ClusterDirectory(tmp_path)
    first.lock()
    with pytest.raises(ClusterError, match="in use"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_run_record(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    assert directory.load_run() is None
    directory.save_run({"ray_address": "127.0.0.1:6379", "processes": [[1, 2.5]]})
    assert directory.load_run() == {"ray_address": "127.0.0.1:6379", "processes": [[1, 2.5]]}
    directory.clear_run()
    directory.clear_run()
    assert directory.load_run() is None
