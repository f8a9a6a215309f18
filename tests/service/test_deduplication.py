"""Deduplication on a cluster: what is stored once, for raw frames and both clients, also when a topic loads again."""

import pulsar
import pytest

import magnetar
from magnetar.actors.deduplication.topic_deduplication import Deduplication
from magnetar.protocol.pulsar_pb2 import BaseCommand
from support.clients.wire_peer import WirePeer, entry
from support.servers.broker_bench import until

pytestmark = [
    pytest.mark.cluster_settings(
        deduplication_enabled=True, deduplication_entries_interval=4, retention_minutes=-1, retention_size_mb=-1
    ),
    pytest.mark.promise("27.1"),
]

NAME = "persistent://public/default/{}"
NO_PLACE = (1 << 64) - 1


def topic_of(cluster, name):
    return cluster.brokers[cluster.owner(name)].topics.loaded[name]


async def send(peer, sequence_id):
    """Where the message lies, as its receipt says."""
    peer.send_entry(entry(b"%d" % sequence_id, sequence_id=sequence_id), sequence_id)
    return (await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=sequence_id)).message_id


def stored(cluster, module, topic):
    """All messages of a topic."""
    client = module.Client(cluster.service_url, operation_timeout_seconds=20)
    try:
        reader = client.create_reader(topic, module.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(10_000).data())
        return found
    finally:
        client.close()


@pytest.mark.promise("27.3")
def test_raw_frames_meet_pulsars_receipts_for_duplicates_of_messages_and_batches(cluster):
    topic = NAME.format("raw")
    port = int(cluster.service_url.rsplit(":", 1)[1])

    async def talk():
        peer = await WirePeer.open(port)
        answer = await peer.producer(topic, producer_name="p", user_provided_producer_name=True)
        assert answer.last_sequence_id == -1
        places = [await send(peer, one) for one in (0, 1, 1, 0, 2)]
        assert [one.entryId for one in places] == [0, 1, NO_PLACE, NO_PLACE, 2]
        assert [one.ledgerId == NO_PLACE for one in places] == [False, False, True, True, False]
        await peer.close()
        again = await WirePeer.open(port)
        answer = await again.producer(topic, producer_name="p", user_provided_producer_name=True)
        assert answer.last_sequence_id == 2
        assert (await send(again, 2)).entryId == NO_PLACE
        await again.close()

    cluster.run(talk())
    assert topic_of(cluster, topic).features.of(Deduplication).state.value == "Enabled"
    assert stored(cluster, magnetar, topic) == [b"0", b"1", b"2"]


@pytest.mark.promise("2.7", "2.8", "27.2")
@pytest.mark.parametrize("module", [magnetar, pulsar], ids=["ours", "official"])
def test_an_application_that_repeats_its_sequence_ids_stores_them_once(cluster, module):
    topic = NAME.format(f"application-{module.__name__}")
    client = module.Client(cluster.service_url, operation_timeout_seconds=20)
    try:
        producer = client.create_producer(topic, producer_name="app", send_timeout_millis=0)
        for number in range(10):
            producer.send(b"%d" % number, sequence_id=10 * number)
        producer.close()
        producer = client.create_producer(topic, producer_name="app", send_timeout_millis=0)
        assert producer.last_sequence_id() == 90
        for number in range(5, 12):
            producer.send(b"%d" % number, sequence_id=10 * number)
        assert producer.last_sequence_id() == 110
        producer.close()
        producer = client.create_producer(topic, producer_name="app", initial_sequence_id=109, send_timeout_millis=0)
        producer.send(b"swallowed")
        producer.send(b"12")
    finally:
        client.close()
    assert stored(cluster, module, topic) == [b"%d" % number for number in range(13)]


@pytest.mark.promise("2.8")
@pytest.mark.parametrize("module", [magnetar, pulsar], ids=["ours", "official"])
def test_a_partition_knows_only_the_sequence_ids_that_it_was_sent(cluster, module):
    admin = module.Client(cluster.service_url)
    topic = NAME.format(f"parted-{module.__name__}")
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=2))
    try:
        for _ in range(2):
            producer = admin.create_producer(topic, producer_name="app", initial_sequence_id=-1)
            for number in range(1, 21):  # the official client takes 0 for none
                producer.send(b"%d" % number, partition_key=f"key-{number % 5}", sequence_id=number)
            producer.close()
    finally:
        admin.close()
    assert sorted(map(int, stored(cluster, module, topic))) == list(range(1, 21))


def test_a_topic_that_is_loaded_again_knows_what_it_has(cluster):
    """Four entries lie in the snapshot, and the others are read: a broker that is killed takes no last snapshot."""
    topic = NAME.format("loaded-again")
    client = magnetar.Client(cluster.service_url, operation_timeout_seconds=20)
    try:
        for crash in (True, False):
            producer = client.create_producer(topic, producer_name="app", batching_enabled=False)
            for number in range(7):
                producer.send(b"%d" % number, sequence_id=number)
            producer.close()
            loaded = topic_of(cluster, topic)
            if crash:
                loaded.features.of(Deduplication).take_snapshot = lambda: None
            cluster.run(cluster.brokers[1].topics.release(topic))
    finally:
        client.close()
    assert stored(cluster, magnetar, topic) == [b"%d" % number for number in range(7)]


@pytest.mark.promise("27.3")
def test_the_policy_switches_it_on_and_off_on_a_loaded_topic(cluster):
    topic = NAME.format("switched")
    port = int(cluster.service_url.rsplit(":", 1)[1])

    async def set_policy(value):
        await cluster.coordinator_call(
            "set_policy", namespace="public/default", policy="deduplication_enabled", value=value
        )

    async def twice(sequence_id):
        peer = await WirePeer.open(port)
        await peer.producer(topic, producer_name="p", user_provided_producer_name=True)
        places = [await send(peer, sequence_id) for _ in range(2)]
        await peer.close()
        return places[1].entryId != NO_PLACE

    async def until_it_is(state):
        await until(lambda: cluster.brokers[1].topics.loaded[topic].features.of(Deduplication).state.value == state)

    async def switch():
        assert not await twice(0)
        loaded = cluster.brokers[1].topics.loaded[topic]
        assert list(loaded.ledger.cursors) == ["pulsar.dedup"] and not loaded.subscriptions
        await set_policy(False)
        await until_it_is("Disabled")
        assert not loaded.ledger.cursors and await twice(1)
        await set_policy(True)
        await until_it_is("Enabled")
        assert not await twice(2)
        await set_policy(None)

    cluster.run(switch())
    assert stored(cluster, magnetar, topic) == [b"0", b"1", b"1", b"2"]


def test_no_subscription_may_have_the_name_of_the_cursor(cluster):
    client = magnetar.Client(cluster.service_url, operation_timeout_seconds=5)
    try:
        with pytest.raises(magnetar.NotAllowedError):
            client.subscribe(NAME.format("named"), "pulsar.dedup")
    finally:
        client.close()
