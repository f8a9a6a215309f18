"""Latencies of one interval, counted in buckets that grow with their values.

A bucket's number is made of a latency in microseconds: below 64 it is the latency, above it is the six highest bits and
how many bits follow. So a value is at most 1/64 away from the middle of its bucket. Bound: a latency of a year has
about 1,400 buckets below it, and only those that were hit are there.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

PERCENTILES = (0.5, 0.75, 0.95, 0.99, 0.999)

_BITS = 6


class Latencies:
    """See the module. Changed on the loop; any thread may read."""

    __slots__ = ("_buckets", "_max_s", "_whole")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._max_s = 0.0
        self._whole: tuple[dict[int, int], float] | None = None

    def add(self, latency_s: float) -> None:
        if latency_s > self._max_s:
            self._max_s = latency_s
        number = int(latency_s * 1_000_000)
        if number >= 64:
            shift = number.bit_length() - _BITS
            number = shift << _BITS | number >> shift
        buckets = self._buckets
        buckets[number] = buckets.get(number, 0) + 1

    def end_interval(self) -> None:
        """The interval has ended, and the next one begins."""
        self._whole = (self._buckets, self._max_s)
        self._buckets = {}
        self._max_s = 0.0

    def last(self) -> tuple[dict[int, int], float]:
        """Buckets and maximum (s) of the last whole interval, or of the first one so far."""
        whole = self._whole
        return whole if whole is not None else (self._buckets.copy(), self._max_s)


def percentiles_ms(parts: Iterable[tuple[dict[int, int], float]]) -> Sequence[float]:
    """The percentiles of several producers' latencies together, and last the maximum, in ms; 0.0 without any."""
    together: Counter[int] = Counter()
    max_s = 0.0
    for buckets, part_max_s in parts:
        together.update(buckets)
        max_s = max(max_s, part_max_s)
    ordered = sorted(together.items())
    total = together.total()
    values: list[float] = []
    place = seen = 0
    for percentile in PERCENTILES:
        while place < len(ordered) and seen + ordered[place][1] < percentile * total:
            seen += ordered[place][1]
            place += 1
        values.append(min(_middle_ms(ordered[place][0]), max_s * 1_000) if ordered else 0.0)
    return [*values, max_s * 1_000]


def _middle_ms(number: int) -> float:
    shift = number >> _BITS
    first = number if not shift else (number & (1 << _BITS) - 1) << shift
    return (first + (1 << shift) / 2) / 1_000
