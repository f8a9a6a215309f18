"""I13: a topic that was terminated has an end, and keeps it.

- Whoever terminates a topic, and however often, learns the same place of its last entry.
- The stored end never changes, and is stored before anybody learns it.
- No publish is acknowledged behind the end, before or after it was learned.

A topic that has lost all entries to trimming ends at (−1, −1), as an empty one does: its broker may not know where they
were. So what lay in ledgers before the first one that the topic had at its end counts as being before the end.
"""

from magnetar.protocol.message_id import Position
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Versioned

from .history import History
from .store_watch import who


class TerminationWatch:
    """See the module. Partitions are named as their records are: `persistent/tenant/namespace/name`."""

    def __init__(self, history: History) -> None:
        self.ends: dict[str, Position] = {}
        """What an operator was told."""
        self._history = history
        self._stored: dict[str, Position] = {}
        self._first_ledger: dict[str, int] = {}
        """Of a topic that ended: the first ledger that it had then."""
        self._highest: dict[str, Position] = {}

    def metadata_changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A record has changed."""
        if after is None or not key.startswith(metadata_keys.MANAGED_PREFIX):
            return
        record, partition = ManagedLedgerRecord.unpack(after.value), key.removeprefix(metadata_keys.MANAGED_PREFIX)
        end = record.terminated
        known = self._stored.get(partition)
        if known is not None and known != end:
            self._history.violated(f"I13: {who()} changes the end of {partition} from {known} to {end}")
        if end is not None and known is None:
            self._stored[partition] = end
            ledgers = [info.ledger_id for info in record.ledgers]
            self._first_ledger[partition] = min(ledgers, default=record.highest_ledger_id + 1)

    def was_told(self, partition: str, end: Position) -> None:
        """An operator has terminated a partition, perhaps not for the first time."""
        self._history.counts["partitions terminated"] += 1
        known = self.ends.setdefault(partition, end)
        if known != end:
            self._history.violated(f"I13: {partition} was terminated at {known}, and then at {end}")
        if self._stored.get(partition) != end:
            self._history.violated(
                f"I13: {partition} was terminated at {end}, and {self._stored.get(partition)} is stored"
            )
        self._check(partition)

    def has_receipt(self, partition: str, position: Position) -> None:
        """A publisher learned that its message is stored there."""
        self._highest[partition] = max(position, self._highest.get(partition, position))
        self._check(partition)

    def is_behind(self, partition: str, position: Position, end: Position) -> bool:
        """Whether a position lies behind the end of a topic that ended."""
        return position > end and position[0] >= self._first_ledger.get(partition, 0)

    def _check(self, partition: str) -> None:
        end, highest = self.ends.get(partition), self._highest.get(partition)
        if end is not None and highest is not None and self.is_behind(partition, highest, end):
            self._history.violated(f"I13: a message is acknowledged at {highest} of {partition}, which ended at {end}")
