"""What a topic keeps beyond its subscriptions' needs, and for how long: the defaults of the policies."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class KeepingSettings:
    """See the module."""

    retention_minutes: float = setting(
        "defaultRetentionTimeInMinutes",
        0,
        "A topic keeps acknowledged messages for this long; -1 = for ever. 0 for time and size together = not at all. "
        "The default for namespaces without the policy retention.",
        within=(-1, 1 << 31),
    )
    retention_size_mb: int = setting(
        "defaultRetentionSizeInMB",
        0,
        "A topic keeps acknowledged messages up to this size in all; -1 = however much it is.",
        within=(-1, (1 << 63) - 1),
    )
    message_ttl_s: int = setting(
        "ttlDurationDefaultInSeconds",
        0,
        "Messages that were published longer ago count as acknowledged; 0 = never. The default for namespaces without "
        "the policy message_ttl_in_seconds.",
        within=(0, (1 << 31) - 1),
    )
    message_expiry_check_interval_minutes: float = setting(
        "messageExpiryCheckIntervalInMinutes",
        5,
        "The broker looks for messages that have expired this often.",
        within=(0.0001, 1 << 20),
    )
    backlog_quota_check_enabled: bool = setting(
        "backlogQuotaCheckEnabled",
        True,
        "Look for topics whose backlog exceeds a quota. Without it, producers that come are refused all the same.",
    )
    backlog_quota_check_interval_s: float = setting(
        "backlogQuotaCheckIntervalInSeconds",
        60,
        "The broker looks for topics whose backlog exceeds a quota this often.",
        within=(0.01, 1 << 20),
    )
    backlog_quota_bytes: int = setting(
        "backlogQuotaDefaultLimitBytes",
        -1,
        "Bytes that the slowest subscription of a topic may be behind; below 0 = no bound. The default for namespaces "
        "without a backlog quota.",
        within=(-1, (1 << 63) - 1),
    )
    backlog_quota_gb: float = setting(
        "backlogQuotaDefaultLimitGB",
        -1,
        "The same in GB; counts before backlogQuotaDefaultLimitBytes if it is above 0.",
        within=(-1, 1 << 32),
    )
    backlog_quota_time_s: int = setting(
        "backlogQuotaDefaultLimitSecond",
        -1,
        "Seconds that the oldest message that is not acknowledged may be old; 0 or less = no bound.",
        within=(-1, (1 << 31) - 1),
    )
    backlog_quota_policy: str = setting(
        "backlogQuotaDefaultRetentionPolicy",
        "producer_request_hold",
        "What the broker does where these defaults are exceeded.",
        choices=("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
    )
    inactive_topics_deletion_enabled: bool = setting(
        "brokerDeleteInactiveTopicsEnabled",
        True,
        "Delete topics that nobody uses. The default for namespaces without the policy inactive_topic_policies.",
    )
    inactive_topics_check_interval_s: float = setting(
        "brokerDeleteInactiveTopicsFrequencySeconds",
        60,
        "The broker looks for topics that nobody uses this often.",
        within=(0.01, 1 << 20),
    )
    inactive_topics_max_s: int = setting(
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        0,
        "A topic that nobody has used for this long is deleted; 0 = brokerDeleteInactiveTopicsFrequencySeconds.",
        within=(0, (1 << 31) - 1),
        original="none; it means the same",
    )
    inactive_topics_delete_mode: str = setting(
        "brokerDeleteInactiveTopicsMode",
        "delete_when_no_subscriptions",
        "What keeps a topic, beside producers: every subscription, or one that has a backlog.",
        choices=("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
    )
    inactive_partitioned_topics_deletion_enabled: bool = setting(
        "brokerDeleteInactivePartitionedTopicMetadataEnabled",
        False,
        "Delete partitioned topics, too, when nobody uses any of their partitions.",
    )
    subscription_expiration_minutes: int = setting(
        "subscriptionExpirationTimeMinutes",
        0,
        "A durable subscription that has had no consumer for this long is deleted; 0 = never. The default for "
        "namespaces without the policy subscription_expiration_time_minutes.",
        within=(0, (1 << 31) - 1),
    )
    subscription_expiry_check_interval_minutes: float = setting(
        "subscriptionExpiryCheckIntervalInMinutes",
        5,
        "The broker looks for subscriptions that have expired this often.",
        within=(0.0001, 1 << 20),
    )
