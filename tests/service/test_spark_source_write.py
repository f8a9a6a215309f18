"""The data source `magnetar` in a Spark 4 writes: what a plain consumer gets is what the rows say."""

from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pulsar
import pytest

import magnetar
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.ray_nodes import wait_until
from support.spark.spark4 import Spark4, SparkFailed

pytestmark = pytest.mark.cluster_settings(brokers=2, deduplication_enabled=True)

COUNT = 6_000
Copy = Callable[..., None]
ROWS = f"""
SELECT CAST(id AS STRING) AS value, IF(id % 3 = 0, NULL, CONCAT('k', id % 7)) AS __key,
  IF(id % 5 = 0, NULL, timestamp_millis(1700000000000 + id)) AS __eventTime,
  IF(id % 4 = 0, NULL, map('n', CAST(id AS STRING), 'é', '')) AS __messageProperties,
  IF(id % 2 = 0, NULL, CONCAT('o', id % 3)) AS __orderingKey
FROM range(0, {COUNT}, 1, 3)
"""


def create(cluster: EmbeddedCluster, topic: str, partitions: int = 0) -> None:
    """A topic that keeps its messages."""
    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=partitions))
    with magnetar.Client(cluster.service_url) as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()


def stored(cluster: EmbeddedCluster, topic: str, count: int, module: Any = magnetar) -> list[Any]:
    """All messages of a topic, which has so many, as a plain reader gets them."""
    client = module.Client(cluster.service_url, operation_timeout_seconds=20)
    try:
        reader = client.create_reader(topic, module.MessageId.earliest)
        found = [reader.read_next(10_000) for _ in range(count)]
        assert not reader.has_message_available(), "there are more"
        return found
    finally:
        client.close()


def by_partition(messages: list[Any]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        found[message.topic_name()].append(int(message.data()))
    return found


def target(cluster: EmbeddedCluster, topic: str, **further: str) -> dict[str, str]:
    return {"service.url": cluster.service_url, "topic": topic, **further}


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("codec", ["NONE", "ZSTD"])
def test_rows_are_messages_with_all_that_they_say(
    cluster: EmbeddedCluster, spark: Spark4, topic: str, partitions: int, codec: str
) -> None:
    topic = f"{topic}-{partitions}-{codec}"
    create(cluster, topic, partitions)
    spark.write(target(cluster, topic, **{"pulsar.producer.compressionType": codec}), ROWS)
    messages = stored(cluster, topic, COUNT, pulsar)
    assert sorted(int(one.data()) for one in messages) == list(range(COUNT))
    places = defaultdict[str, set[str]](set)
    for message in messages:
        number = int(message.data())
        assert message.partition_key() == ("" if number % 3 == 0 else f"k{number % 7}")
        assert message.event_timestamp() == (0 if number % 5 == 0 else 1_700_000_000_000 + number)
        assert message.properties() == ({} if number % 4 == 0 else {"n": str(number), "é": ""})
        assert message.ordering_key() == ("" if number % 2 == 0 else f"o{number % 3}")
        places[message.partition_key()].add(message.topic_name())
    assert len(places[""]) == max(partitions, 1), "rows without a key are spread"
    keys = sorted(key for key in places if key)
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer(topic)
        for key in keys:
            producer.send(b"0", partition_key=key)
    for message in stored(cluster, topic, COUNT + len(keys))[-len(keys) :]:
        places[message.partition_key()].add(message.topic_name())
    assert [len(places[key]) for key in keys] == [1] * 7, "a key has one partition, that of our client"


def test_rows_name_their_topics_and_what_is_read_can_be_written_back(
    cluster: EmbeddedCluster, spark: Spark4, topic: str, admin_url: str
) -> None:
    create(cluster, f"{topic}-a", 2)
    create(cluster, f"{topic}-b")
    create(cluster, f"{topic}-all", 2)
    rows = f"SELECT *, CONCAT('{topic}-', IF(CAST(value AS INT) % 10 < 7, 'a', 'b')) AS __topic FROM ({ROWS})"
    spark.write({"service.url": cluster.service_url}, rows)
    a, b = COUNT * 7 // 10, COUNT * 3 // 10
    found = stored(cluster, f"{topic}-a", a) + stored(cluster, f"{topic}-b", b)
    assert sorted(int(one.data()) for one in found) == list(range(COUNT))
    read = {"admin.url": admin_url, "topics": f"{topic}-a,{topic}-b"}
    spark.write(target(cluster, f"{topic}-all"), "SELECT * FROM t", options=read)
    again = stored(cluster, f"{topic}-all", COUNT)
    kept = [sorted((one.data(), one.partition_key(), one.event_timestamp()) for one in some) for some in (found, again)]
    assert kept[0] == kept[1]
    for key in {one.partition_key() for one in found} - {""}:
        for part in (range(7), range(7, 10)):  # of one topic: its rows of a key are in one partition, and in one task
            before, after = (
                [one.data() for one in some if one.partition_key() == key and int(one.data()) % 10 in part]
                for some in (found, again)
            )
            assert before == after


def test_a_named_write_is_stored_once_and_another_one_under_its_name_fails(
    cluster: EmbeddedCluster, spark: Spark4, topic: str
) -> None:
    create(cluster, topic, 3)
    options = target(cluster, topic, producerName="result", orderBy="value")
    for _ in range(2):
        spark.write(options, ROWS, tasks=4)
    messages = stored(cluster, topic, COUNT)
    assert sorted(int(one.data()) for one in messages) == list(range(COUNT))
    assert {one.producer_name() for one in messages} == {f"result-{number}" for number in range(4)}
    with pytest.raises(SparkFailed, match="has stored other rows than this attempt has"):
        spark.write(options, ROWS.replace("CAST(id AS STRING)", "CAST(id + 1 AS STRING)"), tasks=4)
    stored(cluster, topic, COUNT)


@pytest.mark.parametrize(
    ("sql", "options", "said"),
    [
        ("SELECT 'a' AS value", {"topic": ""}, "Give the option topic, or a column `__topic`"),
        ("SELECT 'a' AS value, CAST(NULL AS STRING) AS __topic", {"topic": ""}, "its column `__topic` is null"),
        ("SELECT 'a' AS __key", {}, "the frame has no column `value`"),
        ("SELECT 1 AS value", {}, "`value` is int, not binary or string: cast it"),
        ("SELECT 'a' AS value, 1 AS __when", {}, "the column `__when` is none of value, __topic"),
        ("SELECT 'a' AS value, 1 AS more", {}, "`more` is no part of a message"),
        ("SELECT 'a' AS value, map('a', CAST(NULL AS STRING)) AS __messageProperties", {}, "a property is a string"),
        ("SELECT 'a' AS value, CAST(-1 AS BIGINT) AS __eventTime", {}, "is before 1970"),
        ("SELECT 'a' AS value", {"orderBy": "b"}, "orderBy names the column `b`"),
        ("SELECT 'a' AS value", {"exactlyOnce": "true"}, "exactlyOnce needs producerName"),
        ("SELECT 'a' AS value", {"topic": "non-persistent://public/default/t"}, "only persistent topics"),
        ("SELECT 'a' AS value", {"startingOffsets": "latest"}, "a write has no option 'startingoffsets'"),
        ("SELECT 'a' AS value", {"service.url": "http://127.0.0.1:1"}, "is not a service URL"),
    ],
)
def test_errors_of_writes_name_what_to_do(
    cluster: EmbeddedCluster, spark: Spark4, topic: str, sql: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(SparkFailed, match=said):
        spark.write(target(cluster, "errors") | options, sql)


def test_a_topic_that_does_not_exist_is_created_as_for_a_client(
    cluster: EmbeddedCluster, spark: Spark4, topic: str
) -> None:
    spark.write(target(cluster, topic), "SELECT CAST(id AS STRING) AS value FROM range(0, 50, 1, 2)")
    assert numbers_of(stored(cluster, topic, 50)) == list(range(50))


def test_a_topic_is_not_overwritten(cluster: EmbeddedCluster, spark: Spark4, topic: str) -> None:
    with pytest.raises(SparkFailed, match="a topic cannot be overwritten: write with mode"):
        spark.write(target(cluster, topic), ROWS, mode="overwrite")


EPOCH, DAY = datetime(1970, 1, 1, tzinfo=UTC), date(2024, 1, 2)
RECORDS = """
SELECT CAST(id AS INT) AS number, IF(id % 2 = 0, NULL, CONCAT('"', id)) AS name, array(id, NULL) AS ids,
  map('a', id * 1.5D) AS more, named_struct('flag', id > 3) AS inner,
  timestamp_millis(id) AS moment, date_add('2024-01-01', 1) AS day, CONCAT('k', id) AS __key FROM range(0, 50, 1, 2)
"""


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_rows_are_records_of_a_schema_that_the_topic_keeps(
    cluster: EmbeddedCluster, spark: Spark4, topic: str, kind: str
) -> None:
    topic += f"-{kind}"
    create(cluster, topic)
    spark.write(target(cluster, topic, schema=kind, recordName="Thing"), RECORDS)
    with magnetar.Client(cluster.service_url) as client:
        reader = client.create_reader(topic, magnetar.MessageId.earliest, schema=magnetar.AutoConsumeSchema())
        found = {message.partition_key(): message.value() for message in (reader.read_next(10_000) for _ in range(50))}
    assert found == {
        f"k{number}": {
            "number": number,
            "name": f'"{number}' if number % 2 else None,
            "ids": [number, None],
            "more": {"a": number * 1.5},
            "inner": {"flag": number > 3},
            "moment": EPOCH + timedelta(milliseconds=number) if kind == "avro" else number * 1_000,
            "day": DAY if kind == "avro" else (DAY - EPOCH.date()).days,
        }
        for number in range(50)
    }
    with pytest.raises(SparkFailed, match="IncompatibleSchema"):
        spark.write(
            target(cluster, topic, schema=kind, recordName="Thing"), "SELECT 'a' AS number, CAST(1 AS INT) AS other"
        )
    with pytest.raises(SparkFailed, match="has no type for"):
        spark.write(target(cluster, topic, schema=kind), "SELECT INTERVAL '1' DAY AS number")
    spark.write(
        target(cluster, topic, schema=kind, recordName="Thing"),
        f"SELECT struct(number, name, ids, more, inner, moment, day) AS value FROM ({RECORDS})",
    )


def forget_commit(checkpoint: Path) -> None:
    """Spark then runs its last micro-batch again, as after a crash behind the last row."""
    last = max(int(one.name) for one in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / f"{last}").unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


@pytest.fixture
def copy(cluster: EmbeddedCluster, spark: Spark4, topic: str, admin_url: str, tmp_path: Path) -> Copy:
    """Copy the topic `…-in` to the topic `…-out` by a stream, up to the end of the first."""

    def run(sql: str = "SELECT value, __key FROM t", source: dict[str, str] | None = None, **further: str) -> None:
        read = {"admin.url": admin_url, "topic": f"{topic}-in", "startingOffsets": "earliest", **(source or {})}
        spark.write(target(cluster, f"{topic}-out", **further), sql, options=read, directory=str(tmp_path))

    return run


def fill(cluster: EmbeddedCluster, topic: str) -> None:
    """A topic with many small entries, and one that is empty."""
    create(cluster, f"{topic}-in", 2)
    create(cluster, f"{topic}-out", 3)
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer(f"{topic}-in", batching_max_messages=10, block_if_queue_full=True)
        for number in range(COUNT):
            producer.send_async(b"%d" % number, None, partition_key=f"k{number % 7}" if number % 3 else None)
        producer.flush()


def numbers_of(messages: list[Any]) -> list[int]:
    return sorted(int(one.data()) for one in messages)


@pytest.mark.promise("27.4")
def test_a_micro_batch_that_runs_again_stores_nothing_twice(
    cluster: EmbeddedCluster, copy: Copy, topic: str, tmp_path: Path
) -> None:
    """Its tasks are those of the first time, though sizes are known better, and options of splits have changed."""
    fill(cluster, topic)
    copy(source={"minPartitions": "5"}, exactlyOnce="true")
    assert numbers_of(stored(cluster, f"{topic}-out", COUNT)) == list(range(COUNT))
    for number in (1, 2):  # closes the ledgers of its topics
        cluster.run(cluster.stop_broker(number))
        cluster.run(cluster.start_broker(number))
    forget_commit(tmp_path)
    copy(source={"minPartitions": "1", "maxBytesPerSplit": "65536"}, exactlyOnce="true")
    assert numbers_of(stored(cluster, f"{topic}-out", COUNT)) == list(range(COUNT))
    forget_commit(tmp_path)
    cluster.run(cluster.coordinator_call("grow_topic", topic=f"{topic}-out", partitions=5))
    copy(exactlyOnce="true")
    assert numbers_of(stored(cluster, f"{topic}-out", COUNT)) == list(range(COUNT))
    forget_commit(tmp_path)
    with pytest.raises(SparkFailed, match="has stored other rows than this attempt has"):
        copy("SELECT upper(concat(value, 'x')) AS value, __key FROM t", exactlyOnce="true")
    stored(cluster, f"{topic}-out", COUNT)
    copy()
    assert numbers_of(stored(cluster, f"{topic}-out", 2 * COUNT)) == sorted([*range(COUNT), *range(COUNT)])


@pytest.mark.promise("27.4")
def test_rows_behind_a_shuffle_are_known_again_when_they_are_sorted(
    cluster: EmbeddedCluster, copy: Copy, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic)
    sql = "SELECT /*+ REPARTITION(3, __key) */ value, __key FROM t"
    for _ in range(2):
        copy(sql, source={"minPartitions": "6"}, exactlyOnce="true", orderBy="value")
        assert numbers_of(stored(cluster, f"{topic}-out", COUNT)) == list(range(COUNT))
        forget_commit(tmp_path)


def test_a_stream_says_when_the_broker_does_not_know_its_rows_again(
    cluster: EmbeddedCluster, spark: Spark4, copy: Copy, topic: str, tmp_path: Path
) -> None:
    fill(cluster, topic)
    policy = {"policy": "deduplication_enabled", "value": False}
    cluster.run(cluster.coordinator_call("set_topic_policy", topic=f"{topic}-out", **policy))
    copy(exactlyOnce="true")
    stored(cluster, f"{topic}-out", COUNT)
    wait_until(lambda: f"deduplication is off for {topic}-out" in spark.log.read_text(), "the driver warns")
    forget_commit(tmp_path)
    copy(exactlyOnce="true")
    stored(cluster, f"{topic}-out", 2 * COUNT)
