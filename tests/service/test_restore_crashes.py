"""A restore of metadata whose process dies at any step: the command, repeated, finishes it, and nothing half counts."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import magnetar
from magnetar.cluster import metadata_copies
from magnetar.cluster.directory import ClusterDirectory, ClusterIdentity
from magnetar.protocol.errors import ClusterError
from magnetar.runtime.environment import Environment
from magnetar.runtime.files import RealFiles
from magnetar.storage.backup.sql_copies import SqlSnapshot
from magnetar.storage.metadata.epoch_guard import take_office
from magnetar.storage.metadata.sql import SqlMetadataStore
from support.servers.postgresql_server import PostgresqlServer

STEPS = {
    "before the store is made": ("magnetar.cluster.metadata_copies:fill", 1, "before"),
    "before the file of SQLite is made": ("magnetar.storage.backup.sql_copies:make_private", 1, "before"),
    "when the file of SQLite is made": ("magnetar.storage.backup.sql_copies:make_private", 1, "after"),
    "when the table is made": ("magnetar.storage.backup.sql_copies:create_table", 1, "after"),
    "before the records are committed": ("magnetar.storage.backup.sql_copies:islice", 2, "before"),
    "when the records are committed": ("magnetar.storage.backup.sql_copies:_fill", 1, "after"),
    "before cluster.json is written": ("magnetar.cluster.directory:ClusterDirectory.save_identity", 1, "before"),
    "before cluster.json gets its name": ("pathlib:Path.rename", 1, "before"),
    "when cluster.json is written": ("magnetar.cluster.directory:ClusterDirectory.save_identity", 1, "after"),
}
"""By name: which call of which function the process dies at, before or after it."""

PROGRAM = """
import importlib, os, sys
from magnetar.cluster import metadata_copies

place, number, moment, data_directory, file, url = sys.argv[1:]
module, _, path = place.partition(":")
*owners, name = path.split(".")
owner = importlib.import_module(module)
for one in owners:
    owner = getattr(owner, one)
original = getattr(owner, name)
calls = 0


def dies(*arguments, **options):
    global calls
    calls += 1
    if calls == int(number) and moment == "before":
        os._exit(9)
    result = original(*arguments, **options)
    if calls == int(number):
        os._exit(9)
    return result


setattr(owner, name, dies)
metadata_copies.restore(data_directory, file, url or None)
"""


class Lost(NamedTuple):
    """A cluster that has lost its metadata: its directory, a backup, and the records of a restore."""

    directory: Path
    file: Path
    cluster_id: str
    restored: dict[str, bytes]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Lost:
    """See `Lost`."""
    directory = tmp_path_factory.mktemp("lost")
    data, file, whole = directory / "data", directory / "backup", directory / "whole"
    with magnetar.start(embedded=True, data_dir=data, port=0, admin_port=0) as cluster, cluster.client() as client:
        client.create_producer("topic").send(b"one")
        metadata_copies.backup(data, str(file))
    metadata_copies.restore(whole, str(file))
    return Lost(data, file, identity_in(data).cluster_id, contents(sqlite_in(whole)))


@pytest.fixture
def database(postgresql: PostgresqlServer) -> Iterator[str]:
    """The URL of an empty database."""
    postgresql.drop_table("magnetar_metadata")
    yield postgresql.url
    postgresql.drop_table("magnetar_metadata")


def die_at(step: str, directory: Path, file: Path, url: str) -> None:
    """Run a restore in a process that dies at this step."""
    place, number, moment = STEPS[step]
    command = [sys.executable, "-c", PROGRAM, place, str(number), moment, str(directory), str(file), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 9, done.stderr


def identity_in(directory: Path) -> ClusterIdentity:
    identity = ClusterDirectory(directory).load_identity()
    assert identity is not None
    return identity


def sqlite_in(directory: Path) -> str:
    return ClusterDirectory(directory).sqlite_url


def contents(url: str) -> dict[str, bytes]:
    """All records but the note of the restore, which has its time."""
    with SqlSnapshot(RealFiles(), url) as snapshot:
        return {record.key: record.value for record in snapshot.records() if record.key != "restored/from"}


def take_office_once(url: str) -> None:
    """Be the coordinator for a moment."""

    async def run() -> None:
        env = Environment.real(threads_max=1)
        store = await SqlMetadataStore.open(env, url)
        try:
            await take_office(store)
        finally:
            await store.close()
            env.close()

    asyncio.run(run())


def check_step(step: str, directory: Path, lost: Lost, url: str = "") -> None:
    """Die there, try to start, repeat the command, and compare with a restore that nothing disturbed."""
    (directory / "bookie-1").mkdir(parents=True)
    shutil.copy(lost.directory / "bookie-1" / "cookie", directory / "bookie-1")
    die_at(step, directory, lost.file, url)
    if not is_whole(directory, lost):
        with pytest.raises(ClusterError, match=r"repeat it|restore (it|the metadata store)"):
            magnetar.start(embedded=True, data_dir=directory, port=0, admin_port=0)
    for _ in range(2):
        assert metadata_copies.restore(directory, str(lost.file), url or None).records
        identity = identity_in(directory)
        assert (identity.cluster_id, identity.state) == (lost.cluster_id, "ready")
        assert identity.metadata_url == (url or sqlite_in(directory))
        assert is_whole(directory, lost)


def is_whole(directory: Path, lost: Lost) -> bool:
    """Whether the directory has an identity, and where that says the metadata is, the restored records are."""
    identity = ClusterDirectory(directory).load_identity()
    if identity is None:
        return False
    url = identity.metadata_url
    try:
        return contents(sqlite_in(directory) if url.startswith("sqlite:") else url) == lost.restored
    except ClusterError:
        return False


@pytest.mark.parametrize("step", STEPS)
def test_a_new_directory(lost: Lost, tmp_path: Path, step: str) -> None:
    check_step(step, tmp_path / "new", lost)


@pytest.mark.parametrize("step", STEPS)
def test_a_directory_that_has_lost_its_store(lost: Lost, tmp_path: Path, step: str) -> None:
    shutil.copy(lost.directory / "cluster.json", tmp_path)
    check_step(step, tmp_path, lost)
    assert identity_in(tmp_path).secret == identity_in(lost.directory).secret


@pytest.mark.parametrize("step", [step for step in STEPS if "SQLite" not in step])
@pytest.mark.parametrize("known", [False, True])
def test_a_database(lost: Lost, database: str, tmp_path: Path, step: str, known: bool) -> None:
    if known:
        shutil.copy(lost.directory / "cluster.json", tmp_path)
    check_step(step, tmp_path, lost, database)


def test_a_store_that_was_used_since_is_not_taken_for_an_unfinished_restore(lost: Lost, tmp_path: Path) -> None:
    die_at("before cluster.json is written", tmp_path, lost.file, "")
    take_office_once(sqlite_in(tmp_path))
    before = contents(sqlite_in(tmp_path))
    with pytest.raises(ClusterError, match="a cluster has run on it since, and nothing is overwritten"):
        metadata_copies.restore(tmp_path, str(lost.file))
    assert contents(sqlite_in(tmp_path)) == before


def test_an_unfinished_restore_of_another_backup_is_not_taken(lost: Lost, tmp_path: Path) -> None:
    other, restored, directory = tmp_path / "other", tmp_path / "restored", tmp_path / "new"
    metadata_copies.restore(restored, str(lost.file))
    metadata_copies.backup(restored, str(other))
    die_at("before cluster.json is written", directory, lost.file, "")
    with pytest.raises(ClusterError, match="holds metadata already, and nothing is overwritten"):
        metadata_copies.restore(directory, str(other))
