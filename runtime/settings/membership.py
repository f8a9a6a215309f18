"""How members stay in the cluster."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class MembershipSettings:
    """See the module."""

    heartbeat_interval_s: float = setting(
        "heartbeatIntervalSeconds",
        0.5,
        "Each member sends a heartbeat to the coordinator this often.",
        within=(0.01, 60),
        origin="magnetar",
    )
    session_timeout_s: float = setting(
        "sessionTimeoutSeconds",
        3.0,
        "Session timeout: a member that sends no heartbeat for this long loses its session.",
        within=(0.05, 600),
        hostile=1.0,
        origin="magnetar",
    )
    rebalance_delay_s: float = setting(
        "loadBalancerRebalanceDelaySeconds",
        5.0,
        "The coordinator balances topics when no broker has joined or left for this long.",
        within=(0, 1 << 24),
        hostile=0.5,
        origin="magnetar",
    )
