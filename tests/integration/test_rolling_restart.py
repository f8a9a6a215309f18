"""`magnetar restart` on several Ray nodes, under load."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import magnetar
from support.nodes.database import Database
from support.nodes.ray_hosts import NodesCluster, RayHosts
from support.servers import postgresql_server
from support.servers.ray_nodes import wait_until

EVERY = ["bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "broker-3", "admin", "coordinator"]
SEND_TIMEOUT_MS = 60_000


@contextmanager
def publishing(hosts: RayHosts, cluster: NodesCluster, client: magnetar.Client) -> Iterator[None]:
    """Send while the block runs. No send may fail, and everything that was acknowledged is read afterwards."""
    client.subscribe("restarted", "keeper").close()
    producer = client.create_producer("restarted", send_timeout_millis=SEND_TIMEOUT_MS)
    sent: list[magnetar.MessageId] = []
    failed: list[Exception] = []
    ending = threading.Event()

    def publish() -> None:
        with hosts.client.network():
            while not ending.is_set():
                try:
                    sent.append(producer.send(b"%d" % len(sent)))
                except magnetar.MagnetarError as error:
                    failed.append(error)
                    return

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    assert failed == []
    cluster.refresh()
    reader = client.create_reader("restarted", magnetar.MessageId.earliest)
    found: set[magnetar.MessageId] = set()
    while sent[-1] not in found:
        found.add(reader.read_next(10_000).message_id())
    assert set(sent) <= found


def test_the_command_line_restarts_every_process_and_a_producer_goes_on(hosts: RayHosts) -> None:
    with (
        hosts.start_cluster(brokers=3, bookies=3) as cluster,
        hosts.client.network(),
        cluster.client() as client,
    ):
        before = {process: cluster.ask("process_id", process=process) for process in EVERY}
        with publishing(hosts, cluster, client):
            said = hosts.magnetar("restart", "--data-dir", str(cluster.data_directory), timeout_s=300)
        assert [line.split()[0] for line in said.splitlines() if "restarted: away for" in line] == EVERY
        assert "done: 8 processes were restarted" in said
        after = {process: cluster.ask("process_id", process=process) for process in EVERY}
        assert all(after[process] != before[process] for process in EVERY)
        states = {one["node_id"]: (one["state"], one["restarts"]) for one in cluster.status()["processes"]}
        assert states == {process: ("running", 0) for process in EVERY if process != "coordinator"}
        assert cluster.ask("missing_copies", copies=3) == []


@pytest.mark.skipif(bool(postgresql_server.reason_to_skip()), reason=str(postgresql_server.reason_to_skip()))
def test_the_deputy_of_a_coordinator_is_restarted_with_it_and_takes_no_office(hosts: RayHosts) -> None:
    with (
        hosts.start_cluster(brokers=2, bookies=3, metadata=Database(hosts.network).url) as cluster,
        hosts.client.network(),
        cluster.client() as client,
    ):

        def deputy() -> str:
            try:
                return str(cluster.ask("actor_id", process="deputy"))
            except RuntimeError:
                return ""  # there is none now

        former = wait_until(deputy, "the coordinator has a deputy", 60)
        epoch = cluster.status()["coordinator"]["epoch"]
        with publishing(hosts, cluster, client):
            cluster.restart(["coordinator"])
            wait_until(lambda: deputy() not in ("", former), "the coordinator has another deputy", 60)
        assert cluster.status()["coordinator"]["epoch"] == epoch + 1
