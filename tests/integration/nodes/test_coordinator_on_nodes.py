"""Where the coordinator may run, by where its metadata is: a node that hosts it is lost, and cut off.

Each test has Ray nodes of its own, because it takes away the node that started the cluster.
"""

import time
from collections.abc import Iterator

import pytest

import magnetar
from magnetar.protocol.names import COORDINATOR_ID, DEPUTY_ID
from support.nodes.database import Database
from support.nodes.namespaces import reason_to_skip
from support.nodes.network import Host
from support.nodes.publishing import publishing
from support.nodes.ray_hosts import NodesCluster, RayHosts
from support.servers import postgresql_server
from support.servers.ray_nodes import wait_until

SUCCESSOR_S = 120.0
"""Ray takes a silent node for dead after about a minute."""
DEPUTY_S = 45.0
"""The deputy takes office before that. It needs some seconds; the rest is for a machine that has much else to do."""


@pytest.fixture
def own_hosts() -> Iterator[RayHosts]:
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    with RayHosts(3) as found:
        yield found


def log_of(process: str, node: Host, cluster: NodesCluster) -> str:
    """What the processes of that name wrote on that node."""
    below = cluster.data_directory.relative_to(node.inside)
    path = node.directory / below / "logs" / f"{process}.log"
    return path.read_text() if path.exists() else ""


def log_of_coordinator(node: Host, cluster: NodesCluster) -> str:
    return log_of(COORDINATOR_ID, node, cluster)


def has_taken_office(node: Host, cluster: NodesCluster) -> bool:
    """Whether a deputy on that node did."""
    return "the deputy takes office" in log_of(DEPUTY_ID, node, cluster)


def publish_to_new_topic(client: magnetar.Client, topic: str, within_s: float) -> None:
    """A topic that is new takes a coordinator."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            client.create_producer(topic).send(b"new")
            return
        except magnetar.MagnetarError:
            assert time.monotonic() < deadline, f"no coordinator after {within_s} s"


@pytest.mark.promise("30.13")
def test_a_cut_off_coordinator_that_still_reaches_the_database_is_fenced(own_hosts: RayHosts) -> None:
    """It keeps its connections to PostgreSQL all the time. The epoch in each transaction keeps it from writing."""
    reason = postgresql_server.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    home = own_hosts.nodes[1]
    database = Database(own_hosts.network)
    cluster = own_hosts.start_cluster(at=home, brokers=3, bookies=3, metadata=database.url)
    assert cluster.places()[COORDINATOR_ID] is home
    with own_hosts.client.network(), cluster.client() as client:
        client.subscribe("before", "keeper").close()
        producer = client.create_producer("before")
        sent = [producer.send(b"%d" % number) for number in range(20)]
        for host in own_hosts.network.hosts:
            if host not in (home, database.host):
                own_hosts.network.cut(home, of=host)
        publish_to_new_topic(client, "after", SUCCESSOR_S)
        others = [node for node in own_hosts.nodes if node is not home]
        successors = [bool(log_of_coordinator(node, cluster)) + has_taken_office(node, cluster) for node in others]
        assert sum(successors) == 1, "its deputy, if it had one already, or the coordinator that Ray started elsewhere"
        wait_until(lambda: "superseded" in log_of_coordinator(home, cluster), "the old coordinator learns of it", 60)
        sent += [producer.send(b"%d" % number) for number in range(20, 40)]
        own_hosts.heal(home)
        reader = client.create_reader("before", magnetar.MessageId.earliest)
        assert [reader.read_next(20_000).message_id() for _ in sent] == sent
        publish_to_new_topic(client, "healed", 60)


@pytest.mark.alone
def test_the_deputy_coordinates_when_the_node_of_the_coordinator_is_lost(own_hosts: RayHosts) -> None:
    """The node ends without a word. Ray needs a minute to notice that, and the deputy a few seconds."""
    reason = postgresql_server.reason_to_skip()
    if reason is not None:
        pytest.skip(reason)
    home = own_hosts.nodes[1]
    cluster = own_hosts.start_cluster(at=home, brokers=3, bookies=3, metadata=Database(own_hosts.network).url)
    assert cluster.places()[COORDINATOR_ID] is home
    others = [node for node in own_hosts.nodes if node is not home]

    def has_deputy() -> bool:
        try:
            return bool(cluster.ask("actor_id", process=DEPUTY_ID))
        except RuntimeError:
            return False  # there is none yet

    wait_until(has_deputy, "the coordinator has a deputy", 60)
    with (
        own_hosts.client.network(),
        cluster.client(operation_timeout_seconds=5) as client,
        publishing(own_hosts, client, "before") as sent,
    ):
        sent.wait_for_more(20, 30)
        own_hosts.kill(home, silently=True)
        publish_to_new_topic(client, "after", DEPUTY_S)
        assert sum(has_taken_office(node, cluster) for node in others) == 1
        assert not any(log_of(COORDINATOR_ID, node, cluster) for node in others), "Ray has not started another one yet"
        sent.wait_for_more(200, 30)


@pytest.mark.promise("30.14")
def test_with_sqlite_the_coordinator_waits_for_its_machine_and_says_so(own_hosts: RayHosts) -> None:
    home = own_hosts.nodes[1]
    cluster = own_hosts.start_cluster(at=home, brokers=3, bookies=3)
    below = cluster.data_directory.relative_to(home.inside)
    with own_hosts.client.network(), cluster.client(operation_timeout_seconds=5) as client:
        client.subscribe("kept", "keeper").close()
        sent = [client.create_producer("kept").send(b"before")]
        own_hosts.kill(home)
        with pytest.raises(magnetar.MagnetarError):
            client.create_producer("takes-a-coordinator")
        other = own_hosts.nodes[2]
        assert not log_of_coordinator(own_hosts.head, cluster) and not log_of_coordinator(other, cluster)
        assert not (other.directory / below / "coordinator").exists(), "nothing pretends to be the metadata"
        with pytest.raises(RuntimeError, match="only on the machine with that file: bring that machine back"):
            own_hosts.magnetar("status", "--data-dir", str(cluster.data_directory))
        own_hosts.bring_back(home)
        publish_to_new_topic(client, "takes-a-coordinator", 60)
        sent.append(client.create_producer("kept").send(b"after"))
        reader = client.create_reader("kept", magnetar.MessageId.earliest)
        assert [reader.read_next(20_000).message_id() for _ in sent] == sent
