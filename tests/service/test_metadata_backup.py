"""Backups of the metadata of a running cluster, and clusters that start on a restored one, with the same bookies."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import magnetar
from magnetar.cluster import metadata_copies
from magnetar.cluster.command_line import app
from magnetar.cluster.handle import Cluster
from magnetar.protocol.errors import ClusterError, DirectoryLocked
from magnetar.storage.metadata.ledger_ids import GAP
from support.servers.figures import until

EARLIEST = magnetar.InitialPosition.Earliest
MessageId = magnetar.MessageId
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": 4,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "gcWaitTime": 100,
    "brokerDeleteInactiveTopicsEnabled": False,
}


def start(directory: Path, **options: Any) -> Cluster:
    given: dict[str, Any] = {"port": 0, "admin_port": 0, "settings": SETTINGS, **options}
    return magnetar.start(embedded=True, data_dir=directory, **given)


def publish(client: magnetar.Client, topic: str, numbers: range) -> None:
    with client.create_producer(topic) as producer:
        for number in numbers:
            producer.send(b"%d" % number)


def read(client: magnetar.Client, topic: str) -> list[int]:
    reader = client.create_reader(topic, MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(20_000).data()))
    reader.close()
    return found


def ledgers_of(client: magnetar.Client, topic: str) -> list[int]:
    reader = client.create_reader(topic, MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(20_000).message_id().ledger_id())
    reader.close()
    return sorted(set(found))


def unknown(cluster: Cluster) -> int:
    """Ledgers that bookies keep although the metadata does not know them."""
    return sum(member["report"].get("unknown_ledgers", 0) for member in cluster.status()["members"])


@pytest.fixture
def backed_up(tmp_path: Path) -> Iterator[tuple[Path, Path, dict[str, Any]]]:
    """A stopped cluster that went on after its backup: its directory, the backup, and what it had."""
    directory, file = tmp_path / "data", tmp_path / "backup"
    # A clean close deletes the ledger of a cursor's state. The restored cluster needs it, so the bookies keep it.
    slowly = {**SETTINGS, "gcWaitTime": 900_000}
    with start(directory, settings=slowly) as cluster, cluster.client() as client:
        client.subscribe("kept", "readers", initial_position=EARLIEST).close()
        publish(client, "kept", range(10))
        with client.subscribe("kept", "readers", ack_receipt_enabled=True) as consumer:
            for _ in range(3):
                consumer.acknowledge(consumer.receive(20_000))
        assert metadata_copies.backup(directory, str(file)) > 10
        publish(client, "kept", range(10, 20))
        client.subscribe("later", "readers", initial_position=EARLIEST).close()
        publish(client, "later", range(10))
        had = {"cluster": cluster.cluster_id, "ledgers": ledgers_of(client, "kept") + ledgers_of(client, "later")}
    yield directory, file, had


def bookies_to(old: Path, new: Path) -> None:
    new.mkdir(exist_ok=True)
    for number in (1, 2, 3):
        (old / f"bookie-{number}").rename(new / f"bookie-{number}")


@pytest.mark.promise("30.1")
def test_a_restored_cluster_has_everything_up_to_its_backup(backed_up: Any, tmp_path: Path) -> None:
    old, file, had = backed_up
    new = tmp_path / "new"
    bookies_to(old, new)
    found = metadata_copies.restore(new, str(file))
    assert found.head.cluster_id == had["cluster"]
    with start(new) as cluster, cluster.client() as client:
        assert cluster.cluster_id == had["cluster"]
        kept = read(client, "kept")
        assert kept[:10] == list(range(10))
        with client.subscribe("kept", "readers") as consumer:
            assert [int(consumer.receive(20_000).data()) for _ in range(7)] == list(range(3, 10))
        publish(client, "kept", range(100, 110))
        client.subscribe("later", "readers", initial_position=EARLIEST).close()
        publish(client, "later", range(200, 210))
        assert read(client, "kept") == [*kept, *range(100, 110)]
        assert read(client, "later") == list(range(200, 210))
        assert min(ledgers_of(client, "later")) > max(had["ledgers"]), "no id is used twice"
        doubt = cluster.status()["restored_ledgers"]
        assert doubt and doubt[-1][1] > max(had["ledgers"]) + GAP // 2
        until(lambda: unknown(cluster) > 0)
        assert cluster.accept_lost_ledgers() == doubt
        until(lambda: unknown(cluster) == 0)
        assert read(client, "kept")[:10] == list(range(10))


@pytest.mark.promise("30.1")
def test_a_restored_cluster_destroys_nothing_that_it_does_not_know(backed_up: Any, tmp_path: Path) -> None:
    """The metadata of the later time turns up again. All that was stored then is still on the bookies."""
    old, file, _ = backed_up
    new = tmp_path / "new"
    bookies_to(old, new)
    metadata_copies.restore(new, str(file))
    with start(new) as cluster, cluster.client() as client:
        publish(client, "new", range(3))
        members = {member["id"]: member for member in cluster.status()["members"]}
        assert {"bookie-1", "bookie-2", "bookie-3"} <= members.keys()
    bookies_to(new, old)
    with start(old) as cluster, cluster.client() as client:
        assert read(client, "kept") == list(range(20))
        assert read(client, "later") == list(range(10))


@pytest.mark.promise("30.1")
def test_a_restore_never_writes_to_a_store_with_records(backed_up: Any, tmp_path: Path) -> None:
    old, file, _ = backed_up
    with pytest.raises(ClusterError, match="nothing is overwritten"):
        metadata_copies.restore(old, str(file))
    other = tmp_path / "other"
    start(other).stop()
    with pytest.raises(ClusterError, match="belongs to cluster"):
        metadata_copies.restore(other, str(file))
    with start(other), pytest.raises(ClusterError, match="in use"):
        metadata_copies.restore(other, str(file))
    (old / "coordinator" / "metadata.db").rename(tmp_path / "away")
    for suffix in ("-wal", "-shm"):
        (old / "coordinator" / f"metadata.db{suffix}").unlink(missing_ok=True)
    identity = (old / "cluster.json").read_bytes()
    metadata_copies.restore(old, str(file))
    assert json.loads((old / "cluster.json").read_text())["secret"] == json.loads(identity)["secret"]
    with start(old) as cluster, cluster.client() as client:
        assert read(client, "kept")[:10] == list(range(10))


def test_a_restore_that_crashed_at_its_end_is_repeated(
    backed_up: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, file, _ = backed_up
    new = tmp_path / "new"
    bookies_to(old, new)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(metadata_copies.ClusterDirectory, "save_identity", crash)
        with pytest.raises(KeyboardInterrupt):
            metadata_copies.restore(new, str(file))
    with pytest.raises(ClusterError, match=r"no cluster\.json"):
        start(new)
    for _ in range(2):
        metadata_copies.restore(new, str(file))
    with start(new) as cluster, cluster.client() as client:
        assert read(client, "kept")[:10] == list(range(10))
    with pytest.raises(ClusterError, match="a cluster has run on it since, and nothing is overwritten"):
        metadata_copies.restore(new, str(file))


def test_the_commands_back_up_and_restore_with_clear_messages(backed_up: Any, tmp_path: Path) -> None:
    old, file, had = backed_up
    runner = CliRunner()
    again = tmp_path / "again"
    done = runner.invoke(app, ["metadata", "backup", str(again), "--data-dir", str(old)])
    assert done.exit_code == 0, done.output
    assert f"records are in {again}" in done.output.replace("\n", "")
    refused = runner.invoke(app, ["metadata", "backup", str(again), "--data-dir", str(old)])
    assert refused.exit_code == 1
    assert "exists already" in refused.output
    new = tmp_path / "new"
    bookies_to(old, new)
    done = runner.invoke(app, ["metadata", "restore", str(file), "--data-dir", str(new)])
    assert done.exit_code == 0, done.output
    assert had["cluster"] in done.output and "magnetar start" in done.output
    assert runner.invoke(app, ["metadata", "migrate", "--data-dir", str(new)]).exit_code == 2
    refused = runner.invoke(app, ["metadata", "migrate", "--cancel", "--data-dir", str(new)])
    assert "no move of the metadata is under way" in refused.output


def test_a_running_coordinator_keeps_its_sqlite_file_from_a_restore(tmp_path: Path) -> None:
    directory, file = tmp_path / "data", tmp_path / "backup"
    with start(directory):
        metadata_copies.backup(directory, str(file))
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "coordinator").symlink_to(directory / "coordinator")
        shutil.move(directory / "coordinator" / "metadata.db", tmp_path / "away")
        with pytest.raises(DirectoryLocked):
            metadata_copies.restore(copy, str(file))
