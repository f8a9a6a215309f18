"""The blocking faces of consumer and reader, and the thread that calls listeners."""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from ...protocol.errors import InvalidConfiguration, MagnetarError, OperationNotSupported, Timeout
from ..aio.consumer import is_enough
from ..aio.facts import ConsumerFacts
from ..aio.reader import ReaderFacts, TopicReader
from ..consuming.message import Message
from ..consuming.messages import Messages
from ..consuming.receive_queue import ReceiveQueue
from ..consuming.topic_consumer import SeekTarget, TopicConsumer
from ..core.configuration import ConsumerBatchReceivePolicy, ConsumerConfiguration, ReaderConfiguration
from ..core.message_id import MessageId, TopicMessageId
from .loop import Running
from .pickling import Opener, OpensLater

logger = logging.getLogger(__name__)

T = TypeVar("T")

LISTENER_STOP_TIMEOUT_S = 5.0


class Receiver:
    """Takes messages from a receive queue, and waits if there are none."""

    def __init__(self, running: Running, consumer: TopicConsumer) -> None:
        self._running = running
        self._consumer = consumer
        self._receive_queue = consumer.receive_queue
        self._wake = consumer.core.handover.wake

    def receive(self, timeout_millis: int | None) -> Message:
        """The next message. Raises Timeout, why it cannot be opened, or why there will be none."""
        return self._take(self._receive_queue.take, timeout_millis)

    def receive_many(self, messages_max: int, timeout_millis: int | None) -> Messages:
        """The next messages, at least one. Raises as `receive`."""
        return self._take(lambda: self._receive_queue.take_many(messages_max) or None, timeout_millis)

    def receive_unless_error(self, timeout_millis: int | None) -> Message | None:
        """As `receive`, but None if the next one cannot be opened: that is left for another call."""
        queue = self._receive_queue

        def take() -> list[Message | None] | None:
            message = queue.take(raises=False)
            return [message] if message is not None or queue.is_at_error else None

        return self._take(take, timeout_millis)[0]

    def _take(self, take: Callable[[], T | None], timeout_millis: int | None) -> T:
        """What `take` gives as soon as there is something."""
        if self._running.is_here():
            raise OperationNotSupported(
                "a callback runs on the client's loop and cannot wait for a message: call receive in another thread"
            )
        end = None if timeout_millis is None else time.monotonic() + timeout_millis / 1000
        queue = self._receive_queue
        while True:
            if queue.failure is not None:
                raise queue.failure
            taken = take()
            if taken is not None:
                return taken
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise Timeout(f"no message arrived within {timeout_millis} ms")
            if not self._consumer.configuration.receiver_queue_size:
                self._wake(self._consumer.ask_for_one)
            arrival = queue.arrival
            assert isinstance(arrival, threading.Condition)
            with arrival:
                queue.waiting += 1
                try:
                    if not queue.has_more() and queue.failure is None:
                        arrival.wait(left)
                finally:
                    queue.waiting -= 1


class Consumer(ConsumerFacts, OpensLater[ConsumerConfiguration]):
    """Consumes topics under a subscription, from any thread. Made by `Client.subscribe`.

    Pickles as its client and configuration: the copy subscribes again when it is first used.
    """

    _SET_BY_OPENING = frozenset({"_running", "_consumer", "_receive_queue", "_messages", "_receiver", "_listener"})

    def __init__(self, client: Opener, consumer: TopicConsumer) -> None:
        self._client = client
        self._configuration = consumer.configuration
        self._running = client.running
        self._consumer = consumer
        self._receive_queue = consumer.receive_queue
        self._messages = consumer.receive_queue.messages
        self._receiver = Receiver(client.running, consumer)
        self._listener: Listener | None = None
        listener = consumer.configuration.message_listener
        if listener is not None:
            self._listener = Listener(
                consumer.topic_text, self._receive_queue, self._next, lambda message: listener(self, message)
            )
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
        raise InvalidConfiguration(
            "this consumer has a listener, which gets its messages: subscribe without one to call receive"
        )

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
            raise InvalidConfiguration(
                "this consumer has a listener, which gets its messages: subscribe without one to call receive"
            )
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
        while not is_enough(policy, len(messages), size):
            left = None if end is None else max(0, int((end - time.monotonic()) * 1000))
            try:
                message = self._receiver.receive_unless_error(left) if messages else self.receive(left)
            except Timeout:
                break
            if message is None:
                break  # the messages first; the error is for the next call
            messages.append(message)
            size += len(message.data())
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

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledge many messages at once.

        Args:
            messages: Messages, or their ids.

        Raises:
            AlreadyClosed: If the consumer is closed.
            OperationNotSupported: If the id belongs to another topic, or to a batch of unknown size.
        """
        self._consumer.acknowledge_many(messages)

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

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Have a message delivered again after `negative_ack_redelivery_delay_ms`.

        Args:
            message: The message, or its id.

        Raises:
            AlreadyClosed: If the consumer is closed.
            OperationNotSupported: If the id belongs to another topic, or to a batch of unknown size.
        """
        self._consumer.negative_acknowledge(message)

    def redeliver_unacknowledged_messages(self) -> None:
        """Have all unacknowledged messages delivered again."""
        self._running.run(_later(self._consumer.redeliver_unacknowledged_messages))

    def pause_message_listener(self) -> None:
        """Pause the listener after the message that it handles now.

        Raises:
            InvalidConfiguration: If there is no listener.
        """
        self._the_listener().pause()

    def resume_message_listener(self) -> None:
        """Resume the listener.

        Raises:
            InvalidConfiguration: If there is no listener.
        """
        self._the_listener().resume()

    def _the_listener(self) -> "Listener":
        if self._listener is None:
            raise InvalidConfiguration("this consumer has no listener: pass message_listener to subscribe")
        return self._listener

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


class Reader(ReaderFacts, OpensLater[ReaderConfiguration]):
    """Reads topics from a given position. Made by `Client.create_reader`.

    Pickles as its client and configuration: what comes out reads from the same start when it is first used.
    """

    _SET_BY_OPENING = frozenset({"_running", "_reader", "_receiver", "_listener"})

    def __init__(self, client: Opener, reader: TopicReader) -> None:
        self._client = client
        self._configuration = reader.configuration
        self._running = client.running
        self._reader = reader
        self._receiver = Receiver(client.running, reader.consumer)
        self._listener: Listener | None = None
        listener = reader.configuration.reader_listener
        if listener is not None:
            topic = reader.consumer.topic_text
            self._listener = Listener(
                topic, reader.consumer.receive_queue, self._next, lambda message: listener(self, message)
            )
        client.close_when_forgotten(self, reader.consumer)

    def _open(self) -> None:
        Reader.__init__(self, self._client, self._client.open_reader(self._configuration))

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, timeout_millis: int | None = None) -> Message:
        try:
            message = self._receiver.receive(timeout_millis)
        except MagnetarError as error:
            self._reader.missed(error)
            raise
        self._reader.took(message)
        return message

    def read_next(self, timeout_millis: int | None = None) -> Message:
        """Read the next message, waiting for it.

        Args:
            timeout_millis: Milliseconds to wait; None waits without end.

        Returns:
            The message.

        Raises:
            Timeout: If no message comes in time.
            AlreadyClosed: If the reader is closed.
            MagnetarError: Why the reader ended, or why the next message cannot be opened.
        """
        if self._listener is not None:
            raise InvalidConfiguration(
                "this reader has a listener, which gets its messages: create it without one to call read_next"
            )
        return self._next(timeout_millis)

    def has_message_available(self) -> bool:
        """Return whether there is a message behind the reader's position now.

        Returns:
            True if there is.

        Raises:
            MagnetarError: What the broker answers, as the class of its error.
        """
        return self._running.run(self._reader.has_message_available())

    def seek(self, messageid: SeekTarget) -> None:
        """Move to a message or to a publish time.

        The next message is the one behind the id, or that message itself with `start_message_id_inclusive`.

        Args:
            messageid: A message id, a publish time in ms since the epoch, or a function. The client calls a function
                with each topic or partition, and it returns an id or a time.

        Raises:
            Timeout: If it takes longer than `operation_timeout_seconds`.
            MagnetarError: What the broker answers, as the class of its error.
        """
        self._running.run(self._reader.seek(messageid))

    def close(self) -> None:
        """Close the reader.

        A second call does nothing.
        """
        if self.is_unopened:
            return
        self._client.close_one(self._reader.consumer)
        if self._listener is not None:
            self._listener.stop()


class Listener:
    """A thread that hands messages to the application, one at a time, until its consumer ends.

    What cannot be opened is logged and stays unacknowledged.
    """

    def __init__(
        self, topic: str, queue: ReceiveQueue, receive: Callable[[], Message], handle: Callable[[Message], object]
    ) -> None:
        self._topic = topic
        self._receive_queue = queue
        self._receive = receive
        self._handle = handle
        self._going = threading.Event()
        self._going.set()
        self._thread = threading.Thread(target=self._serve, name=f"magnetar-listener {topic}", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Rest after the message that is being handled."""
        self._going.clear()

    def resume(self) -> None:
        """Go on."""
        self._going.set()

    def stop(self) -> None:
        """Wait for the end, after the consumer was closed."""
        self._going.set()
        if self._thread is not threading.current_thread():
            self._thread.join(LISTENER_STOP_TIMEOUT_S)

    def _serve(self) -> None:
        while True:
            try:
                self._going.wait()
                message = self._receive()
                self._going.wait()
            except MagnetarError as error:
                if self._receive_queue.failure is None:
                    logger.error("the listener on %s gets no message: %s", self._topic, error)
                    continue
                logger.info("the listener on %s ends: %s", self._topic, error)
                return
            try:
                self._handle(message)
            except Exception:  # the application's; no caller waits for it
                logger.exception("a listener on %s failed", self._topic)


async def _later(function: Callable[[], None]) -> None:
    function()
