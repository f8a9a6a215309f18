"""What producers and consumers say about themselves, the same in both faces."""

from ...protocol.errors import AlreadyClosed, MagnetarError
from ..consuming.topic_consumer import TopicConsumer
from ..producing.topic_producer import TopicProducer
from ..statistics.figures import ConsumerStats, ProducerStats


def state_text(failure: MagnetarError | None, connected: bool) -> str:
    """What the representation of a face says of its state."""
    if failure is not None:
        return "closed" if isinstance(failure, AlreadyClosed) else f"failed: {failure}"
    return "connected" if connected else "not connected"


class ProducerFacts:
    """For the faces of a producer."""

    _producer: TopicProducer

    def __repr__(self) -> str:
        if "_producer" not in self.__dict__:  # it came out of a pickle, and asking would open it
            return f"<{type(self).__name__}, not opened yet>"
        made = self._producer
        state = state_text(made.failure, made.is_connected)
        return f"<{type(self).__name__} {made.producer_name!r} on {made.topic.full}, {state}>"

    def topic(self) -> str:
        """Return the full name of the topic.

        Returns:
            Such as `persistent://public/default/greetings`.
        """
        return self._producer.topic.full

    def producer_name(self) -> str:
        """Return the name of the producer.

        Returns:
            The name given at creation, or by the broker.
        """
        return self._producer.producer_name

    def last_sequence_id(self) -> int:
        """Return the last sequence id that was stored.

        Returns:
            The id, −1 if none was stored.
        """
        return self._producer.last_sequence_id

    def is_connected(self) -> bool:
        """Return whether the producer is connected to the broker of every partition.

        Returns:
            True if it is.
        """
        return self._producer.is_connected

    def get_stats(self) -> ProducerStats:
        """Return what the producer has sent, how fast, and how long receipts took.

        Returns:
            The figures, as they are at this moment. A partitioned topic's are added up.
        """
        return self._producer.statistics.stats()


class ConsumerFacts:
    """For the faces of a consumer."""

    _consumer: TopicConsumer

    def __repr__(self) -> str:
        if "_consumer" not in self.__dict__:  # as for producers
            return f"<{type(self).__name__}, not opened yet>"
        made = self._consumer
        kind, name = made.configuration.consumer_type.name, made.configuration.subscription_name
        state = state_text(made.receive_queue.failure, made.is_connected)
        return f"<{type(self).__name__} of {kind} subscription {name!r} on {made.topic_text}, {state}>"

    def topic(self) -> str:
        """Return the full name of the topic.

        Returns:
            Such as `persistent://public/default/greetings`. Several topics are joined by commas; a pattern is itself.
        """
        return self._consumer.topic_text

    def subscription_name(self) -> str:
        """Return the name of the subscription.

        Returns:
            The name.
        """
        return self._consumer.configuration.subscription_name

    def consumer_name(self) -> str:
        """Return the name of the consumer.

        Returns:
            The name, empty if none was given.
        """
        return self._consumer.consumer_name

    def is_connected(self) -> bool:
        """Return whether the consumer is connected to the broker of every partition.

        Returns:
            True if it is.
        """
        return self._consumer.is_connected

    def has_reached_end_of_topic(self) -> bool:
        """Return whether the topic was terminated and the subscription has acknowledged everything.

        Returns:
            True if nothing will ever come again, as far as the brokers of all partitions have said.
        """
        registrations = [consumer.registration for consumer in self._consumer.consumers]
        return bool(registrations) and all(one.at_end for one in registrations)

    def get_stats(self) -> ConsumerStats:
        """Return what the consumer has received and acknowledged, and how fast.

        Returns:
            The figures, as they are at this moment. Those of several topics or partitions are added up.
        """
        return self._consumer.statistics.stats()
