"""A managed ledger in memory, with the real one's interface and hooks for failures, for tests of the broker's core."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from magnetar.protocol.ack_sets import words_to_bits
from magnetar.protocol.errors import EntryCorrupt, LedgerFenced, MagnetarError, SubscriptionNotFound
from magnetar.protocol.message_id import Position
from magnetar.runtime.environment import SystemClock
from magnetar.storage.managed.acknowledged import BatchIndexes
from magnetar.storage.managed.chain import LedgerChain
from magnetar.storage.managed.publish_times import Arrivals
from magnetar.storage.managed.trimming import Retention

Callback = Callable[[Position | None, BaseException | None], None]


class MemoryCursor:
    """Mark-delete position plus acknowledged positions behind it; every flush is counted."""

    side = None

    def __init__(self, ledger: "MemoryManagedLedger", first: Position, properties: Mapping[str, str]) -> None:
        self.properties = dict(properties)
        self.flushes = 0
        self.flush_allowed = asyncio.Event()
        self.flush_allowed.set()
        self.batches = BatchIndexes()
        self.idle_since_ms = self.idle_at_close_ms = 0
        self._ledger = ledger
        self._first = first
        self._beyond: set[Position] = set()
        self._on_passed: Callable[[], None] | None = None

    def when_passed(self, listener: Callable[[], None] | None) -> None:
        self._on_passed = listener

    @property
    def view(self) -> "MemoryCursor":
        """It answers itself."""
        return self

    @property
    def first_unacknowledged(self) -> Position:
        return self.next_unacknowledged(self._first)

    @property
    def mark_delete_position(self) -> Position:
        ledger_id, entry_id = self.first_unacknowledged
        return (ledger_id, entry_id - 1)

    @property
    def backlog_entries(self) -> int:
        return sum(1 for position, _ in self._ledger.entries if not self.is_acknowledged(position))

    @property
    def backlog_bytes(self) -> int:
        return sum(len(body) for position, body in self._ledger.entries if position > self.mark_delete_position)

    @property
    def acknowledged_ranges(self) -> int:
        return self.ranges_before((1 << 62, 0))

    def is_acknowledged(self, position: Position) -> bool:
        return position < self._first or position in self._beyond

    def unacknowledged_run(self, position: Position) -> int:
        """Shorter than it may be."""
        return int(position <= self._ledger.last_confirmed)

    def next_unacknowledged(self, position: Position) -> Position:
        position = max(position, self._first)
        while position in self._beyond:
            position = self._ledger.next_position(position)
        return position

    def ranges_before(self, position: Position) -> int:
        done = [
            self.is_acknowledged(one) for one, _ in self._ledger.entries if self.first_unacknowledged <= one < position
        ]
        return sum(now and not before for before, now in pairwise(done))

    def acknowledge(self, positions: list[Position]) -> None:
        self._beyond.update(position for position in positions if position >= self._first)
        for position in positions:
            self.batches.discard(position)

    def acknowledge_batch_index(self, position: Position, ack_set: Sequence[int], batch_size: int) -> None:
        if not self.is_acknowledged(position) and not self.batches.narrow(position, batch_size, words_to_bits(ack_set)):
            self.acknowledge([position])

    def acknowledge_cumulative(self, position: Position) -> None:
        before, self._first = self._first, max(self._first, self._ledger.next_position(position))
        if self._first > before and self._on_passed is not None:
            self._on_passed()

    async def flush(self) -> None:
        await self.flush_allowed.wait()
        self.flushes += 1

    async def reset(self, position: Position, part: object = None) -> None:
        """What is open of the batch at `position` is not kept."""
        await asyncio.sleep(0)
        self._first = position
        self._beyond.clear()


class MemoryTopicEpoch:
    """The topic epoch. `allowed` holds writes back, `fail` fails the next one after it was stored or not."""

    def __init__(self) -> None:
        self.stored = -1
        self.writes: list[int] = []
        self.allowed = asyncio.Event()
        self.allowed.set()
        self.fail: MagnetarError | None = None

    async def raise_to(self, epoch: int) -> None:
        self.writes.append(epoch)
        await self.allowed.wait()
        await asyncio.sleep(0)
        if self.fail is not None:
            raise self.fail
        self.stored = max(self.stored, epoch)


class NeverCompacted:
    """The compacted ledger of a topic that was never compacted."""

    current = None
    horizon: Position = (-1, -1)

    def __init__(self, ledger: "MemoryManagedLedger") -> None:
        self.read = ledger.read

    async def find_by_publish_time(self, publish_time_ms: int) -> None:
        await asyncio.sleep(0)


class MemoryTrimmer:
    """Trims nothing."""

    has_duties = False

    def __init__(self) -> None:
        self.retention: Retention | None = None

    def use_retention(self, retention: Retention) -> None:
        self.retention = retention

    async def is_pinned(self) -> bool:
        return False


class MemoryTermination:
    """The end of a topic that is not terminated."""

    end: Position | None = None


class MemoryManagedLedger:
    """Appends complete in the next turn of the loop, all of one turn as one batch; `hold` keeps them, `fail_next`
    fails one, `fence` is another owner taking over."""

    def __init__(self, ledger_id: int = 1) -> None:
        self.entries: list[tuple[Position, bytes]] = []
        self.cursors: dict[str, MemoryCursor] = {}
        self.on_appended: list[Callable[[], None]] = []
        self.on_fenced: list[Callable[[BaseException], None]] = []
        self.on_trimmed: list[Callable[[], None]] = []
        self.ledger_id = ledger_id
        self.arrivals = Arrivals(LedgerChain([]), SystemClock())
        self.created_ms = 1
        self.held = False
        self.closed = False
        self.reads = 0
        self.fail_deletes: MagnetarError | None = None
        self.fail_reads: list[MagnetarError] = []
        self.unreadable: set[Position] = set()
        self.asked: list[tuple[Position, int]] = []
        """What each read asked for: its first position, and how many entries at most."""
        self.publish_times: dict[Position, int] = {}
        self.topic_epoch = MemoryTopicEpoch()
        self.termination = MemoryTermination()
        self.copies: tuple[int, int, int] | None = None
        self.compacted = NeverCompacted(self)
        self.trimmer = MemoryTrimmer()
        self._pending: list[tuple[bytes, Callback]] = []
        self._failures: dict[int, BaseException] = {}
        self._appended = 0
        self._scheduled = False
        self._fenced: BaseException | None = None

    # -- appending -----------------------------------------------------------------------------------------------

    def append(self, body: bytes, callback: Callback) -> None:
        self._pending.append((body, callback))
        self._schedule()

    def use_copies(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        self.copies = (ensemble_size, write_quorum, ack_quorum)

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False
        self._schedule()

    def fail(self, index: int, error: BaseException) -> None:
        """The append number `index` (from 0) fails with `error`."""
        self._failures[index] = error

    def fence(self) -> None:
        self._fenced = LedgerFenced("another owner")
        for listener in list(self.on_fenced):
            listener(self._fenced)
        self._schedule()

    def _schedule(self) -> None:
        if not self.held and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._complete)

    def _complete(self) -> None:
        self._scheduled = False
        pending, self._pending = self._pending, []
        stored = False
        for body, callback in pending:
            error = self._fenced or self._failures.get(self._appended)
            self._appended += 1
            if error is not None:
                callback(None, error)
                continue
            position = (self.ledger_id, len(self.entries))
            self.entries.append((position, body))
            stored = True
            callback(position, None)
        if stored:
            for listener in list(self.on_appended):
                listener()

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def chain(self) -> "MemoryManagedLedger":
        """It knows its own end."""
        return self

    @property
    def last_confirmed(self) -> Position:
        return self.entries[-1][0] if self.entries else (-1, -1)

    @property
    def first_position(self) -> Position:
        return self.entries[0][0] if self.entries else (self.ledger_id, 0)

    def next_position(self, position: Position) -> Position:
        return (position[0], position[1] + 1) if position >= (0, 0) else (self.ledger_id, 0)

    async def read(
        self, first: Position, entries_max: int, bytes_max: int, upto: Position | None = None
    ) -> list[tuple[Position, bytes]]:
        await asyncio.sleep(0)
        self.reads += 1
        self.asked.append((first, entries_max))
        if self.fail_reads:
            raise self.fail_reads.pop(0)
        found: list[tuple[Position, bytes]] = []
        for position, body in self.entries[max(first[1], 0) :]:
            if len(found) >= entries_max or (upto is not None and position > upto) or (found and bytes_max <= 0):
                break
            if position in self.unreadable:
                if found:
                    break
                raise EntryCorrupt(f"no copy of {position} can be read")
            found.append((position, body))
            bytes_max -= len(body)
        return found

    async def find_by_publish_time(self, publish_time_ms: int) -> Position:
        for position, _ in self.entries:
            if self.publish_times.get(position, 0) >= publish_time_ms:
                return position
        return self.next_position(self.last_confirmed)

    # -- cursors and life ------------------------------------------------------------------------------------------

    @property
    def subscription_cursors(self) -> dict[str, MemoryCursor]:
        return self.cursors

    async def open_cursor(self, name: str, initial: Any, properties: Mapping[str, str] | None = None) -> MemoryCursor:
        await asyncio.sleep(0)
        self.cursors[name] = MemoryCursor(self, initial, properties or {})
        return self.cursors[name]

    def new_non_durable_cursor(self, position: Position) -> MemoryCursor:
        return MemoryCursor(self, position, {})

    async def delete_cursor(self, name: str) -> None:
        await asyncio.sleep(0)
        if self.fail_deletes is not None:
            raise self.fail_deletes
        if self.cursors.pop(name, None) is None:
            raise SubscriptionNotFound(name)

    async def trim(self) -> None:
        await asyncio.sleep(0)

    async def close(self, *, trim: bool = False) -> None:
        await asyncio.sleep(0)
        self.closed = True

    @property
    def size_bytes(self) -> int:
        return sum(len(body) for _, body in self.entries)
