"""What an administrator does with the backlog of a persistent topic: pass messages over, and look at single ones.

As in Pulsar, entries are counted, not the messages in their batches.

Passing over is an acknowledgement. The answer follows the durable write of the cursor. A crash before that leaves the
cursor where it was, or where it was wanted; doing it again is harmless for a whole backlog. `truncate` moves one cursor
after the other and trims at the end: a crash in the middle leaves some subscriptions with their backlog.
"""

import asyncio

from ...protocol.entries import parse_metadata
from ...protocol.errors import NoSuchEntry
from ...protocol.message_id import EARLIEST_POSITION, Position
from ...storage.managed.managed_ledger import ManagedLedger
from ..members.contracts_broker import BacklogAnalysis, EntryPosition
from ..topics.persistent import PersistentTopic
from ..topics.subscription import Subscription

READ_ENTRIES = 500
"""So many entries an analysis reads together, and no more than as many bytes."""
READ_BYTES = 4 << 20
TURN_RUNS = 1000
"""So many runs of open entries are counted before the broker's loop does something else."""


async def truncate(topic: PersistentTopic) -> None:
    """Acknowledge everything that is stored now, for all durable subscriptions, and delete the ledgers that are free.

    Raises what writing a cursor and trimming raise.
    """
    topic.check_open()
    end = topic.ledger.last_confirmed
    for (_, durable), subscription in list(topic.subscriptions.items()):
        if durable:
            await subscription.acknowledge_all_to(end)
    await topic.ledger.trim()


async def skip(topic: PersistentTopic, subscription: Subscription, entries: int) -> None:
    """Acknowledge the next `entries` entries that are not acknowledged; all if there are fewer. Raises what writing the
    cursor raises."""
    topic.check_open()
    if entries >= subscription.backlog_entries:
        await subscription.acknowledge_all_to(topic.ledger.last_confirmed)
        return
    last, _ = await _open_entry(topic.ledger, subscription, entries)
    await subscription.acknowledge_all_to(last)


async def peek(topic: PersistentTopic, subscription: Subscription, number: int) -> tuple[Position, bytes]:
    """The entry number `number` of a backlog, from 1. Raises NoSuchEntry."""
    place, found = await _open_entry(topic.ledger, subscription, number)
    if found < number:
        raise NoSuchEntry(f"the backlog of {subscription.name} has no message {number}: it has {found}")
    return await entry_at(topic, place)


async def examine(topic: PersistentTopic, number: int, *, from_latest: bool) -> tuple[Position, bytes]:
    """An entry counted from the first or the last one, which are number 1; at most the other end.

    Raises NoSuchEntry for a topic without messages.
    """
    infos = topic.ledger.ledger_infos
    count = sum(info.entries for info in infos)
    if not count:
        raise NoSuchEntry(f"{topic.name.full} has no messages")
    index = min(max(number, 1), count) - 1
    if from_latest:
        index = count - 1 - index
    for info in infos:
        if index < info.entries:
            return await entry_at(topic, (info.ledger_id, index))
        index -= info.entries
    raise NoSuchEntry(f"{topic.name.full} has no entry {number}")


async def entry_at(topic: PersistentTopic, position: Position) -> tuple[Position, bytes]:
    """One entry. Raises NoSuchEntry, and what reading raises."""
    entries = await topic.ledger.read(position, 1, 1, upto=position)
    if not entries or entries[0][0] != position:
        raise NoSuchEntry(f"{topic.name.full} has no entry {position[0]}:{position[1]}")
    return entries[0]


async def analyze(topic: PersistentTopic, subscription: Subscription, begin: Position | None) -> BacklogAnalysis:
    """Read what a subscription has not acknowledged, and count it, up to the bounds of the settings.

    From `begin` on, or from the first open entry. As in Pulsar, entries between `begin` and the mark count, too, unless
    they were acknowledged behind the mark. Raises what reading raises.
    """
    ledger, cursor, settings = topic.ledger, subscription.cursor, topic.settings
    deadline_s = asyncio.get_running_loop().time() + settings.backlog_scan_max_ms / 1000
    end = ledger.last_confirmed
    position = max(begin if begin is not None else cursor.first_unacknowledged, ledger.first_position)
    entries = messages = read = 0
    first = last = EntryPosition(-1, -1)
    while position <= end:
        left = settings.backlog_scan_entries_max - read
        if left <= 0 or asyncio.get_running_loop().time() >= deadline_s:
            return BacklogAnalysis(entries, messages, True, first, last)
        found = await ledger.read(position, min(left, READ_ENTRIES), READ_BYTES, upto=end)
        if not found:
            break
        for place, data in found:
            if place > cursor.mark_delete_position and cursor.next_unacknowledged(place) != place:
                continue
            entries += 1
            messages += parse_metadata(data).num_messages_in_batch
            first = EntryPosition(*place) if entries == 1 else first
            last = EntryPosition(*place)
        read += len(found)
        position = ledger.next_position(found[-1][0])
    return BacklogAnalysis(entries, messages, False, first, last)


async def _open_entry(ledger: ManagedLedger, subscription: Subscription, number: int) -> tuple[Position, int]:
    """The entry number `number`, from 1, of those that are not acknowledged. Where there are fewer, it is the last one.

    Its number comes with it, 0 for none.
    """
    cursor, last, found, runs = subscription.cursor, EARLIEST_POSITION, 0, 0
    position = cursor.first_unacknowledged
    while found < number and position <= ledger.last_confirmed:
        run = min(cursor.unacknowledged_run(position), number - found)
        if not run:
            break
        found += run
        last = (position[0], position[1] + run - 1)
        position = cursor.next_unacknowledged(ledger.next_position(last))
        runs += 1
        if runs % TURN_RUNS == 0:
            await asyncio.sleep(0)  # there may be millions of runs, and the cursor may move meanwhile
            position = cursor.next_unacknowledged(position)
    return last, found
