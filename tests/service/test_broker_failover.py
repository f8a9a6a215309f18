"""Brokers, bookies and the coordinator stop and come back under the official client: nothing acknowledged is lost."""

import asyncio
import threading
import time

import pulsar
import pytest

from magnetar.actors.broker.service import BrokerState
from magnetar.protocol.errors import CoordinatorUnavailable
from support.servers.embedded_cluster import EmbeddedCluster

WAIT_MS = 15_000
AT_ONCE = 20


def connect(cluster, **options):
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(cluster.service_url, operation_timeout_seconds=20, logger=logger, **options)


class Publisher(threading.Thread):
    """Sends numbers one after another until stopped, and remembers which were acknowledged, and the longest gap."""

    def __init__(self, client, topic):
        super().__init__(daemon=True)
        self.acknowledged = []
        self.gap_s = 0.0
        self.failure = None
        client.subscribe(topic, "keep").close()  # else a topic that has moved trims what nobody is subscribed to
        self._producer = client.create_producer(topic, send_timeout_millis=30_000)
        self._ended = threading.Event()

    def run(self):
        last = time.monotonic()
        number = 0
        try:
            while not self._ended.is_set():
                self._producer.send(b"%d" % number)
                now = time.monotonic()
                self.gap_s = max(self.gap_s, now - last)
                last = now
                self.acknowledged.append(number)
                number += 1
        except Exception as error:
            self.failure = error

    def wait_for(self, count):
        deadline = time.monotonic() + 30
        while len(self.acknowledged) < count:
            assert self.failure is None and time.monotonic() < deadline, self.failure
            time.sleep(0.005)

    def stop(self):
        self._ended.set()
        self.join(30)
        assert self.failure is None, self.failure
        return self.acknowledged


def read_all(client, topic):
    """All numbers of a topic in the order of the log."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(int(reader.read_next(WAIT_MS).data()))
    reader.close()
    return found


def check(log, acknowledged):
    """Everything acknowledged is there, in order but for repeats of what had no receipt in time."""
    assert set(log) >= set(acknowledged)
    first_seen = list(dict.fromkeys(log))
    assert first_seen == sorted(first_seen)


@pytest.mark.promise("1.6")
def test_a_stopped_brokers_topics_go_on_elsewhere(tmp_path, topic):
    with EmbeddedCluster(tmp_path, brokers=2) as cluster:
        client = connect(cluster)
        publisher = Publisher(client, topic)
        publisher.start()
        publisher.wait_for(50)
        owner = cluster.owner(topic)
        cluster.run(cluster.stop_broker(owner))
        publisher.wait_for(len(publisher.acknowledged) + 50)
        assert cluster.owner(topic) != owner
        acknowledged = publisher.stop()
        check(read_all(client, topic), acknowledged)
        assert publisher.gap_s < 5
        client.close()


@pytest.mark.promise("15.11")
def test_subscriptions_survive_the_restart_of_everything(tmp_path, topic):
    with EmbeddedCluster(tmp_path) as cluster:
        client = connect(cluster)
        consumer = client.subscribe(
            topic, "s", consumer_type=pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
        )
        producer = client.create_producer(topic)
        for number in range(20):
            producer.send(b"%d" % number)
        for _ in range(20):
            message = consumer.receive(WAIT_MS)
            if int(message.data()) % 2:
                consumer.acknowledge(message)
        time.sleep(0.2)  # the client groups its acknowledgements
        client.close()
    with EmbeddedCluster(tmp_path) as cluster:
        client = connect(cluster)
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        assert [int(consumer.receive(WAIT_MS).data()) for _ in range(10)] == list(range(0, 20, 2))
        assert read_all(client, topic) == list(range(20))
        client.close()


def test_publishing_goes_on_while_the_coordinator_is_away(tmp_path, topic):
    with EmbeddedCluster(tmp_path) as cluster:
        client = connect(cluster)
        publisher = Publisher(client, topic)
        publisher.start()
        publisher.wait_for(20)
        cluster.run(cluster.stop_coordinator())
        publisher.wait_for(len(publisher.acknowledged) + 50)
        cluster.run(cluster.start_coordinator())
        publisher.wait_for(len(publisher.acknowledged) + 50)
        assert publisher.gap_s < 2
        acknowledged = publisher.stop()
        check(read_all(client, topic), acknowledged)
        late = client.create_producer(topic + "-new")  # the new coordinator assigns new topics
        late.send(b"x")
        client.close()


def test_publishing_goes_on_without_one_bookie(tmp_path, topic):
    with EmbeddedCluster(tmp_path, bookies=3) as cluster:
        client = connect(cluster)
        publisher = Publisher(client, topic)
        publisher.start()
        publisher.wait_for(20)
        cluster.run(cluster.stop_bookie(2))
        publisher.wait_for(len(publisher.acknowledged) + 100)
        acknowledged = publisher.stop()
        check(read_all(client, topic), acknowledged)
        client.close()


def test_a_broker_that_lost_its_session_registers_again_and_serves(tmp_path, topic):
    with EmbeddedCluster(tmp_path) as cluster:
        client = connect(cluster)
        publisher = Publisher(client, topic)
        publisher.start()
        publisher.wait_for(20)

        broker = cluster.brokers[1]

        async def lose():
            assert broker.state is BrokerState.SERVING
            broker._session_lost()
            broker._session_lost()  # a second word of the same loss
            assert broker.state is BrokerState.RENEWING

        cluster.run(lose())
        publisher.wait_for(len(publisher.acknowledged) + 50)
        deadline = time.monotonic() + 10
        while broker.state is not BrokerState.SERVING:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        acknowledged = publisher.stop()
        check(read_all(client, topic), acknowledged)
        client.close()


def test_a_broker_cut_off_from_the_coordinator_is_fenced_and_its_clients_move_on(tmp_path, topic):
    """Its sockets to clients and bookies stay open, so it believes to be the owner until a write is refused."""
    with EmbeddedCluster(tmp_path, brokers=2, session_timeout_s=1.0, heartbeat_interval_s=0.1) as cluster:
        client = connect(cluster)
        publisher = Publisher(client, topic)
        publisher.start()
        publisher.wait_for(20)
        owner = cluster.owner(topic)
        cut_off = cluster.brokers[owner]

        async def cut():
            link = cut_off.lookups.coordinator()

            async def nowhere():
                raise CoordinatorUnavailable("cut off")

            link._finder._locate = nowhere
            link._connection.close()

        cluster.run(cut())
        publisher.wait_for(len(publisher.acknowledged) + 100)
        deadline = time.monotonic() + 10
        while topic not in cluster.brokers[3 - owner].topics.loaded:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        publisher.wait_for(len(publisher.acknowledged) + 100)
        acknowledged = publisher.stop()
        check(read_all(client, topic), acknowledged)
        assert topic not in cut_off.topics.loaded

        async def mend():
            cut_off.lookups.coordinator()._finder._locate = cluster.locate

        cluster.run(mend())
        deadline = time.monotonic() + 10
        while cut_off._session is None or not cut_off._session.coordinator.connected:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.close()


@pytest.mark.promise("23.1")
def test_many_topics_move_at_once(tmp_path, topic):
    with EmbeddedCluster(tmp_path, brokers=2) as cluster:
        client = connect(cluster)
        cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=100))
        producer = client.create_producer(topic)
        for number in range(100):
            producer.send(b"%d" % number)
        owned = {number: len(broker.topics.loaded) for number, broker in cluster.brokers.items()}
        assert min(owned.values()) >= 50
        survivor = cluster.brokers[2].topics
        open_ledger, opening, together = survivor._open_ledger, [], asyncio.Event()

        async def with_others(name, epoch):
            """No ledger is opened before so many are to be opened."""
            opening.append(name)
            if len(opening) >= AT_ONCE:
                together.set()
            await together.wait()
            return await open_ledger(name, epoch)

        survivor._open_ledger = with_others
        cluster.run(cluster.stop_broker(1))
        for number in range(100):
            producer.send(b"%d" % number)
        assert len(opening) >= 50
        client.close()
