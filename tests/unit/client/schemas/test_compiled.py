"""The functions for usual values agree with the slow way on every value, and JSON by orjson with Python's own."""

import json
import math
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, cast

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.schemas.fields import FieldsShape
from magnetar.client.schemas.json_schema import JsonSchema
from magnetar.client.schemas.models import shape_of
from magnetar.client.schemas.shapes import Unfit
from magnetar.protocol.errors import SchemaSerializationError


@dataclass
class Inner:
    size: Annotated[int, "int"]
    next: "Inner | None" = None


@dataclass
class Outer:
    text: str
    number: int
    ratio: float
    yes: bool
    data: bytes
    maybe: str | None
    inner: Inner | None
    words: list[str]
    ratios: dict[str, float]


class Model(pydantic.BaseModel):
    text: str
    number: int = pydantic.Field(alias="no")


Lone = make_dataclass("Lone", [("text", str)])


class Text(str):
    """A kind of text."""


SHAPE = cast(FieldsShape, shape_of(Outer))
odd = st.sampled_from(
    [None, True, 1, 1 << 31, 1 << 63, -(1 << 63), 1.5, math.inf, "x", Text("y"), b"z", b"\xff", [], {}]
)
inner = st.builds(Inner, size=st.integers(-(1 << 31), (1 << 31) - 1) | odd)
usual = st.builds(
    Outer,
    text=st.text(),
    number=st.integers(-(1 << 63), (1 << 63) - 1),
    ratio=st.floats(allow_nan=False),
    yes=st.booleans(),
    data=st.text().map(str.encode),
    maybe=st.none() | st.text(),
    inner=st.none() | inner,
    words=st.lists(st.text(), max_size=3),
    ratios=st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=3),
)


def outcome(call: Any, *arguments: Any) -> Any:
    try:
        return repr(call(*arguments))
    except Unfit as error:
        return error.text("it")


@given(usual, st.sampled_from([None, *Outer.__dataclass_fields__]), odd, st.booleans())
def test_both_ways_to_plain_values_agree(value: Outer, changed: str | None, to: Any, text: bool) -> None:
    if changed is not None:
        setattr(value, changed, to)
    assert outcome(SHAPE.to_plain, value, text) == outcome(SHAPE._slowly_plain, value, text)


@given(usual, st.sampled_from([None, *Outer.__dataclass_fields__]), odd | st.just("missing"), st.booleans())
def test_both_ways_from_plain_values_agree(value: Outer, changed: str | None, to: Any, text: bool) -> None:
    try:
        plain = SHAPE._slowly_plain(value, text)
    except Unfit:
        return
    assert isinstance(plain, dict)
    if to == "missing":
        plain.pop(changed, None)
    elif changed is not None:
        plain[changed] = to
    assert outcome(SHAPE.of_plain, plain) == outcome(SHAPE._slowly_of_plain, plain)


def test_a_usual_record_does_not_take_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    value = Outer("a", 1, 1.5, True, b"d", None, Inner(1, Inner(2)), ["w"], {"r": 2.5})
    for way in ("_slowly_plain", "_slowly_of_plain"):
        monkeypatch.setattr(FieldsShape, way, lambda *_: pytest.fail("the slow way was taken"))
    for text in (False, True):
        assert SHAPE.of_plain(SHAPE.to_plain(value, text)) == value
    schema = JsonSchema(Model)
    model = Model(text="a", no=2)
    assert schema.decode(schema.encode(model)) == model


def test_the_constructor_of_a_class_refuses_what_it_does_not_take() -> None:
    @dataclass
    class Positive:
        number: int

        def __post_init__(self) -> None:
            if self.number <= 0:
                raise ValueError("not positive")

    schema = JsonSchema(Positive)
    assert schema.decode(b'{"number":1}') == Positive(1)
    with pytest.raises(SchemaSerializationError, match="not positive"):
        schema.decode(b'{"number":0}')


def test_a_class_of_a_single_field_and_one_without_fields() -> None:
    for fields, values in (([("only", str)], ["x"]), ([], [])):
        kind = make_dataclass("Kind", fields)
        schema = JsonSchema(kind)
        assert schema.decode(schema.encode(kind(*values))) == kind(*values)


@given(usual)
def test_json_is_that_of_python(value: Outer) -> None:
    schema = JsonSchema(Outer)
    try:
        plain = SHAPE._slowly_plain(value, True)
    except Unfit:
        return
    assert json.loads(schema.encode(value)) == plain
    assert schema.decode(json.dumps(plain).encode()) == schema.decode(schema.encode(value))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_come_back(number: float) -> None:
    schema = JsonSchema(Outer)
    value = Outer("a", 1, number, True, b"", None, None, [], {"r": number})
    found = schema.decode(schema.encode(value))
    assert repr(found) == repr(value) and b"null" in schema.encode(value)


def test_text_that_is_no_unicode_and_numbers_without_end_are_refused() -> None:
    schema = JsonSchema(Inner)
    with pytest.raises(SchemaSerializationError, match="32 bits"):
        schema.decode(b'{"size":%d}' % (1 << 70))
    with pytest.raises(SchemaSerializationError, match="no JSON"):
        schema.decode(b'{"size":')
    with pytest.raises(SchemaSerializationError, match="cannot be JSON"):
        JsonSchema(Lone).encode(Lone("\ud800"))
