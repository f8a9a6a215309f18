"""What an ordered, durable subscription delivers, entry by entry and unopened. Bulk readers decode entries themselves.

Permits, reconnecting, chunks and acknowledgement are those of the `TopicConsumer` below. Entries of one partition come
in order. After each SUBSCRIBE what is not acknowledged comes again, so an entry may come more than once: who takes
entries remembers where it is. All calls are for the loop.
"""

from collections.abc import Mapping

from ...protocol.message_id import Position, position_of
from ...runtime.tasks import together
from ..core.message_id import MessageId
from ..core.threading_bridge import LoopSignal
from .message import ReceivedEntry
from .partition_consumer import PartitionConsumer
from .topic_consumer import TopicConsumer


class EntryFeed:
    """The entries of one consumer. See the module."""

    def __init__(self, consumer: TopicConsumer) -> None:
        self._consumer = consumer
        self._queue = consumer.receive_queue

    async def receive(self) -> ReceivedEntry:
        """The next entry. A cancelled call has taken none.

        Raises ChecksumError for a damaged one, which comes again later, and why the subscription has ended.
        """
        while True:
            entry = self._queue.take_entry()
            if entry is not None:
                return entry
            if self._queue.failure is not None:
                raise self._queue.failure
            signal = self._queue.arrival
            assert isinstance(signal, LoopSignal)
            self._queue.waiting += 1
            try:
                await signal.wait()
            finally:
                self._queue.waiting -= 1

    def take(self) -> ReceivedEntry | None:
        """The next entry if one is here now. Raises as `receive` does for a damaged one."""
        return self._queue.take_entry()

    async def marks(self) -> dict[str, Position]:
        """By partition (its full name): the entry up to which everything is acknowledged, as its broker says.

        Raises what the brokers answer, ConnectionClosed, Timeout.
        """
        consumers = [*self._consumer.consumers]
        answers = await together([self._consumer.ask_last_message_id(one) for one in consumers])
        return {
            one.topic.full: position_of(answer.consumer_mark_delete_position)
            for one, answer in zip(consumers, answers, strict=True)
        }

    def first_chunk(self, topic: str) -> Position | None:
        """Of the messages in chunks that came and were not taken, whole or not: where the first chunk of all lies."""
        consumer = self._of(topic)
        return min([*self._queue.first_chunks(consumer), *consumer.incomplete_from()], default=None)

    async def seek(self, topic: str, target: MessageId, *, inclusive: bool) -> None:
        """Move the subscription of one partition to a message, or behind it. Raises what `seek` of a consumer does."""
        await self._consumer.seek_partition(self._of(topic), target, inclusive=inclusive)

    def acknowledge(self, up_to: Mapping[str, MessageId]) -> None:
        """Of each of these partitions everything is done up to and with this message."""
        for topic, message_id in up_to.items():
            self._of(topic).acks.acknowledge_cumulative(message_id)

    def _of(self, topic: str) -> PartitionConsumer:
        return next(one for one in self._consumer.consumers if one.topic.full == topic)
