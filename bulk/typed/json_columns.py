"""JSON payloads into columns. The definition is that of a record in Avro; the values are plain JSON.

Arrow's own reader takes all payloads at once, a line each. It does not read maps, decimals, and unions of several
types. It also refuses what is unusual, such as a day as text. Then Python's readers decide, payload by payload. So both
ways agree on every value.

A payload may have more than one line, because some clients indent JSON. Arrow's reader takes line breaks between tokens
for spaces, as long as all of the text is one block for it. It refuses them inside a text, as JSON does.

JSON has no bytes: clients write them as text in several ways. So bytes are read as the text that is there.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

import datetime
import itertools
import json
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import NamedTuple, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.json as pa_json

from ...actors.schemas.avro_definition import NO_DEFAULT, AvroField, AvroType
from ...protocol.plain_values import is_list, is_text_map
from .arrow_building import microseconds, numbers
from .avro_types import (
    MILLIS,
    PLAIN,
    arrow_type,
    default_of,
    logical_of,
    members_of,
    single_of,
)
from .payloads import PayloadDecoder, PayloadMisfit, Payloads, no_columns

LINES_AT_ONCE_BYTES = 8 << 20
LINES_AT_ONCE = 1 << 16
"""Arrow's reader refuses more than 100,000 in a block."""
_OPEN, _CLOSE = b"{}"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


class JsonField(NamedTuple):
    """A column: what JSON calls it, and what stands for a field that is not there."""

    key: str
    avro: AvroType
    default: object


def json_type(avro: AvroType) -> pa.DataType:
    """The type of a column: Avro's, but bytes are text. Raises NotAllowedError."""
    return _type(arrow_type(avro))


def _type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _type(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(_type(kind.value_type))
    return pa.map_(pa.string(), _type(kind.item_type)) if pa.types.is_map(kind) else kind


def fields_of(reader: AvroType, names: Collection[str] | None = None) -> list[pa.Field]:
    """The columns of a definition: its fields, or only those with `names`. Raises NotAllowedError."""
    if reader.kind != "record":
        raise no_columns("its JSON is no record")
    return [pa.field(one.name, json_type(one.type)) for one in reader.fields if names is None or one.name in names]


class JsonDecoder(PayloadDecoder):
    def __init__(self, reader: AvroType, writer: AvroType, names: Collection[str] | None) -> None:
        """Columns of the reader's record, or only those with `names`. Raises NotAllowedError."""
        super().__init__(fields_of(reader, names))
        wanted = [one for one in reader.fields if names is None or one.name in names]
        self._columns = [_field(one, writer) for one in wanted]
        kinds = [_line_type(one.avro) for one in self._columns]
        self._usual: pa.Schema | None = None
        if None not in kinds and not any(_has_defaults(one.avro) for one in self._columns):
            pairs = zip(self._columns, kinds, strict=True)
            self._usual = pa.schema([pa.field(one.key, kind) for one, kind in pairs])

    def decode(self, payloads: Payloads) -> list[pa.Array]:
        parts: list[list[pa.Array]] = []
        for part in _in_parts(payloads):
            found = None if self._usual is None or not part.total else self._read_lines(part, self._usual)
            parts.append(self._one_by_one(part) if found is None else found)
        return parts[0] if len(parts) == 1 else [pa.concat_arrays(column) for column in zip(*parts, strict=True)]

    # ---- All at once ----

    def _read_lines(self, payloads: Payloads, usual: pa.Schema) -> list[pa.Array] | None:
        """The columns; None if the other way has to decide."""
        data, starts, ends = payloads
        # Each payload begins and ends as an object does, so it has one at least. Together they have as many as there
        # are payloads. So each payload has one.
        if not ((ends > starts).all() and (data[starts] == _OPEN).all() and (data[ends - 1] == _CLOSE).all()):
            return None
        lines = b"\n".join([*payloads.listed(), b""])
        try:
            found = pa_json.read_json(
                pa.BufferReader(lines),
                pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                pa_json.ParseOptions(explicit_schema=usual, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowException:
            return None
        if found.num_rows != payloads.total:
            return None
        columns: list[pa.Array] = []
        for one, field in zip(self._columns, self.fields, strict=True):
            column = found.column(one.key).combine_chunks()
            column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
            made = _of_lines(column, one.avro, field.type)
            if one.default is not None and made.null_count:
                made = _filled(made, one.default, field.type)
            columns.append(made)
        return columns if all(map(_is_valid, columns)) else None

    # ---- One by one ----

    def _one_by_one(self, payloads: Payloads) -> list[pa.Array]:
        columns: list[list[object]] = [[] for _ in self._columns]
        for data in payloads.listed():
            found = _loaded(data)
            if not is_text_map(found):
                raise PayloadMisfit("it is no JSON object")
            for one, column in zip(self._columns, columns, strict=True):
                value = found.get(one.key)
                column.append(one.default if value is None else _plain(one.avro, value))
        try:
            return [pa.array(column, field.type) for column, field in zip(columns, self.fields, strict=True)]
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise PayloadMisfit(f"a value does not fit: {error}") from None


def _field(field: AvroField, writer: AvroType) -> JsonField:
    """A column of the reader's field. JSON has the name that the writer's definition has."""
    named = [name for name in (field.name, *field.aliases) if name in writer.by_name]
    default = None
    # A field that both definitions have, and that may be null, is null if it is not there.
    if field.default is not NO_DEFAULT and (not named or not _nullable(field.type)):
        default = default_of(field.type, field.default)
    return JsonField(named[0] if named else field.name, field.type, default)


def _nullable(avro: AvroType) -> bool:
    return avro.kind == "null" or any(branch.kind == "null" for branch in avro.branches if avro.kind == "union")


def _in_parts(payloads: Payloads) -> list[Payloads]:
    """Payloads of about `LINES_AT_ONCE_BYTES` together, at most `LINES_AT_ONCE` of them."""
    if not payloads.total:
        return [payloads]
    ends = np.cumsum(payloads.ends - payloads.starts)
    cuts = np.searchsorted(ends, np.arange(LINES_AT_ONCE_BYTES, int(ends[-1]), LINES_AT_ONCE_BYTES)) + 1
    places = sorted({0, *range(0, payloads.total, LINES_AT_ONCE), *cuts.tolist(), payloads.total})
    return [payloads.part(start, stop) for start, stop in itertools.pairwise(places)]


def _single(avro: AvroType) -> AvroType | None:
    """A type without its null; None for a union of several types."""
    if avro.kind != "union":
        return avro
    single = single_of(avro)
    return AvroType(single) if isinstance(single, str) else single


def _line_type(avro: AvroType) -> pa.DataType | None:
    """What Arrow's reader is told; None for what it does not read."""
    one = _single(avro)
    if one is None or one.kind in ("map", "null") or logical_of(one) == "decimal":
        return None
    if one.kind == "array":
        item = _line_type(one.items)
        return None if item is None else pa.list_(item)
    if one.kind == "record":
        kinds = [_line_type(field.type) for field in one.fields]
        if None in kinds or not kinds:
            return None
        return pa.struct([pa.field(field.name, kind) for field, kind in zip(one.fields, kinds, strict=True)])
    return pa.string() if one.kind in ("bytes", "fixed", "string", "enum") else PLAIN[one.kind]


def _has_defaults(avro: AvroType) -> bool:
    """Whether a record inside a column has defaults or aliases, which Arrow's reader knows nothing of."""
    one = _single(avro)
    if one is None:
        return False
    if one.kind == "array":
        return _has_defaults(one.items)
    return any(
        bool(field.aliases) or not (field.default is None or field.default is NO_DEFAULT) or _has_defaults(field.type)
        for field in one.fields
    )


def _of_lines(column: pa.Array, avro: AvroType, kind: pa.DataType) -> pa.Array:
    """What Arrow has read, as the column's type: numbers become times."""
    one = _single(avro)
    if column.type == kind or one is None:
        return column
    if one.kind == "record":
        parts = [
            _of_lines(part, field.type, kind.field(number).type)
            for number, (part, field) in enumerate(zip(column.flatten(), one.fields, strict=True))
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=column.is_null())
    if one.kind == "array":
        items = _of_lines(column.flatten(), one.items, kind.value_type)
        counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind, mask=column.is_null())
    if logical_of(one) in MILLIS:
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        return numbers(kind, microseconds(values), np.asarray(column.is_valid()))
    return column.view(kind)


def _is_valid(column: pa.Array) -> bool:
    """Whether all text is UTF-8: Arrow's reader of JSON does not look."""
    try:
        column.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _filled(column: pa.Array, default: object, kind: pa.DataType) -> pa.Array:
    """A column whose nulls are a default."""
    indexes = np.where(np.asarray(column.is_null()), len(column), np.arange(len(column)))
    return pa.concat_arrays([column, pa.array([default], kind)]).take(pa.array(indexes.astype(np.int32)))


# ---- Values one by one ----


def _loaded(data: bytes) -> object:
    try:
        return cast("object", orjson.loads(data))
    except ValueError:  # it reads neither NaN nor integers beyond 64 bits
        pass
    try:
        return cast("object", json.loads(data))
    except (ValueError, RecursionError) as error:
        raise PayloadMisfit(f"it is no JSON: {error}") from None


def _plain(avro: AvroType, value: object) -> object:
    """A value as Arrow takes it. Raises PayloadMisfit."""
    if value is None:
        return None
    if avro.kind == "union":
        return _of_union(avro, value)
    if avro.kind == "record":
        if not is_text_map(value):
            raise PayloadMisfit(f"a value of the record {avro.name} is no object")
        return {field.name: _of_field(field, value) for field in avro.fields}
    if avro.kind == "array":
        if not is_list(value):
            raise PayloadMisfit("an array is none")
        return [_plain(avro.items, one) for one in value]
    if avro.kind == "map":
        if not is_text_map(value):
            raise PayloadMisfit("a map is no object")
        return [(key, _plain(avro.items, one)) for key, one in value.items()]
    read = _READ.get(logical_of(avro)) or _READ[avro.kind]
    try:
        return read(value)
    except (ValueError, TypeError, ArithmeticError) as error:
        raise PayloadMisfit(f"{value!r:.60} is no {logical_of(avro) or avro.kind}: {error}") from None


def _of_field(field: AvroField, record: dict[str, object]) -> object:
    value = record.get(field.name)
    if value is None and field.name not in record:
        value = next((record[alias] for alias in field.aliases if alias in record), None)
    if value is None and field.default is not NO_DEFAULT and not _nullable(field.type):
        return default_of(field.type, field.default)
    return _plain(field.type, value)


def _of_union(union: AvroType, value: object) -> object:
    """The value of the first branch that takes it. Java's clients write a branch without its name."""
    members, single = members_of(union), single_of(union)
    if isinstance(single, str):
        members = [AvroType(single)]
    why = "a value fits no branch of its union"
    for number, member in enumerate(members):
        try:
            found = _plain(member, value)
        except PayloadMisfit as error:
            why = str(error) if len(members) == 1 else why
            continue
        if single is not None:
            return found
        return {f"member{place}": found if place == number else None for place in range(len(members))}
    raise PayloadMisfit(why)


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError("it is no whole number")
    return value


def _long(value: object) -> int:
    if not -(1 << 63) <= _whole(value) < 1 << 63:
        raise ValueError("it has more than 64 bits")
    return _whole(value)


def _int(value: object) -> int:
    if not -(1 << 31) <= _whole(value) < 1 << 31:
        raise ValueError("it has more than 32 bits")
    return _whole(value)


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("it is no number")
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("it is no truth")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("it is no text")
    value.encode()  # half of a surrogate pair is no text
    return value


def _symbol(value: object) -> str:
    """A member of an enum. Python's clients write the number of one that stands for a number."""
    return str(value) if type(value) is int else _text(value)


def _decimal(value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("it is no number")
    return Decimal(str(value))


def _day(value: object) -> int | datetime.date:
    return datetime.date.fromisoformat(value) if isinstance(value, str) else _int(value)


def _moment(unit_us: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, str):
            moment = datetime.datetime.fromisoformat(value)
            return (moment.replace(tzinfo=moment.tzinfo or datetime.UTC) - _EPOCH) // _MICROSECOND
        return _long(_whole(value) * unit_us)

    return read


_READ: dict[str, Callable[[object], object]] = {
    "boolean": _truth,
    "int": _int,
    "long": _long,
    "float": _real,
    "double": _real,
    "string": _text,
    "bytes": _text,
    "fixed": _text,
    "uuid": _text,
    "enum": _symbol,
    "decimal": _decimal,
    "date": _day,
    "timestamp-millis": _moment(1000),
    "timestamp-micros": _moment(1),
    "local-timestamp-millis": _moment(1000),
    "local-timestamp-micros": _moment(1),
}
"""By logical type, or else by type."""
