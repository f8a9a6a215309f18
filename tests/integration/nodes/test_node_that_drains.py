"""A Ray node that Ray drains, or that gets SIGTERM, gives up what runs on it while it still runs."""

import signal
import sys
from collections.abc import Iterator

import pytest

from support.clients.partitions import create_partitioned
from support.clients.workload import Publisher, check_history, read_log
from support.nodes.ray_hosts import NodesCluster, RayHosts
from support.servers.ray_nodes import wait_until

pytestmark = pytest.mark.alone

NODES = 4
GAP_MAX_S = 5.0


@pytest.fixture
def running(hosts: RayHosts) -> Iterator[NodesCluster]:
    with hosts.start_cluster(brokers=NODES, bookies=NODES) as cluster:
        yield cluster


@pytest.mark.promise("30.16")
def test_ray_drain_node_moves_brokers_away_and_bookies_get_nothing_new(hosts: RayHosts, running: NodesCluster) -> None:
    node = hosts.nodes[2]
    with hosts.client.network():
        create_partitioned(running, "drained", NODES)
        with running.client() as client:
            client.subscribe("drained", "keeper").close()
            here = [member for member, place in running.places().items() if place is node]
            broker = next(member for member in here if member.startswith("broker"))
            bookie = next(member for member in here if member.startswith("bookie"))
            with Publisher(running.service_url, "drained") as publisher:
                publisher.wait_for(500)
                publisher.reset_gap()
                hosts.drain(node)
                wait_until(lambda: running.places().get(broker) not in (None, node), f"{broker} runs elsewhere", 60)
                status = running.status()
                assert bookie in status["desired"]["leaving"]  # type: ignore[typeddict-item]
                assert "no brokers any longer" in hosts.magnetar("leave", node=node)
                assert running.places()[bookie] is node, "its data is there, and copies are read from it"
                publisher.wait_for(500)
            assert publisher.history.longest_gap_s < GAP_MAX_S and not publisher.history.failed
            hosts.kill(node)
            check_history(publisher.history, read_log(client, "drained"))
        hosts.bring_back(node)
        wait_until(lambda: running.places().get(bookie) is node, f"{bookie} is back with its data", 60)


@pytest.mark.promise("30.16")
def test_sigterm_of_a_ray_node_empties_it_before_it_ends(hosts: RayHosts, running: NodesCluster) -> None:
    node = hosts.nodes[3]
    with hosts.client.network(), running.client() as client:
        create_partitioned(running, "ended", NODES)
        client.subscribe("ended", "keeper").close()
        hosts.kill(node)
        node.start()
        ray_node = node.namespaces.popen(
            sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--block", f"--address={hosts.address}",
            f"--node-ip-address={node.address}", "--num-cpus=2", f"--object-store-memory={80 << 20}",
            environment=hosts.environment,
        )  # fmt: skip
        wait_until(lambda: node in running.places().values(), "the node's bookie is back", 90)
        wait_until(
            lambda: any(one.startswith("broker") and place is node for one, place in running.places().items()),
            "the node gets a broker",
            90,
        )
        with Publisher(running.service_url, "ended") as publisher:
            publisher.wait_for(500)
            publisher.reset_gap()
            first = node.namespaces.run("pgrep", "-o", "-f", "ray.scripts.scripts start").strip()
            node.namespaces.signal_process(int(first), signal.SIGTERM)
            ray_node.wait(120)
            publisher.wait_for(500)
            wait_until(lambda: node not in running.places().values(), "nothing runs on the node", 60)
        assert publisher.history.longest_gap_s < GAP_MAX_S and not publisher.history.failed
        check_history(publisher.history, read_log(client, "ended"))
    hosts.kill(node)
