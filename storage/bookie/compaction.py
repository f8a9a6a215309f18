"""Compaction: give back the space of dead entries by rewriting what is alive, ordered by ledger.

A segment in which no ledger is alive is simply removed. A segment whose live share is below the threshold (minor 20%,
major 80%) is rewritten, as are small segments from restarts. A few are rewritten at a time:

    copy live entries into new `.compacted` files → sync them → write their indexes → one checkpoint that has the new
    in place of the old → readers let go → delete the old

Until the checkpoint the new files belong to nothing and a crash leaves the old; after it, the other way round. Every
copied entry is verified. An entry whose copies are all damaged becomes a LOST record, so that reading it remains an
error, and is noted as damaged. A damaged index ends the run and is rebuilt (and the bookie goes into limbo if something
was lost). Fences and tombstones are not in question: they live in the checkpoint. A ledger that is deleted meanwhile is
copied for nothing and goes the next time.

The work is done on a lane of its own in small steps. Between two steps the loop sleeps, so that `bytes_per_s` is kept.
Up to half of the time is spent here, for entries of any size.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ...protocol.errors import EntryCorrupt
from ...runtime.files import File, Files
from .entry_store import EntryStore
from .records import (
    ENTRY_HEAD,
    ENTRY_HEAD_SIZE,
    FILE_HEADER_SIZE,
    KIND_COMMIT,
    KIND_ENTRY,
    KIND_LOST,
    LOST_BODY,
    RECORD_HEADER_SIZE,
    encode_file_header,
    encode_record_header,
)
from .segment import JOURNAL_SUFFIX, Segment
from .segment_index import Row, Rows, SegmentTable, encode_index
from .segment_reader import SegmentReader

SEGMENTS_PER_ROUND_MAX = 8
SMALL_SEGMENTS_MIN = 8
"""So many segments of less than `SMALL_SHARE` of the usual size are worth merging."""
SMALL_SHARE = 0.2
READS_MAX = 2
"""An entry that is damaged when it is read is read again, because a LOST record is final."""
_STEP_BYTES = 1 << 20
_STEP_ENTRIES = 1000


@dataclass
class Compacted:
    """What one run did, sizes in bytes."""

    segments_removed: int = 0
    segments_written: int = 0
    bytes_freed: int = 0
    bytes_copied: int = 0


class Compactor:
    """Runs one compaction at a time over an `EntryStore`."""

    def __init__(self, store: EntryStore, *, bytes_per_s: int) -> None:
        self._store = store
        self._bytes_per_s = bytes_per_s
        self._files = store.env.files
        self._lane = store.env.offload.lane("compaction")
        self._running = asyncio.Lock()

    async def close(self) -> None:
        """No run may be in progress (cancel it first)."""
        await self._lane.run(_nothing)
        self._lane.close()

    async def run(self, threshold: float) -> Compacted:
        """Rewrite every segment whose live share is below `threshold`.

        Raises DiskFull, OSError, and EntryCorrupt for a damaged index; a run gets further once it has been rebuilt. The
        old files are then still valid.
        """
        done = Compacted()
        async with self._running:
            # Not by bytes: LOST records have none, but must stay while their ledger lives, or it is "no such entry".
            dead = [segment for segment in self._sealed() if not any(self._live(segment))]
            if dead:
                await self._store.replace(dead, [])
                done.segments_removed += len(dead)
                done.bytes_freed += sum(segment.end for segment in dead)
            while victims := self._choose(threshold):
                await self._rewrite(victims, done)
        return done

    def _sealed(self) -> list[Segment]:
        return [segment for segment in self._store.segments.values() if segment.sealed]

    def _live(self, segment: Segment) -> Iterator[bool]:
        """Of each ledger in a segment, whether its entries are wanted."""
        return (self._store.lives(segment, ledger_id) for ledger_id in segment.table)

    def _choose(self, threshold: float) -> list[Segment]:
        # A compacted file in which every ledger lives would be written again as it is, for ever.
        wasteful = [
            segment
            for segment in self._sealed()
            if segment.live_bytes < threshold * (segment.end - FILE_HEADER_SIZE - _overhead(segment))
            and (segment.kind == JOURNAL_SUFFIX or not all(self._live(segment)))
        ]
        if wasteful:
            return wasteful[:SEGMENTS_PER_ROUND_MAX]
        small = [segment for segment in self._sealed() if segment.end < SMALL_SHARE * self._store.segment_bytes]
        return small[:SEGMENTS_PER_ROUND_MAX] if len(small) >= SMALL_SEGMENTS_MIN else []

    async def _rewrite(self, victims: list[Segment], done: Compacted) -> None:
        loop = asyncio.get_running_loop()
        lives = self._store.lives
        live = sorted({one: None for segment in victims for one in segment.table if lives(segment, one)})
        copy = _Copy(self._files, victims, live, self._store.segment_bytes)
        written: list[tuple[Segment, SegmentTable]] = []
        finished = False
        try:
            while True:
                if copy.output is None:
                    copy.output = self._store.new_compacted()
                started = loop.time()
                copied, complete = await self._lane.run(copy.step)
                done.bytes_copied += copied
                await self._note(copy.lost)
                if complete is not None:
                    written.append(complete)
                    copy.output = None
                if copy.exhausted:
                    break
                await asyncio.sleep(max(copied / self._bytes_per_s, loop.time() - started))
            await self._store.replace(victims, written)
            finished = True
        except EntryCorrupt:
            for segment in copy.damaged:
                self._store.rebuild_soon(segment)
            raise
        finally:
            await asyncio.shield(self._lane.run(copy.close, finished))
        done.segments_removed += len(victims)
        done.segments_written += len(written)
        done.bytes_freed += sum(segment.end for segment in victims) - sum(segment.end for segment, _ in written)

    async def _note(self, lost: list[tuple[int, int]]) -> None:
        """Have what was found lost noted as damaged, unless there is another copy."""
        while lost:
            ledger_id, entry_id = lost.pop()
            state = self._store.ledgers.get(ledger_id)
            if state is not None:
                await self._store.reads.check(state, entry_id)


def _overhead(segment: Segment) -> int:
    """Bytes of a segment that are record headers, which no rewriting saves."""
    return sum(line.entries for line in segment.table.values()) * (RECORD_HEADER_SIZE + 1)


def _nothing() -> None:
    """Run on a lane to learn that everything before it has ended."""


@dataclass
class _Copy:
    """The lane's side of one rewrite. `step` fills `output`, one chunk at a time."""

    files: Files
    victims: Sequence[Segment]
    ledgers: Sequence[int]
    segment_bytes: int
    output: Segment | None = None
    exhausted: bool = False
    damaged: list[Segment] = field(default_factory=list[Segment])
    lost: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(Ledger, entry) of LOST records written."""
    _file: File | None = None
    _rows: dict[int, Rows] = field(default_factory=dict[int, Rows])
    _source: "Iterator[tuple[int, int, int, int, bytes]] | None" = None
    _reader: SegmentReader | None = None
    _made: list[Segment] = field(default_factory=list[Segment])

    def step(self) -> tuple[int, tuple[Segment, SegmentTable] | None]:
        """Copy a chunk; returns the bytes copied, and the output with its table when that is complete."""
        output = self.output
        assert output is not None
        if self._source is None:
            self._reader = SegmentReader(self.files)
            self._source = self._entries(self._reader)
        parts: list[bytes] = []
        start = offset = output.end
        for ledger_id, nonce, entry_id, lac, body in self._source:
            lost = not body
            if lost:
                body = LOST_BODY.pack(ledger_id, nonce, entry_id)
                parts.append(encode_record_header(KIND_LOST, body, start, output.seed))
            else:
                parts.append(encode_record_header(KIND_ENTRY, body[:ENTRY_HEAD_SIZE], start, output.seed, len(body)))
            parts.append(body)
            rows = self._rows.setdefault(ledger_id, Rows(nonce))
            if lost:
                rows.put(entry_id, offset, 0, 0, -1)
            else:
                rows.put(entry_id, offset, len(body) - 1, ENTRY_HEAD.unpack_from(body)[6], lac)
            offset += RECORD_HEADER_SIZE + len(body)
            if offset - start >= _STEP_BYTES or len(parts) >= 2 * _STEP_ENTRIES or offset >= self.segment_bytes:
                break
        else:
            self.exhausted = True
        if parts:
            if self._file is None:
                self._file = self.files.open(output.path, create=True)
                self._made.append(output)
                self._file.write_at(0, [encode_file_header(output.file_id, output.seed)])
            parts.append(encode_record_header(KIND_COMMIT, b"", start, output.seed))
            self._file.write_at(start, [b"".join(parts)])
            output.end = offset + RECORD_HEADER_SIZE
        if self._file is not None and (self.exhausted or output.end >= self.segment_bytes):
            return offset - start, self._complete(output)
        return offset - start, None

    def _complete(self, output: Segment) -> tuple[Segment, SegmentTable]:
        assert self._file is not None
        self._file.sync()
        self._file.close()
        self._file = None
        index, table = encode_index(output.file_id, output.seed, output.end, self._rows)
        self.files.write_atomic(output.index_path, index)
        self.files.sync_directory(output.directory)
        self._rows = {}
        return output, table

    def close(self, finished: bool) -> None:
        """Let go of all files; those of an unfinished rewrite are deleted."""
        if self._file is not None:
            self._file.close()
        if self._reader is not None:
            self._reader.close()
        if not finished:
            for segment in self._made:
                for path in (segment.path, segment.index_path):
                    if not segment.sealed and self.files.exists(path):
                        self.files.remove(path)

    def _entries(self, reader: SegmentReader) -> Iterator[tuple[int, int, int, int, bytes]]:
        """Live entries in order: ledger, its nonce, entry, LAC, ADD body, which is empty if all copies are damaged."""
        for ledger_id in self.ledgers:
            holders: list[tuple[Segment, Rows]] = []
            for segment in self.victims:
                if ledger_id in segment.table:
                    try:
                        holders.append((segment, reader.rows(segment, ledger_id)))
                    except EntryCorrupt:
                        self.damaged.append(segment)
                        raise
            entry_ids = sorted({entry_id: None for _, rows in holders for entry_id in rows.entries})
            for entry_id in entry_ids:
                found: memoryview | None = None
                for segment, rows in holders:
                    row: Row | None = rows.find(entry_id)
                    for _ in range(READS_MAX):
                        if row is not None and found is None:
                            found = reader.read_entry(segment, ledger_id, row)
                if found is None:
                    self.lost.append((ledger_id, entry_id))
                    yield ledger_id, holders[0][1].nonce, entry_id, -1, b""
                else:
                    body = b"\0" + found
                    yield ledger_id, holders[0][1].nonce, entry_id, ENTRY_HEAD.unpack_from(body)[4], body
