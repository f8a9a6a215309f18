"""Which ledgers have to be looked at now, and what makes the auditor look at the others again.

A round looks at the ledgers that are due here, and at no others. A look ends in one of these states. The numbers say
what makes the ledger due again:

- WHOLE and OPEN: 1 and 2.
- FILLED, which waits for a spare: 1, 2 and 3.
- CROWDED, which waits for a machine: 1, 2 and 6.
- OPEN_LACKING, which waits to be recovered: 1 to 4.
- OPEN_DOUBTFUL, the same: 1, 2 and 4.
- LACKING, and each state in which something failed: the same, and 5.
- Where there was no time for a ledger, it stays due.

1. Its record was written. The coordinator carries every write of a record, and tells.
2. One of its bookies registered, was lost, drains or no longer drains, became read-only or writable, or entered or
   left limbo. In short: what the list of bookies says of it has changed, or it has been away for the grace.
3. A bookie became a spare: it joined, came back, left limbo, has room on its disk again, or does not drain any longer.
   In short: it takes copies, and did not before.
4. A bookie of any ledger has been away, in limbo or draining for twice the grace. Then the auditor may recover open
   ledgers, as `service` describes.
5. Time. The first pause is `RETRY_PAUSES_S[0]`. It doubles with each failure, up to the last of them. After 1, 2 or 3
   the first pause is the next one again. An operator has all of them tried at once (`hasten`). So a repair that failed
   for some time is tried again after about as long a time.
6. A bookie became a spare on a machine that had none.

A walk looks at all ledgers, whatever their state. So it finds better zones for copies, too.

No event is lost. The list of bookies and the writes are noted at once, wherever the round is. A note stays until
`expand` takes it, at the beginning of a round. No look is under way then, so the result of each look that began before
the event is in the index. When `expand` is ended early, it puts the note back.
"""

import asyncio
from array import array
from collections.abc import Iterable, Sequence

from .absence import BookieWatch
from .index import IdSet, LedgerCondition, LedgerIndex

RETRY_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0)
WRITTEN_MAX = 100_000
SETTLED = (LedgerCondition.WHOLE, LedgerCondition.FILLED, LedgerCondition.CROWDED)
LEDGERS_PER_TURN = 500
"""Ledgers that become due before other work of the loop gets its turn."""


class FailedLedgers:
    """Ledgers whose repair failed, 8 bytes each, and when each is tried again.

    Those that failed equally often in a row share the time of their next try. So a ledger may be tried earlier than
    after its own pause, and never later.
    """

    def __init__(self) -> None:
        self.count = 0
        self._levels = [IdSet() for _ in RETRY_PAUSES_S]
        self._try_at = [0.0 for _ in RETRY_PAUSES_S]

    def add(self, ledger_id: int) -> None:
        """Its latest look failed."""
        level = self._level_of(ledger_id)
        if level is None:
            following = 0
        elif level + 1 < len(self._levels):
            following = level + 1
            self.forget(ledger_id)
        else:
            return
        if not self._levels[following].count:
            self._try_at[following] = asyncio.get_running_loop().time() + RETRY_PAUSES_S[following]
        self._levels[following].add(ledger_id)
        self.count += 1

    def forget(self, ledger_id: int) -> None:
        """Its latest look succeeded, or something has changed for it."""
        level = self._level_of(ledger_id)
        if level is not None:
            self._levels[level].discard(ledger_id)
            self.count -= 1

    def ripe(self) -> Iterable[int]:
        """Those that are to be tried now. Each is remembered until a look at it has ended."""
        now = asyncio.get_running_loop().time()
        found = array("Q")
        for level, ledgers in enumerate(self._levels):
            if ledgers.count and self._try_at[level] <= now:
                self._try_at[level] = now + RETRY_PAUSES_S[level]
                found += ledgers.copy()
        return found

    def hasten(self) -> None:
        """All are to be tried now."""
        self._try_at = [0.0 for _ in self._levels]

    def next_s(self) -> float | None:
        """Seconds until the next try; None when nothing has failed."""
        waiting = [at for at, ledgers in zip(self._try_at, self._levels, strict=True) if ledgers.count]
        return max(0.0, min(waiting) - asyncio.get_running_loop().time()) if waiting else None

    def _level_of(self, ledger_id: int) -> int | None:
        if not self.count:
            return None
        return next((level for level, ledgers in enumerate(self._levels) if ledger_id in ledgers), None)


class DueLedgers:
    """See the module."""

    def __init__(self, index: LedgerIndex, watch: BookieWatch) -> None:
        self.failed = FailedLedgers()
        self._index = index
        self._watch = watch
        self._due = IdSet()
        self._written: dict[int, None] = {}

    @property
    def count(self) -> int:
        """How many are due now, without those that the next `expand` adds."""
        return self._due.count

    @property
    def written_count(self) -> int:
        """How many were written since the last `expand`."""
        return len(self._written)

    def write(self, ledger_id: int) -> bool:
        """The ledger's record was written. False when there is no room to remember that."""
        if len(self._written) >= WRITTEN_MAX:
            return False
        self._written[ledger_id] = None
        return True

    def take(self, limit: int) -> list[int]:
        """Remove and return up to `limit`. The caller calls `add` or `looked`."""
        return self._due.take(limit)

    def add(self, ledger_ids: Iterable[int]) -> None:
        """They are still due."""
        self._due.update(ledger_ids)

    def looked(self, ledger_ids: Iterable[int], left: Iterable[int], failed: Iterable[int]) -> None:
        """A look at these has ended: there was no time for `left`, and `failed` have to be tried again."""
        unfinished = dict.fromkeys(left)
        self._due.update(unfinished)
        unfinished.update(dict.fromkeys(failed))
        if self.failed.count:
            for ledger_id in ledger_ids:
                if ledger_id not in unfinished:
                    self.failed.forget(ledger_id)
        for ledger_id in failed:
            self.failed.add(ledger_id)

    async def expand(self) -> None:
        """Make due what the events since the last call concern. See the module."""
        waiting = self._index.waiting
        written, self._written = self._written, {}
        self._renew(written)
        if self._watch.find_long():
            self._due.update(waiting[LedgerCondition.OPEN_LACKING].copy())
            self._due.update(waiting[LedgerCondition.OPEN_DOUBTFUL].copy())
        self._due.update(self.failed.ripe())
        if self._watch.spares_came:
            self._watch.spares_came = False
            try:
                await self._renew_many(waiting[LedgerCondition.OPEN_LACKING].copy())
                await self._renew_many(waiting[LedgerCondition.FILLED].copy())
            except BaseException:
                self._watch.spares_came = True
                raise
        if self._watch.machines_came:
            self._watch.machines_came = False
            try:
                await self._renew_many(waiting[LedgerCondition.CROWDED].copy())
            except BaseException:
                self._watch.machines_came = True
                raise
        while self._watch.changed:
            bookie = next(iter(self._watch.changed))
            del self._watch.changed[bookie]
            try:
                await self._expand_bookie(bookie)
            except BaseException:
                self._watch.changed[bookie] = None
                raise

    async def _expand_bookie(self, bookie: str) -> None:
        condition = LedgerCondition.MOVING if bookie in self._watch.lost else LedgerCondition.UNCHECKED
        for number, ledger_id in enumerate(self._index.of(bookie)):
            known = self._index.find(ledger_id)
            if known is not None and known.condition in SETTLED:
                self._index.set_condition(ledger_id, condition)
            self._renew((ledger_id,))
            if number % LEDGERS_PER_TURN == LEDGERS_PER_TURN - 1:
                await asyncio.sleep(0)

    async def _renew_many(self, ledger_ids: Sequence[int]) -> None:
        for first in range(0, len(ledger_ids), LEDGERS_PER_TURN):
            self._renew(ledger_ids[first : first + LEDGERS_PER_TURN])
            await asyncio.sleep(0)

    def _renew(self, ledger_ids: Iterable[int]) -> None:
        """Something has changed for these: they are due, and earlier failures count no longer."""
        for ledger_id in ledger_ids:
            self._due.add(ledger_id)
            self.failed.forget(ledger_id)
