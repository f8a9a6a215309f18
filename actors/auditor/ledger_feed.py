"""Which ledgers' records were written or deleted lately: bookies ask for it before they collect garbage.

The feed is a hint. What it names, a bookie asks the metadata for, by the ledger's own key, under all the rules of
`storage/bookie/garbage_collection.py`. So a feed that says too much costs a question. One that says too little
keeps a deleted ledger until the next full comparison. The feed is never a reason to delete.

It lives with the coordinator: another one has another epoch, and begins an empty feed. A bookie that asks with an older
epoch, or for what is forgotten, hears that its knowledge is not complete, and compares all of its ledgers.

Memory: 8 bytes per change, at most `CHANGES_MAX` of them. New ledgers are left out: nobody collects them.
"""

from array import array
from collections.abc import Iterable

from ...protocol.errors import ProtocolError
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.store import Write
from ..members.contracts_coordinator import LedgerChanges

CHANGES_MAX = 1 << 20
CHANGES_PER_ANSWER = 50_000


class LedgerFeed:
    """See the module. `epoch` is the coordinator's."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._first = 0
        """The number of the oldest change that is remembered."""
        self._ledgers = array("Q")

    def written(self, writes: Iterable[Write]) -> None:
        """These changes were made, or may have been."""
        for write in writes:
            if not write.key.startswith(metadata_keys.LEDGERS_PREFIX):
                continue
            if write.value is not None and write.expected_version is None:
                continue
            try:
                self._ledgers.append(metadata_keys.ledger_id_of(write.key))
            except ProtocolError:
                continue  # no bookie holds such a ledger
        if len(self._ledgers) > CHANGES_MAX:
            forgotten = len(self._ledgers) - CHANGES_MAX // 2
            del self._ledgers[:forgotten]
            self._first += forgotten

    def changes(self, epoch: int, since: int) -> LedgerChanges:
        """The changes from number `since` on, as many as an answer has; and where the feed ends now."""
        end = self._first + len(self._ledgers)
        if epoch != self.epoch or not self._first <= since <= end:
            return LedgerChanges(self.epoch, end, end, [], complete=False)
        at = since - self._first
        found = self._ledgers[at : at + CHANGES_PER_ANSWER]
        return LedgerChanges(self.epoch, since + len(found), end, list(dict.fromkeys(found)), complete=True)
