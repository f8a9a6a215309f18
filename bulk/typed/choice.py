"""Which columns a bulk read gives: payloads as they are, or the columns of a schema of the topic.

| `schema` | what the rows have |
| --- | --- |
| `None` or `"bytes"` | the payload, in the column `value` |
| `"auto"` | the columns of the topic's newest schema; the payload if the topic has no schema |
| a number | the columns of the schema's version of that number |

The planner fetches all versions after it knows where the read ends. A producer registers a version before it publishes
with it. So no task meets a version that is missing, unless somebody has deleted it.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from ...actors.members.contracts_broker import SchemaRow
from ...actors.schemas.definition import SchemaDefinition
from ...protocol.errors import InvalidConfiguration
from ...protocol.schema_types import SchemaType
from .columns import COLUMNS, METADATA_COLUMNS, SCHEMA, VALUE
from .decoders import column_names, typed_fields
from .payloads import OTHERWISE, no_columns

BYTES, AUTO = "bytes", "auto"
SchemaChoice = str | int | None
"""`None` or `"bytes"`, `"auto"`, or the number of a version."""


class TypedPayloads(NamedTuple):
    """How payloads become columns: the schema of the columns, and those that payloads were written with."""

    reader: SchemaDefinition
    versions: Mapping[int, SchemaDefinition]


class RowShape(NamedTuple):
    """The columns of a read, in their order. Pickled with each task."""

    columns: tuple[str, ...] = COLUMNS
    typed: TypedPayloads | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types. Raises NotAllowedError."""
        fields = {field.name: field for field in SCHEMA}
        if self.typed is not None:
            del fields[VALUE]
            fields |= {field.name: field for field in typed_fields(self.typed.reader, self.columns)}
        return pa.schema([fields[name] for name in self.columns])

    @property
    def typed_names(self) -> list[str]:
        """Those of the columns that payloads are decoded for."""
        return [] if self.typed is None else [name for name in self.columns if name not in METADATA_COLUMNS]


PAYLOADS = RowShape()
"""All columns, and payloads as they are."""


def parse_choice(given: object) -> SchemaChoice:
    """What a user has passed as `schema`; None for bytes. Raises InvalidConfiguration."""
    if given is None or given == BYTES:
        return None
    if given == AUTO or (type(given) is int and given >= 0):
        return given  # pyright: ignore[reportReturnType] (it is one of both)
    raise InvalidConfiguration(f'schema must be "auto", "bytes" or the number of a version, not {given!r:.100}')


def chosen(topic: str, choice: SchemaChoice, rows: Sequence[SchemaRow]) -> SchemaDefinition | None:
    """The schema that the columns of a topic have; None for bytes. Raises InvalidConfiguration."""
    if choice is None:
        return None
    if choice == AUTO:
        newest = definition_of(rows[-1]) if rows else None
        return newest if newest is not None and newest.type is not SchemaType.NONE else None
    for row in rows:
        if row.version == choice:
            return definition_of(row)
    there = f"versions {rows[0].version} to {rows[-1].version}" if rows else "no schema"
    raise InvalidConfiguration(f"{topic} has no version {choice} of its schema: it has {there}")


def definition_of(row: SchemaRow) -> SchemaDefinition:
    """The schema of a version. Raises NotAllowedError for a type that this release does not know."""
    try:
        kind = SchemaType(row.type)
    except ValueError:
        raise no_columns(f"this release does not know schemas of type {row.type}") from None
    return SchemaDefinition(kind, row.data, row.properties)


def row_shape(
    columns: Sequence[str] | None, reader: SchemaDefinition | None = None, rows: Sequence[SchemaRow] = ()
) -> RowShape:
    """The shape of a read's rows: of `columns`, or of all. `rows` are the versions of the topic's schema.

    Raises InvalidConfiguration for a column that there is not, NotAllowedError for a schema without columns.
    """
    names = [VALUE] if reader is None else column_names(reader)
    _check_names(names)
    known = (*names, *METADATA_COLUMNS)
    wanted = known if columns is None else tuple(columns)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidConfiguration(f"there is no column {unknown[0]!r}: choose from {', '.join(known)}")
    if len({*wanted}) < len(wanted) or not wanted:
        raise InvalidConfiguration(f"the columns {list(wanted)} are none, or not different")
    if reader is None:
        return RowShape(wanted)
    typed = TypedPayloads(reader, {row.version: definition_of(row) for row in rows})
    shape = RowShape(wanted, typed)
    assert shape.schema.names == list(wanted)  # and a schema without columns is refused here
    return shape


def _check_names(names: Sequence[str]) -> None:
    taken = [name for name in names if name in METADATA_COLUMNS]
    if taken:
        raise InvalidConfiguration(
            f"the topic's schema has a field {taken[0]!r}, which is the name of another column: {OTHERWISE}"
        )
