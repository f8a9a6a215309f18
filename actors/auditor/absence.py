"""Which bookies are away, which of them count as lost, and which are in limbo: what the auditor knows of bookies.

A bookie:

    LIVE ── it leaves the list ──→ AWAY ── `lost_bookie_grace_s` pass ──→ LOST
    AWAY, LOST ── it registers again ──→ LIVE      at once, also in the middle of a repair
    LIVE ── it is to be drained ──→ LOST, and still asked and read from
    AWAY, LOST ── it is retired ──→ not known any longer      at the next round; a ledger that names it brings it back

`changed` names those whose ledgers have to be looked at again. A bookie that registered may lack what was written
meanwhile. The ledgers of one that was lost need other bookies. `spares_came` says that a bookie takes copies now and
did not before, `machines_came` that it is on a machine on which no other one did. `due` takes these notes, and puts
them back if it cannot use them.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import chain

from ...storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from ...storage.ledger.ensemble import BookiePlace

logger = logging.getLogger(__name__)


class BookieWatch:
    """See the module. `limbo` says which live bookies are in limbo, and why. `on_change` follows each new list."""

    def __init__(
        self,
        directory: BookieDirectory,
        grace_s: float,
        limbo: Callable[[], dict[str, str]],
        on_change: Callable[[], None],
    ) -> None:
        self.changed: dict[str, None] = {}
        self.spares_came = False
        self.machines_came = False
        self.lost: dict[str, None] = {}
        self.is_retired: Callable[[str], bool] = lambda bookie: False
        """Whether a bookie was drained and has ended, and no ledger is known to name it."""
        self.limbo_since: dict[str, float] = {}
        """Also of those that drain: both wait for ledgers to be closed."""
        self._directory = directory
        self._grace_s = grace_s
        self._limbo = limbo
        self._on_change = on_change
        self._known: dict[str, BookieInfo] = {}
        self._absent_since: dict[str, float] = {}
        self._limbo_known: dict[str, str] = {}
        self._long: dict[str, None] = {}
        directory.on_change.append(self._bookies_changed)

    def close(self) -> None:
        self._directory.on_change.remove(self._bookies_changed)

    def _bookies_changed(self) -> None:
        now = asyncio.get_running_loop().time()
        latest = self._directory.bookies
        if not _machines(latest.values()) <= _machines(self._known.values()):
            self.machines_came = True
        for bookie, info in latest.items():
            self._absent_since.pop(bookie, None)
            if not info.draining:
                self.lost.pop(bookie, None)
            before = self._known.get(bookie)
            if before != info:
                self.changed[bookie] = None
            if info.writable and (before is None or not before.writable):
                self.spares_came = True
        for bookie in self._known:
            if bookie not in latest:
                self._absent_since.setdefault(bookie, now)
        self._known = dict(latest)
        self._on_change()

    def is_live(self, bookie: str) -> bool:
        return bookie in self._directory.bookies

    def stays(self, bookie: str) -> bool:
        """Whether copies on it are safe there: it is live, and not to be drained."""
        info = self._directory.get(bookie)
        return info is not None and not info.draining

    def draining(self) -> list[str]:
        """Live bookies whose copies shall go elsewhere."""
        return [info.id for info in self._directory.bookies.values() if info.draining]

    def place_of(self, bookie: str) -> BookiePlace:
        """Where it runs, or last ran."""
        return self._directory.place_of(bookie)

    def spares(self) -> list[str]:
        """Bookies that copies can be given to."""
        return [info.id for info in self._directory.bookies.values() if info.writable]

    def note_absent(self, bookies: Iterable[str]) -> None:
        """A bookie that this coordinator never saw is absent since it first missed it."""
        for bookie in bookies:
            if bookie not in self._directory.bookies and bookie not in self._absent_since:
                self._absent_since[bookie] = asyncio.get_running_loop().time()

    def find_lost(self) -> list[str]:
        """Bring `lost` up to date; returns those that were not lost before."""
        now = asyncio.get_running_loop().time()
        for bookie in [one for one in self._absent_since if self.is_retired(one)]:
            del self._absent_since[bookie]
        found = [bookie for bookie, since in self._absent_since.items() if now - since >= self._grace_s]
        new = [bookie for bookie in found if bookie not in self.lost]
        for bookie in new:
            logger.warning(
                "bookie %s has been away for %s s: its ledgers are copied to other bookies", bookie, self._grace_s
            )
            self.changed[bookie] = None
        leaving = [bookie for bookie in self.draining() if bookie not in self.lost]
        self.changed.update(dict.fromkeys(leaving))
        self.lost = dict.fromkeys([*found, *self.draining()])
        return [*new, *leaving]

    def find_long(self) -> bool:
        """Whether a bookie has been away, in limbo or draining for twice the grace, and had not at the last call."""
        long = dict.fromkeys(chain(*self.away_long([*self._absent_since, *self.limbo_since])))
        new = any(bookie not in self._long for bookie in long)
        self._long = long
        return new

    def next_event_s(self) -> float | None:
        """Seconds until time makes a bookie lost, or until `find_long` finds another one; None: it does not."""
        now = asyncio.get_running_loop().time()
        at = [since + self._grace_s for bookie, since in self._absent_since.items() if bookie not in self.lost]
        at += [
            since + 2 * self._grace_s
            for bookie, since in chain(self._absent_since.items(), self.limbo_since.items())
            if bookie not in self._long
        ]
        return max(0.0, min(at) - now) if at else None

    def find_limbo(self) -> tuple[dict[str, str], list[str]]:
        """The bookies in limbo, and why; and those of them that fell into it, or lost more, since the last call."""
        limbo = self._limbo()
        now = asyncio.get_running_loop().time()
        self.limbo_since = {bookie: self.limbo_since.get(bookie, now) for bookie in [*limbo, *self.draining()]}
        new = [bookie for bookie, reason in limbo.items() if self._limbo_known.get(bookie) != reason]
        self._limbo_known = dict(limbo)
        return limbo, new

    def limbo_now(self) -> dict[str, str]:
        """The bookies that say that they are in limbo, and why."""
        return self._limbo()

    def left_limbo(self, bookie: str) -> None:
        """It may fall into limbo again before the next look."""
        self._limbo_known.pop(bookie, None)

    def away_long(self, bookies: Iterable[str]) -> tuple[list[str], list[str]]:
        """Those among `bookies` that have been (away, in limbo or draining) for twice the grace."""
        before = asyncio.get_running_loop().time() - 2 * self._grace_s
        named = list(bookies)
        away = [bookie for bookie in named if self._absent_since.get(bookie, before + 1) <= before]
        return away, [bookie for bookie in named if self.limbo_since.get(bookie, before + 1) <= before]


def _machines(bookies: Iterable[BookieInfo]) -> set[str]:
    """Those on which copies can be put."""
    return {info.node for info in bookies if info.writable and info.node}
