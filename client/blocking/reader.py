"""The blocking face of a reader."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..aio.reader import ReaderFacts, TopicReader
from ..consuming.listeners import reader_has_listener
from ..consuming.message import Message
from ..consuming.topic_consumer import SeekTarget
from ..core.configuration import ReaderConfiguration
from .pickling import OpensLater
from .receiving import Listener, Receiver

if TYPE_CHECKING:
    from .client import Client


class Reader(ReaderFacts, OpensLater[ReaderConfiguration]):
    """Reads topics from a given position. Made by `Client.create_reader`.

    Pickles as its client and configuration: what comes out reads from the same start when it is first used.
    """

    _SET_BY_OPENING = frozenset({"_running", "_reader", "_receiver", "_listener"})

    def __init__(self, client: "Client", reader: TopicReader) -> None:
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
        message = self._receiver.receive(timeout_millis)
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
            InvalidConfiguration: If the messages go to a listener.
        """
        if self._listener is not None:
            raise reader_has_listener()
        return self._next(timeout_millis)

    def has_message_available(self) -> bool:
        """Return whether there is a message behind the reader's position now.

        It waits for messages that are on their way. What will not be delivered does not count.

        Returns:
            True if there is: the next read does not wait.

        Raises:
            Timeout: If the broker has more, and does not send it within `operation_timeout_seconds`.
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
        self._running.run(self._reader.consumer.seek(messageid))

    def close(self) -> None:
        """Close the reader.

        A second call does nothing.
        """
        if self.is_unopened:
            return
        self._client.close_one(self._reader.consumer)
        if self._listener is not None:
            self._listener.stop()


def listen(reader: Reader, handle: Callable[[Message], object]) -> Listener:
    """Hand all messages to come to `handle`, on a thread of their own."""
    return Listener(reader.topic(), reader._reader.consumer.receive_queue, reader._next, handle)  # pyright: ignore[reportPrivateUsage] (of its own file)
