"""What is stored may be read by its owner only, whatever the umask."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.runtime.environment import Environment
from magnetar.runtime.files import RealFiles
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.bookie.cookie import claim_directory
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.sql import SqlMetadataStore, sqlite_url


@pytest.fixture(params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    """Mode by name, for everything below a directory."""
    return {str(path.relative_to(directory)): path.stat().st_mode & 0o777 for path in sorted(directory.rglob("*"))}


def test_files_are_0600_and_directories_0700(tmp_path: Path, umask: None) -> None:
    files = RealFiles()
    files.make_directory(str(tmp_path / "a" / "b"))
    files.make_directory(str(tmp_path / "a" / "b"))
    files.open(str(tmp_path / "a" / "made"), create=True, preallocate=4096).close()
    files.write_atomic(str(tmp_path / "a" / "replaced"), b"x")
    files.lock(str(tmp_path / "a" / "lock")).release()
    assert modes(tmp_path) == {"a": 0o700, "a/b": 0o700, "a/made": 0o600, "a/replaced": 0o600, "a/lock": 0o600}


def test_an_older_file_that_others_may_read_is_made_private_when_it_is_opened(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"x")
    old.chmod(0o644)
    RealFiles().open(str(old)).close()
    assert modes(tmp_path) == {"old": 0o600}


def test_a_file_in_the_place_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileExistsError):
        RealFiles().make_directory(str(tmp_path / "file"))


async def test_what_a_bookie_and_the_metadata_store_write_is_private(
    tmp_path: Path, umask: None, env: Environment
) -> None:
    data = tmp_path / "data"
    metadata = await SqlMetadataStore.open(env, sqlite_url(str(data / "coordinator" / "metadata.db")), create=True)
    await create_cluster(metadata, "cluster", 1)
    directory = str(data / "bookie-1")
    cookie = await claim_directory(env, directory, "bookie-1", "cluster", metadata)
    store = BookieStore(env, directory, cookie.instance, Settings(), on_fatal=lambda error: None, segment_bytes=1 << 16)
    await store.open()
    found = modes(data)
    await store.close()
    await metadata.close()
    names = {"coordinator/metadata.db", "coordinator/metadata.db-wal", "bookie-1/cookie", "bookie-1/checkpoint"}
    assert names < set(found) and any(name.endswith(".journal") for name in found)
    expected = {name: 0o700 if (data / name).is_dir() else 0o600 for name in found}
    assert found == expected
