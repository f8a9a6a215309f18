"""How consumers see the entries of a topic: the log as it is stored.

A feature may have another view, for the consumers that ask for the compacted topic (`readCompacted`). Such a view
derives from this one.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...protocol.entries import is_batch, is_marker, parse_metadata
from ...protocol.errors import NoSuchEntry
from ...protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, Position, WireMessageId
from ...storage.managed.cursor import Cursor
from ..dispatch.dispatcher import CursorView, Dispatcher, Entry, ReadPlan
from .topic import SubscriptionStart

if TYPE_CHECKING:
    from .persistent import PersistentTopic


class LogView:
    """See the module."""

    __slots__ = ("_ledger", "_name")

    def __init__(self, topic: "PersistentTopic") -> None:
        self._ledger = topic.ledger
        self._name = topic.name

    def resolve(self, position: Position) -> Position:
        """The position to read from for one that a client gave."""
        last = self._ledger.last_confirmed
        if position > last:
            return self._ledger.next_position(last)
        return max(position, self._ledger.first_position)

    async def first_published(self, publish_time_ms: int) -> Position:
        """The first entry that was published then or later, else the place of the next one to come."""
        return await self._ledger.find_by_publish_time(publish_time_ms)

    async def last_message_id(self) -> WireMessageId:
        """Id of the last message, with the index of the last one in a batch; earliest if there is none."""
        ledger, partition = self._ledger, self._name.partition
        position = ledger.last_confirmed
        while position >= (0, 0) and ledger.first_position <= position:
            entries = await ledger.read(position, 1, 1, upto=position)
            if not entries:
                raise NoSuchEntry(f"the last entry of {self._name.full} cannot be read")
            metadata = parse_metadata(entries[0][1])
            if is_marker(metadata):
                position = ledger.position_before(position)
            elif is_batch(metadata):
                count = metadata.num_messages_in_batch
                return WireMessageId(position[0], position[1], partition, count - 1, count)
            else:
                return WireMessageId(position[0], position[1], partition)
        return WireMessageId(-1, -1, partition)

    async def read(self, dispatcher: Dispatcher, plan: ReadPlan, bytes_max: int) -> list[Entry]:
        """The entries of a plan that begins at the read position."""
        return await self._ledger.read(plan.start, plan.entries_max, bytes_max)

    def cursor_of_one(self, cursor: Cursor, compacted: Callable[[], bool]) -> CursorView:
        """What a dispatcher with one active consumer sees of a cursor. `compacted` says whether that reads what is
        compacted."""
        return cursor

    @property
    def end(self) -> Position:
        """The place of the next entry to come."""
        return self._ledger.next_position(self._ledger.last_confirmed)


async def start_position(view: LogView, start: SubscriptionStart, *, durable: bool, now_ms: int) -> Position:
    """The first position that a new subscription delivers. Raises what reading the ledger raises."""
    if start.position is not None:
        return view.resolve(start.position)
    if start.publish_time_ms is not None:
        return await view.first_published(start.publish_time_ms)
    if start.rollback_s > 0:
        return await view.first_published(now_ms - start.rollback_s * 1000)
    message_id = start.start_message_id
    if message_id is not None and not durable and message_id.position <= view.end:
        return view.resolve(message_id.position)
    return view.resolve(EARLIEST_POSITION if start.earliest else LATEST_POSITION)
