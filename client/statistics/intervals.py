"""The interval that counts are of: what was counted when it began, and what was counted in the last whole one.

The loop ends an interval. Any thread may read meanwhile: what belongs together is replaced in one step.
"""

Counts = tuple[int, ...]


class Interval:
    """See the module. Counts only grow, and always come in the same order."""

    __slots__ = ("_state",)

    def __init__(self, now_s: float) -> None:
        self._state: tuple[float, Counts, Counts, float] = (now_s, (), (), 0.0)
        """When the interval began, the counts then, the differences of the last whole interval, and its length."""

    def end(self, now_s: float, counts: Counts) -> None:
        """The interval has ended with these counts, and the next one begins."""
        began_s, *_ = self._state
        self._state = (now_s, counts, self.since(counts), now_s - began_s)

    def since(self, counts: Counts) -> Counts:
        """How much of the counts belongs to the current interval."""
        before = self._state[1]
        return _difference(counts, before) if before else counts

    def last(self, now_s: float, counts: Counts) -> tuple[Counts, float]:
        """What was counted in the last whole interval, or so far in the first one, and in how many seconds."""
        began_s, before, whole, length_s = self._state
        if not before:
            return counts, now_s - began_s
        return whole, length_s


def _difference(counts: Counts, before: Counts) -> Counts:
    return tuple([now - then for now, then in zip(counts, before, strict=True)])


def rate(count: int, seconds: float) -> float:
    """Per second; 0.0 when no time has passed."""
    return count / seconds if seconds > 0 else 0.0
