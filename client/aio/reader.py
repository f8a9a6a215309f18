"""Reading a topic without a subscription that outlives the reader: the asyncio face, and what knows the position.

A reader is a consumer of a non-durable subscription of its own. Its position is the last message that the application
took, or the wanted start. The position decides whether there is more to read. Messages are acknowledged as they are
taken, so that the broker keeps no backlog.
"""

from collections.abc import Sequence
from functools import partial
from typing import cast

from ...protocol.errors import MagnetarError, OperationNotSupported
from ...protocol.message_id import Position
from ..consuming.message import Message
from ..consuming.partition_consumer import PartitionConsumer
from ..consuming.start_filter import StartFilter
from ..consuming.topic_consumer import SeekTarget, TopicConsumer
from ..core.configuration import ConsumerConfiguration, InitialPosition, ReaderConfiguration
from ..core.context import Core
from ..core.message_id import MessageId
from .consumer import AsyncConsumer
from .facts import state_text
from .hash_ranges import key_hash
from .listeners import reader_has_listener


class TopicReader:
    """The consumer of a reader, and the reader's position in each partition."""

    def __init__(self, core: Core, configuration: ReaderConfiguration) -> None:
        prefix = configuration.subscription_role_prefix
        name = configuration.subscription_name or f"{prefix or 'reader'}-{core.environment.random.hex(5)}"
        start = configuration.start_message_id
        self.configuration = configuration
        self.consumer = TopicConsumer(
            core,
            ConsumerConfiguration(
                topic=configuration.topic,
                subscription_name=name,
                consumer_name=configuration.reader_name,
                receiver_queue_size=configuration.receiver_queue_size,
                is_read_compacted=configuration.is_read_compacted,
                initial_position=InitialPosition.Latest if start == MessageId.latest else InitialPosition.Earliest,
                start_message_id_inclusive=configuration.start_message_id_inclusive,
                schema=configuration.schema,
                crypto_key_reader=configuration.crypto_key_reader,
                crypto_failure_action=configuration.crypto_failure_action,
                max_pending_chunked_message=configuration.max_pending_chunked_message,
                auto_ack_oldest_chunked_message_on_queue_full=configuration.auto_ack_oldest_chunked_message_on_queue_full,
                expire_time_of_incomplete_chunked_message_ms=configuration.expire_time_of_incomplete_chunked_message_ms,
            ),
            StartFilter(start, configuration.start_message_id_inclusive),
        )
        self._taken: dict[str, MessageId] = {}
        """By topic or partition."""
        self._start: MessageId | int = start
        self._starts: dict[str, MessageId | int] = {}
        """Where seeks moved single topics or partitions."""
        self._passed: dict[str, MessageId] = {}
        """By topic or partition: the last message that was left out because of its key."""
        self._ranges = configuration.key_hash_ranges
        if self._ranges is not None:
            self.consumer.receive_queue.screen = self._of_wanted_keys

    async def open(self) -> None:
        """Subscribe at the start. Raises as a consumer does, OperationNotSupported for an id on a partitioned topic."""
        await self.consumer.open()
        start, consumers = self._start, self.consumer.consumers
        if isinstance(start, MessageId) and start not in (MessageId.earliest, MessageId.latest) and len(consumers) > 1:
            await self.consumer.close()
            raise OperationNotSupported(
                "a reader of several topics or partitions starts at MessageId.earliest or MessageId.latest: for any "
                "other id, read one of them, or seek"
            )
        if start == MessageId.latest and self.configuration.start_message_id_inclusive:
            for consumer in consumers:
                last = MessageId.from_wire((await self.consumer.ask_last_message_id(consumer)).last_message_id)
                if last.entry_id() >= 0:
                    ledger_id, entry_id, index, _, size = last
                    where = MessageId(consumer.partition, ledger_id, entry_id, index, size)
                    await self.consumer.seek_partition(consumer, where, inclusive=True)
                    self._start = where if len(consumers) == 1 else start

    def took(self, message: Message) -> None:
        """The application has this message. May be called from any thread."""
        message_id = message.message_id()
        self._taken[message.topic_name()] = message_id
        if message_id.batch_index() >= message_id.batch_size() - 1:
            self.consumer.acknowledge_cumulative(message_id.whole_entry)

    def _of_wanted_keys(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Those whose key is in the reader's ranges. Called where the application opens entries."""
        wanted: list[Message] = []
        for message in messages:
            hashed = key_hash(message)
            if any(start <= hashed <= end for start, end in self._ranges or ()):
                wanted.append(message)
            else:
                self._passed[message.topic_name()] = message.message_id()
        return wanted

    def missed(self, error: MagnetarError) -> None:
        """`receive` raised this. If it stands for a message that could not be opened, the reader is past that."""
        place = error.details
        if "entry_id" in place:
            partition, ledger_id, entry_id = (cast(int, place[name]) for name in ("partition", "ledger_id", "entry_id"))
            self._taken[str(place["topic"])] = MessageId(partition, ledger_id, entry_id)

    async def seek(self, target: SeekTarget) -> None:
        """Move to a message id or a publish time (ms), or each topic to what a function says."""
        if callable(target):
            chosen: dict[str, MessageId | int] = {}
            choose = target

            def noted(topic: str) -> MessageId | int:
                chosen[topic] = choose(topic)
                return chosen[topic]

            await self.consumer.seek(noted)
            self._passed.clear()
            self._starts.update(chosen)
            self._taken.clear()
            return
        await self.consumer.seek(target)
        self._passed.clear()
        if isinstance(target, MessageId) and target not in (MessageId.earliest, MessageId.latest):
            topic = self.consumer.topics.source_of(target.whole_entry).topic.full
            self._starts[topic] = target
            self._taken.pop(topic, None)
        else:
            self._start = target
            self._starts.clear()
            self._taken.clear()

    async def has_message_available(self) -> bool:
        """Whether there is a message behind the reader's position now."""
        if not self.consumer.receive_queue.is_empty():
            return True
        for consumer in self.consumer.consumers:
            if await self._has_more(consumer):
                return True
        return False

    async def _has_more(self, consumer: PartitionConsumer) -> bool:
        answer = await self.consumer.ask_last_message_id(consumer)
        last = MessageId.from_wire(answer.last_message_id)
        if last.entry_id() < 0:
            return False
        taken, passed = self._taken.get(consumer.topic.full), self._passed.get(consumer.topic.full)
        if passed is not None and (taken is None or _is_behind(passed, taken)):
            taken = passed
        if taken is not None:
            return _is_behind(last, taken)
        start = self._starts.get(consumer.topic.full, self._start)
        if start == MessageId.earliest:
            return True
        if isinstance(start, MessageId) and start != MessageId.latest:
            return last.position > start.position or (
                last.position == start.position
                and (self.configuration.start_message_id_inclusive or _is_behind(last, start))
            )
        if not answer.HasField("consumer_mark_delete_position"):
            return False
        done: Position = MessageId.from_wire(answer.consumer_mark_delete_position).position
        return last.position > done


def _is_behind(last: MessageId, place: MessageId) -> bool:
    """Whether `last` comes after `place`; a place without batch index stands for its whole entry."""
    if last.position != place.position:
        return last.position > place.position
    return place.batch_index() >= 0 and last.batch_index() > place.batch_index()


class ReaderFacts:
    """What a reader says about itself, the same in both faces."""

    _reader: TopicReader

    def __repr__(self) -> str:
        if "_reader" not in self.__dict__:  # it came out of a pickle, and asking would open it
            return f"<{type(self).__name__}, not opened yet>"
        made = self._reader.consumer
        state = state_text(made.receive_queue.failure, made.is_connected)
        return f"<{type(self).__name__} {made.configuration.subscription_name!r} on {made.topic_text}, {state}>"

    def topic(self) -> str:
        """Return the full name of the topic.

        Returns:
            Such as `persistent://public/default/greetings`.
        """
        return self._reader.consumer.topic_text

    def is_connected(self) -> bool:
        """Return whether the reader is connected to the broker of every partition.

        Returns:
            True if it is.
        """
        return self._reader.consumer.is_connected


class AsyncReader(ReaderFacts):
    """Reads topics from a given position. Made by `AsyncClient.create_reader`."""

    def __init__(self, core: Core, reader: TopicReader) -> None:
        self._reader = reader
        self._consumer = AsyncConsumer(core, reader.consumer)
        heard = reader.configuration.reader_listener
        self._has_listener = heard is not None
        if heard is not None:
            self._consumer._listen(self._take, partial(heard, self))  # pyright: ignore[reportPrivateUsage] (the other face of the same)

    def _take(self) -> Message | None:
        try:
            message = self._reader.consumer.receive_queue.take()
        except MagnetarError as error:
            self._reader.missed(error)
            raise
        if message is not None:
            self._reader.took(message)
        return message

    def is_open(self) -> bool:
        """Return whether messages may still come.

        Returns:
            False when the reader was closed or has failed.
        """
        return self._reader.consumer.receive_queue.failure is None

    async def read_next(self, timeout_millis: int | None = None) -> Message:
        """Read the next message, waiting for it.

        Args:
            timeout_millis: Milliseconds to wait; None waits without end.

        Returns:
            The message.

        Raises:
            Timeout: If no message comes in time.
            AlreadyClosed: If the reader is closed.
            MagnetarError: Why the reader ended, or why the next message cannot be opened.
            InvalidConfiguration: If the messages go to a listener.
        """
        if self._has_listener:
            raise reader_has_listener()
        try:
            message = await self._consumer.receive(timeout_millis)
        except MagnetarError as error:
            self._reader.missed(error)
            raise
        self._reader.took(message)
        return message

    async def has_message_available(self) -> bool:
        """Return whether there is a message behind the reader's position now.

        Returns:
            True if there is.

        Raises:
            MagnetarError: What the broker answers, as the class of its error.
        """
        return await self._reader.has_message_available()

    async def seek(self, messageid: SeekTarget) -> None:
        """Move to a message or to a publish time.

        The next message is the one behind the id, or that message itself with `start_message_id_inclusive`.

        Args:
            messageid: A message id, a publish time in ms since the epoch, or a function. The client calls a function
                with each topic or partition, and it returns an id or a time.

        Raises:
            Timeout: If it takes longer than `operation_timeout_seconds`.
            MagnetarError: What the broker answers, as the class of its error.
        """
        await self._reader.seek(messageid)

    async def close(self) -> None:
        """Close the reader.

        A listener gets no further message. The call waits up to 5 s for the one that it handles, then cancels it; a
        listener that calls this itself goes on. A second call does nothing.
        """
        await self._consumer.close()
