"""Publish stages that are a policy and little else, each with the feature that has it."""

from typing import TYPE_CHECKING

from ...protocol.errors import BrokerMetadataError, NotAllowedError, TopicTerminated
from ...protocol.pulsar_pb2 import MessageMetadata
from ...protocol.topics import TopicName
from ..policies.rates import PublishRate
from ..rates.publish import PublishThrottle
from .feature import TopicFeature
from .producer import AttachedProducer, Publish
from .publishing import PublishStage, Refusal

if TYPE_CHECKING:
    from .loaded_topics import Topic


class EncryptionRequired(PublishStage):
    """Publish stage: a topic that requires encryption takes encrypted messages only.

    Pulsar's broker refuses a producer that does not encrypt, with MetadataError, where `encryptionRequireOnProducer` or
    the policy `encryption_required` asks for it. Under the policy only, it also refuses a message without encryption
    keys, with MetadataError. With the broker's setting alone, a producer that says it encrypts may send plain text.
    Here the setting covers both, so that no plain text is stored.
    """

    def __init__(self, name: TopicName) -> None:
        self._name = name

    def check_producer(self, producer: AttachedProducer) -> None:
        """Raises BrokerMetadataError for a producer that does not encrypt."""
        if not producer.encrypted:
            raise BrokerMetadataError(f"Encryption is required in {self._name.full}")

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | None:
        if not metadata.encryption_keys:
            return Refusal(BrokerMetadataError("Messages must be encrypted"))
        return None


class MessageSizeLimit(PublishStage):
    """Refuses what is larger than the topic allows, with Pulsar's words. As there, chunks of a message pass."""

    def __init__(self, size_max_bytes: int) -> None:
        self._size_max_bytes = size_max_bytes

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | None:
        if publish.size_bytes <= self._size_max_bytes or metadata.num_chunks_from_msg > 1:
            return None
        return Refusal(NotAllowedError("Exceed maximum message size"))


class PublishRateLimit(PublishStage):
    """Counts what passes under the topic's rate. It stands last: what is refused does not count."""

    def __init__(self, rate: PublishRate) -> None:
        self.throttle = PublishThrottle(rate)

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | None:
        self.throttle.took(publish.producer.connection, publish.messages, publish.size_bytes)
        return None

    def ended(self) -> None:
        self.throttle.end()


class Terminated(PublishStage):
    """Publish stage: a topic that was terminated no longer takes messages or producers, as in Pulsar."""

    def __init__(self, name: TopicName) -> None:
        self._text = f"{name.full} was terminated: publish to another topic"

    def check_producer(self, producer: AttachedProducer) -> None:
        """Raises TopicTerminated."""
        raise TopicTerminated(self._text)

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | None:
        return Refusal(TopicTerminated(self._text))


class EncryptionDemand(TopicFeature):
    """Feature: producers must encrypt."""

    __slots__ = ("_topic",)

    name = "encryption required"
    policies = ("encryption_required",)

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic

    def stage(self) -> PublishStage | None:
        return EncryptionRequired(self._topic.name) if self._topic.policies.encryption_required else None


class LargestMessage(TopicFeature):
    """Feature: a topic may have a bound of its own for the size of messages. It counts if it is below the broker's."""

    __slots__ = ("_topic",)

    name = "largest message"
    policies = ("max_message_size",)

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic

    def stage(self) -> PublishStage | None:
        bound = self._topic.policies.max_message_size
        return MessageSizeLimit(bound) if 0 < bound < self._topic.settings.max_message_size_bytes else None


class PublishRates(TopicFeature):
    """Feature: a topic takes so much in a second."""

    __slots__ = ("_limit", "_topic")

    name = "publish rate"
    policies = ("publish_rate",)

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic
        self._limit: PublishRateLimit | None = None
        """It goes on counting as long as the rate is the same."""

    def stage(self) -> PublishStage | None:
        rate = self._topic.policies.publish_rate
        if not rate.is_limit:
            self._limit = None
        elif self._limit is None or self._limit.throttle.rate != rate:
            self._limit = PublishRateLimit(rate)
        return self._limit
