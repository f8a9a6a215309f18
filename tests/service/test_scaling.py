"""Brokers and bookies of an embedded cluster are added, drained, undrained and added again while clients go on."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import magnetar
from magnetar.actors.processes.local_launcher import LocalLauncher
from magnetar.actors.processes.plan import NodePlan
from magnetar.cluster.handle import Cluster
from magnetar.protocol.errors import ClusterError, NoSuchKey, NotAllowedError
from support.servers.figures import until

SETTINGS = {"lostBookieRecoveryDelay": 1}


def start(directory: Path, **options: Any) -> Cluster:
    return magnetar.start(embedded=True, data_dir=directory, port=0, admin_port=0, settings=SETTINGS, **options)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with start(tmp_path, brokers=2, bookies=3) as running:
        yield running


def states(cluster: Cluster) -> dict[str, str]:
    return {one["node_id"]: one["state"] for one in cluster.status()["processes"]}


@pytest.mark.promise("30.7")
def test_a_drained_broker_comes_back_under_its_number_and_gets_topics(cluster: Cluster) -> None:
    with cluster.client() as client:
        for number in range(4):
            client.create_producer(f"t-{number}").send(b"before")
        cluster.drain("broker-1")
        cluster.wait_drained(60)
        assert states(cluster) == {**states(cluster), "broker-2": "running"} and "broker-1" not in states(cluster)
        assert client.create_producer("t-0").send(b"after")
        cluster.scale(brokers=2)
        cluster.wait_drained(60)
        assert states(cluster)["broker-1"] == "running"
        status = cluster.status()
        assert {one["id"] for one in status["members"] if one["role"] == "broker"} == {"broker-1", "broker-2"}


@pytest.mark.promise("30.7")
def test_a_drained_bookie_leaves_its_messages_to_others_and_its_directory_goes(
    cluster: Cluster, tmp_path: Path
) -> None:
    with cluster.client() as client:
        consumer = client.subscribe("t", "s")
        producer = client.create_producer("t")
        sent = [producer.send(b"%d" % number) for number in range(20)]
        cluster.scale(bookies=4)
        cluster.wait_drained(60)
        view = cluster.drain("bookie-1")
        assert "bookie-1" in view["draining"]
        sent += [producer.send(b"%d" % number) for number in range(20, 40)]
        cluster.wait_drained(120)
        assert cluster.status()["desired"]["bookies"] == ["bookie-2", "bookie-3", "bookie-4"]  # type: ignore[typeddict-item]
        assert "bookie-1" not in cluster.status()["registered_bookies"]
        assert not (tmp_path / "bookie-1").exists()
        sent += [producer.send(b"%d" % number) for number in range(40, 60)]
        assert [consumer.receive(10_000).message_id() for _ in sent] == sent
        cluster.scale(bookies=4)
        cluster.wait_drained(60)
        assert "bookie-5" in states(cluster), "the numbers of bookies are not used again"


def test_a_drain_ends_and_names_the_directory_that_could_not_be_removed(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: str) -> None:
        raise OSError("the disk is read-only")

    monkeypatch.setattr("magnetar.actors.processes.local_launcher.remove_directory", fail)
    cluster.scale(bookies=4)
    assert cluster.wait_drained(60) == {}
    cluster.drain("bookie-1")
    (reason,) = cluster.wait_drained(120).values()
    directory = tmp_path / "bookie-1"
    assert reason.startswith(f"{directory} on 127.0.0.1 could not be removed") and "by hand" in reason
    assert directory.exists() and "bookie-1" not in cluster.status()["registered_bookies"]


def test_the_next_coordinator_ends_what_is_left_of_a_drain(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removing = Event()

    async def stuck(launcher: LocalLauncher, node: NodePlan) -> None:
        removing.set()
        await asyncio.sleep(3600)

    cluster.scale(bookies=4)
    cluster.wait_drained(60)
    monkeypatch.setattr(LocalLauncher, "erase", stuck)
    cluster.drain("bookie-4")  # it came after the start
    assert removing.wait(60)
    assert "bookie-4" in cluster.status()["desired"]["draining"]  # type: ignore[typeddict-item]
    with pytest.raises(ClusterError, match="bookie-4 did not get ready"):
        cluster.wait_drained(1)
    monkeypatch.undo()
    cluster.restart(["coordinator"])
    assert cluster.wait_drained(60) == {}
    assert "bookie-4" not in cluster.status()["registered_bookies"]
    assert not (tmp_path / "bookie-4").exists()


def test_a_bookie_that_is_undrained_takes_ledgers_again(cluster: Cluster) -> None:
    cluster.scale(bookies=4)
    cluster.wait_drained(60)
    cluster.drain("bookie-2")
    cluster.undrain("bookie-2")  # its process may have ended already
    cluster.wait_drained(60)
    assert states(cluster)["bookie-2"] == "running"
    assert {one["id"] for one in cluster.status()["members"] if one["role"] == "bookie"} == {
        "bookie-1",
        "bookie-2",
        "bookie-3",
        "bookie-4",
    }


@pytest.mark.promise("30.7")
def test_what_cannot_be_drained_is_refused_with_what_to_do(cluster: Cluster) -> None:
    with pytest.raises(NotAllowedError, match=r"need 3.*--bookies 4"):
        cluster.drain("bookie-1")
    with pytest.raises(NoSuchKey, match="broker-7 is not a broker or bookie"):
        cluster.drain("broker-7")
    cluster.drain("broker-1")
    with pytest.raises(NotAllowedError, match="broker-2 is the last broker"):
        cluster.drain("broker-2")


def test_a_bookie_whose_disk_is_lost_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    """The steps of docs/operations/failures.md for a disk that is lost, while the cluster runs."""
    with start(tmp_path, brokers=1, bookies=3) as cluster, cluster.client() as client:
        client.subscribe("t", "s").close()
        producer = client.create_producer("t")
        sent = [producer.send(b"%d" % number) for number in range(20)]
    shutil.rmtree(tmp_path / "bookie-2")
    with start(tmp_path) as cluster, cluster.client() as client:
        assert states(cluster)["bookie-2"] == "absent"
        producer = client.create_producer("t")
        sent += [producer.send(b"%d" % number) for number in range(20, 40)]
        with pytest.raises(NotAllowedError, match="--bookies 4"):
            cluster.drain("bookie-2")  # its ledgers have nowhere to go
        cluster.scale(bookies=4)
        cluster.wait_drained(60)
        cluster.drain("bookie-2")
        cluster.wait_drained(120)
        status = cluster.status()
        assert status["desired"]["bookies"] == ["bookie-1", "bookie-3", "bookie-4"]  # type: ignore[typeddict-item]
        assert set(states(cluster).values()) == {"running"}
        consumer = client.subscribe("t", "s")
        assert [consumer.receive(10_000).message_id() for _ in sent] == sent
        consumer.close()
        until(lambda: is_whole(cluster))
    with start(tmp_path) as cluster:  # what was written meanwhile is closed now, and gets its copies
        until(lambda: is_whole(cluster))
    for bookie in ("bookie-1", "bookie-3"):
        shutil.rmtree(tmp_path / bookie)
    with start(tmp_path) as cluster, cluster.client() as client:  # the new bookie alone has every message
        reader = client.create_reader("t", magnetar.MessageId.earliest)
        assert [reader.read_next(20_000).message_id() for _ in sent] == sent


def is_whole(cluster: Cluster) -> bool:
    auditor = cluster.status()["auditor"]
    return auditor is not None and auditor["whole"] and not auditor["lost_bookies"]


def test_a_process_that_fails_already_keeps_no_scaling_waiting(cluster: Cluster, tmp_path: Path) -> None:
    """Such as a bookie that refuses an empty disk: more bookies are the remedy."""
    shutil.rmtree(tmp_path / "bookie-2")
    with pytest.raises(ClusterError):
        cluster.restart(["bookie-2"])
    cluster.scale(bookies=4)
    cluster.wait_drained(60)
    assert states(cluster)["bookie-4"] == "running" and states(cluster)["bookie-2"] != "running"
    cluster.drain("bookie-2")
    cluster.wait_drained(120)
    assert "bookie-2" not in states(cluster)
