"""A batch read of the data source, as Spark's driver plans it.

Spark asks for a plan for each action. The plan pins the ledgers and says at once where the topics end. So all tasks of
an action, and those that are repeated, read the same. Tasks prolong the pins; they expire after the last one.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportMissingImports=false
# pyarrow brings no types. PySpark's data sources are not in this environment's PySpark 3.5.

import datetime
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ...bulk.access import ClusterAccess, access_over_http, locate_over_http
from ...bulk.arrow_decoding import TimeWindow
from ...bulk.cluster_link import Pin
from ...bulk.loop_thread import run_apart
from ...bulk.planner import PLAN_TIMEOUT_S, Planner
from ...bulk.read_plan import PartitionPlan, PointsInTopic, split_by_size
from ...bulk.task_reading import TaskRead, read_split
from ...bulk.typed.choice import RowShape
from ...runtime.environment import Environment
from .columns import ReadColumns
from .options import Offsets, ReadOptions
from .task_options import tasks_of
from .time_filters import narrowed
from .topics import topics_of

if TYPE_CHECKING:
    import pyarrow as pa


class SplitPartition(InputPartition):
    """One task of a read."""

    def __init__(self, task: TaskRead) -> None:
        super().__init__(task)


class BatchReader(DataSourceReader):
    """See the module."""

    def __init__(self, options: ReadOptions, columns: ReadColumns) -> None:
        self._options = options
        self._columns = columns
        self._window = TimeWindow()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what filters say of `__publishTime`: ledgers outside of it are not read. Spark applies all of them."""
        for one in filters:
            limit = getattr(one, "value", None)
            if isinstance(limit, datetime.datetime) and getattr(one, "attribute", ()) == ("__publishTime",):
                self._window = narrowed(self._window, type(one).__name__, limit)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Plan the read: ask the owners of the topics, and cut what they have into splits."""
        options, env = self._options, Environment.real(threads_max=1)
        try:
            access, plans, pins, shapes = run_apart(_plan(env, options, self._columns, self._window))
        finally:
            env.close()
        splits = split_by_size(plans, options.split_bytes, options.partitions_min)
        return [SplitPartition(task) for task in tasks_of(options, access, splits, pins, shapes)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of a split. Spark makes one without a value for a read that has none."""
        if isinstance(partition, SplitPartition):
            yield from read_split(partition.value)


async def _plan(
    env: Environment, options: ReadOptions, columns: ReadColumns, window: TimeWindow
) -> tuple[ClusterAccess, list[PartitionPlan], tuple[Pin, ...], dict[str, RowShape]]:
    access, locate = await access_over_http(options.admin_url), locate_over_http(options.admin_url)
    plans: list[PartitionPlan] = []
    pins: list[Pin] = []
    shapes: dict[str, RowShape] = {}
    for topic in await topics_of(options):
        ttl_s = options.pin_ttl_s
        async with Planner(env, access, topic, timeout_s=PLAN_TIMEOUT_S, pin_ttl_s=ttl_s, locate=locate) as planner:
            start, end = _of_topic(options.starting, topic, "earliest"), _of_topic(options.ending, topic, "latest")
            planned = await planner.plan(start, end, compacted=options.compacted, window=window)
            # Now, because a version that is added later has no message that is planned.
            shape = columns.shape([] if columns.reader is None else await planner.schemas())
            shapes |= {plan.topic: shape for plan in planned}
            plans += planned
            pins += planner.detach()
    return access, plans, tuple(pins), shapes


def _of_topic(given: Offsets, topic: str, otherwise: str) -> PointsInTopic:
    """The bound of a topic: for one with partitions, that of each which is named."""
    if not isinstance(given, dict):
        return given
    parts = {name: bound for name, bound in given.items() if name == topic or name.startswith(f"{topic}-partition-")}
    if topic in parts:
        return parts[topic]
    return {int(name.rpartition("-")[2]): bound for name, bound in parts.items()} or otherwise
