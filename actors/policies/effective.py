"""The table of policies, and the values that hold for the topics of a namespace.

Each field of `EffectivePolicies` is one policy. Its name is the one in Pulsar's JSON of policies, and in the record of
a namespace. Everything else follows from the declaration: what a namespace may set, the broker's default, the admin's
paths and their page in the reference.
"""

from dataclasses import dataclass

from ...runtime.settings.declarations import Settings
from .kinds import Policy, PolicyValues, bound, policies_of, switch


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """What holds for a topic. Immutable: a change makes another one. 0 is no bound."""

    encryption_required: bool = switch(
        "encryptionRequired",
        "encryption_require_on_producer",
        "whether producers must encrypt, and messages need encryption keys",
    )
    max_producers_per_topic: int = bound(
        "maxProducersPerTopic", "producers_max_per_topic", "how many producers a topic or partition takes"
    )
    max_consumers_per_topic: int = bound(
        "maxConsumersPerTopic", "consumers_max_per_topic", "how many consumers a topic or partition takes"
    )
    max_consumers_per_subscription: int = bound(
        "maxConsumersPerSubscription", "consumers_max_per_subscription", "how many consumers a subscription takes"
    )
    max_subscriptions_per_topic: int = bound(
        "maxSubscriptionsPerTopic",
        "subscriptions_max_per_topic",
        "how many durable subscriptions a topic or partition takes",
    )
    max_unacked_messages_per_consumer: int = bound(
        "maxUnackedMessagesPerConsumer",
        "unacked_messages_max_per_consumer",
        "at how many unacknowledged messages dispatch to a Shared consumer stops",
    )
    max_unacked_messages_per_subscription: int = bound(
        "maxUnackedMessagesPerSubscription",
        "unacked_messages_max_per_subscription",
        "at how many unacknowledged messages dispatch of a Shared subscription stops",
    )

    @classmethod
    def resolve(cls, settings: Settings, *levels: PolicyValues) -> "EffectivePolicies":
        """What the settings and the levels say together. `levels` go from the widest to the narrowest.

        Policies that are not in the table are left out: a newer coordinator may know more of them.
        """
        found = {
            name: policy.resolve(getattr(settings, policy.setting), [level[name] for level in levels if name in level])
            for name, policy in POLICIES.items()
        }
        return cls(**found)  # type: ignore[arg-type]


POLICIES: dict[str, Policy] = policies_of(EffectivePolicies)
"""All policies by name."""
