"""Delays between tries: they grow exponentially and carry jitter. `retry` has the loops that use them."""

from .environment import Chance


class Backoff:
    """Delays that double from `initial_s` up to `maximum_s`, each shortened by a random share of up to a fifth.

    The jitter keeps a thousand clients that lost the same broker from coming back in step. There is always a next
    delay: the caller, or time, ends the tries. `LimitedBackoff` ends by itself.
    """

    def __init__(self, random: Chance, initial_s: float, maximum_s: float) -> None:
        if not 0 < initial_s <= maximum_s:
            raise ValueError(f"a back-off needs 0 < initial ({initial_s}) <= maximum ({maximum_s})")
        self._random = random
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._delay_s = initial_s

    def next_delay_s(self) -> float:
        """Seconds to wait before the next try."""
        delay_s = self._delay_s * self._random.uniform(0.8, 1.0)
        self._delay_s = min(self._delay_s * 2, self._maximum_s)
        return delay_s

    def reset(self) -> None:
        """The next delay is the first one again: call this after a success."""
        self._delay_s = self._initial_s


class LimitedBackoff:
    """The delays of a `Backoff` whose sum is at most `limit_s`: then the caller gives up."""

    def __init__(self, random: Chance, initial_s: float, maximum_s: float, limit_s: float) -> None:
        self._backoff = Backoff(random, initial_s, maximum_s)
        self._limit_s = limit_s
        self._total_s = 0.0

    def next_delay_s(self) -> float | None:
        """Seconds to wait before the next try, or None when the limit is used up."""
        delay_s = self._backoff.next_delay_s()
        if self._total_s >= self._limit_s:
            return None
        delay_s = min(delay_s, self._limit_s - self._total_s)
        self._total_s += delay_s
        return delay_s

    def reset(self) -> None:
        """The next delay is the first one again, and the whole limit is left."""
        self._backoff.reset()
        self._total_s = 0.0
