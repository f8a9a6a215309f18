"""The topics of one consumer, and a `PartitionConsumer` for each of their partitions (or for the topic itself).

A topic is in the set from the moment when all its partitions are subscribed. One that cannot be subscribed leaves
nothing behind. Partitions that are added later are subscribed from their first message on, because the consumer was
there before them.

Message ids of a consumer of several topics name their topic (`TopicMessageId`). An id of a single topic finds its
consumer by the partition.

Invariants: `ours` holds exactly the consumers in `consumers`. After `closed` nothing joins: what was being opened is
closed by the call that opened it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ...protocol.errors import AlreadyClosed, InvalidConfiguration, InvalidMessage, MagnetarError, OperationNotSupported
from ...protocol.errors import TopicNotFound as TopicNotFoundError
from ...protocol.topics import TopicName
from ...runtime.tasks import together
from ..core.configuration import ConsumerConfiguration, InitialPosition
from ..core.context import Core
from ..core.message_id import MessageId, TopicMessageId
from .message import Message
from .partition_consumer import PartitionConsumer
from .receive_counts import ReceiveCounts
from .receive_queue import ReceiveQueue
from .start_filter import StartFilter


class TopicSet:
    """See the module. All methods but `source_of` are for the loop's thread."""

    def __init__(
        self,
        core: Core,
        configuration: ConsumerConfiguration,
        queue: ReceiveQueue,
        start: StartFilter | None,
        *,
        creates: bool,
    ) -> None:
        """`creates` lets the broker create topics that do not exist."""
        self.consumers: list[PartitionConsumer] = []
        """Of all topics, in the order in which they joined."""
        self.ours: dict[object, None] = {}
        self.closed = False
        self.partitions: dict[TopicName, int] = {}
        """The topics, and how many partitions are subscribed, 0 for a topic that has none."""
        self.on_lost: Callable[[], None] | None = None
        """Called when a topic of several has gone away."""
        self.on_refused: Callable[[TopicName], None] | None = None
        """Called when a consumer finds its topic no longer, or finds that it has partitions now."""
        self.on_made: Callable[[PartitionConsumer], None] | None = None
        """Called with each new consumer."""
        self.several = configuration.takes_several_topics
        self._core = core
        self._configuration = configuration
        self._queue = queue
        self._start = start
        self._creates = creates
        self._queue_size = configuration.receiver_queue_size
        self._queue_size_total = configuration.max_total_receiver_queue_size_across_partitions
        self._by_name: dict[str, PartitionConsumer] = {}
        queue.lets_go = self._lost

    async def join(self, topic: TopicName) -> None:
        """Subscribe to a topic. Raises the first refusal; nothing is left open then."""
        count = await self._core.lookup.partitions(topic.full, create=self._creates)
        if not count:
            await self._open([self._make(topic, topic.partition, 0, self._start, self._configuration)])
        else:
            if not self._queue_size:
                raise InvalidConfiguration(
                    "receiver_queue_size is 0, but the topic is partitioned: set it to at least 1"
                )
            await self._open_partitions(topic, range(count), count, self._start, self._configuration)
        self.partitions[topic] = count

    async def grow(self, topic: TopicName) -> None:
        """Subscribe to partitions that were added. Raises as `join`."""
        before = self.partitions.get(topic, 0)
        count = await self._core.lookup.partitions(topic.full, create=False)
        if before < count and before:
            first = None if self._start is None else StartFilter(MessageId.earliest, True)
            await self._open_partitions(topic, range(before, count), count, first, self._was_there_before)
            self.partitions[topic] = count

    async def reshape(self, topic: TopicName) -> None:
        """Subscribe again, as a whole, to a topic that was created again with fewer partitions, or with some for none.

        A topic that is there with as many, with more, or not yet, is left to its consumers: they go on trying. Raises
        as `join`. If it raises, nothing has changed.
        """
        before = self.partitions.get(topic)
        if before is None:
            return
        count = await self._core.lookup.partitions(topic.full, create=False)
        gone = [one for one in self.consumers if one.topic.without_partition() == topic]
        if 0 < count < before:
            gone = [one for one in gone if one.partition >= count]
        elif count != before == 0:
            await self._open_partitions(topic, range(count), count, None, self._was_there_before)
        elif count == 0 != before:
            await self._open([self._make(topic, -1, 0, None, self._was_there_before)])
        else:
            return
        self.partitions[topic] = count
        await self._close(gone)

    @property
    def _was_there_before(self) -> ConsumerConfiguration:
        """For topics and partitions that are newer than this consumer: it gets all of their messages."""
        return replace(self._configuration, initial_position=InitialPosition.Earliest)

    def resize(self, queue_size: int) -> None:
        """Let so many messages of each topic wait from now on, at least one. Its partitions share them."""
        self._queue_size = self._queue_size_total = queue_size
        for consumer in self.consumers:
            consumer.permits.resize(self._share(self.partitions.get(consumer.topic.without_partition(), 0)))

    async def leave(self, topic: TopicName) -> None:
        """Close the consumers of a topic; what they have queued is dropped."""
        gone = [consumer for consumer in self.consumers if consumer.topic.without_partition() == topic]
        self._remove(topic, gone)
        await self._close(gone)

    async def _close(self, gone: list[PartitionConsumer]) -> None:
        self._forget(gone)
        for consumer in gone:
            self._queue.discard(consumer)
        await asyncio.gather(*[consumer.close() for consumer in gone])

    async def close(self) -> None:
        self.closed = True
        await asyncio.gather(*[consumer.close() for consumer in self.consumers])

    def source_of(self, message: Message | MessageId) -> PartitionConsumer:
        """The consumer that a message or an id belongs to. Raises InvalidMessage, OperationNotSupported."""
        if isinstance(message, Message):
            source = message.source
            if isinstance(source, PartitionConsumer) and source in self.ours:
                return source
            message = message.message_id() if not self.several else _of_topic(message)
        if not isinstance(message, MessageId):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise InvalidMessage(f"acknowledge takes a Message or a MessageId, not {type(message).__name__}")
        consumer = self._of_id(message)
        if message.batch_index() >= 0 and not message.batch_size():
            raise OperationNotSupported(
                f"message {message.text} is part of a batch of unknown size: use an id that a consumer gave"
            )
        return consumer

    # ---- Inside ----

    def _of_id(self, message_id: MessageId) -> PartitionConsumer:
        names = TopicName.parse(message_id.topic_name()) if isinstance(message_id, TopicMessageId) else None
        if names is not None:
            if names.partition < 0 <= message_id.partition():
                names = names.partition_topic(message_id.partition())
            found = self._by_name.get(names.full)
            if found is None:
                raise OperationNotSupported(
                    f"message {message_id.text} of {names.full} is of a topic that this consumer does not have: "
                    "pass it to the consumer that received it"
                )
            return found
        if self.several:
            raise OperationNotSupported(
                f"message {message_id.text} does not say of which topic it is, and this consumer has several: pass the "
                "message, its message_id(), or an id that was deserialized with its topic"
            )
        for consumer in self.consumers:
            if consumer.partition == message_id.partition():
                return consumer
        if len(self.consumers) > 1 or message_id.partition() >= 0 or not self.consumers:
            raise OperationNotSupported(
                f"message {message_id.text} does not belong to {self._configuration.topic}: pass it to the consumer "
                "that received it"
            )
        return self.consumers[0]

    def _make(
        self, topic: TopicName, partition: int, count: int, start: StartFilter | None, of: ConsumerConfiguration
    ) -> PartitionConsumer:
        """`count` says how many partitions the topic has."""
        if start is not None:
            start = StartFilter(start.target, start.inclusive)
        made = PartitionConsumer(self._core, topic, partition, of, self._queue, self._share(count), start)
        if self._start is None:  # a reader is at one place, and stays with the topic that has it
            made.refused = self.on_refused
        if self.on_made is not None:
            self.on_made(made)
        return made

    async def _open_partitions(
        self, topic: TopicName, indexes: range, count: int, start: StartFilter | None, of: ConsumerConfiguration
    ) -> None:
        await self._open([self._make(topic.partition_topic(index), index, count, start, of) for index in indexes])

    def _share(self, count: int) -> int:
        """How many messages may wait of each partition of a topic; 0 partitions: of the topic."""
        return max(1, min(self._queue_size, self._queue_size_total // count)) if count else self._queue_size

    async def _open(self, made: list[PartitionConsumer]) -> None:
        taken = next((one.topic.full for one in made if one.topic.full in self._by_name), None)
        if taken is not None:
            raise InvalidConfiguration(f"{taken} is named twice, as a partition and with its topic: name it once")
        # Messages may come, and be acknowledged, before all are subscribed.
        self._enter(made)
        try:
            await together([consumer.open() for consumer in made])
            if self.closed:
                raise AlreadyClosed("the consumer is closed: subscribe again")
        except BaseException:
            self._forget(made)
            for consumer in made:
                self._queue.discard(consumer)
                await consumer.close()
            raise

    def _enter(self, made: list[PartitionConsumer]) -> None:
        for consumer in made:
            self.consumers.append(consumer)
            self.ours[consumer] = None
            self._by_name[consumer.topic.full] = consumer
            self._queue.counts[consumer] = ReceiveCounts(self._core.loop.time())

    def _forget(self, gone: list[PartitionConsumer]) -> None:
        for consumer in gone:
            if self.ours.pop(consumer, 0) is None:
                self.consumers.remove(consumer)
                del self._by_name[consumer.topic.full]
                self._queue.counts.pop(consumer, None)

    def _remove(self, topic: TopicName, gone: list[PartitionConsumer]) -> None:
        self._forget(gone)
        self.partitions.pop(topic, None)

    def _lost(self, source: object, error: MagnetarError) -> bool:
        """A broker's final refusal of one consumer: whether the others go on without it."""
        if not (self.several and isinstance(error, TopicNotFoundError) and isinstance(source, PartitionConsumer)):
            return False
        topic = source.topic.without_partition()
        if topic not in self.partitions:
            topic = source.topic
        gone = [one for one in self.consumers if one.topic.without_partition() == topic or one is source]
        self._remove(topic, gone)
        for one in gone:  # the partitions that have not failed yet: the topic may be joined again as a whole
            self._core.tasks.spawn(one.close(), f"leave {one.topic.full}"[:200])
        if self.on_lost is not None:
            self.on_lost()
        return True


def _of_topic(message: Message) -> MessageId:
    """The id of a message that came through another consumer, or out of a pickle, with its topic."""
    message_id = message.message_id()
    if isinstance(message_id, TopicMessageId):
        return message_id
    return TopicMessageId.of(message.topic_name(), message_id)
