"""What one broker and the admin HTTP do with connections, publishes, dispatch and topics."""

from dataclasses import dataclass

from ...protocol.errors import SettingError
from .text import setting

SUBSCRIPTION_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")


@dataclass(frozen=True)
class BrokerSettings:
    """See the module."""

    acknowledgment_at_batch_index_level_enabled: bool = setting(
        "acknowledgmentAtBatchIndexLevelEnabled",
        True,
        "Whether consumers may acknowledge single messages of a batch. The broker then does not deliver them again.",
        hostile=False,
    )
    topic_level_policies_enabled: bool = setting(
        "topicLevelPoliciesEnabled",
        True,
        "Whether topics have policies of their own. If not, brokers ignore them, and the admin refuses their paths.",
    )
    unacked_messages_max_per_consumer: int = setting(
        "maxUnackedMessagesPerConsumer",
        50_000,
        "Dispatch to a Shared consumer stops at this many unacknowledged messages; 0 = no bound. The default for "
        "namespaces without this policy.",
        within=(0, 1 << 31),
    )
    unacked_messages_max_per_subscription: int = setting(
        "maxUnackedMessagesPerSubscription",
        200_000,
        "Dispatch stops at this many unacknowledged messages of a Shared subscription, until half of them "
        "are acknowledged. On an Exclusive subscription it bounds the separate ranges that were acknowledged "
        "out of order; 0 = no bound. The default for namespaces without this policy.",
        within=(0, 1 << 31),
    )
    consumer_metadata_max_chars: int = setting(
        "maxConsumerMetadataSize",
        1024,
        "Characters that the names and values of a consumer's metadata may have together.",
        within=(0, 1 << 20),
    )
    pending_publishes_max_per_connection: int = setting(
        "maxPendingPublishRequestsPerConnection",
        1000,
        "The broker stops reading from a connection that has this many unanswered publishes.",
        within=(1, 1 << 20),
        hostile=2,
    )
    publish_buffer_max_mb: int = setting(
        "maxMessagePublishBufferSizeInMB",
        64,
        "The broker stops reading from its connections when their unanswered publishes hold this much.",
        within=(1, 1 << 16),
        original="half of the JVM's direct memory; there is no JVM",
    )
    connection_write_buffer_max_bytes: int = setting(
        "pulsarChannelWriteBufferHighWaterMark",
        1 << 20,
        "Dispatch to a connection pauses at this many unsent bytes.",
        within=(1024, 1 << 30),
        hostile=4096,
        original="65536; dispatch to a fast consumer pauses less often",
    )
    dispatcher_read_entries_max: int = setting(
        "dispatcherMaxReadBatchSize",
        100,
        "Entries that a dispatcher reads at a time.",
        within=(1, 100_000),
        hostile=1,
    )
    dispatcher_read_bytes_max: int = setting(
        "dispatcherMaxReadSizeBytes",
        5 << 20,
        "Bytes that a dispatcher reads at a time.",
        within=(1, 1 << 30),
    )
    dispatcher_turn_messages_max: int = setting(
        "dispatcherMaxRoundRobinBatchSize",
        20,
        "Messages that a Shared consumer gets before the dispatcher turns to the next consumer.",
        within=(1, 100_000),
        hostile=1,
    )
    active_consumer_failover_delay_ms: int = setting(
        "activeConsumerFailoverDelayTimeMillis",
        1000,
        "When the active consumer of a Failover subscription changes while the one before stays connected, dispatch "
        "waits this long. Messages that are acknowledged meanwhile are not delivered twice.",
        within=(0, 3_600_000),
        hostile=1,
    )
    key_shared_consistent_hashing: bool = setting(
        "subscriptionKeySharedUseConsistentHashing",
        True,
        "Whether AUTO_SPLIT of Key_Shared subscriptions divides the keys by consistent hashing. If not, it divides "
        "them by ranges of hashes.",
        hostile=False,
    )
    key_shared_ring_points: int = setting(
        "subscriptionKeySharedConsistentHashingReplicaPoints",
        100,
        "Points of each Key_Shared consumer on the ring of consistent hashing.",
        within=(1, 10_000),
        hostile=1,
    )
    key_shared_look_ahead_max_per_consumer: int = setting(
        "keySharedLookAheadMsgInReplayThresholdPerConsumer",
        2000,
        "Entries for each consumer of a Key_Shared subscription that may wait for their consumer or for redelivery "
        "while the dispatcher reads later ones; 0 = no such bound.",
        within=(0, 1 << 31),
        hostile=1,
    )
    key_shared_look_ahead_max: int = setting(
        "keySharedLookAheadMsgInReplayThresholdPerSubscription",
        20_000,
        "The same for a whole Key_Shared subscription; 0 = no such bound. Without both, the bounds of unacknowledged "
        "messages hold.",
        within=(0, 1 << 31),
        hostile=2,
    )
    connection_requests_max: int = setting(
        "maxPendingRequestsPerConnection",
        10_000,
        "Requests that one connection may have in flight. The broker answers further ones with TooManyRequests.",
        within=(1, 1 << 24),
        hostile=4,
        origin="magnetar",
    )
    connection_liveness_timeout_ms: int = setting(
        "connectionLivenessCheckTimeoutMillis",
        5000,
        "When a client asks for a producer name or an Exclusive subscription that another connection holds, "
        "the broker pings that connection. It closes the connection when no answer comes for this long.",
        within=(10, 600_000),
        hostile=100,
    )
    reader_return_timeout_s: float = setting(
        "nonDurableSubscriptionGraceSeconds",
        60.0,
        "The broker keeps a non-durable subscription for this long after a seek has disconnected its consumer.",
        within=(0.01, 86_400),
        hostile=1.0,
        origin="magnetar",
    )
    lookup_requests_max: int = setting(
        "maxConcurrentLookupRequest",
        50_000,
        "Lookups that one broker handles at the same time. It answers further ones with TooManyRequests.",
        within=(1, 1 << 24),
    )
    topic_load_concurrency_max: int = setting(
        "maxConcurrentTopicLoadRequest",
        64,
        "Topics that one broker loads at the same time.",
        within=(1, 5000),
        hostile=1,
        original="5000; loads leave time to the topics that are loaded",
    )
    idle_topics_loaded_max: int = setting(
        "brokerIdleTopicsLoadedMax",
        500,
        "Topics without clients that one broker keeps loaded. Those that are idle longest beyond this number rest: the "
        "broker closes them, and loads them again when they are used. A loaded topic takes about 20 KB of memory.",
        within=(0, 1 << 31),
        origin="magnetar",
    )
    topic_idle_s: float = setting(
        "brokerTopicIdleSeconds",
        5.0,
        "A topic stays loaded at least this long after its last client has left.",
        within=(0.001, 86_400),
        origin="magnetar",
    )
    topic_load_timeout_s: float = setting(
        "topicLoadTimeoutSeconds",
        60.0,
        "Loading a topic fails after this long.",
        within=(0.1, 3600),
    )
    non_persistent_topics_enabled: bool = setting(
        "enableNonPersistentTopics",
        True,
        "Take clients for non-persistent topics. They store no messages.",
    )
    allow_auto_topic_creation: bool = setting(
        "allowAutoTopicCreation",
        True,
        "Create a topic when a client first uses it.",
    )
    allow_auto_topic_creation_type: str = setting(
        "allowAutoTopicCreationType",
        "non-partitioned",
        "Kind of topic that is created automatically.",
        choices=("non-partitioned", "partitioned"),
    )
    default_num_partitions: int = setting(
        "defaultNumPartitions",
        1,
        "Partitions of an automatically created partitioned topic.",
        within=(1, 10_000),
    )
    allow_auto_subscription_creation: bool = setting(
        "allowAutoSubscriptionCreation",
        True,
        "Create a subscription when a consumer first uses it.",
    )
    system_topic_enabled: bool = setting(
        "systemTopicEnabled",
        True,
        "Reserve the names of system topics, and let the health check of a broker use its topic heartbeat.",
    )
    force_delete_namespace_allowed: bool = setting(
        "forceDeleteNamespaceAllowed",
        False,
        "Let the admin delete a namespace together with its topics, by force=true.",
    )
    backlog_scan_entries_max: int = setting(
        "subscriptionBacklogScanMaxEntries",
        10_000,
        "Entries that an analysis of a backlog reads at most.",
        within=(1, 10_000_000),
    )
    backlog_scan_max_ms: int = setting(
        "subscriptionBacklogScanMaxTimeMs",
        120_000,
        "How long an analysis of a backlog takes at most.",
        within=(1, 120_000),
    )
    force_delete_tenant_allowed: bool = setting(
        "forceDeleteTenantAllowed",
        False,
        "Let the admin delete a tenant together with its namespaces and their topics, by force=true.",
    )
    subscription_types_enabled: str = setting(
        "subscriptionTypesEnabled",
        ",".join(SUBSCRIPTION_TYPES),
        "Types of subscriptions that consumers may use, separated by commas. The default for namespaces without the "
        "policy subscription_types_enabled.",
    )
    encryption_require_on_producer: bool = setting(
        "encryptionRequireOnProducer",
        False,
        "Refuse producers that do not encrypt, and messages without encryption keys. A namespace may require it on "
        "its own.",
    )
    schema_compatibility_strategy: str = setting(
        "schemaCompatibilityStrategy",
        "FULL",
        "Which schemas a topic may get beside those that it has. The default for namespaces without this policy.",
        choices=(
            "ALWAYS_INCOMPATIBLE",
            "ALWAYS_COMPATIBLE",
            "BACKWARD",
            "FORWARD",
            "FULL",
            "BACKWARD_TRANSITIVE",
            "FORWARD_TRANSITIVE",
            "FULL_TRANSITIVE",
        ),
    )
    is_allow_auto_update_schema_enabled: bool = setting(
        "isAllowAutoUpdateSchemaEnabled",
        True,
        "Let producers and consumers add schemas to their topics. The default for namespaces without this policy.",
    )
    is_schema_validation_enforced: bool = setting(
        "isSchemaValidationEnforced",
        False,
        "Refuse producers without a schema on topics that have schemas. A namespace may require it on its own.",
    )
    keep_alive_interval_s: float = setting(
        "keepAliveIntervalSeconds",
        30.0,
        "The broker pings an idle client after this long. It closes the connection after two intervals "
        "without an answer.",
        within=(0.05, 3600),
        hostile=0.5,
    )
    cluster_name: str = setting(
        "clusterName",
        "standalone",
        "Name of the cluster that the admin HTTP reports.",
        original="none; standalone in Pulsar standalone",
    )
    web_service_allowed_hosts: str = setting(
        "webServiceAllowedHosts",
        "",
        "Further host names under which clients may call the admin HTTP, separated by commas; * allows every "
        "name. IP addresses, localhost and the machine's own name are always allowed.",
        origin="magnetar",
    )

    def enabled_subscription_types(self) -> list[str]:
        """The words of `subscriptionTypesEnabled`. Raises SettingError for one that is no type."""
        words = [word.strip() for word in self.subscription_types_enabled.split(",") if word.strip()]
        for word in words:
            if word not in SUBSCRIPTION_TYPES:
                raise SettingError(
                    f"subscriptionTypesEnabled names {word!r}: the types are {', '.join(SUBSCRIPTION_TYPES)}"
                )
        return words
