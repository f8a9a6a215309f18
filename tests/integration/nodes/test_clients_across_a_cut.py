"""Exclusive producers and deduplicated sends while a real network is cut: between hosts, so that nobody is told."""

import threading

import pytest

import magnetar
from magnetar import MessageId, ProducerAccessMode, ProducerFenced
from magnetar.client.core.configuration import ClientConfiguration
from support.clients.workload import Publisher, check_history, read_log
from support.nodes.network import Cut
from support.nodes.owning import topic_on
from support.servers.ray_nodes import wait_until

pytestmark = pytest.mark.alone

NODES = 4
SETTINGS = {"brokerDeduplicationEnabled": True, "addEntryTimeoutSec": 1.0, "keepAliveIntervalSeconds": 5}
FENCING, WAIT = ProducerAccessMode.ExclusiveWithFencing, ProducerAccessMode.WaitForExclusive
READ_MS = 20_000
GRANT_S = 60.0
KEEP_ALIVE_S = ClientConfiguration().keep_alive_interval_s
"""The keep-alive rule alone takes twice as long."""


@pytest.fixture(scope="module")
def shared(shared_hosts):
    with shared_hosts.start_cluster(brokers=NODES, bookies=NODES, settings=SETTINGS) as cluster:
        yield cluster


@pytest.fixture
def cluster(hosts, shared):
    """Whole at the start of each test."""
    wait_until(lambda: len(shared.places()) == 2 * NODES + 1, "all brokers and bookies run", 60)
    return shared


@pytest.fixture
def outpost(hosts):
    """A host for a client that is to be cut off. No node of Ray runs there."""
    found = next((host for host in hosts.network.hosts if host.name == "outpost"), None)
    return found if found is not None else hosts.network.add_host("outpost")


class Outcome:
    """What a send came to."""

    def __init__(self, producer, payload):
        self.result = None
        self._told = threading.Event()
        producer.send_async(payload, self._answered)

    def _answered(self, result, message_id):
        self.result = result
        self._told.set()

    def wait(self):
        assert self._told.wait(GRANT_S), "the send was never answered"
        return self.result


def everything(client, topic):
    """All payloads of a topic, in the order of the log."""
    reader = client.create_reader(topic, MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(READ_MS).data())
    reader.close()
    return found


def keep(client, topic):
    """Nothing of the topic is trimmed from here on."""
    client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()


@pytest.mark.promise("30.17")
def test_a_leader_that_is_cut_off_is_fenced_by_the_next_and_writes_nothing_more(hosts, cluster, outpost):
    with outpost.network():
        away = cluster.client()
        old = away.create_producer("led", access_mode=FENCING, send_timeout_millis=60_000)
    with hosts.client.network(), cluster.client() as client:
        keep(client, "led")
        old.send(b"old")
        hosts.cut(outpost)
        cut_off = Outcome(old, b"into the cut")
        new = client.create_producer("led", access_mode=FENCING)
        new.send(b"new")
        hosts.heal(outpost)
        assert cut_off.wait() == magnetar.Result.ProducerFenced
        with pytest.raises(ProducerFenced):
            old.send(b"late")
        new.send(b"newer")
        assert everything(client, "led") == [b"old", b"new", b"newer"]
        away.close()


def test_who_waits_for_access_gets_it_when_the_leader_is_cut_off(hosts, cluster, outpost):
    """The broker ends the silent leader's connection by its keep-alive."""
    granted = []
    with outpost.network():
        away = cluster.client()
        old = away.create_producer("awaited", access_mode=WAIT, send_timeout_millis=120_000)
    with hosts.client.network(), cluster.client() as client:
        keep(client, "awaited")
        old.send(b"old")
        election = threading.Thread(
            target=lambda: granted.append(client.create_producer("awaited", access_mode=WAIT)), daemon=True
        )
        election.start()
        hosts.cut(outpost)
        cut_off = Outcome(old, b"into the cut")
        election.join(2 * GRANT_S)
        assert granted, "the leader is silent, and its successor still waits"
        granted[0].send(b"new")
        hosts.heal(outpost)
        assert cut_off.wait() == magnetar.Result.ProducerFenced
        assert everything(client, "awaited") == [b"old", b"new"]
        away.close()


def test_a_leader_keeps_its_topic_when_the_owner_is_cut_off_until_it_is_fenced(hosts, cluster):
    with hosts.client.network(), cluster.client() as client, cluster.client() as other:
        topics = [f"owned-{number}" for number in range(2 * NODES)]
        for topic in topics:
            keep(client, topic)
        leaders = [client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive) for topic in topics]
        sent = [[producer.send(b"before")] for producer in leaders]
        hosts.cut(hosts.nodes[1])
        for ids, leader in zip(sent, leaders, strict=True):
            ids.append(leader.send(b"across"))
        with pytest.raises((magnetar.ProducerBusy, ProducerFenced)):
            other.create_producer(topics[0], access_mode=ProducerAccessMode.Exclusive)
        hosts.heal(hosts.nodes[1])
        for topic, leader in zip(topics, leaders, strict=True):
            other.create_producer(topic, access_mode=FENCING).send(b"after")
            with pytest.raises(ProducerFenced):
                leader.send(b"late")
            assert everything(client, topic) == [b"before", b"across", b"after"]


@pytest.mark.promise("30.17")
@pytest.mark.parametrize("how", list(Cut))
def test_with_deduplication_each_message_is_there_once_after_a_cut(hosts, cluster, how):
    node = hosts.nodes[1]
    with hosts.client.network():
        topic = topic_on(cluster, node, f"once-{how.name.lower().replace('_', '-')}", NODES)
        with Publisher(cluster.service_url, topic, producer_name=f"steady-{topic}", in_flight_max=500) as publisher:
            publisher.wait_for(1000)
            publisher.reset_gap()
            hosts.cut(node, how)
            publisher.wait_for(1000)
            hosts.heal(node)
            publisher.wait_for(1000)
        assert not publisher.history.failed
        assert publisher.history.longest_gap_s < KEEP_ALIVE_S
        with cluster.client() as client:
            found = check_history(publisher.history, read_log(client, topic))
        assert found == {"messages": publisher.history.sent, "duplicates": 0}
