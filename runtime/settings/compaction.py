"""When topics are compacted, and what a compaction may take."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class CompactionSettings:
    """See the module."""

    compaction_threshold_bytes: int = setting(
        "brokerServiceCompactionThresholdInBytes",
        0,
        "The broker compacts a topic by itself when this much of it is not compacted; 0 = never. The default for "
        "namespaces without this policy.",
        within=(0, 1 << 62),
        hostile=1,
    )
    compaction_monitor_interval_s: float = setting(
        "brokerServiceCompactionMonitorIntervalInSeconds",
        60,
        "The broker looks this often for topics to compact.",
        within=(0.05, 86400),
        hostile=0.5,
    )
    compaction_read_timeout_s: float = setting(
        "brokerServiceCompactionPhaseOneLoopTimeInSeconds",
        30,
        "A compaction fails when one of its reads takes longer.",
        within=(0.05, 86400),
    )
    compaction_retain_null_key: bool = setting(
        "topicCompactionRetainNullKey",
        False,
        "Whether a compaction keeps messages that have no key.",
        hostile=True,
    )
    compaction_keys_max_mb: int = setting(
        "topicCompactionKeysMaxMb",
        64,
        "Memory for the keys of one compaction; a key of 20 bytes takes about 220. A topic with more keys is read "
        "several times, up to 64.",
        within=(1, 1 << 20),
        origin="magnetar",
    )
