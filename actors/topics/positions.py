"""The places that clients name, as positions to read from within what a topic has."""

from ...protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, Position
from ...storage.managed.managed_ledger import ManagedLedger
from .topic import SubscriptionStart


def resolve(ledger: ManagedLedger, position: Position, *, compacted: bool = False) -> Position:
    """The position to read from for one that a client gave. A reader of the compacted ledger may begin in front of what
    the log still has."""
    last = ledger.last_confirmed
    if position > last:
        return ledger.next_position(last)
    if compacted and position <= ledger.compacted.horizon:
        return max(position, (0, 0))
    return max(position, ledger.first_position)


async def first_published(ledger: ManagedLedger, publish_time_ms: int, *, compacted: bool = False) -> Position:
    """The first entry that was published then or later, else the place of the next one to come."""
    found = await ledger.compacted.find_by_publish_time(publish_time_ms) if compacted else None
    return found or await ledger.find_by_publish_time(publish_time_ms)


async def start_position(ledger: ManagedLedger, start: SubscriptionStart, *, durable: bool, now_ms: int) -> Position:
    """The first position that a new subscription delivers. Raises what reading the ledger raises."""
    compacted = start.compacted
    if start.position is not None:
        return resolve(ledger, start.position, compacted=compacted)
    if start.publish_time_ms is not None:
        return await first_published(ledger, start.publish_time_ms, compacted=compacted)
    if start.rollback_s > 0:
        return await first_published(ledger, now_ms - start.rollback_s * 1000, compacted=compacted)
    message_id = start.start_message_id
    if message_id is not None and not durable:
        if message_id.position <= ledger.next_position(ledger.last_confirmed):
            return resolve(ledger, message_id.position, compacted=compacted)
    return resolve(ledger, EARLIEST_POSITION if start.earliest else LATEST_POSITION, compacted=compacted)
