"""The acknowledgement time-out: entries that the application was given and did not acknowledge in time come again.

An entry is tracked from the moment when the application comes to the first of its messages. It leaves the tracker when
all its messages are acknowledged, when one is negatively acknowledged, or when its time is over. Then it is asked for
again, and tracked again when the application comes to it again. A back-off makes its time longer, by the delay that
belongs to its redelivery count.

`UnackedTracker` is pure: no clock and no timer. Entries are kept in buckets, one for each tick, so that a look costs
what is due. Invariant: an entry is in one bucket, and `_ticks` says in which. Bound: `TRACKED_ENTRIES_MAX`. Beyond it
the bucket that is due first is due at once, so that nothing is forgotten.
"""

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil

from sortedcontainers import SortedDict

from ...protocol.message_id import Position
from ..core.redelivery_backoff import RedeliveryBackoff

TRACKED_ENTRIES_MAX = 100_000


class UnackedTracker:
    """See the module. Times are in seconds of one clock."""

    def __init__(self, timeout_s: float, tick_s: float, backoff: RedeliveryBackoff | None = None) -> None:
        self._timeout_s = timeout_s
        self._tick_s = min(tick_s, timeout_s)
        self._backoff = backoff
        self._ticks: SortedDict[Position, int] = SortedDict()
        self._buckets: dict[int, dict[Position, None]] = {}
        self._order: list[int] = []
        """A heap of the ticks that have a bucket."""

    def __len__(self) -> int:
        return len(self._ticks)

    def track(self, position: Position, redelivery_count: int, now_s: float) -> None:
        """The application comes to an entry. One that is tracked already keeps its time."""
        if position in self._ticks:
            return
        delay_s = self._timeout_s
        if self._backoff is not None:
            delay_s += self._backoff.next(redelivery_count) / 1000
        tick = ceil((now_s + delay_s) / self._tick_s)
        self._ticks[position] = tick
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heappush(self._order, tick)
        bucket[position] = None

    def forget(self, position: Position) -> None:
        """The entry is acknowledged, or negatively acknowledged."""
        tick = self._ticks.pop(position, None)
        if tick is not None:
            del self._buckets[tick][position]

    def forget_up_to(self, position: Position) -> None:
        """Everything up to an entry is acknowledged. Costs what it forgets."""
        while self._ticks and (first := self._ticks.peekitem(0)[0]) <= position:
            self.forget(first)

    def clear(self) -> None:
        """Everything comes again anyway."""
        self._ticks.clear()
        self._buckets.clear()
        self._order.clear()

    @property
    def next_s(self) -> float | None:
        """When the next entries are due; None if nothing is tracked."""
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heappop(self._order)]
        if not self._order:
            return None
        return 0.0 if len(self) > TRACKED_ENTRIES_MAX else self._order[0] * self._tick_s

    def take_due(self, now_s: float) -> list[Position]:
        """The entries that are due, in their order; they are tracked no longer."""
        due: list[Position] = []
        while (next_s := self.next_s) is not None and next_s <= now_s:
            bucket = self._buckets.pop(heappop(self._order))
            for position in bucket:
                del self._ticks[position]
            due += bucket
        return sorted(due)


class AckTimeouts:
    """A tracker on a loop: `ask` is called with the entries that are due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tracker: UnackedTracker,
        flush: Callable[[], None],
        ask: Callable[[list[Position]], None],
    ) -> None:
        """`flush` is called before: an acknowledgement that waits may concern an entry that is due."""
        self.tracker = tracker
        self._loop = loop
        self._flush = flush
        self._ask = ask
        self._timer: asyncio.TimerHandle | None = None

    def track(self, position: Position, redelivery_count: int) -> None:
        """The application comes to an entry."""
        self.tracker.track(position, redelivery_count, self._loop.time())
        self._set_timer()

    def stop(self) -> None:
        """Ask for nothing more."""
        self.tracker.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        next_s = self.tracker.next_s
        if next_s is None or (self._timer is not None and self._timer.when() <= next_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(next_s, self._look)

    def _look(self) -> None:
        self._timer = None
        self._flush()
        due = self.tracker.take_due(self._loop.time())
        if due:
            self._ask(due)
        self._set_timer()
