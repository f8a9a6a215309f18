"""Which consumers and how many, and how many subscriptions a topic takes: Pulsar's bounds and refusals. 0 is no bound.

What is there already when a bound is lowered stays. Producers are counted by `publishing`.
"""

from collections.abc import Mapping
from typing import Protocol

from ...protocol.errors import ConsumerBusy, NotAllowedError
from ...protocol.topics import TopicName
from ..policies.effective import EffectivePolicies
from ..policies.subscription_types import SubscriptionType
from .dispatchers import type_name
from .subscription_members import SubscriptionMembers


class BoundedTopic(Protocol):
    """What is counted."""

    @property
    def name(self) -> TopicName: ...
    @property
    def policies(self) -> EffectivePolicies: ...
    @property
    def subscriptions(self) -> Mapping[tuple[str, bool], SubscriptionMembers]: ...


def check_new_subscription(topic: BoundedTopic, *, durable: bool) -> None:
    """Raise NotAllowedError when the topic has as many durable subscriptions as it may have."""
    bound = topic.policies.max_subscriptions_per_topic
    if durable and 0 < bound <= sum(is_durable for _, is_durable in topic.subscriptions):
        raise NotAllowedError(
            f"{topic.name.full} has {bound} subscriptions, as many as it may have: delete one, or raise "
            "maxSubscriptionsPerTopic"
        )


def check_subscription_type(topic: BoundedTopic, subscription_type: int) -> None:
    """Raise NotAllowedError for a type of subscriptions that the topic's policies do not enable."""
    name = type_name(subscription_type)
    if SubscriptionType(name) not in topic.policies.subscription_types_enabled:
        raise NotAllowedError(
            f"{topic.name.full} takes no {name} subscriptions: use another type, or add {name} to "
            "subscriptionTypesEnabled"
        )


def check_new_consumer(topic: BoundedTopic, subscription: SubscriptionMembers) -> None:
    """Raise ConsumerBusy when the topic, or the subscription, has as many consumers as it may have."""
    policies = topic.policies
    if 0 < policies.max_consumers_per_topic <= sum(len(one.consumers) for one in topic.subscriptions.values()):
        raise ConsumerBusy(
            f"{topic.name.full} has as many consumers as it may have: close one, or raise maxConsumersPerTopic"
        )
    if 0 < policies.max_consumers_per_subscription <= len(subscription.consumers):
        raise ConsumerBusy(
            f"subscription {subscription.name} of {topic.name.full} has as many consumers as it may have: close one, "
            "or raise maxConsumersPerSubscription"
        )
