"""A cluster on four Ray nodes that have addresses of their own: where its processes are, and what a lost node costs.

The first tests share a cluster and leave it whole. The publisher keeps only what its callbacks said.
"""

import threading
import time

import pulsar
import pytest

import magnetar
from magnetar.client.core.configuration import ClientConfiguration
from magnetar.protocol.names import port_of_broker
from support.clients.partitions import create_partitioned
from support.clients.workload import Publisher, check_history, read_log
from support.nodes.network import Cut
from support.nodes.owning import topic_on
from support.servers.ray_nodes import wait_until

pytestmark = pytest.mark.alone

NODES = 4
SMALL_LEDGERS = {
    "managedLedgerMaxEntriesPerLedger": 500,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "addEntryTimeoutSec": 1.0,
}
OUTSIDE = {
    "advertisedListeners": "inside:pulsar://{host}:{port},outside:pulsar+proxy://pulsar.example.com:6600",
    "bindAddresses": "outside:pulsar://0.0.0.0:6600",
}
GAP_MAX_S = 15.0
"""Until a session has ended, and the topics have moved; the rest is for a machine that has much else to do."""
KEEP_ALIVE_S = ClientConfiguration().keep_alive_interval_s
"""A client that has only the keep-alive rule sends a PING after so long, and moves after as long again. One that
notices silence takes about 5 s in all. So half the time of the rule tells them apart on a slow machine, too.
"""


@pytest.fixture(scope="module")
def shared(shared_hosts):
    with shared_hosts.start_cluster(brokers=NODES, bookies=NODES, settings=SMALL_LEDGERS | OUTSIDE) as cluster:
        yield cluster


@pytest.fixture
def cluster(hosts, shared):
    """Whole at the start of each test. The test's own sockets are the client host's."""
    wait_until_whole(shared)
    with hosts.client.network():
        yield shared


def wait_until_whole(cluster):
    wait_until(lambda: len(cluster.places()) == 2 * NODES + 1, "all brokers and bookies run", 60)


def create_topic(cluster, topic):
    """A partition for each broker, and a subscription that keeps what is published."""
    create_partitioned(cluster, topic, NODES)
    with cluster.client() as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()


def check_nothing_is_lost(cluster, publisher):
    with cluster.client() as client:
        check_history(publisher.history, read_log(client, publisher.topic))
    assert not publisher.history.failed


@pytest.mark.promise("29.10")
def test_a_start_on_four_nodes_puts_a_broker_and_a_bookie_on_each(hosts, cluster):
    places = cluster.places()
    for role in ("broker", "bookie"):
        assert {places[f"{role}-{number + 1}"] for number in range(NODES)} == set(hosts.nodes)


@pytest.mark.promise("30.8")
@pytest.mark.parametrize("how", list(Cut))
def test_publishing_goes_on_while_a_node_is_cut_off_and_it_joins_again(hosts, cluster, how):
    """Our client has the default keep-alive, whose rule takes twice as long as what is allowed here."""
    node = hosts.nodes[1]
    topic = topic_on(cluster, node, f"cut-{how.name.lower().replace('_', '-')}", NODES)
    with Publisher(cluster.service_url, topic) as publisher:
        publisher.wait_for(1000)
        publisher.reset_gap()
        hosts.cut(node, how)
        publisher.wait_for(1000)
        hosts.heal(node)
        publisher.wait_for(1000)
    assert publisher.history.longest_gap_s < KEEP_ALIVE_S
    wait_until_whole(cluster)
    check_nothing_is_lost(cluster, publisher)


class Follower:
    """Receives in a thread of its own, and knows the longest time between two messages."""

    def __init__(self, receive):
        self.received = 0
        self.longest_gap_s = 0.0
        self._receive = receive
        self._last_s = time.monotonic()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def reset_gap(self):
        self.longest_gap_s, self._last_s = 0.0, time.monotonic()

    def end(self):
        self._ending.set()
        self._thread.join()

    def _run(self):
        while not self._ending.is_set():
            try:
                self._receive(500)
            except magnetar.Timeout:
                continue
            now = time.monotonic()
            self.longest_gap_s, self._last_s = max(self.longest_gap_s, now - self._last_s), now
            self.received += 1


@pytest.mark.parametrize("how", list(Cut))
def test_a_consumer_and_a_reader_move_long_before_the_keep_alive_rule(hosts, cluster, how):
    """Each has a client of its own, with the default keep-alive. None learns from another one's connection.

    The cut ends before Ray gives the node up, which takes 20 s. Then its raylet would end.
    """
    node = hosts.nodes[2]
    topic = topic_on(cluster, node, f"followed-{how.name.lower().replace('_', '-')}")
    with (
        cluster.client() as consuming,
        cluster.client() as reading,
        Publisher(cluster.service_url, topic, pause_s=0.01) as publisher,
    ):
        followers = [
            Follower(consuming.subscribe(topic, "followed").receive),
            Follower(reading.create_reader(topic, magnetar.MessageId.latest).read_next),
        ]
        try:
            wait_for_more(followers, 100)
            for follower in followers:
                follower.reset_gap()
            hosts.cut(node, how)
            publisher.wait_for(200)
            wait_for_more(followers, 200)
        finally:
            for follower in followers:
                follower.end()
            hosts.heal(node)
    assert max(follower.longest_gap_s for follower in followers) < KEEP_ALIVE_S
    wait_until_whole(cluster)


def wait_for_more(followers, count):
    """Until each has received so many more messages: more than can wait in a client."""
    goals = [(follower, follower.received + count) for follower in followers]
    wait_until(lambda: all(follower.received >= goal for follower, goal in goals), "messages come", 120)


def publish_and_receive(client, topic):
    """A message for each partition, by a client of either library."""
    consumer = client.subscribe(topic, "s")
    for number in range(NODES):
        client.create_producer(f"{topic}-partition-{number}").send(b"%d" % number)
    assert sorted(consumer.receive(10_000).data() for _ in range(NODES)) == [b"%d" % number for number in range(NODES)]


def test_a_client_that_reaches_one_node_gets_to_all_brokers_through_it(hosts, cluster):
    entry = hosts.nodes[1]
    places = cluster.places()
    ports = {f"broker-{number}": port_of_broker(6650, number) for number in range(1, NODES + 1)}
    urls = {f"pulsar://{places[broker].address}:{port}" for broker, port in ports.items()}
    assert set(cluster.service_urls) == urls, "each broker has the port of its number, on whichever node"
    at_broker, at_listener = next(url for url in urls if entry.address in url), f"pulsar://{entry.address}:6600"
    for name in ("by-listener", "by-scheme", "by-the-official-client", "by-nobody"):
        create_partitioned(cluster, name, NODES)
    for node in hosts.nodes:
        if node is not entry:
            hosts.network.cut(hosts.client, Cut.BOTH_WAYS, of=node)
    with magnetar.Client(at_listener) as client:
        publish_and_receive(client, "by-listener")
    with magnetar.Client(at_broker.replace("pulsar:", "pulsar+proxy:")) as client:
        publish_and_receive(client, "by-scheme")
    official = pulsar.Client(at_listener, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    publish_and_receive(official, "by-the-official-client")
    official.close()
    with (
        magnetar.Client(at_broker, operation_timeout_seconds=2, connection_timeout_ms=500) as direct,
        pytest.raises((magnetar.Timeout, magnetar.ConnectError)),
    ):
        publish_and_receive(direct, "by-nobody")


def test_a_node_cut_off_from_the_coordinator_alone_gives_its_topics_up(hosts, cluster):
    """Its broker reaches the clients and most bookies all the time, and may not go on acknowledging."""
    create_topic(cluster, "half-cut")
    node = hosts.nodes[2]
    with Publisher(cluster.service_url, "half-cut") as publisher:
        publisher.wait_for(1000)
        publisher.reset_gap()
        hosts.network.cut(node, of=hosts.head)
        wait_until(lambda: node not in cluster.places().values(), "the node's session ends", 30)
        publisher.wait_for(2000)
        hosts.heal(node)
        publisher.wait_for(1000)
    assert publisher.history.longest_gap_s < GAP_MAX_S
    wait_until_whole(cluster)
    check_nothing_is_lost(cluster, publisher)


def test_a_node_that_is_killed_whole_costs_a_moment_and_nothing_acknowledged(hosts, cluster):
    """The last test of this cluster, which lacks the node's broker and bookie from here on."""
    create_topic(cluster, "killed")
    with Publisher(cluster.service_url, "killed") as publisher:
        publisher.wait_for(1000)
        publisher.reset_gap()
        hosts.kill(hosts.nodes[3])
        publisher.wait_for(2000)
    assert publisher.history.longest_gap_s < GAP_MAX_S
    check_nothing_is_lost(cluster, publisher)
