"""Publishes the rows of one of Spark's partitions. This runs in a Python worker of Spark, once for each attempt.

With a producer name each row is stored once, however often Spark makes the same attempt. The broker's deduplication
remembers how far each producer got, and the writer asks it:

- Each of Spark's partitions has its own producer name, `<name>-<number of the partition>`. A row's sequence id has its
  number in that partition. So the same row has the same name and sequence id in each attempt.
- A row's partition of the topic depends on its key, or on its number, and on how many partitions the topic has. The
  writer has one producer for each of them, and asks it for the last sequence id that is stored there. Rows up to that
  are skipped. The sequence id has the number of partitions, too. So a writer notices before its first row that the
  topic has grown since an earlier attempt. It then stores nothing, because rows now belong to other partitions.
- A topic's partition has no gap: with `stop_on_failure` no row is stored behind one that failed. So everything up to
  the last sequence id is stored.
- There may be two attempts at once, and an executor that died may still count as connected. The broker admits one
  producer of a name at a time, and the writer waits for its turn. While messages of that name are under way the broker
  admits none, so the last sequence id that it names is final.

Deduplication may be off, and the broker does not say so. Therefore the writer asks for the last sequence id again at
the end. A producer whose messages the broker has not counted is `unjudged`. A producer with a higher
sequence id than there are rows is `foreign`: other rows were written under that name. So is one that wrote to another
number of partitions.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ...client.blocking.client import Client
from ...client.blocking.producer import Producer
from ...client.core.configuration import CompressionType
from ...protocol.errors import ProducerBusy
from ...protocol.hashing import java_string_hash
from ...runtime import retry
from ...runtime.backoff import LimitedBackoff
from ...runtime.environment import SystemChance

T = TypeVar("T")

PENDING_MAX = 5_000
SEND_TIMEOUT_MS = 120_000
"""Longer than a fail-over. Then the attempt fails, and Spark makes another one."""
OPERATION_TIMEOUT_S = 60
ROW_BITS = 40
"""Of a sequence id: the number of the row. Above it stands the number of the topic's partitions."""
BUSY_INITIAL_S = 0.1
BUSY_MAX_S = 2.0
BUSY_LIMIT_S = 120.0
"""How long another producer of the name is waited for. A broker notices in 60 s at most that a machine is gone."""


class OutgoingRow(NamedTuple):
    """The columns of a row, in the order in which the driver selects them."""

    value: bytes | bytearray | None
    key: str | None
    properties: Mapping[str, str] | None
    event_ms: int | None


@dataclass(frozen=True)
class WritePlan:
    """What the driver tells each worker."""

    service_url: str
    partitions: tuple[str, ...]
    """Full names of the topic's partitions, or of the topic if it has none."""
    producer_name: str | None
    compression_type: CompressionType


class Written(NamedTuple):
    """What became of one of Spark's partitions."""

    rows: int
    """Stored by this attempt."""
    known: int
    """Skipped, as an earlier attempt has stored them."""
    unjudged: str | None
    """Name of a producer whose sequence ids the broker does not count."""
    foreign: str | None
    """Name of a producer that knows more rows than there are."""


def write_rows(plan: WritePlan, number: int, rows: Iterable[OutgoingRow]) -> Written:
    """Publish the rows of Spark's partition `number`. All of them are stored when this returns.

    Raises what the client raises; then everything that was stored of a topic's partition is without a gap.
    """
    with closing(Client(plan.service_url, operation_timeout_seconds=OPERATION_TIMEOUT_S)) as client:
        writers = [_TopicPartition(client, plan, topic, number) for topic in plan.partitions]
        if plan.producer_name is not None:
            for writer in writers:
                writer.open()
            foreign = next((writer.name for writer in writers if writer.foreign), None)
            if foreign is not None:
                return Written(0, 0, None, foreign)
        for row_number, row in enumerate(rows):
            writers[route(row.key, row_number, len(writers))].write(row_number, row)
        for writer in writers:
            writer.finish()
        return Written(
            sum(writer.stored for writer in writers),
            sum(writer.skipped for writer in writers),
            next((writer.name for writer in writers if writer.unjudged), None),
            next((writer.name for writer in writers if writer.foreign), None),
        )


def route(key: str | None, row_number: int, partitions: int) -> int:
    """The partition of the topic: by the hash of the key, as in Java's producers, or else by the row's number."""
    return (java_string_hash(key) if key else row_number) % partitions


class _TopicPartition:
    """The producer of one partition of the topic. Without a name it is made with the first row that goes there."""

    def __init__(self, client: Client, plan: WritePlan, topic: str, number: int) -> None:
        self.stored = self.skipped = 0
        self.unjudged = self.foreign = False
        self.name = None if plan.producer_name is None else f"{plan.producer_name}-{number}"
        self._client = client
        self._plan = plan
        self._topic = topic
        self._producer: Producer | None = None
        self._known = -1
        """The last row that is stored."""
        self._last = -1
        """The highest number of a row that belongs here."""

    def open(self) -> None:
        """Ask for what is stored, before the first row."""
        self._producer = self._open()

    def write(self, row_number: int, row: OutgoingRow) -> None:
        """Queue a row, unless it is stored."""
        if self._producer is None:
            self._producer = self._open()
        self._last = row_number
        if row_number <= self._known:
            self.skipped += 1
            return
        self.stored += 1
        self._producer.send_async(
            b"" if row.value is None else bytes(row.value),
            None,
            properties=row.properties,
            partition_key=row.key,
            event_timestamp=row.event_ms,
            sequence_id=None if self.name is None else (len(self._plan.partitions) << ROW_BITS) + row_number,
        )

    def finish(self) -> None:
        """Wait until all rows are stored. Raises the first failure."""
        if self._producer is not None:
            self._producer.flush()
            self._producer.close()
        if self.name is None:
            return
        self._open().close()
        self.unjudged = self._known < self._last
        self.foreign = self.foreign or self._known > self._last

    def _open(self) -> Producer:
        """A connected producer. Raises ProducerBusy if another one keeps the name."""

        async def attempt() -> Producer:
            return await asyncio.to_thread(
                self._client.create_producer,
                self._topic,
                self.name,
                batching_enabled=True,
                block_if_queue_full=True,
                compression_type=self._plan.compression_type,
                max_pending_messages=PENDING_MAX,
                send_timeout_millis=SEND_TIMEOUT_MS,
                stop_on_failure=True,
            )

        backoff = LimitedBackoff(SystemChance(), BUSY_INITIAL_S, BUSY_MAX_S, BUSY_LIMIT_S)
        producer = asyncio.run(retry.limited(backoff, attempt, retriable=_is_busy, on_retry=retry.silently))
        if self.name is not None and producer.last_sequence_id() >= 0:
            partitions, self._known = divmod(producer.last_sequence_id(), 1 << ROW_BITS)
            self.foreign = partitions != len(self._plan.partitions)
        return producer


def _is_busy(error: Exception) -> bool:
    return isinstance(error, ProducerBusy)


def in_worker(plan: WritePlan, number: int, rows: Iterable[tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
    """What Spark calls: rows as it has them, and the outcome as one plain row."""
    yield tuple(write_rows(plan, number, map(OutgoingRow._make, rows)))  # type: ignore[arg-type]
