"""Values to payloads and back, with the official client's encoders as an independent peer."""

import pickle
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pulsar.schema as official
import pydantic
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import magnetar
from magnetar.client.schemas.automatic import ProducedBytes
from magnetar.client.schemas.given import as_schema
from magnetar.client.schemas.key_value import KeyValueEncodingType, parts_of
from magnetar.client.schemas.schema import SchemaInfo
from magnetar.protocol.errors import InvalidConfiguration, SchemaSerializationError
from magnetar.protocol.schema_types import SchemaType


class Color(Enum):
    red = 1
    green = 2


@dataclass
class Place:
    street: str | None
    number: int | None


@dataclass
class Order:
    name: str | None
    count: int | None
    price: float | None
    paid: bool | None
    raw: bytes | None
    color: Color | None
    place: Place | None
    tags: list[str] | None
    places: list[Place] | None
    counts: dict[str, int] | None


class PlaceRecord(official.Record):
    street = official.String()
    number = official.Long()


class OrderRecord(official.Record):
    name = official.String()
    count = official.Long()
    price = official.Double()
    paid = official.Boolean()
    raw = official.Bytes()
    color = Color
    place = PlaceRecord()
    tags = official.Array(official.String())
    places = official.Array(PlaceRecord())
    counts = official.Map(official.Long())


class OrderModel(pydantic.BaseModel):
    name: str | None
    count: int | None = pydantic.Field(alias="n")


OrderRecord.__name__ = "Order"
PlaceRecord.__name__ = "Place"
FULL = Order("é", 1 << 40, 1.5, True, b"raw", Color.green, Place("s", 2), ["a", "b"], [Place("t", None)], {"k": 3})
FULL_RECORD = OrderRecord(
    name="é",
    count=1 << 40,
    price=1.5,
    paid=True,
    raw=b"raw",
    color=Color.green,
    place=PlaceRecord(street="s", number=2),
    tags=["a", "b"],
    places=[PlaceRecord(street="t")],
    counts={"k": 3},
)
NAMES = ["JsonSchema", "AvroSchema"]


@pytest.mark.parametrize("name", NAMES)
def test_both_clients_read_what_the_other_encodes(name: str) -> None:
    ours, theirs = getattr(magnetar, name)(Order), getattr(official, name)(OrderRecord)
    assert ours.decode(theirs.encode(FULL_RECORD)) == FULL
    assert theirs.decode(ours.encode(FULL)) == FULL_RECORD
    records = getattr(magnetar, name)(OrderRecord)
    assert records.decode(theirs.encode(FULL_RECORD)) == FULL_RECORD
    assert theirs.decode(records.encode(FULL_RECORD)) == FULL_RECORD
    if name == "AvroSchema":
        assert ours.encode(FULL) == theirs.encode(FULL_RECORD) == records.encode(FULL_RECORD)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_there_and_back(name: str) -> None:
    schema = getattr(magnetar, name)(Order)
    empty = Order(*[None] * 10)
    assert schema.decode(schema.encode(empty)) == empty
    assert pickle.loads(pickle.dumps(schema)).decode(schema.encode(FULL)) == FULL


@pytest.mark.parametrize("name", NAMES)
def test_a_pydantic_model_with_an_alias(name: str) -> None:
    schema = getattr(magnetar, name)(OrderModel)
    value = OrderModel(name="x", n=5)
    assert schema.decode(schema.encode(value)) == value


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"count": "five"}, "field 'count' of Order must be an int of 64 bits, not str 'five'"),
        ({"count": 1 << 63}, "field 'count' of Order must be an int of 64 bits, not int"),
        ({"paid": 1}, "field 'paid' of Order must be bool, not int 1"),
        ({"place": Place(5, None)}, "field 'place.street' of Order must be str, not int 5"),
        ({"places": [Place("a", 1), None]}, "field 'places.1' of Order must be Place, not NoneType None"),
        ({"counts": {"a": 1, "b": True}}, "field 'counts.b' of Order must be an int of 64 bits, not bool True"),
        ({"color": "green"}, "field 'color' of Order must be a member of Color, not str 'green'"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_field_and_type(name: str, change: dict[str, Any], text: str) -> None:
    with pytest.raises(SchemaSerializationError, match=text):
        getattr(magnetar, name)(Order).encode(Order(**{**FULL.__dict__, **change}))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", [b"", b"\xff" * 40, b"{", b'{"count":"x"}', b"[1]"])
def test_a_payload_of_something_else_is_a_typed_error(name: str, data: bytes) -> None:
    with pytest.raises(SchemaSerializationError):
        getattr(magnetar, name)(Order).decode(data)


@dataclass
class Old:
    name: str
    gone: int


@dataclass
class New:
    name: str
    added: str = "default"
    maybe: int | None = None


def test_old_data_is_read_with_a_new_schema() -> None:
    old = magnetar.AvroSchema(Old)
    data = old.encode(Old("x", 5))
    assert magnetar.AvroSchema(New).decode(data, old.info) == New("x")
    assert magnetar.JsonSchema(New).decode(magnetar.JsonSchema(Old).encode(Old("x", 5))) == New("x")
    with pytest.raises(SchemaSerializationError):
        old.decode(magnetar.AvroSchema(New).encode(New("x")), magnetar.AvroSchema(New).info)  # `gone` has no default
    with pytest.raises(SchemaSerializationError, match="JSON"):
        magnetar.AvroSchema(New).decode(data, magnetar.JsonSchema(Old).info)


@dataclass
class Logical:
    at: datetime
    at_ms: Annotated[datetime, "timestamp-millis"]
    day: date
    clock: time
    price: Annotated[Decimal, (9, 2)]


@pytest.mark.parametrize("name", NAMES)
def test_times_and_decimals_are_there_and_back(name: str) -> None:
    schema = getattr(magnetar, name)(Logical)
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    value = Logical(moment, moment.replace(microsecond=678000), date(1969, 7, 20), time(1, 2, 3, 4), Decimal("-12.30"))
    assert schema.decode(schema.encode(value)) == value
    value.price = Decimal("1.234")
    with pytest.raises(SchemaSerializationError, match="'price' of Logical must be a Decimal of at most 9 digits"):
        schema.encode(value)


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
MS = int(MOMENT.timestamp() * 1000)


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        (magnetar.StringSchema(), "é", "é".encode()),
        (magnetar.BytesSchema(), b"x", b"x"),
        (magnetar.BooleanSchema(), True, b"\x01"),
        (magnetar.Int8Schema(), -1, b"\xff"),
        (magnetar.Int16Schema(), -2, b"\xff\xfe"),
        (magnetar.Int32Schema(), 3, b"\0\0\0\x03"),
        (magnetar.Int64Schema(), 1 << 40, struct.pack(">q", 1 << 40)),
        (magnetar.FloatSchema(), 1.5, struct.pack(">f", 1.5)),
        (magnetar.DoubleSchema(), 0.1, struct.pack(">d", 0.1)),
        (magnetar.DateSchema(), MOMENT, struct.pack(">q", MS)),
        (magnetar.TimestampSchema(), MOMENT, struct.pack(">q", MS)),
        (magnetar.TimeSchema(), time(0, 0, 1), struct.pack(">q", 1000)),
        (magnetar.InstantSchema(), MOMENT, struct.pack(">qi", MS // 1000, 678_000_000)),
        (magnetar.LocalDateSchema(), date(1970, 1, 3), struct.pack(">q", 2)),
        (magnetar.LocalTimeSchema(), time(0, 0, 1), struct.pack(">q", 1_000_000_000)),
        (magnetar.LocalDateTimeSchema(), datetime(1970, 1, 2, 0, 0, 1), struct.pack(">qq", 1, 1_000_000_000)),
    ],
)
def test_single_values(schema: magnetar.Schema, value: object, data: bytes) -> None:
    assert schema.encode(value) == data
    assert schema.decode(data) == value
    assert pickle.loads(pickle.dumps(schema)).decode(data) == value
    with pytest.raises(SchemaSerializationError):
        schema.encode([])


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (magnetar.Int8Schema(), 128),
        (magnetar.Int8Schema(), True),
        (magnetar.BooleanSchema(), 1),
        (magnetar.DoubleSchema(), "1"),
        (magnetar.LocalDateSchema(), MOMENT),
        (magnetar.LocalDateTimeSchema(), MOMENT),
        (magnetar.StringSchema(), b"x"),
        (magnetar.StringSchema(), "\ud800"),
    ],
)
def test_single_values_of_another_type_are_refused(schema: magnetar.Schema, value: object) -> None:
    with pytest.raises(SchemaSerializationError):
        schema.encode(value)


@pytest.mark.parametrize("schema", [magnetar.Int32Schema(), magnetar.InstantSchema(), magnetar.LocalTimeSchema()])
def test_a_payload_of_wrong_length_is_refused(schema: magnetar.Schema) -> None:
    for data in (b"", b"123", b"\xff" * 13, b"\xff" * 8):
        if len(data) != 8 or isinstance(schema, magnetar.LocalTimeSchema):
            with pytest.raises(SchemaSerializationError):
                schema.decode(data)


def test_pairs_inline_and_separated() -> None:
    inline = magnetar.KeyValueSchema(magnetar.StringSchema(), magnetar.AvroSchema(Place))
    value = ("k", Place("s", 1))
    data = inline.encode(value)
    assert data[:5] == b"\0\0\0\x01k"
    assert inline.decode(data) == value and inline.decode(data, inline.info) == value
    assert inline.decode(inline.encode((None, None))) == (None, None)
    separated = magnetar.KeyValueSchema(inline.key, inline.value, KeyValueEncodingType.SEPARATED)
    assert separated.encode_key(value) == "aw==" and separated.encode(value) == inline.value.encode(value[1])
    assert separated.decode_with_key(b"k", separated.encode(value)) == value
    key, part, encoding = parts_of(separated.info)
    assert (key.type, part.definition, encoding.name) == (
        SchemaType.STRING,
        magnetar.AvroSchema(Place).info.definition,
        "SEPARATED",
    )
    for wrong in (b"", b"\0\0\0\x09x", b"\xff\xff\xff\xfe\0\0\0\0"):
        with pytest.raises(SchemaSerializationError):
            inline.decode(wrong)
    with pytest.raises(InvalidConfiguration):
        magnetar.KeyValueSchema(inline, separated)


@pytest.mark.promise("33.4")
def test_protobuf_registers_and_encodes_as_the_official_client() -> None:
    ours, theirs = magnetar.ProtobufNativeSchema(Timestamp), official.ProtobufNativeSchema(Timestamp)
    assert ours.info.definition.decode() == theirs.schema_info().schema()
    assert ours.info.name == theirs.schema_info().name()
    value = Timestamp(seconds=5, nanos=6)
    assert ours.encode(value) == theirs.encode(value)
    assert ours.decode(theirs.encode(value)) == value
    described = magnetar.AutoConsumeSchema().decode(ours.encode(value), ours.info)
    assert (described.seconds, described.nanos) == (5, 6)
    with pytest.raises(SchemaSerializationError):
        ours.encode("x")
    with pytest.raises(SchemaSerializationError):
        ours.decode(b"\xff")


def test_a_consumer_of_anything_decodes_by_the_writers_schema() -> None:
    anything = magnetar.AutoConsumeSchema()
    assert anything.decode(b"x") == b"x"
    for schema, value, expected in (
        (magnetar.AvroSchema(Place), Place("s", 1), {"street": "s", "number": 1}),
        (magnetar.JsonSchema(Place), Place("s", 1), {"street": "s", "number": 1}),
        (magnetar.Int32Schema(), 5, 5),
        (magnetar.StringSchema(), "x", "x"),
        (magnetar.KeyValueSchema(magnetar.StringSchema(), magnetar.Int8Schema()), ("k", 1), ("k", 1)),
    ):
        assert anything.decode(schema.encode(value), schema.info) == expected
    with pytest.raises(SchemaSerializationError):
        anything.decode(b"x", SchemaInfo("AVRO", SchemaType.AVRO, b"no JSON"))


def test_bytes_that_do_not_fit_the_topic_are_refused() -> None:
    schema = magnetar.AvroSchema(Place)
    produced = ProducedBytes(schema.info)
    assert produced.encode(schema.encode(Place("s", 1))) == schema.encode(Place("s", 1))
    assert ProducedBytes(None).encode(b"anything") == b"anything"
    for wrong in (b"\xff\xff", Place("s", 1)):
        with pytest.raises(SchemaSerializationError):
            produced.encode(wrong)


def test_schemas_of_the_official_client_are_taken() -> None:
    assert as_schema(official.BytesSchema()) is None and as_schema(None) is None
    assert isinstance(as_schema(official.StringSchema()), magnetar.StringSchema)
    for name in NAMES:
        taken = as_schema(getattr(official, name)(OrderRecord))
        assert taken is not None and taken.decode(taken.encode(FULL_RECORD)) == FULL_RECORD
    definition = magnetar.AvroSchema(Place).info.definition
    import json

    taken = as_schema(official.AvroSchema(None, json.loads(definition)))
    assert taken is not None and taken.decode(taken.encode({"street": "s", "number": None}))["street"] == "s"
    with pytest.raises(InvalidConfiguration, match="JsonSchema"):
        as_schema(Place)
