"""What one bookie does with its disk."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class BookieSettings:
    """See the module."""

    journal_sync_data: bool = setting(
        "journalSyncData",
        "bookkeeper",
        True,
        "Sync each batch to disk before the bookie answers. With false a power failure loses acknowledged messages.",
    )
    segment_size_bytes: int = setting(
        "logSizeLimit",
        "bookkeeper",
        64 << 20,
        "Size at which a bookie starts a new segment file.",
        minimum=1 << 20,
        maximum=2048 << 20,
        hostile=1 << 20,
        original="1073741824; compaction rewrites less at a time",
    )
    bookie_pending_bytes_max: int = setting(
        "bookieMaxPendingAddBytes",
        "magnetar",
        64 << 20,
        "Bytes of adds that may wait for a bookie's disk. The bookie answers further ones with OVERLOADED.",
        minimum=1 << 16,
        maximum=1 << 32,
    )
    bookie_read_bytes_max: int = setting(
        "maxBatchReadSize",
        "bookkeeper",
        4 << 20,
        "Largest answer to a range read, unless a single entry is larger.",
        minimum=1,
        maximum=1 << 30,
        hostile=1,
        original="5242880; the answer stays below nettyMaxFrameSizeBytes",
    )
    disk_usage_warn: float = setting(
        "diskUsageWarnThreshold",
        "bookkeeper",
        0.90,
        "The bookie logs a warning when its disk is used to this share. A read-only bookie becomes writable again "
        "below it; BookKeeper has diskUsageLwmThreshold for that.",
        minimum=0.01,
        maximum=0.99,
    )
    disk_usage_full: float = setting(
        "diskUsageThreshold",
        "bookkeeper",
        0.95,
        "The bookie becomes read-only when its disk is used to this share.",
        minimum=0.01,
        maximum=0.999,
    )
    disk_check_interval_ms: int = setting(
        "diskCheckInterval",
        "bookkeeper",
        10_000,
        "The bookie checks its disk usage this often.",
        minimum=50,
        maximum=3_600_000,
    )
    gc_interval_ms: int = setting(
        "gcWaitTime",
        "bookkeeper",
        900_000,
        "Pause between two garbage collections of a bookie.",
        minimum=50,
        maximum=1 << 30,
        hostile=500,
        original="600000; 900000 in Pulsar's bookkeeper.conf",
    )
    minor_compaction_threshold: float = setting(
        "minorCompactionThreshold",
        "bookkeeper",
        0.2,
        "Each garbage collection rewrites segments with a smaller share of live data.",
        minimum=0,
        maximum=1,
    )
    major_compaction_threshold: float = setting(
        "majorCompactionThreshold",
        "bookkeeper",
        0.8,
        "Each major compaction rewrites segments with a smaller share of live data.",
        minimum=0,
        maximum=1,
        original="0.8; 0.5 in Pulsar's bookkeeper.conf",
    )
    major_compaction_interval_s: float = setting(
        "majorCompactionInterval",
        "bookkeeper",
        86_400.0,
        "Pause between two major compactions.",
        minimum=0.05,
        maximum=1 << 24,
    )
    compaction_bytes_per_s: int = setting(
        "compactionRateByBytes",
        "bookkeeper",
        32 << 20,
        "Bytes per second that compaction may copy.",
        minimum=1 << 10,
        maximum=1 << 40,
        original="1000000; that is too slow to keep up with one busy topic",
    )
    scrub_interval_s: float = setting(
        "localScrubInterval",
        "bookkeeper",
        604_800.0,
        "A bookie reads everything it has stored once in this time, to find damage; 0 = never.",
        minimum=0,
        maximum=1 << 24,
        hostile=1.0,
        original="0; a damaged copy is found while others are intact",
    )
    scrub_bytes_per_s: int = setting(
        "localScrubRateByBytes",
        "magnetar",
        0,
        "Bytes per second that a scrub reads. 0 = as fast as one pass within localScrubInterval needs, at least 65536.",
        minimum=0,
        maximum=1 << 40,
    )
