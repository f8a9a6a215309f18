"""A topic's compacted ledger: reading it, writing the next one, and the switch from the one to the other.

The compacted ledger stands for the messages up to and including its *horizon*. It holds what a compaction kept of them,
in order, each entry with the position that it had in the topic. A reader of it goes on behind the horizon in the log.

The record of the managed ledger names both ledgers, so that each step below is one compare-and-set under the owner's
epoch. The search for orphans sees them all the time.

| step | record | a crash here |
| --- | --- | --- |
| `begin` makes a ledger | `compacting` names it | the next owner puts it into `deleting`; the old one is read |
| entries are copied and acknowledged, the ledger is closed | the same | the same |
| `switch` | `compacted` names it, `deleting` the old one | the new one is read; the next owner deletes the old one |
| the cursor goes to the horizon | the same | the next owner moves the cursor when it opens the topic |
| the old ledger is deleted, then the log is trimmed | without it | the next owner repeats it |

Invariants:

- The record names a compacted ledger only after all its entries are acknowledged and it is closed. So a reader sees the
  old one or the new one, each whole.
- The compaction cursor never passes the stored horizon. So the log behind the horizon is there until a later switch.
- Entries of the compacted ledger ascend by position, and none is behind the horizon.
- A broker that has lost the topic cannot switch: its write of the record fails with StaleEpoch.

A ledger that a bulk read has pinned is not deleted before the pin ends (see `trimming`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from ...protocol.bookie_wire import LedgerEntry
from ...protocol.compacted_entries import decode_compacted, encode_compacted
from ...protocol.entries import parse_metadata
from ...protocol.errors import (
    EntryCorrupt,
    EntryUnknown,
    LedgerClosed,
    MagnetarError,
    NoSuchEntry,
    OutcomeUnknown,
    StaleEpoch,
)
from ...protocol.message_id import Position
from ..ledger.entry_cache import EntryCache
from ..ledger.reader import LedgerReader
from ..ledger.writer import LedgerWriter
from ..metadata.ledger_metadata import LedgerMetadata
from .chain import LedgerChain
from .chain_reader import ChainReads
from .chain_writer import ChainWriter
from .cursor import Cursor
from .cursor_storage import CursorHome
from .deletion import delete_unused
from .publish_times import first_published
from .record import CompactedLedger, ManagedLedgerRecord, OwnedRecord, holding, without_compacting

logger = logging.getLogger(__name__)

PIECE_ENTRIES_MAX = 1000
PIECE_SIZE_BYTES = 1 << 20
PENDING_BYTES_MAX = 4 << 20
"""What may wait for its acknowledgement while a compacted ledger is written."""
PLACES_MAX = 64
MOVED = (NoSuchEntry, EntryUnknown, EntryCorrupt)
"""What a read raises, too, when entries have moved to other bookies since the metadata was read."""


class ScanRange(NamedTuple):
    """Entries `first`…`last` (inclusive) of one ledger, in the order in which a compaction reads them."""

    ledger_id: int
    first: int
    last: int
    compacted: bool

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    def decode(self, entry: LedgerEntry) -> tuple[Position, bytes]:
        """The position in the topic, and the bytes as they were published (or compacted before)."""
        return decode_compacted(entry.body) if self.compacted else ((self.ledger_id, entry.entry_id), entry.body)


class CompactedWriter:
    """Writes the next compacted ledger. `CompactedStorage.begin` makes it; its `switch` or `give_up` ends it."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.entries = 0
        self._writer = writer
        self._error: MagnetarError | None = None
        self._room = asyncio.Event()
        self._room.set()

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    async def add(self, position: Position, body: bytes) -> None:
        """Append an entry; positions ascend. Waits while too much is under way. Raises what ended the writer."""
        while self._writer.pending_bytes > PENDING_BYTES_MAX and self._error is None:
            self._room.clear()
            await self._room.wait()
        if self._error is not None:
            raise self._error
        self.entries += 1
        self._writer.add(encode_compacted(position, body), self._added)

    async def finish(self) -> LedgerMetadata:
        """Wait until every entry is acknowledged, then close the ledger. Raises what kept an entry from being stored.

        What the metadata says of the end is compared with what was written: the switch rests on it.
        """
        while self._writer.pending_entries and self._error is None:
            self._room.clear()
            await self._room.wait()
        if self._error is not None:
            raise self._error
        metadata = await self._writer.close()
        if metadata.last_entry != self.entries - 1:
            raise EntryUnknown(f"the compacted ledger {self.ledger_id} lacks entries that were written to it")
        return metadata

    async def abandon(self) -> None:
        """Stop writing."""
        await self._writer.abandon()

    def _added(self, _: Position | None, error: MagnetarError | None) -> None:
        self._error = self._error or error
        self._room.set()


class CompactedStorage:
    """See the module. Belongs to a `ManagedLedger`.

    `finish_deleting` deletes what the record says is to be deleted. `log` is told that the topic has another owner. Its
    ledgers have as many copies as a compacted one, which may be the last to have a message.
    """

    def __init__(
        self,
        home: CursorHome,
        owned: OwnedRecord,
        reads: ChainReads,
        cache: EntryCache,
        finish_deleting: Callable[[], Awaitable[None]],
        log: ChainWriter,
    ) -> None:
        self._home = home
        self._owned = owned
        self._chain: LedgerChain = home.chain
        self._reads = reads
        self._cache = cache
        self._finish_deleting = finish_deleting
        self._log = log
        self._readers: dict[int, LedgerReader] = {}
        self._places: dict[tuple[int, Position], int] = {}
        """Where a read of a compacted ledger ended: (ledger, next position) → the entry to go on with."""

    @property
    def current(self) -> CompactedLedger | None:
        """The compacted ledger that readers see; None where the topic was never compacted."""
        return self._owned.record.compacted

    @property
    def horizon(self) -> Position:
        """The last position that the compacted ledger stands for, (−1, −1) without one."""
        return (-1, -1) if self.current is None else self.current.horizon

    @property
    def backlog_bytes(self) -> int:
        """Bytes of the log that are not compacted, about."""
        return self._chain.bytes_after(self.horizon)

    async def take_over(self, cursor: Cursor) -> None:
        """Bring the compaction cursor of an earlier owner to the horizon.

        It is behind where a crash came between a switch and its move. It is ahead where the metadata is that of a
        backup, older than the cursor's ledger: then what it passed is not compacted. Raises like `Cursor.flush`.
        """
        ledger_id, entry_id = self.horizon
        mark, end = cursor.mark_delete_position, max(self._chain.last_confirmed, (self._chain.last_ledger_id, -1))
        if mark > end or self._chain.count_between(self.horizon, mark):
            await cursor.reset((ledger_id, entry_id + 1))
        else:
            cursor.acknowledge_cumulative(self.horizon)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read(self, first: Position, entries_max: int, bytes_max: int) -> list[tuple[Position, bytes]]:
        """Entries from `first` on: of the compacted ledger up to its horizon, behind that of the log.

        Bounds and errors are those of `ChainReads.read`. One call gives entries of one of the two.
        """
        while True:
            compacted = self.current
            if compacted is None or first > compacted.horizon:
                return await self._reads.read(first, entries_max, bytes_max)
            try:
                found = await self._read(compacted, first, entries_max, bytes_max)
            except MagnetarError:
                if compacted is self.current:
                    raise
                continue  # a switch deleted the ledger in mid-read
            if found:
                return found
            if compacted is self.current:  # else the log behind the old horizon may be trimmed
                ledger_id, entry_id = compacted.horizon
                first = (ledger_id, entry_id + 1)

    async def last(self) -> tuple[Position, bytes] | None:
        """The last entry of the compacted ledger; None when it has none."""
        compacted = self.current
        if compacted is None or compacted.ledger_id is None:
            return None
        return await self._entry(compacted.ledger_id, compacted.entries - 1)

    async def find_by_publish_time(self, publish_time_ms: int) -> Position | None:
        """The first entry of the compacted ledger that was published then or later; None when there is none."""
        compacted = self.current
        if compacted is None or compacted.ledger_id is None:
            return None
        ledger_id = compacted.ledger_id

        async def stamps(index: int, most: int) -> list[int]:
            entries = await self.piece(ScanRange(ledger_id, index, index + most - 1, compacted=True))
            return [int(parse_metadata(decode_compacted(one.body)[1]).publish_time) for one in entries]

        index = await first_published(compacted.entries, stamps, publish_time_ms)
        return None if index == compacted.entries else (await self._entry(ledger_id, index))[0]

    async def _read(
        self, compacted: CompactedLedger, first: Position, entries_max: int, bytes_max: int
    ) -> list[tuple[Position, bytes]]:
        ledger_id, end = compacted.ledger_id, compacted.entries
        if ledger_id is None:
            return []
        index = self._places.get((ledger_id, first))
        if index is None:

            async def before(at: int) -> bool:
                return (await self._entry(ledger_id, at))[0] < first

            index = await _bisect(end, before)
        found: list[tuple[Position, bytes]] = []
        room = bytes_max
        while index < end and len(found) < entries_max:
            body = self._cache.get((ledger_id, index))
            if body is None:
                if found:
                    break
                body = await self._fetch(ledger_id, index, end - 1)
            position, content = decode_compacted(body)
            room -= len(content)
            if room < 0 and found:
                break
            found.append((position, content))
            index += 1
        if found:
            last_ledger, last_entry = found[-1][0]
            self._places[ledger_id, (last_ledger, last_entry + 1)] = index
            while len(self._places) > PLACES_MAX:
                del self._places[next(iter(self._places))]
        return found

    async def _entry(self, ledger_id: int, index: int) -> tuple[Position, bytes]:
        body = self._cache.get((ledger_id, index))
        return decode_compacted(await self._fetch(ledger_id, index, index) if body is None else body)

    async def _fetch(self, ledger_id: int, first: int, last: int) -> bytes:
        entries = await self.piece(ScanRange(ledger_id, first, last, compacted=True))
        for entry in entries:
            self._cache.put((ledger_id, entry.entry_id), entry.body)
        return entries[0].body

    # -- what a compaction reads -------------------------------------------------------------------------------------

    def segments(self, upto: Position) -> list[ScanRange]:
        """What a compaction up to and including `upto` has to read, in order: the compacted ledger, then the log."""
        found: list[ScanRange] = []
        compacted = self.current
        if compacted is not None and compacted.ledger_id is not None:
            found.append(ScanRange(compacted.ledger_id, 0, compacted.entries - 1, compacted=True))
        behind = self._chain.next_position(self.horizon)
        for info in self._chain.infos:
            if behind[0] <= info.ledger_id <= upto[0]:
                first = behind[1] if info.ledger_id == behind[0] else 0
                last = min(info.entries - 1, upto[1]) if info.ledger_id == upto[0] else info.entries - 1
                if first <= last:
                    found.append(ScanRange(info.ledger_id, first, last, compacted=False))
        return found

    async def piece(self, segment: ScanRange) -> list[LedgerEntry]:
        """The first entries of a segment, at least one and about a megabyte. They do not go through the cache, because
        a compaction reads everything and would evict what consumers read.

        Raises NoSuchLedger, NoSuchEntry, EntryCorrupt, EntryUnknown.
        """
        ledgers = self._home.ledgers
        size = min(PIECE_SIZE_BYTES, ledgers.settings.bookie_read_bytes_max)
        last = min(segment.last, segment.first + PIECE_ENTRIES_MAX - 1)
        reader = await self._reader(segment)
        try:
            return await reader.read(segment.first, last, size)
        except MOVED:
            latest = (await ledgers.records.get(segment.ledger_id)).metadata
            if latest.fragments == reader.metadata.fragments:
                raise
            reader.update(latest)
            return await reader.read(segment.first, last, size)

    async def _reader(self, segment: ScanRange) -> LedgerReader:
        if not segment.compacted:
            return self._home.ledgers.reader(await self._reads.metadata_of(segment.ledger_id))
        reader = self._readers.get(segment.ledger_id)
        if reader is None:
            reader = self._readers[segment.ledger_id] = await self._home.ledgers.open(segment.ledger_id)
            while len(self._readers) > 2:
                del self._readers[next(iter(self._readers))]
        return reader

    # -- the next compacted ledger -----------------------------------------------------------------------------------

    async def begin(self) -> CompactedWriter:
        """A new ledger for the next compaction, named by the record.

        Raises StaleEpoch, NotEnoughBookies, MetadataUnavailable, OutcomeUnknown.
        """
        async with holding(self._owned, self._home.record_lock):
            writer = await self._home.ledgers.create(copies=self._log.copies)

            def named(record: ManagedLedgerRecord) -> ManagedLedgerRecord:
                return replace(self._as_known(without_compacting(record)), compacting=writer.ledger_id)

            try:
                await self._change(named, writer)
            except OutcomeUnknown:
                await writer.abandon()
                raise
            except MagnetarError:
                await writer.abandon()
                await delete_unused(self._home.ledgers, self._owned, writer.ledger_id)
                raise
            return CompactedWriter(writer)

    async def switch(self, writer: CompactedWriter | None, horizon: Position) -> None:
        """Let readers see what was written, as all that is left of the topic up to `horizon`. None: nothing is left.

        Every entry is acknowledged and the ledger is closed before the record names it. Raises what `finish` raises,
        StaleEpoch, MetadataUnavailable (nothing changed), OutcomeUnknown.
        """
        made = CompactedLedger(None, horizon, 0, 0)
        if writer is not None:
            metadata = await writer.finish()
            made = CompactedLedger(writer.ledger_id, horizon, writer.entries, metadata.length or 0)
        async with holding(self._owned, self._home.record_lock):
            if writer is not None and self._owned.record.compacting != writer.ledger_id:
                raise LedgerClosed(f"the compaction of {self._owned.name} that wrote this ledger was given up")
            await self._change(lambda record: self._switched(record, made))
        await self._finish_deleting()

    async def give_up(self, writer: CompactedWriter) -> None:
        """End a compaction without a switch. What cannot be deleted now, the next compaction or owner deletes."""
        await writer.abandon()
        try:
            async with holding(self._owned, self._home.record_lock):
                if self._owned.record.compacting != writer.ledger_id:
                    return
                await self._change(lambda record: self._as_known(without_compacting(record)))
            await self._finish_deleting()
        except MagnetarError as error:
            logger.info("ledger %d of a compaction is deleted later: %s", writer.ledger_id, error)

    async def forget(self) -> None:
        """The topic is no longer compacted: readers see the log only, and the compacted ledger is deleted.

        Raises StaleEpoch, MetadataUnavailable, OutcomeUnknown.
        """
        async with holding(self._owned, self._home.record_lock):
            await self._change(lambda record: self._switched(record, None))
        await self._finish_deleting()

    def _switched(self, record: ManagedLedgerRecord, made: CompactedLedger | None) -> ManagedLedgerRecord:
        old = None if record.compacted is None else record.compacted.ledger_id
        deleting = record.deleting if old is None else (*record.deleting, old)
        return replace(self._as_known(record), compacted=made, compacting=None, deleting=deleting)

    def _as_known(self, record: ManagedLedgerRecord) -> ManagedLedgerRecord:
        return replace(record, ledgers=self._chain.as_known(record.ledgers))

    async def _change(
        self, transform: Callable[[ManagedLedgerRecord], ManagedLedgerRecord], writer: LedgerWriter | None = None
    ) -> None:
        try:
            await self._owned.change(transform, needs=None if writer is None else writer.guard)
        except StaleEpoch as error:
            self._log.fence(error)
            raise


async def _bisect(count: int, before: Callable[[int], Awaitable[bool]]) -> int:
    """The first index below `count` for which `before` is false, else `count`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if await before(middle):
            low = middle + 1
        else:
            high = middle
    return low
