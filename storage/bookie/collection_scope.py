"""Which ledgers a garbage collection asks the metadata for: those that a change concerns, not all that are held.

A ledger here:

    SETTLED   the metadata said that it stays: it lives, and is open or names this bookie
    IN DOUBT  the next collection asks for it by its own key

    SETTLED ── told of, first entry, recovery copy or fence ──→ IN DOUBT
    IN DOUBT ── the metadata says that it stays ──→ SETTLED
    IN DOUBT ── deleted, or closed and elsewhere ──→ tombstone, or given up (`garbage_collection`)
    IN DOUBT ── the metadata may be older, the ledger is in use, or an error ──→ IN DOUBT

Invariants:

- What was told, or not told, deletes nothing. It only says what to ask for.
- A ledger that was ever told of stays IN DOUBT until an answer about its own key has decided. A collection that fails
  decides nothing.
- A question about what is held keeps a ledger for this collection, and puts it into no doubt. Otherwise each walk of
  the auditor would have every ledger asked for.

Without what has changed, all ledgers are asked for: see `actors/bookie/service.py`. Limbo changes nothing here: an
unreadable record ends the collection, and the auditor keeps the bookie in limbo.
"""

from collections.abc import Iterable, Mapping

from .held_ledgers import HeldLedger


class CollectionScope:
    """See the module. Memory: the ledgers in doubt."""

    def __init__(self) -> None:
        self._in_doubt: dict[int, None] = {}

    def choose(self, ledgers: Mapping[int, HeldLedger], changed: Iterable[int] | None) -> list[int]:
        """The ledgers to ask for, ascending; None for `changed` means all. They count as untouched from now on."""
        new = [ledger_id for ledger_id, state in ledgers.items() if state.new_here]
        self._in_doubt.update(dict.fromkeys(new))
        if changed is None:
            chosen = sorted(ledgers)
        else:
            self._in_doubt.update(dict.fromkeys(changed))
            chosen = sorted(ledger_id for ledger_id in self._in_doubt if ledger_id in ledgers)
            self._in_doubt = dict.fromkeys(chosen)
        for ledger_id in chosen:
            ledgers[ledger_id].touched = ledgers[ledger_id].new_here = False
        return chosen

    def decided(self, asked: Iterable[int], undecided: Iterable[int]) -> None:
        """The metadata was asked for these ledgers; what is undecided stays in doubt."""
        for ledger_id in asked:
            self._in_doubt.pop(ledger_id, None)
        self._in_doubt.update(dict.fromkeys(undecided))
