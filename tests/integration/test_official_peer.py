"""The official Pulsar client as an independent peer: it produces, consumes, seeks and reads here, and each side reads
what the other wrote.
"""

import contextlib
import itertools
import json
import urllib.request

import pulsar
import pytest

import magnetar

COMPRESSIONS = {"NONE": "NONE", "LZ4": "LZ4", "ZLIB": "ZLib", "ZSTD": "ZSTD", "SNAPPY": "SNAPPY"}
"""Our name → the official Python client's."""
TIMEOUT_MS = 20_000
_numbers = itertools.count()


@pytest.fixture
def official(cluster):
    client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    with contextlib.suppress(pulsar.AlreadyClosed):
        client.close()


@pytest.fixture
def ours(cluster):
    client = cluster.client()
    yield client
    client.close()


def contents(messages):
    """What must survive the way, of either client's messages."""
    return [
        (message.data(), message.partition_key(), dict(message.properties()), message.event_timestamp())
        for message in messages
    ]


def publish(client, topic, count, **options):
    """Messages with and without key, properties and event time, batched or not. Returns their contents."""
    producer = client.create_producer(topic, **options)
    sent = []
    for number in range(count):
        payload = b"payload-%d" % number * (number % 5 + 1)
        key = f"key-{number % 3}" if number % 2 else ""
        properties = {"number": str(number), "umlaut": "ä"} if number % 3 == 0 else {}
        event_time = 1_700_000_000_000 + number if number % 4 == 0 else 0
        extra = {"partition_key": key} if key else {}
        if event_time:
            extra["event_timestamp"] = event_time
        producer.send_async(payload, lambda result, message_id: None, properties=properties or None, **extra)
        sent.append((payload, key, properties, event_time))
    producer.flush()
    producer.close()
    return sent


def receive(consumer, count):
    received = []
    for _ in range(count):
        message = consumer.receive(TIMEOUT_MS)
        consumer.acknowledge(message)
        received.append(message)
    return received


@pytest.mark.promise("1.1", "2.2", "2.3", "10.1")
@pytest.mark.parametrize("batching", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_we_read_what_the_official_client_wrote(official, ours, topic, compression, batching):
    consumer = ours.subscribe(topic, "s", initial_position=magnetar.InitialPosition.Earliest)
    sent = publish(
        official,
        topic,
        60,
        compression_type=getattr(pulsar.CompressionType, COMPRESSIONS[compression]),
        batching_enabled=batching,
        batching_max_publish_delay_ms=50,
    )
    assert contents(receive(consumer, 60)) == sent


@pytest.mark.promise("1.1", "2.3", "2.12", "10.1")
@pytest.mark.parametrize("batching", [True, False], ids=["batched", "unbatched"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_official_client_reads_what_we_wrote(official, ours, topic, compression, batching):
    consumer = official.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    sent = publish(
        ours,
        topic,
        60,
        compression_type=magnetar.CompressionType[compression],
        batching_enabled=batching,
        batching_max_publish_delay_ms=50,
    )
    assert contents(receive(consumer, 60)) == sent


def test_what_send_many_wrote(official, ours, topic):
    consumer = official.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = ours.create_producer(topic)
    payloads = [b"%d" % number for number in range(3000)]
    producer.send_many(payloads)
    producer.flush()
    assert [message.data() for message in receive(consumer, 3000)] == payloads


@pytest.mark.promise("11.2")
def test_the_official_reader(official, ours, topic):
    sent = publish(ours, topic, 40, batching_enabled=True, batching_max_publish_delay_ms=2000)
    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(TIMEOUT_MS))
    assert contents(read) == sent
    middle = read[20].message_id()
    reader.seek(middle)
    assert reader.read_next(TIMEOUT_MS).data() in (read[20].data(), read[21].data())
    reader.close()
    after = official.create_reader(topic, middle)
    assert after.read_next(TIMEOUT_MS).data() == read[21].data()
    after.close()
    inclusive = official.create_reader(topic, middle, start_message_id_inclusive=True)
    assert inclusive.read_next(TIMEOUT_MS).data() == read[20].data()


def test_the_official_consumer_seeks(official, topic):
    producer = official.create_producer(topic, batching_enabled=False)
    consumer = official.subscribe(topic, "s")
    ids = [producer.send(b"%d" % number) for number in range(10)]
    assert len(receive(consumer, 10)) == 10
    consumer.seek(ids[4])
    again = consumer.receive(TIMEOUT_MS)
    assert again.data() in (b"4", b"5")
    consumer.seek(again.publish_timestamp() - 60_000)
    assert consumer.receive(TIMEOUT_MS).data() == b"0"
    consumer.seek(pulsar.MessageId.latest)
    producer.send(b"new")
    assert consumer.receive(TIMEOUT_MS).data() == b"new"


def test_cumulative_acks_survive_a_new_consumer(official, topic):
    consumer = official.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    publish(official, topic, 20, batching_enabled=False)
    messages = [consumer.receive(TIMEOUT_MS) for _ in range(20)]
    consumer.acknowledge_cumulative(messages[11])
    consumer.close()
    consumer = official.subscribe(topic, "s")
    assert consumer.receive(TIMEOUT_MS).data() == messages[12].data()


@pytest.mark.promise("17.12", "21.6")
def test_one_shared_subscription_of_both_clients(official, ours, topic):
    theirs = official.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10)
    mine = ours.subscribe(topic, "s", consumer_type=magnetar.ConsumerType.Shared, receiver_queue_size=10)
    producer = ours.create_producer(topic, batching_enabled=False)
    for number in range(100):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()
    got = {"theirs": [], "mine": []}
    while len(got["theirs"]) + len(got["mine"]) < 100:
        for name, consumer, patience in (("theirs", theirs, pulsar.Timeout), ("mine", mine, magnetar.Timeout)):
            with contextlib.suppress(patience):
                while True:
                    message = consumer.receive(200)
                    consumer.acknowledge(message)
                    got[name].append(int(message.data()))
    assert sorted(got["theirs"] + got["mine"]) == list(range(100))
    assert got["theirs"] and got["mine"]


def test_a_second_exclusive_consumer_is_refused(official, ours, topic):
    first = ours.subscribe(topic, "s")  # held: a consumer that nobody holds is closed
    with pytest.raises(pulsar.ConsumerBusy):
        official.subscribe(topic, "s")
    first.close()


@pytest.mark.promise("23.3", "23.10")
def test_partitioned_topics(cluster, official, ours, topic):
    name = topic.rsplit("/", 1)[1]
    request = urllib.request.Request(
        f"{cluster.admin_url}/admin/v2/persistent/public/default/{name}/partitions",
        data=json.dumps(3).encode(),
        headers={"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request, timeout=20).close()
    assert official.get_topic_partitions(topic) == [f"{topic}-partition-{number}" for number in range(3)]
    assert ours.get_topic_partitions(topic) == official.get_topic_partitions(topic)
    consumer = official.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    mine = ours.subscribe(topic, "t", initial_position=magnetar.InitialPosition.Earliest)
    sent = publish(ours, topic, 60) + publish(official, topic, 60)
    theirs_read, mine_read = contents(receive(consumer, 120)), contents(receive(mine, 120))
    assert sorted(map(repr, theirs_read)) == sorted(map(repr, sent)) == sorted(map(repr, mine_read))
    for key in ("key-0", "key-1", "key-2"):
        keyed = [entry for entry in sent if entry[1] == key]
        assert [entry for entry in theirs_read if entry[1] == key] == keyed
        assert [entry for entry in mine_read if entry[1] == key] == keyed


@pytest.mark.promise("2.1")
def test_message_ids_are_interchangeable(official, ours, topic):
    producer = ours.create_producer(topic)
    sent = [producer.send(b"%d" % number) for number in range(5)]
    reader = official.create_reader(topic, pulsar.MessageId.deserialize(sent[2].serialize()))
    assert reader.read_next(TIMEOUT_MS).data() == b"3"
    received = reader.read_next(TIMEOUT_MS)
    back = ours.create_reader(topic, magnetar.MessageId.deserialize(received.message_id().serialize()))
    assert not back.has_message_available()
    producer.send(b"5")
    assert back.read_next(TIMEOUT_MS).data() == b"5"


def test_redelivery_of_what_was_not_acknowledged(official, topic):
    consumer = official.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    producer = official.create_producer(topic)
    producer.send(b"again")
    first = consumer.receive(TIMEOUT_MS)
    assert first.redelivery_count() == 0
    consumer.negative_acknowledge(first)
    second = consumer.receive(TIMEOUT_MS)
    assert second.data() == b"again" and second.redelivery_count() == 1
    consumer.acknowledge(second)
    consumer.unsubscribe()
