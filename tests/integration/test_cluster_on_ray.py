"""A cluster on Ray: started, looked at, restarted on the same directory, and what it refuses."""

import os
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import ray

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.protocol.errors import ClusterError
from magnetar.protocol.names import RAY_NAMESPACE
from magnetar.runtime.ray_calls import ask, remote
from support.servers import ray_nodes


def named_actors() -> set[str]:
    actors: list[Any] = ray.util.list_named_actors(all_namespaces=True)
    return {actor["name"] for actor in actors if actor["namespace"] == RAY_NAMESPACE}


@pytest.mark.promise("29.1", "29.10")
def test_status_shows_every_process_with_its_address(cluster: RayCluster) -> None:
    status = cluster.status()
    assert status["cluster_id"] == cluster.cluster_id
    members = {member["id"]: member for member in status["members"] if member["role"] != "client"}
    assert {"bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2"} <= members.keys()
    assert all(member["port"] for name, member in members.items() if name != "admin")
    assert all(process["state"] == "running" for process in status["processes"])
    assert {process["node_id"] for process in status["processes"]} >= members.keys()


@pytest.mark.promise("29.4", "29.5")
def test_actors_are_named_and_named_only(cluster: RayCluster) -> None:
    nodes = ("coordinator", "admin", "bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2")
    assert {f"magnetar-{node}" for node in nodes} <= named_actors()
    ray_nodes.wait_until(  # tasks of an earlier test may be ending
        lambda: ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"], "our actors take no CPU from others"
    )


def test_brokers_and_bookies_have_more_priority_than_ray_tasks(cluster: RayCluster) -> None:
    def own_priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    priority_of_tasks: int = ask(remote(own_priority, num_cpus=0).remote())
    for name in named_actors():
        if name.startswith(("magnetar-broker", "magnetar-bookie")):
            process = ask(ray.get_actor(name, RAY_NAMESPACE).process_id.remote(), 20)
            assert os.getpriority(os.PRIO_PROCESS, process) == own_priority() < priority_of_tasks


def test_connect_finds_the_running_cluster(cluster: RayCluster) -> None:
    found = magnetar.connect()
    assert found.cluster_id == cluster.cluster_id
    assert found.service_url == cluster.service_url
    with urllib.request.urlopen(f"{found.admin_url}/admin/v2/brokers/health", timeout=10) as answer:
        assert answer.status == 200


def test_a_client_without_a_url_finds_the_cluster_through_ray(cluster: RayCluster) -> None:
    with magnetar.Client() as client:
        assert client.create_producer("found").send(b"hello").ledger_id() >= 0


def test_actors_and_tasks_share_a_client(cluster: RayCluster) -> None:
    class Writer:
        def __init__(self) -> None:
            self.producer = magnetar.Client().create_producer("from-an-actor")

        def write(self, data: bytes) -> bytes:
            return self.producer.send(data).serialize()

    def read(position: bytes) -> bytes:
        reader = magnetar.Client().create_reader("from-an-actor", magnetar.MessageId.earliest)
        return reader.read_next(timeout_millis=10_000).data()

    magnetar.Client().subscribe("from-an-actor", "keeper").close()
    writer = remote(Writer, num_cpus=0).remote()
    position = ask(writer.write.remote(b"one"), 60)
    assert ask(remote(read, num_cpus=0).remote(position), 60) == b"one"


def test_a_second_cluster_on_the_same_ray_is_refused(cluster: RayCluster, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="already runs"):
        magnetar.start(data_dir=tmp_path, port=0, admin_port=0)
    assert cluster.status()["cluster_id"] == cluster.cluster_id


@pytest.mark.promise("15.11", "29.10")
def test_everything_comes_back_on_the_same_directory(start_cluster: Any, tmp_path: Path) -> None:
    cluster = start_cluster(tmp_path / "data")
    identity = cluster.cluster_id
    with cluster.client() as client:
        client.subscribe("kept", "readers").close()
        producer = client.create_producer("kept", properties={"who": "before"})
        sent = [producer.send(f"message {number}".encode()) for number in range(20)]
    cluster.stop()
    assert not named_actors(), "stop leaves no actor behind"
    assert not (tmp_path / "data" / "run.json").exists()

    again = start_cluster(tmp_path / "data")
    assert again.cluster_id == identity
    assert again.status()["coordinator"]["epoch"] == 2
    with again.client() as client:
        consumer = client.subscribe("kept", "readers")
        received = [consumer.receive(timeout_millis=10_000) for _ in sent]
        assert [message.data() for message in received] == [f"message {number}".encode() for number in range(20)]
        assert [message.message_id() for message in received] == sent


def test_a_start_that_fails_leaves_nothing_behind(start_smallest: Any, tmp_path: Path) -> None:
    start_smallest(tmp_path / "data").stop()
    (tmp_path / "data" / "bookie-1" / "lock").unlink()
    (tmp_path / "data" / "bookie-1" / "lock").mkdir()
    with pytest.raises(ClusterError, match="bookie-1"):
        start_smallest(tmp_path / "data")
    # Ray forgets a killed actor a moment after `ray.kill` has returned.
    ray_nodes.wait_until(lambda: not named_actors(), "no actor has a name any longer")
    assert not (tmp_path / "data" / "run.json").exists()
