"""`magnetar restart` on several Ray nodes, under load."""

import pytest

from support.nodes.database import Database
from support.nodes.publishing import publishing
from support.nodes.ray_hosts import RayHosts
from support.servers import postgresql_server
from support.servers.ray_nodes import wait_until

EVERY = ["bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "broker-3", "admin", "coordinator"]


def test_the_command_line_restarts_every_process_and_a_producer_goes_on(hosts: RayHosts) -> None:
    with (
        hosts.start_cluster(brokers=3, bookies=3) as cluster,
        hosts.client.network(),
        cluster.client() as client,
    ):
        before = {process: cluster.ask("process_id", process=process) for process in EVERY}
        with publishing(hosts, client, "restarted"):
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
        with publishing(hosts, client, "restarted"):
            cluster.restart(["coordinator"])
            wait_until(lambda: deputy() not in ("", former), "the coordinator has another deputy", 60)
        assert cluster.status()["coordinator"]["epoch"] == epoch + 1
