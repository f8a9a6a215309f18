"""The policies of how fast a topic takes messages and gives them out, and how often a consumer may subscribe."""

from dataclasses import dataclass

from ...runtime.settings.declarations import Settings
from .kinds import INT_MAX, LONG_MAX, FieldRecord, Flag, WholeNumber, part

_INT = WholeNumber(-INT_MAX - 1)
_LONG = WholeNumber(-LONG_MAX - 1, long=True)


@dataclass(frozen=True, slots=True)
class PublishRate(FieldRecord):
    """What a topic takes in one second. A rate that is not above zero is no limit."""

    messages: int = part("publishThrottlingRateInMsg", _INT, -1)
    size_bytes: int = part("publishThrottlingRateInByte", _LONG, -1)

    @property
    def is_limit(self) -> bool:
        return self.messages > 0 or self.size_bytes > 0


@dataclass(frozen=True, slots=True)
class DispatchRate(FieldRecord):
    """What is given out in one period. A rate that is not above zero is no limit; a period has at least a second."""

    messages: int = part("dispatchThrottlingRateInMsg", _INT, 0)
    size_bytes: int = part("dispatchThrottlingRateInByte", _LONG, 0)
    relative: bool = part("relativeToPublishRate", Flag(), False)
    period_s: int = part("ratePeriodInSecond", _INT, 0)

    @property
    def is_limit(self) -> bool:
        return self.messages > 0 or self.size_bytes > 0


@dataclass(frozen=True, slots=True)
class SubscribeRate(FieldRecord):
    """How often the same consumer may subscribe in one period. What is not above zero is no limit."""

    per_consumer: int = part("subscribeThrottlingRatePerConsumer", _INT, -1)
    period_s: int = part("ratePeriodInSecond", _INT, 30)

    @property
    def is_limit(self) -> bool:
        return self.per_consumer > 0 and self.period_s > 0


def default_publish_rate(settings: Settings) -> PublishRate:
    """What the settings say of a topic."""
    return PublishRate(settings.publish_rate_messages, settings.publish_rate_bytes)


def default_topic_dispatch_rate(settings: Settings) -> DispatchRate:
    """What the settings say of a topic."""
    relative = settings.dispatch_rate_relative
    return DispatchRate(settings.topic_dispatch_rate_messages, settings.topic_dispatch_rate_bytes, relative, 1)


def default_subscription_dispatch_rate(settings: Settings) -> DispatchRate:
    """What the settings say of each subscription."""
    messages, size_bytes = settings.subscription_dispatch_rate_messages, settings.subscription_dispatch_rate_bytes
    return DispatchRate(messages, size_bytes, settings.dispatch_rate_relative, 1)


def default_subscribe_rate(settings: Settings) -> SubscribeRate:
    """What the settings say of each consumer."""
    return SubscribeRate(settings.subscribe_rate_per_consumer, settings.subscribe_rate_period_s)
