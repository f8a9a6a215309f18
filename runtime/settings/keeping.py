"""What a topic keeps beyond its subscriptions' needs, and for how long: the defaults of the policies."""

from dataclasses import dataclass

from .text import setting


@dataclass(frozen=True)
class KeepingSettings:
    """See the module."""

    retention_minutes: float = setting(
        "defaultRetentionTimeInMinutes",
        "pulsar",
        0,
        "A topic keeps acknowledged messages for this long; -1 = for ever. 0 for time and size together = not at all. "
        "The default for namespaces without the policy retention.",
        minimum=-1,
        maximum=1 << 31,
    )
    retention_size_mb: int = setting(
        "defaultRetentionSizeInMB",
        "pulsar",
        0,
        "A topic keeps acknowledged messages up to this size in all; -1 = however much it is.",
        minimum=-1,
        maximum=(1 << 63) - 1,
    )
