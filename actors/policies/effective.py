"""The table of policies, and the values that hold for the topics of a namespace.

Each field of `EffectivePolicies` is one policy. Its name is the one in records. Everything else follows from the
declaration: what a namespace or a topic may set, the broker's default, the admin's paths and their reference.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ...runtime.settings.declarations import Settings
from .automatic_creation import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    default_subscription_creation,
    default_topic_creation,
)
from .backlog_quota import BacklogQuota, QuotaType, default_quotas, within_retention
from .delayed_delivery import DelayedDelivery, default_delayed_delivery
from .inactive_topics import InactiveTopicPolicies, default_inactive_topics
from .kinds import Demand, Flag, MapOf, RecordOf, WholeNumber, WordSet
from .permissions import AuthPolicies
from .persistence import Persistence, accepts_persistence, default_persistence
from .policy import Policy, PolicyPath, PolicyValues, policies_of, policy
from .rates import (
    DispatchRate,
    PublishRate,
    SubscribeRate,
    default_publish_rate,
    default_subscribe_rate,
    default_subscription_dispatch_rate,
    default_topic_dispatch_rate,
)
from .retention import RetentionPolicy, default_retention
from .schema_strategy import SchemaCompatibilityStrategy, StrategyWord
from .subscription_types import SubscriptionType, default_subscription_types


def _accepts_message_size(value: int, settings: Settings, others: PolicyValues) -> str:
    largest = settings.max_message_size_bytes
    return f"maxMessageSize of a topic is at most that of the broker, {largest}" if value > largest else ""


@dataclass(frozen=True, slots=True)
class EffectivePolicies:
    """What holds for a topic. Immutable: a change makes another one. 0 is no bound."""

    encryption_required: bool = policy(
        Demand(),
        lambda settings: settings.encryption_require_on_producer,
        "whether producers must encrypt, and messages need encryption keys",
        PolicyPath("encryptionRequired", empty=False, removable=False),
    )
    max_producers_per_topic: int = policy(
        WholeNumber(),
        lambda settings: settings.producers_max_per_topic,
        "how many producers a topic or partition takes",
        "maxProducersPerTopic",
        "maxProducers",
    )
    max_consumers_per_topic: int = policy(
        WholeNumber(),
        lambda settings: settings.consumers_max_per_topic,
        "how many consumers a topic or partition takes",
        "maxConsumersPerTopic",
        "maxConsumers",
    )
    max_consumers_per_subscription: int = policy(
        WholeNumber(),
        lambda settings: settings.consumers_max_per_subscription,
        "how many consumers a subscription takes",
        "maxConsumersPerSubscription",
        PolicyPath("maxConsumersPerSubscription", no_content=True),
    )
    max_subscriptions_per_topic: int = policy(
        WholeNumber(),
        lambda settings: settings.subscriptions_max_per_topic,
        "how many durable subscriptions a topic or partition takes",
        "maxSubscriptionsPerTopic",
        PolicyPath("maxSubscriptionsPerTopic", no_content=True),
    )
    max_unacked_messages_per_consumer: int = policy(
        WholeNumber(),
        lambda settings: settings.unacked_messages_max_per_consumer,
        "at how many unacknowledged messages dispatch to a Shared consumer stops",
        "maxUnackedMessagesPerConsumer",
        PolicyPath("maxUnackedMessagesOnConsumer", "maxUnackedNum", empty_removes=True),
    )
    max_unacked_messages_per_subscription: int = policy(
        WholeNumber(),
        lambda settings: settings.unacked_messages_max_per_subscription,
        "at how many unacknowledged messages dispatch of a Shared subscription stops",
        "maxUnackedMessagesPerSubscription",
        PolicyPath("maxUnackedMessagesOnSubscription", "maxUnackedNum", empty_removes=True),
    )
    persistence: Persistence = policy(
        RecordOf(Persistence),
        default_persistence,
        "over how many bookies new ledgers are striped, and how many copies entries have",
        PolicyPath("persistence", bad_request=True),
        PolicyPath("persistence", bad_request=True),
        accepts=accepts_persistence,
    )
    compaction_threshold: int = policy(
        WholeNumber(long=True),
        lambda settings: settings.compaction_threshold_bytes,
        "at how many bytes that are not compacted the broker compacts a topic",
        PolicyPath("compactionThreshold", put=True),
        PolicyPath("compactionThreshold"),
    )
    schema_compatibility_strategy: SchemaCompatibilityStrategy = policy(
        StrategyWord(SchemaCompatibilityStrategy),
        lambda settings: SchemaCompatibilityStrategy[settings.schema_compatibility_strategy],
        "which schemas a topic may get beside those that it has",
        PolicyPath("schemaCompatibilityStrategy", empty="UNDEFINED", removable=False, put=True),
        PolicyPath("schemaCompatibilityStrategy", empty_removes=True, put=True),
    )
    is_allow_auto_update_schema: bool = policy(
        Flag(),
        lambda settings: settings.is_allow_auto_update_schema_enabled,
        "whether producers and consumers may add schemas to their topics",
        PolicyPath("isAllowAutoUpdateSchema", empty=True, removable=False),
    )
    schema_validation_enforced: bool = policy(
        Demand(),
        lambda settings: settings.is_schema_validation_enforced,
        "whether topics that have schemas refuse producers without one",
        PolicyPath("schemaValidationEnforced", empty=False, removable=False),
        PolicyPath("schemaValidationEnforced", empty=False, removable=False),
    )
    retention: RetentionPolicy = policy(
        RecordOf(RetentionPolicy),
        default_retention,
        "how long and how much a topic keeps of what all its subscriptions have acknowledged",
        PolicyPath("retention", bad_request=True, empty_removes=True),
        PolicyPath("retention", bad_request=True, empty_removes=True),
        key="retention_policies",
    )
    publish_rate: PublishRate = policy(
        RecordOf(PublishRate),
        default_publish_rate,
        "how many messages and bytes a topic or partition takes in a second",
        PolicyPath("publishRate", empty_removes=True),
        PolicyPath("publishRate", no_content=True),
        key="publishMaxMessageRate",
        by_cluster=True,
    )
    topic_dispatch_rate: DispatchRate = policy(
        RecordOf(DispatchRate),
        default_topic_dispatch_rate,
        "how many messages and bytes a topic or partition gives to all its consumers in a period",
        PolicyPath("dispatchRate", empty_removes=True),
        "dispatchRate",
        key="topicDispatchRate",
        by_cluster=True,
    )
    subscription_dispatch_rate: DispatchRate = policy(
        RecordOf(DispatchRate),
        default_subscription_dispatch_rate,
        "how many messages and bytes each subscription gives to its consumers in a period",
        PolicyPath("subscriptionDispatchRate", empty_removes=True),
        "subscriptionDispatchRate",
        key="subscriptionDispatchRate",
        by_cluster=True,
    )
    subscribe_rate: SubscribeRate = policy(
        RecordOf(SubscribeRate),
        default_subscribe_rate,
        "how often the same consumer may subscribe in a period",
        PolicyPath("subscribeRate", empty_removes=True),
        PolicyPath("subscribeRate", empty_removes=True),
        key="clusterSubscribeRate",
        by_cluster=True,
    )
    message_ttl: int = policy(
        WholeNumber(),
        lambda settings: settings.message_ttl_s,
        "how many seconds a message may wait for its acknowledgement",
        "messageTTL",
        PolicyPath("messageTTL", empty_removes=True, parameter="messageTTL"),
        key="message_ttl_in_seconds",
    )
    backlog_quota_map: Mapping[QuotaType, BacklogQuota] = policy(
        MapOf(QuotaType, RecordOf(BacklogQuota)),
        default_quotas,
        "how far behind the subscriptions of a topic may be",
        PolicyPath("backlogQuotaMap", empty={}, removable=False, settable=False),
        PolicyPath("backlogQuotaMap", empty={}, removable=False, settable=False),
        accepts=within_retention,
    )
    delayed_delivery: DelayedDelivery = policy(
        RecordOf(DelayedDelivery),
        default_delayed_delivery,
        "whether and how exactly messages are held back until their delivery time",
        PolicyPath("delayedDelivery", bad_request=True, empty_removes=True),
        PolicyPath("delayedDelivery", bad_request=True, empty_removes=True),
        key="delayed_delivery_policies",
    )
    inactive_topic_policies: InactiveTopicPolicies = policy(
        RecordOf(InactiveTopicPolicies, sparse=True),
        default_inactive_topics,
        "whether and when a topic that nobody uses is deleted",
        PolicyPath("inactiveTopicPolicies", empty_removes=True),
        PolicyPath("inactiveTopicPolicies", empty_removes=True),
    )
    subscription_expiration_time_minutes: int = policy(
        WholeNumber(),
        lambda settings: settings.subscription_expiration_minutes,
        "after how many minutes without a consumer a durable subscription is deleted, 0 for never",
        "subscriptionExpirationTime",
        PolicyPath("subscriptionExpirationTime", empty_removes=True, parameter="subscriptionExpirationTime"),
    )
    auto_topic_creation_override: AutoTopicCreation = policy(
        RecordOf(AutoTopicCreation, sparse=True),
        default_topic_creation,
        "whether a missing topic is created when a client first uses it, and with how many partitions",
        PolicyPath("autoTopicCreation", empty_removes=True),
        key="autoTopicCreationOverride",
    )
    auto_subscription_creation_override: AutoSubscriptionCreation = policy(
        RecordOf(AutoSubscriptionCreation),
        default_subscription_creation,
        "whether a missing subscription is created when a consumer first uses it",
        PolicyPath("autoSubscriptionCreation", empty_removes=True),
        PolicyPath("autoSubscriptionCreation", empty_removes=True),
        key="autoSubscriptionCreationOverride",
    )
    subscription_types_enabled: frozenset[SubscriptionType] = policy(
        WordSet(SubscriptionType),
        default_subscription_types,
        "which types of subscriptions consumers may use",
        PolicyPath("subscriptionTypesEnabled", empty=[]),
        PolicyPath("subscriptionTypesEnabled", empty=[], applied=False),
    )
    deduplication_enabled: bool = policy(
        Flag(),
        lambda settings: settings.deduplication_enabled,
        "whether each message of a producer name is stored once, however often it is sent",
        "deduplication",
        "deduplicationEnabled",
        key="deduplicationEnabled",
    )
    deduplication_snapshot_interval_seconds: int = policy(
        WholeNumber(),
        lambda settings: settings.deduplication_snapshot_interval_s,
        "how many seconds after an entry deduplication takes a snapshot of its sequence ids at the latest, 0 for never",
        PolicyPath("deduplicationSnapshotInterval", "interval", empty_removes=True),
        PolicyPath("deduplicationSnapshotInterval", "interval"),
        key="deduplicationSnapshotIntervalSeconds",
    )
    max_message_size: int = policy(
        WholeNumber(),
        lambda settings: 0,
        "how many bytes a message may have together with its metadata; chunks of a larger one may have more",
        None,
        PolicyPath("maxMessageSize", no_content=True),
        accepts=_accepts_message_size,
    )
    max_topics_per_namespace: int = policy(
        WholeNumber(),
        lambda settings: settings.topics_max_per_namespace,
        "how many topics the namespace takes; each partition counts as one",
        PolicyPath("maxTopicsPerNamespace", empty=0),
    )
    auth_policies: AuthPolicies = policy(
        RecordOf(AuthPolicies, sparse=True),
        lambda settings: AuthPolicies(),
        "which roles may use the namespace, its topics and its subscriptions",
        PolicyPath("permissions", empty={}, routed=False),
    )

    @classmethod
    def resolve(cls, settings: Settings, *levels: PolicyValues) -> "EffectivePolicies":
        """What the settings and the levels say together. `levels` go from the widest to the narrowest.

        Policies that are not in the table are left out, and so are values that this release does not understand. A
        newer coordinator may know more.
        """
        levels = tuple(map(understood, levels))
        found = {
            name: policy.resolve(settings, [level[name] for level in levels if name in level])
            for name, policy in POLICIES.items()
        }
        return cls(**found)  # type: ignore[arg-type]


POLICIES: dict[str, Policy[object]] = policies_of(EffectivePolicies)
"""All policies by name."""


def understood(values: PolicyValues) -> PolicyValues:
    """What this release understands of stored policies. A newer one may have stored others, or other values."""
    found: dict[str, object] = {}
    for name, value in values.items():
        policy = POLICIES.get(name)
        known = None if policy is None else policy.kind.known(value)
        if known is not None:
            found[name] = known
    return found


def not_understood(values: PolicyValues) -> list[str]:
    """The names of stored policies that this release ignores, wholly or in part."""
    known = understood(values)
    return sorted(name for name, value in values.items() if known.get(name) != value)
