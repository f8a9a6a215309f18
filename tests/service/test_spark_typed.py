"""Typed columns in Spark 4: the types that Spark shows, versions that evolved, streams, and errors."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest

import magnetar
from magnetar.bulk.message_table import COLUMNS
from support.servers.embedded_cluster import EmbeddedCluster
from support.spark.spark4 import Spark4, SparkFailed

pytestmark = pytest.mark.cluster_settings(brokers=2)

METADATA = list(COLUMNS[1:])
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 1, 234567, tzinfo=datetime.UTC)
DAY = datetime.date(2024, 2, 29)


@dataclass
class Place:
    city: str
    code: int | None = None


@dataclass
class Flight:
    carrier: str
    delay: Annotated[int, "int"]
    place: Place
    price: Annotated[Decimal, (12, 2)]
    at: datetime.datetime = MOMENT
    day: datetime.date = DAY
    tags: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    note: str | None = None


TYPES = {
    "carrier": "string",
    "delay": "int",
    "place": "struct<city:string,code:bigint>",
    "price": "decimal(12,2)",
    "at": "timestamp",
    "day": "date",
    "tags": "array<string>",
    "counts": "map<string,bigint>",
    "note": "string",
}


def options(admin_url: str, topic: str, **further: str) -> dict[str, str]:
    return {"admin.url": admin_url, "topic": topic, **further}


@pytest.fixture(scope="module", params=["avro", "json"])
def flights(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> str:
    """A topic with two partitions and flights of a schema."""
    kind = magnetar.AvroSchema if request.param == "avro" else magnetar.JsonSchema
    topic = f"flights-{request.param}"
    cluster.run(cluster.coordinator_call("create_topic", topic=f"persistent://public/default/{topic}", partitions=2))
    place = [Place("Rome", 5), Place("Oslo")]
    values = [
        Flight("AA", number, place[number % 2], Decimal(number) / 4, tags=["x"] * (number % 3), counts={"n": number})
        for number in range(100)
    ]
    publish(cluster, topic, kind(Flight), values)
    return topic


def publish(cluster: EmbeddedCluster, topic: str, schema: Any, values: Sequence[Any]) -> None:
    with magnetar.Client(cluster.service_url) as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
        producer = client.create_producer(topic, schema=schema, batching_enabled=True)
        for value in values:
            producer.send_async(value, None)
        producer.flush()


def test_spark_shows_the_types_of_fields_and_reads_them(spark: Spark4, flights: str, admin_url: str) -> None:
    found = spark.ask(
        options(admin_url, flights),
        "SELECT count(*), sum(delay), count(place.code), sum(price), min(at), max(day), sum(size(tags)),"
        " sum(counts['n']), count(note) FROM t",
    )
    assert found["columns"] == [*TYPES, *METADATA]
    assert {name: found["types"][name] for name in TYPES} == TYPES
    tags = sum(number % 3 for number in range(100))
    assert found["rows"] == [[100, 4950, 50, "1237.50", "2024-02-29 12:30:01.234567", "2024-02-29", tags, 4950, 0]]


def test_only_columns_that_are_named_are_read(spark: Spark4, flights: str, admin_url: str) -> None:
    found = spark.ask(options(admin_url, flights, columns="delay, __topic"), "SELECT sum(delay) FROM t")
    assert (found["types"], found["rows"]) == ({"delay": "int", "__topic": "string"}, [[4950]])
    sql = "SELECT sum(place.code) FROM t"
    schema = "place struct<city:string,code:bigint>"
    assert spark.rows(options(admin_url, flights), sql, schema=schema) == [[250]]
    with pytest.raises(SparkFailed, match="the column delay has the type int, not string"):
        spark.ask(options(admin_url, flights), "SELECT * FROM t", schema="delay string")
    with pytest.raises(SparkFailed, match="there is no column 'delays': choose from carrier, delay, place"):
        spark.ask(options(admin_url, flights, columns="delays"), "SELECT * FROM t")


def test_payloads_are_there_on_request(spark: Spark4, flights: str, admin_url: str) -> None:
    found = spark.ask(options(admin_url, flights, schema="bytes"), "SELECT count(value) FROM t")
    assert (found["columns"], found["types"]["value"], found["rows"]) == (list(COLUMNS), "binary", [[100]])


OLD = make_dataclass("Trip", [("city", str), ("days", int), ("gone", str, "g")])
NEW = make_dataclass("Trip", [("days", int), ("city", str), ("note", str | None, None), ("class_", int, 7)])


def test_versions_that_evolved_are_one_table(cluster: EmbeddedCluster, spark: Spark4, admin_url: str) -> None:
    publish(cluster, "trips", magnetar.AvroSchema(OLD), [OLD("Rome", 1), OLD("Oslo", 2)])
    publish(cluster, "trips", magnetar.AvroSchema(NEW), [NEW(3, "Bern", "n", 8)])
    sql = "SELECT days, city, note, class_ FROM t ORDER BY days"
    newest = [[1, "Rome", None, 7], [2, "Oslo", None, 7], [3, "Bern", "n", 8]]
    assert spark.rows(options(admin_url, "trips"), sql) == newest
    first = spark.ask(options(admin_url, "trips", schemaVersion="0"), "SELECT city, days, gone FROM t ORDER BY days")
    assert first["columns"] == ["city", "days", "gone", *METADATA]
    assert first["rows"] == [["Rome", 1, "g"], ["Oslo", 2, "g"], ["Bern", 3, "g"]]
    # A frame that was made for the older columns keeps them.
    kept = spark.rows(options(admin_url, "trips"), "SELECT count(gone) FROM t", schema="gone string")
    assert kept == [[3]]
    with pytest.raises(SparkFailed, match="has no version 5 of its schema: it has versions 0 to 1"):
        spark.ask(options(admin_url, "trips", schemaVersion="5"), sql)


def test_several_topics_need_the_same_columns(cluster: EmbeddedCluster, spark: Spark4, admin_url: str) -> None:
    for name in ("same-1", "same-2"):
        publish(cluster, name, magnetar.AvroSchema(Place), [Place(name, 1)])
    publish(cluster, "other", magnetar.StringSchema(), ["x"])
    rows = spark.rows({"admin.url": admin_url, "topicsPattern": "same-.*"}, "SELECT city FROM t ORDER BY 1")
    assert rows == [["same-1"], ["same-2"]]
    both = {"admin.url": admin_url, "topics": "same-1,other"}
    with pytest.raises(SparkFailed, match=r"other has other columns than .*same-1: .*schema=bytes"):
        spark.ask(both, "SELECT 1 FROM t")
    assert spark.rows({**both, "schema": "bytes"}, "SELECT count(value) FROM t") == [[2]]


def test_pairs_and_single_values_have_their_types(cluster: EmbeddedCluster, spark: Spark4, admin_url: str) -> None:
    schema = magnetar.KeyValueSchema(
        magnetar.Int32Schema(), magnetar.JsonSchema(Place), magnetar.KeyValueEncodingType.SEPARATED
    )
    publish(cluster, "pairs", schema, [(7, Place("Rome", 1))])
    found = spark.ask(options(admin_url, "pairs"), "SELECT key, value.city FROM t")
    assert found["rows"] == [[7, "Rome"]]
    assert [found["types"][one] for one in ("key", "value")] == ["int", "struct<city:string,code:bigint>"]
    publish(cluster, "days", magnetar.LocalDateSchema(), [DAY])
    found = spark.ask(options(admin_url, "days"), "SELECT value FROM t")
    assert (found["types"]["value"], found["rows"]) == ("date", [["2024-02-29"]])


def test_a_stream_reads_versions_that_come_while_it_runs(
    cluster: EmbeddedCluster, spark: Spark4, admin_url: str, tmp_path: Path
) -> None:
    given = options(admin_url, "moving", startingOffsets="earliest")
    publish(cluster, "moving", magnetar.AvroSchema(OLD), [OLD("Rome", 1)])
    sql = "SELECT city, days FROM t ORDER BY days"
    first = spark.ask({**given, "columns": "city,days"}, sql, directory=str(tmp_path))
    assert first["rows"] == [["Rome", 1]]
    publish(cluster, "moving", magnetar.AvroSchema(NEW), [NEW(2, "Bern", "n", 8)])
    publish(cluster, "moving", magnetar.AvroSchema(OLD), [OLD("Oslo", 3)])
    second = spark.ask({**given, "columns": "city,days"}, sql, directory=str(tmp_path))
    assert second["rows"] == [["Rome", 1], ["Bern", 2], ["Oslo", 3]]


def test_a_message_that_does_not_fit_ends_the_action_and_is_named(
    cluster: EmbeddedCluster, spark: Spark4, admin_url: str
) -> None:
    publish(cluster, "mixed", magnetar.AvroSchema(Place), [Place("Rome", 1)])
    publish(cluster, "mixed", None, [b"\x7f"])
    with pytest.raises(SparkFailed, match=r'SchemaSerializationError: entry \d+:1 of .*mixed .*schema="bytes"'):
        spark.ask(options(admin_url, "mixed"), "SELECT count(city) FROM t")
    assert spark.rows(
        options(admin_url, "mixed"), "SELECT count(*), count(__topic) FROM t", schema="__topic string"
    ) == [[2, 2]]
