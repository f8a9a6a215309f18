"""Load balancing: how brokers report what their topics cost, and when topics move for it."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class LoadBalancingSettings:
    """See the module."""

    load_balancer_enabled: bool = setting(
        "loadBalancerEnabled",
        True,
        "Brokers report their load, and the coordinator moves topics for it.",
    )
    load_shedding_enabled: bool = setting(
        "loadBalancerSheddingEnabled",
        True,
        "The coordinator moves topics from overloaded brokers to others. Without it, loads are only shown.",
    )
    load_report_interval_ms: int = setting(
        "loadBalancerReportUpdateMinIntervalMillis",
        5000,
        "Each broker reports its load this often.",
        within=(10, 3_600_000),
    )
    load_shedding_interval_minutes: float = setting(
        "loadBalancerSheddingIntervalMinutes",
        1,
        "The coordinator looks for overloaded brokers this often.",
        within=(0.0001, 1 << 20),
    )
    load_shedding_grace_minutes: float = setting(
        "loadBalancerSheddingGracePeriodMinutes",
        30,
        "A topic that moved for its load, or was unloaded by an operator, does not move for its load for this long.",
        within=(0, 1 << 20),
    )
    load_history_share: float = setting(
        "loadBalancerHistoryResourcePercentage",
        0.9,
        "Share of an earlier average in the new one, after one loadBalancerSheddingIntervalMinutes.",
        within=(0, 0.999),
    )
    load_threshold_percentage: float = setting(
        "loadBalancerThresholdOverMeanPercentage",
        10,
        "A broker is overloaded when its load is above the mean of all brokers by this percentage of the mean.",
        within=(1, 1000),
        origin="magnetar",
    )
    load_least_entries_over_mean: float = setting(
        "loadBalancerMinEntriesPerSecondOverMean",
        100,
        "A broker is not overloaded unless its load is above the mean by this many entries per second. 16 KiB count "
        "as one more entry.",
        within=(0.001, 1 << 40),
        origin="magnetar",
    )
    load_moves_max: int = setting(
        "maxUnloadBundleNumPerShedding",
        8,
        "Number of topics that the coordinator moves for their load at a time.",
        within=(1, 1000),
        original="-1; there is no bound",
    )
