"""Reading a topic without a subscription that outlives the reader: the asyncio face, and what knows the position.

A reader is a consumer of a non-durable subscription of its own. There is more to read when the receive queue has a
message. When it has none, the broker says where the topic ends, and the reader waits until everything up to there has
come. What came and is not for the application counts as read. That is chunks of a message that did not become complete,
a chunk that was stored twice, discarded and compacted messages, and keys of other ranges. So the answer is never yes
for something that will not be delivered. What the broker itself passes over moves the subscription's position there,
which it is asked for again now and then. Messages are acknowledged as they are taken, so that the broker keeps no
backlog.

Ranges of key hashes: which messages a reader of some of them wants.

The hash is Pulsar's for sticky keys: Murmur3 of the key, modulo 65,536. The key is the ordering key, else the partition
key, else the producer's name and the sequence id.
"""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from functools import partial

from ...protocol.errors import OperationNotSupported, Timeout
from ...protocol.hashing import murmur3_32
from ...runtime.backoff import Backoff
from ...runtime.tasks import together
from ..consuming.listeners import reader_has_listener
from ..consuming.message import Message
from ..consuming.partition_consumer import PartitionConsumer
from ..consuming.start_filter import StartFilter
from ..consuming.topic_consumer import SeekTarget, TopicConsumer
from ..core.configuration import ConsumerConfiguration, InitialPosition, ReaderConfiguration
from ..core.context import Core
from ..core.key_shared_policy import HASHES
from ..core.message_id import MessageId
from .consumer import AsyncConsumer
from .facts import state_text


def key_hash(message: Message) -> int:
    """The hash that places a message."""
    return murmur3_32(_sticky_key(message)) % HASHES


def _sticky_key(message: Message) -> bytes:
    ordering_key = message.ordering_key()
    if ordering_key:
        return ordering_key.encode("utf-8", "surrogateescape")
    key = message.partition_key()
    if key:
        single = message[3]
        if single is not None and single.partition_key_b64_encoded:
            try:
                return base64.b64decode(key)
            except binascii.Error:
                return key.encode()
        return key.encode()
    return f"{message.producer_name()}-{message.sequence_id()}".encode()


ASK_AGAIN_INITIAL_S = 0.05
ASK_AGAIN_MAX_S = 1.0


class TopicReader:
    """The consumer of a reader, and the reader's position in each partition."""

    def __init__(self, core: Core, configuration: ReaderConfiguration) -> None:
        prefix = configuration.subscription_role_prefix
        name = configuration.subscription_name or f"{prefix or 'reader'}-{core.environment.random.hex(5)}"
        start = configuration.start_message_id
        position = InitialPosition.Latest if start == MessageId.latest else InitialPosition.Earliest
        own = {"subscription_name": name, "consumer_name": configuration.reader_name, "initial_position": position}
        self.configuration = configuration
        self.consumer = TopicConsumer(
            core,
            ConsumerConfiguration.of(configuration.shared_with(ConsumerConfiguration) | own),
            StartFilter(start, configuration.start_message_id_inclusive),
        )
        self._ranges = configuration.key_hash_ranges
        if self._ranges is not None:
            self.consumer.receive_queue.screen = self._of_wanted_keys

    async def open(self) -> None:
        """Subscribe at the start. Raises as a consumer does, OperationNotSupported for an id on a partitioned topic."""
        await self.consumer.open()
        start, consumers = self.configuration.start_message_id, self.consumer.consumers
        if start not in (MessageId.earliest, MessageId.latest) and len(consumers) > 1:
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

    def took(self, message: Message) -> None:
        """The application has this message. May be called from any thread."""
        message_id = message.message_id()
        if message_id.batch_index() >= message_id.batch_size() - 1:
            self.consumer.acknowledge_cumulative(message_id.whole_entry)

    def _of_wanted_keys(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Those whose key is in the reader's ranges. Called where the application opens entries."""
        ranges = self._ranges or ()
        return [one for one in messages if any(start <= key_hash(one) <= end for start, end in ranges)]

    async def has_message_available(self) -> bool:
        """Whether the next read gets a message without waiting. Raises Timeout when the broker does not send it."""
        core = self.consumer.core
        backoff = Backoff(core.environment.random, ASK_AGAIN_INITIAL_S, ASK_AGAIN_MAX_S)
        end_s = core.loop.time() + core.timeout_s
        while not await self._has_message():
            coming = await self._coming()
            if not coming:
                return await self._has_message()
            left_s = end_s - core.loop.time()
            if left_s <= 0:
                raise Timeout(
                    f"{self.consumer.topic_text} has messages behind the reader's position that no broker has sent "
                    f"within {core.timeout_s:g} s"
                )
            try:
                async with asyncio.timeout(min(left_s, backoff.next_delay_s())):
                    while not self._is_settled(coming):
                        await self.consumer.receive_queue.progress.wait()
            except TimeoutError:
                pass  # ask again: the broker may have passed over the rest
        return True

    async def _has_message(self) -> bool:
        """Whether the receive queue has a message, or an error to raise."""
        queue = self.consumer.receive_queue
        while queue.is_empty():
            if queue.unprepared() is None:
                return False
            await self.consumer.prepare()
        return True

    async def _coming(self) -> list[tuple[PartitionConsumer, MessageId]]:
        """Which partitions have more than what came, and up to where."""
        consumers = [*self.consumer.consumers]
        answers = await together([self.consumer.ask_last_message_id(one) for one in consumers])
        coming: list[tuple[PartitionConsumer, MessageId]] = []
        for consumer, answer in zip(consumers, answers, strict=True):
            last = MessageId.from_wire(answer.last_message_id)
            # What the broker counts as acknowledged before the reader had it, it does not send.
            done = MessageId.from_wire(answer.consumer_mark_delete_position).position
            passed = answer.HasField("consumer_mark_delete_position") and last.position <= done
            if not (passed or consumer.has_come(last)):
                coming.append((consumer, last))
        return coming

    def _is_settled(self, coming: Sequence[tuple[PartitionConsumer, MessageId]]) -> bool:
        """Whether waiting for these is over."""
        queue = self.consumer.receive_queue
        return queue.has_more() or queue.failure is not None or all(one.has_come(last) for one, last in coming)


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
        message = self._reader.consumer.receive_queue.take()
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
        message = await self._consumer.receive(timeout_millis)
        self._reader.took(message)
        return message

    async def has_message_available(self) -> bool:
        """Return whether there is a message behind the reader's position now.

        It waits for messages that are on their way. What will not be delivered does not count.

        Returns:
            True if there is: the next read does not wait.

        Raises:
            Timeout: If the broker has more, and does not send it within `operation_timeout_seconds`.
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
        await self._reader.consumer.seek(messageid)

    async def close(self) -> None:
        """Close the reader.

        A listener gets no further message. The call waits up to 5 s for the one that it handles, then cancels it; a
        listener that calls this itself goes on. A second call does nothing.
        """
        await self._consumer.close()


class ArrivedMessages:
    """What of a reader's topics has come, for those who do not wait and do not ask. A call that is not of the face."""

    def __init__(self, reader: AsyncReader) -> None:
        self._reader = reader._reader  # pyright: ignore[reportPrivateUsage] (a call that is not of the face)

    def take(self) -> Message | None:
        """The next message, None if none is here now. Raises why the next one cannot be opened."""
        message = self._reader.consumer.receive_queue.take()
        if message is not None:
            self._reader.took(message)
        return message

    @property
    def is_held_up(self) -> bool:
        """Whether what comes next has come, and must be opened on a thread first."""
        return self._reader.consumer.receive_queue.unprepared() is not None

    @property
    def subscribed_as(self) -> tuple[int, ...] | None:
        """The ids that brokers know the reader by, new ones after each loss of its place. None while it has none."""
        consumer = self._reader.consumer
        if not consumer.is_connected or consumer.receive_queue.failure is not None:
            return None
        return tuple([one.registration.id for one in consumer.consumers])
