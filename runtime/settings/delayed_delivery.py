"""Delayed delivery: messages that Shared and Key_Shared subscriptions hold back until their time."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class DelayedDeliverySettings:
    """See the module."""

    delayed_delivery_enabled: bool = setting(
        "delayedDeliveryEnabled",
        True,
        "Whether Shared and Key_Shared subscriptions hold messages back until their delivery time. The default for "
        "namespaces without the policy delayedDelivery.",
    )
    delayed_delivery_tick_ms: int = setting(
        "delayedDeliveryTickTimeMillis",
        1000,
        "How exact delivery times are. The default for namespaces without the policy delayedDelivery.",
        within=(1, 1 << 31),
        hostile=50,
    )
    delayed_delivery_strict: bool = setting(
        "isDelayedDeliveryDeliverAtTimeStrict",
        False,
        "Whether a message never comes before its delivery time. It may then come up to one tick late. Otherwise it "
        "may come up to one tick early.",
        hostile=True,
    )
    delayed_delivery_max_ms: int = setting(
        "delayedDeliveryMaxDelayInMillis",
        0,
        "The broker refuses a message whose delivery time is further away than this; 0 = no bound. The default for "
        "namespaces without the policy delayedDelivery.",
        within=(0, (1 << 63) - 1),
    )
    delayed_delivery_min_index_count_per_bucket: int = setting(
        "delayedDeliveryMinIndexCountPerBucket",
        50_000,
        "How many held messages of a durable subscription the broker keeps in memory before it stores them in a "
        "ledger, as a bucket. It keeps up to four times as many while most of them are due within 30 seconds.",
        within=(1, (1 << 63) - 1),
    )
    delayed_delivery_max_indexes_per_segment: int = setting(
        "delayedDeliveryMaxIndexesPerBucketSnapshotSegment",
        5000,
        "How many held messages of a bucket the broker reads back at a time, shortly before they are due.",
        within=(1, 100_000),
    )
