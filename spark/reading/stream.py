"""`stream`: a topic in micro-batches, for a Spark that has no streaming sources in Python, such as 3.5.

A thread of this process plans micro-batch after micro-batch, and calls `foreach_batch` with a lazy frame of each. A
query plans micro-batch N, notes it, runs it, notes that it is done, and goes on with N+1. With a checkpoint a query
that comes back repeats the micro-batch that was not done, with the same rows and number. Without one it begins behind
the subscription's cursor, so rows may come again.
"""

# pyarrow brings no types.
# pyright: reportUnknownVariableType=false

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypedDict

from ...bulk.access import admin_through_ray
from ...bulk.loop_thread import LoopThread, run_apart
from ...bulk.planner import PIN_TTL_S
from ...bulk.read_plan import TASK_SIZE_BYTES, PointInTopic
from ...bulk.typed.choice import parse_choice, row_shape
from ...protocol.errors import InvalidConfiguration
from ...protocol.message_id import WireMessageId
from ...runtime.environment import Environment
from ..source.columns import columns_of, frame_schema
from ..source.offset_log import MicroBatch, OffsetLog
from ..source.offsets import Offset
from ..source.options import Offsets, ReadOptions, read_options
from ..source.query import Query
from .task_frame import frame_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

AVAILABLE_NOW = "availableNow"
POLL_S = 0.1
"""How often a query without a slower trigger asks whether something new came."""
PROGRESS_MAX = 100

ForeachBatch = Callable[["DataFrame", int], object]


class StreamProgress(TypedDict):
    """What a query tells of a micro-batch, with the names of Spark's `StreamingQueryProgress`."""

    batchId: int
    startOffset: Offset
    endOffset: Offset
    latestOffset: Offset
    """Where the topics ended when the micro-batch was planned."""
    lagEntries: int
    """How many entries lie between `endOffset` and `latestOffset`. `lag` says how many it is now."""
    numInputEntries: int
    inputEntriesPerSecond: float
    durationMs: dict[str, int]
    """Of planning (`latestOffset`) and of all (`triggerExecution`)."""


class TopicQuery:
    """A running query. It ends by `stop`, by an error, or with the trigger `availableNow` when all is read."""

    def __init__(
        self,
        spark: "SparkSession",
        options: ReadOptions,
        foreach_batch: ForeachBatch,
        trigger: float | Literal["availableNow"],
        log: OffsetLog | None,
    ) -> None:
        self._spark, self._options, self._foreach_batch, self._log = spark, options, foreach_batch, log
        self._schema = frame_schema(options)
        self._columns = columns_of(options, self._schema)
        self._once = trigger == AVAILABLE_NOW
        self._interval_s = POLL_S if self._once else max(float(trigger), POLL_S)
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._progress: deque[StreamProgress] = deque(maxlen=PROGRESS_MAX)
        self._thread = threading.Thread(target=self._run, name="magnetar-stream", daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    @property
    def last_progress(self) -> StreamProgress | None:
        """Of the last micro-batch that is done."""
        return self._progress[-1] if self._progress else None

    @property
    def recent_progress(self) -> list[StreamProgress]:
        """Of the last micro-batches, the oldest first."""
        return list(self._progress)

    def exception(self) -> BaseException | None:
        """What ended the query, if it was an error."""
        return None if self.is_active else self._error

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the query ends.

        Args:
            timeout_s: Seconds to wait at most. None: without an end.

        Returns:
            Whether it has ended.

        Raises:
            Exception: What ended the query.
        """
        self._thread.join(timeout_s)
        if self.is_active:
            return False
        if self._error is not None:
            raise self._error
        return True

    def stop(self) -> None:
        """End the query when the running micro-batch is done, and wait for it. A second call does nothing."""
        self._stopping.set()
        self._thread.join()

    # -- the thread of the query ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        thread = LoopThread("magnetar-query")
        try:
            query = Query(self._options)
            thread.run(query.open())
            try:
                self._follow(thread, query)
            finally:
                thread.run(query.close())
        except BaseException as error:  # `await_termination` raises it
            self._error = error
            logger.error("a stream of %s ended: %s", ", ".join(self._options.topics), error)
        finally:
            thread.close()

    def _follow(self, thread: LoopThread, query: Query) -> None:
        last, done = (None, True) if self._log is None else self._log.last()
        if last is None:
            number, start = 0, thread.run(query.first_or_cursor() if self._log is None else query.first())
        else:
            number, start = (last.number + 1, last.end) if done else (last.number, last.start)
        batch = None if last is None or done else last
        target = thread.run(query.ends()) if self._once else None
        while not self._stopping.is_set():
            begun = time.monotonic()
            ends = thread.run(query.ends()) if target is None else target
            if batch is None:
                batch = MicroBatch(number, start, thread.run(query.following(start, ends)))
                if batch.end == start:
                    if self._once:
                        return
                    batch = None
                    self._stopping.wait(self._interval_s)
                    continue
                if self._log is not None:
                    self._log.plan(batch)
            planned = time.monotonic()
            entries = self._process(thread, query, batch)
            if self._log is not None:
                self._log.done(batch)
            thread.run(query.commit(batch.end))
            took_s = time.monotonic() - begun
            self._progress.append(
                {
                    "batchId": batch.number,
                    "startOffset": batch.start,
                    "endOffset": batch.end,
                    "latestOffset": query.as_offset(ends, batch.start),
                    "lagEntries": thread.run(query.entries_left(batch.end, ends)),
                    "numInputEntries": entries,
                    "inputEntriesPerSecond": entries / max(took_s, 1e-9),
                    "durationMs": {
                        "latestOffset": round((planned - begun) * 1000),
                        "triggerExecution": round(took_s * 1000),
                    },
                }
            )
            number, start, batch = batch.number + 1, batch.end, None
            if self._interval_s > POLL_S:
                self._stopping.wait(max(self._interval_s - took_s, 0.0))

    def _process(self, thread: LoopThread, query: Query, batch: MicroBatch) -> int:
        """Have a micro-batch worked off; its number of entries."""
        tasks = thread.run(query.tasks(batch.start, batch.end, self._columns))
        self._foreach_batch(frame_of(self._spark, tasks, self._schema), batch.number)
        return sum(task.split.entries for task in tasks)


def stream(
    topic: str,
    subscription: str | None,
    foreach_batch: ForeachBatch,
    *,
    trigger: float | Literal["availableNow"] = 0.0,
    checkpoint_location: str | None = None,
    start: PointInTopic = "latest",
    columns: Sequence[str] | None = None,
    schema: str | int | None = None,
    max_bytes_per_trigger: int | None = None,
    max_messages_per_trigger: int | None = None,
    max_bytes_per_split: int = TASK_SIZE_BYTES,
    is_data_loss_an_error: bool = True,
    private_key_path: str | None = None,
    admin_url: str | None = None,
    pin_ttl_s: float = PIN_TTL_S,
    spark: "SparkSession | None" = None,
) -> TopicQuery:
    """Read a topic in micro-batches, and hand each to a function: for a Spark without `readStream` of Python sources.

    Each row comes in one micro-batch. A query with `checkpoint_location` that comes back repeats the micro-batch that
    was not done. It has the same rows and number, so a function that stores by number stores each row once.

    Args:
        topic: Any form of a persistent topic's name. New partitions join.
        subscription: A subscription whose cursor follows the query. It keeps what is not read yet. None: no cursor.
        foreach_batch: Called as `foreach_batch(frame, number)` on a thread of its own, one call at a time.
        trigger: Seconds from the begin of one micro-batch to the next; 0 = as soon as something came. `"availableNow"`
            reads what there is, and ends.
        checkpoint_location: A directory on this machine, or on a file system that is mounted here.
        start: Where a query without a checkpoint, and whose subscription does not exist, begins: `"earliest"`,
            `"latest"`, a message id or milliseconds since the epoch.
        columns: The columns of the frames. None: all.
        schema: None or `"bytes"` gives payloads. `"auto"` or the number of a version gives the columns of the topic's
            schema, as in `read_topic`.
        max_bytes_per_trigger: About how many bytes a micro-batch has at most.
        max_messages_per_trigger: About how many messages a micro-batch has at most.
        max_bytes_per_split: About how many bytes of the topic one task reads.
        is_data_loss_an_error: Whether the query ends when messages that it has not read may be gone.
        private_key_path: A file with a private key, or a directory of files `NAME.pem`, for encrypted messages.
        admin_url: `http://host:port` of the cluster's admin HTTP. None finds the cluster through Ray.
        pin_ttl_s: Seconds after which planned ledgers may be trimmed if this process crashes.
        spark: The session. None: the active one.

    Returns:
        The running query.

    Raises:
        InvalidConfiguration: If an option is impossible, or there is neither a subscription nor a checkpoint.
        InvalidTopicName: If `topic` is no topic name.
        ClusterError: If there is no cluster on this Ray.
    """
    from pyspark.sql import SparkSession

    if subscription is None and checkpoint_location is None:
        raise InvalidConfiguration(
            "give a subscription or a checkpoint_location: something has to remember the offsets"
        )
    if isinstance(trigger, str) and trigger != AVAILABLE_NOW:
        raise InvalidConfiguration(f"trigger is a number of seconds or {AVAILABLE_NOW!r}, not {trigger!r:.100}")
    session = SparkSession.getActiveSession() if spark is None else spark
    if session is None:
        raise InvalidConfiguration("there is no active Spark session: start one, or pass spark=")
    choice = parse_choice(schema)
    if choice is None:
        row_shape(columns)
    found = run_apart(admin_through_ray()) if admin_url is None else admin_url
    given = {
        "topic": topic,
        "admin.url": found,
        "failOnDataLoss": str(is_data_loss_an_error),
        "maxBytesPerSplit": str(max_bytes_per_split),
        "privateKeyPath": private_key_path or "",
    }
    for name, limit in (
        ("maxBytesPerTrigger", max_bytes_per_trigger),
        ("maxMessagesPerTrigger", max_messages_per_trigger),
    ):
        if limit is not None:
            given[name] = str(limit)
    options = read_options(given, streaming=True)._replace(
        admin_url=found,  # an option is a plain text: it does not say that Ray gave the URL
        starting=_start(start),
        columns=None if columns is None else tuple(columns),
        schema=choice,
        subscription=subscription,
        pin_ttl_s=pin_ttl_s,
    )
    log = None
    if checkpoint_location is not None:
        log = OffsetLog(Environment.real(threads_max=1).files, checkpoint_location)
    return TopicQuery(session, options, foreach_batch, trigger, log)


def _start(given: PointInTopic) -> Offsets:
    if isinstance(given, bool) or (isinstance(given, str) and given not in ("earliest", "latest")):
        raise InvalidConfiguration(f"start must be 'earliest', 'latest', a message id or a time, not {given!r:.100}")
    if isinstance(given, datetime):
        return round(given.timestamp() * 1000)
    if isinstance(given, str | int):
        return given
    return WireMessageId.deserialize(given if isinstance(given, bytes) else given.serialize()).serialize()
