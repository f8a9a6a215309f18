"""Where the entries of one segment file lie: in memory while it is written, beside it on disk once it is sealed.

`Rows` are one ledger's entries in one segment, four parallel columns sorted by entry id (20 bytes an entry). An index
file holds a table with one line per ledger, under one CRC32C, and then every ledger's columns. The table has a CRC32C
for each ledger's columns. A start reads only the tables, so its cost does not depend on the amount of data. A ledger's
columns are read, verified and cached (`segment_reader.py`) when a reader asks for its entries.

    file  = magic(8) file id(8) segment end(8) ledgers(4) line… crc(4) columns…
    line  = ledger(8) position of the columns(8) count(4) first(8) last(8) highest LAC(8) bytes(8) crc of the columns(4)
            nonce of the ledger(8)

A damaged index never makes an entry "absent": decoding raises `EntryCorrupt`, and the index is built again from the
segment itself.
"""

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c

from ...protocol.errors import EntryCorrupt

_MAGIC = b"MGNTRID2"
_HEAD = struct.Struct(">8sQQI")
_LINE = struct.Struct(">QQIQQqQIQ")
_LEDGER = struct.Struct(">Q")
_CRC = struct.Struct(">I")
_ROW_SIZE = 20


class Row(NamedTuple):
    """One entry: id, offset of its record in the segment file, size of the ledger entry in bytes, digest.

    Size 0 means that its bytes are lost and reading it is an error.
    """

    entry_id: int
    offset: int
    size: int
    digest: int


class Rows:
    """One ledger's entries in one segment, sorted by entry id, each id once."""

    __slots__ = ("digests", "entries", "entry_bytes", "lac", "nonce", "offsets", "sizes")

    def __init__(self, nonce: int) -> None:
        self.nonce = nonce
        self.entries = array("Q")
        self.offsets = array("I")
        self.sizes = array("I")
        self.digests = array("I")
        self.lac = -1
        self.entry_bytes = 0

    def __len__(self) -> int:
        return len(self.entries)

    def put(self, entry_id: int, offset: int, size: int, digest: int, lac: int) -> None:
        """Add an entry anywhere; a second one under the same id takes the first one's place."""
        entries = self.entries
        at = bisect_left(entries, entry_id) if entries and entries[-1] >= entry_id else len(entries)
        if at < len(entries) and entries[at] == entry_id:
            self.entry_bytes -= self.sizes[at]
            self.offsets[at], self.sizes[at], self.digests[at] = offset, size, digest
        else:
            entries.insert(at, entry_id)
            self.offsets.insert(at, offset)
            self.sizes.insert(at, size)
            self.digests.insert(at, digest)
        self.entry_bytes += size
        self.lac = max(self.lac, lac)

    def find(self, entry_id: int) -> Row | None:
        at = bisect_left(self.entries, entry_id)
        if at == len(self.entries) or self.entries[at] != entry_id:
            return None
        return Row(entry_id, self.offsets[at], self.sizes[at], self.digests[at])

    def between(self, first: int, last: int, count_max: int, end: int = sys.maxsize) -> list[Row]:
        """At most `count_max` entries of first…last, from the lowest; records at `end` or behind it do not count."""
        found: list[Row] = []
        low = bisect_left(self.entries, first)
        stop = bisect_right(self.entries, last, low)
        while low < stop and len(found) < count_max:
            high = min(stop, low + count_max - len(found))
            columns = (column[low:high] for column in (self.entries, self.offsets, self.sizes, self.digests))
            found += [Row(*values) for values in zip(*columns, strict=True) if values[1] < end]
            low = high
        return found

    def ranges(self, first: int, last: int, end: int = sys.maxsize) -> list[tuple[int, int]]:
        """The contiguous (first, last) ranges of ids within first…last, left out lost entries and records at `end` or
        behind it."""
        found: list[tuple[int, int]] = []
        low, high = bisect_left(self.entries, first), bisect_right(self.entries, last)
        columns = zip(self.entries[low:high], self.offsets[low:high], self.sizes[low:high], strict=True)
        for entry_id, offset, size in columns:
            if not size or offset >= end:
                continue
            if found and found[-1][1] == entry_id - 1:
                found[-1] = (found[-1][0], entry_id)
            else:
                found.append((entry_id, entry_id))
        return found

    def encode(self) -> bytes:
        return b"".join(_little(column).tobytes() for column in (self.entries, self.offsets, self.sizes, self.digests))

    @classmethod
    def decode(cls, data: bytes, line: "TableLine") -> "Rows":
        """Raises EntryCorrupt."""
        if len(data) != line.entries * _ROW_SIZE or crc32c(data) != line.crc:
            raise EntryCorrupt("a segment's index is damaged")
        rows = cls(line.nonce)
        at = 0
        for column in (rows.entries, rows.offsets, rows.sizes, rows.digests):
            size = line.entries * column.itemsize
            column.frombytes(data[at : at + size])
            _little(column, in_place=True)
            at += size
        rows.lac, rows.entry_bytes = line.lac, line.entry_bytes
        return rows


def _little(column: "array[int]", in_place: bool = False) -> "array[int]":
    """Columns are little-endian on disk, whatever the machine."""
    if sys.byteorder == "little":
        return column
    swapped = column if in_place else column[:]
    swapped.byteswap()
    return swapped


class TableLine(NamedTuple):
    """One ledger in a sealed segment: where its columns lie and what they span."""

    position: int
    entries: int
    first: int
    last: int
    lac: int
    entry_bytes: int
    crc: int
    nonce: int

    @property
    def size(self) -> int:
        """Bytes of the columns."""
        return self.entries * _ROW_SIZE


class SegmentTable(Mapping[int, TableLine]):
    """The table of a sealed segment: lines by ledger id, ascending. It never changes.

    A bookie keeps the tables of all its segments in memory. So the lines stay packed as in the file, 64 bytes each, and
    objects are made on request.
    """

    __slots__ = ("_lines",)

    def __init__(self, lines: bytes = b"") -> None:
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines) // _LINE.size

    def __iter__(self) -> Iterator[int]:
        return (fields[0] for fields in _LINE.iter_unpack(self._lines))

    def __contains__(self, ledger_id: object) -> bool:
        return isinstance(ledger_id, int) and self._find(ledger_id) >= 0

    def __getitem__(self, ledger_id: int) -> TableLine:
        at = self._find(ledger_id)
        if at < 0:
            raise KeyError(ledger_id)
        return TableLine(*_LINE.unpack_from(self._lines, at)[1:])

    def _find(self, ledger_id: int) -> int:
        """Where the line of a ledger begins, −1 if there is none."""
        low, high = 0, len(self._lines) // _LINE.size
        while low < high:
            middle = (low + high) // 2
            found: int = _LEDGER.unpack_from(self._lines, middle * _LINE.size)[0]
            if found == ledger_id:
                return middle * _LINE.size
            if found < ledger_id:
                low = middle + 1
            else:
                high = middle
        return -1


def encode_index(
    file_id: int, seed: int, segment_end: int, rows_by_ledger: Mapping[int, Rows]
) -> tuple[bytes, SegmentTable]:
    lines: list[bytes] = []
    blocks: list[bytes] = []
    ledgers = sorted(ledger_id for ledger_id, rows in rows_by_ledger.items() if len(rows))
    position = _HEAD.size + len(ledgers) * _LINE.size + _CRC.size
    for ledger_id in ledgers:
        rows = rows_by_ledger[ledger_id]
        block = rows.encode()
        first, last = rows.entries[0], rows.entries[-1]
        line = TableLine(position, len(rows), first, last, rows.lac, rows.entry_bytes, crc32c(block), rows.nonce)
        lines.append(_LINE.pack(ledger_id, *line))
        blocks.append(block)
        position += len(block)
    table = b"".join(lines)
    head = _HEAD.pack(_MAGIC, file_id, segment_end, len(ledgers)) + table
    return b"".join([head, _CRC.pack(crc32c(head, seed)), *blocks]), SegmentTable(table)


def decode_table(read_at: Callable[[int, int], bytes], file_id: int, seed: int, segment_end: int) -> SegmentTable:
    """The table of an index file. Raises EntryCorrupt when it is damaged or belongs to another segment."""
    head = read_at(0, _HEAD.size)
    if len(head) == _HEAD.size:
        magic, stored_id, stored_end, count = _HEAD.unpack(head)
        if (magic, stored_id, stored_end) == (_MAGIC, file_id, segment_end):
            size = count * _LINE.size
            data = read_at(_HEAD.size, size + _CRC.size)
            if len(data) == size + _CRC.size and _CRC.unpack_from(data, size)[0] == crc32c(head + data[:size], seed):
                table = SegmentTable(data[:size])
                if all(first < second for first, second in pairwise(table)):
                    return table
    raise EntryCorrupt(f"the index of segment {file_id} is damaged", file_id=file_id)
