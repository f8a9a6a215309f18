"""Avro's resolution of schemas: readers that take what one schema wrote for what another one says.

Fields go by their names, or by the aliases of the reader's field. A field that only the writer has is stepped over. One
that only the reader has takes its default. Numbers and text are promoted. A symbol that the reader's enum lacks becomes
its default. Names of types count in unions only, because clients in several languages name equal records differently.

Columns are pruned here: what nobody asks for is stepped over, and what lies behind the last wanted field not even that.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Collection
from functools import partial
from typing import cast

import numpy as np
import pyarrow as pa

from ...actors.schemas.avro_definition import NO_DEFAULT, AvroField, AvroType
from .arrow_building import decimals, microseconds, numbers, texts
from .avro_columns import (
    AvroColumns,
    AvroPart,
    BooleanReader,
    BytesReader,
    EnumReader,
    FieldStep,
    FloatReader,
    ListReader,
    MapReader,
    MemberReader,
    NullReader,
    RecordReader,
    UnfitReader,
    UnionReader,
    WholeReader,
)
from .avro_skipping import SkipFixed, pair_of, step_over
from .avro_types import (
    LOCAL_TIMESTAMP,
    PLAIN,
    TIMESTAMP,
    UUID_BYTES,
    arrow_type,
    default_of,
    digits_of,
    logical_of,
    members_of,
    single_of,
)
from .columns import VALUE

PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""By the writer's type: what it can be read as, the nearest first."""
_WIDTHS = {"int": np.int32, "long": np.int64, "float": np.float32, "double": np.float64}
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


class Unresolvable(Exception):
    """What the writer wrote cannot be read as the reader says."""


def avro_decoder(reader: AvroType, writer: AvroType, names: Collection[str] | None) -> AvroColumns:
    """A decoder of the columns `names` of the reader's schema; None: of all. Raises Unresolvable."""
    if reader.kind != "record":
        return AvroColumns(reader_of(writer, reader), [pa.field(VALUE, arrow_type(reader))])
    if writer.kind != "record":
        raise Unresolvable(f"it is {writer.kind}, not a record")
    made = _record(writer, reader, names)
    return AvroColumns(made, made.fields)


def reader_of(writer: AvroType, reader: AvroType) -> AvroPart:
    """What reads values of the writer's type as the reader's. Raises Unresolvable."""
    if writer.kind == "union":
        return _of_writers_union(writer, reader)
    if reader.kind == "union":
        return _into_union(writer, reader)
    if writer.kind == "record" and reader.kind == "record":
        return _record(writer, reader, None)
    if writer.kind == reader.kind == "enum":
        known = {symbol: symbol for symbol in reader.symbols}
        return EnumReader([known.get(symbol, reader.symbol_default) for symbol in writer.symbols])
    if writer.kind == reader.kind == "array":
        return ListReader(reader_of(writer.items, reader.items), step_over(writer.items), arrow_type(reader))
    if writer.kind == reader.kind == "map":
        value = reader_of(writer.items, reader.items)
        return MapReader(value, pair_of(step_over(writer.items)), arrow_type(reader))
    if writer.kind == reader.kind == "fixed" and writer.size_bytes != reader.size_bytes:
        raise Unresolvable(f"{writer.name} has {writer.size_bytes} bytes, not {reader.size_bytes}")
    if writer.kind != reader.kind and reader.kind not in PROMOTIONS.get(writer.kind, ()):
        raise Unresolvable(f"{_named(writer)} cannot be read as {_named(reader)}")
    return _plain(writer, reader)


def _named(avro: AvroType) -> str:
    return f"{avro.kind} {avro.name}".strip()


# ---- Records ----


def _record(writer: AvroType, reader: AvroType, names: Collection[str] | None) -> RecordReader:
    wanted = [field for field in reader.fields if names is None or field.name in names]
    fields = [pa.field(field.name, arrow_type(field.type)) for field in wanted]
    columns: dict[str, int] = {}
    defaults: dict[int, object] = {}
    for column, field in enumerate(wanted):
        found = _field_named(writer, field)
        if found is not None and found not in columns:
            columns[found] = column
        elif field.default is not NO_DEFAULT:
            defaults[column] = default_of(field.type, field.default)
        else:
            raise Unresolvable(f"it has no field {field.name}, which has no default")
    steps: list[FieldStep] = []
    for field in writer.fields:
        column = columns.pop(field.name, -1)
        if column >= 0:
            try:
                steps.append(FieldStep(reader_of(field.type, wanted[column].type), None, column))
            except Unresolvable as error:
                raise Unresolvable(f"the field {field.name}: {error}") from None
        else:
            steps.append(FieldStep(None, step_over(field.type)))
        if names is not None and not columns:
            break  # nobody asks for anything behind it
    return RecordReader(fields, _with_fewer_steps(steps), defaults)


def _field_named(writer: AvroType, field: AvroField) -> str | None:
    """What the writer calls a field of the reader; None if it has none."""
    return next((name for name in (field.name, *field.aliases) if name in writer.by_name), None)


def _with_fewer_steps(steps: list[FieldStep]) -> list[FieldStep]:
    """One step over several fields of fixed size that nobody asks for."""
    found: list[FieldStep] = []
    for one in steps:
        last = found[-1].step if found else None
        if isinstance(one.step, SkipFixed) and isinstance(last, SkipFixed):
            found[-1] = FieldStep(None, SkipFixed((last.size or 0) + (one.step.size or 0)))
        else:
            found.append(one)
    return found


# ---- Unions ----


def _of_writers_union(writer: AvroType, reader: AvroType) -> AvroPart:
    """Each branch by itself. One that the reader cannot take matters only if it was written."""
    branches: list[AvroPart] = []
    failures: list[str] = []
    for branch in writer.branches:
        try:
            branches.append(reader_of(branch, reader))
        except Unresolvable as error:
            branches.append(UnfitReader(str(error)))
            failures.append(str(error))
    if writer.branches and len(failures) == len(branches):
        raise Unresolvable(failures[0])
    return UnionReader(branches, arrow_type(reader))


def _into_union(writer: AvroType, reader: AvroType) -> AvroPart:
    kind = arrow_type(reader)
    if writer.kind == "null":
        if any(branch.kind == "null" for branch in reader.branches):
            return NullReader(kind)
        raise Unresolvable("null cannot be read as a union without null")
    members = members_of(reader)
    number = _branch_for(writer, members)
    single = single_of(reader)
    if single is None:
        return MemberReader(number, reader_of(writer, members[number]), cast(pa.StructType, kind))
    return _plain(writer, AvroType(single)) if isinstance(single, str) else reader_of(writer, members[number])


def _branch_for(writer: AvroType, members: list[AvroType]) -> int:
    """The branch of a reader's union that takes a type: of that name, of that kind, or one that it is promoted to."""
    same = [number for number, member in enumerate(members) if member.kind == writer.kind]
    if writer.name and len(same) > 1:
        full = [number for number in same if writer.name in (members[number].name, *members[number].aliases)]
        named = full or [number for number in same if members[number].short_name == writer.short_name]
        if named:
            return named[0]
    for number in same:
        try:
            reader_of(writer, members[number])
        except Unresolvable:
            if len(same) == 1:
                raise
        else:
            return number
    for kind in PROMOTIONS.get(writer.kind, ()):
        for number, member in enumerate(members):
            if member.kind == kind:
                return number
    raise Unresolvable(f"{_named(writer)} is no branch of the reader's union")


# ---- Plain values ----


def _plain(writer: AvroType, reader: AvroType) -> AvroPart:
    if writer.kind == "null":
        return NullReader(PLAIN["null"])
    if writer.kind == "boolean":
        return BooleanReader(partial(numbers, pa.bool_()))
    if writer.kind in ("int", "long"):
        return WholeReader(_whole(writer, reader), narrow=writer.kind == "int")
    if writer.kind in ("float", "double"):
        make = partial(_cast, _WIDTHS[reader.kind], arrow_type(reader))
        return FloatReader(make, 4 if writer.kind == "float" else 8)
    size = writer.size_bytes if writer.kind == "fixed" else None
    if logical_of(reader) == "decimal":
        if logical_of(writer) == "decimal" and digits_of(writer)[1] != digits_of(reader)[1]:
            scales = f"{digits_of(writer)[1]} digits behind the point, not {digits_of(reader)[1]}"
            raise Unresolvable(f"a decimal has {scales}")
        return BytesReader(partial(decimals, cast(pa.Decimal128Type, arrow_type(reader))), size)
    if reader.kind == "fixed" and logical_of(reader) == "uuid":
        return BytesReader(_uuids, UUID_BYTES)
    return BytesReader(partial(texts, arrow_type(reader)), size)


def _cast(width: type, kind: pa.DataType, values: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    return numbers(kind, values.astype(width, copy=False), valid)


def _whole(writer: AvroType, reader: AvroType) -> partial[pa.Array]:
    """How numbers become an array: times in the writer's unit, if it says one, in that of the reader otherwise."""
    kind = arrow_type(reader)
    if kind in (TIMESTAMP, LOCAL_TIMESTAMP):
        said = logical_of(writer) or logical_of(reader)
        return partial(_in_milliseconds if said.endswith("millis") else _cast, np.int64, kind)
    return partial(_cast, _WIDTHS[reader.kind], kind)


def _in_milliseconds(width: type, kind: pa.DataType, values: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    return numbers(kind, microseconds(values), valid)


def _uuids(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, valid: np.ndarray | None) -> pa.Array:
    """UUIDs as text: 32 digits with a hyphen behind the 8th, 12th, 16th and 20th."""
    count = len(starts)
    found = np.full((count, 36), ord("-"), np.uint8)
    places = [place for place in range(36) if place not in (8, 13, 18, 23)]
    pairs = data[starts[:, None] + np.arange(UUID_BYTES)]
    found[:, places[::2]] = _HEX[pairs >> 4]
    found[:, places[1::2]] = _HEX[pairs & 15]
    sizes = np.full(count, 36, np.int64)
    return texts(pa.string(), found.reshape(-1), np.arange(count) * 36, sizes, valid)
