"""A streaming write of the data source: the rows of each micro-batch, task by task.

Spark runs a micro-batch again that it does not know to be done. With a name each row is stored once all the same, by
the number of the micro-batch, of the task and of the row (`writing/numbering.py`). Spark keeps the number of the
micro-batch, and with it the offsets, in its checkpoint. The name is the id of the query, which is there, too.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportMissingImports=false
# pyarrow brings no types. PySpark's data sources are not in this environment's PySpark 3.5.

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from ...bulk.writing.task_writer import TaskAttempt, write_task
from ...client.schemas.schema import SchemaInfo
from ...protocol.errors import InvalidConfiguration
from .batch_writer import TaskWritten, checked, report, report_failure, task_context
from .write_options import write_options

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_PROPERTY, QUERY_PROPERTY = "streaming.sql.batchId", "sql.streaming.queryId"
"""What Spark calls them in the context of a task."""
_judged: set[str] = set()
"""Topics of which this process has asked whether they deduplicate: a warning comes once, and not with each batch."""


class StreamWriter(DataSourceStreamArrowWriter):
    """See the module."""

    def __init__(self, options: Mapping[str, str], schema: SchemaInfo | None) -> None:
        self._options = dict(options)
        self._schema = schema
        self._plan = write_options(options, query="the query")

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskWritten:
        """Publish the rows of a task. Raises what `write_task` raises, and InvalidConfiguration for other rows."""
        context = task_context()
        batch, query = (context.getLocalProperty(name) for name in (BATCH_PROPERTY, QUERY_PROPERTY))
        if batch is None or query is None:
            raise InvalidConfiguration("Spark does not say which micro-batch this is: PySpark 4.2 does")
        attempt = TaskAttempt(context.partitionId(), int(batch))
        plan = replace(write_options(self._options, query), schema=self._schema)
        return TaskWritten(checked(write_task(plan, attempt, iterator, _judged)))

    def commit(self, messages: Sequence[TaskWritten | None], batchId: int) -> None:
        """All rows of a micro-batch are stored."""
        report(self._plan, messages, f"micro-batch {batchId}")

    def abort(self, messages: Sequence[TaskWritten | None], batchId: int) -> None:
        """Tasks of a micro-batch have failed as often as Spark allows."""
        report_failure(messages, f"micro-batch {batchId}")
