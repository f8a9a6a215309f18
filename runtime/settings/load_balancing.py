"""Load balancing: how brokers report what their topics cost, and when topics move for it."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class LoadBalancingSettings:
    """See the module."""

    load_balancer_enabled: bool = setting(
        "loadBalancerEnabled",
        "pulsar",
        True,
        "Brokers report their load, and the coordinator moves topics for it.",
    )
    load_shedding_enabled: bool = setting(
        "loadBalancerSheddingEnabled",
        "pulsar",
        True,
        "The coordinator moves topics from overloaded brokers to others. Without it, loads are only shown.",
    )
    load_report_interval_ms: int = setting(
        "loadBalancerReportUpdateMinIntervalMillis",
        "pulsar",
        5000,
        "Each broker reports its load this often.",
        minimum=10,
        maximum=3_600_000,
    )
    load_shedding_interval_minutes: float = setting(
        "loadBalancerSheddingIntervalMinutes",
        "pulsar",
        1,
        "The coordinator looks for overloaded brokers this often.",
        minimum=0.0001,
        maximum=1 << 20,
    )
    load_shedding_grace_minutes: float = setting(
        "loadBalancerSheddingGracePeriodMinutes",
        "pulsar",
        30,
        "A topic that moved for its load, or was unloaded by an operator, does not move for its load for this long.",
        minimum=0,
        maximum=1 << 20,
    )
    load_history_share: float = setting(
        "loadBalancerHistoryResourcePercentage",
        "pulsar",
        0.9,
        "Share of an earlier average in the new one, after one loadBalancerSheddingIntervalMinutes.",
        minimum=0,
        maximum=0.999,
    )
    load_threshold_percentage: float = setting(
        "loadBalancerThresholdOverMeanPercentage",
        "magnetar",
        10,
        "A broker is overloaded when its load is above the mean of all brokers by this percentage of the mean.",
        minimum=1,
        maximum=1000,
    )
    load_least_entries_over_mean: float = setting(
        "loadBalancerMinEntriesPerSecondOverMean",
        "magnetar",
        100,
        "A broker is not overloaded unless its load is above the mean by this many entries per second. 16 KiB count "
        "as one more entry.",
        minimum=0.001,
        maximum=1 << 40,
    )
    load_moves_max: int = setting(
        "maxUnloadBundleNumPerShedding",
        "pulsar",
        8,
        "Number of topics that the coordinator moves for their load at a time.",
        minimum=1,
        maximum=1000,
        original="-1; there is no bound",
    )
