"""A cluster's metadata moves between SQLite and PostgreSQL; whatever crashes in between, at most one copy counts."""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import magnetar
from magnetar.cluster import metadata_copies
from magnetar.cluster.command_line import app
from magnetar.cluster.handle import Cluster
from magnetar.protocol.errors import ClusterError, MetadataUnavailable, SettingError
from magnetar.runtime.environment import Environment
from magnetar.storage.backup import moving
from magnetar.storage.metadata.epoch_guard import take_office
from magnetar.storage.metadata.sql import SqlMetadataStore, sqlite_url
from support.servers.postgresql_server import PostgresqlServer


class Crashed(BaseException):
    """The operator's process ends here."""


def start(directory: Path) -> Cluster:
    return magnetar.start(embedded=True, data_dir=directory, port=0, admin_port=0)


def publish(cluster: Cluster, topic: str, text: bytes) -> None:
    with cluster.client() as client, client.create_producer(topic) as producer:
        producer.send(text)


def read(cluster: Cluster, topic: str) -> list[bytes]:
    with cluster.client() as client:
        reader = client.create_reader(topic, magnetar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(20_000).data())
        return found


@pytest.fixture
def database(postgresql: PostgresqlServer) -> Iterator[str]:
    """The URL of an empty database."""
    postgresql.drop_table("magnetar_metadata")
    yield postgresql.url
    postgresql.drop_table("magnetar_metadata")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped cluster on SQLite, with a message."""
    data = tmp_path_factory.mktemp("stopped") / "data"
    with start(data) as cluster:
        with cluster.client() as client:
            client.subscribe("topic", "s", initial_position=magnetar.InitialPosition.Earliest).close()
        publish(cluster, "topic", b"one")
    return data


@pytest.fixture
def directory(stopped: Path, tmp_path: Path) -> Path:
    """A copy of that directory."""
    return Path(shutil.copytree(stopped, tmp_path / "data"))


def crash(*_: object, **__: object) -> Any:
    raise Crashed


async def crash_later(*_: object, **__: object) -> Any:
    raise Crashed


async def in_office(url: str) -> bool:
    """Whether a coordinator that comes to this store takes office."""
    env = Environment.real()
    try:
        store = await SqlMetadataStore.open(env, url)
        try:
            await take_office(store)
        finally:
            await store.close()
    except ClusterError:
        return False
    finally:
        env.close()
    return True


@pytest.mark.promise("30.2")
def test_metadata_moves_to_postgresql_and_back(directory: Path, database: str, tmp_path: Path) -> None:
    moved = metadata_copies.migrate(directory, database)
    assert moved.records is not None and moved.records > 10
    with start(directory) as cluster:
        assert read(cluster, "topic") == [b"one"]
        publish(cluster, "topic", b"two")
        metadata_copies.backup(directory, str(tmp_path / "backup"))
    with pytest.raises(ClusterError, match=r"is at .* already"):
        metadata_copies.migrate(directory, database)
    (directory / "coordinator" / "metadata.db").rename(tmp_path / "old.db")
    metadata_copies.migrate(directory, "sqlite")
    with start(directory) as cluster:
        assert read(cluster, "topic") == [b"one", b"two"]
        publish(cluster, "topic", b"three")
    assert not asyncio.run(in_office(database)), "the copy in PostgreSQL counts no more"


@pytest.mark.promise("30.2")
def test_an_old_coordinator_writes_nothing_once_a_move_has_begun(directory: Path, database: str) -> None:
    async def run() -> None:
        env = Environment.real()
        url = sqlite_url(str(directory / "coordinator" / "metadata.db"))
        store = await SqlMetadataStore.open(env, url)
        old = await take_office(store)
        await old.put("x", b"", None)
        beside = await SqlMetadataStore.open(env, url, beside=True)
        move = await moving.begin(env, beside, database)
        for write in (old.put("x", b"late", 0), old.delete("x", None), old.allocate("ledger", 1)):
            with pytest.raises(MetadataUnavailable, match="superseded"):
                await write
        with pytest.raises(ClusterError, match="under way"):
            await take_office(store)
        with pytest.raises(ClusterError, match="not to postgresql://other"):
            await moving.begin(env, beside, "postgresql://other@/x")
        await env.offload.run(moving.copy, env.files, url, database, move)
        await moving.commit(env, beside, move)
        with pytest.raises(ClusterError, match="nothing may be written to this copy"):
            await take_office(store)
        with pytest.raises(ClusterError, match="has moved"):
            await moving.cancel(beside)
        await store.close()
        await beside.close()
        env.close()

    asyncio.run(run())


def test_a_coordinator_that_takes_office_first_makes_the_move_fail(
    directory: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        env = Environment.real()
        store = await SqlMetadataStore.open(env, sqlite_url(str(directory / "coordinator" / "metadata.db")))
        raised = moving.raise_epoch

        async def overtaken(old: Any) -> Any:
            office = await raised(old)
            await take_office(old)
            return office

        monkeypatch.setattr(moving, "raise_epoch", overtaken)
        with pytest.raises(MetadataUnavailable, match="superseded"):
            await moving.begin(env, store, database)
        await take_office(store)
        await store.close()
        env.close()

    asyncio.run(run())


STEPS = {
    "before the copy": (moving, "copy", crash),
    "before it is committed": (moving, "commit", crash_later),
    "before the copy is complete": (metadata_copies, "complete_copy", crash_later),
    "before cluster.json": (metadata_copies.ClusterDirectory, "save_identity", crash),
}


@pytest.mark.promise("30.2")
@pytest.mark.parametrize("step", STEPS)
def test_a_move_that_crashed_leaves_at_most_one_copy_and_can_be_finished(
    directory: Path, database: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    target, name, how = STEPS[step]
    with monkeypatch.context() as patched:
        patched.setattr(target, name, how)
        with pytest.raises(Crashed):
            metadata_copies.migrate(directory, database)
    sqlite = sqlite_url(str(directory / "coordinator" / "metadata.db"))
    assert not asyncio.run(in_office(sqlite))
    counts = asyncio.run(in_office(database))
    assert counts == (step == "before cluster.json")
    if step in ("before the copy", "before it is committed"):
        with pytest.raises(ClusterError, match="migrate --cancel"):
            start(directory)
        with pytest.raises(ClusterError, match="migrate --cancel"):
            metadata_copies.backup(directory, str(directory / "backup"))
        metadata_copies.migrate(directory, database)
    with start(directory) as cluster:
        assert read(cluster, "topic") == [b"one"]
        publish(cluster, "topic", b"two")
    assert not asyncio.run(in_office(sqlite))
    with start(directory) as cluster:
        assert read(cluster, "topic") == [b"one", b"two"]


def test_a_cancelled_move_leaves_the_old_store_and_a_leftover_that_may_be_replaced(
    directory: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(moving, "commit", crash_later)
        with pytest.raises(Crashed):
            metadata_copies.migrate(directory, database)
    result = CliRunner().invoke(app, ["metadata", "migrate", "--cancel", "--data-dir", str(directory)])
    assert "the old store counts" in result.output
    assert not asyncio.run(in_office(database))
    with start(directory) as cluster:
        publish(cluster, "topic", b"two")
    result = CliRunner().invoke(app, ["metadata", "migrate", "--to", database, "--data-dir", str(directory)])
    assert result.exit_code == 0, result.output
    with start(directory) as cluster:
        assert read(cluster, "topic") == [b"one", b"two"]


def test_a_database_with_another_clusters_metadata_is_never_overwritten(
    directory: Path, database: str, tmp_path: Path
) -> None:
    with start(tmp_path / "other"):
        pass
    metadata_copies.migrate(tmp_path / "other", database)
    with pytest.raises(ClusterError, match="nothing is overwritten"):
        metadata_copies.migrate(directory, database)
    with pytest.raises(ClusterError, match="no move of the metadata is under way"):
        metadata_copies.cancel_migration(directory)
    with start(directory) as cluster:
        assert read(cluster, "topic") == [b"one"]
    with start(tmp_path / "other"):
        pass


def epoch_of(directory: Path) -> bytes:
    """The record with the epoch, in the SQLite file. Who begins a move raises it, which ends the coordinator."""
    with sqlite3.connect(directory / "coordinator" / "metadata.db") as connection:
        query = "SELECT value FROM magnetar_metadata WHERE \"key\" = 'coordinator/epoch'"
        return connection.execute(query).fetchone()[0]


def test_a_database_that_cannot_be_moved_to_leaves_the_coordinator_active(
    directory: Path, database: str, postgresql: PostgresqlServer
) -> None:
    before = epoch_of(directory)
    several = f"{database},{postgresql.directory}&port=5432,5432"
    for url, error, message in (
        ("postgresql://u:s3cret@127.0.0.1:1/d", MetadataUnavailable, "cannot be reached"),
        ("mysql://u:s3cret@h/d", SettingError, "cannot be mysql"),
        (several, ClusterError, "synchronous_standby_names"),
    ):
        with pytest.raises(error, match=message) as refused:
            metadata_copies.migrate(directory, url)
        assert "s3cret" not in str(refused.value)
    assert epoch_of(directory) == before
    with pytest.raises(ClusterError, match="no move of the metadata is under way"):
        metadata_copies.cancel_migration(directory)
    option = ["--set", "allowAsynchronousMetadataStandbys=true"]
    command = ["metadata", "migrate", "--to", several, "--data-dir", str(directory)]
    assert "synchronous_standby_names" in CliRunner().invoke(app, command).output
    result = CliRunner().invoke(app, [*command, *option])
    assert result.exit_code == 0, result.output
    assert "deputy" not in result.output, "no cluster runs"
    assert metadata_copies.backup(directory, str(directory / "backup")) > 10
    assert not asyncio.run(in_office(sqlite_url(str(directory / "coordinator" / "metadata.db"))))


def test_the_command_refuses_an_embedded_cluster_that_runs(directory: Path, database: str) -> None:
    with start(directory) as cluster:
        with pytest.raises(ClusterError, match="in use by another Magnetar process"):
            metadata_copies.migrate(directory, database)
        publish(cluster, "topic", b"two")
        assert read(cluster, "topic") == [b"one", b"two"]


def test_a_restore_into_postgresql_needs_the_old_store_gone(directory: Path, database: str, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    metadata_copies.backup(directory, str(file))
    with pytest.raises(ClusterError, match="two copies would count"):
        metadata_copies.restore(directory, str(file), database)
    (directory / "coordinator" / "metadata.db").unlink()
    metadata_copies.restore(directory, str(file), database)
    with start(directory) as cluster:
        assert read(cluster, "topic") == [b"one"]
        publish(cluster, "topic", b"two")
