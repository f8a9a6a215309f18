"""The policy of what a topic keeps although all its subscriptions have acknowledged it: `retention` in Pulsar."""

from dataclasses import dataclass

from ...runtime.settings.declarations import Settings
from .kinds import INT_MAX, FieldRecord, WholeNumber, part


@dataclass(frozen=True, slots=True)
class RetentionPolicy(FieldRecord):
    """For how long, and up to which size: −1 is no bound. 0 for both means that nothing is kept."""

    time_minutes: float = part("retentionTimeInMinutes", WholeNumber(-INT_MAX), 0)
    size_mb: int = part("retentionSizeInMB", WholeNumber(-INT_MAX, long=True), 0)

    def fault(self) -> str:
        for name, value in (("retentionTimeInMinutes", self.time_minutes), ("retentionSizeInMB", self.size_mb)):
            if value < -1:
                return f"Invalid retention policy: {name} is {value}, but must be -1 (no bound) or more"
        if (self.time_minutes == 0) != (self.size_mb == 0):
            return (
                "Invalid retention policy: one limit is 0 and the other is not. Set both to 0 to keep nothing, or a "
                "limit that does not count to -1"
            )
        return ""


def default_retention(settings: Settings) -> RetentionPolicy:
    """What the settings say."""
    return RetentionPolicy(settings.retention_minutes, settings.retention_size_mb)
