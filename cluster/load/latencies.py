"""Latencies in HDR histograms: of the last interval, and of the whole run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Protocol, cast

from ...protocol.errors import ClusterError

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


class Histogram(Protocol):
    """What is used of the library, which has no types."""

    def record_value(self, value: int, count: int) -> bool: ...
    def add(self, other_hist: "Histogram") -> None: ...
    def get_total_count(self) -> int: ...
    def get_mean_value(self) -> float: ...
    def get_max_value(self) -> int: ...
    def get_percentile_to_value_dict(self, percentile_list: Sequence[float]) -> dict[float, int]: ...
    def set_start_time_stamp(self, time_stamp_msec: float) -> None: ...
    def set_end_time_stamp(self, time_stamp_msec: float) -> None: ...


class LogWriter(Protocol):
    """The same of its log."""

    def output_log_format_version(self) -> None: ...
    def output_comment(self, comment: str) -> None: ...
    def output_base_time(self, base_time_msec: float) -> None: ...
    def output_legend(self) -> None: ...
    def output_interval_histogram(self, histogram: Histogram, *, max_value_unit_ratio: float) -> None: ...


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


def _histogram() -> Histogram:
    try:
        from hdrh.histogram import HdrHistogram  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise ClusterError("magnetar perf needs hdrhistogram: run `pip install hdrhistogram`") from error
    return cast("Callable[[int, int, int], Histogram]", HdrHistogram)(1, LATENCY_MAX_US, SIGNIFICANT_DIGITS)


def _log_writer(file: IO[str] | None, started_s: float) -> LogWriter | None:
    if file is None:
        return None
    from hdrh.log import HistogramLogWriter  # pyright: ignore[reportMissingTypeStubs]

    writer = cast("Callable[[IO[str]], LogWriter]", HistogramLogWriter)(file)
    writer.output_log_format_version()
    # The library's own method fails for a start time.
    writer.output_comment(f"[StartTime: {started_s:f} (seconds since epoch)]")
    writer.output_base_time(started_s * 1000)
    writer.output_legend()
    return writer


def _latencies(histogram: Histogram) -> LatencyFigures:
    count = histogram.get_total_count()
    if not count:
        return LatencyFigures(0, 0.0, dict.fromkeys(QUANTILES, 0.0), 0.0)
    found = histogram.get_percentile_to_value_dict(list(QUANTILES.values()))
    quantiles = {name: found[percent] / 1000 for name, percent in QUANTILES.items()}
    return LatencyFigures(count, histogram.get_mean_value() / 1000, quantiles, histogram.get_max_value() / 1000)
