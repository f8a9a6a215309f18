"""Bounds on what clients may open and create. All are Pulsar's, with Pulsar's default: 0, no bound."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class TopicListSettings:
    """What brokers do about lists of topics, for consumers that subscribe by a pattern."""

    pattern_evaluation_enabled: bool = setting(
        "enableBrokerSideSubscriptionPatternEvaluation",
        True,
        "Whether brokers match the patterns of consumers with the names of topics. If not, clients match them, and "
        "brokers refuse topic list watchers.",
    )
    topic_watchers_enabled: bool = setting(
        "enableBrokerTopicListWatcher",
        True,
        "Whether brokers offer clients topic list watchers: news of topics that are created and deleted.",
    )
    pattern_max_chars: int = setting(
        "subscriptionPatternMaxLength",
        50,
        "Characters of the longest pattern that brokers match. Brokers refuse watchers with a longer one, and answer "
        "with all topics when a client asks for a list with a longer one.",
        within=(0, 1 << 16),
    )


def _bound(name: str, doc: str) -> int:
    return setting(name, 0, f"{doc}; 0 = no bound.", within=(0, 1 << 31))


def _default(name: str, doc: str) -> int:
    """A bound that is the default of a policy."""
    text = f"{doc}; 0 = no bound. The default for namespaces without this policy."
    return setting(name, 0, text, within=(0, 1 << 31))


def _rate(name: str, doc: str) -> int:
    """A rate that is the default of a policy."""
    text = f"{doc}; 0 = no limit. The default for namespaces without this policy."
    return setting(name, 0, text, within=(0, 1 << 62))


@dataclass(frozen=True)
class ClientLimitSettings:
    """Bounds on what clients may open and create. All are Pulsar's, with Pulsar's default: 0, no bound.

    What exists when a bound is lowered stays.
    """

    connections_max: int = _bound("brokerMaxConnections", "Client connections that one broker accepts")
    connections_max_per_ip: int = _bound(
        "brokerMaxConnectionsPerIp", "Client connections that one broker accepts from one IP address"
    )
    topics_max_per_namespace: int = _default(
        "maxTopicsPerNamespace", "Topics of a namespace; each partition counts as one"
    )
    producers_max_per_topic: int = _default("maxProducersPerTopic", "Producers of a topic or partition")
    consumers_max_per_topic: int = _default("maxConsumersPerTopic", "Consumers of a topic or partition")
    consumers_max_per_subscription: int = _default("maxConsumersPerSubscription", "Consumers of a subscription")
    subscriptions_max_per_topic: int = _default(
        "maxSubscriptionsPerTopic", "Durable subscriptions of a topic or partition"
    )
    publish_rate_messages: int = _rate("maxPublishRatePerTopicInMessages", "Messages that a topic takes in a second")
    publish_rate_bytes: int = _rate("maxPublishRatePerTopicInBytes", "Bytes that a topic takes in a second")
    topic_dispatch_rate_messages: int = _rate(
        "dispatchThrottlingRatePerTopicInMsg", "Messages that a topic gives to all its consumers in a second"
    )
    topic_dispatch_rate_bytes: int = _rate(
        "dispatchThrottlingRatePerTopicInByte", "Bytes that a topic gives to all its consumers in a second"
    )
    subscription_dispatch_rate_messages: int = _rate(
        "dispatchThrottlingRatePerSubscriptionInMsg", "Messages that a subscription gives to its consumers in a second"
    )
    subscription_dispatch_rate_bytes: int = _rate(
        "dispatchThrottlingRatePerSubscriptionInByte", "Bytes that a subscription gives to its consumers in a second"
    )
    subscribe_rate_per_consumer: int = setting(
        "subscribeThrottlingRatePerConsumer",
        0,
        "How often the same consumer may subscribe in a period; 0 = no limit. The default for namespaces without this "
        "policy.",
        within=(0, (1 << 31) - 1),
    )
    subscribe_rate_period_s: int = setting(
        "subscribeRatePeriodPerConsumerInSecond",
        30,
        "The period of subscribeThrottlingRatePerConsumer, in seconds.",
        within=(1, (1 << 31) - 1),
    )
    dispatch_rate_relative: bool = setting(
        "dispatchThrottlingRateRelativeToPublishRate",
        False,
        "Whether the settings of dispatch rates say how much more may be given out than is published at the time.",
    )
