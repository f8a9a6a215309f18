"""Typed columns of topics whose schemas our client and the official one have registered, without Spark."""

import datetime
import enum
import json
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from typing import Annotated, Any

import pulsar
import pulsar.schema
import pyarrow as pa
import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.source_context_pb2 import SourceContext
from google.protobuf.type_pb2 import Field, Syntax, Type

import magnetar
from magnetar.bulk.message_table import COLUMNS
from magnetar.protocol.errors import IncompatibleSchema, InvalidConfiguration, SchemaSerializationError
from support.servers.embedded_cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster_settings(brokers=2)

METADATA = list(COLUMNS[1:])
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 1, 234567, tzinfo=datetime.UTC)


class State(enum.Enum):
    NEW = "new"
    OLD = "old"


@dataclass
class Place:
    city: str
    code: int | None = None


@dataclass
class Flight:
    carrier: str
    place: Place
    price: Annotated[Decimal, (12, 2)]
    tags: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    state: State = State.NEW
    at: datetime.datetime = MOMENT
    note: str | None = None
    late: bool = False


FLIGHTS = [
    Flight("AA", Place("Rome", 5), Decimal("12.50"), ["x", "y"], {"a": 1}, State.OLD),
    Flight("UA", Place("Oslo"), Decimal("-0.01"), note="nöte", late=True),
    Flight("", Place("", -(1 << 62)), Decimal("9999999999.99")),
]


def plain(flight: Flight) -> dict[str, Any]:
    return {
        "carrier": flight.carrier,
        "place": {"city": flight.place.city, "code": flight.place.code},
        "price": flight.price,
        "tags": flight.tags,
        "counts": list(flight.counts.items()),
        "state": flight.state.name,
        "at": flight.at,
        "note": flight.note,
        "late": flight.late,
    }


Read = Callable[..., pa.Table]


@pytest.fixture
def read(cluster: EmbeddedCluster, topic: str, admin_url: str) -> Read:
    """Read the test's topic, which keeps its messages."""

    def run(schema: str | int | None = "auto", **options: Any) -> pa.Table:
        table = magnetar.to_arrow(topic, schema=schema, admin_url=admin_url, **options)
        table.validate(full=True)
        return table

    cluster.run(cluster.coordinator_call("create_topic", topic=topic, partitions=0))
    with magnetar.Client(cluster.service_url) as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
    return run


def send(cluster: EmbeddedCluster, topic: str, schema: Any, values: Sequence[Any], **options: Any) -> None:
    with magnetar.Client(cluster.service_url) as client:
        producer = client.create_producer(topic, schema=schema, batching_enabled=True, **options)
        for value in values:
            producer.send_async(value, None)
        producer.flush()


@pytest.mark.parametrize("kind", [magnetar.AvroSchema, magnetar.JsonSchema])
def test_records_become_the_columns_of_their_fields(
    cluster: EmbeddedCluster, topic: str, read: Read, kind: Any
) -> None:
    send(cluster, topic, kind(Flight), FLIGHTS)
    table = read()
    assert table.column_names == [*plain(FLIGHTS[0]), *METADATA]
    assert table.select(list(plain(FLIGHTS[0]))).to_pylist() == [plain(one) for one in FLIGHTS]
    assert str(table.schema.field("price").type) == "decimal128(12, 2)"
    pruned = read(columns=["note", "__topic", "carrier"])
    assert pruned.to_pylist() == [{"note": one.note, "__topic": topic, "carrier": one.carrier} for one in FLIGHTS]
    for schema in (None, "bytes"):
        assert [str(one) for one in read(schema, columns=["value"]).schema.types] == ["binary"]


def test_records_of_the_official_client_are_read(official_client: pulsar.Client, topic: str, admin_url: str) -> None:
    class Order(pulsar.schema.Record):
        item = pulsar.schema.String()
        count = pulsar.schema.Integer()
        share = pulsar.schema.Double()
        tags = pulsar.schema.Array(pulsar.schema.String())

    for kind in (pulsar.schema.AvroSchema, pulsar.schema.JsonSchema):
        name = f"{topic}-{kind.__name__}"
        official_client.subscribe(name, "keeper").close()
        producer = official_client.create_producer(name, schema=kind(Order))
        producer.send(Order(item="pen", count=3, share=0.5, tags=["a", "b"]))
        producer.send(Order(item="ink", count=None, share=None, tags=None))
        table = magnetar.to_arrow(name, schema="auto", admin_url=admin_url)
        found = table.select(["item", "count", "share", "tags"]).to_pylist()
        assert found == [
            {"item": "pen", "count": 3, "share": 0.5, "tags": ["a", "b"]},
            {"item": "ink", "count": None, "share": None, "tags": None},
        ]


DESCRIBED = [
    Type(
        name="air.Flight",
        fields=[
            Field(kind=Field.TYPE_STRING, cardinality=Field.CARDINALITY_OPTIONAL, number=1, name="carrier"),
            Field(kind=Field.TYPE_SINT64, cardinality=Field.CARDINALITY_REPEATED, number=-2, packed=True, name="ä"),
        ],
        oneofs=["delay", ""],
        source_context=SourceContext(file_name="flight.proto"),
        syntax=Syntax.SYNTAX_PROTO3,
    ),
    Type(),
    Type(source_context=SourceContext()),
]
"""Messages whose classes protoc has generated, of three files, with messages and enums inside them."""


def test_protobuf_of_the_official_client_is_read(
    official_client: pulsar.Client, topic: str, read: Read, admin_url: str
) -> None:
    schema = pulsar.schema.ProtobufNativeSchema(Type)
    producer = official_client.create_producer(topic, schema=schema, batching_enabled=True)
    for message in DESCRIBED:
        producer.send(message)
    table = read(columns=["name", "fields", "oneofs", "source_context", "syntax"])
    as_json = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    expected = [MessageToDict(message, **as_json) for message in DESCRIBED]
    found = [{name: value for name, value in row.items() if value is not None} for row in table.to_pylist()]
    assert found == [{name: value for name, value in one.items() if name in table.column_names} for one in expected]
    assert found[0]["fields"][1]["number"] == -2 and "source_context" not in found[1]
    assert table.schema.field("syntax").type == pa.string()
    payloads = read("bytes", columns=["value"])["value"].to_pylist()
    assert [Type.FromString(payload) for payload in payloads] == DESCRIBED
    assert {*read().column_names} == {*(one.name for one in Type.DESCRIPTOR.fields), *METADATA}


OLD = make_dataclass("Trip", [("city", str), ("days", int), ("gone", str, "g")])
NEW = make_dataclass("Trip", [("days", int), ("city", str), ("note", str | None, None), ("class_", int, 7)])


def test_versions_that_evolved_are_read_with_the_newest_or_a_named_one(
    cluster: EmbeddedCluster, topic: str, read: Read
) -> None:
    expected: list[dict[str, Any]] = []
    for number in range(3):  # the versions lie between each other
        send(cluster, topic, magnetar.AvroSchema(OLD), [OLD(f"old{number}", number)] * 2)
        send(cluster, topic, magnetar.AvroSchema(NEW), [NEW(number, f"new{number}", None, 8)] * 3)
        expected += [{"city": f"old{number}", "days": number, "note": None, "class_": 7}] * 2
        expected += [{"city": f"new{number}", "days": number, "note": None, "class_": 8}] * 3
    assert read(columns=["city", "days", "note", "class_"]).to_pylist() == expected
    assert read(1).column_names == ["days", "city", "note", "class_", *METADATA]
    table = read(0)
    assert table.column_names == ["city", "days", "gone", *METADATA]
    assert table.select(["city", "gone"]).to_pylist() == [{"city": row["city"], "gone": "g"} for row in expected]
    with pytest.raises(InvalidConfiguration, match="has no version 2 of its schema: it has versions 0 to 1"):
        read(2)


def test_a_version_that_cannot_be_read_as_the_columns_is_an_error(
    cluster: EmbeddedCluster, topic: str, read: Read, admin_url: str
) -> None:
    path = f"{admin_url}/admin/v2/{topic.replace('://', '/')}/schemaCompatibilityStrategy"
    body = json.dumps("ALWAYS_COMPATIBLE").encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(path, body, headers, method="PUT"), timeout=10).close()
    send(cluster, topic, magnetar.Int32Schema(), [7])
    send(cluster, topic, magnetar.AvroSchema(Place), [Place("a", 1)])
    with pytest.raises(IncompatibleSchema, match=r'with version 0 .*it is INT32, not AVRO.*schema="bytes"'):
        read()
    last = read("bytes", columns=["__messageId"])["__messageId"].to_pylist()[-1]
    assert read(start=last, columns=["city"])["city"].to_pylist() == ["a"]


@pytest.mark.parametrize(
    ("schema", "values", "kind", "expected"),
    [
        (magnetar.StringSchema(), ["", "é"], "string", None),
        (magnetar.BooleanSchema(), [True, False], "bool", None),
        (magnetar.Int8Schema(), [-128, 127], "int8", None),
        (magnetar.Int16Schema(), [-32768, 5], "int16", None),
        (magnetar.Int32Schema(), [-5, 1 << 30], "int32", None),
        (magnetar.Int64Schema(), [-(1 << 63), 1], "int64", None),
        (magnetar.FloatSchema(), [0.5, -2.0], "float", None),
        (magnetar.DoubleSchema(), [0.1, -1e300], "double", None),
        (magnetar.DateSchema(), [MOMENT], "timestamp[us, tz=UTC]", [MOMENT.replace(microsecond=234000)]),
        (magnetar.TimestampSchema(), [MOMENT], "timestamp[us, tz=UTC]", [MOMENT.replace(microsecond=234000)]),
        (magnetar.InstantSchema(), [MOMENT], "timestamp[us, tz=UTC]", None),
        (magnetar.TimeSchema(), [datetime.time(1, 2, 3)], "int32", [3_723_000]),
        (magnetar.LocalDateSchema(), [MOMENT.date()], "date32[day]", None),
        (magnetar.LocalTimeSchema(), [datetime.time(1, 2, 3, 4)], "int64", [3_723_000_004]),
        (magnetar.LocalDateTimeSchema(), [MOMENT.replace(tzinfo=None)], "timestamp[us]", None),
    ],
)
def test_single_values_are_the_column_value(
    cluster: EmbeddedCluster, topic: str, read: Read, schema: Any, values: list[Any], kind: str, expected: Any
) -> None:
    send(cluster, topic, schema, values)
    table = read()
    assert table.column_names == ["value", *METADATA]
    assert str(table.schema.field("value").type) == kind
    assert table["value"].to_pylist() == (values if expected is None else expected)


@pytest.mark.parametrize("encoding", list(magnetar.KeyValueEncodingType))
def test_pairs_are_two_columns(cluster: EmbeddedCluster, topic: str, read: Read, encoding: Any) -> None:
    schema = magnetar.KeyValueSchema(magnetar.Int32Schema(), magnetar.AvroSchema(Place), encoding)
    pairs = [(number, Place(f"city{number}", number or None)) for number in range(5)]
    send(cluster, topic, schema, pairs)
    rows = read(columns=["key", "value"]).to_pylist()
    assert rows == [{"key": key, "value": {"city": one.city, "code": one.code}} for key, one in pairs]
    assert read(columns=["value", "__sequenceId"]).column_names == ["value", "__sequenceId"]
    assert read(columns=["key"])["key"].to_pylist() == [0, 1, 2, 3, 4]


def test_a_null_value_is_null_in_all_typed_columns(cluster: EmbeddedCluster, topic: str, read: Read) -> None:
    send(cluster, topic, magnetar.AvroSchema(Place), [Place("a", 1), None, Place("b", 2)])
    assert read(columns=["city", "code"]).to_pylist() == [
        {"city": "a", "code": 1},
        {"city": None, "code": None},
        {"city": "b", "code": 2},
    ]


def test_a_topic_without_a_schema_or_messages_has_columns_all_the_same(
    cluster: EmbeddedCluster, topic: str, read: Read
) -> None:
    assert read().column_names == list(COLUMNS)
    with pytest.raises(InvalidConfiguration, match="has no version 0 of its schema: it has no schema"):
        read(0)
    send(cluster, topic, magnetar.AvroSchema(Place), [])
    table = read()
    assert (table.num_rows, table.column_names) == (0, ["city", "code", *METADATA])
    with pytest.raises(InvalidConfiguration, match="there is no column 'town': choose from city, code, __key"):
        read(columns=["town"])
    with pytest.raises(InvalidConfiguration, match='schema must be "auto", "bytes" or the number of a version'):
        read("avro")


def test_a_message_that_does_not_fit_ends_the_read_and_is_named(
    cluster: EmbeddedCluster, topic: str, read: Read
) -> None:
    send(cluster, topic, magnetar.AvroSchema(Place), [Place("a", 1)])
    send(cluster, topic, None, [b"\x7fno place"])
    send(cluster, topic, magnetar.AvroSchema(Place), [Place("b", 1)])
    with pytest.raises(
        SchemaSerializationError, match=r'entry \d+:1 of .* does not fit .*length is negative.*schema="bytes"'
    ) as found:
        read()
    assert found.value.details["entry_id"] == 1
    assert read("bytes")["value"].to_pylist()[1] == b"\x7fno place"


def test_batches_and_pandas_are_typed_too(cluster: EmbeddedCluster, topic: str, read: Read, admin_url: str) -> None:
    send(cluster, topic, magnetar.AvroSchema(Place), [Place("a", 1), Place("b", 2)])
    batches = list(magnetar.arrow_batches(topic, schema="auto", columns=["code"], admin_url=admin_url))
    assert [code for batch in batches for code in batch["code"].to_pylist()] == [1, 2]
    frame = magnetar.to_pandas(topic, schema="auto", admin_url=admin_url)
    assert list(frame["city"]) == ["a", "b"]
