"""The URL of a cluster's metadata changes: it is corrected, or leads to the same database by another way."""

import asyncio
import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import magnetar
from magnetar.actors.processes.survey import this_machine
from magnetar.cluster import metadata_copies, new_address
from magnetar.cluster.directory import ClusterDirectory
from magnetar.cluster.handle import Cluster
from magnetar.cluster.preparing import Prepared, StartOptions, prepare
from magnetar.protocol.errors import ClusterError, MetadataUnavailable
from magnetar.runtime.environment import Environment
from magnetar.storage.backup import moving
from support.servers.postgresql_server import PostgresqlServer, running

NOWHERE = "postgresql://magnetar:s3cret@127.0.0.1:1/magnetar"


class Places:
    """Databases of one server, and several ways to each."""

    def __init__(self, server: PostgresqlServer, directory: Path) -> None:
        self._server = server
        self._directory = directory

    def url(self, way: str = "first", *, database: str = "metadata", password: str = "s3cret") -> str:
        """The URL of a database by a way: the name of a link to the directory of the server's socket."""
        link = self._directory / way
        if not link.exists():
            link.symlink_to(self._server.directory)
        return f"postgresql://magnetar:{password}@/{database}?host={link}"

    def close(self, way: str) -> None:
        """From now on nothing answers there."""
        (self._directory / way).unlink()

    def run(self, *statements: str) -> None:
        """Statements of the server's administrator."""
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def copy(self, database: str) -> None:
        """Copy the metadata, as an administrator does with the tools of PostgreSQL."""
        self.run(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database} TEMPLATE metadata")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    """It syncs nothing, because databases are made and dropped for each test."""
    with running("fsync=off") as server:
        yield server


@pytest.fixture
def places(server: PostgresqlServer, tmp_path: Path) -> Places:
    found = Places(server, tmp_path)
    for database in ("metadata", "copy", "other"):
        found.run(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)", f"CREATE DATABASE {database}")
    return found


def prepared(path: Path, url: str | None = None, *, restored: bool = False) -> Prepared:
    """What a start does before any process runs."""

    async def run() -> Prepared:
        env = Environment.real()
        try:
            options = StartOptions(port=0, admin_port=0, metadata_url=url, metadata_restored=restored)
            return await prepare(env, ClusterDirectory(path), options, [this_machine("127.0.0.1", str(path))])
        finally:
            env.close()

    return asyncio.run(run())


def stored_url(path: Path) -> str:
    file = path / "cluster.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    return json.loads(file.read_text())["metadata_url"]


def start(path: Path, url: str | None = None) -> Cluster:
    return magnetar.start(embedded=True, data_dir=path, port=0, admin_port=0, metadata=url)


def test_a_first_url_with_a_wrong_host_is_corrected_by_the_next_start(places: Places, tmp_path: Path) -> None:
    with pytest.raises(MetadataUnavailable) as refused:
        prepared(tmp_path / "data", NOWHERE)
    assert "s3cret" not in str(refused.value)
    assert prepared(tmp_path / "data", places.url()).plan.metadata_url == places.url()
    assert stored_url(tmp_path / "data") == places.url()
    assert prepared(tmp_path / "data").plan.metadata_url == places.url()


def test_a_cluster_keeps_its_messages_when_its_database_has_another_address(places: Places, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with start(path, places.url()) as cluster, cluster.client() as client:
        client.subscribe("topic", "s").close()
        client.create_producer("topic").send(b"one")
    with start(path, places.url("second", password="0ther")) as cluster, cluster.client() as client:
        assert client.subscribe("topic", "s").receive(20_000).data() == b"one"
        assert "s3cret" not in json.dumps(cluster.status(), default=str)
        assert "0ther" not in json.dumps(cluster.status(), default=str)
    assert stored_url(path) == places.url("second", password="0ther")


def test_a_password_changes_also_while_the_old_one_is_refused(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path / "data", places.url())

    async def refuse(env: Environment, url: str) -> Any:
        raise MetadataUnavailable("password authentication failed")

    monkeypatch.setattr(new_address, "_read", refuse)
    new = places.url(password="0ther")
    assert prepared(tmp_path / "data", new).plan.metadata_url == new
    assert stored_url(tmp_path / "data") == new


def test_the_probe_leaves_nothing_and_a_leftover_of_it_harms_nothing(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path / "data", places.url())

    async def crash(*unused: Any) -> None:
        raise MetadataUnavailable("crashed")

    with monkeypatch.context() as patched:
        patched.setattr(new_address.SqlMetadataStore, "delete", crash)
        with pytest.raises(MetadataUnavailable, match="crashed"):
            prepared(tmp_path / "data", places.url("second"))
    assert stored_url(tmp_path / "data") == places.url()
    prepared(tmp_path / "data", places.url("second"))
    with psycopg.connect(places.url()) as connection:
        found = connection.execute("SELECT count(*) FROM magnetar_metadata WHERE \"key\" LIKE 'moved/%'").fetchone()
    assert found == (0,)


def test_a_database_without_this_cluster_is_refused(places: Places, tmp_path: Path) -> None:
    path = tmp_path / "data"
    prepared(path, places.url())
    prepared(tmp_path / "other", places.url(database="other"))
    for database, what in (("copy", "no cluster"), ("other", "cluster [0-9a-f]{16}")):
        for restored in (False, True):
            with pytest.raises(ClusterError, match=rf"holds {what}, and this is .*metadata migrate") as refused:
                prepared(path, places.url(database=database), restored=restored)
            assert "s3cret" not in str(refused.value)
    with pytest.raises(MetadataUnavailable) as unreachable:
        prepared(path, NOWHERE)
    assert "s3cret" not in str(unreachable.value)
    assert stored_url(path) == places.url()


def test_a_copy_is_refused_while_the_original_answers(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_address, "PROBE_READ_EVERY_S", 0.01)
    path = tmp_path / "data"
    prepared(path, places.url())
    places.copy("copy")
    for restored in (False, True):
        with pytest.raises(ClusterError, match="is a copy of it: only one may count") as refused:
            prepared(path, places.url(database="copy"), restored=restored)
        assert "s3cret" not in str(refused.value)
    assert stored_url(path) == places.url()


def test_a_database_that_may_be_an_older_copy_needs_the_operators_word(places: Places, tmp_path: Path) -> None:
    path = tmp_path / "data"
    prepared(path, places.url())
    places.copy("copy")
    new = places.url("second", database="copy")
    places.close("first")
    with pytest.raises(ClusterError, match=r"older copy of it.*--metadata-restored") as refused:
        prepared(path, new)
    assert "s3cret" not in str(refused.value)
    assert prepared(path, new, restored=True).plan.metadata_url == new
    with psycopg.connect(new) as connection:
        found = connection.execute("SELECT 1 FROM magnetar_metadata WHERE \"key\" = 'restored/ledgers'").fetchone()
    assert found == (1,), "the start treated it as metadata from a backup"


def test_an_emptied_database_proves_nothing_of_another_one(places: Places, tmp_path: Path) -> None:
    path = tmp_path / "data"
    prepared(path, places.url())
    places.copy("copy")
    with psycopg.connect(places.url(), autocommit=True) as connection:
        connection.execute("DROP TABLE magnetar_metadata")
    new = places.url(database="copy")
    with pytest.raises(ClusterError, match=r"does not hold this cluster any longer.*--metadata-restored"):
        prepared(path, new)
    assert prepared(path, new, restored=True).plan.metadata_url == new


def test_after_a_move_the_old_database_is_refused_also_when_the_new_one_is_away(places: Places, tmp_path: Path) -> None:
    path = tmp_path / "data"
    old, new = places.url(), places.url("second", database="other")
    prepared(path, old)
    places.copy("copy")
    metadata_copies.migrate(path, new)
    for restored in (False, True):
        with pytest.raises(ClusterError, match="nothing may be written to this copy") as refused:
            prepared(path, old, restored=restored)
        assert "s3cret" not in str(refused.value)
    with pytest.raises(ClusterError, match="is a copy of it"):
        prepared(path, places.url(database="copy"))
    places.close("second")
    with pytest.raises(ClusterError, match="nothing may be written to this copy"):
        prepared(path, old, restored=True)
    with pytest.raises(ClusterError, match="older copy"):
        prepared(path, places.url(database="copy"))
    assert stored_url(path) == new


@pytest.mark.parametrize("step", ["commit", "complete_copy", "save_identity"])
def test_a_move_that_crashed_lets_a_start_take_the_new_url_once_it_counts(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Crashed(BaseException):
        pass

    def crash(*unused: object) -> Any:
        raise Crashed

    path = tmp_path / "data"
    new = places.url(database="other")
    prepared(path, places.url())
    where = {"commit": moving, "complete_copy": metadata_copies, "save_identity": ClusterDirectory}[step]
    with monkeypatch.context() as patched:
        patched.setattr(where, step, crash)
        with pytest.raises(Crashed):
            metadata_copies.migrate(path, new)
    if step == "commit":
        with pytest.raises(ClusterError, match="migrate --cancel"):
            prepared(path, new)
        return
    assert prepared(path, new).plan.metadata_url == new
    assert stored_url(path) == new


def test_no_record_of_a_move_has_a_password(places: Places, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "data"
    prepared(path, places.url())
    before = (path / "cluster.json").read_bytes()
    moved = metadata_copies.migrate(path, places.url(database="other", password="0ther"))
    for database in ("metadata", "other"):
        with psycopg.connect(places.url(database=database)) as connection:
            values = [row[0] for row in connection.execute("SELECT value FROM magnetar_metadata")]
        assert len(values) > 5
        assert not any(b"s3cret" in value or b"0ther" in value for value in values)
    (path / "cluster.json").write_bytes(before)  # as if the process had crashed before it wrote this file
    prepared(path)
    assert "the metadata was moved to" in caplog.text
    assert not any(word in caplog.text + moved.url for word in ("s3cret", "0ther"))


def test_a_database_at_the_old_url_may_show_the_value_late(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a standby of the one at the new URL."""
    path = tmp_path / "data"
    prepared(path, places.url())
    read = new_address._read
    late = time.monotonic() + 0.3

    async def read_late(env: Environment, url: str) -> Any:
        found = dict(await read(env, url))
        if url == places.url() and time.monotonic() < late:
            found.pop("moved/probe", None)
        return found

    monkeypatch.setattr(new_address, "_read", read_late)
    assert prepared(path, places.url("second")).plan.metadata_url == places.url("second")
