"""`write_topic`: the rows of a DataFrame as messages of a topic. What its tasks do is in `bulk/writing`."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false
# pyarrow brings no types.

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from ..bulk.writing.columns import TOPIC, TYPES, VALUE, check_columns
from ..bulk.writing.outcome import TopicWrite, create_topic, outcome_of
from ..bulk.writing.publisher import WritePlan
from ..bulk.writing.task_writer import TaskAttempt, Written, write_task
from ..bulk.writing.typed_values import KINDS, RECORD_NAME, arrow_schema, record_of, schema_info
from ..client.core.configuration import CompressionType
from ..client.core.discovery import find_service_url
from ..client.schemas.schema import SchemaInfo
from ..protocol.errors import InvalidConfiguration, NotAllowedError
from ..protocol.topics import TopicName

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 8
OUTCOME = "rows long, known long, size_bytes long, unjudged string, foreign string"
"""`Written`, as Spark carries it."""


def write_topic(
    frame: "DataFrame",
    topic: str,
    producer_name: str | None = None,
    *,
    order_by: Sequence[str] = (),
    num_partitions: int = PARTITIONS,
    compression_type: CompressionType = CompressionType.NONE,
    schema: str | None = None,
    record_name: str = RECORD_NAME,
    service_url: str | None = None,
) -> TopicWrite:
    """Publish each row of a DataFrame as a message. All messages are stored when this returns.

    Without `producer_name` a row is stored at least once: Spark repeats a task that failed. With a name, and with
    deduplication on the topic, it is stored once, also when this is called again with the same rows.

    Args:
        frame: Rows with the column `value` (binary or string; null is a null value). `__key` and `__orderingKey`
            (string), `__eventTime` (timestamp) and `__messageProperties` (map of strings) may be there, too. Other
            columns of `read_topic` are left out.
        topic: Any form of a persistent topic's name. The broker creates the topic if it does not exist.
        producer_name: What this result is called. Another result needs another name.
        order_by: Columns that tell rows apart. Rows are put into `num_partitions` partitions by them, and sorted. Pass
            them with `producer_name`, unless the frame has the same rows in the same order each time it is computed.
        num_partitions: Number of Spark tasks that write with `order_by`. The same number in each call.
        compression_type: How batches are compressed.
        schema: `avro` or `json`: columns that do not begin with `__` are fields of a record. Its schema is registered.
        record_name: The name of that record in the schema.
        service_url: `pulsar://host:port` of brokers. None finds the cluster through Ray.

    Returns:
        How many rows and bytes were stored, and how many rows the topic had.

    Raises:
        InvalidConfiguration: If the columns cannot be published, or other rows were written under this name.
        IncompatibleSchema: If the schema of the rows does not fit the topic's.
        NotAllowedError: If the topic is non-persistent. Also if a name was given and the topic does not deduplicate:
            then all rows are stored, some perhaps several times.
        InvalidTopicName: If `topic` is not a topic name.
        ConnectError: If no broker can be reached.
        MagnetarError: What the broker answers, as the class of its error.
        PySparkException: If a task has failed as often as Spark allows. Call this again with the same name.
    """
    if not TopicName.parse(topic).persistent:
        raise NotAllowedError(f"{topic} stores no messages: only persistent topics can be written in bulk")
    rows = _rows(frame, order_by, num_partitions, typed=schema is not None)
    info = None if schema is None else _info(rows, schema, record_name)
    url = find_service_url() if service_url is None else service_url
    create_topic(url, topic, info)
    full = TopicName.parse(topic).full
    plan = WritePlan(url, full, producer_name, CompressionType(compression_type), schema=info)
    outcomes = rows.mapInArrow(partial(_in_worker, plan), OUTCOME).collect()
    written = [Written(*one) for one in cast("list[tuple[int, int, int, str | None, str | None]]", outcomes)]
    return outcome_of(topic, plan, written)


def _info(rows: "DataFrame", schema: str, name: str) -> SchemaInfo:
    """The schema of the records that rows are. Raises InvalidConfiguration."""
    if schema not in KINDS:
        raise InvalidConfiguration(f"schema must be {' or '.join(KINDS)}, or None for payloads, not {schema!r}")
    return schema_info(KINDS[schema], record_of(arrow_schema(rows.schema)), name)


def _rows(frame: "DataFrame", order_by: Sequence[str], num_partitions: int, *, typed: bool) -> "DataFrame":
    """The columns of the frame that make messages, in the order that is asked for. Raises InvalidConfiguration."""
    found = dict(frame.dtypes)
    check_columns(found, order_by, typed=typed)
    missing = [name for name in order_by if name not in found]
    if missing:
        raise InvalidConfiguration(f"order_by names the column `{missing[0]}`, which the frame does not have")
    if num_partitions < 1:
        raise InvalidConfiguration(f"num_partitions is {num_partitions}, and must be 1 or more")
    if order_by:
        frame = frame.repartition(num_partitions, *order_by).sortWithinPartitions(*order_by)
    of_values = [name for name in found if not name.startswith("__")] if typed else [VALUE]
    of_messages = [name for name in TYPES if name in found and name not in (TOPIC, VALUE)]
    return frame.select(*(f"`{name}`" for name in (*of_values, *of_messages)))


def _in_worker(plan: WritePlan, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """What Spark calls in its workers, once for each partition of the frame: yields one row, of `OUTCOME`."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    written = write_task(plan, TaskAttempt(context.partitionId()), batches)
    kinds = (pa.int64(), pa.int64(), pa.int64(), pa.string(), pa.string())
    columns = [pa.array([value], kind) for value, kind in zip(written, kinds, strict=True)]
    yield pa.RecordBatch.from_arrays(columns, names=list(Written._fields))
