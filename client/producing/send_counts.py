"""What one partition's producer has sent: counted once per entry."""

from typing import NamedTuple

from ..statistics.intervals import Counts, Interval
from ..statistics.latencies import Latencies


class SendFigures(NamedTuple):
    """Of one partition at one moment. Counts are messages, bytes, failures, receipts."""

    total: Counts
    current: Counts
    last: Counts
    """Of the last whole interval, or of the first one so far."""
    last_s: float
    latencies: tuple[dict[int, int], float]
    pending: int


class SendCounts:
    """See the module. Changed on the loop; any thread may read."""

    __slots__ = ("_interval", "_latencies", "bytes", "failed", "messages", "receipts")

    def __init__(self, now_s: float) -> None:
        self.messages = 0
        self.bytes = 0
        self.failed = 0
        self.receipts = 0
        self._latencies = Latencies()
        self._interval = Interval(now_s)

    def sent(self, messages: int, size_bytes: int) -> None:
        """The messages of an entry, or of one message's chunks, are on their way."""
        self.messages += messages
        self.bytes += size_bytes

    def receipt(self, latency_s: float) -> None:
        self.receipts += 1
        self._latencies.add(latency_s)

    def end_interval(self, now_s: float, refused: int) -> None:
        """The interval has ended. `refused` counts what the outbox did not accept."""
        self._latencies.end_interval()
        self._interval.end(now_s, self._counts(refused))

    def figures(self, now_s: float, refused: int, pending: int) -> SendFigures:
        counts = self._counts(refused)
        last, last_s = self._interval.last(now_s, counts)
        return SendFigures(counts, self._interval.since(counts), last, last_s, self._latencies.last(), pending)

    def _counts(self, refused: int) -> Counts:
        return (self.messages, self.bytes, self.failed + refused, self.receipts)
