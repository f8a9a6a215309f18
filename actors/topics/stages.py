"""Which publish stages a topic has, in the order in which an entry passes them."""

from collections.abc import Iterable

from ...protocol.errors import BrokerMetadataError, NotAllowedError, TopicTerminated
from ...protocol.pulsar_pb2 import MessageMetadata
from ...protocol.topics import TopicName
from ..policies.effective import EffectivePolicies
from ..policies.rates import PublishRate
from ..rates.publish import PublishThrottle
from .deduplication import Deduplication
from .producer import AttachedProducer, Publish
from .publishing import PublishStage, Refusal


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


class DeliveryDelayBound(PublishStage):
    """Refuses messages whose delivery time is further away than the policy allows.

    As in Pulsar, the delay counts from the publish time that the producer wrote, and the answer is NotAllowedError.
    """

    def __init__(self, max_delay_ms: int) -> None:
        self._max_delay_ms = max_delay_ms

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | None:
        if metadata.deliver_at_time and metadata.deliver_at_time - metadata.publish_time > self._max_delay_ms:
            text = f"the delivery time is more than {self._max_delay_ms} ms away, which maxDeliveryDelayInMillis allows"
            return Refusal(NotAllowedError(text))
        return None


class Terminated(PublishStage):
    """Publish stage: a topic that was terminated no longer takes messages or producers, as in Pulsar."""

    def __init__(self, name: TopicName) -> None:
        self._text = f"{name.full} was terminated: publish to another topic"

    def check_producer(self, producer: AttachedProducer) -> None:
        """Raises TopicTerminated."""
        raise TopicTerminated(self._text)

    def admit(self, publish: Publish, metadata: MessageMetadata) -> Refusal | None:
        return Refusal(TopicTerminated(self._text))


def publish_stages(
    policies: EffectivePolicies,
    name: TopicName,
    before: Iterable[PublishStage] = (),
    deduplication: Deduplication | None = None,
    *,
    message_size_max: int = 0,
    terminated: bool = False,
) -> tuple[PublishStage, ...]:
    """The stages of a topic; none for a plain one. They are made again when the topic is loaded, or its policies
    change: what must outlive that belongs to the topic, or is taken over from the stages that it had `before`. What
    passes deduplication is appended. `message_size_max` is the broker's: a topic's counts if it is smaller."""
    stages: list[PublishStage] = []
    if terminated:
        stages.append(Terminated(name))
    if policies.encryption_required:
        stages.append(EncryptionRequired(name))
    delays = policies.delayed_delivery
    if delays.active and delays.max_delay_ms > 0 and name.persistent:
        stages.append(DeliveryDelayBound(delays.max_delay_ms))
    if 0 < policies.max_message_size < message_size_max:
        stages.append(MessageSizeLimit(policies.max_message_size))
    if deduplication is not None and deduplication.in_place:
        stages.append(deduplication)
    rate = policies.publish_rate
    if rate.is_limit:
        same = [stage for stage in before if isinstance(stage, PublishRateLimit) and stage.throttle.rate == rate]
        stages.append(same[0] if same else PublishRateLimit(rate))
    return tuple(stages)
