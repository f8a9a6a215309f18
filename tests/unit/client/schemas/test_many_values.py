"""Many values at once: the payloads are those of one by one, and an error names the first value that does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import magnetar
from magnetar.client.producing.values import encoded_without_key
from magnetar.client.schemas.automatic import ProducedBytes
from magnetar.protocol.errors import InvalidMessage, SchemaSerializationError


@dataclass
class Order:
    name: str
    count: int


class Text(str):
    """A kind of text."""


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SCHEMAS: list[tuple[magnetar.Schema, list[Any]]] = [
    (magnetar.BytesSchema(), [b"a", b"", bytearray(b"b")]),
    (magnetar.StringSchema(), ["a", "", "ä\U0001f600", Text("b")]),
    (magnetar.Int8Schema(), [1, -128, 127]),
    (magnetar.Int64Schema(), [1, -(1 << 63), (1 << 63) - 1]),
    (magnetar.BooleanSchema(), [True, False]),
    (magnetar.FloatSchema(), [1.5, -0.0, 3]),
    (magnetar.DoubleSchema(), [1.5, float("inf"), 3]),
    (magnetar.DateSchema(), [MOMENT]),
    (magnetar.LocalDateSchema(), [date(2026, 1, 2)]),
    (magnetar.JsonSchema(Order), [Order("a", 1), Order("b", 2)]),
    (magnetar.AvroSchema(Order), [Order("a", 1), Order("b", 2)]),
    (ProducedBytes(None), [b"a"]),
]
ODD: list[Any] = [
    None,
    True,
    1,
    1 << 31,
    1 << 63,
    1.5,
    1e300,
    "x",
    "\ud800",
    b"z",
    bytearray(b"z"),
    MOMENT,
    Order("a", 1),
]


def one_by_one(schema: magnetar.Schema, values: Sequence[object]) -> list[bytes] | str:
    """The payloads, or the error of the first value that does not fit."""
    payloads: list[bytes] = []
    for index, value in enumerate(values):
        try:
            payloads.append(schema.encode(value))
        except SchemaSerializationError as error:
            return f"value {index} of {len(values)}: {error}"
    return payloads


def at_once(schema: magnetar.Schema, values: Sequence[object]) -> list[bytes] | str:
    try:
        return schema.encode_many(values)
    except SchemaSerializationError as error:
        return str(error)


@pytest.mark.parametrize(("schema", "values"), SCHEMAS, ids=lambda one: repr(one)[:20])
def test_many_values_give_the_payloads_of_one_by_one(schema: magnetar.Schema, values: list[Any]) -> None:
    found = schema.encode_many(values * 3)
    assert found == one_by_one(schema, values * 3) and {*map(type, found)} == {bytes}
    assert schema.encode_many([]) == [] and schema.encode_many((values[0],)) == [schema.encode(values[0])]


@given(st.sampled_from(SCHEMAS), st.data())
def test_an_odd_value_among_usual_ones_has_one_outcome(pair: tuple[magnetar.Schema, list[Any]], data: Any) -> None:
    schema, usual = pair
    values = data.draw(st.lists(st.sampled_from([*usual, *usual, *ODD]), max_size=6))
    assert at_once(schema, values) == one_by_one(schema, values)


def test_values_of_any_sequence_or_iterator_are_encoded_whole() -> None:
    schema = magnetar.StringSchema()
    for values in (["a", "b", "c"], ("a", "b", "c"), iter(["a", "b", "c"]), {"a": 1, "b": 2, "c": 3}.keys()):
        assert encoded_without_key(schema, values) == [b"a", b"b", b"c"]  # pyright: ignore[reportArgumentType]
    with pytest.raises(SchemaSerializationError, match=r"^value 2 of 3: StringSchema takes str, not int 5$"):
        encoded_without_key(schema, iter(["a", "b", 5]))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidMessage, match="gives each message a key"):
        encoded_without_key(
            magnetar.KeyValueSchema(schema, schema, magnetar.KeyValueEncodingType.SEPARATED), [("a", "b")]
        )


def test_a_schema_of_an_application_says_only_how_one_value_is_encoded() -> None:
    class Upper(magnetar.Schema):
        def encode(self, value: object) -> bytes:
            if not isinstance(value, str):
                raise SchemaSerializationError("no text")
            return value.upper().encode()

    class UpperText(magnetar.StringSchema):
        def encode(self, value: object) -> bytes:
            return super().encode(value.upper() if isinstance(value, str) else value)

    for schema, error in ((Upper(), "no text"), (UpperText(), "StringSchema takes str")):
        assert schema.encode_many(["a", "b"]) == [b"A", b"B"]
        with pytest.raises(SchemaSerializationError, match=f"value 1 of 2: {error}"):
            schema.encode_many(["a", 1])
