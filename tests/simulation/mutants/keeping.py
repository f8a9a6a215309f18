"""Bugs in what topics keep: retention. See `own` for how a mutant is made."""

from collections.abc import Sequence
from contextlib import ExitStack

from magnetar.storage.managed.chain import LedgerInfo
from magnetar.storage.managed.trimming import Retention

from .mutant import Mutant, replace


def _trim_what_retention_covers(stack: ExitStack) -> None:
    def covers(self: Retention, info: LedgerInfo, size_behind_bytes: int, now_ms: int) -> bool:
        return self.size_bytes > size_behind_bytes  # "−1 is no bound" is forgotten

    replace(stack, Retention, "covers", covers)


KEEPING: Sequence[Mutant] = (
    Mutant("forgotten retention", "a ledger that retention covers is trimmed", "I9", _trim_what_retention_covers),
)
