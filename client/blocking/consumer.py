"""The blocking face of a consumer.

Its event listener is called in a thread of its own, one event after the other, so that it may call the consumer. The
thread ends when the consumer is closed.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ...protocol.errors import Timeout
from ..aio.consumer import is_enough
from ..aio.facts import ConsumerFacts
from ..aio.pausing import Pausing
from ..consuming.listeners import consumer_has_listener
from ..consuming.message import Message
from ..consuming.messages import Messages
from ..consuming.topic_consumer import SeekTarget, TopicConsumer
from ..core.configuration import ConsumerBatchReceivePolicy, ConsumerConfiguration
from ..core.failover_events import tell
from ..core.message_id import MessageId, TopicMessageId
from ..letters.handling import retry_is_off
from .pickling import OpensLater
from .receiving import Listener, Receiver

if TYPE_CHECKING:
    from .client import Client


def serve_events(face: object, consumer: TopicConsumer) -> None:
    """Start the thread, if the application wants to know. `face` is what the listener gets as its consumer."""
    listener, events = consumer.configuration.consumer_event_listener, consumer.receive_queue.events
    if listener is None or events is None:
        return
    queue: SimpleQueue[tuple[int, bool] | None] = SimpleQueue()

    def serve() -> None:
        while (event := queue.get()) is not None:
            tell(listener, face, *event)

    def deliver(partition: int, active: bool) -> None:
        queue.put((partition, active))

    threading.Thread(target=serve, name=f"magnetar-events {consumer.topic_text}", daemon=True).start()
    consumer.core.loop.call_soon_threadsafe(events.deliver_to, deliver, lambda: queue.put(None))


class Consumer(ConsumerFacts, Pausing, OpensLater[ConsumerConfiguration]):
    """Consumes topics under a subscription, from any thread. Made by `Client.subscribe`.

    Pickles as its client and configuration: the copy subscribes again when it is first used.
    """

    _SET_BY_OPENING = frozenset(
        {"_running", "_consumer", "_receive_queue", "_messages", "_receiver", "_listener", "_with_receipts"}
    )

    def __init__(self, client: "Client", consumer: TopicConsumer) -> None:
        self._client = client
        self._configuration = consumer.configuration
        self._running = client.running
        self._consumer = consumer
        self._receive_queue = consumer.receive_queue
        self._with_receipts = consumer.configuration.ack_receipt_enabled
        """Whether calls that acknowledge raise what keeps the broker from storing the acknowledgement."""
        if consumer.interception is not None:
            consumer.interception.show_as(self)
        self._messages = consumer.receive_queue.messages
        self._receiver = Receiver(client.running, consumer)
        self._listener = None
        listener = consumer.configuration.message_listener
        if listener is not None:
            self._listener = Listener(
                consumer.topic_text, self._receive_queue, self._next, lambda message: listener(self, message)
            )
        serve_events(self, consumer)
        client.close_when_forgotten(self, consumer)

    def _open(self) -> None:
        Consumer.__init__(self, self._client, self._client.open_consumer(self._configuration))

    def __enter__(self) -> "Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, timeout_millis: int | None = None) -> Message:
        return self._receiver.receive(timeout_millis)

    def receive(self, timeout_millis: int | None = None) -> Message:
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
        if self._listener is None:
            try:
                return self._messages.popleft()
            except IndexError:
                return self._receiver.receive(timeout_millis)
        raise consumer_has_listener()

    def receive_many(self, messages_max: int, timeout_millis: int | None = None) -> Messages:
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
        return self._receive_queue.take_many(messages_max) or self._receiver.receive_many(messages_max, timeout_millis)

    def batch_receive(self) -> list[Message]:
        """Receive messages until one limit of the `batch_receive_policy` is reached.

        Returns:
            The messages; empty if the time passes without any.

        Raises:
            AlreadyClosed: If the consumer is closed.
            MagnetarError: Why the subscription ended, or why the next message cannot be opened. In that case `details`
                say which message. It stays unacknowledged, and the next call goes on.
            InvalidConfiguration: If the messages go to a listener.
        """
        policy = self._consumer.configuration.batch_receive_policy or ConsumerBatchReceivePolicy()
        end = time.monotonic() + policy.timeout_ms / 1000 if policy.timeout_ms > 0 else None
        messages: list[Message] = []
        size = 0
        try:
            while not is_enough(policy, len(messages), size):
                left = None if end is None else max(0, int((end - time.monotonic()) * 1000))
                message = self._receiver.receive_unless_error(left) if messages else self.receive(left)
                if message is None:
                    break  # the messages first; the error is for the next call
                messages.append(message)
                size += len(message.data())
        except Timeout:
            pass  # the policy's time is one of its limits
        except BaseException:  # such as KeyboardInterrupt, which is how Ray cancels a task
            self._receive_queue.put_back(messages)
            raise
        return messages

    def acknowledge(self, message: Message | MessageId) -> None:
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
            self._running.run(self._consumer.receipts())

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledge many messages at once.

        Args:
            messages: Messages, or their ids.

        Raises:
            AlreadyClosed: If the consumer is closed.
            OperationNotSupported: If the id belongs to another topic, or to a batch of unknown size.
        """
        self._consumer.acknowledge_many(messages)
        if self._with_receipts:
            self._running.run(self._consumer.receipts())

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
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
            self._running.run(self._consumer.receipts())

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have a message delivered again after `negative_ack_redelivery_delay_ms`.

        Args:
            message: The message, or its id.

        Raises:
            AlreadyClosed: If the consumer is closed.
            OperationNotSupported: If the id belongs to another topic, or to a batch of unknown size.
        """
        self._consumer.negative_acknowledge(message)

    def reconsume_later(
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
        self._running.run(letters.reconsume_later(message, delay, properties))

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages delivered again."""
        self._running.run(_later(self._consumer.redeliver_unacknowledged_messages))

    def seek(self, messageid: SeekTarget) -> None:
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
        self._running.run(self._consumer.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        """Return the id of the last message of the topic.

        Returns:
            The id; `MessageId.earliest` if the topic has no message.

        Raises:
            OperationNotSupported: On a partitioned topic, or with several topics.
            MagnetarError: What the broker answers, as the class of its error.
        """
        return self._running.run(self._consumer.get_last_message_id())

    def last_message_ids(self) -> list[TopicMessageId]:
        """Return the id of the last message of each topic or partition.

        Returns:
            The ids, each with its topic. Where there is no message, the place is that of `MessageId.earliest`.

        Raises:
            MagnetarError: What the broker answers, as the class of its error.
        """
        return self._running.run(self._consumer.last_message_ids())

    def unsubscribe(self) -> None:
        """Delete the subscription and close the consumer.

        Raises:
            MagnetarError: What the broker answers, as the class of its error.
        """
        self._running.run(self._consumer.unsubscribe())
        self.close()

    def close(self) -> None:
        """Send waiting acknowledgements and close the consumer.

        A second call does nothing.
        """
        if self.is_unopened:
            return
        self._client.close_one(self._consumer)
        if self._listener is not None:
            self._listener.stop()


async def _later(function: Callable[[], None]) -> None:
    function()
