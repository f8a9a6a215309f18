"""Every setting of a cluster, with its outside name, default, unit, bounds and a hostile value for tests.

Outside (file, environment, `--set`) a setting that Pulsar or BookKeeper has carries their name and default; inside,
the field says its unit last. `hostile` is a legal value that makes trouble likely (tiny buffers, short time-outs):
the simulator draws from it.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...protocol.errors import InvalidTopicName, SettingError
from ...protocol.topics import check_named_entity
from . import text as setting_text
from .limits import ClientLimits
from .text import setting as _setting

ENVIRONMENT_PREFIX = "MAGNETAR_"


@dataclass(frozen=True)
class Settings(ClientLimits):
    """The settings of a cluster. Instances are always valid: `__post_init__` raises SettingError otherwise."""

    # Messages and frames
    max_message_size_bytes: int = _setting(
        "maxMessageSize",
        5_242_880,
        "Largest message (entry) that brokers accept, in bytes.",
        minimum=1024,
        maximum=1 << 30,
    )
    bookie_frame_size_max_bytes: int = _setting(
        "nettyMaxFrameSizeBytes",
        5_253_120,
        "Largest frame that bookies accept, in bytes; above maxMessageSize.",
        minimum=2048,
        maximum=(1 << 30) + (1 << 20),
    )

    # Replication
    ensemble_size: int = _setting(
        "managedLedgerDefaultEnsembleSize", 3, "Bookies over which a ledger is striped.", minimum=1, maximum=64
    )
    write_quorum: int = _setting("managedLedgerDefaultWriteQuorum", 3, "Copies of each entry.", minimum=1, maximum=64)
    ack_quorum: int = _setting(
        "managedLedgerDefaultAckQuorum", 2, "Synced copies before an entry is acknowledged.", minimum=1, maximum=64
    )
    allow_single_copy_acks: bool = _setting(
        "allowAckQuorumOfOne", False, "Permit an ack quorum of 1, which survives no failure."
    )
    add_entry_timeout_s: float = _setting(
        "addEntryTimeoutSeconds",
        5.0,
        "A bookie that has not answered an add for so long is replaced.",
        minimum=0.05,
        maximum=3600,
        hostile=0.2,
    )
    read_entry_timeout_s: float = _setting(
        "readEntryTimeoutSeconds",
        5.0,
        "A bookie that has not answered a read for so long is given up.",
        minimum=0.05,
        maximum=3600,
        hostile=0.2,
    )
    speculative_read_delay_s: float = _setting(
        "speculativeReadTimeoutSeconds",
        0.5,
        "After so long a read is also sent to the next copy.",
        minimum=0.001,
        maximum=60,
        hostile=0.01,
    )
    reads_under_way_max: int = _setting(
        "managedLedgerMaxReadsInFlight", 8, "Range reads under way for one reader.", minimum=1, maximum=1024, hostile=1
    )

    # Managed ledgers and cursors
    ledger_entries_max: int = _setting(
        "managedLedgerMaxEntriesPerLedger",
        50_000,
        "Entries after which a ledger is rolled over.",
        minimum=1,
        maximum=1 << 40,
        hostile=3,
    )
    ledger_size_max_mb: int = _setting(
        "managedLedgerMaxSizePerLedgerMbytes",
        2048,
        "Size after which a ledger is rolled over, in MB.",
        minimum=1,
        maximum=1 << 20,
    )
    ledger_rollover_min_minutes: float = _setting(
        "managedLedgerMinLedgerRolloverTimeMinutes",
        10,
        "A full ledger is kept open at least so long.",
        minimum=0,
        maximum=1 << 20,
        hostile=0,
    )
    ledger_rollover_max_minutes: float = _setting(
        "managedLedgerMaxLedgerRolloverTimeMinutes",
        240,
        "A ledger with entries is closed after so long.",
        minimum=0.001,
        maximum=1 << 20,
    )
    cache_size_mb: int = _setting(
        "managedLedgerCacheSizeMB",
        64,
        "Tail cache of a broker, all topics together, in MB.",
        minimum=0,
        maximum=1 << 20,
        hostile=0,
    )
    cursor_flush_interval_s: float = _setting(
        "managedLedgerCursorFlushSeconds",
        1.0,
        "A cursor that moved is written at most so often, unless a receipt was asked for.",
        minimum=0,
        maximum=3600,
        hostile=0.01,
    )
    cursor_ledger_entries_max: int = _setting(
        "managedLedgerCursorMaxEntriesPerLedger",
        50_000,
        "Snapshots after which a cursor gets a new ledger.",
        minimum=1,
        maximum=1 << 40,
        hostile=2,
    )

    # Broker
    unacked_messages_max_per_consumer: int = _setting(
        "maxUnackedMessagesPerConsumer",
        50_000,
        "A Shared consumer with so many unacknowledged messages gets no more; 0 = no bound.",
        minimum=0,
        maximum=1 << 31,
    )
    unacked_messages_max_per_subscription: int = _setting(
        "maxUnackedMessagesPerSubscription",
        200_000,
        "A Shared subscription with so many unacknowledged messages, or an Exclusive one with so many separate ranges "
        "acknowledged out of order, gets no more until half of them are acknowledged; 0 = no bound.",
        minimum=0,
        maximum=1 << 31,
    )
    consumer_metadata_max_chars: int = _setting(
        "maxConsumerMetadataSize",
        1024,
        "Characters that the names and values of a consumer's metadata may have together.",
        minimum=0,
        maximum=1 << 20,
    )
    pending_publishes_max_per_connection: int = _setting(
        "maxPendingPublishRequestsPerConnection",
        1000,
        "Unanswered publishes of one connection at which it is no longer read.",
        minimum=1,
        maximum=1 << 20,
        hostile=2,
    )
    publish_buffer_max_mb: int = _setting(
        "maxMessagePublishBufferSizeInMB",
        64,
        "Bytes of unanswered publishes of one broker at which connections are no longer read, in MB.",
        minimum=1,
        maximum=1 << 16,
    )
    connection_write_buffer_max_bytes: int = _setting(
        "connectionWriteBufferBytes",
        1 << 20,
        "Unsent bytes of a connection at which dispatch to it pauses.",
        minimum=1024,
        maximum=1 << 30,
        hostile=4096,
    )
    dispatcher_read_entries_max: int = _setting(
        "dispatcherMaxReadBatchSize",
        100,
        "Entries that a dispatcher reads at a time.",
        minimum=1,
        maximum=100_000,
        hostile=1,
    )
    dispatcher_read_bytes_max: int = _setting(
        "dispatcherMaxReadSizeBytes", 5 << 20, "Bytes that a dispatcher reads at a time.", minimum=1, maximum=1 << 30
    )
    dispatcher_turn_messages_max: int = _setting(
        "dispatcherMaxRoundRobinBatchSize",
        20,
        "Messages that a Shared consumer gets before it is the next one's turn.",
        minimum=1,
        maximum=100_000,
        hostile=1,
    )
    connection_requests_max: int = _setting(
        "maxPendingRequestsPerConnection",
        10_000,
        "Requests of one connection under way; further ones get TooManyRequests.",
        minimum=1,
        maximum=1 << 24,
        hostile=4,
    )
    connection_liveness_timeout_s: float = _setting(
        "connectionLivenessCheckTimeoutSeconds",
        5.0,
        "A connection that holds a producer name or an Exclusive place which another one wants is closed after so long "
        "without an answer.",
        minimum=0.01,
        maximum=600,
        hostile=0.1,
    )
    reader_return_timeout_s: float = _setting(
        "nonDurableSubscriptionGraceSeconds",
        60.0,
        "A non-durable subscription whose consumer was sent away by a seek waits so long for its return.",
        minimum=0.01,
        maximum=86_400,
        hostile=1.0,
    )
    lookup_requests_max: int = _setting(
        "maxConcurrentLookupRequest",
        50_000,
        "Lookups under way in one broker; further ones get TooManyRequests.",
        minimum=1,
        maximum=1 << 24,
    )
    topic_load_concurrency_max: int = _setting(
        "maxConcurrentTopicLoadRequest",
        64,
        "Topics that one broker loads at the same time.",
        minimum=1,
        maximum=5000,
        hostile=1,
    )
    topic_load_timeout_s: float = _setting(
        "topicLoadTimeoutSeconds", 60.0, "Loading a topic fails after so long.", minimum=0.1, maximum=3600
    )
    allow_auto_topic_creation: bool = _setting("allowAutoTopicCreation", True, "Create a topic on first use.")
    allow_auto_topic_creation_type: str = _setting(
        "allowAutoTopicCreationType",
        "non-partitioned",
        "What is then created.",
        choices=("non-partitioned", "partitioned"),
    )
    default_num_partitions: int = _setting(
        "defaultNumPartitions",
        1,
        "Partitions of an automatically created partitioned topic.",
        minimum=1,
        maximum=10_000,
    )
    allow_auto_subscription_creation: bool = _setting(
        "allowAutoSubscriptionCreation", True, "Create a subscription on first use."
    )
    keep_alive_interval_s: float = _setting(
        "keepAliveIntervalSeconds",
        30.0,
        "PING an idle client so often; two silent periods end the connection.",
        minimum=0.05,
        maximum=3600,
        hostile=0.5,
    )

    # Admin HTTP
    cluster_name: str = _setting("clusterName", "standalone", "Name of the cluster, as the admin HTTP tells it.")
    web_service_allowed_hosts: str = _setting(
        "webServiceAllowedHosts",
        "",
        "Further host names under which the admin HTTP may be called, separated by commas; * allows every name. "
        "IP addresses, localhost and the machine's own name are always allowed.",
    )

    # Membership
    heartbeat_interval_s: float = _setting(
        "heartbeatIntervalSeconds", 0.5, "Every member says so often that it lives.", minimum=0.01, maximum=60
    )
    session_timeout_s: float = _setting(
        "sessionTimeoutSeconds",
        3.0,
        "A member silent for so long has lost its session.",
        minimum=0.05,
        maximum=600,
        hostile=1.0,
    )

    rebalance_delay_s: float = _setting(
        "loadBalancerRebalanceDelaySeconds",
        5.0,
        "Topics are spread evenly once no broker came or went for so long.",
        minimum=0,
        maximum=1 << 24,
        hostile=0.5,
    )

    # Bookie
    journal_sync_data: bool = _setting(
        "journalSyncData",
        True,
        "fdatasync before every answer. Without it a power failure loses acknowledged messages.",
    )
    segment_size_mb: int = _setting(
        "logSizeLimitMbytes", 64, "Size of a bookie's segment file, in MB.", minimum=1, maximum=2048, hostile=1
    )
    bookie_pending_bytes_max: int = _setting(
        "bookieMaxPendingAddBytes",
        64 << 20,
        "Bytes of adds that wait for the disk; further ones get OVERLOADED.",
        minimum=1 << 16,
        maximum=1 << 32,
    )
    bookie_read_bytes_max: int = _setting(
        "bookieMaxReadBytes",
        4 << 20,
        "Bytes of one range read's answer, unless a single entry is larger.",
        minimum=1,
        maximum=1 << 30,
        hostile=1,
    )
    disk_usage_warn: float = _setting(
        "diskUsageWarnThreshold",
        0.90,
        "Below this share of the disk a read-only bookie becomes writable again.",
        minimum=0.01,
        maximum=0.99,
    )
    disk_usage_full: float = _setting(
        "diskUsageThreshold", 0.95, "At this share of the disk a bookie becomes read-only.", minimum=0.01, maximum=0.999
    )
    disk_check_interval_s: float = _setting(
        "diskCheckIntervalSeconds", 10.0, "How often a bookie looks at its disk.", minimum=0.05, maximum=3600
    )
    gc_interval_s: float = _setting(
        "gcWaitSeconds",
        900.0,
        "Pause between two garbage collections of a bookie.",
        minimum=0.05,
        maximum=1 << 20,
        hostile=0.5,
    )
    minor_compaction_threshold: float = _setting(
        "minorCompactionThreshold",
        0.2,
        "Segments with a smaller live share are rewritten by every collection.",
        minimum=0,
        maximum=1,
    )
    major_compaction_threshold: float = _setting(
        "majorCompactionThreshold",
        0.8,
        "Segments with a smaller live share are rewritten by the daily collection.",
        minimum=0,
        maximum=1,
    )
    major_compaction_interval_s: float = _setting(
        "majorCompactionIntervalSeconds",
        86_400.0,
        "Pause between two major compactions.",
        minimum=0.05,
        maximum=1 << 24,
    )
    compaction_bytes_per_s: int = _setting(
        "compactionRateByBytes", 32 << 20, "Bytes a second that compaction may copy.", minimum=1 << 10, maximum=1 << 40
    )
    scrub_interval_s: float = _setting(
        "localScrubInterval",
        604_800.0,
        "Seconds after which a bookie begins to read everything stored again, to find damage; 0 = never.",
        minimum=0,
        maximum=1 << 24,
        hostile=1.0,
    )
    scrub_bytes_per_s: int = _setting(
        "localScrubRateByBytes",
        0,
        "Bytes a second that a bookie reads for it; 0 = what a pass within localScrubInterval needs, at least 65536.",
        minimum=0,
        maximum=1 << 40,
    )

    # Repair
    auditor_interval_s: float = _setting(
        "auditorPeriodicCheckSeconds",
        600.0,
        "Pause between two full checks of all ledgers.",
        minimum=0.05,
        maximum=1 << 24,
        hostile=1.0,
    )
    lost_bookie_grace_s: float = _setting(
        "lostBookieRecoveryDelaySeconds",
        60.0,
        "A bookie away for so long has its ledgers copied to others.",
        minimum=0,
        maximum=1 << 24,
        hostile=1.0,
    )
    repair_bytes_per_s: int = _setting(
        "replicationRateByBytes", 32 << 20, "Bytes a second that repair may copy.", minimum=1 << 10, maximum=1 << 40
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            setting_text.check(item, getattr(self, item.name))
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum:
            raise SettingError(
                "the replication must satisfy ensemble >= write quorum >= ack quorum, "
                f"not {self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}"
            )
        if self.ack_quorum < 2 and not self.allow_single_copy_acks:
            raise SettingError(
                "an ack quorum of 1 survives no failure: say allowAckQuorumOfOne=true if that is what you want"
            )
        if self.bookie_frame_size_max_bytes < self.max_message_size_bytes + 1024:
            raise SettingError("nettyMaxFrameSizeBytes must be at least 1,024 above maxMessageSize")
        try:
            check_named_entity("cluster", self.cluster_name)
        except InvalidTopicName as error:
            raise SettingError(f"clusterName: {error}") from None
        if self.disk_usage_warn >= self.disk_usage_full:
            raise SettingError("diskUsageWarnThreshold must be below diskUsageThreshold")
        if self.session_timeout_s < 2 * self.heartbeat_interval_s:
            raise SettingError("sessionTimeoutSeconds must be at least two heartbeatIntervalSeconds")
        if self.minor_compaction_threshold > self.major_compaction_threshold:
            raise SettingError("minorCompactionThreshold must not be above majorCompactionThreshold")
        if self.ledger_rollover_min_minutes > self.ledger_rollover_max_minutes:
            raise SettingError("managedLedgerMinLedgerRolloverTimeMinutes must not be above the maximum")
        if (
            self.segment_size_mb * (1 << 20) < 2 * self.bookie_frame_size_max_bytes
            and self.segment_size_mb > 1
            and self.max_message_size_bytes > 5_242_880
        ):
            raise SettingError("logSizeLimitMbytes must hold at least two frames of nettyMaxFrameSizeBytes")

    @classmethod
    def load(
        cls,
        file: str | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
    ) -> "Settings":
        """Defaults, then the file (`name=value` lines, `#` comments), then `MAGNETAR_<name>` variables, then overrides.

        Raises SettingError for an unknown name (naming the nearest one), a value of the wrong type and an impossible
        combination.
        """
        given: dict[str, Any] = {}
        if file is not None:
            given.update(_parse_all(setting_text.read_file(file), f"{file}: "))
        source = os.environ if environment is None else environment
        by_name = _fields_by_name()
        variables = {
            name.removeprefix(ENVIRONMENT_PREFIX): value
            for name, value in source.items()
            if name.startswith(ENVIRONMENT_PREFIX) and name.removeprefix(ENVIRONMENT_PREFIX) in by_name
        }
        given.update(_parse_all(variables, "environment: "))
        given.update(_parse_all(overrides or {}, ""))
        return cls(**given)

    def to_dict(self) -> dict[str, Any]:
        """Values by outside name."""
        return {item.metadata["name"]: getattr(self, item.name) for item in dataclasses.fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Settings":
        """The inverse of `to_dict`; missing ones take their default. Raises SettingError."""
        by_name = _fields_by_name()
        return cls(**{setting_text.find(by_name, name).name: value for name, value in values.items()})


def _fields_by_name() -> dict[str, "dataclasses.Field[Any]"]:
    return {item.metadata["name"]: item for item in dataclasses.fields(Settings)}


def _parse_all(values: Mapping[str, str], where: str) -> dict[str, Any]:
    by_name = _fields_by_name()
    parsed: dict[str, Any] = {}
    for name, text in values.items():
        try:
            item = setting_text.find(by_name, name)
            parsed[item.name] = setting_text.parse(item, text.strip())
        except SettingError as error:
            raise SettingError(f"{where}{error}") from None
    return parsed
