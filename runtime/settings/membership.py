"""How members stay in the cluster."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class MembershipSettings:
    """See the module."""

    heartbeat_interval_s: float = setting(
        "heartbeatIntervalSeconds",
        "magnetar",
        0.5,
        "Each member sends a heartbeat to the coordinator this often.",
        minimum=0.01,
        maximum=60,
    )
    session_timeout_s: float = setting(
        "sessionTimeoutSeconds",
        "magnetar",
        3.0,
        "Session timeout: a member that sends no heartbeat for this long loses its session.",
        minimum=0.05,
        maximum=600,
        hostile=1.0,
    )
    rebalance_delay_s: float = setting(
        "loadBalancerRebalanceDelaySeconds",
        "magnetar",
        5.0,
        "The coordinator balances topics when no broker has joined or left for this long.",
        minimum=0,
        maximum=1 << 24,
        hostile=0.5,
    )
