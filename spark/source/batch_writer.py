"""A batch write of the data source: each task publishes its rows, and the driver reports what was stored.

Nothing can be undone in a topic. So a write that fails leaves what its tasks have stored.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportMissingImports=false
# pyarrow brings no types. PySpark's data sources are not in this environment's PySpark 3.5.

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ...bulk.writing.publisher import WritePlan
from ...bulk.writing.task_writer import TaskAttempt, Written, write_task
from ...protocol.errors import InvalidConfiguration

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)


class TaskWritten(WriterCommitMessage):
    """What became of the rows of one task."""

    def __init__(self, written: Written) -> None:
        self.written = written


class BatchWriter(DataSourceArrowWriter):
    """See the module."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskWritten:
        """Publish the rows of a task. Raises what `write_task` raises, and InvalidConfiguration for other rows."""
        return TaskWritten(checked(write_task(self._plan, TaskAttempt(task_context().partitionId()), iterator)))

    def commit(self, messages: Sequence[TaskWritten | None]) -> None:
        """All rows are stored."""
        report(self._plan, messages, "a write")

    def abort(self, messages: Sequence[TaskWritten | None]) -> None:
        """Tasks have failed as often as Spark allows."""
        report_failure(messages, "a write")


def task_context() -> TaskContext:
    """That of the task that runs here."""
    context = TaskContext.get()
    if context is None:
        raise InvalidConfiguration("rows are written by tasks of Spark, and this is none")
    return context


def checked(written: Written) -> Written:
    """Raises InvalidConfiguration if the topic has other rows of the task."""
    if written.foreign is not None:
        raise InvalidConfiguration(
            f"{written.foreign}. Other rows were written under this name, or Spark gave the rows in another order. "
            "Choose another producerName; and with a shuffle, give orderBy with columns that tell rows apart"
        )
    return written


def report(plan: WritePlan, messages: Sequence[TaskWritten | None], what: str) -> Written:
    """Log what was stored, and warn if it may be stored twice."""
    outcomes = [message.written for message in messages if message is not None]
    found = Written(
        sum(one.rows for one in outcomes),
        sum(one.known for one in outcomes),
        sum(one.size_bytes for one in outcomes),
        next((one.unjudged for one in outcomes if one.unjudged is not None), None),
    )
    where = plan.topic or "the topics of its rows"
    logger.info(
        "%s: %d rows of %d bytes are stored now in %s, and %d were before",
        *(what, found.rows, found.size_bytes, where, found.known),
    )
    if found.unjudged is not None:
        logger.warning(
            "%s: deduplication is off for %s, so a repetition stores rows again: set the policy of the namespace",
            *(what, where),
        )
    return found


def report_failure(messages: Sequence[TaskWritten | None], what: str) -> None:
    """Log what stays in topics of a write that has failed."""
    rows = sum(message.written.rows for message in messages if message is not None)
    logger.warning("%s has failed. At least %d of its rows are stored, and stay", what, rows)
