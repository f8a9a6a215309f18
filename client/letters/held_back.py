"""Retry copies that came before they are due.

A copy carries the time from which it may be delivered. A broker with delayed delivery keeps it until then. One without
sends it at once, so the consumer keeps it here. It is not acknowledged meanwhile: when this process dies, another
consumer gets it. It counts as queued, so `receiver_queue_size` bounds how many are held. While that many wait, the
copies behind them wait, too.

The wall clock decides what is due. It is asked again when a timer ends, so a clock that was set back delays, and does
not lose.
"""

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from ..consuming.message import ReceivedEntry
from ..core.context import Core

TIMER_MAX_S = 3600.0
"""The clock is asked at least so often."""


class HeldBack:
    """See the module. For the loop's thread."""

    def __init__(self, core: Core, release: Callable[[ReceivedEntry], None]) -> None:
        self._core = core
        self._release = release
        self._held: list[tuple[int, int, ReceivedEntry]] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def takes(self, entry: ReceivedEntry) -> bool:
        """Keep an entry if it is not due."""
        due_ms = entry.metadata.deliver_at_time
        if due_ms <= self._core.environment.clock.now_ms():
            return False
        self._count += 1
        heappush(self._held, (due_ms, self._count, entry))
        if self._held[0][1] == self._count:
            self._set_timer()
        return True

    def queued(self, source: object) -> int:
        """How many messages of `source` are held."""
        return sum(entry.permits for _, _, entry in self._held if entry.source is source)

    def discard(self, source: object) -> int:
        """Drop what is held of `source`: it comes again. Returns how many messages that were."""
        dropped = self.queued(source)
        if dropped:
            self._held = [held for held in self._held if held[2].source is not source]
            heapify(self._held)
        return dropped

    def close(self) -> None:
        """Release nothing more."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._held:
            left_s = (self._held[0][0] - self._core.environment.clock.now_ms()) / 1000
            self._timer = self._core.loop.call_later(min(max(left_s, 0.001), TIMER_MAX_S), self._due)

    def _due(self) -> None:
        now_ms = self._core.environment.clock.now_ms()
        while self._held and self._held[0][0] <= now_ms:
            self._release(heappop(self._held)[2])
        self._set_timer()
