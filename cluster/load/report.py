"""What a measured run shows: a line for each interval, a line for the whole run, and what a plot needs.

Latencies are kept in HDR histograms, one of the last interval and one of the whole run.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from ...protocol.errors import ClusterError
from ..terminal.pacing import beside

if TYPE_CHECKING:
    from hdrh.histogram import HdrHistogram
    from hdrh.log import HistogramLogWriter

LATENCY_MAX_US = 120_000_000
"""Longer latencies count as this one."""
SIGNIFICANT_DIGITS = 3
"""More make histograms so large that a report would stop the client for a tenth of a second."""
QUANTILES = {"med": 50.0, "95pct": 95.0, "99pct": 99.0, "99.9pct": 99.9, "99.99pct": 99.99}
CURVE = (*range(0, 100, 2), 99, 99.5, 99.9, 99.95, 99.99, 100)


@dataclass(frozen=True)
class LatencyFigures:
    """What a histogram says, in milliseconds. All are 0 when it is empty."""

    count: int
    mean_ms: float
    quantiles_ms: dict[str, float]
    max_ms: float

    @property
    def text(self) -> str:
        """As in the lines of `pulsar-perf`."""
        if not self.count:
            return "Latency: none recorded"
        quantiles = "".join(f" - {name}: {value:.3f}" for name, value in self.quantiles_ms.items())
        return f"Latency: mean: {self.mean_ms:.3f} ms{quantiles} - Max: {self.max_ms:.3f}"


class LatencyRecorder:
    """Records latencies. `log` gets each interval in the form that tools of HDR histograms read, in microseconds.

    Raises ClusterError without the library.
    """

    def __init__(self, log: IO[str] | None, started_s: float) -> None:
        self._interval = _histogram()
        self._whole = _histogram()
        self._started_s = started_s
        self._since_s = 0.0
        self._log = _log_writer(log, started_s)

    def record(self, latency_s: float, count: int) -> None:
        """So many messages had this latency."""
        self._interval.record_value(min(max(int(latency_s * 1e6), 1), LATENCY_MAX_US), count)

    def interval(self, elapsed_s: float) -> LatencyFigures:
        """What was recorded since the last call, which is now so many seconds after the start."""
        ended, self._interval = self._interval, _histogram()
        if self._log is not None:
            ended.set_start_time_stamp((self._started_s + self._since_s) * 1000)
            ended.set_end_time_stamp((self._started_s + elapsed_s) * 1000)
            self._log.output_interval_histogram(ended, max_value_unit_ratio=1)
        self._since_s = elapsed_s
        self._whole.add(ended)
        return _latencies(ended)

    def whole(self) -> LatencyFigures:
        """What was recorded in all intervals that have ended."""
        return _latencies(self._whole)

    def curve(self) -> list[tuple[float, float]]:
        """Percentile and milliseconds, for a plot of the whole run."""
        found = self._whole.get_percentile_to_value_dict([float(percent) for percent in CURVE])
        return [(percent, value / 1000) for percent, value in found.items()]


def _histogram() -> "HdrHistogram":
    try:
        from hdrh.histogram import HdrHistogram
    except ImportError as error:
        raise ClusterError("magnetar perf needs hdrhistogram: run `pip install hdrhistogram`") from error
    return HdrHistogram(1, LATENCY_MAX_US, SIGNIFICANT_DIGITS)


def _log_writer(file: IO[str] | None, started_s: float) -> "HistogramLogWriter | None":
    if file is None:
        return None
    from hdrh.log import HistogramLogWriter

    writer = HistogramLogWriter(file)
    writer.output_log_format_version()
    # The library's own method fails for a start time.
    writer.output_comment(f"[StartTime: {started_s:f} (seconds since epoch)]")
    writer.output_base_time(started_s * 1000)
    writer.output_legend()
    return writer


def _latencies(histogram: "HdrHistogram") -> LatencyFigures:
    count = histogram.get_total_count()
    if not count:
        return LatencyFigures(0, 0.0, dict.fromkeys(QUANTILES, 0.0), 0.0)
    found = histogram.get_percentile_to_value_dict(list(QUANTILES.values()))
    quantiles = {name: found[percent] / 1000 for name, percent in QUANTILES.items()}
    return LatencyFigures(count, histogram.get_mean_value() / 1000, quantiles, histogram.get_max_value() / 1000)


MEGABIT_BYTES = 1e6 / 8


@dataclass(frozen=True)
class LoadInterval:
    end_s: float
    messages_per_s: float
    failures_per_s: float
    megabits_per_s: float
    latencies: LatencyFigures


class Report:
    """Counts messages and latencies of all producers or consumers of a run."""

    def __init__(self, word: str, interval_s: float, warmup_s: float = 0.0, log: IO[str] | None = None) -> None:
        self.word = word
        """`produced` or `received`."""
        self.messages = 0
        self.size_bytes = 0
        self.failures = 0
        self.intervals: list[LoadInterval] = []
        self.latencies = LatencyRecorder(log, time.time())
        self._interval_s = interval_s
        self._warmup_s = warmup_s
        self._warm_at_s = time.monotonic() + warmup_s
        self._begin_s = time.monotonic()
        self._seen = (0, 0, 0)
        self._seen_s = self._begin_s

    def add(self, messages: int, size_bytes: int) -> None:
        """So many more messages, of this size together."""
        self.messages += messages
        self.size_bytes += size_bytes

    def record(self, latency_s: float, messages: int) -> None:
        """So many messages had this latency; left out while the run warms up."""
        if time.monotonic() >= self._warm_at_s:
            self.latencies.record(latency_s, messages)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin_s

    @asynccontextmanager
    async def live(self) -> AsyncGenerator[None]:
        """Print a line for each interval while the block runs, and one for the whole run at its end. The run begins
        with the block."""
        self._begin_s = self._seen_s = time.monotonic()
        self._warm_at_s = self._begin_s + self._warmup_s
        try:
            async with beside(self._print_intervals()):
                yield
        finally:
            self._end_interval()
            self._print_whole()

    async def _print_intervals(self) -> None:
        turn = 0
        while True:
            turn += 1
            await asyncio.sleep(max(0.0, turn * self._interval_s - self.elapsed_s))
            print(self._end_interval(), flush=True)

    def _end_interval(self) -> str:
        """Close the interval; returns its line."""
        now_s = time.monotonic()
        seconds = max(now_s - self._seen_s, 1e-9)
        messages, size_bytes, failures = self._seen
        self._seen, self._seen_s = (self.messages, self.size_bytes, self.failures), now_s
        latencies = self.latencies.interval(now_s - self._begin_s)
        found = LoadInterval(
            now_s - self._begin_s,
            (self.messages - messages) / seconds,
            (self.failures - failures) / seconds,
            (self.size_bytes - size_bytes) / seconds / MEGABIT_BYTES,
            latencies,
        )
        self.intervals.append(found)
        failed = f" --- failure {found.failures_per_s:.3f} msg/s" if self.word == "produced" else ""
        return (
            f"Throughput {self.word}: {self.messages} msg --- {found.messages_per_s:.3f} msg/s --- "
            f"{found.megabits_per_s:.3f} Mbit/s{failed} --- {latencies.text}"
        )

    def _print_whole(self) -> None:
        seconds = max(self._seen_s - self._begin_s, 1e-9)
        did = "sent" if self.word == "produced" else "received"
        megabits = self.size_bytes / seconds / MEGABIT_BYTES
        rate = f"{self.messages / seconds:.3f} msg/s --- {megabits:.3f} Mbit/s"
        print(f"Aggregated throughput stats --- {self.messages} records {did} --- {rate}")
        print(f"Aggregated latency stats --- {self.latencies.whole().text}", flush=True)
