"""What should run follows a cluster's record and Ray's nodes: nodes go and come back, members are added and drained.

The tests share a cluster: 3 brokers, and 4 bookies on a node each. Each test leaves it whole. Where a bookie drained,
one with the next number has taken its place.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import magnetar
from support.nodes.network import Host
from support.nodes.ray_hosts import NodesCluster, RayHosts
from support.servers.ray_nodes import wait_until

SETTINGS = {"lostBookieRecoveryDelay": 2}


@pytest.fixture(scope="module")
def shared(shared_hosts: RayHosts) -> Iterator[NodesCluster]:
    with shared_hosts.start_cluster(brokers=3, bookies=4, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def running(hosts: RayHosts, shared: NodesCluster) -> NodesCluster:
    """Whole at the start of each test."""
    wait_until(lambda: {state for state, _ in processes(shared).values()} == {"running"}, "all processes run", 60)
    shared.refresh()  # a broker may have moved
    return shared


def processes(cluster: NodesCluster) -> dict[str, tuple[str, int]]:
    """State and restarts of each process."""
    return {one["node_id"]: (one["state"], one["restarts"]) for one in cluster.status()["processes"]}


def problem_of(cluster: NodesCluster, process: str) -> tuple[str, str]:
    """Its state, and what keeps it from running."""
    return next((one["state"], one["problem"]) for one in cluster.status()["processes"] if one["node_id"] == process)


@pytest.mark.promise("30.8")
def test_a_node_that_comes_back_gets_its_bookie_and_its_broker_goes_elsewhere(hosts, running):
    with hosts.client.network(), running.client() as client:
        client.subscribe("back", "keeper").close()
        producer = client.create_producer("back")
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
        reader = client.create_reader("back", magnetar.MessageId.earliest)
        assert [reader.read_next(10_000).message_id() for _ in sent] == sent
        wait_until(lambda: running.ask("missing_copies", copies=3) == [], "every entry has its copies", 60, 1.0)


def below(hosts: RayHosts, cluster: NodesCluster, node: Host) -> Path:
    """The data directory of a node, as the test sees it."""
    return node.directory / cluster.data_directory.relative_to(hosts.head.inside)


def next_bookie(cluster):
    """The id of the next bookie that is added: one that drained takes its number with it."""
    added = max(int(one.removeprefix("bookie-")) for one in cluster.status()["desired"]["bookies"])
    return f"bookie-{added + 1}"


def replace_lost_bookie(hosts, cluster, bookie):
    """The steps of docs/operations/failures.md: one bookie more, then the lost one drains. Returns the new one."""
    data = ["--data-dir", str(cluster.data_directory)]
    new = next_bookie(cluster)
    said = hosts.magnetar("scale", "--bookies", "5", *data)
    assert new in said
    said = hosts.magnetar("drain", bookie, *data)
    assert bookie in said and "done" in said
    assert bookie not in cluster.status()["desired"]["bookies"]
    wait_until(lambda: bookie not in cluster.status()["registered_bookies"], "the bookie's cookie is gone", 60)
    wait_until(lambda: cluster.ask("missing_copies", copies=3) == [], "every entry has its copies", 60, 1.0)
    assert {state for state, _ in processes(cluster).values()} == {"running"}
    wait_until(lambda: cluster.status()["auditor"]["lost_bookies"] == [], "nothing is said to be lost", 30)
    return new


def test_a_node_that_returns_with_an_empty_disk_is_filled_again(hosts, running):
    with hosts.client.network(), running.client() as client:
        client.subscribe("refilled", "keeper").close()
        producer = client.create_producer("refilled")
        sent = [producer.send(b"%d" % number) for number in range(50)]
        lost = running.places()["bookie-3"]
        assert lost is not hosts.head
        hosts.kill(lost)
        shutil.rmtree(below(hosts, running, lost))
        hosts.bring_back(lost)
        wait_until(
            lambda: problem_of(running, "bookie-3") == ("absent", "its data lies on no Ray node that is alive"),
            "the bookie waits for its data, on no empty disk",
            60,
        )
        sent += [producer.send(b"%d" % number) for number in range(50, 100)]
        new = replace_lost_bookie(hosts, running, "bookie-3")
        assert running.places()[new] is lost, "the empty node takes the new bookie"
        sent += [producer.send(b"%d" % number) for number in range(100, 150)]
        reader = client.create_reader("refilled", magnetar.MessageId.earliest)
        assert [reader.read_next(10_000).message_id() for _ in sent] == sent


def test_a_bookie_whose_disk_was_emptied_under_it_refuses_it_and_is_replaced(hosts, running):
    """Its node stays. So the supervisor goes on starting it there, and it never serves the empty disk."""
    with hosts.client.network(), running.client() as client:
        client.subscribe("emptied", "keeper").close()
        producer = client.create_producer("emptied")
        sent = [producer.send(b"%d" % number) for number in range(50)]
        place = running.places()["bookie-2"]
        shutil.rmtree(below(hosts, running, place) / "bookie-2")
        running.kill("bookie-2")
        wait_until(
            lambda: "has lost its disk" in problem_of(running, "bookie-2")[1], "the bookie refuses the empty disk", 60
        )
        sent += [producer.send(b"%d" % number) for number in range(50, 100)]
        replace_lost_bookie(hosts, running, "bookie-2")
        reader = client.create_reader("emptied", magnetar.MessageId.earliest)
        assert [reader.read_next(10_000).message_id() for _ in sent] == sent


@pytest.mark.promise("30.7")
def test_the_command_line_scales_and_drains_with_progress_and_the_record_stays(hosts, running):
    data = ["--data-dir", str(running.data_directory)]
    with hosts.client.network(), running.client() as client:
        for number in range(6):
            client.subscribe(f"drained-{number}", "keeper").close()
        producers = [client.create_producer(f"drained-{number}") for number in range(6)]
        sent = [[producer.send(b"before")] for producer in producers]
        before = running.status()["desired"]["bookies"]
        leaving, new = before[1], next_bookie(running)
        said = hosts.magnetar("scale", "--brokers", "4", "--bookies", "5", *data)
        assert "broker-4" in said and new in said and "done" in said
        said = hosts.magnetar("drain", "broker-1", *data)
        assert "draining   broker-1" in said and "done" in said
        said = hosts.magnetar("drain", leaving, *data)
        assert leaving in said and "done" in said
        for ids, producer in zip(sent, producers, strict=True):
            ids.append(producer.send(b"after"))
        desired = running.status()["desired"]
        assert desired["brokers"] == ["broker-2", "broker-3", "broker-4"]
        assert desired["bookies"] == [before[0], *before[2:], new]
        assert leaving not in running.status()["registered_bookies"]
        listing = f"import os; print(*os.listdir({str(running.data_directory)!r}))"
        assert all(leaving not in hosts.run(node, "-c", listing).split() for node in hosts.nodes), "its data is gone"
        for number, ids in enumerate(sent):
            reader = client.create_reader(f"drained-{number}", magnetar.MessageId.earliest)
            assert [reader.read_next(10_000).message_id() for _ in ids] == ids
