"""Held entries of a durable subscription beyond what memory may take: they are stored in ledgers, in buckets.

`Delays` keeps held entries in memory. When `delayedDeliveryMinIndexCountPerBucket` of them are there, they are *sealed*
in the background: written to a ledger, which the cursor's record then names (`SideLedgers`). Of a bucket only the table
of its segments stays in memory. A segment is read back shortly before its first entry is due. A bucket whose last
segment was read back is removed: first from the record, then its ledger is deleted. What memory held when a broker
died, the next dispatcher reads from the topic again.

The next dispatcher of the subscription, at the same or another broker, reads the tables of all buckets. Then it skips
what they cover, and reads from the topic only what came since. So loading costs as much as the buckets and the entries
that none of them has.

`TRANSITIONS` has the states of this object, which lives as long as its dispatcher. A seal has these steps:

| step | a crash here |
| --- | --- |
| 1. the runs in memory are copied and packed, off the loop | nothing is stored |
| 2. positions between them that are acknowledged join what is covered; then the cursor is written | the same |
| 3. the ledger is written and closed | nothing names it: it is deleted as an orphan |
| 4. the cursor's record names it, under the owner's epoch | the next dispatcher reads it |
| 5. the runs leave the memory, but for what is due soon | the same |

Until 5 the runs in memory are served from there. Then the bucket's first entries count as taken, as many as were taken
from these runs since 1: both have the same order.

Invariants:

- An entry that is not acknowledged is in one named bucket at most. Only the object of the present dispatcher adds names
  (`wanted` in `SideLedgers`). It is READY then, so it knows all names that were there before. It skips what those
  cover, so it never holds such an entry a second time.
- A position that a dispatcher skips is durably acknowledged, or in a named bucket that is READY here. So a bucket that
  cannot be read leaves the record first. Only then its range is read from the topic.
- Removing a bucket from the record is always safe: at worst entries are read from the topic again. A cursor that is set
  back removes all of them first, since what was acknowledged has to come again.
- What is covered stays known until the read position has passed it, also when the bucket has gone. For its entries are
  on their way to consumers.

A bucket that cannot be read for `READ_LIMIT_S` is given up. While the dispatcher begins, its range is then read
again. Later the consumers are disconnected. They come back by themselves to a new dispatcher, which reads the range.

Bounds: memory has up to four times the minimum for a bucket, if most of that is due within `SOON_MS`, else the minimum.
Of each bucket it has one segment at a time, and 100 bytes for each segment. While no bucket can be stored, entries stay
in memory. Nothing is refused. A cursor in memory has no buckets: there all held entries stay in memory.

`BucketStore` reads buckets back and removes them, with as many tries as that takes. `Coverage` knows which positions
of a subscription a dispatcher need not read.
"""

import asyncio
import enum
import logging
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakMethod

from ...protocol.errors import AlreadyClosed, EntryCorrupt, LedgerFenced, MagnetarError, NoSuchLedger, StaleEpoch
from ...protocol.message_id import Position
from ...runtime import retry
from ...runtime.backoff import Backoff, LimitedBackoff
from ...runtime.environment import Environment
from ...runtime.tasks import together
from ...runtime.transitions import check_transition
from ...storage.ledger.reader import LedgerReader
from ...storage.managed.acknowledged import EntryRanges
from ...storage.managed.cursor import Cursor
from ...storage.managed.cursor_storage import SideLedgers
from .bucket import BucketSegment, BucketTable, Covered, build, decode_segment, decode_table, encode_table
from .delayed import YOUNG_MAX, DelayedEntries, TimedRun

if TYPE_CHECKING:
    from ..topics.persistent import PersistentTopic

logger = logging.getLogger(__name__)

SKIPS_MAX = 1000
GAPS_AT_ONCE = 1000
"""Gaps that are looked at before others get the loop."""


class Coverage:
    """What all buckets cover. It is forgotten when the read position has passed it."""

    def __init__(self, cursor: Cursor) -> None:
        self.open = False
        """Whether the read position may come to positions that a bucket has."""
        self._cursor = cursor
        self._covered: Covered = {}
        self._last: Position = (-1, -1)

    def add(self, covered: Covered) -> None:
        """What one more bucket covers."""
        self.open = True
        self._last = max(self._last, last_of(covered))
        for ledger_id, ranges in covered.items():
            known = self._covered.get(ledger_id)
            if known is None:
                self._covered[ledger_id] = ranges
            else:
                for first, last in ranges:
                    known.add(first, last)

    def clear(self) -> None:
        """Nothing is covered."""
        self._covered, self.open = {}, False

    def among(self, positions: Sequence[Position]) -> list[Position]:
        """Those of the positions that are covered."""
        covered = self._covered
        found: list[Position] = []
        for position in positions:
            ranges = covered.get(position[0])
            if ranges is not None and ranges.end_of(position[1]) is not None:
                found.append(position)
        return found

    def skip(self, position: Position) -> tuple[Position, int]:
        """The next place to read at or behind a position, and how many entries may be read there before others are
        covered."""
        for _ in range(SKIPS_MAX):
            position = self._cursor.next_unacknowledged(position)
            if position > self._last:
                self.clear()
                return position, sys.maxsize
            ranges = self._covered.get(position[0])
            if ranges is None:
                return position, sys.maxsize
            end = ranges.end_of(position[1])
            if end is None:
                following = ranges.pairs(ranges.count_before(position[1]), 1)
                return position, following[0] - position[1] if following else sys.maxsize
            position = (position[0], end + 1)
        return position, 1


async def bridged(cursor: Cursor, covered: Covered) -> Covered:
    """What is covered, with the positions between ranges of it that are acknowledged."""
    joined: Covered = {}
    looked = 0
    for ledger_id, ranges in covered.items():
        firsts: list[int] = []
        lasts: list[int] = []
        for first, last in ranges:
            looked += 1
            if looked % GAPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if lasts and cursor.next_unacknowledged((ledger_id, lasts[-1] + 1)) >= (ledger_id, first):
                lasts[-1] = last
            else:
                firsts.append(first)
                lasts.append(last)
        joined[ledger_id] = EntryRanges()
        joined[ledger_id].extend(firsts, lasts)
    return joined


def last_of(covered: Covered) -> Position:
    """The last position that is covered."""
    ledger_id = max(covered)
    return (ledger_id, max(last for _, last in covered[ledger_id]))


RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 5.0
READ_LIMIT_S = 10.0
ENDS = (StaleEpoch, LedgerFenced, AlreadyClosed)
"""The cursor ends here with them."""

_T = TypeVar("_T")


class OtherSlotsError(MagnetarError):
    """The entries of a bucket have slots that mean something else now."""


FINAL = (NoSuchLedger, OtherSlotsError, *ENDS)
"""Reading again gives them again."""


class Bucket:
    """One bucket. `next` is the segment to read next, `skip` says how many of its entries were taken already."""

    __slots__ = ("dropped", "last", "ledger_id", "next", "reader", "segments", "skip")

    def __init__(
        self, ledger_id: int, segments: list[BucketSegment], last: Position, reader: LedgerReader | None
    ) -> None:
        self.ledger_id = ledger_id
        self.segments = segments
        self.last = last
        """The last position that it covers."""
        self.reader = reader
        self.next = 0
        self.skip = 0
        self.dropped = False

    @property
    def first_ms(self) -> int:
        """The time of the first entry that was not read back, or an earlier one."""
        return self.segments[self.next].first_ms

    @property
    def left(self) -> int:
        """How many entries were not read back."""
        return sum([one.entries for one in self.segments[self.next :]]) - self.skip

    @property
    def empty(self) -> bool:
        return self.next >= len(self.segments)

    def next_run(self, run: TimedRun) -> None:
        """Its next segment was read back, as this."""
        run.head, self.skip = self.skip, 0
        self.next += 1

    def pass_over(self, count: int) -> None:
        """The first entries need not be read back."""
        self.skip += count
        while not self.empty and self.skip >= self.segments[self.next].entries:
            self.skip -= self.segments[self.next].entries
            self.next += 1


class BucketStore:
    """The buckets of one subscription. `wanted` says whether its dispatcher still wants what it asked for."""

    def __init__(self, env: Environment, name: str, side: SideLedgers, wanted: Callable[[], bool]) -> None:
        self._env = env
        self._name = name
        self._side = side
        self._wanted = wanted

    async def add(self, bodies: Sequence[bytes]) -> int | None:
        """Store a bucket with these entries. Returns its ledger; None when it is no longer wanted."""
        return await self._side.add(bodies, self._wanted)

    async def open(self, ledger_id: int, slots: int) -> tuple[Bucket, Covered]:
        """A stored bucket, and what it covers. Raises why it cannot be read, or not by a dispatcher with such slots."""

        async def attempt() -> tuple[Bucket, Covered]:
            reader = await self._side.open(ledger_id)
            last = reader.metadata.last_entry
            if not reader.metadata.closed or last < 1:
                raise EntryCorrupt(f"ledger {ledger_id} is no bucket: it is not closed, or has no segments")
            table = decode_table((await reader.read(last, last, 1))[0].body, last)
            if table.slots != slots:
                raise OtherSlotsError(f"bucket {ledger_id} is of another subscription type")
            return Bucket(ledger_id, table.segments, last_of(table.covered), reader), table.covered

        return await self._limited(attempt, ledger_id)

    async def read(self, bucket: Bucket) -> TimedRun:
        """The next segment of a bucket. Raises why it cannot be read."""
        number = bucket.next

        async def attempt() -> bytes:
            reader, bucket.reader = bucket.reader, None  # after an error the metadata is read again
            if reader is None:
                reader = await self._side.open(bucket.ledger_id)
            body = (await reader.read(number, number, 1))[0].body
            bucket.reader = reader
            return body

        return decode_segment(await self._limited(attempt, bucket.ledger_id), bucket.segments[number])

    async def remove(self, ledger_ids: Sequence[int]) -> None:
        """Remove buckets, however often that has to be tried. Returns early when it is no longer wanted.

        Raises an error of ENDS where the cursor has ended.
        """

        async def attempt() -> None:
            await self._side.remove(ledger_ids, self._wanted)

        def retriable(error: Exception) -> bool:
            return isinstance(error, MagnetarError) and not isinstance(error, ENDS) and self._wanted()

        def log(error: Exception, delay_s: float) -> None:
            logger.info("subscription %s removes buckets in %.1f s: %s", self._name, delay_s, error)

        backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        try:
            await retry.forever(backoff, attempt, retriable=retriable, on_retry=log)
        except MagnetarError:
            if self._wanted():
                raise

    async def _limited(self, attempt: Callable[[], Coroutine[object, object, _T]], ledger_id: int) -> _T:
        def retriable(error: Exception) -> bool:
            return isinstance(error, MagnetarError) and not isinstance(error, FINAL) and self._wanted()

        def log(error: Exception, delay_s: float) -> None:
            logger.info("subscription %s reads bucket %d in %.1f s: %s", self._name, ledger_id, delay_s, error)

        backoff = LimitedBackoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S, READ_LIMIT_S)
        return await retry.limited(backoff, attempt, retriable=retriable, on_retry=log)


SOON_MS = 30_000
"""Entries that are due that soon are stored only when memory has very many."""
AHEAD_MS = 5_000
"""So long before its first entry may be due, a segment is read back."""
SEAL_ENTRIES_MAX = 200_000
"""Of one bucket."""
READS_MAX = 8
"""Segments, or tables, that are read at a time."""
BUCKET_BYTES = 500
SEGMENT_BYTES = 100
TASK = "delayed messages"


class BucketsState(enum.Enum):
    """See `TRANSITIONS`."""

    NEW = enum.auto()
    LOADING = enum.auto()
    READY = enum.auto()
    ENDED = enum.auto()


_S = BucketsState
TRANSITIONS: Mapping[BucketsState, Collection[BucketsState]] = {
    _S.NEW: (
        _S.LOADING,  # the dispatcher wants to read, and the record names buckets, or is being changed
        _S.READY,  # it wants to read, and there are none
        _S.ENDED,  # the dispatcher has lost its last consumer
    ),
    _S.LOADING: (_S.READY, _S.ENDED),  # all tables are read, and those that cannot be read are no longer named
    _S.READY: (_S.ENDED,),
    _S.ENDED: (),
}


class DelayBuckets:
    """See the module. `index` is the memory of the gate.

    `changed` is called when entries were read back, or loading has ended. `unreadable` has to disconnect the consumers.
    """

    def __init__(
        self,
        host: "PersistentTopic",
        cursor: Cursor,
        side: SideLedgers,
        index: DelayedEntries,
        *,
        slots: int,
        changed: Callable[[], None],
        unreadable: Callable[[], None],
    ) -> None:
        self.state = BucketsState.NEW
        self.count = 0
        """Entries that are in buckets and not in memory."""
        self.coverage = Coverage(cursor)
        self._host = host
        self._cursor = cursor
        self._side = side
        wanted = WeakMethod(self._wanted)  # no cycle: an ended index is freed with its dispatcher
        self._store = BucketStore(host.env, cursor.name, side, lambda: (ask := wanted()) is not None and ask())
        self._index = index
        self._slots = slots
        self._changed = changed
        self._unreadable = unreadable
        self._entries_min = host.settings.delayed_delivery_min_index_count_per_bucket
        self._buckets: dict[int, Bucket] = {}
        self._unread: list[tuple[int, int, Bucket]] = []
        """A heap of the buckets that are not being read from: the time from which they have entries."""
        self._reading = 0
        self._sealing = False
        self._seal_after_s = 0.0
        self._seal_backoff = Backoff(host.env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        self._drained: list[int] = []
        index.young_max = min(self._entries_min, YOUNG_MAX)

    # -- what the gate asks ----------------------------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether the gate has to ask before its dispatcher reads."""
        return self.count > 0 or self.coverage.open or self.state is not _S.READY

    @property
    def size_bytes(self) -> int:
        """The memory that this takes, roughly."""
        segments = sum([len(one.segments) for one in self._buckets.values()])
        return len(self._buckets) * BUCKET_BYTES + segments * SEGMENT_BYTES

    @property
    def next_ms(self) -> int | None:
        """When the next segment has to be in memory; None where none is waiting to be read."""
        return self._unread[0][0] - AHEAD_MS if self._unread else None

    def ready(self) -> bool:
        """Whether the dispatcher may read. If not, `changed` is called when it may."""
        if self.state is _S.NEW:
            if self._side.names or not self._side.settled:
                self._become(_S.LOADING)
                self._host.spawn(self._load(), TASK)
            else:
                self._become(_S.READY)
        return self.state is _S.READY

    def covered(self, positions: Sequence[Position]) -> list[Position]:
        """Those of the positions that a bucket has."""
        return self.coverage.among(positions) if self.coverage.open else []

    def skip(self, position: Position) -> tuple[Position, int] | None:
        """See `Coverage.skip`. None when nothing is to be skipped."""
        return self.coverage.skip(position) if self.coverage.open else None

    def fetch(self, due_ms: int, *, behind: bool) -> None:
        """Read back segments that begin up to that time, or soon after it. With `behind` memory has entries that are
        due already: no more are read then than memory may have."""
        if behind and len(self._index) >= 2 * self._entries_min:
            return
        while self._unread and self._unread[0][0] <= due_ms + AHEAD_MS and self._reading < READS_MAX:
            _, _, bucket = heappop(self._unread)
            if not bucket.dropped:
                self._reading += 1
                self._host.spawn(self._read_back(bucket), TASK)

    def grown(self) -> None:
        """Memory has more entries: perhaps they are to be stored."""
        if self._sealing or self.state is not _S.READY or asyncio.get_running_loop().time() < self._seal_after_s:
            return
        runs = self._index.unstored_runs()
        count = sum(map(len, runs))
        if count < self._entries_min:
            return
        if count < 4 * self._entries_min:
            soon_ms = self._host.env.clock.now_ms() + SOON_MS
            late = sum([len(run.times) - max(bisect_right(run.times, soon_ms), run.head) for run in runs])
            if 2 * late < count:
                return
        self._sealing = True
        self._host.spawn(self._seal(), TASK)

    def drop_acknowledged(self) -> None:
        """Remove buckets that the cursor has passed."""
        first = self._cursor.first_unacknowledged
        for bucket in [one for one in self._buckets.values() if one.last < first]:
            self.count -= bucket.left
            self._drop(bucket)

    def end(self) -> None:
        """The dispatcher has lost its last consumer: nothing here is wanted."""
        if self.state is not _S.ENDED:
            self._become(_S.ENDED)
        self.count = 0
        self._buckets, self._unread = {}, []
        self.coverage.clear()

    # -- loading -----------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        names = await self._side.settle()
        found: list[tuple[Bucket, Covered]] = []
        try:
            for first in range(0, len(names), READS_MAX):
                found += [one for one in await together(map(self._open, names[first : first + READS_MAX])) if one]
            opened = {bucket.ledger_id for bucket, _ in found}
            if given_up := [one for one in names if one not in opened]:
                await self._store.remove(given_up)
        except ENDS:
            return
        if self.state is not _S.LOADING:
            return
        for bucket, covered in found:
            self.coverage.add(covered)
            self._add(bucket)
        self._become(_S.READY)
        self.drop_acknowledged()
        self._changed()

    async def _open(self, ledger_id: int) -> tuple[Bucket, Covered] | None:
        """A bucket and what it covers; None for one that is given up."""
        try:
            return await self._store.open(ledger_id, self._slots)
        except ENDS:
            raise
        except MagnetarError as error:
            logger.warning(
                "subscription %s reads messages again instead of bucket %d: %s", self._cursor.name, ledger_id, error
            )
            return None

    def _add(self, bucket: Bucket) -> None:
        self._buckets[bucket.ledger_id] = bucket
        self.count += bucket.left
        self._go_on(bucket)

    def _go_on(self, bucket: Bucket) -> None:
        if bucket.empty:
            self._drop(bucket)
        else:
            heappush(self._unread, (bucket.first_ms, bucket.ledger_id, bucket))

    # -- reading back, removing --------------------------------------------------------------------------------------

    async def _read_back(self, bucket: Bucket) -> None:
        try:
            run = await self._store.read(bucket)
        except ENDS:
            return
        except MagnetarError as error:
            await self._give_up(bucket, error)
            return
        finally:
            self._reading -= 1
        if bucket.dropped or self.state is not _S.READY:
            return
        bucket.next_run(run)
        self.count -= len(run)
        self._index.add_run(run)
        self._go_on(bucket)
        self._changed()

    async def _give_up(self, bucket: Bucket, error: MagnetarError) -> None:
        if bucket.dropped or self.state is not _S.READY:
            return
        logger.error(
            "subscription %s disconnects its consumers and reads messages again, since bucket %d cannot be read: %s",
            self._cursor.name,
            bucket.ledger_id,
            error,
        )
        try:
            await self._store.remove([bucket.ledger_id])
        except ENDS:
            return
        if self.state is _S.READY:
            self._unreadable()

    def _drop(self, bucket: Bucket) -> None:
        """No more of it has to be read back."""
        bucket.dropped = True
        del self._buckets[bucket.ledger_id]
        self._drained.append(bucket.ledger_id)
        if len(self._drained) == 1:
            self._host.spawn(self._remove_drained(), TASK)

    async def _remove_drained(self) -> None:
        try:
            while self._drained and self._wanted():
                gone = list(self._drained)
                await self._store.remove(gone)
                del self._drained[: len(gone)]
        except ENDS:
            return

    # -- sealing -----------------------------------------------------------------------------------------------------

    async def _seal(self) -> None:
        try:
            await self._store_runs()
            self._seal_backoff.reset()
        except ENDS:
            return
        except MagnetarError as error:
            self._seal_after_s = asyncio.get_running_loop().time() + self._seal_backoff.next_delay_s()
            logger.warning(
                "subscription %s keeps %d delayed messages in memory for now, since they cannot be stored: %s",
                self._cursor.name,
                len(self._index),
                error,
            )
        finally:
            self._sealing = False
        self.grown()  # by what came meanwhile, if nothing comes any longer

    async def _store_runs(self) -> None:
        runs: list[tuple[TimedRun, int]] = []
        count = 0
        for run in self._index.unstored_runs():
            if count < SEAL_ENTRIES_MAX:
                runs.append((run, run.head))
                count += len(run)
        segment_max = self._host.settings.delayed_delivery_max_indexes_per_segment
        built = await self._host.env.offload.run(build, runs, segment_max)
        covered = await bridged(self._cursor, built.covered)
        await self._cursor.flush()  # what joined is acknowledged durably before the bucket is named
        if not self._wanted():
            return
        table = encode_table(BucketTable(self._slots, built.segments, covered))
        ledger_id = await self._store.add([*built.bodies, table])
        if ledger_id is None or not self._wanted():
            return
        bucket = Bucket(ledger_id, built.segments, last_of(covered), None)
        bucket.pass_over(sum([run.head - head for run, head in runs]))
        self._index.remove_runs([run for run, _ in runs])
        soon_ms = self._host.env.clock.now_ms() + 2 * AHEAD_MS
        while not bucket.empty and bucket.first_ms <= soon_ms:
            run = decode_segment(built.bodies[bucket.next], bucket.segments[bucket.next])
            bucket.next_run(run)
            self._index.add_run(run)
        self._add(bucket)
        self._changed()

    # -- inside ------------------------------------------------------------------------------------------------------

    def _become(self, state: BucketsState) -> None:
        check_transition(TRANSITIONS, f"buckets of {self._cursor.name}", self.state, state)
        self.state = state

    def _wanted(self) -> bool:
        return self.state in (_S.LOADING, _S.READY)
