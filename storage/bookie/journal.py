"""Group commit: everything that waits is written and synced with one system call, and answered in one callback.

While one batch is at the disk the next one fills, so a slower disk gets larger batches. An idle disk never waits for
more: the first record is sent at the end of the loop's turn that brought it. A record's file, offset and checksum are
fixed when it is accepted; nothing is formatted twice and nothing waits for a lock.

`BATCH_TRANSITIONS` has the states of a batch. Exactly one batch at a time is at the disk.

Guarantees:

- an add is answered OK only after the synced write of the batch with its record has returned (`sync=False`, which is
  the setting journalSyncData=false, takes that away);
- batches become durable in the order in which their records were accepted;
- a failed write or sync is final: the journal fails everything that waits, calls `on_fatal` once and accepts nothing
  more. It is never retried, because after a failed sync the disk's content is unknown.

Journal files are created in the background before they are used, and filled with zeros slowly (`journal_files.py`). A
torn write is recognisable by its zeros either way (`records.py`). Large batches fill a journal within seconds. Zero
filling would then take half of the disk's bandwidth and gain little, so files are only reserved.

The first journal after a start ends early, at `first_bytes`. All bookies of an ensemble receive the same entries. With
journals of equal length, all of them would seal and create files at the same moment. Apart, the other bookies of the
ack quorum hide the one that is busy.

Runs on the loop; left to others: what records mean (`bookie.py`), sealing full segments (`entry_store.py`).
"""

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from ...protocol.bookie_wire import BookieStatus
from ...protocol.errors import DiskFull, StorageFailed
from ...runtime.files import File, Files
from ...runtime.meter import RecentTimes
from ...runtime.offload import Lane
from ...runtime.transitions import forbidden
from .journal_files import JournalFiles
from .records import (
    BEGIN_BODY,
    FILE_HEADER_SIZE,
    KIND_BEGIN,
    KIND_COMMIT,
    KIND_ENTRY,
    RECORD_HEADER_SIZE,
    encode_record_header,
)
from .segment import Segment, SegmentState


class Responder(Protocol):
    """The caller: an `RpcConnection`, or a test."""

    def respond(self, request_id: int, status: int, parts: Sequence[bytes] = ()) -> None: ...
    def respond_all(self, request_ids: Sequence[int], status: int) -> None: ...


class BatchState(enum.Enum):
    """See `BATCH_TRANSITIONS`."""

    OPEN = enum.auto()
    QUEUED = enum.auto()
    WRITING = enum.auto()
    DURABLE = enum.auto()
    FAILED = enum.auto()


BATCH_TRANSITIONS: Mapping[BatchState, Collection[BatchState]] = {
    BatchState.OPEN: (  # records join it
        BatchState.QUEUED,  # its COMMIT is in it: it is large enough, or its segment is full
        BatchState.WRITING,  # its COMMIT is in it: nothing waits in front of it, and the disk is free
        BatchState.FAILED,  # the write of an earlier batch failed, or a background file could not be made
    ),
    BatchState.QUEUED: (
        BatchState.WRITING,  # it is the oldest, its segment has a file, and no other batch is at the disk
        BatchState.FAILED,  # as above, or the disk has no room for its segment's file
    ),
    BatchState.WRITING: (
        BatchState.DURABLE,  # the synced write has returned
        BatchState.FAILED,  # the write or the sync failed
    ),
    BatchState.DURABLE: (),
    BatchState.FAILED: (),
}


class JournalBatch:
    """One batch of a journal: records that become durable with one synced write, and the callers that wait for them.

    `BATCH_TRANSITIONS` has the states. The journal changes them once per batch, never for each record.

    `start` and `end` are offsets in the segment's file.
    """

    __slots__ = ("add_bytes", "callbacks", "end", "final", "parts", "segment", "start", "state", "waiters")

    def __init__(self, segment: Segment, start: int) -> None:
        self.state = BatchState.OPEN
        self.segment = segment
        self.start = start
        self.end = start
        self.parts: list[bytes] = []
        self.waiters: dict[Responder, list[int]] = {}
        self.callbacks: list[Callable[[BaseException | None], None]] = []
        self.add_bytes = 0
        self.final = False
        """Nothing follows it in its segment."""

    def become(self, state: BatchState) -> None:
        """Change the state. Raises ForbiddenTransition for a step that the table does not have."""
        if state not in BATCH_TRANSITIONS[self.state]:
            raise forbidden(self, self.state, state)
        self.state = state

    def __str__(self) -> str:
        return f"the batch at {self.start} of {self.segment.name}"


BATCH_BYTES_MAX = 4 << 20
"""A batch of this size is closed, so that one answer never waits for much more than this to be written."""
SPACE_RESERVE_BYTES = 64 << 10
"""Kept for fences and tombstones in the last journal that the disk had room for."""
FILL_UNLESS_FASTER_S = 4.0
"""When journals fill up faster than this, the next ones are only reserved: see the module."""
FILL_S_MAX = 30.0
JOURNAL_LASTS_S = 10.0
"""What is assumed before a journal was full."""
_JOIN_BELOW_BYTES = 16 << 10
"""Parts smaller than this on average are joined: copying them costs less than a vector element each."""

_OK = int(BookieStatus.OK)


class Journal:
    """See the module. `segment_bytes` is the size of a journal file; a larger record gets a file of its own."""

    def __init__(
        self,
        files: Files,
        write_lane: Lane,
        prepare_lane: Lane,
        new_segment: Callable[[], Segment],
        segment_bytes: int,
        *,
        first_bytes: int,
        sync: bool,
        on_rotated: Callable[[Segment], None],
        on_full: Callable[[Segment], None],
        on_abandoned: Callable[[Segment], None],
        on_out_of_space: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self.active: Segment | None = None
        self.pending_bytes = 0
        """Bytes of adds accepted and not yet answered."""
        self.sync_times = RecentTimes()
        """How long the synced writes of batches took."""
        self._write_began_s = 0.0
        self.out_of_space = False
        self.failed: StorageFailed | None = None
        self._write_lane = write_lane
        self._files = JournalFiles(files, prepare_lane, self._prepared)
        self._new_segment = new_segment
        self._segment_bytes = segment_bytes
        self._active_bytes = first_bytes
        """Where the active segment ends at the latest."""
        self._sync = sync
        self._on_rotated = on_rotated
        self._on_full = on_full
        self._on_abandoned = on_abandoned
        self._on_out_of_space = on_out_of_space
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._tail = 0
        self._previous: Segment | None = None
        """The last journal that was filled; the next one's first record says where it ended."""
        self._open: JournalBatch | None = None
        self._queue: deque[JournalBatch] = deque()
        self._writing: JournalBatch | None = None
        self._spare: Segment | None = None
        self._preparing: list[Segment] = []
        """Being created, in this order. Some may be in use already (then not PREPARED) and wait for their file."""
        self._active_since = self._loop.time()
        self._lasted_s = JOURNAL_LASTS_S
        """How long the last full journal lasted."""
        self._newest_real: Segment | None = None
        """The newest segment in use that has its file."""
        self._closed = False

    # -- appending -------------------------------------------------------------------------------------------------

    def append_entry(self, payload: bytes, head: bytes, responder: Responder, request_id: int) -> int:
        """Accept an ADD request's payload (`head` is its first 45 bytes); returns the record's offset in `active`.

        `responder` gets OK when it is durable. Raises DiskFull, StorageFailed; then there is no answer.
        """
        size = RECORD_HEADER_SIZE + len(payload)
        batch = self._batch_for(size, reserve=True)
        batch.parts += (
            encode_record_header(KIND_ENTRY, head, batch.start, batch.segment.seed, len(payload)),
            payload,
        )
        waiting = batch.waiters.get(responder)
        if waiting is None:
            batch.waiters[responder] = [request_id]
        else:
            waiting.append(request_id)
        batch.add_bytes += size
        self.pending_bytes += size
        offset = self._tail
        self._tail += size
        if self._tail - batch.start >= BATCH_BYTES_MAX:
            self._queue_open(batch)
        return offset

    def append(self, kind: int, body: bytes, callback: Callable[[BaseException | None], None]) -> None:
        """Accept any other record; `callback(error)` is called when it is durable or has failed.

        Raises DiskFull, StorageFailed.
        """
        size = RECORD_HEADER_SIZE + len(body)
        batch = self._batch_for(size, reserve=False)
        batch.parts += (encode_record_header(kind, body, batch.start, batch.segment.seed), body)
        batch.callbacks.append(callback)
        self._tail += size
        if self._tail - batch.start >= BATCH_BYTES_MAX:
            self._queue_open(batch)

    def after_pending(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back when everything accepted up to now is durable; at once when nothing is pending."""
        batch = self._newest_pending()
        if batch is None:
            callback(self.failed)
        else:
            batch.callbacks.append(callback)

    def _newest_pending(self) -> JournalBatch | None:
        return self._open or (self._queue[-1] if self._queue else self._writing)

    def _batch_for(self, size: int, *, reserve: bool) -> JournalBatch:
        if self.failed is not None:
            raise self.failed
        if self._closed:  # a lookup on a lane ended only now; its record would not be written
            raise StorageFailed("the journal is closed")
        segment = self.active
        limit = self._active_bytes - RECORD_HEADER_SIZE
        if self.out_of_space and reserve:
            limit -= SPACE_RESERVE_BYTES
        if segment is None or (self._tail + size > limit and self._tail > FILE_HEADER_SIZE):
            segment = self._rotate()
        batch = self._open
        if batch is None:
            batch = self._open = JournalBatch(segment, self._tail)
            if self._writing is None:
                self._loop.call_soon(self._submit_next)
        return batch

    def _queue_open(self, batch: JournalBatch) -> None:
        """Let nothing more join the open batch. It waits for its turn at the disk."""
        self._close_batch(batch, BatchState.QUEUED)
        self._queue.append(batch)

    def _close_batch(self, batch: JournalBatch, state: BatchState) -> None:
        batch.become(state)
        batch.parts.append(encode_record_header(KIND_COMMIT, b"", batch.start, batch.segment.seed))
        self._tail += RECORD_HEADER_SIZE
        batch.end = batch.segment.end = self._tail
        self._open = None

    # -- segments --------------------------------------------------------------------------------------------------

    def start(self, file: File, segment: Segment) -> None:
        """Begin to append to a segment that `create_journal_file` made."""
        segment.file = file
        self._activate(segment)
        self.prepare_spare()

    def prepare_spare(self) -> None:
        """Have the next segment made ready in the background, unless one is or the disk is full."""
        if not (self._closed or self.failed or self.out_of_space or self._next_spare()):
            segment = self._new_segment()
            self._preparing.append(segment)
            fill_s = min(self._lasted_s / 2, FILL_S_MAX) if self._lasted_s >= FILL_UNLESS_FASTER_S else 0.0
            self._files.prepare(segment, self._segment_bytes, fill_s)

    def space_available(self) -> None:
        """The disk has room again."""
        self.out_of_space = False
        self.prepare_spare()

    def release_spare(self) -> Segment | None:
        """Take the prepared segment away, to give its space back to a full disk. The caller deletes its file."""
        spare, self._spare = self._spare, None
        if spare is None:
            spare = self._next_spare()
            if spare is None or (file := self._files.take(spare)) is None:
                return None
            self._preparing.remove(spare)
            spare.file = file
        return spare

    @property
    def unfilled(self) -> list[Segment]:
        """Journals that are not full, those still being created included."""
        used = [segment for segment in (self.active, self._spare) if segment is not None]
        return used + [segment for segment in self._preparing if segment.state is SegmentState.PREPARED]

    def _next_spare(self) -> Segment | None:
        """The segment to use next: ready, or else being made."""
        return self._spare or next((item for item in self._preparing if item.state is SegmentState.PREPARED), None)

    def _rotate(self) -> Segment:
        if self.out_of_space and self._next_spare() is None:
            raise DiskFull("the journal is full, and the disk has no space for the next one: free space")
        self.prepare_spare()
        following = self._next_spare()
        assert following is not None, "a next journal exists unless the disk is full or the journal is closed"
        if following is self._spare:
            self._spare = None
        else:
            self._files.hurry(following)
        full = self.active
        if full is not None:
            if self._open is not None:
                self._queue_open(self._open)
            last = self._newest_pending()
            if last is not None and last.segment is full:
                last.final = True
            else:
                self._loop.call_soon(self._on_full, full)
            full.become(SegmentState.SEALING)
            self._lasted_s = (self._loop.time() - self._active_since) * self._segment_bytes / self._active_bytes
            self._on_rotated(full)
            self._previous = full
        self._active_bytes = self._segment_bytes
        self._activate(following)
        self.prepare_spare()
        return following

    def _activate(self, segment: Segment) -> None:
        segment.become(SegmentState.ACTIVE)
        if segment.file is not None:
            self._newest_real = segment
        self.active = segment
        self._active_since = self._loop.time()
        self._tail = FILE_HEADER_SIZE
        if self._previous is not None:
            self.append(KIND_BEGIN, BEGIN_BODY.pack(self._previous.file_id, self._previous.end), _ignore)

    def _prepared(self, segment: Segment, file: File | None, error: BaseException | None) -> None:
        self._preparing.remove(segment)
        if file is not None:
            if segment.state is SegmentState.REMOVED:
                file.close()  # abandoned meanwhile; the next start deletes the empty file
                return
            segment.file = file
            if segment.state is SegmentState.PREPARED:
                self._spare = segment
            else:
                self._newest_real = segment
            self.prepare_spare()
            self._submit_next()
        elif isinstance(error, DiskFull):
            self.out_of_space = True
            if segment.state not in (SegmentState.PREPARED, SegmentState.REMOVED):  # removed: abandoned with another
                self._abandon([segment, *self._preparing])
            self._on_out_of_space()
        elif error is not None:
            self._fail(error)

    def _abandon(self, homeless: list[Segment]) -> None:
        """The disk had no space for files that are already in use: the adds that wait in them are refused."""
        if self._open is not None:
            self._queue_open(self._open)
        self.active = None
        self._previous = self._newest_real
        for segment in homeless:
            segment.become(SegmentState.REMOVED)
            self._files.hurry(segment)
            self._on_abandoned(segment)
        refused = [batch for batch in self._queue if batch.segment.state is SegmentState.REMOVED]
        self._queue = deque(batch for batch in self._queue if batch.segment.state is not SegmentState.REMOVED)
        for batch in refused:
            batch.become(BatchState.FAILED)
            self._answer(
                batch, BookieStatus.READ_ONLY, DiskFull("the disk has no space for the next journal: free space")
            )

    # -- writing ---------------------------------------------------------------------------------------------------

    def _submit_next(self) -> None:
        if self._writing is not None or self.failed is not None:
            return
        batch = self._queue[0] if self._queue else self._open
        if batch is None:
            return
        file = batch.segment.file
        if file is None:
            return  # `_prepared` comes back here
        if batch is self._open:
            self._close_batch(batch, BatchState.WRITING)
        else:
            batch.become(BatchState.WRITING)
            self._queue.popleft()
        self._writing = batch
        self._write_began_s = self._loop.time()
        self._write_lane.submit(_write, (file, batch.start, batch.parts, self._sync), self._written)

    def _written(self, _: Any, error: BaseException | None) -> None:
        batch = self._writing
        if batch is None:
            return  # everything that waited was failed meanwhile
        if error is not None:
            self._fail(error)
            return
        batch.become(BatchState.DURABLE)
        now_s = self._loop.time()
        self.sync_times.add(now_s, now_s - self._write_began_s)
        self._writing = None
        batch.segment.synced_end = batch.end
        if self._queue or self._open is not None:
            self._submit_next()  # the disk first, then the answers
        self._answer(batch, _OK, None)
        if batch.final:
            self._on_full(batch.segment)

    def _answer(self, batch: JournalBatch, status: int, error: BaseException | None) -> None:
        self.pending_bytes -= batch.add_bytes
        for responder, request_ids in batch.waiters.items():
            responder.respond_all(request_ids, status)
        for callback in batch.callbacks:
            callback(error)

    def _fail(self, error: BaseException) -> None:
        if self.failed is not None:
            return
        self.failed = StorageFailed(f"the journal could not be written: {error}")
        self._files.hurry_all()
        waiting = [batch for batch in (self._writing, *self._queue, self._open) if batch is not None]
        self._writing = self._open = None
        self._queue.clear()
        for batch in waiting:
            batch.become(BatchState.FAILED)
            self._answer(batch, BookieStatus.IO_ERROR, self.failed)
        self._on_fatal(self.failed)

    async def close(self) -> None:
        """Wait until everything accepted is durable (or has failed); no appends from now on."""
        self._closed = True
        self._files.hurry_all()
        done: asyncio.Future[None] = self._loop.create_future()

        def finish(_: BaseException | None) -> None:
            if not done.done():
                done.set_result(None)

        self.after_pending(finish)
        await done


def _write(file: File, offset: int, parts: list[bytes], sync: bool) -> None:
    if len(parts) > 1 and sum(map(len, parts)) < len(parts) * _JOIN_BELOW_BYTES:
        parts = [b"".join(parts)]
    file.write_at(offset, parts, sync=sync)


def _ignore(_: BaseException | None) -> None:
    """A BEGIN record is durable with the batch that it opens; no request waits for it."""
