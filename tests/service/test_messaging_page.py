"""Promises of Pulsar's “Messaging” page from end to end, each with our client and with the official one.

The names are the same, so one test serves both faces of our client and the official one: `side` is a module
(`magnetar` or `pulsar`) with a connected client. Rows that other files show already are not repeated here;
`docs/reference/promises.md` says which test shows which promise.
"""

import threading
import time
from collections import Counter
from datetime import datetime
from types import SimpleNamespace

import pulsar
import pytest

import magnetar
from magnetar.actors.topics.topic import SubscriptionStart
from magnetar.client.core.configuration import ConsumerConfiguration, ProducerConfiguration
from support.clients import sides
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.figures import figures as shown
from support.servers.figures import loaded, until

pytestmark = pytest.mark.cluster_settings(
    brokers=2, ledger_entries_max=10, ledger_rollover_min_minutes=0, cursor_flush_interval_s=0.05
)

WAIT_MS = 10_000


def connect(cluster, module, timeout_s=10):
    """`side` for one of the two client modules."""
    options = {"logger": pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)} if module is pulsar else {}
    return of_client(
        cluster, module, module.Client(cluster.service_url, operation_timeout_seconds=timeout_s, **options)
    )


def of_client(cluster, module, client):
    earliest = module.InitialPosition.Earliest
    shared = {"consumer_type": module.ConsumerType.Shared, "initial_position": earliest}
    return SimpleNamespace(module=module, client=client, earliest=earliest, shared=shared, cluster=cluster)


@pytest.fixture(params=sides.FACES)
def side(request, cluster):
    with sides.connect(cluster.service_url, request.param, operation_timeout_seconds=10) as connected:
        yield of_client(cluster, connected.module, connected.client)


@pytest.fixture
def both(cluster):
    sides = [connect(cluster, module) for module in (magnetar, pulsar)]
    yield sides
    for one in sides:
        one.client.close()


def numbers(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def take(consumer, count, *, acknowledge=True):
    messages = [consumer.receive(WAIT_MS) for _ in range(count)]
    if acknowledge:
        for message in messages:
            consumer.acknowledge(message)
    return messages


def values(messages):
    return [message.data() for message in messages]


def nothing_comes(side, consumer, within_ms=200):
    with pytest.raises(side.module.Timeout):
        consumer.receive(within_ms)


def kept(cluster, topic):
    """How many entries the topic's ledgers hold."""
    return sum(info.entries for info in loaded(cluster, topic).ledger.ledger_infos)


# ---- What is kept, and for how long ----


@pytest.mark.promise("1.2", "1.3", "5.4", "26.1")
def test_a_message_is_kept_until_every_durable_subscription_has_acknowledged_it(side, cluster, topic):
    for name in ("a", "b"):
        side.client.subscribe(topic, name, initial_position=side.earliest).close()
    producer = side.client.create_producer(topic)
    for data in numbers(35):
        producer.send(data)
    time.sleep(0.3)
    assert kept(cluster, topic) == 35, "nobody is connected"
    first = side.client.subscribe(topic, "a")
    assert values(take(first, 35)) == numbers(35)
    first.close()
    time.sleep(0.3)
    assert kept(cluster, topic) == 35, "the other one has not acknowledged"
    second = side.client.subscribe(topic, "b")
    assert values(take(second, 35)) == numbers(35)
    second.close()
    until(lambda: kept(cluster, topic) < 10)


@pytest.mark.promise("1.4", "21.5")
def test_a_topic_without_a_durable_subscription_keeps_nothing(side, cluster, topic):
    reader = side.client.create_reader(topic, side.module.MessageId.earliest)
    producer = side.client.create_producer(topic)
    for data in numbers(35):
        producer.send(data)
    until(lambda: kept(cluster, topic) < 10)
    reader.close()
    late = side.client.subscribe(topic, "late", initial_position=side.earliest)
    rest = numbers(35)[35 - kept(cluster, topic) :]
    assert values(take(late, len(rest))) == rest
    nothing_comes(side, late)


@pytest.mark.promise("27.1")
def test_without_deduplication_a_resent_message_is_stored_twice(side, topic):
    consumer = side.client.subscribe(topic, "s")
    producer = side.client.create_producer(topic, producer_name="me")
    for _ in range(2):
        producer.send(b"again", sequence_id=5)
    assert values(take(consumer, 2)) == [b"again"] * 2


# ---- Messages ----


@pytest.mark.promise("2.4", "2.5", "2.7", "2.9", "2.11", "2.12", "4.1")
def test_what_is_on_a_message_without_being_asked_for(both, topic):
    """Producer name, topic name, sequence id, publish time, event time: whoever wrote it, whoever reads it."""
    consumers = [one.client.subscribe(topic, one.module.__name__) for one in both]
    producers = [one.client.create_producer(topic) for one in both for _ in range(3)]
    names = [producer.producer_name() for producer in producers]
    assert len(set(names)) == 6 and all(name.startswith("standalone-") for name in names)
    before_ms = int(time.time() * 1000)
    for producer in producers:
        for data in numbers(3):
            producer.send(data)
    after_ms = int(time.time() * 1000)
    for consumer in consumers:
        received = take(consumer, 18)
        assert [message.producer_name() for message in received] == [name for name in names for _ in range(3)]
        assert [message.sequence_id() for message in received if hasattr(message, "sequence_id")] in ([], [0, 1, 2] * 6)
        assert {message.topic_name() for message in received} == {topic}
        assert all(before_ms <= message.publish_timestamp() <= after_ms for message in received)
        assert {message.event_timestamp() for message in received} == {0}
        assert len({message.message_id().serialize() for message in received}) == 18


@pytest.mark.promise("10.2")
def test_compression_of_every_kind_on_one_topic(both, topic):
    consumers = [one.client.subscribe(topic, one.module.__name__) for one in both]
    sent = []
    for one in both:
        for kind in ("NONE", "LZ4", "ZLIB" if one.module is magnetar else "ZLib", "ZSTD", "SNAPPY"):
            producer = one.client.create_producer(topic, compression_type=getattr(one.module.CompressionType, kind))
            sent.append(f"{one.module.__name__} {kind} ".encode() * 50)
            producer.send(sent[-1])
    for consumer in consumers:
        assert values(take(consumer, 10)) == sent


@pytest.mark.promise("2.14", "2.16")
def test_the_largest_message_is_a_setting(tmp_path, topic):
    sizes = {"max_message_size_bytes": 100_000, "bookie_frame_size_max_bytes": 110_000}
    with EmbeddedCluster(tmp_path, **sizes) as cluster:
        for module in (magnetar, pulsar):
            one = connect(cluster, module)
            producer = one.client.create_producer(topic)
            producer.send(bytes(99_000))
            with pytest.raises(module.MessageTooBig):
                producer.send(bytes(100_001))
            one.client.close()


# ---- Topics, tenants, namespaces ----


@pytest.mark.promise("15.2", "15.5", "15.6", "15.8")
def test_topics_live_in_the_namespaces_of_tenants(both, cluster):
    name = "acme/orders/t"
    for one in both:
        with pytest.raises(Exception, match=r"TopicNotFound|does not exist"):
            one.client.create_producer(name)
    cluster.run(cluster.coordinator_call("put_tenant", tenant="acme", record={}))
    cluster.run(cluster.coordinator_call("create_namespace", namespace="acme/orders"))
    for one in both:
        consumer = one.client.subscribe(name, one.module.__name__)
        one.client.create_producer(name).send(b"x")
        assert take(consumer, 1)[0].topic_name() == "persistent://acme/orders/t"


@pytest.mark.promise("15.9", "16.7")
def test_nothing_is_created_where_that_is_switched_off(tmp_path, topic):
    switches = {"allow_auto_topic_creation": False, "allow_auto_subscription_creation": False}
    with EmbeddedCluster(tmp_path, **switches) as cluster:
        sides = [connect(cluster, module, 2) for module in (magnetar, pulsar)]
        for one in sides:
            with pytest.raises(one.module.TopicNotFound):
                one.client.create_producer(topic)
        cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=0))
        for one in sides:
            one.client.create_producer(topic).close()
        with pytest.raises(magnetar.SubscriptionNotFound):
            sides[0].client.subscribe(topic, "s")
        with pytest.raises(pulsar.Timeout):  # the official client takes this error for a passing one
            sides[1].client.subscribe(topic, "s")
        start = SubscriptionStart(earliest=True)
        cluster.run(loaded(cluster, topic).subscription("s", durable=True, start=start))
        for one in sides:
            one.client.subscribe(topic, "s").close()
            one.client.close()


@pytest.mark.promise("15.10")
def test_topics_may_be_created_partitioned(tmp_path):
    with EmbeddedCluster(tmp_path, allow_auto_topic_creation_type="partitioned", default_num_partitions=3) as cluster:
        for module in (magnetar, pulsar):
            one = connect(cluster, module)
            one.client.create_producer(module.__name__).close()
            assert len(one.client.get_topic_partitions(module.__name__)) == 3
            one.client.close()


# ---- Subscriptions ----


@pytest.mark.promise("16.3", "16.4")
def test_the_first_consumer_sets_the_type_until_all_have_left(side, topic):
    exclusive = side.client.subscribe(topic, "s")
    for options in ({}, side.shared):
        with pytest.raises(side.module.ConsumerBusy):
            side.client.subscribe(topic, "s", **options)
    exclusive.close()
    shared = [side.client.subscribe(topic, "s", **side.shared) for _ in range(2)]
    with pytest.raises(side.module.ConsumerBusy):
        side.client.subscribe(topic, "s")
    for consumer in shared:
        consumer.close()
    side.client.subscribe(topic, "s").close()


@pytest.mark.promise("1.7", "7.1", "17.12")
def test_what_a_lost_consumer_held_goes_to_the_others(side, cluster, topic):
    dying = connect(cluster, side.module)
    lost = dying.client.subscribe(topic, "s", receiver_queue_size=100, **side.shared)
    producer = side.client.create_producer(topic)
    for data in numbers(20):
        producer.send(data)
    assert sorted(values(take(lost, 20, acknowledge=False))) == sorted(numbers(20))
    heir = side.client.subscribe(topic, "s", **side.shared)
    nothing_comes(side, heir)
    dying.client.shutdown()
    assert sorted(values(take(heir, 20))) == sorted(numbers(20))


@pytest.mark.promise("14.3")
def test_receive_waits_for_a_message(side, topic):
    consumer = side.client.subscribe(topic, "s")
    producer = side.client.create_producer(topic)
    got = []
    waiting = threading.Thread(target=lambda: got.append(consumer.receive().data()))
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive() and not got
    producer.send(b"x")
    waiting.join(10)
    assert got == [b"x"]


def publish_a_batch(side, topic, count):
    producer = side.client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=500)
    sent = threading.Semaphore(0)
    for data in numbers(count):
        producer.send_async(data, lambda *unused: sent.release())
    producer.flush()
    assert all(sent.acquire(timeout=10) for _ in range(count))


@pytest.mark.promise("11.3", "11.5")
def test_a_batch_is_acknowledged_when_all_its_messages_are(side, cluster, topic):
    consumer = side.client.subscribe(topic, "s", **side.shared)
    publish_a_batch(side, topic, 5)
    messages = take(consumer, 5, acknowledge=False)
    assert len({(one.message_id().ledger_id(), one.message_id().entry_id()) for one in messages}) == 1

    def backlog():
        return shown(cluster, topic)["subscriptions"]["s"]["msgBacklog"]

    for message in messages[:4]:
        consumer.acknowledge(message)
    time.sleep(0.3)  # clients group their acknowledgements
    assert backlog() == 1, "and the backlog counts entries"
    consumer.acknowledge(messages[4])
    until(lambda: backlog() == 0)


@pytest.mark.promise("6.8", "11.2", "11.6")
def test_one_negative_acknowledgement_brings_back_the_whole_batch(side, topic):
    consumer = side.client.subscribe(topic, "s", negative_ack_redelivery_delay_ms=100, **side.shared)
    publish_a_batch(side, topic, 5)
    messages = take(consumer, 5, acknowledge=False)
    assert len({(one.message_id().ledger_id(), one.message_id().entry_id()) for one in messages}) == 1
    consumer.negative_acknowledge(messages[2])
    again = take(consumer, 5)
    assert values(again) == numbers(5)
    assert {message.redelivery_count() for message in again} == {1}
    nothing_comes(side, consumer)


@pytest.mark.promise("21.1", "21.2", "21.5")
def test_a_durable_cursor_survives_its_broker_and_a_non_durable_one_does_not(tmp_path, topic):
    with EmbeddedCluster(tmp_path, brokers=2) as cluster:
        for module in (magnetar, pulsar):
            name = f"{topic}-{module.__name__}"
            one, reading = connect(cluster, module), connect(cluster, module)
            consumer = one.client.subscribe(name, "s")
            reader = reading.client.create_reader(name, module.MessageId.earliest)
            producer = one.client.create_producer(name)
            for data in numbers(20):
                producer.send(data)
            take(consumer, 10)
            time.sleep(0.3)  # clients group their acknowledgements
            owner = cluster.owner(name)
            assert sorted(durable for _, durable in loaded(cluster, name).subscriptions) == [False, True]
            assert reader.has_message_available()
            reading.client.shutdown()
            cluster.run(cluster.stop_broker(owner))
            late = connect(cluster, module)
            one.client.close()
            assert values(take(late.client.subscribe(name, "s"), 10)) == numbers(10, 10)
            assert list(loaded(cluster, name).subscriptions) == [("s", True)]
            late.client.close()
            cluster.run(cluster.start_broker(owner))


# ---- Partitions ----


@pytest.fixture
def partitioned(cluster, topic):
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=4))
    return topic


@pytest.mark.promise("16.2", "17.1", "23.1", "23.4")
def test_subscription_types_on_a_partitioned_topic(side, cluster, partitioned):
    exclusive = side.client.subscribe(partitioned, "one")
    assert {cluster.owner(f"{partitioned}-partition-{index}") for index in range(4)} == set(cluster.brokers)
    with pytest.raises(side.module.ConsumerBusy):
        side.client.subscribe(partitioned, "one")
    sharing = [side.client.subscribe(partitioned, "many", receiver_queue_size=5, **side.shared) for _ in range(2)]
    producer = side.client.create_producer(partitioned)
    for data in numbers(100):
        producer.send(data, partition_key=data.decode())
    assert sorted(values(take(exclusive, 100))) == sorted(numbers(100))
    got = [[], []]
    while len(got[0]) + len(got[1]) < 100:
        for mine, consumer in zip(got, sharing, strict=True):
            try:
                mine += values([message := consumer.receive(100)])
                consumer.acknowledge(message)
            except side.module.Timeout:
                continue
    assert sorted(got[0] + got[1]) == sorted(numbers(100)) and all(got)


@pytest.mark.promise("2.2", "23.8", "23.10")
@pytest.mark.parametrize("mode", ["RoundRobinDistribution", "UseSinglePartition"])
def test_a_key_stays_with_its_partition_in_order(side, partitioned, mode):
    consumer = side.client.subscribe(partitioned, "s")
    mode = getattr(side.module.PartitionsRoutingMode, mode)
    producer = side.client.create_producer(partitioned, message_routing_mode=mode)
    partitions = {}
    for data in numbers(60):
        key = f"Order-{int(data) % 20}"
        partitions.setdefault(key, set()).add(producer.send(data, partition_key=key).partition())
    assert {len(chosen) for chosen in partitions.values()} == {1}
    assert set.union(*partitions.values()) == {0, 1, 2, 3}
    received = {}
    for message in take(consumer, 60):
        received.setdefault(message.partition_key(), []).append(int(message.data()))
    assert all(own == sorted(own) for own in received.values())


@pytest.mark.promise("23.7", "23.11")
def test_a_producer_with_a_single_partition_keeps_its_order(side, partitioned):
    consumer = side.client.subscribe(partitioned, "s")
    mode = side.module.PartitionsRoutingMode.UseSinglePartition
    producer = side.client.create_producer(partitioned, message_routing_mode=mode)
    assert len({producer.send(data).partition() for data in numbers(50)}) == 1
    assert values(take(consumer, 50)) == numbers(50)


@pytest.mark.promise("23.9")
def test_an_application_routes_its_messages_itself(side, partitioned):
    mode = side.module.PartitionsRoutingMode.CustomPartition
    producer = side.client.create_producer(
        partitioned,
        message_routing_mode=mode,
        message_router=lambda message, partitions: int(message.data()) % partitions,
    )
    assert [producer.send(data).partition() for data in numbers(6)] == [0, 1, 2, 3, 0, 1]


@pytest.mark.promise("23.12")
@pytest.mark.parametrize("side", ["ours", "asyncio"], indirect=True)  # the official Python client has one hash only
@pytest.mark.parametrize(("scheme", "partition"), [("JavaStringHash", 2), ("Murmur3_32Hash", 964695987 % 4)])
def test_the_hashing_scheme_chooses_the_partition_of_a_key(side, partitioned, scheme, partition):
    producer = side.client.create_producer(partitioned, hashing_scheme=getattr(side.module.HashingScheme, scheme))
    assert producer.send(b"x", partition_key="Order-3459134").partition() == partition


@pytest.mark.promise("23.2")
def test_five_partitions_on_three_brokers_are_two_two_and_one(tmp_path, topic):
    with EmbeddedCluster(tmp_path, brokers=3) as cluster:
        cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=5))
        for face in sides.FACES:
            with sides.connect(cluster.service_url, face) as one:
                one.client.subscribe(topic, face)
                owners = Counter(cluster.owner(f"{topic}-partition-{index}") for index in range(5))
                assert sorted(owners.values()) == [1, 2, 2]


# ---- Chunks ----


@pytest.mark.promise("13.5")
def test_the_broker_stores_the_chunks_of_a_message_like_any_others(side, cluster, topic):
    consumer = side.client.subscribe(topic, "s")
    producer = side.client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    large = b"0123456789" * 1_200_000
    producer.send(large)
    producer.send(b"small")
    assert kept(cluster, topic) == 4, "three chunks of up to 5 MB"
    assert values(take(consumer, 2)) == [large, b"small"]


# ---- Figures and defaults ----


@pytest.mark.promise("14.1", "20.8", "20.9", "20.10", "20.11")
def test_figures_of_a_consumer(side, cluster, topic):
    before_ms = int(time.time() * 1000)
    options = {"consumer_name": "c1", "properties": {"team": "a"}, "receiver_queue_size": 10}
    consumer = side.client.subscribe(topic, "s", **options, **side.shared)

    def figures():
        return shown(cluster, topic)["subscriptions"]["s"]["consumers"][0]

    stats = figures()
    assert stats["lastAckedTimestamp"] == stats["lastConsumedTimestamp"] == 0, "never"
    assert stats["lastAckedTime"] == stats["lastConsumedTime"] == "1970-01-01T00:00:00Z"
    rates = ("msgRateOut", "msgThroughputOut", "messageAckRate", "msgRateRedeliver", "chunkedMessageRate")
    assert [stats[name] for name in rates] == [0] * 5
    producer = side.client.create_producer(topic, batching_enabled=False)
    for data in numbers(6):
        producer.send(data)
    take(consumer, 2)
    take(consumer, 2, acknowledge=False)
    until(lambda: figures()["unackedMessages"] == 4)
    stats = figures()
    assert (stats["consumerName"], stats["metadata"]) == ("c1", {"team": "a"})
    assert (stats["msgOutCounter"], stats["availablePermits"], stats["avgMessagesPerEntry"]) == (6, 4, 1)
    assert stats["bytesOutCounter"] > 0 and stats["blockedConsumerOnUnackedMsgs"] is False
    assert stats["address"].startswith("/127.0.0.1:") and stats["clientVersion"]
    out, throughput, acknowledged, redelivered, chunked = (stats[name] for name in rates)
    assert out == pytest.approx(3 * acknowledged, rel=0.1) and throughput > out > 0 and redelivered == chunked == 0
    for name in ("lastAckedTimestamp", "lastConsumedTimestamp", "lastConsumedFlowTimestamp"):
        assert before_ms <= stats[name] <= int(time.time() * 1000), name
    for name in ("connectedSince", "lastAckedTime", "lastConsumedTime"):
        assert datetime.fromisoformat(stats[name]).utcoffset() is not None, name
    consumer.redeliver_unacknowledged_messages()
    take(consumer, 4)
    assert figures()["msgRateRedeliver"] > 0 and figures()["msgOutCounter"] == 10


@pytest.mark.promise("20.11")
def test_a_consumer_that_asked_for_nothing_has_no_time_of_asking(cluster, topic):
    """The official client asks for a message as soon as a consumer without a queue has joined."""
    with magnetar.Client(cluster.service_url) as client:
        consumer = client.subscribe(topic, "s", receiver_queue_size=0)
        (stats,) = shown(cluster, topic)["subscriptions"]["s"]["consumers"]
        assert stats["lastConsumedFlowTimestamp"] == 0
        with pytest.raises(magnetar.Timeout):
            consumer.receive(20)
        (stats,) = shown(cluster, topic)["subscriptions"]["s"]["consumers"]
        assert stats["lastConsumedFlowTimestamp"] > 0


@pytest.mark.promise("6.2", "7.1", "12.2", "13.1", "13.13", "14.2", "16.1", "23.5", "23.12")
def test_defaults_of_the_client():
    consumer, producer = ConsumerConfiguration("t", "s"), ProducerConfiguration("t")
    assert (consumer.receiver_queue_size, consumer.negative_ack_redelivery_delay_ms) == (1000, 60_000)
    assert not consumer.unacked_messages_timeout_ms and not consumer.batch_index_ack_enabled
    assert consumer.consumer_type is magnetar.ConsumerType.Exclusive
    assert consumer.expire_time_of_incomplete_chunked_message_ms == 60_000 and not producer.chunking_enabled
    assert producer.message_routing_mode is magnetar.PartitionsRoutingMode.RoundRobinDistribution
    assert producer.hashing_scheme is magnetar.HashingScheme.JavaStringHash
