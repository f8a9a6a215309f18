"""Reading a bookie's entries back: the loop's side of the reader lanes.

A ledger always uses the same lane, so its reads stay in order. A lane that waits for the disk delays neither other
lanes nor the loop. A lane gets a snapshot: copies of the durable rows of unsealed segments, and the sealed segments
themselves, which never change.

Entries that were met damaged are noted (`damage.py`), so that lists of what is held leave them out and the auditor
brings new copies.
"""

import asyncio
from collections.abc import Callable

from ...protocol.bookie_wire import BookieStatus, decode_entry_header
from ...protocol.errors import EntryCorrupt, StorageFailed
from ...runtime.environment import Environment
from ...runtime.offload import Lane
from . import segment_reader
from .damage import DamageKeeper, without_entries
from .held_ledgers import HeldLedger, IdRanges
from .segment import JOURNAL_SUFFIX, Segment, SegmentState
from .segment_index import Row
from .segment_reader import RangeRead, RangeResult, SegmentReader

READER_LANES = 2
"""Threads that read segments."""
HELD_ENTRIES_MAX = 20_000
"""Ids looked at for one list of what is held."""
VERIFY_READS_MAX = 64
VERIFY_S = 5.0
"""Both bound the verification per request: it must end long before the caller's time-out."""
VERIFY_BYTES = 1 << 20


class EntryReads:
    """See the module. `on_damaged_index` is told of sealed segments whose index must be rebuilt."""

    def __init__(self, env: Environment, damage: DamageKeeper, on_damaged_index: Callable[[Segment], None]) -> None:
        self._damage = damage
        self._on_damaged_index = on_damaged_index
        self._readers = [(env.offload.lane(f"read-{n}"), SegmentReader(env.files)) for n in range(READER_LANES)]

    async def forget(self, segment: Segment) -> None:
        """Returns when no lane uses the segment's files."""
        for lane, reader in self._readers:
            await lane.run(reader.forget, segment.file_id)

    async def close(self) -> None:
        for lane, reader in self._readers:
            await lane.run(reader.close)
            lane.close()

    def find_unsealed(self, state: HeldLedger, entry_id: int) -> tuple[Segment, Row] | None:
        """An entry among those whose rows are in memory."""
        for segment in reversed(state.segments):
            rows = segment.rows.get(state.ledger_id)
            row = rows.find(entry_id) if rows is not None else None
            if row is not None:
                return segment, row
        return None

    def sealed_holders(self, state: HeldLedger, entry_id: int) -> list[Segment]:
        """Sealed segments whose range for this ledger includes the entry, so that only a look at the disk can tell."""
        holders: list[Segment] = []
        for segment in state.segments:
            line = segment.table.get(state.ledger_id)
            if line is not None and line.first <= entry_id <= line.last:
                holders.append(segment)
        return holders

    def find_sealed(
        self,
        state: HeldLedger,
        entry_id: int,
        holders: list[Segment],
        callback: Callable[[int | None, BaseException | None], None],
    ) -> None:
        """Call back with the digest of the intact copy in `holders`, or None when there is none."""
        lane, reader = self._reader_of(state.ledger_id)

        def found(result: tuple[int | None, list[Segment]] | None, error: BaseException | None) -> None:
            if result is None:
                callback(None, error)
                return
            digest, damaged = result
            for segment in damaged:
                self._on_damaged_index(segment)
            if digest is None and damaged:
                callback(None, StorageFailed("an index is being rebuilt"))
            else:
                callback(digest, None)

        lane.submit(reader.find_digest, (state.ledger_id, entry_id, holders), found)

    def read(
        self,
        state: HeldLedger,
        first: int,
        last: int,
        bytes_max: int,
        gapless: bool,
        callback: Callable[[RangeResult | None, BaseException | None], None],
    ) -> None:
        """Read durable entries first…last, see `SegmentReader.read_range`."""
        unsealed: list[tuple[Segment, list[Row]]] = []
        sealed: list[Segment] = []
        for segment in state.segments:
            if segment.sealed:
                sealed.append(segment)
                continue
            rows = segment.rows.get(state.ledger_id)
            if rows is None:
                continue
            count_max = segment_reader.ENTRIES_PER_READ_MAX
            unsealed.append((segment, rows.between(first, last, count_max, segment.synced_end)))
        request = RangeRead(state.ledger_id, first, last, bytes_max, gapless, unsealed, sealed)
        lane, reader = self._reader_of(state.ledger_id)

        def done(result: RangeResult | None, error: BaseException | None) -> None:
            if result is not None:
                for segment in result.damaged:
                    self._on_damaged_index(segment)
                if result.status is BookieStatus.CORRUPT:
                    self._damage.note(state.ledger_id, result.next_entry_id)
            callback(result, error)

        lane.submit(reader.read_range, (request,), done)

    async def held_ranges(self, state: HeldLedger, first: int, last: int) -> tuple[list[tuple[int, int]], int]:
        """The contiguous ranges of entry ids from `first` on that are durable and not known to be damaged, and the
        first id not examined. Up to `HELD_ENTRIES_MAX` are examined, since this takes time of the loop.

        Raises EntryCorrupt while an index is being rebuilt, OSError.
        """
        last = min(last, first + HELD_ENTRIES_MAX - 1)
        held = IdRanges()
        lane, reader = self._reader_of(state.ledger_id)
        for segment in list(state.segments):
            line = segment.table.get(state.ledger_id)
            rows = segment.rows.get(state.ledger_id)
            complete = line is not None and line.entries == line.last - line.first + 1
            if line is not None and complete and segment.kind == JOURNAL_SUFFIX:  # no LOST records in a journal
                low, high = max(first, line.first), min(last, line.last)
                if low <= high:
                    held = IdRanges([*held, (low, high)])
                continue
            if line is not None:
                if line.first > last or line.last < first:
                    continue
                try:
                    rows = await lane.run(reader.rows, segment, state.ledger_id)
                except EntryCorrupt:
                    if segment.state is SegmentState.REMOVED:
                        return await self.held_ranges(state, first, last)
                    self._on_damaged_index(segment)
                    raise
            if rows is not None:
                held = IdRanges([*held, *rows.ranges(first, last, segment.synced_end)])
        return without_entries(held, self._damage.notes.of(state.ledger_id)), last + 1

    async def intact_ranges(self, state: HeldLedger, first: int, last: int) -> tuple[list[tuple[int, int]], int]:
        """Like `held_ranges`, but every entry is read and only those that are as written count. Ends after
        `VERIFY_READS_MAX` reads, or when `VERIFY_S` have passed, so that the caller gets an answer in time.
        """
        intact: list[tuple[int, int]] = []
        loop = asyncio.get_running_loop()
        ends = loop.time() + VERIFY_S
        reads = 0
        while first <= last and reads < VERIFY_READS_MAX and (not reads or loop.time() < ends):
            reads += 1
            result = await self._read_once(state, first, last, VERIFY_BYTES)
            if result.status is BookieStatus.CORRUPT:
                first = result.next_entry_id + 1
                continue
            if result.status is BookieStatus.IO_ERROR:
                raise EntryCorrupt("an index is being rebuilt: read again")
            if result.status is not BookieStatus.OK:
                return intact, last + 1
            for entry in result.entries:
                entry_id = decode_entry_header(entry).entry_id
                if intact and intact[-1][1] == entry_id - 1:
                    intact[-1] = (intact[-1][0], entry_id)
                else:
                    intact.append((entry_id, entry_id))
            first = result.next_entry_id
        return intact, first

    async def check(self, state: HeldLedger, entry_id: int) -> None:
        """Read an entry, so that it is noted if no copy of it is intact. Raises OSError."""
        await self._read_once(state, entry_id, entry_id, 1)

    async def _read_once(self, state: HeldLedger, first: int, last: int, bytes_max: int) -> RangeResult:
        answer: asyncio.Future[RangeResult] = asyncio.get_running_loop().create_future()

        def done(result: RangeResult | None, error: BaseException | None) -> None:
            if answer.done():
                return
            if result is not None:
                answer.set_result(result)
            elif error is not None:
                answer.set_exception(error)

        self.read(state, first, last, bytes_max, False, done)
        return await answer

    def _reader_of(self, ledger_id: int) -> tuple[Lane, SegmentReader]:
        return self._readers[ledger_id % READER_LANES]
