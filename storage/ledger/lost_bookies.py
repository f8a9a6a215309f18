"""Which bookies have been away for so long that their copies must be made again elsewhere.

`TRANSITIONS` has the states of a bookie.

A writer checks this because failed adds alone do not show it. An idle ledger has no adds, and an ensemble change
repairs only later entries. A bookie that was never listed is not known here; who opens ledgers then has none on it.

A bookie that is being drained counts like one that is away, and becomes lost after a moment: its ledgers shall go on
elsewhere.

A bookie in limbo counts like one that is away, because limbo lasts until every ledger that names the bookie is closed.
Without this an idle ledger would stay open, and the bookie in limbo.
"""

import asyncio
import enum
from collections.abc import Callable, Collection, Mapping

from ...runtime.transitions import check_transition
from ..metadata.ledger_metadata import LedgerMetadata
from .bookie_directory import BookieDirectory

DRAIN_DELAY_S = 0.5
"""Ends a quick `undrain` without a new ledger for each topic."""


class BookiePresence(enum.Enum):
    """See `TRANSITIONS`."""

    LISTED = enum.auto()
    AWAY = enum.auto()
    LOST = enum.auto()


TRANSITIONS: Mapping[BookiePresence, Collection[BookiePresence]] = {
    BookiePresence.LISTED: (BookiePresence.AWAY,),  # no longer listed, in limbo, or draining
    BookiePresence.AWAY: (
        BookiePresence.LISTED,  # listed again, neither in limbo nor draining
        BookiePresence.LOST,  # `grace_s` later (draining: DRAIN_DELAY_S): `on_lost` is called
    ),
    BookiePresence.LOST: (BookiePresence.LISTED,),  # listed again, neither in limbo nor draining
}


class LostBookies:
    """See the module. Belongs to one event loop; `close` ends all timers."""

    def __init__(self, directory: BookieDirectory, grace_s: float) -> None:
        self.on_lost: dict[Callable[[], None], None] = {}  # every open topic has one here: O(1) to leave
        self._directory = directory
        self._grace_s = grace_s
        self._states = dict.fromkeys(_present(directory), BookiePresence.LISTED)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """Of those that are AWAY."""
        self._lost: set[str] = set()
        """Those that are LOST: every writer asks for them at each run of acknowledged entries."""
        directory.on_change.append(self._directory_changed)

    def holds_part_of(self, metadata: LedgerMetadata) -> bool:
        """Whether a lost bookie should hold a copy of something in this ledger."""
        return bool(self._lost) and not self._lost.isdisjoint(metadata.bookies)

    def keeps_in_limbo(self, metadata: LedgerMetadata) -> bool:
        """Whether a bookie of this ledger waits for it to be closed: it has been in limbo for so long, or drains."""
        if not self.holds_part_of(metadata):
            return False
        listed = self._directory.bookies
        return any(bookie in self._lost and bookie in listed for bookie in metadata.bookies)

    def close(self) -> None:
        """No callback is called from now on."""
        self._directory.on_change.remove(self._directory_changed)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _become(self, bookie: str, state: BookiePresence) -> None:
        check_transition(TRANSITIONS, bookie, self._states[bookie], state)
        self._states[bookie] = state
        if state is BookiePresence.LOST:
            self._lost.add(bookie)
        else:
            self._lost.discard(bookie)

    def _directory_changed(self) -> None:
        present = _present(self._directory)
        for bookie in present:
            if self._states.setdefault(bookie, BookiePresence.LISTED) is not BookiePresence.LISTED:
                if (timer := self._timers.pop(bookie, None)) is not None:
                    timer.cancel()
                self._become(bookie, BookiePresence.LISTED)
        listed = [bookie for bookie, state in self._states.items() if state is BookiePresence.LISTED]
        for bookie in sorted(bookie for bookie in listed if bookie not in present):
            self._become(bookie, BookiePresence.AWAY)
            info = self._directory.get(bookie)
            delay_s = min(self._grace_s, DRAIN_DELAY_S) if info is not None and info.draining else self._grace_s
            self._timers[bookie] = asyncio.get_running_loop().call_later(delay_s, self._lose, bookie)

    def _lose(self, bookie: str) -> None:
        del self._timers[bookie]
        self._become(bookie, BookiePresence.LOST)
        for listener in list(self.on_lost):
            listener()


def _present(directory: BookieDirectory) -> dict[str, None]:
    """In order, for the sake of repeatable runs."""
    return {bookie: None for bookie, info in directory.bookies.items() if not info.limbo and not info.draining}
