"""Reading entries back: range reads, look-ups of single digests, lists of ids held. Runs on a reader lane.

Each lane has a `SegmentReader` of its own, with its own file handles and its own cache of index columns. So nothing
here is shared between threads. Both caches are bounded. What the loop hands over is either immutable (sealed segments)
or a copy (rows of unsealed ones). A segment is deleted only after every lane has passed `forget`. Lanes are first in
first out, so a read never meets a deleted file.

Guarantees: no entry is answered unless record, identity and digest are as written. Any intact one of several copies
will do. A damaged entry or index is reported, never skipped. Entries that lie close together in a file come with one
read.
"""

import errno
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...protocol.bookie_wire import BookieStatus
from ...protocol.errors import EntryCorrupt
from ...runtime.files import File, Files
from .records import RECORD_HEADER_SIZE, check_entry
from .segment import Segment
from .segment_index import Row, Rows, TableLine

ENTRIES_PER_READ_MAX = 1024
"""Entries of one answer: bounds the time that one read holds its lane."""
OPEN_FILES_MAX = 128
INDEX_CACHE_BYTES = 16 << 20
_RUN_BYTES_MAX = 4 << 20
_GAP_BYTES_MAX = 16 << 10
"""Reading over a gap of foreign records of this size costs less than a second read."""


@dataclass(frozen=True, slots=True)
class RangeRead:
    """A request: entries first…last of a ledger, until `bytes_max`. With `gapless` a missing entry ends the answer
    (in limbo, absence cannot be told from loss)."""

    ledger_id: int
    first: int
    last: int
    bytes_max: int
    gapless: bool
    unsealed: Sequence[tuple[Segment, Sequence[Row]]]
    sealed: Sequence[Segment]


@dataclass(slots=True)
class RangeResult:
    """Status OK with at least one entry, or why there is none. `damaged` are segments whose index must be rebuilt."""

    status: BookieStatus
    next_entry_id: int
    entries: list[memoryview] = field(default_factory=list[memoryview])
    damaged: list[Segment] = field(default_factory=list[Segment])


class SegmentReader:
    """See the module. Used by one lane only."""

    def __init__(
        self, files: Files, open_files_max: int = OPEN_FILES_MAX, index_cache_bytes: int = INDEX_CACHE_BYTES
    ) -> None:
        self._files = files
        self._open_files_max = open_files_max
        self._index_cache_bytes = index_cache_bytes
        self._open: OrderedDict[int, File] = OrderedDict()
        self._columns: OrderedDict[tuple[int, int], Rows] = OrderedDict()
        self._columns_bytes = 0

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
        self._columns.clear()
        self._columns_bytes = 0

    def forget(self, file_id: int) -> None:
        """The segment is going away, or its index was rebuilt."""
        file = self._open.pop(file_id, None)
        if file is not None:
            file.close()
        for key in [key for key in self._columns if key[0] == file_id]:
            self._columns_bytes -= len(self._columns.pop(key)) * 20

    def read_range(self, request: RangeRead) -> RangeResult:
        """See `RangeRead`. Raises OSError when the disk does."""
        candidates: dict[int, list[tuple[Segment, Row]]] = {}
        damaged: list[Segment] = []
        for segment, rows in request.unsealed:
            for row in rows:
                candidates.setdefault(row.entry_id, []).append((segment, row))
        for segment in sorted(request.sealed, key=lambda segment: _first_entry(segment, request.ledger_id)):
            line = segment.table.get(request.ledger_id)
            if line is None or line.first > request.last or line.last < request.first:
                continue
            if len(candidates) >= ENTRIES_PER_READ_MAX and line.first > max(candidates):
                break  # there is enough for an answer before it
            try:
                columns = self.rows(segment, request.ledger_id)
            except EntryCorrupt:
                damaged.append(segment)
                continue
            for row in columns.between(request.first, request.last, ENTRIES_PER_READ_MAX):
                candidates.setdefault(row.entry_id, []).append((segment, row))
        if damaged:
            return RangeResult(BookieStatus.IO_ERROR, request.first, damaged=damaged)
        chosen, next_entry_id = self._choose(request, candidates)
        if not chosen:
            missing = BookieStatus.UNKNOWN if request.gapless else BookieStatus.NO_SUCH_ENTRY
            return RangeResult(missing, request.first)
        entries: list[memoryview] = []
        for run in _runs(chosen, candidates):
            for entry_id, entry in zip(run, self._read_run(request.ledger_id, run, candidates), strict=True):
                if entry is None:
                    if not entries:
                        return RangeResult(BookieStatus.CORRUPT, entry_id)
                    return RangeResult(BookieStatus.OK, entry_id, entries)
                entries.append(entry)
        return RangeResult(BookieStatus.OK, next_entry_id, entries)

    def find_digest(self, ledger_id: int, entry_id: int, sealed: Sequence[Segment]) -> tuple[int | None, list[Segment]]:
        """The digest of an entry's intact stored copy, None when there is none, and segments with damaged indexes."""
        damaged: list[Segment] = []
        for segment in reversed(sealed):
            if ledger_id not in segment.table:
                continue
            try:
                row = self.rows(segment, ledger_id).find(entry_id)
            except EntryCorrupt:
                damaged.append(segment)
                continue
            if row is not None and self.read_entry(segment, ledger_id, row) is not None:
                return row.digest, damaged
        return None, damaged

    def read_entry(self, segment: Segment, ledger_id: int, row: Row) -> memoryview | None:
        """One entry's bytes, or None when this copy is damaged, or the medium cannot read it."""
        if not row.size:
            return None
        try:
            record = self.file(segment).read_at(row.offset, RECORD_HEADER_SIZE + 1 + row.size)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None
        return _checked(memoryview(record), segment, ledger_id, row)

    def rows(self, segment: Segment, ledger_id: int) -> Rows:
        """A sealed segment's columns for one ledger. Raises EntryCorrupt when they are damaged."""
        key = (segment.file_id, ledger_id)
        rows = self._columns.get(key)
        if rows is not None:
            self._columns.move_to_end(key)
            return rows
        line = segment.table[ledger_id]
        rows = read_rows(self._files, segment, line)
        self._columns[key] = rows
        self._columns_bytes += line.size
        while self._columns_bytes > self._index_cache_bytes and len(self._columns) > 1:
            self._columns_bytes -= len(self._columns.popitem(last=False)[1]) * 20
        return rows

    def file(self, segment: Segment) -> File:
        file = self._open.get(segment.file_id)
        if file is None:
            file = self._files.open(segment.path)
            self._open[segment.file_id] = file
            if len(self._open) > self._open_files_max:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(segment.file_id)
        return file

    def _choose(self, request: RangeRead, candidates: dict[int, list[tuple[Segment, Row]]]) -> tuple[list[int], int]:
        """The entry ids to answer with, ascending, and the first id not examined."""
        chosen: list[int] = []
        total = 0
        expected = request.first
        for entry_id in sorted(candidates):
            if request.gapless and entry_id != expected:
                return chosen, expected
            size = 4 + max(row.size for _, row in candidates[entry_id])
            if chosen and (total + size > request.bytes_max or len(chosen) == ENTRIES_PER_READ_MAX):
                # Not `entry_id`: each segment gave at most ENTRIES_PER_READ_MAX rows, so ids before it may be held too.
                return chosen, expected
            chosen.append(entry_id)
            total += size
            expected = entry_id + 1
        complete = len(chosen) < ENTRIES_PER_READ_MAX and not request.gapless
        return chosen, request.last + 1 if complete else expected

    def _read_run(
        self, ledger_id: int, run: Sequence[int], candidates: dict[int, list[tuple[Segment, Row]]]
    ) -> list[memoryview | None]:
        segment, first = candidates[run[0]][-1]
        _, last = candidates[run[-1]][-1]
        end = last.offset + RECORD_HEADER_SIZE + 1 + last.size
        data: memoryview | None = None
        try:
            data = memoryview(self.file(segment).read_at(first.offset, end - first.offset))
        except OSError as error:
            if error.errno != errno.EIO:  # else most likely one bad sector: only its entries are lost
                raise
        found: list[memoryview | None] = []
        for entry_id in run:
            *others, (_, row) = candidates[entry_id]
            if data is None:
                entry = self.read_entry(segment, ledger_id, row)
            else:
                start = row.offset - first.offset
                record = data[start : start + RECORD_HEADER_SIZE + 1 + row.size]
                entry = _checked(record, segment, ledger_id, row)
            for other_segment, other_row in reversed(others):
                if entry is None:
                    entry = self.read_entry(other_segment, ledger_id, other_row)
            found.append(entry)
        return found


def _first_entry(segment: Segment, ledger_id: int) -> int:
    line = segment.table.get(ledger_id)
    return -1 if line is None else line.first


def _checked(record: memoryview, segment: Segment, ledger_id: int, row: Row) -> memoryview | None:
    if not row.size:
        return None
    try:
        return check_entry(record, segment.seed, ledger_id, row.entry_id)
    except EntryCorrupt:
        return None


def _runs(chosen: Sequence[int], candidates: dict[int, list[tuple[Segment, Row]]]) -> list[list[int]]:
    """The ids in groups that one read of one file can fetch: same segment, ascending, close together."""
    runs: list[list[int]] = []
    segment: Segment | None = None
    start = end = 0
    for entry_id in chosen:
        holder, row = candidates[entry_id][-1]
        row_end = row.offset + RECORD_HEADER_SIZE + 1 + row.size
        if holder is segment and 0 <= row.offset - end <= _GAP_BYTES_MAX and row_end - start <= _RUN_BYTES_MAX:
            runs[-1].append(entry_id)
        else:
            runs.append([entry_id])
            segment, start = holder, row.offset
        end = row_end
    return runs


def read_rows(files: Files, segment: Segment, line: TableLine) -> Rows:
    """One ledger's rows in the index of a sealed segment. Raises EntryCorrupt, OSError."""
    try:
        index = files.open(segment.index_path)
    except FileNotFoundError as error:
        raise EntryCorrupt(f"the index of segment {segment.file_id} is missing") from error
    try:
        return Rows.decode(index.read_at(line.position, line.size), line)
    finally:
        index.close()
