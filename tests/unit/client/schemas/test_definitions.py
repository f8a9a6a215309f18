"""Definitions of schemas: those of dataclasses and pydantic models are what the official client writes for Records."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import fastavro
import pulsar
import pulsar.schema as official
import pydantic
import pytest

import magnetar
from magnetar.client.schemas.models import shape_of


class Color(Enum):
    red = 1
    green = 2


@dataclass
class Place:
    street: str | None
    number: int | None


@dataclass
class Everything:
    name: str | None
    age: Annotated[int | None, "int"]
    size: int | None
    height: Annotated[float | None, "float"]
    weight: float | None
    ready: bool | None
    raw: bytes | None
    place: Place | None
    other: Place | None
    color: Color | None
    tags: list[str] | None
    places: list[Place] | None
    counts: dict[str, int] | None
    by_name: dict[str, Place] | None


class PlaceModel(pydantic.BaseModel):
    street: str | None
    number: int | None


class PlaceRecord(official.Record):
    street = official.String()
    number = official.Long()


class EverythingRecord(official.Record):
    name = official.String()
    age = official.Integer()
    size = official.Long()
    height = official.Float()
    weight = official.Double()
    ready = official.Boolean()
    raw = official.Bytes()
    place = PlaceRecord()
    other = PlaceRecord()
    color = Color
    tags = official.Array(official.String())
    places = official.Array(PlaceRecord())
    counts = official.Map(official.Long())
    by_name = official.Map(PlaceRecord())


@dataclass
class Needed:
    name: str
    count: int = 7
    note: str | None = None
    _avro_namespace = "org.example"


class NeededRecord(official.Record):
    _avro_namespace = "org.example"
    name = official.String(required=True)
    count = official.Long(required=True, default=7, required_default=True)
    note = official.String(required_default=True)


@dataclass
class Sorted:
    b: str | None
    a: int | None
    _sorted_fields = True


class SortedRecord(official.Record):
    _sorted_fields = True
    b = official.String()
    a = official.Long()


for _renamed, _name in (
    (PlaceModel, "Place"),
    (PlaceRecord, "Place"),
    (EverythingRecord, "Everything"),
    (NeededRecord, "Needed"),
    (SortedRecord, "Sorted"),
):
    _renamed.__name__ = _name

EQUAL = [
    (Place, PlaceRecord),
    (PlaceModel, PlaceRecord),
    (Everything, EverythingRecord),
    (Needed, NeededRecord),
    (Sorted, SortedRecord),
]


@pytest.mark.promise("2.1")
@pytest.mark.parametrize(("ours", "theirs"), EQUAL)
@pytest.mark.parametrize("kind", ["JsonSchema", "AvroSchema"])
def test_a_definition_is_byte_for_byte_that_of_an_equal_record(kind: str, ours: type, theirs: type) -> None:
    expected = getattr(official, kind)(theirs).schema_info()
    for record in (ours, theirs):
        found = getattr(magnetar, kind)(record).info
        assert found.definition.decode() == expected.schema()
        assert found.name == expected.name()
        assert found.type.name == str(expected.schema_type()).rpartition(".")[2]


def test_a_string_registers_what_the_official_client_registers() -> None:
    expected = official.StringSchema().schema_info()
    found = magnetar.StringSchema().info
    assert (found.name, found.definition.decode()) == (expected.name(), expected.schema())
    assert expected.schema_type() == pulsar._pulsar.SchemaType.STRING


@dataclass
class Logical:
    at: datetime
    at_ms: Annotated[datetime, "timestamp-millis"]
    day: date
    clock: time
    price: Annotated[Decimal, (9, 2)] = Decimal("1.50")
    color: Color = Color.green
    maybe: int | None = 3
    words: list[str] = field(default_factory=lambda: ["a"])


def test_logical_types_and_defaults_are_valid_avro() -> None:
    definition = json.loads(magnetar.AvroSchema(Logical).info.definition)
    fastavro.parse_schema(definition)
    assert {one["name"]: one["type"] for one in definition["fields"]} == {
        "at": {"type": "long", "logicalType": "timestamp-micros"},
        "at_ms": {"type": "long", "logicalType": "timestamp-millis"},
        "day": {"type": "int", "logicalType": "date"},
        "clock": {"type": "long", "logicalType": "time-micros"},
        "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "color": {"type": "enum", "name": "Color", "symbols": ["red", "green"]},
        "maybe": ["long", "null"],
        "words": {"type": "array", "items": "string"},
    }
    defaults = {one["name"]: one["default"] for one in definition["fields"] if "default" in one}
    assert defaults == {"price": "\x00\x96", "color": "green", "maybe": 3, "words": ["a"]}


@dataclass
class Node:
    value: int
    following: "Node | None" = None


def test_a_record_may_hold_itself() -> None:
    for kind in (magnetar.AvroSchema, magnetar.JsonSchema):
        schema = kind(Node)
        value = Node(1, Node(2))
        assert schema.decode(schema.encode(value)) == value


def bad(hint: object) -> type:
    return type("Bad", (), {"__annotations__": {"field": hint}})


@pytest.mark.parametrize("hint", [object, int | str, Decimal, set[int], dict[int, str], complex])
def test_a_type_without_a_definition_is_refused_by_field(hint: object) -> None:
    with pytest.raises(magnetar.exceptions.InvalidConfiguration, match=r"Bad\.field"):
        magnetar.JsonSchema(dataclass(bad(hint)))


@pytest.mark.parametrize("make", [magnetar.JsonSchema, magnetar.AvroSchema])
def test_what_is_no_record_is_refused(make: Callable[[Any], object]) -> None:
    for kind in (int, "Order", None if make is magnetar.JsonSchema else 5):
        with pytest.raises(magnetar.exceptions.InvalidConfiguration):
            make(kind)
        with pytest.raises(magnetar.exceptions.InvalidConfiguration, match="a schema takes a dataclass"):
            shape_of(kind)
