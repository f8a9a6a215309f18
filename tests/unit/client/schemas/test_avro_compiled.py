"""Avro without plain dicts: every value has the bytes of fastavro, and every payload its value, or its error."""

import math
import re
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any

import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.client.schemas.avro_schema import AvroSchema, decoder_of, writer_of
from magnetar.client.schemas.models import shape_of
from magnetar.protocol.errors import SchemaSerializationError


class Color(Enum):
    red = "r"
    green = "g"
    crimson = "r"


class Text(str):
    """A kind of text."""


@dataclass
class Tree:
    size: Annotated[int, "int"]
    left: "Tree | None" = None
    more: "list[Tree] | None" = None


@dataclass
class Everything:
    text: str
    number: int
    ratio: float
    short: Annotated[float, "float"]
    yes: bool
    data: bytes
    color: Color
    moment: datetime
    rough: Annotated[datetime, "timestamp-millis"]
    day: date
    clock: time
    coarse: Annotated[time, "time-millis"]
    tree: Tree
    words: list[str]
    perhaps: list[int | None]
    ratios: dict[str, float]
    maybe: str | None
    count: int | None
    usually: str | None = "yes"
    colors: list[Color] | None = None


class Model(pydantic.BaseModel):
    text: str
    number: int = pydantic.Field(alias="no")
    half: float | None = 0.5


class Sorted(pydantic.BaseModel):
    _sorted_fields = True
    b: int
    a: str


SCHEMA = AvroSchema(Everything)
MODEL = AvroSchema(Model)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
moments = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
trees = st.recursive(
    st.builds(Tree, ints), lambda some: st.builds(Tree, ints, st.none() | some, st.none() | st.lists(some, max_size=2))
)
usual = st.builds(
    Everything,
    text=st.text() | st.text(min_size=300),
    number=longs,
    ratio=st.floats(),
    short=st.floats(width=32),
    yes=st.booleans(),
    data=st.binary(),
    color=st.sampled_from(Color),
    moment=moments,
    rough=moments,
    day=st.dates(),
    clock=st.times(),
    coarse=st.times(),
    tree=trees,
    words=st.lists(st.text(), max_size=3),
    perhaps=st.lists(st.none() | longs, max_size=3),
    ratios=st.dictionaries(st.text(max_size=3), st.floats(), max_size=3),
    maybe=st.none() | st.text(),
    count=st.none() | longs,
    usually=st.none() | st.text(),
    colors=st.none() | st.lists(st.sampled_from(Color), max_size=3),
)
ODD: list[Any] = [
    *(
        None,
        True,
        1,
        1 << 31,
        1 << 63,
        1.5,
        1e300,
        "x",
        "\ud800",
        Text("y"),
        b"z",
        bytearray(b"z"),
        [],
        {},
        [None],
        (1,),
    ),
    *({"k": "v"}, {1: 1.0}, Color.red, "red", datetime(2026, 1, 1), date(2026, 1, 1), time(1), Tree(1 << 40)),
]
FIELDS = [*Everything.__dataclass_fields__]


def outcome(call: Any, *arguments: Any) -> Any:
    try:
        found = call(*arguments)
    except SchemaSerializationError as error:
        return re.sub("0x[0-9a-f]+", "", str(error))  # an address
    return found if isinstance(found, bytes) else repr(found)


@settings(max_examples=60)
@given(usual, st.none() | st.sampled_from(FIELDS), st.sampled_from(ODD))
def test_a_value_has_the_bytes_of_fastavro_or_its_error(value: Everything, changed: str | None, to: Any) -> None:
    if changed is not None:
        setattr(value, changed, to)
    assert outcome(SCHEMA.encode, value) == outcome(SCHEMA._slowly_encode, value)


@settings(max_examples=60)
@given(usual, st.data())
def test_a_payload_has_the_value_of_fastavro_or_its_error(value: Everything, draw: Any) -> None:
    data = SCHEMA._slowly_encode(value)
    assert outcome(SCHEMA.decode, data, SCHEMA.info) == outcome(SCHEMA._slowly_decode, data, None)
    place = draw.draw(st.integers(0, len(data) - 1))
    inserted = draw.draw(st.binary(max_size=11))
    for wrong in (data[:place], data[:place] + inserted + data[place:], data[:place] + inserted + data[place + 1 :]):
        assert outcome(SCHEMA.decode, wrong) == outcome(SCHEMA._slowly_decode, wrong, None)


@given(st.binary(max_size=40))
def test_any_bytes_have_the_outcome_of_fastavro(data: bytes) -> None:
    for schema in (MODEL, AvroSchema(Tree)):
        assert outcome(schema.decode, data) == outcome(schema._slowly_decode, data, None)


def test_usual_values_do_not_reach_fastavro(monkeypatch: pytest.MonkeyPatch) -> None:
    for way in ("_slowly_encode", "_slowly_decode"):
        monkeypatch.setattr(AvroSchema, way, lambda *_: pytest.fail("the slow way was taken"))
    now = datetime.now(UTC)
    value = Everything(
        *("a", 1 << 62, 1.5, 0.5, True, b"d", Color.green, now, now.replace(microsecond=0), now.date()),
        *(time(1, 2, 3), time(4), Tree(1, Tree(2), [Tree(3)]), ["w"], [1, None], {"r": 2.5}, None, 7),
    )
    assert SCHEMA.decode(SCHEMA.encode(value), SCHEMA.info) == value
    for model in (Model(text="a", no=2), Model(text="a", no=2, half=None)):
        assert MODEL.decode(MODEL.encode(model)) == model


def test_fields_are_written_in_the_order_of_the_definition() -> None:
    schema = AvroSchema(Sorted)
    value = Sorted(b=1, a="x")
    assert schema.encode(value) == schema._slowly_encode(value) == b"\2x\2"
    assert schema.decode(b"\2x\2") == value


def test_repeated_blocks_and_blocks_with_a_size_are_read() -> None:
    Lists = make_dataclass("Lists", [("numbers", list[int]), ("names", dict[str, bool])])
    schema = AvroSchema(Lists)
    for data in (b"\2\2\4\4\6\0\2\2a\1\2\2b\0\0", b"\1\2\2\3\4\4\6\0\4\2a\1\2b\0\0"):
        assert schema.decode(data) == Lists([1, 2, 3], {"a": True, "b": False})


def test_a_count_that_the_bytes_cannot_hold_is_refused_at_once() -> None:
    Lists = make_dataclass("Lists", [("numbers", list[int]), ("text", str)])
    for data in (b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\2", b"\0\xfe\xff\xff\xff\x0f"):
        with pytest.raises(SchemaSerializationError, match="does not fit its schema"):
            AvroSchema(Lists).decode(data)


def test_shapes_without_a_function_take_the_slow_way() -> None:
    @dataclass
    class Priced:
        price: Annotated[Decimal, (9, 2)]

    first, second = make_dataclass("Same", [("a", int)]), make_dataclass("Same", [("b", str)])
    of_one_name = make_dataclass("Two", [("one", first), ("two", second)])
    of_others = make_dataclass("Outer", [("inner", Priced), ("again", list[Priced])])
    for kind in (Priced, of_one_name, of_others):
        assert writer_of(shape_of(kind)) is None and decoder_of(shape_of(kind)) is None
    schema = AvroSchema(Priced)
    assert schema.decode(schema.encode(Priced(Decimal("1.25")))) == Priced(Decimal("1.25"))


def test_a_record_without_fields_and_edges_of_numbers() -> None:
    Empty = make_dataclass("Empty", [])
    assert AvroSchema(Empty).encode(Empty()) == b"" and AvroSchema(Empty).decode(b"") == Empty()
    Number = make_dataclass("Number", [("value", int)])
    schema = AvroSchema(Number)
    for number in (0, -1, 63, 64, -64, -65, 8191, 8192, 1 << 27, 1 << 35, (1 << 63) - 1, -(1 << 63)):
        data = schema.encode(Number(number))
        assert data == schema._slowly_encode(Number(number)) and schema.decode(data) == Number(number)
    Moment = make_dataclass("Moment", [("value", datetime)])
    for value in (
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime(1970, 1, 1) - timedelta(1),
    ):
        schema = AvroSchema(Moment)
        assert schema.encode(Moment(value)) == schema._slowly_encode(Moment(value))
    assert math.isnan(SCHEMA.decode(SCHEMA._slowly_encode(_with_nan())).ratio)


def _with_nan() -> Everything:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Everything(
        *(
            "a",
            1,
            math.nan,
            0.5,
            True,
            b"",
            Color.red,
            now,
            now,
            now.date(),
            time(),
            time(),
            Tree(1),
            [],
            [],
            {},
            None,
            None,
        )
    )
