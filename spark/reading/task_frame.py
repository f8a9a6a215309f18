"""Planned splits as a DataFrame: a Spark task for each, which reads it from the bookies when an action needs its rows.

The tasks run in Spark's Python workers and hand Arrow batches to the JVM. So nothing waits in a store, and a topic may
be larger than all memory together.
"""

# pyarrow brings no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...bulk.task_reading import TaskRead, read_split

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.broadcast import Broadcast
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def frame_of(spark: "SparkSession", tasks: Sequence[TaskRead], schema: "StructType") -> "DataFrame":
    """The rows of these splits, in their order, each of Spark's partitions one split. `schema` are their columns."""
    numbers = spark.range(0, len(tasks), 1, max(len(tasks), 1))
    shared = spark.sparkContext.broadcast(list(tasks))
    return numbers.mapInArrow(partial(_read, shared), schema)


def _read(tasks: "Broadcast[list[TaskRead]]", numbers: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Runs in a Python worker."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read_split(tasks.value[number])
