"""What an application may hang into a consumer or a producer."""

from collections.abc import Sequence

from ...protocol.errors import MagnetarError
from .message_id import MessageId
from .outgoing_message import OutgoingMessage


class ConsumerInterceptor:
    """Told what a consumer does. Override what matters.

    The client calls it where the consumer's own code runs: on the thread or task that receives or acknowledges, and on
    its loop when negative acknowledgements are sent. What it raises is logged and changes nothing.
    """

    def before_consume(self, consumer: object, message: object) -> object:
        """Look at a message before the application gets it.

        The client calls this when it opens the entry of the message. The messages of a batch come one after the other.

        Args:
            consumer: The consumer.
            message: The message.

        Returns:
            The message for the application: the same, or another one.
        """
        return message

    def on_acknowledge(self, consumer: object, message_id: MessageId, error: MagnetarError | None) -> None:
        """Hear of an acknowledgement.

        Args:
            consumer: The consumer.
            message_id: The message.
            error: Why it was refused; None if it was accepted.
        """

    def on_acknowledge_cumulative(self, consumer: object, message_id: MessageId, error: MagnetarError | None) -> None:
        """Hear of a cumulative acknowledgement.

        Args:
            consumer: The consumer.
            message_id: The last message.
            error: Why it was refused; None if it was accepted.
        """

    def on_negative_acks_send(self, consumer: object, message_ids: Sequence[MessageId]) -> None:
        """Hear that the broker is asked to deliver messages again that were negatively acknowledged.

        Args:
            consumer: The consumer.
            message_ids: The entries of the messages.
        """

    def on_ack_timeout_send(self, consumer: object, message_ids: Sequence[MessageId]) -> None:
        """Hear that the broker is asked to deliver messages again that were not acknowledged in time.

        Args:
            consumer: The consumer.
            message_ids: The entries of the messages.
        """

    def close(self) -> None:
        """Hear that the consumer is closed."""


class ProducerInterceptor:
    """Told what a producer sends. Override what matters.

    The client calls `before_send` where the application sends, and `on_send_acknowledgement` where it hears of the
    outcome: in a callback's thread, or in the call that waits. What it raises is logged and changes nothing.
    """

    def before_send(self, producer: object, message: OutgoingMessage) -> OutgoingMessage:
        """Look at a message before it is queued.

        Args:
            producer: The producer.
            message: The message, as the interceptors before this one left it.

        Returns:
            The message to send: the same, or `message.changed(...)`.
        """
        return message

    def on_send_acknowledgement(
        self, producer: object, message: OutgoingMessage, message_id: MessageId | None, error: MagnetarError | None
    ) -> None:
        """Hear what became of a message.

        Args:
            producer: The producer.
            message: The message that was sent.
            message_id: Where it is stored; None if it is not known to be stored.
            error: Why it failed; None if it is stored.
        """

    def close(self) -> None:
        """Hear that the producer is closed."""
