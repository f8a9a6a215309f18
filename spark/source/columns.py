"""Which columns the frame of a read has: those of the topics' schemas, and what of it the query names.

Spark asks for the schema of a frame before it asks for a reader, in another process. A producer may add a version of
the topic's schema in between. So the reader looks for the newest version that has the columns which Spark was told.

Several topics are one frame only if their schemas have the same columns.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ...actors.members.contracts_broker import SchemaRow
from ...actors.schemas.definition import SchemaDefinition
from ...bulk.access import access_over_http, locate_over_http
from ...bulk.cluster_link import ClusterLink
from ...bulk.loop_thread import run_apart
from ...bulk.planner import PLAN_TIMEOUT_S
from ...bulk.typed.choice import AUTO, RowShape, chosen, definition_of, row_shape
from ...protocol.errors import InvalidConfiguration, MagnetarError
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from .options import ReadOptions
from .topics import topics_of

OTHERWISE = "read them one by one, or with the option schema=bytes"


class ReadColumns(NamedTuple):
    """The columns of a frame, and the schema that they have; None for payloads as they are."""

    columns: tuple[str, ...]
    reader: SchemaDefinition | None = None

    def shape(self, rows: Sequence[SchemaRow]) -> RowShape:
        """The rows of a topic whose schema has these versions."""
        return row_shape(self.columns, self.reader, rows)


def frame_schema(options: ReadOptions) -> StructType:
    """The columns of a frame that the user has not given a schema. Raises what `columns_of` raises."""
    if options.schema is None:
        return from_arrow_schema(row_shape(options.columns).schema)
    shapes: dict[str, RowShape] = {}
    for topic, rows in _versions(options).items():
        shapes[topic] = row_shape(options.columns, chosen(topic, options.schema, rows), rows)
        first = next(iter(shapes))
        if shapes[topic].schema != shapes[first].schema:
            raise InvalidConfiguration(f"{topic} has other columns than {first}: {OTHERWISE}")
    shape = next(iter(shapes.values())) if shapes else row_shape(options.columns)
    return from_arrow_schema(shape.schema)


def columns_of(options: ReadOptions, wanted: StructType) -> ReadColumns:
    """How the columns are read that Spark was told, or that the user wants.

    Raises InvalidConfiguration if one is unknown, or has another type, NotAllowedError for a schema without columns,
    and what asking the cluster raises.
    """
    names = tuple(wanted.fieldNames())
    if options.schema is None:
        _check(row_shape(names), wanted)
        return ReadColumns(names)
    readers = [_matching(topic, options, wanted, rows) for topic, rows in _versions(options).items()]
    return ReadColumns(names, readers[0] if readers else None)


def _matching(
    topic: str, options: ReadOptions, wanted: StructType, rows: Sequence[SchemaRow]
) -> SchemaDefinition | None:
    """The newest schema of a topic, or the one that is named, if it has the columns. Raises the first failure."""
    failure: MagnetarError | None = None
    for reader in _candidates(topic, options, rows):
        try:
            _check(row_shape(wanted.fieldNames(), reader, rows), wanted)
        except MagnetarError as error:
            failure = failure or error
        else:
            return reader
    assert failure is not None, "there is one candidate at least"
    raise failure


def _candidates(topic: str, options: ReadOptions, rows: Sequence[SchemaRow]) -> Iterable[SchemaDefinition | None]:
    yield chosen(topic, options.schema, rows)
    if options.schema == AUTO:
        yield from map(definition_of, reversed(rows[:-1]))


def _check(shape: RowShape, wanted: StructType) -> None:
    """Raise InvalidConfiguration unless the columns have the types that are wanted."""
    for field, given in zip(from_arrow_schema(shape.schema).fields, wanted.fields, strict=True):
        if field.dataType != given.dataType:
            kinds = f"{field.dataType.simpleString()}, not {given.dataType.simpleString()}"
            raise InvalidConfiguration(f"the column {field.name} has the type {kinds}")


def _versions(options: ReadOptions) -> Mapping[str, list[SchemaRow]]:
    """The versions of the schemas of all topics of a read."""
    env = Environment.real(threads_max=1)
    try:
        return run_apart(_ask(env, options))
    finally:
        env.close()


async def _ask(env: Environment, options: ReadOptions) -> Mapping[str, list[SchemaRow]]:
    access = await access_over_http(options.admin_url)
    link = ClusterLink(env, access, locate_over_http(options.admin_url))
    try:
        return {topic: await versions_of(link, topic) for topic in await topics_of(options)}
    finally:
        await link.close()


async def versions_of(link: ClusterLink, topic: str) -> list[SchemaRow]:
    """The versions of a topic's schema. Raises what kept the brokers from answering for `PLAN_TIMEOUT_S`."""
    base = TopicName.parse(topic).without_partition().full
    return await link.patiently(lambda: link.schemas(base), PLAN_TIMEOUT_S, f"the look for the schema of {base}")
