"""Avro payloads in columns: each value is the one that fastavro gives, also of versions that have changed."""

import datetime
import io
import itertools
import json
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bulk.typed import avro_columns, avro_skipping
from magnetar.bulk.typed.avro_resolution import Unresolvable, avro_decoder
from magnetar.bulk.typed.avro_types import arrow_type, fields_of, parsed
from magnetar.bulk.typed.payloads import PayloadMisfit, first_misfit, payloads_of
from magnetar.protocol.errors import NotAllowedError

Definition = Any


def encoded(definition: Definition, values: list[Any]) -> list[bytes]:
    written: list[bytes] = []
    schema = fastavro.parse_schema(definition)
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, value)
        written.append(out.getvalue())
    return written


def decoded(
    data: list[bytes], writer: Definition, reader: Definition | None = None, names: list[str] | None = None
) -> list[dict[str, Any]]:
    """The rows, and all checks of Arrow on the columns."""
    types = [parsed(json.dumps(one).encode()) for one in (writer, reader or writer)]
    decoder = avro_decoder(types[1], types[0], names)
    payloads, _ = payloads_of(pa.array(data, pa.binary()))
    batch = pa.RecordBatch.from_arrays(decoder.decode(payloads), schema=pa.schema(decoder.fields))
    batch.validate(full=True)
    return batch.to_pylist(maps_as_pydicts="strict")


def record(*fields: Any, name: str = "Flight") -> Definition:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


# ---- Random schemas and values ----

INTS = st.one_of(st.integers(-70, 70), st.integers(-(1 << 31), (1 << 31) - 1))
LONGS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(0, 63)
    .flatmap(lambda bit: st.sampled_from([1 << bit, -(1 << bit), (1 << bit) - 1]))
    .filter(lambda value: value < 1 << 63),
)
FLOATS = st.floats(width=32, allow_nan=False)
SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("null", st.none()),
    ("boolean", st.booleans()),
    ("int", INTS),
    ("long", LONGS),
    ("float", FLOATS),
    ("double", st.floats(allow_nan=False)),
    ("string", st.text(max_size=9)),
    ("bytes", st.binary(max_size=9)),
]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 3, union: bool = True) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type, and values of it."""
    choices = ["simple", "simple", "fixed", "enum"] + (["record", "array", "map", "union"] if depth else [])
    choice = draw(st.sampled_from(choices if union else [one for one in choices if one != "union"]))
    name = "?"
    if choice == "simple":
        return draw(st.sampled_from(SIMPLE if union else SIMPLE[1:]))
    if choice == "fixed":
        size = draw(st.integers(0, 5))
        return {"type": "fixed", "name": name, "size": size}, st.binary(min_size=size, max_size=size)
    if choice == "enum":
        symbols = ["A", "B", "C"]
        return {"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols)
    if choice == "record":
        inner = draw(st.lists(kinds(depth - 1), max_size=3))
        fields = [field(f"f{number}", kind) for number, (kind, _) in enumerate(inner)]
        values = st.fixed_dictionaries({f"f{number}": one for number, (_, one) in enumerate(inner)})
        return {"type": "record", "name": name, "fields": fields}, values
    kind, values = draw(kinds(depth - 1, union=choice != "union"))
    if choice == "array":
        return {"type": "array", "items": kind}, st.lists(values, max_size=4)
    if choice == "map":
        return {"type": "map", "values": kind}, st.dictionaries(st.text(max_size=3), values, max_size=3)
    return draw(st.sampled_from([["null", kind], [kind, "null"]])), st.none() | values


def named(kind: Any, names: Iterator[str]) -> Any:
    """A type whose parts have different names."""
    if isinstance(kind, list):
        return [named(one, names) for one in kind]
    if not isinstance(kind, dict):
        return kind
    return {key: next(names) if one == "?" else named(one, names) for key, one in kind.items()}


@st.composite
def tables(draw: st.DrawFn) -> tuple[Definition, list[dict[str, Any]]]:
    """A record, and values of it."""
    columns = draw(st.lists(kinds(), min_size=1, max_size=4))
    names = (f"N{number}" for number in itertools.count())
    definition = record(*[field(f"c{number}", named(kind, names)) for number, (kind, _) in enumerate(columns)])
    values = st.fixed_dictionaries({f"c{number}": one for number, (_, one) in enumerate(columns)})
    return definition, draw(st.lists(values, max_size=7))


def as_arrow(definition: Definition, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that Arrow makes of plain values."""
    fields = fields_of(parsed(json.dumps(definition).encode()))
    columns = [pa.array([_pairs(row[one.name], one.type) for row in rows], one.type) for one in fields]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)).to_pylist(maps_as_pydicts="strict")


def _pairs(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return [(key, _pairs(one, kind.item_type)) for key, one in value.items()]
    if pa.types.is_list(kind):
        return [_pairs(one, kind.value_type) for one in value]
    if pa.types.is_struct(kind):
        return {one.name: _pairs(value[one.name], one.type) for one in kind}
    return value


@settings(max_examples=300, deadline=None)
@given(tables())
def test_any_values_of_any_schema_arrive(table: tuple[Definition, list[dict[str, Any]]]) -> None:
    definition, rows = table
    assert decoded(encoded(definition, rows), definition) == as_arrow(definition, rows)


@settings(max_examples=150, deadline=None)
@given(tables(), st.data())
def test_columns_that_nobody_names_are_stepped_over(
    table: tuple[Definition, list[dict[str, Any]]], data: st.DataObject
) -> None:
    definition, rows = table
    names = [one["name"] for one in definition["fields"]]
    wanted = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    found = decoded(encoded(definition, rows), definition, names=wanted)
    kept = [one["name"] for one in definition["fields"] if one["name"] in wanted]
    assert found == [{name: row[name] for name in kept} for row in as_arrow(definition, rows)]


@settings(max_examples=200, deadline=None)
@given(tables(), st.data())
def test_bytes_that_are_cut_off_or_changed_are_an_error_or_a_value(
    table: tuple[Definition, list[dict[str, Any]]], data: st.DataObject
) -> None:
    definition, rows = table
    written = encoded(definition, rows or [])
    if not written:
        return
    place = data.draw(st.integers(0, len(written) - 1))
    broken = bytearray(written[place])
    for _ in range(data.draw(st.integers(0, 3))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    written[place] = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    kind = parsed(json.dumps(definition).encode())
    decoder = avro_decoder(kind, kind, None)
    payloads, _ = payloads_of(pa.array(written, pa.binary()))
    try:
        columns = decoder.decode(payloads)
    except PayloadMisfit:
        found, why = first_misfit(decoder, payloads)
        assert found == place and why
    else:
        for column in columns:
            column.validate(full=True)
            column.to_pylist()
        good = [row for number, row in enumerate(rows) if number != place]
        kept = [number for number in range(len(rows)) if number != place]
        batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(decoder.fields)).take(pa.array(kept, pa.int32()))
        assert batch.to_pylist(maps_as_pydicts="strict") == as_arrow(definition, good), "others are as they were"


# ---- Numbers of all sizes ----


def test_numbers_of_every_length_are_read() -> None:
    definition = record(field("n", "long"))
    values = [sign * (1 << bit) + shift for bit in range(63) for sign in (1, -1) for shift in (-1, 0, 1)]
    values += [(1 << 63) - 1, -(1 << 63)]
    found = decoded(encoded(definition, [{"n": value} for value in values]), definition)
    assert [row["n"] for row in found] == values


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 9 + b"\x02", b"\xff" * 12])
def test_numbers_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadMisfit, match=r"cut off|64 bits"):
        decoded([b"\x02", data, b"\x02"], record(field("n", "long")))


def test_an_int_of_more_than_32_bits_is_refused() -> None:
    data = encoded(record(field("n", "long")), [{"n": 1 << 31}])
    with pytest.raises(PayloadMisfit, match="32 bits"):
        decoded(data, record(field("n", "int")))


# ---- Logical types ----

DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 1, 234567, tzinfo=datetime.UTC)
NUMBER = uuid.UUID("12345678-1234-5678-1234-567812345678")


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ({"type": "int", "logicalType": "date"}, DAY, DAY),
        ({"type": "long", "logicalType": "timestamp-micros"}, MOMENT, MOMENT),
        ({"type": "long", "logicalType": "timestamp-millis"}, MOMENT, MOMENT.replace(microsecond=234000)),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, MOMENT.replace(tzinfo=None), None),
        ({"type": "int", "logicalType": "time-millis"}, datetime.time(1, 2, 3), 3_723_000),
        ({"type": "long", "logicalType": "time-micros"}, datetime.time(1, 2, 3), 3_723_000_000),
        ({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 4}, Decimal("-123456789.0123"), None),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}, Decimal(10**38 - 1), None),
        (
            {"type": "fixed", "name": "D", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 2},
            Decimal("-0.01"),
            None,
        ),
        ({"type": "string", "logicalType": "uuid"}, NUMBER, str(NUMBER)),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, NUMBER.bytes, str(NUMBER)),
    ],
)
def test_logical_types_become_the_types_of_columns(kind: Any, value: Any, expected: Any) -> None:
    for one in (kind, ["null", kind]):
        definition = record(field("before", "string"), field("v", one), field("after", "int"))
        rows = [{"before": "x" * size, "v": value, "after": size} for size in range(3)]
        found = decoded(encoded(definition, rows), definition)
        wanted = value if expected is None else expected
        assert [row["v"] for row in found] == [wanted] * 3
        assert [row["after"] for row in found] == [0, 1, 2]


def test_a_decimal_with_too_many_digits_or_bytes_is_refused() -> None:
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    narrow = {**wide, "precision": 4}
    data = encoded(record(field("v", wide)), [{"v": Decimal("1.00")}, {"v": Decimal("1234567.00")}])
    with pytest.raises(PayloadMisfit, match="more than 4 digits"):
        decoded(data, record(field("v", wide)), record(field("v", narrow)))
    with pytest.raises(PayloadMisfit, match="20 bytes"):
        decoded(encoded(record(field("v", "bytes")), [{"v": bytes(20)}]), record(field("v", wide)))


# ---- Versions that have changed ----

OLD = record(
    field("gone", {"type": "array", "items": "string"}),
    field("city", "string"),
    field("days", "int"),
    field("price", "float"),
    field("state", {"type": "enum", "name": "State", "symbols": ["NEW", "OLD", "LOST"]}),
    field("inner", record(field("a", "int"), field("b", "string"), name="Inner")),
    field("also_gone", {"type": "map", "values": ["null", "long"]}),
)
NEW = record(
    field("price", "double"),
    field("place", "string", aliases=["city"]),
    field("note", ["null", "string"], default=None),
    field("days", ["null", "long"]),
    field("class", "int", default=7),
    field("tags", {"type": "array", "items": "string"}, default=["x"]),
    field("state", {"type": "enum", "name": "State", "symbols": ["OLD", "NEW", "UNKNOWN"], "default": "UNKNOWN"}),
    field("inner", record(field("b", "string"), field("c", "string", default="c"), name="Inner")),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "gone": st.lists(st.text(max_size=3), max_size=3),
                "city": st.text(max_size=5),
                "days": INTS,
                "price": FLOATS,
                "state": st.sampled_from(["NEW", "OLD", "LOST"]),
                "inner": st.fixed_dictionaries({"a": INTS, "b": st.text(max_size=3)}),
                "also_gone": st.dictionaries(st.text(max_size=2), st.none() | LONGS, max_size=2),
            }
        ),
        max_size=6,
    )
)
def test_a_changed_record_is_read_as_fastavro_reads_it(rows: list[dict[str, Any]]) -> None:
    data = encoded(OLD, rows)
    expected = [
        fastavro.schemaless_reader(io.BytesIO(one), fastavro.parse_schema(OLD), fastavro.parse_schema(NEW))
        for one in data
    ]
    assert decoded(data, OLD, NEW) == expected


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        ("int", "long", -5, -5),
        ("int", "double", 7, 7.0),
        ("long", "float", 1 << 40, float(1 << 40)),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", b"abc", "abc"),
        ("int", ["null", "string", "long"], 5, {"member0": None, "member1": 5}),
        (["int", "null"], ["null", "int"], 3, 3),
        (["int", "string"], ["string", "long"], 3, {"member0": None, "member1": 3}),
        (["int", "string"], "string", "x", "x"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": ["null", "long"]}, [1, 2], [1, 2]),
        (["int", "long"], ["long", "int"], 1 << 40, 1 << 40),
        ("float", ["float", "double", "null"], 0.25, 0.25),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            {"type": "long", "logicalType": "timestamp-micros"},
            MOMENT,
            MOMENT.replace(microsecond=234000),
        ),
    ],
)
def test_types_are_promoted_and_unions_resolved(old: Any, new: Any, value: Any, expected: Any) -> None:
    definition = record(field("v", old), field("after", "int"))
    rows = decoded(
        encoded(definition, [{"v": value, "after": 9}]), definition, record(field("v", new), field("after", "int"))
    )
    assert rows == [{"v": expected, "after": 9}]


def test_a_union_of_several_types_is_a_struct_with_one_field_set() -> None:
    inner = record(field("x", "int"), name="Inner")
    definition = record(field("v", ["null", "string", "long", inner, {"type": "array", "items": "int"}]))
    rows = [{"v": one} for one in ("a", None, 5, {"x": 1}, [1, 2], "b", 6)]
    found = [row["v"] for row in decoded(encoded(definition, rows), definition)]
    nothing = dict.fromkeys(("member0", "member1", "member2", "member3"))
    assert found == [
        {**nothing, "member0": "a"},
        None,
        {**nothing, "member1": 5},
        {**nothing, "member2": {"x": 1}},
        {**nothing, "member3": [1, 2]},
        {**nothing, "member0": "b"},
        {**nothing, "member1": 6},
    ]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (record(field("a", "int")), record(field("a", "string")), "the field a: int cannot be read as string"),
        (record(field("a", "int")), record(field("b", "int")), "no field b, which has no default"),
        (record(field("a", "long")), record(field("a", "int")), "long cannot be read as int"),
        ("int", record(field("a", "int")), "it is int, not a record"),
    ],
)
def test_what_cannot_be_resolved_is_refused(old: Any, new: Any, why: str) -> None:
    with pytest.raises(Unresolvable, match=why):
        decoded([], old, new)


def test_a_branch_that_the_reader_lacks_matters_only_if_it_was_written() -> None:
    old, new = record(field("a", ["null", "int"])), record(field("a", "int"))
    assert decoded(encoded(old, [{"a": 1}, {"a": 2}]), old, new) == [{"a": 1}, {"a": 2}]
    with pytest.raises(PayloadMisfit, match="null cannot be read as int"):
        decoded(encoded(old, [{"a": 1}, {"a": None}]), old, new)


# ---- Unusual schemas ----


def test_a_record_that_contains_itself_has_no_columns_but_those_beside_it_have() -> None:
    tree = record(field("city", "string"), field("next", ["null", "Flight"]), field("days", "int"))
    with pytest.raises(NotAllowedError, match=r'contains itself.*schema="bytes"'):
        fields_of(parsed(json.dumps(tree).encode()))
    row = {"city": "Rome", "next": {"city": "Oslo", "next": None, "days": 1}, "days": 2}
    found = decoded(encoded(tree, [row, {**row, "next": None}]), tree, names=["city", "days"])
    assert found == [{"city": "Rome", "days": 2}] * 2
    deep = b"\x02a\x02" * 5_000
    with pytest.raises(PayloadMisfit):
        decoded([deep], tree, names=["days"])


def test_a_payload_that_is_no_record_is_the_column_value() -> None:
    for kind, value in (("string", "x"), ({"type": "map", "values": "int"}, {"a": 1}), (["null", "long"], None)):
        assert decoded(encoded(kind, [value, value]), kind) == [{"value": value}] * 2


@pytest.mark.parametrize("kind", ["string", "int", "double", {"type": "map", "values": "long"}])
def test_rows_with_very_many_items_lie_beside_rows_with_few(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_skipping, "PASSES_MAX", 3)
    value = {"string": "text", "int": -7, "double": 0.5}.get(kind, {"k": 1}) if isinstance(kind, str) else {"k": 1}
    definition = record(field("items", {"type": "array", "items": kind}), field("after", "int"))
    rows = [{"items": [value] * count, "after": count} for count in (0, 1, 500, 2, 0, 77, 3)]
    assert decoded(encoded(definition, rows), definition) == rows


def test_blocks_with_their_size_in_front_are_read() -> None:
    definition = record(field("items", {"type": "array", "items": "int"}), field("after", "int"))
    sized = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00" + b"\x0a"  # a block of −2 items in 2 bytes, then one item
    assert decoded([sized], definition) == [{"items": [1, 2, 3], "after": 5}]
    assert decoded([sized], definition, names=["after"]) == [{"after": 5}]


@pytest.mark.parametrize("names", [["list"], ["last"], None])
def test_items_that_are_records_in_records_without_fields_take_no_bytes(names: list[str] | None) -> None:
    empty = record(field("inner", record(name="Inner")), name="Outer")
    definition = record(field("list", {"type": "array", "items": empty}), field("last", "int"))
    row = {"list": [{"inner": {}}] * 3, "last": 7}
    expected = {name: row[name] for name in names or row}
    assert decoded(encoded(definition, [row]), definition, names=names) == [expected]


def test_a_count_alone_makes_nothing_large() -> None:
    for items in ("null", {"type": "fixed", "name": "F", "size": 0}, "double", "int"):
        definition = record(field("items", {"type": "array", "items": items}))
        for count in (b"\xfe\xff\xff\xff\x0f", b"\xfe" + b"\xff" * 8 + b"\x01", b"\xff" * 9 + b"\x01"):
            with pytest.raises(PayloadMisfit):
                decoded([count + b"\x00"], definition)


COUNTS = {"type": "map", "values": "int"}


def test_parts_of_many_rows_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_columns, "ROWS_AT_ONCE", 7)
    definition = record(
        field("n", ["null", "long"]), field("s", "string"), field("m", {"type": "map", "values": "int"})
    )
    rows = [{"n": number if number % 3 else None, "s": "x" * (number % 5), "m": {"a": number}} for number in range(50)]
    assert decoded(encoded(definition, rows), definition) == rows


def test_the_types_of_columns_are_those_that_spark_has() -> None:
    definition = record(
        field("n", ["null", "int"]),
        field("l", {"type": "array", "items": "string"}),
        field("t", {"type": "long", "logicalType": "timestamp-millis"}),
    )
    found = arrow_type(parsed(json.dumps(definition).encode()))
    assert [str(one.type) for one in found] == ["int32", "list<item: string>", "timestamp[us, tz=UTC]"]
    assert np.dtype("<u8").isnative, "words are read as the processor has them"
