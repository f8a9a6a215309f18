"""The policy of which types of subscriptions consumers may use."""

import enum

from ...runtime.settings.declarations import Settings


class SubscriptionType(enum.Enum):
    """By Pulsar's names."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


def default_subscription_types(settings: Settings) -> frozenset[SubscriptionType]:
    """What the settings say."""
    return frozenset(SubscriptionType(word) for word in settings.enabled_subscription_types())
