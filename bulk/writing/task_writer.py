"""Publishes the rows of one task of Spark or Ray Data, Arrow batch by Arrow batch. It runs once for each attempt.

A batch is encoded as a whole, put in the order of the partitions that its rows go to, and cut into entries. The rows of
a partition keep their order. The calling thread does that. A loop in a thread of its own publishes meanwhile. Both end
with the task.

With a name, each row is stored once, however often the same attempt is made: `numbering` says how. The broker's
deduplication has to be on for that, and the broker does not say whether it is. Therefore the task asks for the last
sequence id again at the end. A producer whose messages the broker has not counted is `unjudged`.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false
# pyarrow brings no types.

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...client.producing.outgoing import Outgoing
from ...protocol.errors import InvalidConfiguration, NotAllowedError
from ...protocol.topics import TopicName
from ..loop_thread import LoopThread
from .columns import KEY, ORDERING_KEY, TOPIC
from .encoding import Int64s, encode_rows, portions
from .numbering import BATCHES_PER_NAME, RowNumber, RowsDiffer, StoredPrefix, partitions_to_use, producer_name
from .publisher import OutgoingEntry, TaskPublisher, WritePlan
from .routing import partition_of_rows
from .typed_values import with_values

if TYPE_CHECKING:
    from ...client.producing.topic_producer import TopicProducer

TOPICS_MAX = 1_000
"""Of one task: each has a producer for each of its partitions."""
SORTED_MAX_BYTES = 512 << 20
"""What a task holds in memory to sort its rows."""


class TaskAttempt(NamedTuple):
    """Which rows an attempt publishes."""

    number: int
    """Of the task, from 0."""
    batch: int | None = None
    """The micro-batch of a stream."""


class Written(NamedTuple):
    """What became of the rows of one task."""

    rows: int = 0
    """Stored by this attempt."""
    known: int = 0
    """Skipped, as an earlier attempt has stored them."""
    size_bytes: int = 0
    """Payloads of the rows that this attempt has stored."""
    unjudged: str | None = None
    """Name of a producer whose sequence ids the broker does not count."""
    foreign: str | None = None
    """Why the attempt has ended: the topic has other rows of this task. Those of this attempt are not stored."""


def write_task(
    plan: WritePlan, attempt: TaskAttempt, batches: "Iterable[pa.RecordBatch]", judged: set[str] | None = None
) -> Written:
    """Publish the rows of a task. All of them are stored when this returns, unless it says `foreign`.

    Args:
        plan: What the driver says.
        attempt: Which task this is.
        batches: The rows.
        judged: Topics that are known to deduplicate, which grow. They are not asked again. None: all are asked.

    Raises:
        InvalidMessage: If a row makes no message.
        IncompatibleSchema: If the schema of the rows does not fit the topic's.
        InvalidConfiguration: If the rows cannot be published in this way.
        MagnetarError: What the client raises. What is stored of a topic's partition then has no gap.
    """
    thread = LoopThread("magnetar-write")
    try:
        publisher = thread.run(_publisher(plan))
        task = _Task(plan, attempt, thread, publisher)
        try:
            task.write(_sorted(batches, plan.order_by) if plan.order_by else batches)
            written = task.finish(judged)
            thread.run(publisher.close())
            return written
        except RowsDiffer as error:
            thread.run(publisher.abandon())
            return Written(known=task.known, foreign=str(error))
        except BaseException:
            thread.run(publisher.abandon())
            raise
    finally:
        thread.close()


async def _publisher(plan: WritePlan) -> TaskPublisher:
    return TaskPublisher(plan)


def _sorted(batches: "Iterable[pa.RecordBatch]", order_by: Sequence[str]) -> "Iterator[pa.RecordBatch]":
    """All rows of a task in the order of these columns. Raises InvalidConfiguration for more than may be in memory."""
    held: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        held.append(batch)
        size_bytes += batch.nbytes
        if size_bytes > SORTED_MAX_BYTES:
            raise InvalidConfiguration(
                f"a task has more than {SORTED_MAX_BYTES} bytes of rows, too many to sort them: use more tasks, or "
                "smaller micro-batches"
            )
    if held:
        yield from pa.Table.from_batches(held).sort_by([(name, "ascending") for name in order_by]).to_batches()


class _Partition:
    """A partition of a topic, or a topic that has none, and what the task sends to it."""

    def __init__(self, topic: str, full: str) -> None:
        self.topic = topic
        self.full = full
        self.producer: TopicProducer | None = None
        """Without a name it is opened with the first row."""
        self.prefix: StoredPrefix | None = None
        """With a name."""
        self.last_sequence_id = -1
        """Of what is stored or on its way, as this attempt knows it."""

    def number(self, first_row: int, last_row: int, data: memoryview) -> tuple[int, int]:
        """The sequence ids of an entry."""
        if self.prefix is not None:
            first, self.last_sequence_id = self.prefix.number(first_row, last_row, data)
            return first, self.last_sequence_id
        first = self.last_sequence_id + 1
        self.last_sequence_id += last_row - first_row + 1
        return first, self.last_sequence_id


class _Task:
    """One attempt, on the thread of its caller."""

    def __init__(self, plan: WritePlan, attempt: TaskAttempt, thread: LoopThread, publisher: TaskPublisher) -> None:
        self.known = 0
        self._stored = 0
        self._size_bytes = 0
        self._plan = plan
        self._attempt = attempt
        self._thread = thread
        self._publisher = publisher
        self._name: str | None = None
        if plan.producer_name is not None:
            self._name = producer_name(plan.producer_name, attempt.number, attempt.batch)
        self._batch = (attempt.batch or 0) % BATCHES_PER_NAME
        self._turn = attempt.number + (attempt.batch or 0)
        """Where rows without a key begin to take turns."""
        self._topics: dict[str, list[_Partition]] = {}
        """By full name: the partitions that the rows of this task are spread over."""
        self._targets: dict[str, _Partition] = {}
        """By full name: all that are in use."""
        self._rows = 0

    def write(self, batches: "Iterable[pa.RecordBatch]") -> None:
        """Publish all rows. The last of them may still be on their way."""
        if self._name is not None and self._plan.topic is not None and self._attempt.batch is None:
            self._partitions(self._plan.topic)  # of a task without rows, too: an earlier attempt may have had some
        for batch in batches:
            for rows in portions(batch):
                entries = list(self._entries(rows))
                self._rows += rows.num_rows
                self._thread.run(self._publisher.send(entries))

    # -- from rows to entries ----------------------------------------------------------------------------------------

    def _entries(self, rows: "pa.RecordBatch") -> Iterator[OutgoingEntry]:
        """What the rows are, in entries. The entries of a partition are in the order of its rows."""
        if self._plan.schema is not None:
            rows = with_values(self._plan.schema.type, rows)
        encoded = encode_rows(rows)
        for topic, places in self._by_topic(rows):
            partitions = self._partitions(topic)
            keys = _column(rows, KEY)
            chosen = partition_of_rows(
                None if keys is None else keys.take(places),
                self._rows + places,
                len(partitions),
                self._turn,
                self._plan.hashing_scheme,
            )
            if len(partitions) > 1:
                order = np.argsort(chosen, kind="stable")
                places, chosen = places[order], chosen[order]
            in_order = len(places) == rows.num_rows and len(partitions) == 1
            messages = encoded.messages if in_order else encoded.messages.take(pa.array(places))
            ends = np.searchsorted(chosen, np.arange(len(partitions) + 1))
            used = [index for index in range(len(partitions)) if ends[index] < ends[index + 1]]
            self._open([partitions[index] for index in used])
            data = memoryview(messages.buffers()[2] or b"")
            offsets = np.frombuffer(messages.buffers()[1], np.int32)[messages.offset :].astype(np.int64)
            for index in used:
                part = slice(int(ends[index]), int(ends[index + 1]))
                own = offsets[part.start : part.stop + 1]
                yield from self._cut(partitions[index], rows, places[part], data, own, encoded.sizes)

    def _cut(
        self,
        partition: _Partition,
        rows: "pa.RecordBatch",
        places: Int64s,
        data: memoryview,
        offsets: Int64s,
        sizes: Int64s,
    ) -> Iterator[OutgoingEntry]:
        """The rows of one partition as entries.

        Row `places[i]` of `rows` lies in `data` from `offsets[i]` to `offsets[i + 1]`.
        """
        producer, first = partition.producer, 0
        assert producer is not None
        if partition.prefix is not None:
            own = data[int(offsets[0]) : int(offsets[-1])]
            first = partition.prefix.pass_over(self._rows + places, own, offsets[1:] - offsets[0])
            self.known += first
        while first < len(places):
            most = int(np.searchsorted(offsets, offsets[first] + self._plan.bytes_max, "right")) - 1
            end = max(min(len(places), first + self._plan.messages_max, most), first + 1)
            payload = data[int(offsets[first]) : int(offsets[end])]
            first_row, last_row = self._rows + int(places[first]), self._rows + int(places[end - 1])
            size_bytes = int(sizes[places[first:end]].sum())
            if partition.prefix is None:
                last_row = first_row + end - first - 1
            yield OutgoingEntry(
                producer,
                payload,
                end - first,
                *partition.number(first_row, last_row, payload),
                size_bytes,
                _keys_of(rows, int(places[first])),
            )
            self._stored += end - first
            self._size_bytes += size_bytes
            first = end

    def _by_topic(self, rows: "pa.RecordBatch") -> Iterator[tuple[str, Int64s]]:
        """Each topic with the places of its rows, rising. Raises InvalidConfiguration for a row without a topic."""
        if self._plan.topic is not None:
            yield self._plan.topic, np.arange(rows.num_rows)
            return
        column = _column(rows, TOPIC)
        if column is None or column.null_count:
            raise InvalidConfiguration(
                f"a row has no topic: its column `{TOPIC}` is null. Fill it, or give the option topic, to which all "
                "rows then go"
            )
        found = pc.dictionary_encode(column)
        numbers = np.asarray(found.indices)
        order = np.argsort(numbers, kind="stable")
        ends = np.searchsorted(numbers[order], np.arange(len(found.dictionary) + 1))
        for index, name in enumerate(found.dictionary.to_pylist()):
            yield TopicName.parse(name).full, order[ends[index] : ends[index + 1]]

    # -- topics --------------------------------------------------------------------------------------------------------

    def _partitions(self, topic: str) -> list[_Partition]:
        """What the rows of a topic are spread over. Raises what the client raises, and RowsDiffer."""
        found = self._topics.get(topic)
        if found is not None:
            return found
        if len(self._topics) >= TOPICS_MAX:
            raise InvalidConfiguration(
                f"the rows of a task go to more than {TOPICS_MAX} topics: have each task write to fewer, with "
                f"repartition by `{TOPIC}`"
            )
        if not TopicName.parse(topic).persistent:
            raise NotAllowedError(f"{topic} stores no messages: only persistent topics can be written in bulk")
        found = [_Partition(topic, full) for full in self._thread.run(self._publisher.partitions(topic))]
        for partition in found:
            before = self._targets.setdefault(partition.full, partition)
            if before is not partition:
                raise InvalidConfiguration(
                    f"rows of a task name the topic {before.topic} and {topic}, which share a partition: name one"
                )
        if self._name is not None:
            found = self._opened_by_name(self._name, found)
        self._topics[topic] = found
        return found

    def _opened_by_name(self, name: str, found: list[_Partition]) -> list[_Partition]:
        """Open all partitions, and ask each what it has of this task. Returns those that the task uses."""
        self._open(found)
        stored = [RowNumber.parse(_producer_of(partition).last_sequence_id) for partition in found]
        used = partitions_to_use(name, self._batch, stored, len(found))
        for partition, known in zip(found, stored, strict=True):
            partition.prefix = StoredPrefix(name, self._batch, used, known)
            partition.last_sequence_id = _producer_of(partition).last_sequence_id
        return found[:used]

    def _open(self, partitions: Sequence[_Partition]) -> None:
        missing = [partition for partition in partitions if partition.producer is None]
        if missing:
            opened = self._thread.run(self._publisher.open([one.full for one in missing], self._name))
            for partition, producer in zip(missing, opened, strict=True):
                partition.producer = producer

    # -- the end -------------------------------------------------------------------------------------------------------

    def finish(self, judged: set[str] | None) -> Written:
        """Wait until all rows are stored, and judge whether the brokers know them again. Raises RowsDiffer."""
        self._thread.run(self._publisher.finish())
        for partition in self._targets.values():
            if partition.prefix is not None:
                partition.prefix.check_end()
        unjudged = None if self._name is None else self._unjudged(self._name, judged)
        return Written(self._stored, self.known, self._size_bytes, unjudged)

    def _unjudged(self, name: str, judged: set[str] | None) -> str | None:
        """The name, if a broker does not count sequence ids. Raises RowsDiffer if another attempt had other rows."""
        asked = [one for one in self._targets.values() if judged is None or (self._is_new(one, judged))]
        producers = [_producer_of(partition) for partition in asked]
        answers = self._thread.run(self._publisher.ask_again(producers, name))
        unjudged = False
        for partition, answer in zip(asked, answers, strict=True):
            if answer > partition.last_sequence_id:
                raise RowsDiffer(f"the producer {name} has stored more rows meanwhile than this attempt has")
            if answer < partition.last_sequence_id:
                unjudged = True
            elif judged is not None:
                judged.add(partition.topic)
        return name if unjudged else None

    def _is_new(self, partition: _Partition, judged: set[str]) -> bool:
        """Whether the answer tells something about a topic of which it is not known."""
        return partition.topic not in judged and partition.last_sequence_id >= 0


def _producer_of(partition: _Partition) -> "TopicProducer":
    assert partition.producer is not None
    return partition.producer


def _column(rows: "pa.RecordBatch", name: str) -> "pa.Array | None":
    place = rows.schema.get_field_index(name)
    return None if place < 0 else rows.column(place)


def _keys_of(rows: "pa.RecordBatch", place: int) -> Outgoing | None:
    """What an entry shows of its first message."""
    key, ordering_key = (
        None if (column := _column(rows, name)) is None else column[place].as_py() for name in (KEY, ORDERING_KEY)
    )
    if key is None and ordering_key is None:
        return None
    if isinstance(ordering_key, bytes):
        ordering_key = ordering_key.decode("utf-8", "surrogateescape")
    return Outgoing(b"", partition_key=key, ordering_key=ordering_key)
