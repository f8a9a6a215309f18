"""What brokers do about lists of topics, for consumers that subscribe by a pattern."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class TopicListSettings:
    """See the module."""

    pattern_evaluation_enabled: bool = setting(
        "enableBrokerSideSubscriptionPatternEvaluation",
        "pulsar",
        True,
        "Whether brokers match the patterns of consumers with the names of topics. If not, clients match them, and "
        "brokers refuse topic list watchers.",
    )
    topic_watchers_enabled: bool = setting(
        "enableBrokerTopicListWatcher",
        "pulsar",
        True,
        "Whether brokers offer clients topic list watchers: news of topics that are created and deleted.",
    )
    pattern_max_chars: int = setting(
        "subscriptionPatternMaxLength",
        "pulsar",
        50,
        "Characters of the longest pattern that brokers match. Brokers refuse watchers with a longer one, and answer "
        "with all topics when a client asks for a list with a longer one.",
        minimum=0,
        maximum=1 << 16,
    )
