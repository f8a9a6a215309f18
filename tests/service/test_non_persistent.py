"""Non-persistent topics on a cluster with two brokers, with each face of our client and with the official one."""

import statistics
import time

import pytest

import magnetar
from magnetar.storage.metadata.store import list_all
from support.clients.sides import FACES, connect
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(brokers=2, bookies=2, session_timeout_s=1.0, heartbeat_interval_s=0.1)

WAIT_MS = 10_000


@pytest.fixture(params=FACES)
def side(request, cluster):
    with connect(cluster.service_url, request.param) as connected:
        yield connected


@pytest.fixture
def name(topic):
    return "non-" + topic


def subscription_of(cluster, name, subscription="s"):
    """The subscription on the broker that has the topic; None if there is none."""
    for broker in cluster.brokers.values():
        found = broker.topics.loaded.get(name)
        if found is not None and (subscription, True) in found.subscriptions:
            return found.subscriptions[subscription, True]
    return None


def wait_for_permits(cluster, name, consumers=1, subscription="s"):
    deadline = time.monotonic() + 10
    while True:
        found = subscription_of(cluster, name, subscription)
        members = found.consumers if found is not None else []
        if len(members) == consumers and all(member.permits > 0 for member in members):
            return found
        assert time.monotonic() < deadline
        time.sleep(0.005)


def nothing_comes(side, consumer, within_ms=200):
    with pytest.raises(side.module.Timeout):
        consumer.receive(within_ms)


@pytest.mark.promise("24.1", "24.5", "24.6")
def test_messages_reach_who_is_connected_and_nobody_later(side, cluster, name):
    producer = side.client.create_producer(name)
    producer.send(b"before")
    consumer = side.client.subscribe(name, "s", initial_position=side.module.InitialPosition.Earliest)
    wait_for_permits(cluster, name)
    for number in range(100):
        producer.send(b"%d" % number)
    received = [consumer.receive(WAIT_MS) for _ in range(100)]
    assert [message.data() for message in received] == [b"%d" % number for number in range(100)]
    assert {message.topic_name() for message in received} == {name}
    for message in received:
        consumer.acknowledge(message)
    consumer.close()
    producer.send(b"between")
    again = side.client.subscribe(name, "s")
    nothing_comes(side, again)


@pytest.mark.promise("24.6")
def test_batches_arrive_whole(side, cluster, name):
    consumer = side.client.subscribe(name, "s")
    producer = side.client.create_producer(name, batching_enabled=True, batching_max_publish_delay_ms=20)
    wait_for_permits(cluster, name)
    for number in range(300):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    assert [consumer.receive(WAIT_MS).data() for _ in range(300)] == [b"%d" % number for number in range(300)]


@pytest.mark.promise("24.2")
def test_what_has_no_permits_is_dropped_counted_and_never_sent(side, cluster, name):
    consumer = side.client.subscribe(name, "s", receiver_queue_size=5)
    subscription = wait_for_permits(cluster, name)
    producer = side.client.create_producer(name, batching_enabled=False)
    for number in range(20):
        producer.send(b"%d" % number)
    figures = cluster.run(figures_of(subscription))
    assert figures.dropped_messages > 0 and figures.messages + figures.dropped_messages == 20
    assert figures.drop_rate > 0 and figures.backlog_entries == 0
    received = [consumer.receive(WAIT_MS).data() for _ in range(figures.messages)]
    assert received == [b"%d" % number for number in range(figures.messages)]
    nothing_comes(side, consumer)


async def figures_of(subscription):
    return subscription.figures(subscription._loop.time())


@pytest.mark.promise("24.5")
@pytest.mark.parametrize("kind", ["Shared", "KeyShared", "Failover"])
def test_two_consumers_of_one_subscription_get_each_message_once(side, cluster, name, kind):
    kinds = side.module.ConsumerType
    consumers = [
        side.client.subscribe(name, "s", consumer_type=getattr(kinds, kind), consumer_name=which) for which in "ab"
    ]
    wait_for_permits(cluster, name, 2)
    producer = side.client.create_producer(name, batching_enabled=False)
    for number in range(40):
        producer.send(b"%d" % number, partition_key=f"key-{number % 8}")
    got = [[], []]
    deadline = time.monotonic() + 10
    while len(got[0]) + len(got[1]) < 40:
        assert time.monotonic() < deadline
        for consumer, into in zip(consumers, got, strict=True):
            try:
                into.append(consumer.receive(20))
            except side.module.Timeout:
                continue
    numbers = [[int(message.data()) for message in into] for into in got]
    assert sorted(numbers[0] + numbers[1]) == list(range(40)) and numbers[0] == sorted(numbers[0])
    if kind == "Failover":
        assert sorted(map(len, numbers)) == [0, 40]
    else:
        assert all(numbers)
    if kind == "KeyShared":
        assert not {number % 8 for number in numbers[0]} & {number % 8 for number in numbers[1]}


@pytest.mark.promise("24.3")
def test_a_receipt_comes_at_once_and_names_no_place(side, cluster, name):
    """In turns with a persistent topic, whose receipts wait for the disks of two bookies."""
    plain = name.removeprefix("non-")
    producers = {one: side.client.create_producer(one, batching_enabled=False) for one in (name, plain)}
    times = {name: [], plain: []}
    for _ in range(31):
        for one, producer in producers.items():
            began = time.perf_counter()
            message_id = producer.send(b"x" * 100)
            times[one].append(time.perf_counter() - began)
            if one == name:
                assert (message_id.ledger_id(), message_id.entry_id()) == (0, 0)
    assert statistics.median(times[name]) < statistics.median(times[plain])


@pytest.mark.promise("24.4")
def test_what_a_lost_subscriber_held_is_lost(side, cluster, name):
    shared = {"consumer_type": side.module.ConsumerType.Shared}
    with connect(cluster.service_url, side.face) as dying:
        lost = dying.client.subscribe(name, "s", **shared)
        wait_for_permits(cluster, name)
        producer = side.client.create_producer(name, batching_enabled=False)
        for number in range(5):
            producer.send(b"%d" % number)
        assert len([lost.receive(WAIT_MS) for _ in range(5)]) == 5
        heir = side.client.subscribe(name, "s", **shared)
        wait_for_permits(cluster, name, 2)
    wait_for_permits(cluster, name, 1)
    producer.send(b"after")
    assert heir.receive(WAIT_MS).data() == b"after"
    nothing_comes(side, heir)


@pytest.mark.promise("15.3", "24.4", "24.9")
def test_a_topic_is_not_in_the_metadata_and_comes_again_after_its_broker(side, cluster, name):
    consumer = side.client.subscribe(name, "s")
    producer = side.client.create_producer(name, batching_enabled=False)
    wait_for_permits(cluster, name)
    keys = [key for key, _ in cluster.run(list_all(cluster._metadata, ""))]
    assert keys and [key for key in keys if "non-persistent" in key] == []
    owner = cluster.owner(name)
    cluster.run(cluster.stop_broker(owner))
    try:
        wait_for_permits(cluster, name)
        assert cluster.owner(name) != owner
        producer.send(b"after")
        assert consumer.receive(WAIT_MS).data() == b"after"
    finally:
        cluster.run(cluster.start_broker(owner))


@pytest.mark.promise("24.9")
def test_a_topic_comes_again_after_the_coordinator(side, cluster, name):
    consumer = side.client.subscribe(name, "s")
    producer = side.client.create_producer(name, batching_enabled=False)
    before = wait_for_permits(cluster, name)
    cluster.run(cluster.stop_coordinator())
    producer.send(b"meanwhile")
    assert consumer.receive(WAIT_MS).data() == b"meanwhile"
    cluster.run(cluster.start_coordinator())
    deadline = time.monotonic() + 10
    while (found := subscription_of(cluster, name)) is before or found is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    wait_for_permits(cluster, name)
    producer.send(b"after")
    assert consumer.receive(WAIT_MS).data() == b"after"


@pytest.mark.promise("24.9")
def test_a_broker_that_ends_without_clients_takes_its_topics_with_it(cluster, name):
    with magnetar.Client(cluster.service_url) as client:
        client.create_producer(name).close()
    owner = cluster.owner(name)
    assert [name, 0] in [list(one) for one in cluster.run(cluster.coordinator_call("topic_records", **NAMESPACE))]
    cluster.run(cluster.stop_broker(owner))
    try:
        deadline = time.monotonic() + 10
        while [name, 0] in [list(one) for one in cluster.run(cluster.coordinator_call("topic_records", **NAMESPACE))]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        cluster.run(cluster.start_broker(owner))


NAMESPACE = {"namespace": "public/default"}


@pytest.mark.promise("24.7")
def test_the_setting_switches_them_off(tmp_path):
    with EmbeddedCluster(tmp_path, bookies=2, non_persistent_topics_enabled=False) as cluster:
        for face in FACES:
            with connect(cluster.service_url, face) as side:
                match = None if face == "official" else "enableNonPersistentTopics"
                with pytest.raises(side.module.NotAllowedError, match=match):
                    side.client.create_producer("non-persistent://public/default/t")
                with pytest.raises(side.module.NotAllowedError, match=match):
                    side.client.subscribe("non-persistent://public/default/t", "s")
                side.client.create_producer(f"persistent://public/default/{face}").send(b"x")
