"""What deduplication knows, and how much of that it stores."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class DeduplicationSettings:
    """See the module."""

    deduplication_enabled: bool = setting(
        "brokerDeduplicationEnabled",
        False,
        "Store each message of a producer name once, however often it is sent. The default for namespaces without this "
        "policy.",
        hostile=True,
    )
    deduplication_entries_interval: int = setting(
        "brokerDeduplicationEntriesInterval",
        1000,
        "Deduplication takes a snapshot of its sequence ids after so many entries. Loading a topic reads the entries "
        "behind the last snapshot.",
        within=(1, 1 << 31),
        hostile=2,
    )
    deduplication_snapshot_interval_s: int = setting(
        "brokerDeduplicationSnapshotIntervalSeconds",
        120,
        "It takes a snapshot at the latest so long after an entry; 0 = no such limit. The default for namespaces "
        "without this policy.",
        within=(0, 1 << 31),
        hostile=1,
    )
    deduplication_producers_max: int = setting(
        "brokerDeduplicationMaxNumberOfProducers",
        10_000,
        "Producer names that a snapshot has. Of more names, those that were in use last are kept.",
        within=(1, 1 << 24),
    )
    deduplication_producer_inactivity_timeout_minutes: int = setting(
        "brokerDeduplicationProducerInactivityTimeoutMinutes",
        360,
        "Deduplication forgets the name of a producer that is disconnected for so long.",
        within=(1, 1 << 24),
    )
