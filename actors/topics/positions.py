"""The places that clients name, as positions to read from within what a topic has."""

from ...protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, Position
from ...storage.managed.managed_ledger import ManagedLedger
from .topic import SubscriptionStart


def resolve(ledger: ManagedLedger, position: Position) -> Position:
    """The position to read from for one that a client gave."""
    last = ledger.last_confirmed
    if position > last:
        return ledger.next_position(last)
    return max(position, ledger.first_position)


async def start_position(ledger: ManagedLedger, start: SubscriptionStart, *, durable: bool, now_ms: int) -> Position:
    """The first position that a new subscription delivers. Raises what reading the ledger raises."""
    if start.position is not None:
        return resolve(ledger, start.position)
    if start.publish_time_ms is not None:
        return await ledger.find_by_publish_time(start.publish_time_ms)
    if start.rollback_s > 0:
        return await ledger.find_by_publish_time(now_ms - start.rollback_s * 1000)
    message_id = start.start_message_id
    if message_id is not None and not durable:
        if message_id.position <= ledger.next_position(ledger.last_confirmed):
            return resolve(ledger, message_id.position)
    return resolve(ledger, EARLIEST_POSITION if start.earliest else LATEST_POSITION)
