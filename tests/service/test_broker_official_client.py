"""The official Pulsar client against brokers, bookies and coordinator of ours on loopback sockets and a real disk."""

import threading
import time

import pulsar
import pytest

pytestmark = pytest.mark.cluster_settings(brokers=2)

WAIT_MS = 10_000
ALL_COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


@pytest.fixture
def client(official_client):
    return official_client


def drain(consumer, count, *, acknowledge=True):
    """The next `count` messages."""
    messages = []
    for _ in range(count):
        messages.append(consumer.receive(WAIT_MS))
        if acknowledge:
            consumer.acknowledge(messages[-1])
    return messages


def values(messages):
    return [message.data() for message in messages]


def numbers(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


def nothing_comes(consumer, within_ms=300):
    with pytest.raises(pulsar.Timeout):
        consumer.receive(within_ms)


@pytest.mark.promise("3.1")
def test_what_is_sent_arrives_whole_and_in_order(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    before_ms = int(time.time() * 1000)
    sent = [
        producer.send(value, properties={"n": value.decode()}, partition_key=f"k{index}", event_timestamp=1000 + index)
        for index, value in enumerate(numbers(10))
    ]
    received = drain(consumer, 10)
    assert values(received) == numbers(10)
    for index, message in enumerate(received):
        assert message.message_id() == sent[index]
        assert message.properties() == {"n": str(index)}
        assert (message.partition_key(), message.event_timestamp()) == (f"k{index}", 1000 + index)
        assert before_ms <= message.publish_timestamp() <= before_ms + 60_000
        assert message.topic_name() == topic
        assert message.producer_name() == producer.producer_name()


@pytest.mark.promise("3.2")
@pytest.mark.parametrize("compression", ALL_COMPRESSIONS, ids=lambda kind: kind.name)
def test_batches_of_every_compression(client, topic, compression):
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(
        topic, compression_type=compression, batching_enabled=True, batching_max_publish_delay_ms=20
    )
    done = threading.Semaphore(0)
    for value in numbers(500):
        producer.send_async(value, lambda result, message_id: done.release())
    producer.flush()
    for _ in range(500):
        assert done.acquire(timeout=10)
    assert values(drain(consumer, 500)) == numbers(500)


def test_a_message_of_the_largest_size_passes_and_a_larger_one_is_refused(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    largest = bytes(5_242_880 - 200)
    producer.send(largest)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(5_242_881))
    assert drain(consumer, 1)[0].data() == largest


@pytest.mark.promise("2.4")
def test_producers_get_unique_names_and_a_chosen_one_only_once(client, topic):
    names = {client.create_producer(topic).producer_name() for _ in range(5)}
    assert len(names) == 5
    client.create_producer(topic, producer_name="chosen")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="chosen")


@pytest.mark.promise("21.3")
def test_a_durable_subscription_goes_on_where_it_was(client, topic):
    producer = client.create_producer(topic)
    first = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    for value in numbers(10):
        producer.send(value)
    drain(first, 4)
    first.close()
    second = client.subscribe(topic, "s")
    assert values(drain(second, 6)) == numbers(6, 4)


@pytest.mark.promise("16.6")
def test_latest_and_earliest(client, topic):
    producer = client.create_producer(topic)
    for value in numbers(3):
        producer.send(value)
    latest = client.subscribe(topic, "latest")
    earliest = client.subscribe(topic, "earliest", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"new")
    assert values(drain(latest, 1)) == [b"new"]
    assert values(drain(earliest, 4)) == [*numbers(3), b"new"]


@pytest.mark.promise("17.1")
def test_exclusive_refuses_a_second_consumer(client, topic):
    client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")


@pytest.mark.promise("17.12")
def test_shared_consumers_divide_the_messages_and_inherit_from_each_other(client, cluster, topic):
    other_client = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    shared = {"consumer_type": pulsar.ConsumerType.Shared, "initial_position": pulsar.InitialPosition.Earliest}
    one = client.subscribe(topic, "s", receiver_queue_size=10, **shared)
    two = other_client.subscribe(topic, "s", receiver_queue_size=10, **shared)
    producer = client.create_producer(topic)
    for value in numbers(200):
        producer.send(value)
    got_one = values(drain(one, 60))
    got_two = values(drain(two, 60, acknowledge=False))  # never acknowledged
    assert not set(got_one) & set(got_two)
    other_client.close()
    rest = values(drain(one, 200 - len(got_one)))
    assert sorted(got_one + rest) == sorted(numbers(200))


@pytest.mark.promise("1.5", "6.1", "17.13")
def test_negative_acknowledgement_brings_a_message_again_with_its_count(client, topic):
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=100,
    )
    producer = client.create_producer(topic)
    for value in numbers(3):
        producer.send(value)
    for expected in (0, 1, 2):
        for message in drain(consumer, 3, acknowledge=False):
            assert message.redelivery_count() == expected
            consumer.negative_acknowledge(message)
    drain(consumer, 3)
    nothing_comes(consumer)


@pytest.mark.promise("5.2")
def test_cumulative_acknowledgement(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    for value in numbers(10):
        producer.send(value)
    messages = drain(consumer, 10, acknowledge=False)
    consumer.acknowledge_cumulative(messages[6])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert values(drain(again, 3)) == numbers(3, 7)


@pytest.mark.promise("5.1")
def test_acknowledgement_receipts(client, topic):
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    client.create_producer(topic).send(b"x")
    message = consumer.receive(WAIT_MS)
    consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    nothing_comes(consumer)


def test_seek_to_earliest_to_an_id_and_to_a_time(client, topic):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    ids = [producer.send(value) for value in numbers(5)]
    time.sleep(0.05)
    middle_ms = int(time.time() * 1000)
    time.sleep(0.05)
    for value in numbers(5, 5):
        producer.send(value)
    drain(consumer, 10)
    consumer.seek(pulsar.MessageId.earliest)
    assert values(drain(consumer, 10)) == numbers(10)
    consumer.seek(middle_ms)
    assert values(drain(consumer, 5)) == numbers(5, 5)
    consumer.seek(ids[7 - 5])
    assert drain(consumer, 1)[0].data() in (b"2", b"3")  # the client, not the broker, leaves out the id itself
    consumer.seek(pulsar.MessageId.latest)
    nothing_comes(consumer)
    producer.send(b"after")
    assert values(drain(consumer, 1)) == [b"after"]


def test_a_reader_reads_from_a_place_to_the_end_and_seeks(client, topic):
    producer = client.create_producer(topic)
    ids = [producer.send(value) for value in numbers(10)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    read = []
    while reader.has_message_available():
        read.append(reader.read_next(WAIT_MS).data())
    assert read == numbers(10)
    reader.seek(ids[6])
    assert reader.has_message_available()
    assert reader.read_next(WAIT_MS).data() in (b"6", b"7")
    behind = client.create_reader(topic, ids[3])
    assert behind.read_next(WAIT_MS).data() == b"4"
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()
    empty = client.create_reader(topic + "-empty", pulsar.MessageId.earliest)
    assert not empty.has_message_available()


def test_a_reader_starts_inside_a_batch(client, topic):
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    ids = []
    done = threading.Event()

    def sent(result, message_id):
        ids.append(message_id)
        if len(ids) == 10:
            done.set()

    for value in numbers(10):
        producer.send_async(value, sent)
    producer.flush()
    assert done.wait(10)
    reader = client.create_reader(topic, ids[3])
    assert reader.read_next(WAIT_MS).data() == b"4"


def test_unsubscribe_removes_the_place(client, topic):
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer.send(b"before")
    consumer.unsubscribe()
    again = client.subscribe(topic, "s")
    nothing_comes(again)
    producer.send(b"behind")
    assert values(drain(again, 1)) == [b"behind"]


@pytest.mark.promise("22.1", "22.3")
def test_partitioned_topics_and_patterns(client, cluster, topic):
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=4))
    consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    producer = client.create_producer(topic)
    for value in numbers(100):
        producer.send(value, partition_key=f"key-{value.decode()}")
    received = drain(consumer, 100)
    assert sorted(values(received)) == sorted(numbers(100))
    assert {message.message_id().partition() for message in received} == {0, 1, 2, 3}
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(4)]
    import re

    pattern = client.subscribe(
        re.compile("persistent://public/default/test_partitioned_topics.*"),
        "pattern",
        initial_position=pulsar.InitialPosition.Earliest,
    )
    assert sorted(values(drain(pattern, 100))) == sorted(numbers(100))


@pytest.mark.promise("15.8")
def test_what_is_not_there_is_refused_at_once(client):
    started = time.monotonic()
    for name in ("persistent://no-tenant/no-namespace/t", "non-persistent://public/no-namespace/t"):
        with pytest.raises(pulsar.PulsarException):
            client.create_producer(name)
    assert time.monotonic() - started < 5
