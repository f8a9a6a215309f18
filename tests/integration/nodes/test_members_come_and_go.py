"""What should run follows a cluster's record and Ray's nodes: nodes go and come back, members are added and drained."""

from collections.abc import Iterator

import pytest

import magnetar
from support.nodes.ray_hosts import NodesCluster, RayHosts
from support.servers.ray_nodes import wait_until

SETTINGS = {"lostBookieRecoveryDelay": 2}


@pytest.fixture
def running(hosts: RayHosts) -> Iterator[NodesCluster]:
    with hosts.start_cluster(brokers=3, bookies=4, settings=SETTINGS) as cluster:
        yield cluster


def processes(cluster: NodesCluster) -> dict[str, tuple[str, int]]:
    """State and restarts of each process."""
    return {one["node_id"]: (one["state"], one["restarts"]) for one in cluster.status()["processes"]}


def test_a_node_that_comes_back_gets_its_bookie_and_its_broker_goes_elsewhere(hosts, running):
    with hosts.client.network(), running.client() as client:
        client.subscribe("kept", "keeper").close()
        producer = client.create_producer("kept")
        sent = [producer.send(b"%d" % number) for number in range(50)]
        lost = running.places()["bookie-3"]
        assert lost is not hosts.head
        moving = [one for one, place in running.places().items() if place is lost and one.startswith("broker")]
        hosts.kill(lost)
        wait_until(lambda: processes(running)["bookie-3"][0] == "absent", "Ray's node is gone", 60)
        _, restarts = processes(running)["bookie-3"]
        wait_until(lambda: set(moving) <= set(running.places()), "the brokers of the lost node run elsewhere", 30)
        assert all(running.places()[one] is not lost for one in moving)
        sent += [producer.send(b"%d" % number) for number in range(50, 100)]
        hosts.bring_back(lost)
        wait_until(lambda: running.places().get("bookie-3") is lost, "the bookie runs where its data lies", 60)
        after = processes(running)
        assert {state for state, _ in after.values()} == {"running"}
        assert after["bookie-3"][1] == restarts, "it waited for its machine, and did not try and fail"
        reader = client.create_reader("kept", magnetar.MessageId.earliest)
        assert [reader.read_next(10_000).message_id() for _ in sent] == sent
        wait_until(lambda: running.ask("missing_copies", copies=3) == [], "every entry has its copies", 60, 1.0)


def test_the_command_line_scales_and_drains_with_progress_and_the_record_stays(hosts, running):
    data = ["--data-dir", str(running.data_directory)]
    with hosts.client.network(), running.client() as client:
        for number in range(6):
            client.subscribe(f"drained-{number}", "keeper").close()
        producers = [client.create_producer(f"drained-{number}") for number in range(6)]
        sent = [[producer.send(b"before")] for producer in producers]
        said = hosts.magnetar("scale", "--brokers", "4", "--bookies", "5", *data)
        assert "broker-4" in said and "bookie-5" in said and "done" in said
        said = hosts.magnetar("drain", "broker-1", *data)
        assert "draining   broker-1" in said and "done" in said
        said = hosts.magnetar("drain", "bookie-2", *data)
        assert "bookie-2" in said and "done" in said
        for ids, producer in zip(sent, producers, strict=True):
            ids.append(producer.send(b"after"))
        desired = running.status()["desired"]
        assert desired["brokers"] == ["broker-2", "broker-3", "broker-4"]
        assert desired["bookies"] == ["bookie-1", "bookie-3", "bookie-4", "bookie-5"]
        assert "bookie-2" not in running.status()["registered_bookies"]
        listing = f"import os; print(*os.listdir({str(running.data_directory)!r}))"
        assert all("bookie-2" not in hosts.run(node, "-c", listing).split() for node in hosts.nodes), "its data is gone"
        for number, ids in enumerate(sent):
            reader = client.create_reader(f"drained-{number}", magnetar.MessageId.earliest)
            assert [reader.read_next(10_000).message_id() for _ in ids] == ids
