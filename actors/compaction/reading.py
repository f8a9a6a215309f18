"""How dispatch reads a compacted topic: the compacted ledger up to its horizon, then the log.

Only the active consumer of an Exclusive or Failover subscription reads that way, if it asked for it. Its cursor may
stand in front of all that the log still has. `CompactedCursor` lets the dispatcher begin there; the cursor itself would
say the first entry of the log.

As in Pulsar, nobody acknowledges for a durable subscription what is compacted away. A cumulative acknowledgement passes
over it. Acknowledgements of single messages leave it in the backlog.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...protocol.entries import is_batch, message_count, parse_metadata
from ...protocol.message_id import EARLIEST_POSITION, Position, WireMessageId
from ...storage.managed.compacted import CompactedStorage
from ...storage.managed.cursor import Cursor
from ..dispatch.dispatcher import CursorView, Dispatcher, Entry, ReadPlan
from ..topics.log_view import LogView
from .survivors import DECOMPRESSED_SIZE_MAX, kept_indexes

if TYPE_CHECKING:
    from ..topics.persistent import PersistentTopic


class CompactedCursor:
    """A cursor as a dispatcher with one active consumer sees it. `wanted` says whether that reads what is compacted."""

    def __init__(self, cursor: Cursor, compacted: CompactedStorage, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
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
        return self._wanted() and position <= self._compacted.horizon


class CompactedLog(LogView):
    """What a consumer sees that reads the compacted topic. It may begin in front of what the log still has."""

    __slots__ = ("_compacted",)

    def __init__(self, topic: "PersistentTopic") -> None:
        super().__init__(topic)
        self._compacted = topic.ledger.compacted

    def resolve(self, position: Position) -> Position:
        if position <= min(self._ledger.last_confirmed, self._compacted.horizon):
            return max(position, (0, 0))
        return super().resolve(position)

    async def first_published(self, publish_time_ms: int) -> Position:
        found = await self._compacted.find_by_publish_time(publish_time_ms)
        return found or await super().first_published(publish_time_ms)

    async def last_message_id(self) -> WireMessageId:
        if self._ledger.last_confirmed <= self._compacted.horizon:
            return await _last_compacted_id(self._compacted, self._name.partition)
        return await super().last_message_id()

    async def read(self, dispatcher: Dispatcher, plan: ReadPlan, bytes_max: int) -> list[Entry]:
        horizon = self._compacted.horizon
        entries = await self._compacted.read(plan.start, plan.entries_max, bytes_max)
        if not entries:
            dispatcher.nothing_left(plan, horizon)
        return entries

    def cursor_of_one(self, cursor: Cursor, compacted: Callable[[], bool]) -> CursorView:
        return CompactedCursor(cursor, self._compacted, compacted)


async def _last_compacted_id(compacted: CompactedStorage, partition: int) -> WireMessageId:
    """The id of the last message that the compacted ledger has; earliest where it has none."""
    last = await compacted.last()
    if last is None:
        return WireMessageId(*EARLIEST_POSITION, partition)
    (ledger_id, entry_id), entry = last
    metadata = parse_metadata(entry)
    if not is_batch(metadata):
        return WireMessageId(ledger_id, entry_id, partition)
    count = message_count(metadata)
    index = max(kept_indexes(entry, DECOMPRESSED_SIZE_MAX), default=count - 1)
    return WireMessageId(ledger_id, entry_id, partition, index, count)
