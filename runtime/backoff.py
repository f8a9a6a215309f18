"""Exponential back-off with jitter and an end, for every retry of the project."""

from .environment import Chance


class Backoff:
    """Delays that double from `initial_s` up to `maximum_s`, each shortened by a random share of up to a fifth.

    The jitter keeps a thousand clients that lost the same broker from coming back in step. With `limit_s` the sum of
    the delays is bounded: `next_delay_s` then answers None when it is used up, and the caller gives up.
    """

    def __init__(self, random: Chance, initial_s: float, maximum_s: float, limit_s: float | None = None) -> None:
        if not 0 < initial_s <= maximum_s:
            raise ValueError(f"back-off needs 0 < initial ({initial_s}) <= maximum ({maximum_s})")
        self._random = random
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._limit_s = limit_s
        self._delay_s = initial_s
        self._total_s = 0.0

    def next_delay_s(self) -> float | None:
        """Seconds to wait before the next try, or None when the limit is used up."""
        delay = self._delay_s * self._random.uniform(0.8, 1.0)
        if self._limit_s is not None:
            if self._total_s >= self._limit_s:
                return None
            delay = min(delay, self._limit_s - self._total_s)
        self._total_s += delay
        self._delay_s = min(self._delay_s * 2, self._maximum_s)
        return delay

    def reset(self) -> None:
        """Start anew after a success."""
        self._delay_s = self._initial_s
        self._total_s = 0.0
