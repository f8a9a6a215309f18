"""A whole cluster in this process: what it keeps over a restart, what it refuses, what it says about itself."""

import json
import logging
import shutil
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import magnetar
from magnetar.cluster.handle import Cluster
from magnetar.protocol.errors import ClusterError, SettingError


def start(directory: Path, **options: object) -> Cluster:
    return magnetar.start(embedded=True, data_dir=directory, **{"port": 0, "admin_port": 0, **options})  # type: ignore[arg-type]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with start(tmp_path / "data") as running:
        yield running


@pytest.mark.promise("15.11", "21.3")
def test_messages_and_subscriptions_survive_a_restart(tmp_path: Path) -> None:
    with start(tmp_path) as cluster, cluster.client() as client:
        client.subscribe("kept", "readers").close()
        producer = client.create_producer("kept")
        for number in range(10):
            producer.send(f"message {number}".encode())
        consumer = client.subscribe("kept", "readers")
        first = consumer.receive(timeout_millis=10_000)
        assert first.data() == b"message 0"
        consumer.acknowledge(first)
        identity = cluster.cluster_id
    with start(tmp_path) as cluster, cluster.client() as client:
        assert cluster.cluster_id == identity
        consumer = client.subscribe("kept", "readers")
        received = [consumer.receive(timeout_millis=10_000).data() for _ in range(9)]
        assert received == [f"message {number}".encode() for number in range(1, 10)]


def test_the_layout_is_the_one_of_ray(tmp_path: Path) -> None:
    with start(tmp_path):
        pass
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {"cluster.json", "coordinator/metadata.db"} <= found
    assert {f"bookie-{number}/cookie" for number in (1, 2, 3)} <= found
    assert "run.json" not in found
    identity = json.loads((tmp_path / "cluster.json").read_text())
    assert identity["state"] == "ready"
    assert json.loads((tmp_path / "bookie-1" / "cookie").read_text())["cluster_id"] == identity["cluster_id"]


def test_one_cluster_a_directory(tmp_path: Path) -> None:
    with start(tmp_path), pytest.raises(ClusterError, match="in use by another"):
        start(tmp_path)
    start(tmp_path).stop()


def test_the_services_lock_their_directories_themselves(tmp_path: Path) -> None:
    with start(tmp_path):
        (tmp_path / "lock").unlink()  # somebody gets round the directory's own lock
        with pytest.raises(magnetar.DirectoryLocked, match=r"metadata\.lock"):
            start(tmp_path)


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterError, match=rf"broker-1 .*port {port} .*--port"):
            start(tmp_path, port=port)
    assert not (tmp_path / "cluster.json").exists(), "a refused start leaves nothing behind"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"settings": {"maxMessageSise": 5}}, "maxMessageSize"),
        ({"settings": {"maxMessageSize": "many"}}, "maxMessageSize"),
        ({"ensemble": "3/2"}, "3/3/2"),
        ({"ensemble": "2/3/2"}, "ensemble size >= write quorum"),
        ({"ensemble": "3/3/1"}, "loses entries when one disk fails"),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        start(tmp_path, **options)


def test_too_few_bookies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="too few for an ack quorum"):
        start(tmp_path, bookies=1)


def test_the_bookies_of_another_cluster_are_refused(tmp_path: Path) -> None:
    start(tmp_path / "one").stop()
    start(tmp_path / "two").stop()
    (tmp_path / "one" / "bookie-2").rename(tmp_path / "gone")
    (tmp_path / "two" / "bookie-2").rename(tmp_path / "one" / "bookie-2")
    with pytest.raises(ClusterError, match=r"bookie-2.*belongs to cluster"):
        start(tmp_path / "one")


def test_a_bookie_whose_directory_is_gone_is_not_made_again(tmp_path: Path) -> None:
    start(tmp_path).stop()
    (tmp_path / "bookie-3").rename(tmp_path / "elsewhere")
    with start(tmp_path) as cluster, cluster.client() as client:
        assert not (tmp_path / "bookie-3").exists()
        client.create_producer("two-are-enough").send(b"still acknowledged")


def test_one_more_bookie_gets_the_copies_of_one_whose_directory_is_gone(tmp_path: Path) -> None:
    with start(tmp_path) as cluster, cluster.client() as client:
        client.subscribe("kept", "s").close()
        client.create_producer("kept").send(b"x")
    (tmp_path / "bookie-3").rename(tmp_path / "elsewhere")
    settings = {"lostBookieRecoveryDelay": 0.2, "auditorPeriodicCheckInterval": 0.2}
    with start(tmp_path, bookies=4, settings=settings) as cluster, cluster.client() as client:
        deadline = time.monotonic() + 30
        while not cluster.status()["auditor"]["whole"]:
            assert time.monotonic() < deadline, cluster.status()["auditor"]
            time.sleep(0.1)
        assert (tmp_path / "bookie-4" / "cookie").exists()
        assert cluster.status()["auditor"]["copied_entries_total"] >= 1
        assert client.subscribe("kept", "s").receive(timeout_millis=10_000).data() == b"x"


def test_a_bookie_whose_lost_disk_is_accepted_starts_empty_and_is_filled(tmp_path: Path) -> None:
    with start(tmp_path) as cluster, cluster.client() as client:
        client.subscribe("kept", "s").close()
        client.create_producer("kept").send(b"x")
    (tmp_path / "bookie-2").rename(tmp_path / "elsewhere")
    with start(tmp_path) as cluster:
        assert not (tmp_path / "bookie-2").exists(), "nobody said that it will not come back"
    settings = {"auditorPeriodicCheckInterval": 0.2}
    with start(tmp_path, accept_lost_disk=["bookie-2"], settings=settings) as cluster, cluster.client() as client:
        deadline = time.monotonic() + 30
        while not cluster.status()["auditor"]["whole"] or cluster.status()["auditor"]["limbo"]:
            assert time.monotonic() < deadline, cluster.status()["auditor"]
            time.sleep(0.1)
        assert (tmp_path / "bookie-2" / "cookie").exists()
        assert cluster.status()["auditor"]["copied_entries_total"] >= 1
        assert client.subscribe("kept", "s").receive(timeout_millis=10_000).data() == b"x"
    with start(tmp_path) as cluster:  # an ordinary bookie again
        assert "bookie-2" in {member["id"] for member in cluster.status()["members"]}


def test_only_the_loss_of_a_bookie_that_was_can_be_accepted(tmp_path: Path) -> None:
    start(tmp_path).stop()
    with pytest.raises(ClusterError, match=r"bookie-9.*bookie-1"):
        start(tmp_path, accept_lost_disk=["bookie-9"])


def test_status_shows_actors_and_topics(cluster: Cluster) -> None:
    with cluster.client() as client:
        client.create_producer("seen").send(b"x")
        status = cluster.status()
    assert status["cluster_id"] == cluster.cluster_id
    members = {member["id"] for member in status["members"]}
    assert {"bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2"} <= members
    assert status["topics"] == 1
    assert all(process["state"] == "running" for process in status["processes"])
    assert json.loads(json.dumps(status)) == status, "plain values only"


def test_the_admin_answers_at_its_url(cluster: Cluster) -> None:
    with urllib.request.urlopen(f"{cluster.admin_url}/admin/v2/clusters", timeout=10) as answer:
        assert answer.status == 200


def test_stopping_twice_is_fine_and_leaves_no_thread(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    cluster = start(tmp_path)
    cluster.stop()
    cluster.stop()
    assert {thread.name for thread in threading.enumerate()} <= before
    with pytest.raises(ClusterError, match="stopped"):
        cluster.status()


def test_the_directory_may_have_an_odd_name(tmp_path: Path) -> None:
    odd = tmp_path / "ödd näme %20 #1? & 'more'"
    with start(odd) as cluster, cluster.client() as client:
        client.create_producer("odd").send(b"x")
    start(odd).stop()


def running_settings(cluster: Cluster) -> dict[str, str]:
    with urllib.request.urlopen(f"{cluster.admin_url}/admin/v2/brokers/configuration/runtime", timeout=30) as answer:
        return json.load(answer)


def test_settings_stay_from_one_start_to_the_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with start(tmp_path, settings={"maxMessageSize": 1_048_576, "clusterName": "west"}) as cluster:
        assert running_settings(cluster)["maxMessageSize"] == "1048576"
    assert "setting " not in caplog.text
    with start(tmp_path) as cluster:
        found = running_settings(cluster)
        assert (found["maxMessageSize"], found["clusterName"]) == ("1048576", "west")
    assert "settings of the last start: clusterName=west, maxMessageSize=1048576" in caplog.text
    with start(tmp_path, settings={"maxMessageSize": 2_097_152}) as cluster:
        found = running_settings(cluster)
        assert (found["maxMessageSize"], found["clusterName"]) == ("2097152", "west")
    assert "setting maxMessageSize: 1048576 -> 2097152" in caplog.text


def test_a_clean_stop_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with start(tmp_path) as cluster, cluster.client() as client:
        client.create_producer("notes").send(b"x")
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_bookie_whose_directory_is_deleted_ends_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with start(tmp_path, settings={"diskCheckInterval": 50}) as cluster:
        shutil.rmtree(tmp_path / "bookie-1")
        deadline = time.monotonic() + 60
        while "was deleted while the bookie ran" not in caplog.text and time.monotonic() < deadline:
            time.sleep(0.05)
        states = {one["node_id"]: one["state"] for one in cluster.status()["processes"]}
        assert states["bookie-2"] == states["bookie-3"] == "running"
    assert f"its directory {tmp_path / 'bookie-1'} was deleted while the bookie ran" in caplog.text
    assert "cannot read its disk usage" not in caplog.text
