"""Which bookies have been away for so long that their copies must be made again elsewhere.

    LISTED ── no longer listed, or in limbo ──────→ AWAY
    AWAY ── listed again, not in limbo ───────────→ LISTED
    AWAY ── `grace_s` later ──────────────────────→ LOST   (`on_lost` is called)
    LOST ── listed again, not in limbo ───────────→ LISTED

A writer checks this because failed adds alone do not show it. An idle ledger has no adds, and an ensemble change
repairs only later entries. A bookie that was never listed is not known here; who opens ledgers then has none on it.

A bookie in limbo counts like one that is away, because limbo lasts until every ledger that names the bookie is closed.
Without this an idle ledger would stay open, and the bookie in limbo.
"""

import asyncio
from collections.abc import Callable

from ..metadata.ledger_metadata import LedgerMetadata
from .bookie_directory import BookieDirectory


class LostBookies:
    """See the module. Belongs to one event loop; `close` ends all timers."""

    def __init__(self, directory: BookieDirectory, grace_s: float) -> None:
        self.on_lost: dict[Callable[[], None], None] = {}  # every open topic has one here: O(1) to leave
        self._directory = directory
        self._grace_s = grace_s
        self._listed = _present(directory)
        self._away: dict[str, asyncio.TimerHandle] = {}
        self._lost: set[str] = set()
        directory.on_change.append(self._directory_changed)

    def holds_part_of(self, metadata: LedgerMetadata) -> bool:
        """Whether a lost bookie should hold a copy of something in this ledger."""
        return bool(self._lost) and not self._lost.isdisjoint(metadata.bookies)

    def keeps_in_limbo(self, metadata: LedgerMetadata) -> bool:
        """Whether a bookie of this ledger has been in limbo for so long: it waits for the ledger to be closed."""
        if not self.holds_part_of(metadata):
            return False
        listed = self._directory.bookies
        return any(bookie in self._lost and bookie in listed for bookie in metadata.bookies)

    def close(self) -> None:
        """No callback is called from now on."""
        self._directory.on_change.remove(self._directory_changed)
        for timer in self._away.values():
            timer.cancel()
        self._away.clear()

    def _directory_changed(self) -> None:
        listed = _present(self._directory)
        for bookie in listed:
            if (timer := self._away.pop(bookie, None)) is not None:
                timer.cancel()
        self._lost -= listed
        for bookie in sorted(self._listed - listed):
            self._away[bookie] = asyncio.get_running_loop().call_later(self._grace_s, self._lose, bookie)
        self._listed = listed

    def _lose(self, bookie: str) -> None:
        del self._away[bookie]
        self._lost.add(bookie)
        for listener in list(self.on_lost):
            listener()


def _present(directory: BookieDirectory) -> set[str]:
    return {bookie for bookie, info in directory.bookies.items() if not info.limbo}
