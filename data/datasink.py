"""`TopicDatasink`: the rows of a Ray dataset as messages of a topic. What its tasks do is in `bulk/writing`."""

# Ray and pyarrow bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa
from ray.data.block import BlockAccessor
from ray.data.datasource import Datasink, WriteResult

from ..bulk.writing.columns import EVENT_TIME, KEY, ORDERING_KEY, PROPERTIES, TOPIC, TYPES, VALUE, check_columns
from ..bulk.writing.outcome import TopicWrite, create_topic, outcome_of
from ..bulk.writing.publisher import WritePlan
from ..bulk.writing.task_writer import TaskAttempt, Written, write_task
from ..bulk.writing.typed_values import KINDS, RECORD_NAME, record_of, schema_info
from ..client.core.configuration import CompressionType
from ..client.core.discovery import find_service_url
from ..protocol.errors import InvalidConfiguration, NotAllowedError
from ..protocol.topics import TopicName

TEXT_MAP = pa.map_(pa.string(), pa.string())


class TopicDatasink(Datasink[Written]):
    """Publishes each row of a dataset as a message: `dataset.write_datasink(TopicDatasink("orders"))`.

    All messages are stored when `write_datasink` returns. `written` then says how many. Without `producer_name` a row
    is stored at least once: Ray repeats a task that failed. With a name, and with deduplication on the topic, what a
    repeated task has stored already is not stored again.

    With a schema, each task registers that of its first rows. Give a column the same type in all rows: a task whose
    rows have another schema fails if the topic does not allow it beside the others.
    """

    def __init__(
        self,
        topic: str | None,
        producer_name: str | None = None,
        *,
        compression_type: CompressionType = CompressionType.NONE,
        schema: str | None = None,
        record_name: str = RECORD_NAME,
        service_url: str | None = None,
    ) -> None:
        """Make a sink, for one dataset.

        The rows have the column `value` (binary or string; null is a null value). `__key` and `__orderingKey` (string),
        `__eventTime` (timestamp, or milliseconds) and `__messageProperties` (map of strings) may be there, too. Other
        columns of `read_topic` are left out.

        Args:
            topic: Any form of a persistent topic's name. The broker creates the topic if it does not exist. None: each
                row names its topic in the column `__topic`.
            producer_name: What this result is called. Another result needs another name.
            compression_type: How batches are compressed.
            schema: `avro` or `json`: columns that do not begin with `__` are fields of a record. Its schema is
                registered.
            record_name: The name of that record in the schema.
            service_url: `pulsar://host:port` of brokers. None finds the cluster through Ray.

        Raises:
            InvalidTopicName: If `topic` is not a topic name.
            NotAllowedError: If the topic is non-persistent.
            InvalidConfiguration: If the schema is none of these, or has no topic.
        """
        if topic is not None and not TopicName.parse(topic).persistent:
            raise NotAllowedError(f"{topic} stores no messages: only persistent topics can be written in bulk")
        if schema is not None and (schema not in KINDS or topic is None):
            raise InvalidConfiguration(
                f"schema is {schema!r}, and must be {' or '.join(KINDS)} with a topic, or None for payloads"
            )
        self.written = TopicWrite(0, 0, 0)
        """What the write has stored, when it has ended."""
        self._topic = topic
        self._kind = schema
        self._record_name = record_name
        self._service_url = service_url
        full = None if topic is None else TopicName.parse(topic).full
        self._plan = WritePlan("", full, producer_name, CompressionType(compression_type))

    def get_name(self) -> str:
        return "Topic"

    def on_write_start(self, schema: Any = None) -> None:
        # `schema` says nothing about the rows: Ray Data joins operators, and it is that of what the first of them gets.
        url = find_service_url() if self._service_url is None else self._service_url
        if self._topic is not None and self._kind is None:
            create_topic(url, self._topic, None)
        self._plan = replace(self._plan, service_url=url)

    def write(self, blocks: Iterable[Any], ctx: Any) -> Written:
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        rows = (table for table in tables if table.num_rows)  # a block without rows may have no columns either
        plan, record = self._plan, None
        first = next(rows, None)
        if self._kind is not None and first is not None:
            # Each message says with which schema it was encoded. So each task may take the one of its own rows.
            record = _record(first.schema)
            plan = replace(plan, schema=schema_info(KINDS[self._kind], record_of(record), self._record_name))
        found = rows if first is None else chain([first], rows)
        return write_task(plan, TaskAttempt(ctx.task_idx), self._batches(found, record))

    def on_write_complete(self, write_result: WriteResult[Written]) -> None:
        self.written = outcome_of(self._topic or "a topic", self._plan, write_result.write_returns)

    def _batches(self, tables: Iterable[pa.Table], record: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """The columns that make messages, in the types that `bulk/writing` takes. `record`: the fields of all tables.

        Raises InvalidConfiguration for columns that make no messages.
        """
        for table in tables:
            nothing = [field.name for field in table.schema if pa.types.is_null(field.type) and field.name != VALUE]
            table = table.drop_columns([name for name in nothing if record is None or name not in record.names])
            check_columns({field.name: _type_name(field.type) for field in table.schema}, typed=record is not None)
            names = [one for one in table.column_names if one in TYPES and (one.startswith("__") or record is None)]
            wanted = [one for one in names if one != TOPIC or self._topic is None]
            fields = [pa.field(one, _written_type(one, table.schema.field(one).type)) for one in wanted]
            if record is not None:
                table = _with_fields(table, record)
                fields += record
            try:
                written = table.select([one.name for one in fields]).cast(pa.schema(fields))
            except pa.ArrowException as error:
                raise InvalidConfiguration(
                    f"some rows have other types than the first ones, {error}: cast them"
                ) from error
            yield from written.combine_chunks().to_batches()


def _record(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if not field.name.startswith("__")])


def _with_fields(table: pa.Table, record: pa.Schema) -> pa.Table:
    """The table with what it lacks of the record, as nulls. Raises InvalidConfiguration if it has more."""
    found = _record(table.schema)
    more = [name for name in found.names if name not in record.names]
    if more:
        raise InvalidConfiguration(
            f"some rows have the columns {', '.join(more)}, which the first ones have not: give all rows the same"
        )
    for field in record:
        if field.name not in found.names:
            table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    return table


def _type_name(kind: pa.DataType) -> str:
    """A type as `check_columns` names it: as Spark does."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_null(kind):
        return "binary"
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_int64(kind):
        return "bigint"
    return "map<string,string>" if kind == TEXT_MAP else str(kind)


def _written_type(name: str, kind: pa.DataType) -> pa.DataType:
    if name in (VALUE, TOPIC, KEY, ORDERING_KEY):
        return pa.string() if _type_name(kind) == "string" else pa.binary()
    if name == EVENT_TIME and pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    return TEXT_MAP if name == PROPERTIES else kind
