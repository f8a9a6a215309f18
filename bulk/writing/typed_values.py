"""Rows as records of a schema, Avro or JSON: the definition, and the payloads of all rows of an Arrow batch at once.

The fields are the columns that do not begin with `__`. If `value` is the only one of them and a struct, its fields are
those of the record, and a null struct is a null value. Arrow joins the encoded fields of all rows in C.

| column | Avro and JSON schema |
| --- | --- |
| boolean, float, double, string | the same |
| byte, short, int; long | int; long |
| binary | bytes; not in JSON |
| date; timestamp; timestamp without a time zone | date; timestamp-micros; local-timestamp-micros |
| decimal | decimal in bytes; not in JSON |
| array, map of strings to anything, struct | array, map, record |

A column that may be null is a union of null and its type.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyarrow brings no types.

import inspect
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...client.schemas.json_schema import definition_text
from ...client.schemas.schema import SchemaInfo
from ...protocol.errors import InvalidConfiguration, SchemaSerializationError
from ...protocol.schema_types import SchemaType
from .columns import VALUE
from .encoding import joined, of_offsets, of_width, sizes_of, varints

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

KINDS = {"avro": SchemaType.AVRO, "json": SchemaType.JSON}
RECORD_NAME = "topLevelRecord"
"""What Spark's own Avro functions call the record of a row."""
_UNESCAPED = r'^[^\x00-\x1f"\\]*$'
_BINARY = pa.binary()

Encode = Callable[["pa.Array", "pa.Field"], "pa.Array"]


def arrow_schema(schema: "StructType") -> "pa.Schema":
    """What Spark's rows of that schema are in Arrow. Raises PySparkException for a type that Arrow does not have."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # PySpark 3.5 takes UTC without being told.
    zone = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **zone)


def record_of(schema: "pa.Schema") -> "pa.StructType":
    """The fields of the record that rows of this schema are. Raises InvalidConfiguration if there are none."""
    fields = [field for field in schema if not field.name.startswith("__")]
    if not fields:
        raise InvalidConfiguration("the frame has no columns for a record, only some that begin with `__`")
    if len(fields) == 1 and fields[0].name == VALUE and pa.types.is_struct(fields[0].type):
        return fields[0].type
    return pa.struct(fields)


def schema_info(kind: SchemaType, record: "pa.StructType", name: str = RECORD_NAME) -> SchemaInfo:
    """What producers register. Raises InvalidConfiguration for a type that the schema does not have."""
    return SchemaInfo(name, kind, definition_text(_record(kind, record, name)))


def with_values(kind: SchemaType, rows: "pa.RecordBatch") -> "pa.RecordBatch":
    """The rows with their records as payloads in `value`, beside the columns that begin with `__`.

    Raises SchemaSerializationError for a value that the schema does not have.
    """
    others = [name for name in rows.schema.names if name.startswith("__")]
    record = record_of(rows.schema)
    if VALUE in rows.schema.names and rows.schema.field(VALUE).type == record:
        structs = rows.column(rows.schema.get_field_index(VALUE))
    else:
        structs = pa.StructArray.from_arrays([rows.column(one.name) for one in record], fields=list(record))
    payloads = _fields(_ENCODERS[kind], structs) if kind is SchemaType.AVRO else _json_record(structs)
    payloads = pc.if_else(pc.is_valid(structs), payloads, pa.scalar(None, _BINARY))
    return pa.record_batch({VALUE: payloads, **{name: rows.column(name) for name in others}})


# -- the definition ------------------------------------------------------------------------------------------------


def _record(kind: SchemaType, record: "pa.StructType", name: str) -> dict[str, object]:
    fields: list[dict[str, object]] = []
    for field in record:
        found = _type(kind, field.type, f"{name}_{field.name}")
        fields.append(
            {"name": field.name, "type": ["null", found], "default": None}
            if field.nullable
            else {"name": field.name, "type": found}
        )
    return {"type": "record", "name": name, "fields": fields}


def _type(kind: SchemaType, found: "pa.DataType", name: str) -> object:
    types = pa.types
    for fits, said in _SIMPLE:
        if fits(found):
            return said
    if types.is_timestamp(found):
        logical = "local-timestamp-micros" if found.tz is None else "timestamp-micros"
        return {"type": "long", "logicalType": logical}
    if kind is SchemaType.AVRO and (types.is_binary(found) or types.is_large_binary(found)):
        return "bytes"
    if kind is SchemaType.AVRO and types.is_decimal128(found):
        return {"type": "bytes", "logicalType": "decimal", "precision": found.precision, "scale": found.scale}
    if types.is_list(found):
        return {"type": "array", "items": _maybe(kind, found.value_field, name)}
    if types.is_map(found) and types.is_string(found.key_type):
        return {"type": "map", "values": _maybe(kind, found.item_field, name)}
    if types.is_struct(found):
        return _record(kind, found, name)
    raise InvalidConfiguration(f"{name}: {kind.name} has no type for {found}: cast the column, or leave it out")


def _maybe(kind: SchemaType, field: "pa.Field", name: str) -> object:
    found = _type(kind, field.type, name)
    return ["null", found] if field.nullable else found


_SIMPLE: Sequence[tuple[Callable[["pa.DataType"], bool], object]] = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_signed_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
    (pa.types.is_large_string, "string"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
)


# -- Avro ------------------------------------------------------------------------------------------------------------


def _fields(encode: Encode, structs: "pa.StructArray") -> "pa.Array":
    """The encoded fields of each struct, end to end. What a null struct gets, its union replaces."""
    parts = [encode(_child(structs, place), field) for place, field in enumerate(structs.type)]
    return joined(*parts) if parts else of_offsets(np.zeros(len(structs) + 1, np.int32), pa.py_buffer(b""))


def _child(structs: "pa.StructArray", place: int) -> "pa.Array":
    child, field = structs.flatten()[place], structs.type.field(place)
    if not field.nullable and child.null_count > structs.null_count:
        raise SchemaSerializationError(f"the field {field.name} is null in a row, and its column may not be")
    return child


def _avro(values: "pa.Array", field: "pa.Field") -> "pa.Array":
    body = _avro_body(values, field)
    if not field.nullable:
        return body
    return pc.if_else(pc.is_valid(values), joined(b"\x02", body), pa.scalar(b"\x00", _BINARY))


def _avro_body(values: "pa.Array", field: "pa.Field") -> "pa.Array":
    """Each value in Avro; anything for null."""
    kind, types = values.type, pa.types
    if types.is_boolean(kind):
        return of_width(1, np.asarray(values.fill_null(False)).astype(np.uint8))
    if types.is_floating(kind):
        size = kind.bit_width // 8
        return of_width(size, np.asarray(values.fill_null(0)).astype(f"<f{size}"))
    if types.is_decimal128(kind):
        return joined(b"\x20", of_width(16, _decimals(values)))
    if types.is_struct(kind):
        return _fields(_avro, values)
    if types.is_list(kind):
        return _blocks(values, _avro(_flat(values, values.values), kind.value_field))
    if types.is_map(kind):
        keys, items = _flat(values, values.keys), _flat(values, values.items)
        return _blocks(values, joined(_avro_body(keys, field), _avro(items, kind.item_field)))
    if types.is_integer(kind) or types.is_date32(kind) or types.is_timestamp(kind):
        return varints(_zigzag(_whole_numbers(values)))
    texts = values.cast(_BINARY)
    return joined(varints(_zigzag(sizes_of(texts))), texts)


def _blocks(values: "pa.Array", items: "pa.Array") -> "pa.Array":
    """Arrays and maps: one block with all items, and the end."""
    places = _places(values)
    ends = np.frombuffer(items.buffers()[1], np.int32)[items.offset :]
    whole = of_offsets(ends[places - places[0]], items.buffers()[2] or pa.py_buffer(b""))
    counts = np.diff(places)
    count = pc.if_else(pa.array(counts > 0), varints(_zigzag(counts)), pa.scalar(b"", _BINARY))
    return joined(count, whole, b"\x00")


def _zigzag(numbers: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _decimals(values: "pa.Array") -> bytes:
    """The numbers without their point, 16 bytes each, the highest first."""
    data = np.frombuffer(values.buffers()[1], np.uint8).reshape(-1, 16)
    return data[values.offset : values.offset + len(values), ::-1].tobytes()


# -- JSON ------------------------------------------------------------------------------------------------------------


def _json(values: "pa.Array", field: "pa.Field") -> "pa.Array":
    return pc.if_else(pc.is_valid(values), _json_body(values, field), pa.scalar(b"null", _BINARY))


def _json_body(values: "pa.Array", field: "pa.Field") -> "pa.Array":
    """Each value as text; anything for null."""
    kind, types = values.type, pa.types
    if types.is_struct(kind):
        return _json_record(values)
    if types.is_boolean(kind):
        return pc.if_else(values, pa.scalar(b"true", _BINARY), pa.scalar(b"false", _BINARY))
    if types.is_list(kind):
        texts = _json(_flat(values, values.values), kind.value_field)
        return joined(b"[", _separated(values, texts), b"]")
    if types.is_map(kind):
        keys, items = _flat(values, values.keys), _flat(values, values.items)
        return joined(b"{", _separated(values, joined(_quoted(keys), b":", _json(items, kind.item_field))), b"}")
    if types.is_floating(kind):
        if not pc.all(pc.is_finite(values)).as_py() and values.null_count < len(values):
            raise SchemaSerializationError(f"the field {field.name} is not a finite number in a row: JSON has no such")
        return values.cast(pa.string()).cast(_BINARY)
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(values)
    return pa.array(_whole_numbers(values)).cast(pa.string()).cast(_BINARY)


def _json_record(structs: "pa.StructArray") -> "pa.Array":
    parts: list[pa.Array | bytes] = []
    for place, field in enumerate(structs.type):
        name = json.dumps(field.name, ensure_ascii=False).encode()
        parts += [(b"," if parts else b"{") + name + b":", _json(_child(structs, place), field)]
    return joined(*parts, b"}") if parts else pa.array([b"{}"] * len(structs), _BINARY)


def _separated(values: "pa.Array", texts: "pa.Array") -> "pa.Array":
    places = _places(values)
    lists = pa.ListArray.from_arrays(pa.array(places - places[0], pa.int32()), texts)
    return pc.binary_join(lists, pa.scalar(b",", _BINARY))


def _quoted(texts: "pa.Array") -> "pa.Array":
    """Strings of JSON. Those that need an escape are rare, and are made one by one."""
    texts = texts.cast(pa.string())
    plain = pc.match_substring_regex(texts, _UNESCAPED)
    if pc.all(plain).as_py() is not False:
        return joined(b'"', texts.cast(_BINARY), b'"')
    whole = [None if text is None else json.dumps(text, ensure_ascii=False).encode() for text in texts.to_pylist()]
    return pa.array(whole, _BINARY)


# -- Arrow -----------------------------------------------------------------------------------------------------------


def _whole_numbers(values: "pa.Array") -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Whole numbers, days or microseconds; 0 for null."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", tz=values.type.tz)).cast(pa.int64())
    elif pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return np.asarray(values.fill_null(0)).astype(np.int64)


def _places(values: "pa.Array") -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Where the items of each list or map begin, and where the last ends."""
    return np.asarray(values.offsets, np.int64)


def _flat(values: "pa.Array", items: "pa.Array") -> "pa.Array":
    """The items of these lists or maps. A null one has none."""
    places = _places(values)
    return items.slice(int(places[0]), int(places[-1] - places[0]))


_ENCODERS: dict[SchemaType, Encode] = {SchemaType.AVRO: _avro, SchemaType.JSON: _json}
