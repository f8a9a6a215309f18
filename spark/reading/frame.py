"""`read_topic`: a topic as a Spark DataFrame. Here the parts meet: planning, readers, blocks, RayDP.

When `read_topic` returns, everything is read. The rows lie in Ray's object store, on the nodes that read them; the
store spills to disk when it is full. Brokers and bookies are no longer needed. So the pins of a read are removed then,
while the program already goes on, and actions on the DataFrame may be repeated at will.

The rows stay until one of these, whichever comes first:

- `release(frame)`: the rows of this frame go; frames derived from it can no longer be computed either,
- `magnetar.spark.stop()`: the session ends, and all that was read for it goes,
- the end of the driver process.

They do not go by themselves when `frame` is forgotten, because frames derived from it refer to them inside the JVM.
"""

# RayDP and pyarrow bring no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

import asyncio
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from ...bulk.access import ClusterAccess, cluster_access
from ...bulk.loop_thread import run_apart
from ...bulk.message_table import SCHEMA
from ...bulk.planner import PIN_TTL_S, PLAN_TIMEOUT_S, Planner
from ...bulk.read_plan import PointsInTopic, split
from ...protocol.errors import InvalidConfiguration
from ...runtime.environment import Environment
from .progress import ReadProgress
from .reader_pool import Block, ReaderPool

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RAYDP_MARK = "spark.javaagent"
"""A setting that RayDP gives to every session of its own."""


class _Application:
    """What this driver holds for one Spark application: its readers, and the blocks of the frames not yet released."""

    def __init__(self, pool: ReaderPool) -> None:
        self.pool = pool
        self.frames: dict[int, list[Block]] = {}


_applications: dict[tuple[str, str], _Application] = {}  # by Spark application and cluster
_numbers: "weakref.WeakKeyDictionary[DataFrame, tuple[_Application, int]]" = weakref.WeakKeyDictionary()
_frame_numbers = itertools.count()
_lock = threading.Lock()


def read_topic(
    spark: "SparkSession",
    topic: str,
    start: PointsInTopic = "earliest",
    end: PointsInTopic = "latest",
    *,
    is_read_compacted: bool = False,
    readers_per_node: int | None = None,
    progress: bool | None = None,
    plan_timeout_s: float = PLAN_TIMEOUT_S,
    pin_ttl_s: float = PIN_TTL_S,
    on_planned: Callable[[], None] | None = None,
) -> "DataFrame":
    """Read what a topic holds between two points into a DataFrame.

    All rows are read when this returns. They stay until `release`, `stop` or the end of this process. Reading moves no
    cursor.

    Args:
        spark: A session of `magnetar.spark.session`.
        topic: Any form of a persistent topic's name. A partitioned topic is read with all its partitions, in order
            within each. One partition is read by its own name (`…-partition-3`).
        start: `"earliest"`, `"latest"`, a message id or a time, both inclusive. A mapping gives one for each partition.
        end: The same, with a message id inclusive and a time exclusive. `"latest"` means the moment of the call.
        is_read_compacted: Read only the last message of each key of what is compacted, and everything after it.
        readers_per_node: Ray actors that read on each node. By default one per CPU, up to 8. The first call decides.
        progress: Show a bar. By default if standard error is a terminal.
        plan_timeout_s: Seconds to look for the topic's brokers while some of them fail over.
        pin_ttl_s: Seconds after which planned ledgers may be trimmed if this process crashes.
        on_planned: Called once the plan stands. What is published later is not read, and brokers are no longer needed.

    Returns:
        A frame with one row per message.

    Raises:
        NotAllowedError: If the topic is non-persistent, or holds encrypted or chunked messages.
        TopicNotFound: If the topic does not exist.
        InvalidTopicName: If `topic` is no topic name.
        InvalidConfiguration: If the bounds are impossible, or Spark does not run on Ray.
        ClusterError: If there is no cluster on this Ray.
        ServiceUnitNotReady: If the topic's owner cannot be asked in time.
        CoordinatorUnavailable: If the coordinator cannot be asked in time.
        NoSuchEntry: If an entry of the range is gone. No message is left out silently.
        EntryUnknown: If an entry cannot be read now.
        EntryCorrupt: If no copy of an entry is intact.
    """
    if not spark.conf.get(RAYDP_MARK, ""):
        raise InvalidConfiguration("this Spark does not run on Ray: use magnetar.spark.session() or raydp.init_spark()")
    env = Environment.real(threads_max=1)

    ending = AsyncExitStack()
    ending.callback(env.close)

    async def read() -> tuple[_Application, list[Block]]:
        access = await cluster_access()
        planner = Planner(env, access, topic, timeout_s=plan_timeout_s, pin_ttl_s=pin_ttl_s)
        application = await asyncio.to_thread(_application, spark, access, readers_per_node)
        await ending.enter_async_context(planner)
        splits = split(await planner.plan(start, end, compacted=is_read_compacted), len(application.pool.readers))
        if on_planned is not None:
            await asyncio.to_thread(on_planned)
        with ReadProgress(topic, sum(part.entries for part in splits), progress) as shown:
            return application, await application.pool.read(env, splits, planner.link.bookies, shown)

    # The rows are complete when `read` ends. Removing pins may wait for a broker that hangs; the program need not.
    application, blocks = run_apart(read(), ending.aclose)
    frame = to_dataframe(spark, blocks)
    with _lock:
        number = next(_frame_numbers)
        application.frames[number] = blocks
        _numbers[frame] = application, number
    return frame


def release(frame: "DataFrame") -> None:
    """Free the rows of a frame that `read_topic` returned.

    A second call does nothing.

    Args:
        frame: The frame.

    Raises:
        InvalidConfiguration: If `read_topic` did not return the frame.
    """
    with _lock:
        found = _numbers.get(frame)
        if found is None:
            raise InvalidConfiguration("this DataFrame was not made by magnetar.spark.read_topic")
        application, number = found
        application.frames.pop(number, None)


def release_all() -> None:
    """Forget all rows of this process and end its readers."""
    with _lock:
        applications = list(_applications.values())
        _applications.clear()
    for application in applications:
        application.frames.clear()
        application.pool.close()


def to_dataframe(spark: "SparkSession", blocks: Sequence[Block]) -> "DataFrame":
    """Blocks as a DataFrame, one of Spark's partitions each."""
    from raydp.spark import ray_dataset_to_spark_dataframe

    if not blocks:
        from pyspark.sql.pandas.types import from_arrow_schema

        return spark.createDataFrame(spark.sparkContext.emptyRDD(), from_arrow_schema(SCHEMA))
    references: list[Any] = [block.ref for block in blocks]
    return ray_dataset_to_spark_dataframe(spark, SCHEMA, references)


def _application(spark: "SparkSession", access: ClusterAccess, readers_per_node: int | None) -> _Application:
    key = spark.sparkContext.applicationId, access.cluster_id
    with _lock:
        found = _applications.get(key)
        if found is None:
            found = _applications[key] = _Application(ReaderPool.start(access, readers_per_node))
        elif not found.pool.readers:
            found.pool = ReaderPool.start(access, readers_per_node)  # all of them died
        return found
