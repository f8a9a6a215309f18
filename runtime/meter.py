"""Figures for statistics: counters with rates, and times as text. A rate is computed when it is read, never by a timer,
so it costs nothing in between.
"""

from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime

WINDOW_MIN_S = 1.0
WINDOW_MAX_S = 60.0
RECENT_TIMES_MAX = 1_000


class Meter:
    """Messages, bytes and entries since creation, and their rates over the last window.

    The window starts at a marker that moves when it is older than a minute. If the rate is read often, it describes
    between the last second and the last two minutes. The first read describes the time since creation. Times are the
    loop's.
    """

    __slots__ = ("_began_s", "_marks", "bytes", "entries", "messages")

    def __init__(self, now_s: float) -> None:
        self.messages = 0
        self.bytes = 0
        self.entries = 0
        self._began_s = now_s
        self._marks: list[tuple[float, int, int]] | None = None  # (time, messages, bytes), oldest first, at most two

    def add(self, messages: int, size_bytes: int, entries: int = 1) -> None:
        self.messages += messages
        self.bytes += size_bytes
        self.entries += entries

    @property
    def counts(self) -> list[int]:
        """Messages, bytes and entries."""
        return [self.messages, self.bytes, self.entries]

    def resume(self, counts: Sequence[int]) -> None:
        """Go on from `counts` of an earlier meter. Rates begin again."""
        self.messages, self.bytes, self.entries = counts
        self._marks = [(self._began_s, self.messages, self.bytes)]

    def message_rate(self, now_s: float) -> float:
        """Messages per second."""
        since, messages, _ = self._window(now_s)
        return (self.messages - messages) / since

    def byte_rate(self, now_s: float) -> float:
        """Bytes per second."""
        since, _, size = self._window(now_s)
        return (self.bytes - size) / since

    def _window(self, now_s: float) -> tuple[float, int, int]:
        """Seconds since the marker, and the counters as they were at it."""
        if self._marks is None:  # most meters are never read
            self._marks = [(self._began_s, 0, 0)]
        marks = self._marks
        if now_s - marks[-1][0] >= WINDOW_MAX_S:
            marks.append((now_s, self.messages, self.bytes))
            del marks[:-2]
        time_s, messages, size = marks[0]
        return max(now_s - time_s, WINDOW_MIN_S), messages, size


class RecentTimes:
    """How long the last things of a kind took: `RECENT_TIMES_MAX` of them, of the last minute."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=RECENT_TIMES_MAX)

    def add(self, now_s: float, time_s: float) -> None:
        """Something has ended, and took so long."""
        self._times.append((now_s, time_s))

    def quantiles(self, now_s: float, *wanted: float) -> list[float]:
        """The time in seconds at each quantile, from 0 to 1, which is the longest time; 0 for each without any."""
        while self._times and now_s - self._times[0][0] > WINDOW_MAX_S:
            self._times.popleft()
        times = sorted(time_s for _, time_s in self._times)
        if not times:
            return [0.0] * len(wanted)
        return [times[min(int(one * len(times)), len(times) - 1)] for one in wanted]


def time_text(time_ms: int) -> str:
    """Milliseconds since the epoch as Pulsar writes them: ISO 8601 in UTC. As in Pulsar, 0 (never) is the epoch."""
    digits = "milliseconds" if time_ms % 1000 else "seconds"
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec=digits).replace("+00:00", "Z")
