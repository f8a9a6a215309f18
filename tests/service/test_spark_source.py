"""The data source `magnetar` in a Spark 4 that has neither Ray nor a client: rows are those that a reader gets."""

import json
import urllib.request
from typing import Any

import pytest

import magnetar
from magnetar.bulk.message_table import COLUMNS
from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.ray_nodes import wait_until
from support.spark.spark4 import Spark4, SparkFailed

pytestmark = pytest.mark.cluster_settings(brokers=2, ledger_entries_max=20, ledger_rollover_min_minutes=0)

COUNT = 500


@pytest.fixture(scope="module")
def flights(cluster: EmbeddedCluster) -> list[Any]:
    """What a reader gets of the topic `flights`, which has three partitions, many ledgers and all kinds of messages."""
    return publish(cluster, "flights", partitions=3, batching_enabled=True, batching_max_messages=7)


def publish(cluster: EmbeddedCluster, topic: str, partitions: int = 0, **options: Any) -> list[Any]:
    full = f"persistent://public/default/{topic}"
    cluster.run(cluster.coordinator_call("create_topic", topic=full, partitions=partitions))
    with magnetar.Client(cluster.service_url) as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
        producer = client.create_producer(topic, block_if_queue_full=True, **options)
        for number in range(COUNT):
            more: dict[str, Any] = {"partition_key": f"k{number % 5}"} if number % 3 else {}
            producer.send_async(b"%d" % number, None, properties={"n": str(number)} if number % 4 else None, **more)
        producer.flush()
        reader = client.create_reader(topic, magnetar.MessageId.earliest)
        return [reader.read_next(10_000) for _ in range(COUNT)]


def read(admin_url: str, topic: str = "flights", **further: str) -> dict[str, str]:
    return {"admin.url": admin_url, "topic": topic, **further}


def test_every_column_is_what_a_reader_gets(spark: Spark4, flights: list[Any], admin_url: str) -> None:
    found = spark.ask(read(admin_url), "SELECT * FROM t")
    assert found["columns"] == list(COLUMNS)
    rows = {row["__messageId"]: row for row in (dict(zip(COLUMNS, one, strict=True)) for one in found["rows"])}
    assert sorted(rows) == sorted(one.message_id().serialize().hex() for one in flights)
    for message in flights:
        row = rows[message.message_id().serialize().hex()]
        assert bytes.fromhex(row["value"]) == message.data()
        assert (row["__key"] or "", row["__messageProperties"]) == (message.partition_key(), message.properties())
        assert (row["__topic"], row["__producerName"]) == (message.topic_name(), message.producer_name())


def test_only_the_columns_that_the_user_names_are_read(spark: Spark4, flights: list[Any], admin_url: str) -> None:
    found = spark.ask(read(admin_url, columns="__sequenceId, value"), "SELECT count(DISTINCT value) FROM t")
    assert (found["columns"], found["rows"]) == (["__sequenceId", "value"], [[COUNT]])
    sql = "SELECT count(*), min(__publishTime) <= max(__publishTime) FROM t"
    assert spark.rows(read(admin_url), sql, schema="__publishTime timestamp") == [[COUNT, True]]
    with pytest.raises(SparkFailed, match="the column value has the type binary, not string"):
        spark.ask(read(admin_url), "SELECT * FROM t", schema="value string")


def test_partitions_begin_and_end_where_offsets_say(spark: Spark4, flights: list[Any], admin_url: str) -> None:
    name = "persistent://public/default/flights-partition-1"
    mine = [one for one in flights if one.topic_name() == name]
    first, last = mine[10].message_id().serialize(), mine[-10].message_id().serialize()
    options = read(
        admin_url,
        startingOffsets=json.dumps({name: first.hex()}),
        endingOffsets=json.dumps({name: [one - 256 if one > 127 else one for one in last]}),
    )
    rows = spark.rows(options, f"SELECT value FROM t WHERE __topic = '{name}' ORDER BY __sequenceId")
    assert [bytes.fromhex(value) for (value,) in rows] == [one.data() for one in mine[10:-9]]
    others = spark.rows(options, f"SELECT count(*) FROM t WHERE __topic <> '{name}'")
    assert others == [[COUNT - len(mine)]]


def test_times_of_options_and_of_filters_are_exact(spark: Spark4, flights: list[Any], admin_url: str) -> None:
    times = sorted(one.publish_timestamp() for one in flights)
    middle = times[COUNT // 2]
    behind = sum(time >= middle for time in times)
    assert spark.rows(read(admin_url, startingTime=str(middle)), "SELECT count(*) FROM t") == [[behind]]
    assert spark.rows(read(admin_url, endingTime=str(middle)), "SELECT count(*) FROM t") == [[COUNT - behind]]
    literal = f"timestamp_millis({middle})"
    assert spark.rows(read(admin_url), f"SELECT count(*) FROM t WHERE __publishTime >= {literal}") == [[behind]]
    assert spark.rows(read(admin_url), f"SELECT count(*) FROM t WHERE __publishTime < {literal}") == [[COUNT - behind]]
    nothing = spark.ask(read(admin_url), "SELECT count(*) FROM t WHERE __publishTime > timestamp '2100-01-01'")
    assert nothing["rows"] == [[0]]


def test_lists_and_patterns_name_several_topics(
    cluster: EmbeddedCluster, spark: Spark4, flights: list[Any], admin_url: str
) -> None:
    publish(cluster, "flowers")
    for option in ({"topics": "flights, public/default/flowers"}, {"topicsPattern": "fl[io].*"}):
        rows = spark.rows({"admin.url": admin_url, **option}, "SELECT __topic, count(*) FROM t GROUP BY 1 ORDER BY 1")
        names = [name.rpartition("/")[2] for name, _ in rows]
        assert names == [*(f"flights-partition-{index}" for index in range(3)), "flowers"]
        assert sum(count for _, count in rows) == 2 * COUNT


def test_a_read_is_cut_into_tasks_as_asked(spark: Spark4, flights: list[Any], admin_url: str) -> None:
    few = spark.ask(read(admin_url), "SELECT count(*) FROM t", tasks=True)
    many = spark.ask(read(admin_url, minPartitions="12"), "SELECT count(*) FROM t", tasks=True)
    assert few["rows"] == many["rows"] == [[COUNT]]
    assert few["tasks"] == 3 and 12 <= many["tasks"] <= 24


def test_a_compacted_topic_has_the_last_message_of_each_key(
    cluster: EmbeddedCluster, spark: Spark4, admin_url: str
) -> None:
    publish(cluster, "prices", batching_enabled=True)
    path = f"{admin_url}/admin/v2/persistent/public/default/prices/compaction"
    urllib.request.urlopen(urllib.request.Request(path, method="PUT"), timeout=10).close()

    def compacted() -> bool:
        with urllib.request.urlopen(path, timeout=10) as answer:
            return json.load(answer)["status"] == "SUCCESS"

    wait_until(compacted, "the topic is compacted", 30)
    with magnetar.Client(cluster.service_url) as client:
        reader = client.create_reader("prices", magnetar.MessageId.earliest, is_read_compacted=True)
        expected: list[bytes] = []
        while reader.has_message_available():
            expected.append(reader.read_next(10_000).data())
    rows = spark.rows(read(admin_url, "prices", isReadCompacted="true"), "SELECT value FROM t")
    assert sorted(bytes.fromhex(value) for (value,) in rows) == sorted(expected)


def test_errors_name_what_to_do(spark: Spark4, flights: list[Any], admin_url: str) -> None:
    with pytest.raises(SparkFailed, match=r"option admin\.url is missing"):
        spark.ask({"topic": "flights"}, "SELECT 1 FROM t")
    with pytest.raises(SparkFailed, match="one of the options topic, topics and topicsPattern must be given, not none"):
        spark.ask({"admin.url": admin_url}, "SELECT 1 FROM t")
    with pytest.raises(SparkFailed, match="TopicNotFound"):
        spark.ask(read(admin_url, "nobody"), "SELECT count(*) FROM t")
    with pytest.raises(SparkFailed, match=r"127\.0\.0\.1:1.* does not answer"):
        spark.ask(read("http://127.0.0.1:1"), "SELECT count(*) FROM t")
    with pytest.raises(SparkFailed, match="no option 'startingoffset'"):
        spark.ask(read(admin_url, startingOffset="earliest"), "SELECT count(*) FROM t")


def test_bookies_and_brokers_that_end_between_planning_and_reading_cost_no_row(
    cluster: EmbeddedCluster, spark: Spark4, flights: list[Any], admin_url: str
) -> None:
    cluster.run(cluster.stop_bookie(2))
    cluster.run(cluster.stop_broker(1))
    try:
        assert spark.rows(read(admin_url), "SELECT count(DISTINCT __messageId) FROM t") == [[COUNT]]
    finally:
        cluster.run(cluster.start_broker(1))
        cluster.run(cluster.start_bookie(2))
