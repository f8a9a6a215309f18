"""The Arrow types of Avro's types, and the values of Avro's defaults.

They are those of Spark's own reader of Avro. A union of null and one type is that type, which may be null. One of int
and long is long, one of float and double is double. Any other union is a struct with a field for each branch, of which
one is set. Enums and UUIDs are text. Times of a day stay numbers, because Spark 3.5 has no type for them.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

import datetime
import uuid
from collections.abc import Collection
from decimal import Context, Decimal
from typing import cast

import pyarrow as pa

from ...actors.schemas.avro_definition import NO_DEFAULT, AvroType, InvalidAvro, parse_avro
from ...protocol.plain_values import is_list, is_text_map
from .arrow_building import DECIMAL_DIGITS_MAX, LOCAL_TIMESTAMP, TIMESTAMP
from .columns import VALUE
from .payloads import no_columns

PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
MILLIS = ("timestamp-millis", "local-timestamp-millis")
LOGICAL = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): LOCAL_TIMESTAMP,
    ("long", "local-timestamp-micros"): LOCAL_TIMESTAMP,
    ("fixed", "uuid"): pa.string(),
}
"""Further logical types than these and decimal leave a value as it is."""
NUMBER_UNIONS: dict[frozenset[str], str] = {
    frozenset(("int", "long")): "long",
    frozenset(("float", "double")): "double",
}
EXACT = Context(prec=2 * DECIMAL_DIGITS_MAX)
EPOCH = datetime.datetime(1970, 1, 1)
UUID_BYTES = 16


def parsed(definition: bytes) -> AvroType:
    """The type that a definition has. Raises NotAllowedError."""
    try:
        return parse_avro(definition)
    except InvalidAvro as error:
        raise no_columns(f"it is no Avro: {error}") from None


def fields_of(avro: AvroType, names: Collection[str] | None = None) -> list[pa.Field]:
    """The columns of a type on top: the fields of a record, or `value`. With `names`, only these.

    Raises NotAllowedError.
    """
    found = {field.name: field.type for field in avro.fields} if avro.kind == "record" else {VALUE: avro}
    return [pa.field(name, arrow_type(one)) for name, one in found.items() if names is None or name in names]


def arrow_type(avro: AvroType, inside: tuple[str, ...] = ()) -> pa.DataType:
    """The type of a column. Raises NotAllowedError for a record that contains itself, which has none."""
    if avro.kind == "record":
        if avro.name in inside:
            raise no_columns(f"the record {avro.name} contains itself")
        inside = (*inside, avro.name)
        return pa.struct([pa.field(one.name, arrow_type(one.type, inside)) for one in avro.fields])
    if avro.kind == "array":
        return pa.list_(arrow_type(avro.items, inside))
    if avro.kind == "map":
        return pa.map_(pa.string(), arrow_type(avro.items, inside))
    if avro.kind == "union":
        one = single_of(avro)
        if one is not None:
            return PLAIN[one] if isinstance(one, str) else arrow_type(one, inside)
        kinds = [arrow_type(branch, inside) for branch in members_of(avro)]
        return pa.struct([pa.field(f"member{number}", kind) for number, kind in enumerate(kinds)])
    logical = logical_of(avro)
    if logical == "decimal":
        return pa.decimal128(*digits_of(avro))
    return LOGICAL.get((avro.kind, logical), PLAIN[avro.kind])


def members_of(union: AvroType) -> list[AvroType]:
    """The branches of a union that are not null."""
    return [branch for branch in union.branches if branch.kind != "null"]


def single_of(union: AvroType) -> AvroType | str | None:
    """What all values of a union are read as: a branch, or the name of a plain type; None if they differ."""
    members = members_of(union)
    if len(members) == 1:
        return members[0]
    if not members:
        return "null"
    if all(not logical_of(one) for one in members):
        return NUMBER_UNIONS.get(frozenset(one.kind for one in members))
    return None


def logical_of(avro: AvroType) -> str:
    """The logical type that counts; empty for none, and for one that does not go with its type, as Avro says."""
    logical = avro.attributes.get("logicalType")
    if logical == "decimal":
        precision, scale = avro.attributes.get("precision"), avro.attributes.get("scale", 0)
        fits = type(precision) is int and type(scale) is int and 0 <= scale <= precision <= DECIMAL_DIGITS_MAX
        return "decimal" if fits and precision and avro.kind in ("bytes", "fixed") else ""
    if logical == "uuid" and avro.kind == "fixed" and avro.size_bytes != UUID_BYTES:
        return ""
    return logical if isinstance(logical, str) and (avro.kind, logical) in LOGICAL else ""


def digits_of(avro: AvroType) -> tuple[int, int]:
    """How many digits a decimal has, and how many of them lie behind the point."""
    return cast(int, avro.attributes["precision"]), cast(int, avro.attributes.get("scale", 0))


def default_of(avro: AvroType, given: object) -> object:
    """A default as the Python value that an Arrow array takes. Raises NotAllowedError if it is none of its type."""
    try:
        return _default(avro, given)
    except (TypeError, ValueError, ArithmeticError, KeyError, AttributeError) as error:
        raise no_columns(f"the default {given!r:.60} is no {avro.full_name}: {error}") from error


def _default(avro: AvroType, given: object) -> object:
    logical = logical_of(avro)
    if avro.kind == "union":
        return _union_default(avro, given)
    if avro.kind == "record":
        if not is_text_map(given):
            raise TypeError("it is no object")
        values: dict[str, object] = {}
        for field in avro.fields:
            one = given.get(field.name, field.default)
            if one is NO_DEFAULT:
                raise KeyError(field.name)
            values[field.name] = _default(field.type, one)
        return values
    if avro.kind == "array":
        if not is_list(given):
            raise TypeError("it is no list")
        return [_default(avro.items, one) for one in given]
    if avro.kind == "map":
        if not is_text_map(given):
            raise TypeError("it is no object")
        return [(key, _default(avro.items, one)) for key, one in given.items()]
    if avro.kind in ("bytes", "fixed"):
        return _bytes_default(avro, logical, cast(str, given).encode("latin-1"))
    if avro.kind in ("int", "long"):
        if type(given) is not int:
            raise TypeError("it is no whole number")
        if logical in MILLIS:
            return EPOCH + datetime.timedelta(milliseconds=given)
        if logical.endswith("micros"):
            return EPOCH + datetime.timedelta(microseconds=given)
        return EPOCH.date() + datetime.timedelta(days=given) if logical == "date" else given
    if avro.kind in ("float", "double"):
        return float(cast(float, given))
    expected = {"null": type(None), "boolean": bool}.get(avro.kind, str)
    if not isinstance(given, expected):
        raise TypeError(f"it is no {avro.kind}")
    return given


def _bytes_default(avro: AvroType, logical: str, data: bytes) -> object:
    if logical == "decimal":
        return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-digits_of(avro)[1], EXACT)
    return str(uuid.UUID(bytes=data)) if logical == "uuid" else data


def _union_default(union: AvroType, given: object) -> object:
    """A default of the first branch that it fits: of the first one, as Avro says, or of another, as some write it."""
    members, single = members_of(union), single_of(union)
    for branch in union.branches:
        try:
            found = _default(branch, given)
        except (TypeError, ValueError, ArithmeticError, KeyError, AttributeError):
            continue
        if single is not None or branch.kind == "null":
            return found
        place = members.index(branch)
        return {f"member{number}": found if number == place else None for number in range(len(members))}
    raise TypeError("it fits no branch")
