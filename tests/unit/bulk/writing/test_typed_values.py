"""Rows become payloads of Avro and JSON that other implementations read as the same records."""

import datetime
import decimal
import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.bulk.writing.typed_values import record_of, schema_info, with_values
from magnetar.protocol.errors import InvalidConfiguration, SchemaSerializationError
from magnetar.protocol.schema_types import SchemaType

UTC = datetime.UTC
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
TIMES = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))
COMMON: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "flag": (pa.bool_(), st.booleans()),
    "small": (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "large": (pa.int64(), LONGS),
    "real": (pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
    "text": (pa.string(), TEXTS),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | LONGS, max_size=3)),
    "map": (pa.map_(pa.string(), pa.string()), st.dictionaries(TEXTS, st.none() | TEXTS, max_size=3)),
    "inner": (
        pa.struct([pa.field("a", pa.string()), pa.field("b", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"a": st.none() | TEXTS, "b": st.none() | st.lists(TEXTS, max_size=2)}),
    ),
}
OF_AVRO: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "raw": (pa.binary(), st.binary(max_size=20)),
    "single": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "day": (pa.date32(), st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1))),
    "moment": (pa.timestamp("us", tz="UTC"), TIMES.map(lambda time: time.replace(tzinfo=UTC))),
    "local": (pa.timestamp("us"), TIMES),
    "money": (pa.decimal128(20, 2), st.decimals(-(10**15), 10**15, places=2)),
}


def batches(columns: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]]) -> st.SearchStrategy[pa.RecordBatch]:
    """Batches whose columns may be null, the first of them not."""

    def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
        arrays = []
        for name, (kind, _) in columns.items():
            values = [row[name] for row in rows]
            if pa.types.is_map(kind):
                values = [None if value is None else list(value.items()) for value in values]
            arrays.append(pa.array(values, kind))
        fields = [pa.field(name, kind, name != "flag") for name, (kind, _) in columns.items()]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    row = {name: values if name == "flag" else st.none() | values for name, (_, values) in columns.items()}
    return st.lists(st.fixed_dictionaries(row), min_size=1, max_size=8).map(batch)


def plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    maps = [field.name for field in batch.schema if pa.types.is_map(field.type)]
    return [
        {name: dict(value) if name in maps and value is not None else value for name, value in row.items()}
        for row in batch.to_pylist()
    ]


@settings(max_examples=60, deadline=None)
@given(batches(COMMON | OF_AVRO), st.integers(0, 7))
def test_avro_is_what_another_implementation_reads(batch: pa.RecordBatch, first: int) -> None:
    batch = batch.slice(min(first, batch.num_rows - 1))
    info = schema_info(SchemaType.AVRO, record_of(batch.schema))
    parsed = fastavro.parse_schema(json.loads(info.definition))
    found = with_values(SchemaType.AVRO, batch).column(0).to_pylist()
    assert [fastavro.schemaless_reader(io.BytesIO(one), parsed, None) for one in found] == plain(batch)


@settings(max_examples=60, deadline=None)
@given(batches(COMMON), st.integers(0, 7))
def test_json_is_what_another_implementation_reads(batch: pa.RecordBatch, first: int) -> None:
    batch = batch.slice(min(first, batch.num_rows - 1))
    found = with_values(SchemaType.JSON, batch).column(0).to_pylist()
    assert [json.loads(one) for one in found] == plain(batch)


def test_a_struct_in_value_is_the_record_and_a_null_one_a_null_value() -> None:
    kind = pa.struct([pa.field("a", pa.int32(), False)])
    batch = pa.record_batch({"value": pa.array([{"a": 1}, None], kind), "__key": pa.array(["k", "l"])})
    assert record_of(batch.schema) == kind
    found = with_values(SchemaType.JSON, batch)
    assert found.to_pylist() == [{"value": b'{"a":1}', "__key": "k"}, {"value": None, "__key": "l"}]


def test_what_a_schema_does_not_have_is_refused() -> None:
    for kind, column in (
        (SchemaType.JSON, pa.array([b"a"])),
        (SchemaType.JSON, pa.array([decimal.Decimal(1)])),
        (SchemaType.AVRO, pa.array([1], pa.duration("us"))),
    ):
        record = record_of(pa.record_batch({"a": column}).schema)
        with pytest.raises(InvalidConfiguration, match="has no type for"):
            schema_info(kind, record)
    with pytest.raises(InvalidConfiguration, match="no columns for a record"):
        record_of(pa.schema([("__key", pa.string())]))
    with pytest.raises(SchemaSerializationError, match="a is not a finite number"):
        with_values(SchemaType.JSON, pa.record_batch({"a": pa.array([1.0, float("nan")])}))
