"""Pausing a consumer or its listener, the same in both faces."""

from ...protocol.errors import InvalidConfiguration
from ..consuming.listeners import PausableListener
from ..consuming.topic_consumer import TopicConsumer


class Pausing:
    """For the faces of a consumer. All of it may be called from any thread that may use the consumer."""

    _consumer: TopicConsumer
    _listener: PausableListener | None

    def pause(self) -> None:
        """Ask the brokers for no more messages until `resume`.

        What they may send already still comes, up to `receiver_queue_size` messages. `receive` and a listener get
        these, and then wait. A second call does nothing. Partitions and topics that are added are paused, too.
        """
        with self._consumer.receive_queue.lock:
            self._consumer.receive_queue.paused = True

    def resume(self) -> None:
        """Ask the brokers for messages again after `pause`.

        A second call does nothing.
        """
        queue = self._consumer.receive_queue
        with queue.lock:
            was_paused, queue.paused = queue.paused, False
        if was_paused and queue.failure is None:
            self._consumer.core.handover.wake(_grant, self._consumer)

    def pause_message_listener(self) -> None:
        """Pause the listener after the message that it handles now.

        Messages wait in the receive queue meanwhile. A second call does nothing.

        Raises:
            InvalidConfiguration: If there is no listener.
        """
        self._the_listener().pause()

    def resume_message_listener(self) -> None:
        """Resume the listener.

        A second call does nothing.

        Raises:
            InvalidConfiguration: If there is no listener.
        """
        self._the_listener().resume()

    def _the_listener(self) -> PausableListener:
        if self._listener is None:
            raise InvalidConfiguration("this consumer has no listener: pass message_listener to subscribe")
        return self._listener


def _grant(consumer: TopicConsumer) -> None:
    for one in consumer.consumers:
        one.permits.resume()
