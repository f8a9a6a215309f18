"""A streaming read of the data source, as Spark's driver plans it, micro-batch by micro-batch.

Spark keeps the offsets in its checkpoint, so a query that comes back reads again exactly what its last micro-batch had.
New partitions, and new topics that match the pattern, join with the next micro-batch, from their beginning.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportMissingImports=false
# pyarrow brings no types. PySpark's data sources are not in this environment's PySpark 3.5.

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from ...bulk.loop_thread import LoopThread
from ...bulk.task_reading import read_split
from .batch_reader import SplitPartition
from .columns import ReadColumns
from .offsets import Offset, Reached
from .options import ReadOptions
from .query import Query

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Only the driver's object has a query: executors get one that reads."""

    def __init__(self, options: ReadOptions, columns: ReadColumns) -> None:
        self._options = options
        self._columns = columns
        self._running: tuple[LoopThread, Query] | None = None
        self._target: dict[str, Reached] | None = None
        """Where a query with the trigger `availableNow` ends."""

    def __getstate__(self) -> dict[str, object]:
        return {"_options": self._options, "_columns": self._columns, "_running": None, "_target": None}

    def _query(self) -> tuple[LoopThread, Query]:
        if self._running is None:
            thread, query = LoopThread("magnetar-query"), Query(self._options)
            thread.run(query.open())
            self._running = thread, query
        return self._running

    def initialOffset(self) -> dict[str, str]:
        """Where a query without a checkpoint begins."""
        thread, query = self._query()
        return thread.run(query.first())

    def getDefaultReadLimit(self) -> ReadLimit:
        """What `maxBytesPerTrigger` and `maxMessagesPerTrigger` say."""
        size_bytes, messages = self._options.trigger_bytes, self._options.trigger_messages
        if size_bytes is not None:  # Spark knows one limit only. The query keeps to both.
            return ReadMaxBytes(size_bytes)
        return ReadAllAvailable() if messages is None else ReadMaxRows(messages)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> dict[str, str]:
        """How far the next micro-batch reads."""
        thread, query = self._query()
        # What is before `start` is done. Spark does not commit the last micro-batch of a query that ends.
        thread.run(query.commit(start))
        ends = thread.run(query.ends()) if self._target is None else self._target
        return thread.run(query.following(start, ends))

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what there is now, and end."""
        thread, query = self._query()
        self._target = thread.run(query.ends())

    def reportLatestOffset(self) -> dict[str, str]:
        """Where the topics end, for the progress of the query."""
        thread, query = self._query()
        return {topic: str(end) for topic, end in thread.run(query.ends()).items()}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of a micro-batch."""
        thread, query = self._query()
        return [SplitPartition(task) for task in thread.run(query.tasks(start, end, self._columns))]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of a split."""
        yield from read_split(partition.value)

    def commit(self, end: Offset) -> None:
        """A micro-batch is done."""
        thread, query = self._query()
        thread.run(query.commit(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._running is not None:
            (thread, query), self._running = self._running, None
            thread.run(query.close())
            thread.close()
