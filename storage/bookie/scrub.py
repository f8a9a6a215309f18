"""The scrub of a bookie: reads stored segments again, slowly, and finds what has changed on the disk since.

A pass goes through all sealed segments in the order of their file ids, then through what is durable of the others. Of
each it verifies the index, then every record in the order of the file, so that the disk reads forward. An entry that
looks damaged is read once more by the bookie's own reads. These try every copy on this disk, and note the entry as
damaged when none is as written (`damage.py`). Where a record's header is destroyed, the index says which entries lay
there. A damaged index is built again from its segment while that still can be done.

Work happens on the housekeeping lane in small steps. Between two steps the loop sleeps, so that the rate is kept and up
to half of the time is spent here. Memory: one read, and one ledger's columns of one index.

A pass begins `interval_s` after the one before it began. The rate is the setting's; without one it is what a pass
within the interval needs, at least `RATE_MIN_BYTES_PER_S`. Progress survives a restart, to about a minute.

Left to others: bringing a new copy (the auditor), and the checkpoint, which is written again with each sealed segment.
"""

import asyncio
import errno
import logging
from bisect import bisect_right
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from functools import partial

from ...protocol.errors import EntryCorrupt
from ...runtime.files import File, Files
from .damage import EntryKey, ScrubProgress
from .entry_store import EntryStore
from .records import ENTRY_HEAD, FILE_HEADER_SIZE, KIND_ENTRY, KIND_LOST, LOST_BODY, RECORD_HEADER_SIZE, DurableScan
from .segment import Segment, SegmentState
from .segment_index import Rows, TableLine, decode_table
from .segment_reader import read_rows

logger = logging.getLogger(__name__)

RATE_MIN_BYTES_PER_S = 64 << 10
READ_BYTES = 1 << 20
STEP_BYTES = 64 << 10
STEP_RECORDS = 256
"""Both bound a step to a millisecond or two of the interpreter, for which the loop may have to wait."""
PROGRESS_WRITE_S = 60.0
IDLE_S = 60.0
"""Pause before the next look when there is nothing to read."""
_PIECE_BYTES = 4096

ByteRange = tuple[int, int]
"""Offsets in a segment file: the first byte, and the one behind the last."""


@dataclass
class Step:
    """What one piece of work found. `size_bytes` were read."""

    size_bytes: int = 0
    suspects: list[EntryKey] = field(default_factory=list[EntryKey])
    lost: list[ByteRange] = field(default_factory=list[ByteRange])
    index_damaged: bool = False
    finished: bool = False


class Scrubber:
    """See the module. `run` never returns; one at a time over an `EntryStore`."""

    def __init__(self, store: EntryStore, *, interval_s: float, bytes_per_s: int) -> None:
        self._store = store
        self._interval_s = interval_s
        self._bytes_per_s = bytes_per_s
        self._clock = store.env.clock
        self._files = store.env.files
        self._lane = store.housekeeping_lane
        self._saved_at = 0.0

    @property
    def progress(self) -> ScrubProgress:
        return self._store.damage.notes.progress

    def pass_share(self) -> float:
        """How much of the running pass is done, between 0 and 1; 1 between two passes."""
        if not self.progress.running:
            return 1.0
        return min(1.0, self.progress.pass_bytes / max(1, self._stored_bytes()))

    async def run(self) -> None:
        """Scrub for ever."""
        while True:
            try:
                await self._wait_until_due()
                await self.run_pass()
            except Exception:  # of any kind: without the scrub, damage stays unnoticed
                logger.exception("%s: the scrub failed unexpectedly and continues later", self._store.directory)
                await asyncio.sleep(IDLE_S)

    async def _wait_until_due(self) -> None:
        progress = self.progress
        while not progress.running:
            now_ms = self._clock.now_ms()
            due_in_s = (progress.began_ms - now_ms) / 1000 + self._interval_s
            if progress.began_ms > now_ms or due_in_s <= 0:  # a clock that was set back keeps no pass waiting
                if self._stored_bytes():
                    return
                due_in_s = IDLE_S
            await asyncio.sleep(min(due_in_s, 3600.0))

    async def run_pass(self) -> None:
        """Begin a pass, or go on with the one that a restart broke off, to its end."""
        progress = self.progress
        if not progress.running:
            progress.began_ms, progress.running = self._clock.now_ms(), True
            progress.after, progress.until, progress.pass_bytes = 0, self._store.next_file_id, 0
        rate = self._bytes_per_s or max(RATE_MIN_BYTES_PER_S, int(self._stored_bytes() / self._interval_s))
        while (segment := self._next_sealed()) is not None:
            await self._scrub(segment, segment.end, rate)
            progress.after = segment.file_id
            self._save_now_and_then()
        for segment in self._store.unsealed():
            await self._scrub(segment, segment.synced_end, rate)
        progress.running = False
        progress.passes += 1
        self._store.damage.save_soon()
        logger.info("%s: a scrub read %d bytes", self._store.directory, progress.pass_bytes)

    def _next_sealed(self) -> Segment | None:
        progress = self.progress
        left = [
            segment
            for segment in self._store.segments.values()
            if segment.sealed and progress.after < segment.file_id < progress.until
        ]
        return min(left, key=lambda segment: segment.file_id, default=None)

    def _stored_bytes(self) -> int:
        stored = [*self._store.segments.values(), *self._store.unsealed()]
        return sum({segment.file_id: segment.synced_end - FILE_HEADER_SIZE for segment in stored}.values())

    def _save_now_and_then(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._saved_at >= PROGRESS_WRITE_S:
            self._saved_at = now
            self._store.damage.save_soon()

    # -- a segment -----------------------------------------------------------------------------------------------

    async def _scrub(self, segment: Segment, end: int, bytes_per_s: int) -> None:
        """Read a segment up to `end`; one that compaction removes meanwhile is left."""
        loop = asyncio.get_running_loop()
        reading = SegmentScrub(self._files, segment, end)
        try:
            while segment.state is not SegmentState.REMOVED:
                started = loop.time()
                step = await self._lane.run(reading.step)
                took_s = loop.time() - started
                self.progress.pass_bytes += step.size_bytes
                self.progress.total_bytes += step.size_bytes
                await self._look_into(segment, step)
                if step.finished:
                    break
                await asyncio.sleep(max(step.size_bytes / bytes_per_s, took_s))
        except OSError as error:  # the rest of the disk is still to be read
            if segment.state is not SegmentState.REMOVED:
                logger.warning("%s: the scrub skips this segment: %s", segment.path, error)
        finally:
            await asyncio.shield(self._lane.run(reading.close))

    async def _look_into(self, segment: Segment, step: Step) -> None:
        if step.index_damaged:
            logger.warning("%s: the index of this segment is damaged and is rebuilt", segment.path)
            self._store.rebuild_soon(segment)
        for ledger_id, entry_id in step.suspects:
            await self._check(ledger_id, entry_id)
        if not step.lost or step.index_damaged:  # building the index again finds what is lost
            return
        for ledger_id in [ledger_id for ledger_id in segment.ledger_ids() if self._store.lives(segment, ledger_id)]:
            try:
                lost = await self._lost_of(segment, ledger_id, step.lost)
            except EntryCorrupt:
                self._store.rebuild_soon(segment)
                return
            for entry_id in lost:
                await self._check(ledger_id, entry_id)

    async def _lost_of(self, segment: Segment, ledger_id: int, lost: list[ByteRange]) -> list[int]:
        rows, line = segment.rows.get(ledger_id), segment.table.get(ledger_id)
        if line is not None:
            return await self._lane.run(_indexed_entries_in, self._files, segment, line, lost)
        if rows is not None:
            return await self._lane.run(entries_in, rows.entries[:], rows.offsets[:], rows.sizes[:], lost)
        return []

    async def _check(self, ledger_id: int, entry_id: int) -> None:
        state = self._store.ledgers.get(ledger_id)
        if state is not None and not self._store.limbo:  # in limbo the auditor has every entry read anyway
            await self._store.reads.check(state, entry_id)


class SegmentScrub:
    """One segment's pass. Used by one lane only, `step` by `step`; `close` at the end."""

    def __init__(self, files: Files, segment: Segment, end: int) -> None:
        self._files = files
        self._segment = segment
        self._end = end
        self._sealed = segment.sealed
        self._file: File | None = None
        self._steps = self._run()

    def step(self) -> Step:
        """Read on. Raises OSError."""
        return next(self._steps, Step(finished=True))

    def close(self) -> None:
        self._steps.close()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _run(self) -> Generator[Step]:
        if self._sealed:
            yield from self._read_index()
        file = self._file = self._files.open(self._segment.path)
        segment = self._segment
        scan = DurableScan(partial(read_what_can_be, file), self._end, segment.file_id, segment.seed)
        scan.chunk_size = READ_BYTES
        step, began, records = Step(), FILE_HEADER_SIZE, 0
        for record in scan:
            records += 1
            if record.kind == KIND_LOST:
                ledger_id, _, entry_id = LOST_BODY.unpack(record.body)
                step.suspects.append((ledger_id, entry_id))
            elif record.kind == KIND_ENTRY and not record.intact:
                _, ledger_id, _, entry_id, *_ = ENTRY_HEAD.unpack_from(record.body)
                step.suspects.append((ledger_id, entry_id))
            if scan.end - began >= STEP_BYTES or records == STEP_RECORDS:
                step.size_bytes, began, records = scan.end - began, scan.end, 0
                step.lost, scan.lost = scan.lost, []
                yield step
                step = Step()
        step.size_bytes, step.lost, step.finished = self._end - began, scan.lost, True
        yield step

    def _read_index(self) -> Generator[Step]:
        """Verify the index file. The table in memory is the one that was written."""
        segment = self._segment
        try:
            index = self._files.open(segment.index_path)
        except FileNotFoundError:
            yield Step(index_damaged=True)
            return
        try:
            size = 0
            try:
                decode_table(index.read_at, segment.file_id, segment.seed, segment.end)
                for line in list(segment.table.values()):
                    Rows.decode(index.read_at(line.position, line.size), line)
                    size += line.size
                    if size >= STEP_BYTES:
                        yield Step(size)
                        size = 0
            except (EntryCorrupt, OSError):
                yield Step(size, index_damaged=True)
        finally:
            index.close()


def read_what_can_be(file: File, offset: int, size: int) -> bytes:
    """Bytes of a file; zeros where the medium cannot be read. Raises OSError for anything but an I/O error."""
    try:
        return file.read_at(offset, size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pieces: list[bytes] = []
    for start in range(offset, offset + size, _PIECE_BYTES):
        wanted = min(_PIECE_BYTES, offset + size - start)
        try:
            piece = file.read_at(start, wanted)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            piece = bytes(wanted)
        pieces.append(piece)
        if len(piece) < wanted:
            break
    return b"".join(pieces)


def entries_in(
    entries: Iterable[int], offsets: Iterable[int], sizes: Iterable[int], lost: list[ByteRange]
) -> list[int]:
    """Entries whose records lie in these parts of a file (ascending, disjoint), wholly or partly."""
    starts, ends = [start for start, _ in lost], [end for _, end in lost]
    found: list[int] = []
    for entry_id, offset, size in zip(entries, offsets, sizes, strict=True):
        at = bisect_right(ends, offset)
        if at < len(starts) and starts[at] < offset + RECORD_HEADER_SIZE + 1 + size:
            found.append(entry_id)
    return found


def _indexed_entries_in(files: Files, segment: Segment, line: TableLine, lost: list[ByteRange]) -> list[int]:
    """The same of one ledger of a sealed segment. Raises EntryCorrupt, OSError."""
    rows = read_rows(files, segment, line)
    return entries_in(rows.entries, rows.offsets, rows.sizes, lost)
