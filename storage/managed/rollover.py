"""When a topic goes on in a new ledger. Pure.

Rule: full (entries or size) and old enough; or old, if it has entries at all. Or it is degraded (fewer copies than
configured, or some of them on a lost bookie) while enough bookies are usable for a whole ensemble again. Or a bookie in
limbo waits for its end, and enough bookies are usable for an ack quorum. An empty ledger is rolled over in the last two
cases only. What was rolled over is closed, and the auditor then copies what it lacks.
"""

import math
from typing import NamedTuple

from ...runtime.settings.declarations import Settings

DEGRADED_ROLLOVER_MIN_S = 5.0
"""A ledger that lost a copy is kept at least so long, lest flapping bookies make a new ledger each time."""


class RolloverRule(NamedTuple):
    """The bounds. Ages in seconds."""

    entries_max: int
    size_max_bytes: int
    age_min_s: float
    age_max_s: float

    @staticmethod
    def of(settings: Settings) -> "RolloverRule":
        return RolloverRule(
            settings.ledger_entries_max,
            settings.ledger_size_max_mb << 20,
            settings.ledger_rollover_min_minutes * 60,
            settings.ledger_rollover_max_minutes * 60,
        )

    def full(self, entries: int, size_bytes: int) -> bool:
        """Whether a ledger has as many entries or bytes as it may."""
        return entries >= self.entries_max or size_bytes >= self.size_max_bytes

    def due_in_s(self, entries: int, size_bytes: int, age_s: float, *, should_move: bool) -> float | None:
        """Seconds until rollover is due as things stand, 0 for now; None while there is no reason for any.

        `should_move`: see `ledger.ensemble`.
        """
        due_at = self.age_max_s if entries else math.inf
        if self.full(entries, size_bytes):
            due_at = min(due_at, self.age_min_s)
        if should_move:
            due_at = min(due_at, DEGRADED_ROLLOVER_MIN_S)
        return max(due_at - age_s, 0.0) if due_at < math.inf else None
