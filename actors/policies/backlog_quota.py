"""The policy of how far behind a topic's subscriptions may be: `backlog_quota_map` in Pulsar."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ...runtime.settings.declarations import Settings
from .kinds import Choice, FieldRecord, RecordOf, WholeNumber, part
from .policy import PolicyValues
from .retention import RetentionPolicy


class QuotaType(enum.Enum):
    """What is bounded: bytes, or the age of the oldest message that is not acknowledged."""

    DESTINATION_STORAGE = "destination_storage"
    MESSAGE_AGE = "message_age"


class QuotaPolicy(enum.Enum):
    """What a broker does when a quota is used up."""

    HOLD = "producer_request_hold"
    EXCEPTION = "producer_exception"
    EVICTION = "consumer_backlog_eviction"


@dataclass(frozen=True, slots=True)
class BacklogQuota(FieldRecord):
    """One bound. A size below 0 and a time of 0 or less are no bounds, as in Pulsar."""

    size_bytes: int = part("limitSize", WholeNumber(-(1 << 63), long=True), 0)
    time_s: int = part("limitTime", WholeNumber(-(1 << 31)), 0)
    policy: QuotaPolicy = part("policy", Choice(QuotaPolicy), QuotaPolicy.HOLD)

    @property
    def size_limited(self) -> bool:
        """Whether it bounds bytes."""
        return self.size_bytes >= 0

    @property
    def time_limited(self) -> bool:
        """Whether it bounds the age."""
        return self.time_s > 0


def default_quotas(settings: Settings) -> Mapping[QuotaType, BacklogQuota]:
    """What the settings say."""
    size_bytes = settings.backlog_quota_bytes
    if settings.backlog_quota_gb > 0:
        size_bytes = round(settings.backlog_quota_gb * (1 << 30))
    quota = BacklogQuota(size_bytes, settings.backlog_quota_time_s, QuotaPolicy(settings.backlog_quota_policy))
    return MappingProxyType(dict.fromkeys(QuotaType, quota))


def within_retention(quotas: Mapping[QuotaType, BacklogQuota], settings: Settings, others: PolicyValues) -> str:
    """As in Pulsar, a quota may not be larger than the retention of the same level, where that has a bound."""
    if "retention" not in others:
        return ""
    retention = RecordOf(RetentionPolicy).read(others["retention"])
    for kind, quota in quotas.items():
        if kind is QuotaType.DESTINATION_STORAGE:
            is_larger = quota.size_limited and 0 < retention.size_mb << 20 <= quota.size_bytes
        else:
            is_larger = quota.time_limited and 0 < retention.time_minutes * 60 <= quota.time_s
        if is_larger:
            return "Backlog Quota exceeds configured retention quota. Please increase retention quota and retry"
    return ""
