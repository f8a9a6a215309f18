"""When topics are compacted, and what a compaction may take."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class CompactionSettings:
    """See the module."""

    compaction_threshold_bytes: int = setting(
        "brokerServiceCompactionThresholdInBytes",
        "pulsar",
        0,
        "The broker compacts a topic by itself when this much of it is not compacted; 0 = never. The default for "
        "namespaces without this policy.",
        minimum=0,
        maximum=1 << 62,
        hostile=1,
    )
    compaction_monitor_interval_s: float = setting(
        "brokerServiceCompactionMonitorIntervalInSeconds",
        "pulsar",
        60,
        "The broker looks this often for topics to compact.",
        minimum=0.05,
        maximum=86400,
        hostile=0.5,
    )
    compaction_read_timeout_s: float = setting(
        "brokerServiceCompactionPhaseOneLoopTimeInSeconds",
        "pulsar",
        30,
        "A compaction fails when one of its reads takes longer.",
        minimum=0.05,
        maximum=86400,
    )
    compaction_retain_null_key: bool = setting(
        "topicCompactionRetainNullKey",
        "pulsar",
        False,
        "Whether a compaction keeps messages that have no key.",
        hostile=True,
    )
    compaction_keys_max_mb: int = setting(
        "topicCompactionKeysMaxMb",
        "magnetar",
        64,
        "Memory for the keys of one compaction; a key of 20 bytes takes about 220. A topic with more keys is read "
        "several times, up to 64.",
        minimum=1,
        maximum=1 << 20,
    )
