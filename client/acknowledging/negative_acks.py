"""Entries that are asked for again after a delay: negatively acknowledged ones, and ones that came damaged.

An entry waits here once. A second negative acknowledgement of it changes nothing; an acknowledgement withdraws it.
"""

import asyncio
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from ...protocol.message_id import Position
from ..core.redelivery_backoff import RedeliveryBackoff

DAMAGED_DELAY_MIN_S = 1.0
"""A damaged entry is asked for again after `negative_ack_redelivery_delay_ms`, but not before this time,"""
DAMAGED_DELAY_MAX_S = 3600.0
"""after twice the time whenever it comes damaged again, and at least so often."""
DAMAGED_MAX = 1_000
"""Of so many damaged entries it is remembered how often they came."""


class NegativeAcks:
    """See the module. `ask` is called on the loop with the entries that are due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        delay_s: float,
        backoff: RedeliveryBackoff | None,
        flush: Callable[[], None],
        ask: Callable[[list[Position]], None],
    ) -> None:
        """`flush` is called before: an acknowledgement that waits may withdraw an entry."""
        self._loop = loop
        self._delay_s = delay_s
        self._backoff = backoff
        self._flush = flush
        self._ask = ask
        self._when: dict[Position, float] = {}
        """When to ask for entries again."""
        self._due: list[tuple[float, Position]] = []
        """The same as a heap, with some that were withdrawn."""
        self._timer: asyncio.TimerHandle | None = None
        self._damaged: dict[Position, int] = {}
        """How often entries came damaged."""

    def add(self, positions: Sequence[Position], redelivery_count: int) -> None:
        """The application could not handle a message of these entries."""
        delay_s = self._delay_s if self._backoff is None else self._backoff.next(redelivery_count) / 1000
        self._ask_in(positions, delay_s)

    def add_damaged(self, position: Position) -> None:
        """An entry came damaged: it may be whole the next time. Each time the pause is twice as long."""
        times = self._damaged.pop(position, 0)
        self._damaged[position] = times + 1
        if len(self._damaged) > DAMAGED_MAX:
            del self._damaged[next(iter(self._damaged))]
        delay_s = max(self._delay_s, DAMAGED_DELAY_MIN_S) * 2 ** min(times, 16)
        self._ask_in([position], min(delay_s, max(self._delay_s, DAMAGED_DELAY_MAX_S)))

    def came_whole(self, position: Position) -> None:
        """The entry could be opened."""
        self._damaged.pop(position, None)

    def withdraw(self, position: Position) -> None:
        """The entry was acknowledged."""
        self._when.pop(position, None)

    def withdraw_up_to(self, position: Position, kept: Callable[[Position], bool]) -> None:
        """Everything up to an entry was acknowledged, but for what is `kept`."""
        if self._when:
            self._when = {other: due for other, due in self._when.items() if other > position or kept(other)}

    def clear(self) -> None:
        """Everything comes again anyway."""
        self._when.clear()
        self._due.clear()

    def reset(self) -> None:
        """Forget everything."""
        self.clear()
        self._damaged.clear()

    def stop(self) -> None:
        """Ask for nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _ask_in(self, positions: Sequence[Position], delay_s: float) -> None:
        due = self._loop.time() + delay_s
        for position in positions:
            if position not in self._when:
                self._when[position] = due
                heappush(self._due, (due, position))
        self._set_timer()

    def _set_timer(self) -> None:
        """Have `_look` called when the first is due."""
        while self._due and self._when.get(self._due[0][1]) != self._due[0][0]:
            heappop(self._due)  # withdrawn
        timer = self._timer
        if not self._due or (timer is not None and timer.when() <= self._due[0][0]):
            return
        if timer is not None:
            timer.cancel()
        self._timer = self._loop.call_at(self._due[0][0], self._look)

    def _look(self) -> None:
        self._timer = None
        self._flush()
        now = self._loop.time()
        due: list[Position] = []
        while self._due and self._due[0][0] <= now:
            when, position = heappop(self._due)
            if self._when.get(position) == when:
                del self._when[position]
                due.append(position)
        if due:
            self._ask(due)
        self._set_timer()
