"""How much may pass at a rate: token buckets for messages and bytes.

A bucket fills at its rate, up to what flows in within one period. It is full at first. What passes is taken afterwards,
so the level may fall below zero: that much is owed. Nothing may pass while the level is not above zero. So a thing that
is larger than the bucket passes, and what follows it waits longer. Over time no more passes than the rate says.

No clock, no timer, no waiting here. Callers say what time it is.
"""

from math import inf

REST_S = 0.01
"""Who has to wait, waits for at least what flows in within this time, or for one: else timers would cost too much."""


class TokenBucket:
    """One bucket. See the module."""

    __slots__ = ("_capacity", "_level", "_rate", "_since_s")

    def __init__(self, per_period: float, period_s: float, now_s: float) -> None:
        self._rate = per_period / period_s
        self._capacity = self._level = per_period
        self._since_s = now_s

    def take(self, count: int) -> None:
        """So much has passed."""
        self._level -= count

    def level(self, now_s: float, more: float = 0.0) -> float:
        """What may pass now. `more` adds to the rate, and to what fits, since the last look."""
        if now_s > self._since_s:
            self._level = min(self._capacity + more, self._level + (self._rate + more) * (now_s - self._since_s))
            self._since_s = now_s
        return self._level

    def wait_s(self, more: float = 0.0) -> float:
        """In how many seconds something may pass, as of the last look."""
        rate = self._rate + more
        return (max(rate * REST_S, 1.0) - self._level) / rate


class RateLimit:
    """A bucket for messages and one for bytes. A rate that is not above zero is no limit."""

    __slots__ = ("_bytes", "_messages")

    def __init__(self, messages: float, size_bytes: float, period_s: float, now_s: float) -> None:
        self._messages = TokenBucket(messages, period_s, now_s) if messages > 0 else None
        self._bytes = TokenBucket(size_bytes, period_s, now_s) if size_bytes > 0 else None

    def take(self, messages: int, size_bytes: int) -> None:
        """So much has passed."""
        if self._messages is not None:
            self._messages.take(messages)
        if self._bytes is not None:
            self._bytes.take(size_bytes)

    def allowance(self, now_s: float, more: tuple[float, float] = (0.0, 0.0)) -> tuple[float, float]:
        """How many messages and bytes may pass now. `more` adds to the rates."""
        messages = self._messages.level(now_s, more[0]) if self._messages is not None else inf
        return messages, self._bytes.level(now_s, more[1]) if self._bytes is not None else inf

    def wait_s(self, now_s: float, more: tuple[float, float] = (0.0, 0.0)) -> float:
        """In how many seconds something may pass; 0 for now."""
        found = 0.0
        for bucket, extra in ((self._messages, more[0]), (self._bytes, more[1])):
            if bucket is not None and bucket.level(now_s, extra) <= 0:
                found = max(found, bucket.wait_s(extra))
        return found
