"""How dispatch reads a compacted topic: the compacted ledger up to its horizon, then the log.

Only the active consumer of an Exclusive or Failover subscription reads that way, if it asked for it. Its cursor may
stand in front of all that the log still has. `CompactedCursor` lets the dispatcher begin there; the cursor itself would
say the first entry of the log.

As in Pulsar, nobody acknowledges for a durable subscription what is compacted away. A cumulative acknowledgement passes
over it. Acknowledgements of single messages leave it in the backlog.
"""

from collections.abc import Callable

from ...protocol.entries import is_batch, message_count, parse_metadata
from ...protocol.message_id import EARLIEST_POSITION, Position, WireMessageId
from ...storage.managed.compacted import CompactedStorage
from ...storage.managed.cursor import Cursor
from .survivors import kept_indexes


class CompactedCursor:
    """A cursor as a dispatcher with one active consumer sees it. `wanted` says whether that reads what is compacted; it
    is set when the dispatcher is there."""

    def __init__(self, cursor: Cursor, compacted: CompactedStorage) -> None:
        self.wanted: Callable[[], bool] = bool
        self.is_acknowledged = cursor.view.is_acknowledged  # no detours: they are asked for each entry
        self.ranges_before = cursor.view.ranges_before
        self._cursor = cursor
        self._compacted = compacted

    @property
    def first_unacknowledged(self) -> Position:
        """Where to begin: behind the mark, whether or not the log has that entry."""
        ledger_id, entry_id = self._cursor.mark_delete_position
        behind = (ledger_id, entry_id + 1)
        return behind if self._reads(behind) else self._cursor.first_unacknowledged

    def next_unacknowledged(self, position: Position) -> Position:
        """The first place at or behind `position` that is not acknowledged."""
        if not self._reads(position):
            return self._cursor.next_unacknowledged(position)
        ledger_id, entry_id = self._cursor.mark_delete_position
        return max(position, (ledger_id, entry_id + 1))

    def _reads(self, position: Position) -> bool:
        """Whether the compacted ledger stands for this position, and the active consumer reads it."""
        return self.wanted() and position <= self._compacted.horizon


async def last_compacted_id(compacted: CompactedStorage, partition: int, decompressed_size_max: int) -> WireMessageId:
    """The id of the last message that the compacted ledger has; earliest where it has none."""
    last = await compacted.last()
    if last is None:
        return WireMessageId(*EARLIEST_POSITION, partition)
    (ledger_id, entry_id), entry = last
    metadata = parse_metadata(entry)
    if not is_batch(metadata):
        return WireMessageId(ledger_id, entry_id, partition)
    count = message_count(metadata)
    index = max(kept_indexes(entry, decompressed_size_max), default=count - 1)
    return WireMessageId(ledger_id, entry_id, partition, index, count)
