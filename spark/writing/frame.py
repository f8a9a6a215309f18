"""`write_topic`: the rows of a DataFrame as messages of a topic. What the workers do is in `partition_writer`."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from ...client.blocking.client import Client
from ...client.core.configuration import CompressionType
from ...client.core.discovery import find_service_url
from ...protocol.errors import InvalidConfiguration, NotAllowedError
from ...protocol.topics import TopicName
from .partition_writer import WritePlan, Written, in_worker

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VALUE, KEY, PROPERTIES, EVENT_TIME = "value", "__key", "__messageProperties", "__eventTime"
TYPES = {
    VALUE: ("binary", "string"),
    KEY: ("string",),
    PROPERTIES: ("map<string,string>",),
    EVENT_TIME: ("timestamp",),
}
"""The columns that make a message, with the types that they may have."""
PARTITIONS = 8


class TopicWrite(NamedTuple):
    """What `write_topic` did."""

    rows: int
    """Rows that this call has stored."""
    known: int
    """Rows that the topic had already, from an earlier call or from an attempt that failed."""


def write_topic(
    frame: "DataFrame",
    topic: str,
    producer_name: str | None = None,
    *,
    order_by: Sequence[str] = (),
    num_partitions: int = PARTITIONS,
    compression_type: CompressionType = CompressionType.NONE,
    service_url: str | None = None,
) -> TopicWrite:
    """Publish each row of a DataFrame as a message. All messages are stored when this returns.

    Without `producer_name` a row is stored at least once: Spark repeats a task that failed. With a name, and with
    deduplication on the topic, it is stored once, also when this is called again with the same rows.

    Args:
        frame: Rows with the column `value` (binary or string). `__key` (string), `__eventTime` (timestamp) and
            `__messageProperties` (map of strings) may be there, too. Other columns that begin with `__` are left out.
        topic: Any form of a persistent topic's name. The broker creates the topic if it does not exist.
        producer_name: What this result is called. Another result needs another name.
        order_by: Columns that tell rows apart. Rows are put into `num_partitions` partitions by them, and sorted. Pass
            them with `producer_name`, unless the frame has the same rows in the same order each time it is computed.
        num_partitions: Number of Spark tasks that write with `order_by`. The same number in each call.
        compression_type: How batches are compressed.
        service_url: `pulsar://host:port` of brokers. None finds the cluster through Ray.

    Returns:
        How many rows were stored, and how many the topic had.

    Raises:
        InvalidConfiguration: If the columns cannot be published, or other rows were written under this name.
        NotAllowedError: If the topic is non-persistent. Also if a name was given and the topic does not deduplicate:
            then all rows are stored, some perhaps several times.
        InvalidTopicName: If `topic` is not a topic name.
        ConnectError: If no broker can be reached.
        MagnetarError: What the broker answers, as the class of its error.
        PySparkException: If a task has failed as often as Spark allows. Call this again with the same name.
    """
    if not TopicName.parse(topic).persistent:
        raise NotAllowedError(f"{topic} stores no messages: only persistent topics can be written in bulk")
    rows = _rows(frame, order_by, num_partitions)
    url = find_service_url() if service_url is None else service_url
    plan = WritePlan(url, _partitions(url, topic), producer_name, CompressionType(compression_type))
    outcomes = rows.rdd.mapPartitionsWithIndex(partial(in_worker, plan)).collect()
    written = [Written._make(one) for one in cast("list[tuple[int, int, str | None, str | None]]", outcomes)]
    for one in written:
        if one.foreign is not None:
            raise InvalidConfiguration(
                f"{topic} has other rows of the producer {one.foreign} than this frame: another result was written "
                f"under the name {producer_name}, or with another num_partitions, or the topic had fewer partitions "
                "then. Choose another producer_name"
            )
    for one in written:
        if one.unjudged is not None:
            raise NotAllowedError(
                f"deduplication is off for {topic}: the rows are stored, but a repetition stores them again. Set the "
                "policy deduplication of its namespace, or leave producer_name out"
            )
    return TopicWrite(sum(one.rows for one in written), sum(one.known for one in written))


def _partitions(service_url: str, topic: str) -> tuple[str, ...]:
    """The names to publish to, once the topic exists."""
    with Client(service_url) as client:
        client.create_producer(topic).close()
        return tuple(client.get_topic_partitions(topic))


def _rows(frame: "DataFrame", order_by: Sequence[str], num_partitions: int) -> "DataFrame":
    """The frame in the form of `OutgoingRow`. Raises InvalidConfiguration."""
    found = dict(frame.dtypes)
    if VALUE not in found:
        raise InvalidConfiguration(
            f"the frame has no column `value`, but {', '.join(found)}: make one, such as "
            "to_json(struct('*')).alias('value')"
        )
    for name, kind in found.items():
        if name in TYPES and kind not in TYPES[name]:
            raise InvalidConfiguration(f"the column `{name}` is {kind}, not {' or '.join(TYPES[name])}: cast it")
        if name not in TYPES and not name.startswith("__") and name not in order_by:
            raise InvalidConfiguration(f"the column `{name}` is no part of a message: drop it, or put it into `value`")
    missing = [name for name in order_by if name not in found]
    if missing:
        raise InvalidConfiguration(f"order_by names the column `{missing[0]}`, which the frame does not have")
    if num_partitions < 1:
        raise InvalidConfiguration(f"num_partitions is {num_partitions}, and must be 1 or more")
    if order_by:
        frame = frame.repartition(num_partitions, *order_by).sortWithinPartitions(*order_by)
    return frame.select(*_columns(found))


def _columns(found: dict[str, str]) -> "list[Column]":
    from pyspark.sql import functions

    def column(name: str, expression: str) -> "Column":
        return functions.expr(expression if name in found else "NULL").alias(name)

    return [
        column(VALUE, "CAST(`value` AS BINARY)"),
        column(KEY, f"`{KEY}`"),
        column(PROPERTIES, f"`{PROPERTIES}`"),
        column(EVENT_TIME, f"unix_millis(`{EVENT_TIME}`)"),
    ]
