"""How many workers a backlog needs. Pure: no clock, no Ray.

A pool is as large as its backlog needs to be worked off within `WORK_OFF_S`. So a steady stream settles at a backlog of
about that time. The rule needs to know how long a worker takes for an entry. Before a call has ended, it takes each
entry for a long one.

- It grows to at most `GROWTH_FACTOR` times the workers at one look, because the next look knows more.
- It shrinks to the largest size that the last `SHRINK_LOOKS` looks wanted, because to start a worker again costs time.
"""

import math
from collections import deque
from typing import NamedTuple

from ..protocol.errors import InvalidConfiguration

LOOK_INTERVAL_S = 2.0
"""Between two looks at the backlog, each of which is a request to the admin HTTP."""
WORK_OFF_S = 5.0
GROWTH_FACTOR = 2
SHRINK_LOOKS = 4


class PoolBounds(NamedTuple):
    """The smallest and the largest number of workers."""

    minimum: int
    maximum: int

    @property
    def fixed(self) -> bool:
        """Whether the backlog changes nothing."""
        return self.minimum == self.maximum

    @classmethod
    def of(cls, concurrency: object) -> "PoolBounds":
        """From what a user passes: a number, or a pair. Raises InvalidConfiguration."""
        match (concurrency, concurrency) if isinstance(concurrency, int) else concurrency:
            case tuple((int() as minimum, int() as maximum)):
                whole = not (isinstance(minimum, bool) or isinstance(maximum, bool))
                if whole and 0 <= minimum <= maximum and maximum >= 1:
                    return cls(minimum, maximum)
            case _:
                pass
        raise InvalidConfiguration(
            f"concurrency is {concurrency!r}: pass a number of workers from 1, or (min, max) with 0 <= min <= max and "
            "max from 1"
        )


def wanted_workers(backlog: int, workers: int, bounds: PoolBounds, entry_s: float | None) -> int:
    """How many workers to have now.

    `backlog` counts the entries that are not acknowledged, also those that workers hold. `workers` counts those that
    run or start. `entry_s` is the time that a worker takes for an entry; None = not known.
    """
    needed = backlog if entry_s is None else min(backlog, math.ceil(backlog * entry_s / WORK_OFF_S))
    if backlog:
        needed = min(max(needed, 1), max(1, workers * GROWTH_FACTOR))
    return min(max(needed, bounds.minimum), bounds.maximum)


class PoolSizing:
    """The rule with what it remembers: how long an entry took when last known, and what the last looks wanted."""

    def __init__(self, bounds: PoolBounds) -> None:
        self._bounds = bounds
        self._looks: deque[int] = deque(maxlen=SHRINK_LOOKS)
        self._entry_s: float | None = None
        self._busy_s = 0.0
        self._entries = 0.0

    def look(self, backlog: int, workers: int, busy_s: float, entries: float) -> int:
        """The size after a look. `busy_s` is how long all workers have worked until now, `entries` at how many."""
        if entries > self._entries:
            self._entry_s = max(0.0, busy_s - self._busy_s) / (entries - self._entries)
            self._busy_s, self._entries = busy_s, entries
        self._looks.append(wanted_workers(backlog, workers, self._bounds, self._entry_s))
        largest = max(self._looks) if len(self._looks) == SHRINK_LOOKS else max(workers, *self._looks)
        return min(max(largest, self._bounds.minimum), self._bounds.maximum)
