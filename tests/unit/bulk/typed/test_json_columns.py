"""JSON payloads in columns: all at once where Arrow reads them, one by one otherwise, with one result."""

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bulk.typed import json_columns
from magnetar.bulk.typed.avro_types import parsed
from magnetar.bulk.typed.json_columns import JsonDecoder
from magnetar.bulk.typed.payloads import PayloadMisfit, first_misfit, payloads_of
from magnetar.protocol.errors import NotAllowedError


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def record(*fields: Any, name: str = "Flight") -> Any:
    return {"type": "record", "name": name, "fields": list(fields)}


def decoder_of(reader: Any, writer: Any = None, names: list[str] | None = None) -> JsonDecoder:
    wanted, written = (parsed(json.dumps(one).encode()) for one in (reader, writer or reader))
    return JsonDecoder(wanted, written, names)


def rows_of(decoder: JsonDecoder, data: list[bytes]) -> list[dict[str, Any]]:
    payloads, _ = payloads_of(pa.array(data, pa.binary()))
    batch = pa.RecordBatch.from_arrays(decoder.decode(payloads), schema=pa.schema(decoder.fields))
    batch.validate(full=True)
    return batch.to_pylist(maps_as_pydicts="strict")


def both_ways(decoder: JsonDecoder, data: list[bytes]) -> list[dict[str, Any]]:
    """The rows of both ways, which must be the same."""
    assert decoder._usual is not None, "Arrow reads it"
    quick = rows_of(decoder, data)
    usual, decoder._usual = decoder._usual, None
    try:
        assert rows_of(decoder, data) == quick
    finally:
        decoder._usual = usual
    return quick


PLACE = record(field("city", "string"), field("code", ["null", "int"], default=None), name="Place")
FLIGHT = record(
    field("n", "long"),
    field("f", ["null", "double"]),
    field("b", "boolean"),
    field("s", ["string", "null"]),
    field("place", ["null", PLACE]),
    field("tags", {"type": "array", "items": ["null", "string"]}),
    field("at", ["null", {"type": "long", "logicalType": "timestamp-millis"}]),
    field("days", {"type": "array", "items": {"type": "int", "logicalType": "date"}}),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
PLACES = st.fixed_dictionaries({"city": TEXTS, "code": st.none() | st.integers(-100, 100)})
VALUES = st.fixed_dictionaries(
    {
        "n": st.integers(-(1 << 63), (1 << 63) - 1),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.booleans(),
        "s": st.none() | TEXTS,
        "place": st.none() | PLACES,
        "tags": st.lists(st.none() | TEXTS, max_size=3),
        "at": st.none() | st.integers(-(10**12), 10**13),
        "days": st.lists(st.integers(-1000, 30_000), max_size=3),
    }
)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@settings(max_examples=80, deadline=None)
@given(st.lists(VALUES, max_size=6), st.sampled_from([None, 1, 4]), st.booleans())
def test_any_values_arrive_however_they_are_written(
    values: list[dict[str, Any]], indent: int | None, ascii_only: bool
) -> None:
    data = [json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode() for value in values]
    expected = [
        {
            **value,
            "at": None if value["at"] is None else EPOCH + datetime.timedelta(milliseconds=value["at"]),
            "days": [EPOCH.date() + datetime.timedelta(days=one) for one in value["days"]],
        }
        for value in values
    ]
    assert both_ways(decoder_of(FLIGHT), data) == expected


def test_the_usual_values_are_read_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JsonDecoder, "_one_by_one", None)
    decoder = decoder_of(FLIGHT, names=["n", "place"])
    data = [b'{"n": 1,\n "place": {"city": "a"}}', b'{"place":null,"more":[{}],"n":2}']
    assert rows_of(decoder, data) == [{"n": 1, "place": {"city": "a", "code": None}}, {"n": 2, "place": None}]
    monkeypatch.setattr(json_columns, "LINES_AT_ONCE", 3)
    monkeypatch.setattr(json_columns, "LINES_AT_ONCE_BYTES", 40)
    rows = rows_of(decoder, [b'{"n": %d}' % number for number in range(50)])
    assert [row["n"] for row in rows] == list(range(50))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b'{"n": 1} {"n": 2}', "no JSON"),
        (b'{"n": 1}{}', "no JSON"),
        (b'{"n": "x\ny"}', "no JSON"),
        (b"[1]", "no JSON object"),
        (b"null", "no JSON object"),
        (b'{"n": 1.5}', "no long"),
        (b'{"n": true}', "no long"),
        (b'{"n": "1"}', "no long"),
        (b'{"n": 9223372036854775808}', "64 bits"),
        (b'{"n": 1, "s": "\xff"}', "no JSON"),
        (b'{"n": 1, "s": 5}', "no string"),
        (b'{"n": 1, "place": {"city": "a", "code": 2147483648}}', "32 bits"),
        (b'{"n": 1, "place": 7}', "no object"),
        (b'{"n": 1, "tags": {}}', "array is none"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_what_does_not_fit_is_found(bad: bytes, why: str) -> None:
    decoder = decoder_of(FLIGHT)
    good = b'{"n": 1, "tags": [], "days": []}'
    payloads, _ = payloads_of(pa.array([good, b'{"n": 2}', bad, good], pa.binary()))
    with pytest.raises(PayloadMisfit):
        decoder.decode(payloads)
    place, said = first_misfit(decoder, payloads)
    assert place == 2 and why in said


def test_two_payloads_never_take_the_place_of_each_other() -> None:
    """As many objects as payloads, but not one in each."""
    decoder = decoder_of(FLIGHT)
    payloads, _ = payloads_of(pa.array([b'{"n":1} {"n":2}', b" ", b'{"n":3}'], pa.binary()))
    with pytest.raises(PayloadMisfit):
        decoder.decode(payloads)
    assert first_misfit(decoder, payloads)[0] == 0


def test_missing_fields_have_defaults_unless_the_writer_knows_them() -> None:
    old = record(field("city", "string"))
    new = record(
        field("place", "string", aliases=["city"]),
        field("days", "int", default=7),
        field("note", ["string", "null"], default="none"),
        field("inner", record(field("x", "int", default=3), name="Inner"), default={}),
    )
    data = [b'{"city": "Rome"}', b'{"city": "Oslo", "days": 2, "note": "n", "inner": {}}']
    assert rows_of(decoder_of(new, old), data) == [
        {"place": "Rome", "days": 7, "note": "none", "inner": {"x": 3}},
        {"place": "Oslo", "days": 2, "note": "n", "inner": {"x": 3}},
    ]
    names = ["days", "note"]
    assert both_ways(decoder_of(new, names=names), [b"{}", b'{"days":null}']) == [{"days": 7, "note": None}] * 2


def test_kinds_that_only_python_reads() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    definition = record(
        field("m", {"type": "map", "values": "int"}),
        field("d", ["null", decimal]),
        field("u", ["null", "long", "string", PLACE]),
        field("day", {"type": "int", "logicalType": "date"}),
        field("at", {"type": "long", "logicalType": "timestamp-micros"}),
        field("x", "double"),
        field("raw", ["null", "bytes"]),
        field("state", {"type": "enum", "name": "State", "symbols": ["A"]}),
    )
    values = [
        b'{"m":{"a":1},"d":"1.25","u":5,"day":3,"at":7,"x":NaN,"raw":"aGk=","state":"A"}',
        b'{"m":{},"d":2,"u":"t","day":"2024-02-29","at":"2024-02-29T01:00:00+01:00","x":1,"raw":null,"state":1}',
        b'{"m":{},"d":null,"u":{"city":"a"},"day":0,"at":0,"x":Infinity,"raw":null,"state":"A"}',
    ]
    rows = rows_of(decoder_of(definition), values)
    assert [row["d"] for row in rows] == [Decimal("1.25"), Decimal("2.00"), None]
    members = {"member0": None, "member1": None, "member2": None}
    assert [row["u"] for row in rows] == [
        {**members, "member0": 5},
        {**members, "member1": "t"},
        {**members, "member2": {"city": "a", "code": None}},
    ]
    assert [row["day"] for row in rows] == [datetime.date(1970, 1, 4), datetime.date(2024, 2, 29), EPOCH.date()]
    assert rows[1]["at"] == datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)
    assert str(rows[0]["x"]) == "nan" and rows[2]["x"] == float("inf")
    assert [(row["raw"], row["state"], row["m"]) for row in rows] == [
        ("aGk=", "A", {"a": 1}),
        (None, "1", {}),
        (None, "A", {}),
    ]


def test_a_definition_that_is_no_record_has_no_columns() -> None:
    with pytest.raises(NotAllowedError, match=r'no record.*schema="bytes"'):
        decoder_of("string")
    with pytest.raises(NotAllowedError, match="it is no Avro"):
        decoder_of({"type": "object", "properties": {}})
