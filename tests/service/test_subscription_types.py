"""Failover and Key_Shared from end to end, with each face of our client and with the official one."""

import asyncio
import threading
import time

import pulsar
import pytest

import magnetar
from support.clients.sides import FACES, connect
from support.servers.figures import figures, until

pytestmark = pytest.mark.cluster_settings(brokers=1, active_consumer_failover_delay_ms=20)

WAIT_MS = 10_000
MODULES = pytest.mark.parametrize("module", [magnetar, pulsar], ids=["ours", "official"])


@pytest.fixture(scope="module")
def sides(cluster):
    with (
        connect(cluster.service_url, "ours") as ours,
        connect(cluster.service_url, "asyncio") as aio,
        connect(cluster.service_url, "official") as official,
    ):
        yield {magnetar: ours, "asyncio": aio, pulsar: official}


@pytest.fixture(params=[magnetar, "asyncio", pulsar], ids=FACES)
def side(request, sides):
    return sides[request.param]


@pytest.fixture
def partitioned(cluster, topic):
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=4))
    return topic


def subscribe(side, topic, name, kind, **options):
    """A consumer of a subscription that has the topic's name: the same names on other topics would change who is
    active."""
    options.setdefault("initial_position", side.module.InitialPosition.Earliest)
    kind = getattr(side.module.ConsumerType, kind)
    return side.client.subscribe(topic, topic.rpartition("/")[2], consumer_type=kind, consumer_name=name, **options)


def drain(side, consumer, within_ms=200):
    """All messages that come, acknowledged."""
    got = []
    while True:
        try:
            got.append(consumer.receive(within_ms))
        except side.module.Timeout:
            return got
        consumer.acknowledge(got[-1])


def shares(side, members, count):
    """What each member gets of `count` messages, acknowledged: whoever takes a partition over may get it late."""
    got = {name: [] for name in members}
    deadline = time.monotonic() + WAIT_MS / 1000
    while sum(map(len, got.values())) < count:
        assert time.monotonic() < deadline, f"{count} messages were to come: {got}"
        for name, member in members.items():
            got[name] += drain(side, member, 20)
    return got


def take(consumer, count):
    return [consumer.receive(WAIT_MS) for _ in range(count)]


def values(messages):
    return [message.data() for message in messages]


def publish(side, topic, keys, *, start=0, **options):
    """One message for each key, with numbers as values; each alone, unless the options say otherwise."""
    options.setdefault("batching_enabled", False)
    producer = side.client.create_producer(topic, **options)
    for number, key in enumerate(keys, start):
        producer.send_async(b"%d" % number, None, partition_key=key)
    producer.flush()
    producer.close()


# ---- Failover ----


@pytest.mark.promise("17.2", "17.4", "23.4")
def test_partitions_are_shared_by_name_and_taken_over(cluster, side, partitioned):
    def shown(field):
        found = [figures(cluster, f"{partitioned}-partition-{index}")["subscriptions"] for index in range(4)]
        return [of[partitioned.rpartition("/")[2]][field] for of in found]

    members = {name: subscribe(side, partitioned, name, "Failover") for name in "DBCA"}
    until(lambda: shown("activeConsumerName") == list("ABCD"))
    producer = side.client.create_producer(
        partitioned, message_routing_mode=side.module.PartitionsRoutingMode.RoundRobinDistribution
    )
    for number in range(40):
        producer.send(b"%d" % number)
    got = shares(side, members, 40)
    partitions = {name: {message.message_id().partition() for message in mine} for name, mine in got.items()}
    assert partitions == {"A": {0}, "B": {1}, "C": {2}, "D": {3}}
    until(lambda: not any(shown("msgBacklog")))  # what is not acknowledged would come again
    members.pop("A").close()
    until(lambda: shown("activeConsumerName") == list("BCDB"))
    for number in range(40, 80):
        producer.send(b"%d" % number)
    again = shares(side, members, 40)
    assert {name: {message.message_id().partition() for message in mine} for name, mine in again.items()} == {
        "B": {0, 3},
        "C": {1},
        "D": {2},
    }
    assert sorted(int(data) for mine in again.values() for data in values(mine)) == list(range(40, 80))


@pytest.mark.promise("16.1", "17.3", "17.8", "17.10")
def test_the_next_subscriber_gets_what_the_first_did_not_acknowledge(side, topic):
    first = subscribe(side, topic, "z", "Failover")
    second = subscribe(side, topic, "a", "Failover")
    publish(side, topic, "k" * 6)
    received = take(first, 6)
    assert values(drain(side, second, 50)) == []
    first.acknowledge_cumulative(received[2])
    first.close()
    assert values(take(second, 3)) == [b"3", b"4", b"5"]


@pytest.mark.promise("6.5", "6.6")
def test_a_negative_acknowledgement_begins_again_at_the_first_unacknowledged(side, topic):
    consumer = subscribe(side, topic, "a", "Failover", negative_ack_redelivery_delay_ms=50)
    publish(side, topic, "k" * 4)
    received = take(consumer, 4)
    consumer.acknowledge(received[0])
    consumer.negative_acknowledge(received[3])
    assert values(take(consumer, 3)) == [b"1", b"2", b"3"]


@pytest.mark.promise("17.3")
@MODULES
def test_both_clients_stand_by_for_each_other(module, sides, topic):
    other = sides[pulsar if module is magnetar else magnetar]
    first = subscribe(sides[module], topic, "first", "Failover")
    second = subscribe(other, topic, "second", "Failover")
    publish(other, topic, "kk")
    assert values(take(first, 2)) == [b"0", b"1"]
    first.close()
    assert values(take(second, 2)) == [b"0", b"1"]


class Events(magnetar.ConsumerEventListener):
    def __init__(self):
        self.seen = []
        self.arrived = threading.Condition()

    def became_active(self, consumer, partition):
        self._note(consumer, "active", partition)

    def became_inactive(self, consumer, partition):
        self._note(consumer, "inactive", partition)

    def _note(self, consumer, *event):
        with self.arrived:
            self.seen.append((consumer, *event))
            self.arrived.notify_all()
        if event[0] == "inactive":
            raise RuntimeError("a listener's error changes nothing")

    def wait(self, count):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.seen) >= count, 10)
        return self.seen


@pytest.mark.promise("31.8")
def test_a_listener_is_told_of_each_change(sides, topic):
    ours, first, second = sides[magnetar], Events(), Events()
    one = subscribe(ours, topic, "b", "Failover", consumer_event_listener=first)
    assert first.wait(1) == [(one, "active", -1)]
    two = subscribe(ours, topic, "a", "Failover", consumer_event_listener=second)
    assert second.wait(1) == [(two, "inactive", -1)]
    one.close()
    assert second.wait(2) == [(two, "inactive", -1), (two, "active", -1)]
    assert len(first.seen) == 1
    two.close()


@pytest.mark.promise("31.8")
async def test_the_asyncio_face_tells_a_listener_of_each_partition(cluster, partitioned):
    events = Events()
    async with magnetar.AsyncClient(cluster.service_url) as client:
        consumer = await client.subscribe(
            partitioned, "s", consumer_type=magnetar.ConsumerType.Failover, consumer_event_listener=events
        )
        await asyncio.to_thread(events.wait, 4)
        assert sorted(events.seen, key=lambda seen: seen[2]) == [(consumer, "active", index) for index in range(4)]
        await consumer.close()


# ---- Key_Shared ----


def by_key(got):
    """The values of each key, and the consumers that got them."""
    found, owners = {}, {}
    for name, messages in got.items():
        for message in messages:
            found.setdefault(message.partition_key(), []).append(int(message.data()))
            owners.setdefault(message.partition_key(), set()).add(name)
    return found, owners


@pytest.mark.promise("2.2", "16.1", "18.1", "18.7", "19.6")
@pytest.mark.parametrize("publisher", [magnetar, pulsar], ids=["from_ours", "from_official"])
def test_a_key_goes_to_one_consumer_in_order_with_key_based_batches(publisher, side, sides, topic):
    members = {name: subscribe(side, topic, name, "KeyShared") for name in ("c1", "c2", "c3")}
    keys = [f"key-{number % 30}" for number in range(300)]
    publish(
        sides[publisher],
        topic,
        keys,
        batching_enabled=True,
        batching_type=publisher.BatchingType.KeyBased,
        batching_max_messages=50,
    )
    got = shares(side, members, 300)
    found, owners = by_key(got)
    assert all(len(names) == 1 for names in owners.values())
    assert found == {key: [number for number in range(300) if keys[number] == key] for key in set(keys)}
    assert all(got.values())


@pytest.mark.promise("18.2")
def test_the_ordering_key_comes_before_the_key(side, topic):
    members = {name: subscribe(side, topic, name, "KeyShared") for name in ("c1", "c2", "c3")}
    producer = side.client.create_producer(topic)
    for number in range(30):
        producer.send(b"%d" % number, partition_key=f"key-{number}", ordering_key="one for all")
    assert sorted(map(len, shares(side, members, 30).values())) == [0, 0, 30]


@pytest.mark.promise("18.18")
def test_messages_without_a_key_spread_over_the_consumers(side, topic):
    members = {name: subscribe(side, topic, name, "KeyShared") for name in ("c1", "c2")}
    producer = side.client.create_producer(topic)
    for number in range(40):
        producer.send(b"%d" % number)
    got = shares(side, members, 40)
    assert all(got.values()) and sum(map(len, got.values())) == 40


@pytest.mark.promise("19.2", "19.3")
def test_a_moved_key_waits_for_its_old_consumer_and_others_go_on(side, topic):
    first = subscribe(side, topic, "c1", "KeyShared")
    keys = [f"key-{number}" for number in range(20)]
    publish(side, topic, keys)
    held = take(first, 20)
    second = subscribe(side, topic, "c2", "KeyShared")
    publish(side, topic, keys, start=20)
    again = take(first, 1) + drain(side, first)
    assert 0 < len(again) < 20, "keys that stayed"
    assert values(drain(side, second)) == [], "keys that moved drain"
    for message in held:
        first.acknowledge(message)
    moved = take(second, 20 - len(again))
    assert {message.partition_key() for message in moved} == set(keys) - {one.partition_key() for one in again}


@pytest.mark.promise("19.5")
def test_out_of_order_delivery_does_not_wait(side, topic):
    policy = side.module.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    first = subscribe(side, topic, "c1", "KeyShared", key_shared_policy=policy)
    keys = [f"key-{number}" for number in range(20)]
    publish(side, topic, keys)
    take(first, 20)
    second = subscribe(side, topic, "c2", "KeyShared", key_shared_policy=policy)
    publish(side, topic, keys, start=20)
    assert take(second, 1)


@pytest.mark.promise("18.3", "18.4", "18.7", "18.16", "18.17")
def test_sticky_ranges_decide_and_may_not_overlap(side, topic):
    module = side.module

    def sticky(*ranges):
        return module.ConsumerKeySharedPolicy(module.KeySharedMode.Sticky, False, list(ranges))

    first = subscribe(side, topic, "C1", "KeyShared", key_shared_policy=sticky((0, 16383), (32768, 49151)))
    with pytest.raises(module.ConsumerAssignError):
        subscribe(side, topic, "overlap", "KeyShared", key_shared_policy=sticky((100, 200)))
    with pytest.raises(module.ConsumerBusy):
        subscribe(side, topic, "split", "KeyShared")
    second = subscribe(side, topic, "C2", "KeyShared", key_shared_policy=sticky((16384, 32767), (49152, 65535)))
    publish(side, topic, ["Order-3459134", *(str(number) for number in range(20))])
    got = shares(side, {"C1": first, "C2": second}, 21)
    assert b"0" in values(got["C1"])
    assert got["C2"] and sum(map(len, got.values())) == 21


@pytest.mark.promise("6.4", "18.1", "19.4")
def test_a_negative_acknowledgement_brings_back_one_message_to_the_same_consumer(side, topic):
    members = {
        name: subscribe(side, topic, name, "KeyShared", negative_ack_redelivery_delay_ms=50) for name in ("c1", "c2")
    }
    publish(side, topic, "aabb")
    first = {name: drain_unacknowledged(side, member) for name, member in members.items()}
    for name, messages in first.items():
        for message in messages[:1]:
            members[name].negative_acknowledge(message)
    for name, messages in first.items():
        again = take(members[name], len(messages[:1]))
        assert values(again) == values(messages[:1])
        assert all(message.redelivery_count() == 1 for message in again)


def drain_unacknowledged(side, consumer):
    got = []
    while True:
        try:
            got.append(consumer.receive(200))
        except side.module.Timeout:
            return got


@pytest.mark.promise("5.3", "19.10")
def test_our_client_refuses_cumulative_acknowledgement(sides, topic):
    consumer = subscribe(sides[magnetar], topic, "c", "KeyShared")
    publish(sides[magnetar], topic, "a")
    with pytest.raises(magnetar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(consumer.receive(WAIT_MS))


@pytest.mark.parametrize(
    "ranges, text",
    [
        (None, "needs sticky_ranges"),
        ([], "must not be empty"),
        ([(5, 1)], r"Ranges must be \[0, 65535\], but provided range is \[5, 1\]"),
        ([(0, 65536)], r"Ranges must be \[0, 65535\]"),
        ([(0, 10), (10, 20)], "with overlap"),
        ([7], "pairs of two integers"),
    ],
)
def test_impossible_policies_are_refused(ranges, text):
    with pytest.raises(magnetar.InvalidConfiguration, match=text):
        magnetar.ConsumerKeySharedPolicy(magnetar.KeySharedMode.Sticky, False, ranges)


def test_a_policy_of_the_wrong_kind_is_refused(sides, topic):
    with pytest.raises(magnetar.InvalidConfiguration, match="ConsumerKeySharedPolicy"):
        sides[magnetar].client.subscribe(topic, "s", key_shared_policy="sticky")
    with pytest.raises(magnetar.InvalidConfiguration, match="KeySharedMode"):
        magnetar.ConsumerKeySharedPolicy(1)
