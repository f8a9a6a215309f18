"""What has to hold in the live objects of the storage layer between any two events of their process.

Each function yields a sentence for whatever does not. They read production state and change nothing.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from magnetar.protocol.message_id import Position
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.ledger.writer import LedgerWriter
from magnetar.storage.ledger.writer_state import LedgerWriterState, SlotState, WriterPhase
from magnetar.storage.managed.chain import ChainWriterState, LedgerChain
from magnetar.storage.managed.chain_reader import PLACES_MAX, READERS_MAX
from magnetar.storage.managed.cursor import Cursor, CursorWriterState
from magnetar.storage.managed.cursor_state import CursorState
from magnetar.storage.managed.life import ManagedLedgerState
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_ids import LEDGER_IDS_MAX
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from support.stores.memory_store import MemoryRecords


def validate_writer_state(state: LedgerWriterState) -> Iterator[str]:
    """In order, nothing missing in between, nothing acknowledged that still waits."""
    name = f"ledger {state.metadata.ledger_id}"
    if not state.lac <= state.last_added:
        yield f"{name}: LAC {state.lac} is ahead of {state.last_added}, the last one added"
    if state.phase is WriterPhase.ENDED:
        if state.end_error is None:
            yield f"{name} ended without a reason"
        return
    if list(state.pending) != list(range(state.lac + 1, state.last_added + 1)):
        yield f"{name}: {list(state.pending)} wait behind LAC {state.lac}, {state.last_added} was added last"
    if (state.phase is WriterPhase.WRITING) and SlotState.FAILED in state.slots:
        yield f"{name} goes on writing with a failed slot"
    if len(dict.fromkeys(state.ensemble)) != state.metadata.ensemble_size:
        yield f"{name}: the ensemble {state.ensemble} has not {state.metadata.ensemble_size} bookies"
    live = sum(1 << slot for slot, one in enumerate(state.slots) if one is SlotState.LIVE)
    for entry_id, entry in state.pending.items():
        if entry.entry_id != entry_id or entry.acks & ~live:
            yield f"{name}: entry {entry.entry_id} counts answers {entry.acks:b}, slots {live:b} are alive"
    first = state.pending.get(state.lac + 1)
    if first is not None and state.phase is WriterPhase.WRITING:
        if first.acks.bit_count() >= state.metadata.ack_quorum:
            yield f"{name}: entry {first.entry_id} has its quorum and is not acknowledged"


def validate_writer(writer: LedgerWriter) -> Iterator[str]:
    yield from validate_writer_state(writer._state)
    waiting = sum(len(entry.body) for entry in (*writer._state.pending.values(), *writer._acknowledged))
    if any(entry.entry_id > writer.last_confirmed for entry in writer._acknowledged):
        yield f"ledger {writer.ledger_id}: an entry behind LAC {writer.last_confirmed} is about to be confirmed"
    if writer.ended is None and writer.pending_bytes != waiting:
        yield f"ledger {writer.ledger_id}: {writer.pending_bytes} bytes are said to wait, {waiting} do"


def validate_chain(chain: LedgerChain) -> Iterator[str]:
    ids = [info.ledger_id for info in chain.infos]
    if ids != chain._ids or any(first >= second for first, second in pairwise(ids)):
        yield f"the chain is out of order: {ids}, index {chain._ids}"
    last = next(((info.ledger_id, info.entries - 1) for info in reversed(chain.infos) if info.entries), None)
    if last is not None and chain.last_confirmed < last:
        yield f"the last confirmed entry {chain.last_confirmed} is before {last}"


def validate_managed_ledger(ledger: ManagedLedger, records: MemoryRecords) -> Iterator[str]:
    """The chain in memory, the record as its owner knows it, and the ledgers' own records."""
    cache, reads = ledger._cache, ledger._reads
    if cache.size_bytes > cache.size_max_bytes:
        yield f"the cache holds {cache.size_bytes} bytes of at most {cache.size_max_bytes}"
    if len(reads._latest) > PLACES_MAX or len(reads._readers) > READERS_MAX:
        yield f"{len(reads._latest)} places and {len(reads._readers)} readers are kept for {ledger.name}"
    chain, owned, writer = ledger.chain, ledger._owned, ledger._writer
    for problem in validate_chain(chain):
        yield f"{ledger.name}: {problem}"
    if not ledger._record_lock.locked() and ledger._life.state is ManagedLedgerState.OPEN:
        stored = [info.ledger_id for info in owned.record.ledgers]
        if strangers := [info.ledger_id for info in chain.infos if info.ledger_id not in stored]:
            yield f"{ledger.name}: ledgers {strangers} are not in its record {stored}"
    for info in chain.infos:
        found = records.by_key.get(metadata_keys.ledger(info.ledger_id)) if info.closed else None
        if found is not None:
            metadata = _metadata(found.value)
            if not metadata.closed or metadata.last_entry + 1 != info.entries:
                yield f"{ledger.name}: {info} is not what {metadata} says"
    current = writer._writer
    if current is not None:
        for problem in validate_writer(current):
            yield f"{ledger.name}: {problem}"
        info = chain.get(current.ledger_id)
        confirmed = current.last_confirmed - len(current._acknowledged)
        if info is not None and not info.closed and info.entries != confirmed + 1:
            yield f"{ledger.name}: {info} of a writer whose LAC is {current.last_confirmed}"
    direct = writer._direct is not None
    if direct != (writer.state is ChainWriterState.WRITING) and writer._ended is None and not direct:
        yield f"{ledger.name}: a writer in state {writer.state} that writes nothing"
    if direct and (writer._waiting or writer._ended is not None):
        yield f"{ledger.name}: entries wait, or it ended, while others go straight to the ledger"
    # A backup of the metadata may be older than what a cursor's ledger says, which then lies beyond the restored chain.
    restored = metadata_keys.RESTORED_LEDGERS in records.by_key
    highest_ledger_id = LEDGER_IDS_MAX if restored else owned.record.highest_ledger_id
    for cursor in ledger.cursors.values():
        for problem in validate_cursor(cursor, chain, highest_ledger_id):
            yield f"{ledger.name}, cursor {cursor.name}: {problem}"


def validate_cursor_state(state: CursorState, chain: LedgerChain, highest_ledger_id: int = 0) -> Iterator[str]:
    """Ranges disjoint, apart, sorted and beyond the mark; the mark as far as it can be, and no further.

    The chain may be empty: a deletion was cut short, or its owner closed and a trim took the last ledger. Then the mark
    may lie in that ledger. `highest_ledger_id` is the last one that the chain ever had.
    """
    mark = state.mark_delete
    for ledger_id, ranges in state._ranges.items():
        flat = [edge for span in ranges for edge in span]
        if any(first > last for first, last in ranges) or any(
            second <= first + 1 for first, second in zip(flat[1::2], flat[2::2], strict=False)
        ):
            yield f"ranges of ledger {ledger_id} overlap or touch: {list(ranges)}"
        if ranges.count != sum(last - first + 1 for first, last in ranges) or not len(ranges):
            yield f"ranges of ledger {ledger_id} are counted as {ranges.count}: {list(ranges)}"
        if flat and (ledger_id, flat[0]) <= mark:
            yield f"the range from {(ledger_id, flat[0])} is not beyond the mark {mark}"
        info = chain.get(ledger_id)
        if info is not None and flat and flat[-1] >= info.entries:
            yield f"acknowledged up to {(ledger_id, flat[-1])}, of {info.entries} entries"
    behind = chain.next_position(mark)
    ranges = state._ranges.get(behind[0])
    if ranges is not None and ranges.end_of(behind[1]) is not None:
        yield f"the mark {mark} could go on: {behind} is acknowledged"
    if any(position <= mark for position in state.batches):
        yield f"parts of batches up to the mark {mark} are kept: {list(state.batches)}"
    behind_all = (max(chain.last_ledger_id, highest_ledger_id, 0) + (not chain.infos), -1)
    if mark > max(chain.last_confirmed, behind_all):
        yield f"the mark {mark} is beyond the end {chain.last_confirmed}"


def validate_cursor(cursor: Cursor, chain: LedgerChain, highest_ledger_id: int) -> Iterator[str]:
    yield from validate_cursor_state(cursor._state, chain, highest_ledger_id)
    writer = cursor._writer
    if writer.storage is None or writer.state is CursorWriterState.CLOSED or writer.error is not None:
        return
    idle = writer._rounds is None
    if idle is (writer.state is CursorWriterState.WRITING):
        yield f"its writer is {writer.state}, with {writer._rounds}"
    if idle and writer.dirty and writer._timer is None:
        yield "it has moved, and nothing will write it"
    if idle and writer._waiters:
        yield "somebody waits for a write that is not under way"
    written, mark = cursor.durable_mark_delete, cursor.mark_delete_position
    # Ledgers without entries may lie between the two: then nothing is delivered again after a crash.
    behind = [chain.ceiling((position[0], position[1] + 1)) for position in (written, mark)]
    if idle and not writer.dirty and behind[0] != behind[1]:
        yield f"written is {written}, and nothing else since: {mark}"
    if idle and writer.storage.ledger_writer is not None:
        yield from validate_writer(writer.storage.ledger_writer)


def validate_store(store: BookieStore) -> Iterator[str]:
    """A bookie's index and its segments say the same; limbo and failure shut what they have to shut."""
    entries = store.entries
    if store.failed is not None and store.writable:
        yield "its disk failed, and it takes entries"
    if store._journal.pending_bytes < 0 or store._lookup_bytes < 0:
        yield f"fewer than no bytes wait: {store._journal.pending_bytes}, {store._lookup_bytes}"
    active = store._journal.active
    for ledger_id, state in entries.ledgers.items():
        if state.fence_durable and not state.fenced:
            yield f"ledger {ledger_id} is fenced permanently and takes entries"
        if ledger_id in entries.tombstones:
            yield f"ledger {ledger_id} has a tombstone and is known"
        if entries.limbo and not state.fenced:
            yield f"ledger {ledger_id} takes entries in limbo"
        if state.rows_segment is active and active is not None and state.rows is not active.rows.get(ledger_id):
            yield f"ledger {ledger_id} has rows of its own beside the active segment"
        for segment in state.segments:
            if segment.file_id not in entries.segments and segment is not active and segment.file is not None:
                yield f"ledger {ledger_id} lies in {segment}, which is no part of the store"
        highest = max((segment.last_entry(ledger_id) for segment in state.segments), default=-1)
        if state.last_entry < highest:
            yield f"ledger {ledger_id} ends at {state.last_entry}, its segments hold {highest}"
    for segment in entries.segments.values():
        if segment.synced_end > segment.end:
            yield f"{segment} is synced up to {segment.synced_end}"
        if segment.sealed:
            live = sum(line.entry_bytes for one, line in segment.table.items() if entries.lives(segment, one))
            if live != segment.live_bytes:
                yield f"{segment} has {live} bytes alive, {segment.live_bytes} are counted"


@lru_cache(maxsize=4096)
def _metadata(value: bytes) -> LedgerMetadata:
    return LedgerMetadata.unpack(value)


def in_front_of(position: Position) -> Position:
    """The place right before a position."""
    return (position[0], position[1] - 1)
