"""What producers and consumers say about themselves, the same in both faces."""

from ..consuming.topic_consumer import TopicConsumer
from ..producing.topic_producer import TopicProducer


class ProducerFacts:
    """For the faces of a producer."""

    _producer: TopicProducer

    def topic(self) -> str:
        """The topic in full."""
        return self._producer.topic.full

    def producer_name(self) -> str:
        """The name given at creation, or by the broker."""
        return self._producer.producer_name

    def last_sequence_id(self) -> int:
        """The last sequence id that was stored, −1 if none."""
        return self._producer.last_sequence_id

    def is_connected(self) -> bool:
        """Whether every partition is connected."""
        return self._producer.is_connected


class ConsumerFacts:
    """For the faces of a consumer."""

    _consumer: TopicConsumer

    def topic(self) -> str:
        """The topic in full."""
        return self._consumer.topic.full

    def subscription_name(self) -> str:
        """The subscription's name."""
        return self._consumer.configuration.subscription_name

    def consumer_name(self) -> str:
        """The consumer's name, empty if none was given."""
        return self._consumer.consumer_name

    def is_connected(self) -> bool:
        """Whether the subscription is in place on every partition."""
        return self._consumer.is_connected
