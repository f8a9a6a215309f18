"""What one bookie does with its disk."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class BookieSettings:
    """See the module."""

    journal_sync_data: bool = setting(
        "journalSyncData",
        True,
        "Sync each batch to disk before the bookie answers. With false a power failure loses acknowledged messages.",
        origin="bookkeeper",
    )
    segment_size_bytes: int = setting(
        "logSizeLimit",
        64 << 20,
        "Size at which a bookie starts a new segment file.",
        within=(1 << 20, 2048 << 20),
        hostile=1 << 20,
        original="1073741824; compaction rewrites less at a time",
        origin="bookkeeper",
    )
    bookie_pending_bytes_max: int = setting(
        "bookieMaxPendingAddBytes",
        64 << 20,
        "Bytes of adds that may wait for a bookie's disk. The bookie answers further ones with OVERLOADED.",
        within=(1 << 16, 1 << 32),
        origin="magnetar",
    )
    bookie_read_bytes_max: int = setting(
        "maxBatchReadSize",
        4 << 20,
        "Largest answer to a range read, unless a single entry is larger.",
        within=(1, 1 << 30),
        hostile=1,
        original="5242880; the answer stays below nettyMaxFrameSizeBytes",
        origin="bookkeeper",
    )
    disk_usage_warn: float = setting(
        "diskUsageWarnThreshold",
        0.90,
        "The bookie logs a warning when its disk is used to this share. A read-only bookie becomes writable again "
        "below it; BookKeeper has diskUsageLwmThreshold for that.",
        within=(0.01, 0.99),
        origin="bookkeeper",
    )
    disk_usage_full: float = setting(
        "diskUsageThreshold",
        0.95,
        "The bookie becomes read-only when its disk is used to this share.",
        within=(0.01, 0.999),
        origin="bookkeeper",
    )
    disk_check_interval_ms: int = setting(
        "diskCheckInterval",
        10_000,
        "The bookie checks its disk usage this often.",
        within=(50, 3_600_000),
        origin="bookkeeper",
    )
    gc_interval_ms: int = setting(
        "gcWaitTime",
        900_000,
        "Pause between two garbage collections of a bookie.",
        within=(50, 1 << 30),
        hostile=500,
        original="600000; 900000 in Pulsar's bookkeeper.conf",
        origin="bookkeeper",
    )
    minor_compaction_threshold: float = setting(
        "minorCompactionThreshold",
        0.2,
        "Each garbage collection rewrites segments with a smaller share of live data.",
        within=(0, 1),
        origin="bookkeeper",
    )
    major_compaction_threshold: float = setting(
        "majorCompactionThreshold",
        0.8,
        "Each major compaction rewrites segments with a smaller share of live data.",
        within=(0, 1),
        original="0.8; 0.5 in Pulsar's bookkeeper.conf",
        origin="bookkeeper",
    )
    major_compaction_interval_s: float = setting(
        "majorCompactionInterval",
        86_400.0,
        "Pause between two major compactions.",
        within=(0.05, 1 << 24),
        origin="bookkeeper",
    )
    compaction_bytes_per_s: int = setting(
        "compactionRateByBytes",
        32 << 20,
        "Bytes per second that compaction may copy.",
        within=(1 << 10, 1 << 40),
        original="1000000; that is too slow to keep up with one busy topic",
        origin="bookkeeper",
    )
    scrub_interval_s: float = setting(
        "localScrubInterval",
        604_800.0,
        "A bookie reads everything it has stored once in this time, to find damage; 0 = never.",
        within=(0, 1 << 24),
        hostile=1.0,
        original="0; a damaged copy is found while others are intact",
        origin="bookkeeper",
    )
    scrub_bytes_per_s: int = setting(
        "localScrubRateByBytes",
        0,
        "Bytes per second that a scrub reads. 0 = as fast as one pass within localScrubInterval needs, at least 65536.",
        within=(0, 1 << 40),
        origin="magnetar",
    )
