"""The asyncio face of a consumer."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TypeVar

from ...protocol.errors import Timeout
from ..consuming.entry_feed import EntryFeed
from ..consuming.listeners import LoopListener, consumer_has_listener
from ..consuming.message import Message
from ..consuming.messages import Messages
from ..consuming.topic_consumer import SeekTarget, TopicConsumer
from ..core.configuration import ConsumerBatchReceivePolicy
from ..core.context import Core
from ..core.failover_events import tell
from ..core.message_id import MessageId, TopicMessageId
from ..core.threading_bridge import LoopSignal
from ..letters.handling import retry_is_off
from .facts import ConsumerFacts
from .pausing import Pausing

logger = logging.getLogger(__name__)

T = TypeVar("T")


class AsyncConsumer(ConsumerFacts, Pausing):
    """Consumes topics under a subscription. Made by `AsyncClient.subscribe`."""

    def __init__(self, core: Core, consumer: TopicConsumer) -> None:
        self._core = core
        self._consumer = consumer
        self._receive_queue = consumer.receive_queue
        self._with_receipts = consumer.configuration.ack_receipt_enabled
        """Whether calls that acknowledge raise what keeps the broker from storing the acknowledgement."""
        if consumer.interception is not None:
            consumer.interception.show_as(self)
        self._receive_queue.defers = True
        listener, events = consumer.configuration.consumer_event_listener, consumer.receive_queue.events
        if listener is not None and events is not None:
            events.deliver_to(partial(tell, listener, self))
        self._listener = None
        heard = consumer.configuration.message_listener
        if heard is not None:
            self._listener = self._listen(self._receive_queue.take, partial(heard, self))

    def _listen(self, take: Callable[[], Message | None], handle: Callable[[Message], object]) -> LoopListener:
        """Hand all messages to come to `handle`, in a task that ends with the consumer."""
        started = self._consumer.listening = LoopListener(self._consumer, self._arrival, take, handle)
        return started

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """Receive the next message, waiting for it.

        Args:
            timeout_millis: Milliseconds to wait; None waits without end.

        Returns:
            The message.

        Raises:
            Timeout: If no message comes in time.
            AlreadyClosed: If the consumer is closed.
            MagnetarError: Why the subscription ended, or why the next message cannot be opened. In that case `details`
                say which message. It stays unacknowledged, and the next call goes on.
            InvalidConfiguration: If the messages go to a listener.
        """
        if self._listener is not None:
            raise consumer_has_listener()
        return await self._take(self._receive_queue.take, timeout_millis)

    async def receive_many(self, messages_max: int, timeout_millis: int | None = None) -> Messages:
        """Receive what is here, or the first message to come.

        What lies before a message that cannot be opened is returned first.

        Args:
            messages_max: Maximum number of messages to return.
            timeout_millis: Milliseconds to wait; None waits without end.

        Returns:
            At least one message.

        Raises:
            Timeout: If no message comes in time.
            AlreadyClosed: If the consumer is closed.
            MagnetarError: Why the subscription ended, or why the next message cannot be opened. In that case `details`
                say which message. It stays unacknowledged, and the next call goes on.
            InvalidConfiguration: If the messages go to a listener.
        """
        if self._listener is not None:
            raise consumer_has_listener()
        return await self._take(lambda: self._receive_queue.take_many(messages_max) or None, timeout_millis)

    async def _take(self, take: Callable[[], T | None], timeout_millis: int | None) -> T:
        """What `take` gives as soon as there is something."""
        taken = take()
        if taken is not None and self._receive_queue.failure is None:
            return taken
        try:
            async with asyncio.timeout(None if timeout_millis is None else timeout_millis / 1000):
                while True:
                    await self._arrival()
                    taken = take()
                    if taken is not None:
                        return taken
        except TimeoutError:
            raise Timeout(f"no message arrived within {timeout_millis} ms") from None

    async def batch_receive(self) -> list[Message]:
        """Receive messages until one limit of the `batch_receive_policy` is reached.

        Returns:
            The messages; empty if the time passes without any.

        Raises:
            AlreadyClosed: If the consumer is closed.
            MagnetarError: Why the subscription ended, or why the next message cannot be opened. In that case `details`
                say which message. It stays unacknowledged, and the next call goes on.
            InvalidConfiguration: If the messages go to a listener.
        """
        if self._listener is not None:
            raise consumer_has_listener()
        policy = self._consumer.configuration.batch_receive_policy or ConsumerBatchReceivePolicy()
        messages: list[Message] = []
        size = 0
        try:
            async with asyncio.timeout(policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None):
                while not is_enough(policy, len(messages), size):
                    if messages:
                        await self._arrival()
                        message = self._receive_queue.take(raises=False)
                        if message is None:
                            if self._receive_queue.is_at_error:
                                break  # the messages first; the error is for the next call
                            continue
                    else:
                        message = await self.receive()
                    messages.append(message)
                    size += len(message.data())
        except TimeoutError:
            pass  # the policy's time is one of its limits
        except BaseException:  # the caller was cancelled, or the consumer has ended
            self._receive_queue.put_back(messages)
            raise
        return messages

    async def acknowledge(self, message: Message | MessageId) -> None:
        """Acknowledge a message.

        The client sends acknowledgements together, within 100 ms.

        Args:
            message: The message, or its id.

        Raises:
            AlreadyClosed: If the consumer is closed.
            OperationNotSupported: If the id belongs to another topic, or to a batch of unknown size.
        """
        self._consumer.acknowledge(message)
        if self._with_receipts:
            await self._consumer.receipts()

    async def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledge many messages at once.

        Args:
            messages: Messages, or their ids.

        Raises:
            AlreadyClosed: If the consumer is closed.
            OperationNotSupported: If the id belongs to another topic, or to a batch of unknown size.
        """
        self._consumer.acknowledge_many(messages)
        if self._with_receipts:
            await self._consumer.receipts()

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and including a message.

        Args:
            message: The message, or its id.

        Raises:
            CumulativeAcknowledgementNotAllowedError: On a Shared subscription.
            AlreadyClosed: If the consumer is closed.
            OperationNotSupported: If the id belongs to another topic, or to a batch of unknown size.
        """
        self._consumer.acknowledge_cumulative(message)
        if self._with_receipts:
            await self._consumer.receipts()

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have a message delivered again after `negative_ack_redelivery_delay_ms`.

        Args:
            message: The message, or its id.

        Raises:
            AlreadyClosed: If the consumer is closed.
            OperationNotSupported: If the id belongs to another topic, or to a batch of unknown size.
        """
        self._consumer.negative_acknowledge(message)

    async def reconsume_later(
        self, message: Message, delay: timedelta | int = 0, properties: Mapping[str, str] | None = None
    ) -> None:
        """Store a copy of a message in the retry letter topic, then acknowledge the message.

        The copy comes when the delay has passed. After `max_redeliver_count` attempts it goes to the dead letter topic
        instead.

        Args:
            message: The message.
            delay: Time until the next attempt, as a timedelta or in milliseconds.
            properties: Properties that the copy gets beside those of the message.

        Raises:
            OperationNotSupported: Without `enable_retry`, or if the message belongs to another consumer.
            InvalidMessage: If the delay or the properties are impossible.
            AlreadyClosed: If the consumer is closed.
            MagnetarError: Why the copy could not be stored. The message is not acknowledged then.
        """
        letters = self._consumer.letters
        if letters is None:
            raise retry_is_off()
        await letters.reconsume_later(message, delay, properties)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages delivered again."""
        self._consumer.redeliver_unacknowledged_messages()

    async def seek(self, messageid: SeekTarget) -> None:
        """Move the subscription to a message or to a publish time.

        The next message is the one behind the id, or that message itself with `start_message_id_inclusive`.

        Args:
            messageid: A message id, a publish time in ms since the epoch, or a function. The client calls a function
                with each topic or partition, and it returns an id or a time.

        Raises:
            Timeout: If it takes longer than `operation_timeout_seconds`.
            OperationNotSupported: If the id belongs to another topic.
            MagnetarError: What the broker answers, as the class of its error.
        """
        await self._consumer.seek(messageid)

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the last message of the topic.

        Returns:
            The id; `MessageId.earliest` if the topic has no message.

        Raises:
            OperationNotSupported: On a partitioned topic, or with several topics.
            MagnetarError: What the broker answers, as the class of its error.
        """
        return await self._consumer.get_last_message_id()

    async def last_message_ids(self) -> list[TopicMessageId]:
        """Return the id of the last message of each topic or partition.

        Returns:
            The ids, each with its topic. Where there is no message, the place is that of `MessageId.earliest`.

        Raises:
            MagnetarError: What the broker answers, as the class of its error.
        """
        return await self._consumer.last_message_ids()

    async def unsubscribe(self) -> None:
        """Delete the subscription and close the consumer.

        Raises:
            MagnetarError: What the broker answers, as the class of its error.
        """
        await self._consumer.unsubscribe()

    async def close(self) -> None:
        """Send waiting acknowledgements and close the consumer.

        A listener gets no further message. The call waits up to 5 s for the one that it handles, then cancels it; a
        listener that calls this itself goes on. A second call does nothing.
        """
        await self._consumer.close()

    async def _arrival(self) -> None:
        """Until there may be a message. Raises why there will be none."""
        queue = self._receive_queue
        if queue.failure is not None:
            raise queue.failure
        if queue.unprepared() is not None:
            await self._consumer.prepare()
            return
        if not queue.is_empty():
            return
        signal = queue.arrival
        assert isinstance(signal, LoopSignal)
        self._consumer.ask_for_one()
        queue.waiting += 1
        try:
            await signal.wait()
        finally:
            queue.waiting -= 1
        if queue.failure is not None:
            raise queue.failure


async def give_up(consumer: AsyncConsumer, message: Message, properties: Mapping[str, str] | None = None) -> None:
    """Store a copy of a message in the dead letter topic, then acknowledge the message.

    The copy gets `properties` beside those of the message. The consumer has a dead letter policy. Raises why the copy
    could not be stored. Then the message is not acknowledged.
    """
    letters = consumer._consumer.letters  # pyright: ignore[reportPrivateUsage] (a call that is not of the face)
    assert letters is not None
    await letters.give_up(message, properties)


def resize_receiver_queue(consumer: AsyncConsumer, size: int) -> None:
    """Let so many messages of each topic wait in the consumer from now on, at least one. It must have a queue."""
    consumer._consumer.topics.resize(size)  # pyright: ignore[reportPrivateUsage] (a call that is not of the face)


def acknowledge_now(consumer: AsyncConsumer, messages: Sequence[Message], *, at_once: bool) -> None:
    """Acknowledge messages. Receipts are not waited for. `at_once` sends what is acknowledged without its timer."""
    topics = consumer._consumer  # pyright: ignore[reportPrivateUsage] (a call that is not of the face)
    topics.acknowledge_many(messages)
    for partition in topics.consumers if at_once else ():
        partition.acks.flush()


def entry_feed(consumer: AsyncConsumer) -> EntryFeed:
    """The consumer's entries in place of its messages. The consumer must not receive besides."""
    return EntryFeed(consumer._consumer)  # pyright: ignore[reportPrivateUsage] (a call that is not of the face)


def is_enough(policy: ConsumerBatchReceivePolicy, messages: int, size_bytes: int) -> bool:
    """Whether one of the policy's limits is reached."""
    if 0 < policy.max_num_message <= messages:
        return True
    return 0 < policy.max_num_bytes <= size_bytes
