"""Reading a bookie's entries back: the loop's side of the reader lanes.

A ledger always uses the same lane, so its reads stay in order; a lane that waits for the disk holds up no other and
never the loop. What a lane is handed is a picture of the moment: copies of the rows of unsealed segments, durable ones
only, and the sealed segments themselves, which never change.

Entries that were met damaged are remembered (a bounded number), so that lists of what is held leave them out and the
auditor brings new copies.
"""

import asyncio
from collections.abc import Callable

from ..protocol.bookie_wire import BookieStatus, decode_entry_header
from ..protocol.errors import EntryCorrupt, StorageFailed
from ..runtime.environment import Environment
from ..runtime.offload import Lane
from . import segment_reader
from .ledger_states import IdRanges, LedgerState
from .segment import JOURNAL_SUFFIX, Segment, SegmentState
from .segment_index import Row
from .segment_reader import RangeRead, RangeResult, SegmentReader

READER_LANES = 2
"""Threads that read segments."""
DAMAGED_ENTRIES_MAX = 10_000
_VERIFY_BYTES = 1 << 20


class EntryReads:
    """See the module. `on_damaged_index` is told of sealed segments whose index must be built anew."""

    def __init__(self, env: Environment, on_damaged_index: Callable[[Segment], None]) -> None:
        self._on_damaged_index = on_damaged_index
        self._readers = [(env.offload.lane(f"read-{n}"), SegmentReader(env.files)) for n in range(READER_LANES)]
        self._damaged_entries: dict[tuple[int, int], None] = {}

    async def forget(self, segment: Segment) -> None:
        """Returns when no lane uses the segment's files any more."""
        for lane, reader in self._readers:
            await lane.run(reader.forget, segment.file_id)

    async def close(self) -> None:
        for lane, reader in self._readers:
            await lane.run(reader.close)
            lane.close()

    def repaired(self, ledger_id: int, entry_id: int) -> None:
        """A new copy of an entry was stored."""
        self._damaged_entries.pop((ledger_id, entry_id), None)

    def find_unsealed(self, state: LedgerState, entry_id: int) -> tuple[Segment, Row] | None:
        """An entry among those whose rows are in memory."""
        for segment in reversed(state.segments):
            rows = segment.rows.get(state.ledger_id)
            row = rows.find(entry_id) if rows is not None else None
            if row is not None:
                return segment, row
        return None

    def sealed_holders(self, state: LedgerState, entry_id: int) -> list[Segment]:
        """Sealed segments whose range for this ledger includes the entry, so that only a look at the disk can tell."""
        holders: list[Segment] = []
        for segment in state.segments:
            line = segment.table.get(state.ledger_id)
            if line is not None and line.first <= entry_id <= line.last:
                holders.append(segment)
        return holders

    def find_sealed(
        self,
        state: LedgerState,
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
        state: LedgerState,
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
                if result.status is BookieStatus.CORRUPT and len(self._damaged_entries) < DAMAGED_ENTRIES_MAX:
                    self._damaged_entries[state.ledger_id, result.next_entry_id] = None
            callback(result, error)

        lane.submit(reader.read_range, (request,), done)

    async def held_ranges(self, state: LedgerState, first: int, last: int) -> list[tuple[int, int]]:
        """The contiguous ranges of entry ids within first…last that are durable and not known to be damaged.

        Raises EntryCorrupt while an index is being rebuilt, OSError.
        """
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
                try:
                    rows = await lane.run(reader.rows, segment, state.ledger_id)
                except EntryCorrupt:
                    if segment.state is SegmentState.REMOVED:
                        return await self.held_ranges(state, first, last)
                    self._on_damaged_index(segment)
                    raise
            if rows is not None:
                held = IdRanges([*held, *rows.ranges(first, last, segment.synced_end)])
        for damaged_ledger, entry_id in self._damaged_entries:
            if damaged_ledger == state.ledger_id:
                held = held.without(entry_id)
        return list(held)

    async def intact_ranges(self, state: LedgerState, first: int, last: int) -> list[tuple[int, int]]:
        """Like `held_ranges`, but every entry is read and only those that are as written count."""
        intact: list[tuple[int, int]] = []
        loop = asyncio.get_running_loop()
        while first <= last:
            answer: asyncio.Future[RangeResult] = loop.create_future()

            def done(
                result: RangeResult | None,
                error: BaseException | None,
                answer: asyncio.Future[RangeResult] = answer,
            ) -> None:
                if answer.done():
                    return
                if result is not None:
                    answer.set_result(result)
                elif error is not None:
                    answer.set_exception(error)

            self.read(state, first, last, _VERIFY_BYTES, False, done)
            result = await answer
            if result.status is BookieStatus.CORRUPT:
                first = result.next_entry_id + 1
                continue
            if result.status is BookieStatus.IO_ERROR:
                raise EntryCorrupt("an index is being rebuilt: ask again")
            if result.status is not BookieStatus.OK:
                break
            for entry in result.entries:
                entry_id = decode_entry_header(entry).entry_id
                if intact and intact[-1][1] == entry_id - 1:
                    intact[-1] = (intact[-1][0], entry_id)
                else:
                    intact.append((entry_id, entry_id))
            first = result.next_entry_id
        return intact

    def _reader_of(self, ledger_id: int) -> tuple[Lane, SegmentReader]:
        return self._readers[ledger_id % READER_LANES]
