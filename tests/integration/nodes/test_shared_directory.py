"""A data directory that several nodes see, as on a shared file system; and a copy of one, which is refused."""

import shutil

import pytest

import magnetar
from support.nodes.ray_hosts import RayHosts
from support.servers.ray_nodes import wait_until

SETTINGS = {"lostBookieRecoveryDelay": 120}
"""A bookie that goes on elsewhere is not lost: nothing has to be copied."""


@pytest.fixture
def directory(hosts: RayHosts):
    """A path that leads all nodes to the same directory: their mounts differ only below `inside`."""
    path = hosts.network.directory / "shared"
    yield path
    shutil.rmtree(path)


def publish(client, topic, payloads):
    producer = client.create_producer(topic)
    return [producer.send(payload) for payload in payloads]


@pytest.mark.promise("30.15")
def test_bookies_go_on_on_other_nodes_and_a_second_start_finds_everything(hosts, directory):
    with hosts.start_cluster(brokers=2, bookies=4, data_dir=str(directory), settings=SETTINGS) as cluster:
        before = cluster.places()
        bookies = [one for one in before if one.startswith("bookie")]
        assert {before[one] for one in bookies} == set(hosts.nodes), "each node has a bookie"
        with hosts.client.network(), cluster.client() as client:
            client.subscribe("kept", "keeper").close()
            sent = publish(client, "kept", [b"%d" % number for number in range(50)])
            lost = before["bookie-3"]
            assert lost is not hosts.head
            hosts.kill(lost)
            wait_until(
                lambda: cluster.places().get("bookie-3") not in (None, lost),
                "the bookie runs where its data is seen",
                60,
            )
            sent += publish(client, "kept", [b"%d" % number for number in range(50, 60)])
            assert cluster.ask("missing_copies", copies=3) == []
    with hosts.start_cluster(data_dir=str(directory), settings=SETTINGS) as cluster:
        with hosts.client.network(), cluster.client() as client:
            reader = client.create_reader("kept", magnetar.MessageId.earliest)
            assert [reader.read_next(20_000).message_id() for _ in sent] == sent
        assert all(process["restarts"] == 0 for process in cluster.status()["processes"])


def test_a_bookie_of_a_node_that_is_cut_off_waits_until_its_old_process_is_gone(hosts, directory):
    """Two processes on one directory would ruin it: the lock of the old one keeps the new one away."""
    with hosts.start_cluster(brokers=2, bookies=4, data_dir=str(directory), settings=SETTINGS) as cluster:
        lost = cluster.places()["bookie-4"]
        assert lost is not hosts.head
        with hosts.client.network(), cluster.client() as client:
            client.subscribe("kept", "keeper").close()
            sent = publish(client, "kept", [b"before"])
            hosts.cut(lost)
            wait_until(
                lambda: any(
                    process["node_id"] == "bookie-4" and "is locked by" in process["problem"]
                    for process in cluster.status()["processes"]
                ),
                "the new process finds the directory locked",
                120,
            )
            hosts.kill(lost)
            wait_until(lambda: cluster.places().get("bookie-4") not in (None, lost), "the bookie runs elsewhere", 60)
            sent += publish(client, "kept", [b"after"])
            reader = client.create_reader("kept", magnetar.MessageId.earliest)
            assert [reader.read_next(20_000).message_id() for _ in sent] == sent


@pytest.mark.promise("30.15")
def test_a_copy_of_a_bookie_is_refused_and_named(hosts):
    with hosts.start_cluster(brokers=1, bookies=3) as cluster:
        directory = cluster.data_directory
        home = cluster.places()["bookie-2"]
        other = next(node for node in hosts.nodes if node is not home)
    below = directory.relative_to(hosts.head.inside)
    copy = other.directory / below / "bookie-2"
    shutil.copytree(home.directory / below / "bookie-2", copy)
    with pytest.raises(RuntimeError, match=f"the data of bookie-2 lies on .*{other.address}.* one is a copy"):
        hosts.start_cluster(data_dir=str(directory))
    shutil.rmtree(copy)
    with hosts.start_cluster(data_dir=str(directory)) as cluster:
        assert cluster.places()["bookie-2"] is home
