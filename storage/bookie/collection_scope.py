"""Which ledgers a garbage collection asks the metadata for: those that a change concerns, not all that are held.

A ledger is *in doubt* until the metadata has said that it stays: it lives, and is open or names this bookie. It comes
into doubt when the coordinator tells that its record was written or deleted. It also does when the bookie took its
first entry, a recovery copy or a fence. What cannot be decided stays in doubt: the metadata may be older, or the ledger
is in use just now. Nothing is deleted because of what was told: it only says what to ask for, by each ledger's own key.

Without what has changed, all ledgers are asked for: after a start of the bookie or of the coordinator, and once a day.
"""

from collections.abc import Iterable, Mapping

from .held_ledgers import HeldLedger


class CollectionScope:
    """See the module. Memory: the ledgers in doubt."""

    def __init__(self) -> None:
        self._in_doubt: dict[int, None] = {}

    def choose(self, ledgers: Mapping[int, HeldLedger], changed: Iterable[int] | None) -> list[int]:
        """The ledgers to ask for, ascending; None for `changed` means all. They count as untouched from now on."""
        if changed is None:
            chosen = sorted(ledgers)
        else:
            touched = [ledger_id for ledger_id, state in ledgers.items() if state.touched]
            self._in_doubt.update(dict.fromkeys([*changed, *touched]))
            chosen = sorted(ledger_id for ledger_id in self._in_doubt if ledger_id in ledgers)
            self._in_doubt = dict.fromkeys(chosen)
        for ledger_id in chosen:
            ledgers[ledger_id].touched = False
        return chosen

    def decided(self, asked: Iterable[int], undecided: Iterable[int]) -> None:
        """The metadata was asked for these ledgers; what is undecided stays in doubt."""
        for ledger_id in asked:
            self._in_doubt.pop(ledger_id, None)
        self._in_doubt.update(dict.fromkeys(undecided))
