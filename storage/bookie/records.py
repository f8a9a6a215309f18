"""The bytes of a segment file: a header, then records, each under a CRC32C that binds it to this very file.

    file    = magic(8) file id(8) crc(4) records…
    record  = magic(2) kind(1) 0(1) body size(4) batch start(4) crc(4) body
    crc     = CRC32C, seeded with the bookie's instance and the file id, over the record header up to the crc and
              - of an ENTRY: the first 45 bytes of its body, which hold the entry's own digest (so that the digest, and
                through it the whole body, is bound to the file without a second pass over the bytes);
              - of every other kind: the whole body.

A *batch* is what one group commit wrote and synced. It ends with a COMMIT record. A batch is only written after the one
before it is durable. `batch start` is the file offset of the batch's first record. This is what lets a scan tell the
two kinds of damage apart:

- a **torn write** lies in the last batch. Either that batch's COMMIT is missing, or a whole sector of it is still zero,
  as it was pre-allocated. It was never answered, so it is cut off;
- everything else is **corruption**: something that was durable has changed. It must never pass for absence.

Sans-io: `scan_records` reads through a function that it is given. What corruption leads to is `replay.py`'s business.
"""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

from ...protocol.errors import EntryCorrupt

FILE_MAGIC = b"MGNTRSEG"
FILE_HEADER = struct.Struct(">8sQI")
FILE_HEADER_SIZE = FILE_HEADER.size

RECORD_MAGIC = 0xB74D
RECORD_MAGIC_BYTES = RECORD_MAGIC.to_bytes(2, "big")
_UNSUMMED = struct.Struct(">HBBII")
_CRC = struct.Struct(">I")
RECORD_HEADER = struct.Struct(">HBBIII")
RECORD_HEADER_SIZE = RECORD_HEADER.size

KIND_ENTRY = 1
"""Body: the ADD request's payload as it came, one byte of flags and the ledger entry."""
KIND_FENCE = 2
"""Body: ledger id, nonce."""
KIND_TOMBSTONE = 3
"""Body: ledger id."""
KIND_COMMIT = 4
"""End of a batch; no body."""
KIND_BEGIN = 5
"""First record of a journal: id of the journal before it and the offset at which that one ended."""
KIND_LOST = 6
"""Body: ledger id, nonce, entry id. Compaction met this entry corrupted; it must not become "no such entry"."""

ENTRY_HEAD = struct.Struct(">BQQQqQI")
"""Start of an ENTRY's body: flags, ledger id, nonce, entry id, LAC, cumulative length, digest."""
ENTRY_HEAD_SIZE = ENTRY_HEAD.size
DIGESTED_HEAD_END = ENTRY_HEAD_SIZE - 4
LEDGER_BODY = struct.Struct(">Q")
FENCE_BODY = struct.Struct(">QQ")
BEGIN_BODY = struct.Struct(">QQ")
LOST_BODY = struct.Struct(">QQQ")
_BODY_SIZES = {
    KIND_FENCE: FENCE_BODY.size,
    KIND_TOMBSTONE: LEDGER_BODY.size,
    KIND_COMMIT: 0,
    KIND_BEGIN: BEGIN_BODY.size,
    KIND_LOST: LOST_BODY.size,
}
"""Of every kind but ENTRY. Bytes in a message's payload may look like a header. This check refuses them before a
checksum over the announced bytes is computed, because there may be millions of them.
"""

SECTOR_SIZE = 512
_ZEROS = bytes(1 << 16)
_SCAN_CHUNK_SIZE = 4 << 20


def file_seed(instance: str, file_id: int) -> int:
    """The CRC seed of one file: differs between files and between bookies."""
    return crc32c(f"{instance}/{file_id}".encode())


def encode_file_header(file_id: int, seed: int) -> bytes:
    head = FILE_MAGIC + LEDGER_BODY.pack(file_id)
    return head + _CRC.pack(crc32c(head, seed))


def file_header_ok(data: bytes, file_id: int, seed: int) -> bool:
    return data[:FILE_HEADER_SIZE] == encode_file_header(file_id, seed)


def encode_record_header(kind: int, covered: bytes, batch_start: int, seed: int, body_size: int = -1) -> bytes:
    """The 16 bytes before a body. `covered` is the part that the checksum covers: the whole body, or an ENTRY's first
    45 bytes. `body_size` then is the size of the whole body.
    """
    head = _UNSUMMED.pack(RECORD_MAGIC, kind, 0, len(covered) if body_size < 0 else body_size, batch_start)
    return head + _CRC.pack(crc32c(head + covered, seed))


def digest_of(body: bytes | memoryview) -> int:
    """The digest that an ENTRY body must carry: CRC32C over the entry's header without the digest, and its content."""
    view = memoryview(body)
    return crc32c(view[ENTRY_HEAD_SIZE:], crc32c(view[1:DIGESTED_HEAD_END]))


def check_entry(record: memoryview, seed: int, ledger_id: int, entry_id: int) -> memoryview:
    """The ledger entry inside a whole ENTRY record. Raises EntryCorrupt when anything about it is not as written."""
    if len(record) < RECORD_HEADER_SIZE + ENTRY_HEAD_SIZE:
        raise EntryCorrupt(f"the record of entry {ledger_id}:{entry_id} is cut short")
    magic, kind, zero, size, _, crc = RECORD_HEADER.unpack_from(record)
    body = record[RECORD_HEADER_SIZE:]
    head = ENTRY_HEAD.unpack_from(body)
    if (
        (magic, kind, zero, size) != (RECORD_MAGIC, KIND_ENTRY, 0, len(body))
        or (head[1], head[3]) != (ledger_id, entry_id)
        or crc != crc32c(bytes(record[: RECORD_HEADER_SIZE - 4]) + bytes(body[:ENTRY_HEAD_SIZE]), seed)
        or head[6] != digest_of(body)
    ):
        raise EntryCorrupt(f"the stored bytes of entry {ledger_id}:{entry_id} fail their checksum")
    return body[1:]


@dataclass(frozen=True, slots=True)
class Record:
    """One record met by a scan. `intact` is False for an ENTRY whose content does not match its digest, but whose
    identity is certain. `whole` has the header, too.
    """

    kind: int
    offset: int
    whole: memoryview
    intact: bool = True

    @property
    def body(self) -> memoryview:
        return self.whole[RECORD_HEADER_SIZE:]


class _Header(NamedTuple):
    """A record's header that its checksum confirms, and where it lies."""

    offset: int
    kind: int
    body_size: int
    batch_start: int


class Scan:
    """A pass over a segment file's records in file order.

    Iterate it to the end. Then `end` is the offset behind the last record, and `torn` says whether a torn write follows
    there. `lost` lists the (offset, end) ranges in the middle whose records cannot be recognized.
    """

    def __init__(self, read_at: Callable[[int, int], bytes], size: int, file_id: int, seed: int) -> None:
        self.end = FILE_HEADER_SIZE
        self.torn = False
        self.header_ok = True
        self.lost: list[tuple[int, int]] = []
        self.corrupted_entries = 0
        self.chunk_size = _SCAN_CHUNK_SIZE
        self._read_at = read_at
        self._size = size
        self._file_id = file_id
        self._seed = seed
        self._chunk_start = 0
        self._chunk = b""
        self._evidence: _Header | None = None

    @property
    def damaged(self) -> bool:
        """Something that was durable is no longer what it was."""
        return bool(self.lost) or bool(self.corrupted_entries) or not self.header_ok

    def __iter__(self) -> Iterator[Record]:
        self.header_ok = file_header_ok(self._read_at(0, FILE_HEADER_SIZE), self._file_id, self._seed)
        offset = FILE_HEADER_SIZE
        while True:
            record = self._record_at(offset)
            if record is None or not record.intact:
                resume = self._judge(offset, record)
                if resume is None:
                    break
                if record is None:
                    offset = self.end = resume
                    continue
                self.corrupted_entries += 1
            assert record is not None
            offset = self.end = offset + RECORD_HEADER_SIZE + len(record.body)
            yield record
        if offset == FILE_HEADER_SIZE and not self.torn:
            self.header_ok = True  # nothing but zeros behind it: its creation was interrupted, it was never used
        self.end = offset

    def _view(self, offset: int, size: int) -> memoryview:
        """Bytes from `offset`, fewer than `size` only at the end of the file."""
        inside = offset - self._chunk_start
        if inside < 0 or inside + size > len(self._chunk):
            if offset + size > self._size:
                size = max(0, self._size - offset)
            self._chunk = self._read_at(offset, max(size, self.chunk_size))
            self._chunk_start, inside = offset, 0
        return memoryview(self._chunk)[inside : inside + size]

    def _header_at(self, offset: int) -> _Header | None:
        """A valid record header, else None."""
        view = self._view(offset, RECORD_HEADER_SIZE)
        if len(view) < RECORD_HEADER_SIZE or bytes(view[:2]) != RECORD_MAGIC_BYTES:
            return None
        _, kind, zero, size, batch_start, crc = RECORD_HEADER.unpack_from(view)
        if zero or batch_start > offset or offset + RECORD_HEADER_SIZE + size > self._size:
            return None
        if size < ENTRY_HEAD_SIZE if kind == KIND_ENTRY else size != _BODY_SIZES.get(kind):
            return None
        covered = ENTRY_HEAD_SIZE if kind == KIND_ENTRY else size
        summed = bytes(self._view(offset, RECORD_HEADER_SIZE + covered))
        head_end = RECORD_HEADER_SIZE - 4
        if crc32c(summed[:head_end] + summed[RECORD_HEADER_SIZE:], self._seed) != crc:
            return None
        return _Header(offset, kind, size, batch_start)

    def _record_at(self, offset: int) -> Record | None:
        header = self._header_at(offset)
        if header is None:
            return None
        whole = self._view(offset, RECORD_HEADER_SIZE + header.body_size)
        body = whole[RECORD_HEADER_SIZE:]
        intact = header.kind != KIND_ENTRY or ENTRY_HEAD.unpack_from(body)[6] == digest_of(body)
        return Record(header.kind, offset, whole, intact)

    def _judge(self, offset: int, bad: Record | None) -> int | None:
        """What a bad record at `offset` means: the offset to go on from, or None at the end of the log.

        Sets `torn` or adds to `lost`. Evidence that bad bytes were once durable lies behind them, in the order of the
        file: a record of a later batch, or the COMMIT of this one.

        Most bad records of a batch share their evidence. It is kept, so that the time of a scan is in proportion to the
        file, for any amount of damage.
        """
        if self._only_zeros(offset, self._size):  # how a log that was not cut off ends; faster to see than to search
            return None
        first = self._next_valid(offset + 1 if bad is None else offset + RECORD_HEADER_SIZE + len(bad.body))
        if first is None:
            self.torn = True
            return None
        known = self._evidence
        if known is None or known.offset <= first.offset or not self._proves(known, offset, first):
            known = first
            while known is not None and not self._proves(known, offset, first):
                known = self._next_valid(known.offset + RECORD_HEADER_SIZE + known.body_size)
            if known is None:
                self.torn = True
                return None
            self._evidence = known
        # A batch's COMMIT alone carries nothing that could be missed.
        harmless = first.batch_start == first.offset == offset + RECORD_HEADER_SIZE
        if bad is None and not harmless:
            self.lost.append((offset, first.offset))
        return first.offset

    def _proves(self, record: _Header, offset: int, first: _Header) -> bool:
        """Whether a record behind a bad one at `offset` shows that the bad one was written; `first` is the first valid
        one behind it.
        """
        if record.batch_start > offset:
            return True
        return record.kind == KIND_COMMIT and not self._has_unwritten_sector(offset, first.offset, record.batch_start)

    def _next_valid(self, offset: int) -> _Header | None:
        """The next valid record header at or behind `offset`."""
        while offset < self._size:
            header = self._header_at(offset)
            if header is not None:
                return header
            if len(self._view(offset + 1, len(RECORD_MAGIC_BYTES))) < len(RECORD_MAGIC_BYTES):
                return None
            hit = self._chunk.find(RECORD_MAGIC_BYTES, offset + 1 - self._chunk_start)
            offset = self._chunk_start + (hit if hit >= 0 else len(self._chunk) - 1)
        return None

    def _has_unwritten_sector(self, start: int, end: int, batch_start: int) -> bool:
        """Whether a sector of the damaged range is still all zero, as before the write.

        A sector that it shares with an intact record of the same batch was written. So only whole sectors count, and
        the first part when the damage begins the batch.
        """
        at = start
        while at < end:
            stop = min(end, (at // SECTOR_SIZE + 1) * SECTOR_SIZE)
            whole = stop - at == SECTOR_SIZE
            if (whole or (at == start == batch_start and stop % SECTOR_SIZE == 0)) and self._only_zeros(at, stop):
                return True
            at = stop
        return False

    def _only_zeros(self, start: int, end: int) -> bool:
        while start < end:
            piece = bytes(self._view(start, min(end - start, len(_ZEROS))))
            if not piece:
                return True
            if piece != _ZEROS[: len(piece)]:
                return False
            start += len(piece)
        return True


class DurableScan(Scan):
    """A pass over bytes all of which are durable: nothing in them passes for a torn write, and `end` is `size`."""

    def _judge(self, offset: int, bad: Record | None) -> int | None:
        if offset >= self._size:
            return None
        following = self._next_valid(offset + 1 if bad is None else offset + RECORD_HEADER_SIZE + len(bad.body))
        resume = self._size if following is None else following.offset
        if bad is None:
            self.lost.append((offset, resume))
        return resume
