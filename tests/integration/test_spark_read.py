"""Topics into Spark and back on a real cluster: rows are what clients wrote, and what Spark writes is stored once."""

import gc
import inspect
import itertools
import json
import os
import re
import signal
import time
import urllib.request
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pulsar
import pytest
from pyspark.errors import PythonException

import magnetar
from magnetar.protocol.errors import (
    InvalidConfiguration,
    NotAllowedError,
    SparkUnavailable,
    TopicNotFound,
)
from magnetar.spark import read_topic, release, session, stop, write_topic
from magnetar.spark.raydp_session import check_available
from magnetar.spark.reading import frame as frame_module
from support.checks import document_examples
from support.checks.running_examples import curl, run
from support.files.key_files import write_key_files
from support.servers import ray_nodes

# What PySpark, Py4J and Ray Data do on their own: they use what is deprecated, and leave sockets to the collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:DataFrame.sql_ctx is an internal property:UserWarning"),
]

GUIDE = "docs/guides/spark.md"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def spark(ray_session):
    try:
        check_available()
    except SparkUnavailable as error:
        pytest.skip(str(error))
    yield session(
        "spark-read-test",
        1,
        1,
        "1g",
        {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"},
    )
    stop()
    stop()
    gc.collect()  # Py4J's sockets, while their warnings are still ignored


@pytest.fixture
def topic():
    return f"spark-{next(_numbers)}"


@pytest.fixture
def client(cluster):
    with cluster.client() as made:
        yield made


def create_partitioned(cluster, topic, partitions):
    request = urllib.request.Request(
        f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic}/partitions",
        data=json.dumps(partitions).encode(),
        method="PUT",
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()


def keep(client, topic):
    """A durable subscription that keeps what is published from now on."""
    client.subscribe(topic, "keep", initial_position=magnetar.InitialPosition.Earliest).close()


def publish(producer, count):
    for number in range(count):
        extra: dict[str, Any] = {"partition_key": f"key-{number % 7}"} if number % 2 else {}
        if number % 3 == 0:
            extra["event_timestamp"] = 1_700_000_000_000 + number
        if number % 5 == 0:
            extra["properties"] = {"number": str(number), "umlaut": "ä"}
        producer.send_async(b"payload-%d" % number * (number % 4 + 1), lambda result, message_id: None, **extra)
    producer.flush()
    producer.close()


def received(client, topic, count, receiver):
    """What a consumer of either client sees, by message id."""
    consumer = client.subscribe(topic, receiver, initial_position=earliest(client))
    rows = {}
    for _ in range(count):
        message = consumer.receive(20_000)
        rows[message.message_id().serialize()] = (
            message.data(),
            message.partition_key(),
            dict(message.properties()),
            message.event_timestamp(),
            message.publish_timestamp(),
            message.topic_name(),
        )
        consumer.acknowledge(message)
    consumer.close()
    return rows


def earliest(client):
    module = pulsar if isinstance(client, pulsar.Client) else magnetar
    return module.InitialPosition.Earliest


def in_milliseconds(time):
    return 0 if time is None else round(time.replace(tzinfo=UTC).timestamp() * 1000)


def rows_of(frame):
    """The frame's rows in the same form."""
    return {
        bytes(row["__messageId"]): (
            bytes(row["value"]),
            row["__key"] or "",
            row["__messageProperties"],
            in_milliseconds(row["__eventTime"]),
            in_milliseconds(row["__publishTime"]),
            row["__topic"],
        )
        for row in frame.collect()
    }


def values(frame):
    return [bytes(row["value"]) for row in frame.select("value").collect()]


@pytest.mark.promise("29.1", "29.7", "29.9")
@pytest.mark.parametrize("peer", ["ours", "official"])
def test_rows_are_what_consumers_receive(cluster, spark, client, topic, peer):
    create_partitioned(cluster, topic, 3)
    keep(client, topic)
    if peer == "ours":
        producers = [
            client.create_producer(topic, compression_type=magnetar.CompressionType.ZSTD, batching_enabled=True),
            client.create_producer(topic, batching_enabled=False),
        ]
        for producer in producers:
            publish(producer, 150)
        expected = received(client, topic, 300, "check")
    else:
        official = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        for options in ({"compression_type": pulsar.CompressionType.LZ4, "batching_enabled": True}, {}):
            publish(official.create_producer(topic, **options), 150)
        expected = received(official, topic, 300, "check")
        official.close()
    frame = read_topic(spark, topic)
    assert rows_of(frame) == expected
    assert {row["__partition"] for row in frame.select("__partition").distinct().collect()} <= {0, 1, 2}
    names = [row["__producerName"] for row in frame.select("__producerName").distinct().collect()]
    assert names
    assert all(names)
    release(frame)


def test_bounds_by_message_id_are_exact_inside_batches(spark, client, topic):
    keep(client, topic)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_messages=10)
    ids = producer.send_many([b"%d" % number for number in range(95)])
    producer.close()
    assert len({(message_id.ledger_id(), message_id.entry_id()) for message_id in ids}) < 95
    frame = read_topic(spark, topic, start=ids[13], end=ids[57])
    assert values(frame) == [b"%d" % number for number in range(13, 58)]
    sequence = [row["__sequenceId"] for row in frame.select("__sequenceId").collect()]
    assert sequence == list(range(sequence[0], sequence[0] + 45))
    assert values(read_topic(spark, topic, start=ids[94].serialize())) == [b"94"]
    assert values(read_topic(spark, topic, start="latest")) == []
    assert values(read_topic(spark, topic, start=ids[5], end=ids[4])) == []


@pytest.mark.promise("29.7", "34.1")
def test_a_compacted_read_has_the_rows_of_a_reader_that_reads_compacted(cluster, spark, client, topic):
    """Keys, a tombstone and a message without a key, in batches and alone; two compactions; then more in the log."""
    keep(client, topic)
    compact(cluster, topic)
    for begin in (0, 60):
        producer = client.create_producer(topic, batching_enabled=begin == 0)
        for number in range(begin, begin + 60):
            producer.send_async(b"%d" % number, lambda *_: None, partition_key=f"k{number % 7}")
        producer.send_async(b"keyless", lambda *_: None)
        producer.send_async(b"", lambda *_: None, partition_key="k3")
        producer.flush()
        compact(cluster, topic)
    later = client.create_producer(topic, batching_enabled=True)
    later.send_many([b"log %d" % number for number in range(20)])
    reader = client.create_reader(topic, magnetar.MessageId.earliest, is_read_compacted=True)
    expected = []
    while reader.has_message_available():
        message = reader.read_next(20_000)
        expected.append((message.message_id().serialize(), message.partition_key(), message.data()))
    assert len(expected) == 6 + 20

    def read(**bounds):
        frame = read_topic(spark, topic, is_read_compacted=True, **bounds)
        return [(bytes(row["__messageId"]), row["__key"] or "", bytes(row["value"])) for row in frame.collect()]

    assert read() == expected
    assert read(start=expected[2][0], end=expected[8][0]) == expected[2:9]
    assert read(start=expected[6][0]) == expected[6:]
    assert read(start=1) == expected
    assert len(values(read_topic(spark, topic))) == 2 * 62 + 20


def compact(cluster, topic):
    """Compact a topic, and wait until that is done."""
    url = f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic}/compaction"
    urllib.request.urlopen(urllib.request.Request(url, method="PUT")).close()
    deadline = time.monotonic() + 30
    status = {}
    while status.get("status") != "SUCCESS":
        assert time.monotonic() < deadline, status
        time.sleep(0.05)
        with urllib.request.urlopen(url) as answer:
            status = json.load(answer)


@pytest.mark.promise("29.7")
def test_large_and_encrypted_messages_are_rows(spark, client, topic, tmp_path):
    keep(client, topic)
    keys = magnetar.CryptoKeyReader(*write_key_files(tmp_path))
    sealed = {"encryption_key": "agency", "crypto_key_reader": keys}
    large = [bytes([number]) * 12_000_000 for number in range(3)]
    producer = client.create_producer(topic, batching_enabled=False, chunking_enabled=True, **sealed)
    for content in large:
        producer.send_async(content, lambda *_: None)
    producer.flush()
    client.create_producer(topic, batching_enabled=True, **sealed).send_many([b"%d" % number for number in range(20)])
    with pytest.raises(PythonException, match=r"CryptoError.*crypto_key_reader"):
        values(read_topic(spark, topic))
    frame = read_topic(spark, topic, crypto_key_reader=keys)
    assert values(frame) == [*large, *[b"%d" % number for number in range(20)]]
    release(frame)
    action = magnetar.ConsumerCryptoFailureAction.DISCARD
    assert values(read_topic(spark, topic, crypto_failure_action=action)) == []


def test_windows_of_time_tile_the_topic(spark, client, topic):
    keep(client, topic)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(30):
        producer.send(b"%d" % number)
        time.sleep(0.002)
    producer.close()
    whole = read_topic(spark, topic)
    times = [in_milliseconds(row["__publishTime"]) for row in whole.select("__publishTime").collect()]
    middle = times[14]
    before = values(read_topic(spark, topic, end=middle))
    since = values(read_topic(spark, topic, start=datetime.fromtimestamp(middle / 1000, UTC)))
    assert before + since == [b"%d" % number for number in range(30)]
    assert len(before) == sum(published < middle for published in times)


def test_a_frame_is_computed_again_and_again_until_it_is_released(spark, client, topic):
    keep(client, topic)
    client.create_producer(topic, batching_enabled=True).send_many([b"x" * 50] * 1000)
    frame = read_topic(spark, topic)
    derived = frame.filter("__sequenceId >= 0").groupBy("__topic").count()
    assert [derived.collect()[0]["count"] for _ in range(3)] == [1000] * 3
    client.create_producer(topic, batching_enabled=True).send_many([b"later"])
    assert frame.count() == 1000
    release(frame)
    release(frame)
    with pytest.raises(InvalidConfiguration):
        release(derived)


def test_an_empty_topic_is_an_empty_frame(spark, client, topic):
    keep(client, topic)
    frame = read_topic(spark, topic)
    assert frame.count() == 0
    assert frame.columns[:3] == ["value", "__key", "__topic"]
    assert dict(frame.dtypes)["__messageProperties"] == "map<string,string>"


def test_one_partition_by_its_name_and_bounds_for_single_partitions(cluster, spark, client, topic):
    create_partitioned(cluster, topic, 2)
    keep(client, topic)
    for partition in range(2):
        payloads = [b"%d-%d" % (partition, number) for number in range(5)]
        client.create_producer(f"{topic}-partition-{partition}").send_many(payloads)
    last = read_topic(spark, f"{topic}-partition-1").orderBy("__sequenceId").collect()
    ids = [bytes(row["__messageId"]) for row in last]
    assert values(read_topic(spark, f"{topic}-partition-0")) == [b"0-%d" % n for n in range(5)]
    frame = read_topic(spark, topic, start={0: "latest", 1: ids[3]})
    assert values(frame) == [b"1-3", b"1-4"]
    with pytest.raises(InvalidConfiguration, match="several"):
        read_topic(spark, topic, start=ids[3])


def test_what_cannot_be_read_is_refused(cluster, spark):
    with pytest.raises(InvalidConfiguration, match="already has a Spark session"):
        session("one-too-many")
    with pytest.raises(NotAllowedError):
        read_topic(spark, "non-persistent://public/default/x")
    with pytest.raises(TopicNotFound):
        read_topic(spark, "there-is-no-such-topic")


def deduplicate(cluster, topic):
    request = urllib.request.Request(
        f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic}/deduplicationEnabled",
        data=b"true",
        method="POST",
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()


def read_by_official(cluster, topic):
    """Key and payload of all messages of a topic."""
    official = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(20_000)
        found.append((message.partition_key(), message.data()))
    official.close()
    return sorted(found)


ROWS_OF_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


@pytest.mark.promise("27.4", "29.9")
def test_a_failed_task_and_a_repeated_write_store_each_row_once(cluster, spark, client, topic, tmp_path):
    """The first attempt of a task fails behind most of its rows, and then the whole result is written again."""
    results, mark = f"{topic}-results", tmp_path / "failed-once"
    keep(client, topic)
    payloads = [b"%d" % number for number in range(5_000)]
    client.create_producer(topic, batching_enabled=True).send_many(payloads)
    create_partitioned(cluster, results, 2)
    for index in range(2):
        keep(client, f"{results}-partition-{index}")
    deduplicate(cluster, results)
    frame = read_topic(spark, topic, min_partitions=1)
    service_url, deadline_s = cluster.service_url, time.monotonic() + 60

    def squares(rows):
        for number, row in enumerate(rows):
            if number == 4_000 and not mark.exists():
                mark.touch()
                with magnetar.Client(service_url) as other:
                    reader = other.create_reader(f"{results}-partition-0", magnetar.MessageId.earliest)
                    reader.read_next(int((deadline_s - time.monotonic()) * 1_000))  # rows of this attempt are stored
                raise OSError("this attempt fails")
            value = int(bytes(row["value"]))
            yield f"{value**2:0200d}", f"k{value % 10}" if value % 2 else None  # Spark hands 64 KiB on at a time

    squared = spark.createDataFrame(frame.rdd.mapPartitions(squares), "value string, __key string")
    spark.conf.set(ROWS_OF_BATCH, "500")  # so that the first attempt publishes rows before it fails
    try:
        first = write_topic(squared, results, "squares", compression_type=magnetar.CompressionType.LZ4)
    finally:
        spark.conf.unset(ROWS_OF_BATCH)
    assert mark.exists()
    assert first.rows + first.known == 5_000 and first.known > 0 < first.size_bytes
    assert write_topic(squared, results, "squares") == (0, 5_000, 0)
    expected = sorted((f"k{n % 10}" if n % 2 else "", b"%0200d" % n**2) for n in range(5_000))
    assert read_by_official(cluster, results) == expected
    assert sorted(values(read_topic(spark, results))) == sorted(value for _, value in expected)


@pytest.mark.promise("27.4")
def test_a_shuffled_result_is_stored_once_when_it_is_ordered(cluster, spark, client, topic):
    results = f"{topic}-counts"
    for name in (topic, results):
        keep(client, name)
    deduplicate(cluster, results)
    producer = client.create_producer(topic, batching_enabled=True)
    for number in range(300):
        producer.send_async(b"x", lambda *_: None, partition_key=f"k{number % 20}")
    producer.flush()
    counts = read_topic(spark, topic).groupBy("__key").count()
    rows = counts.selectExpr("__key", "to_json(struct(__key, count)) AS value")
    written = [write_topic(rows, results, "counts", order_by=["__key"], num_partitions=2) for _ in range(2)]
    assert [(one.rows, one.known) for one in written] == [(20, 0), (0, 20)]
    assert read_by_official(cluster, results) == sorted(
        (f"k{key}", b'{"__key":"k%d","count":15}' % key) for key in range(20)
    )


def test_what_cannot_be_written_is_refused(spark, client, topic):
    frame = spark.range(10)
    keep(client, topic)
    for wrong, text in (
        (frame, "no column `value`"),
        (frame.selectExpr("id AS value"), "`value` is bigint"),
        (frame.selectExpr("'x' AS value", "id"), "`id` is no part"),
        (frame.selectExpr("'x' AS value", "id AS __key"), "`__key` is bigint"),
    ):
        with pytest.raises(InvalidConfiguration, match=text):
            write_topic(wrong, topic)
    good = frame.selectExpr("'x' AS value")
    with pytest.raises(InvalidConfiguration, match="order_by"):
        write_topic(good, topic, order_by=["id"])
    with pytest.raises(NotAllowedError):
        write_topic(good, "non-persistent://public/default/x")
    with pytest.raises(NotAllowedError, match="deduplication is off"):
        write_topic(good, topic, "named")
    assert write_topic(good, topic) == (10, 0, 10)
    records = frame.selectExpr("id", "timestamp_millis(id) AS moment")
    assert write_topic(records, f"{topic}-records", schema="avro").rows == 10
    with pytest.raises(InvalidConfiguration, match="schema must be avro or json"):
        write_topic(records, f"{topic}-records", schema="xml")
    assert len(values(read_topic(spark, topic))) == 20


def test_rows_go_from_spark_to_ray_and_through_python_workers(spark, client, topic):
    """The direction that needs most of what Java 17 closes."""
    from raydp.spark import from_spark_recoverable

    keep(client, topic)
    client.create_producer(topic, batching_enabled=True).send_many([b"%d" % number for number in range(100)])
    frame = read_topic(spark, topic)
    assert from_spark_recoverable(frame.select("value", "__sequenceId")).count() == 100
    doubled = frame.rdd.map(lambda row: int(bytes(row["value"])) * 2).sum()
    assert doubled == 9900


def test_columns_are_chosen_and_a_topic_is_read_in_small_tasks(spark, client, topic):
    keep(client, topic)
    client.create_producer(topic, batching_enabled=True, batching_max_messages=5).send_many([b"x"] * 100)
    frame = read_topic(spark, topic, columns=["__sequenceId", "value"], max_bytes_per_split=200)
    assert frame.columns == ["__sequenceId", "value"]
    assert frame.count() == 100 and frame.rdd.getNumPartitions() > 3
    with pytest.raises(InvalidConfiguration, match="no column 'price'"):
        read_topic(spark, topic, columns=["price"])
    with pytest.raises(InvalidConfiguration, match="must be 1 or more"):
        read_topic(spark, topic, max_bytes_per_split=0)


@pytest.fixture
def one_session(spark, monkeypatch):
    """What starts a session of Spark gives this one, and what stops a session only frees what was read for it: to start
    one takes as long as all tests of this file. The example of README.md starts and stops a session of its own.
    """
    signature, calls = inspect.signature(session), []

    def given(*arguments, **options):
        asked = signature.bind(*arguments, **options).arguments
        assert (asked["num_executors"], asked["executor_cores"], asked["executor_memory"]) == (1, 1, "1g")
        calls.append("session")
        return spark

    def freed():
        calls.append("stop")
        frame_module.release_all()

    monkeypatch.setattr(magnetar.spark, "session", given)
    monkeypatch.setattr(magnetar.spark, "stop", freed)
    return calls


@pytest.mark.promise("27.4")
def test_the_examples_for_spark_read_a_topic_and_write_a_result_once(greetings, one_session, capfd):
    run(GUIDE, "spark-read")
    assert "__producerName" in capfd.readouterr().out
    run(GUIDE, "spark-compacted")
    assert "value" in capfd.readouterr().out
    run(GUIDE, "spark-stream")
    printed = capfd.readouterr().out
    assert re.search(r"^micro-batch 0 has [1-9]\d* rows$", printed, re.MULTILINE)
    assert re.search(r"^read [1-9]\d* entries$", printed, re.MULTILINE)
    curl(GUIDE, "spark-deduplication", greetings.admin_url)
    run(GUIDE, "spark-write")
    printed = capfd.readouterr().out
    (rows,) = re.findall(r"^stored (\d+) known 0$", printed, re.MULTILINE)
    assert int(rows) > 0 and f"stored 0 known {rows}\n" in printed
    assert one_session == ["session", "stop"] * 4


def test_the_example_without_spark_reads_the_same_rows_three_times(greetings, capfd):
    run(GUIDE, "to-arrow")
    (line,) = [line for line in capfd.readouterr().out.splitlines() if re.fullmatch(r"\d+ \d+ \d+", line)]
    counts = {int(word) for word in line.split()}
    assert len(counts) == 1 and counts.pop() > 0


def test_the_typed_example_has_the_columns_of_the_schema(greetings, capfd):
    run(GUIDE, "to-arrow-typed")
    assert "int64 ['Rome']" in capfd.readouterr().out


@dataclass
class Trip:
    city: str
    days: Annotated[int, "int"]
    tags: list[str]
    at: datetime


@pytest.mark.promise("29.7")
def test_a_topic_with_a_schema_is_read_as_typed_columns(cluster, spark, client, topic):
    moment = datetime(2024, 2, 29, 1, 2, 3, 456_789, tzinfo=UTC)
    create_partitioned(cluster, topic, 2)
    keep(client, topic)
    producer = client.create_producer(topic, schema=magnetar.AvroSchema(Trip))
    for number in range(50):
        producer.send(Trip(f"city{number}", number, ["x"] * (number % 3), moment))
    frame = magnetar.spark.read_topic(spark, topic, schema="auto")
    kinds = {"city": "string", "days": "int", "tags": "array<string>", "at": "timestamp"}
    assert dict(frame.dtypes) | kinds == dict(frame.dtypes)
    totals = frame.selectExpr("sum(days)", "sum(size(tags))", "count(DISTINCT city)", "unix_micros(max(at))").collect()
    assert tuple(totals[0]) == (1225, 49, 50, 1_709_168_523_456_789)
    assert magnetar.spark.read_topic(spark, topic, schema=0, columns=["days"]).columns == ["days"]
    payloads = magnetar.spark.read_topic(spark, topic)
    assert dict(payloads.dtypes)["value"] == "binary"


def test_this_file_and_that_of_spark_4_run_every_example_and_command_of_the_page():
    with_spark_4 = Path(__file__).parents[1] / "service" / "test_spark_guide.py"
    source = Path(__file__).read_text() + with_spark_4.read_text()
    for kind in ("example", "commands"):
        assert [name for name in document_examples.named(GUIDE, kind) if f'"{name}"' not in source] == []


@pytest.mark.promise("29.7")
def test_brokers_and_a_bookie_may_go_once_a_read_is_planned(start_cluster, spark, tmp_path, topic):
    cluster = start_cluster(tmp_path)
    with cluster.client() as client:
        keep(client, topic)
        client.create_producer(topic, batching_enabled=True).send_many([b"%d" % number for number in range(20_000)])
    brokers = [f"broker-{number}" for number in range(1, len(cluster.service_urls) + 1)]
    stopped = []

    try:
        frame = read_topic(spark, topic)
        for node in brokers:
            stopped.append(ray_nodes.send(node, signal.SIGSTOP))
        ray_nodes.kill("bookie-2")
        assert sorted(map(int, values(frame))) == list(range(20_000))
    finally:
        for process in stopped:
            os.kill(process, signal.SIGCONT)
