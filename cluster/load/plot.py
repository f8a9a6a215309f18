"""A measured run as a picture: its rate and latencies over time, and the latencies of the whole run."""

import math
from collections.abc import Sequence
from pathlib import Path

from ...protocol.errors import ClusterError
from .report import LoadInterval, Report

DOTS_PER_INCH = 120


def check_plotting() -> None:
    """Raises ClusterError without matplotlib, so that a run does not fail at its end."""
    try:
        import matplotlib
    except ImportError as error:
        raise ClusterError("--plot-file needs matplotlib: run `pip install matplotlib`") from error
    matplotlib.use("Agg")


def plot(report: Report, path: Path) -> None:
    """Write a PNG, whatever the ending of `path`. Raises ClusterError, OSError."""
    check_plotting()
    from matplotlib import pyplot

    figure, (rate, time, whole) = pyplot.subplots(3, 1, figsize=(9, 10), layout="constrained")
    ends_s = [one.end_s for one in report.intervals]
    rate.plot(ends_s, [one.messages_per_s for one in report.intervals], marker=".")
    rate.set_ylim(bottom=0)
    rate.set_title(f"{report.messages:,} messages {report.word}: rate")
    rate.set_xlabel("time, s")
    rate.set_ylabel("messages per second")
    for name, values_ms in _lines(report.intervals).items():
        time.plot(ends_s, values_ms, marker=".", label=name)
    time.set_ylim(bottom=0)
    time.set_title("Latency in each interval")
    time.set_xlabel("time, s")
    time.set_ylabel("latency, ms")
    time.legend()
    curve = report.latencies.curve()
    # Percentiles by their distance to 100: 90, 99 and 99.9 are equally far apart.
    whole.plot([1 / (1 - min(percent, 99.999) / 100) for percent, _ in curve], [value_ms for _, value_ms in curve])
    whole.set_xscale("log")
    whole.set_xticks([1, 10, 100, 1_000, 10_000], ["0", "90", "99", "99.9", "99.99"])
    whole.set_title("Latency of the whole run")
    whole.set_xlabel("percentile")
    whole.set_ylabel("latency, ms")
    figure.savefig(path, dpi=DOTS_PER_INCH, format="png")  # pyright: ignore[reportUnknownMemberType] (matplotlib types it in part)
    pyplot.close(figure)


def _lines(intervals: Sequence[LoadInterval]) -> dict[str, list[float]]:
    """The latencies of each interval by their name. An interval without any leaves a gap."""
    found: dict[str, list[float]] = {}
    for interval in intervals:
        shown = {**interval.latencies.quantiles_ms, "Max": interval.latencies.max_ms}
        for name, value_ms in shown.items():
            found.setdefault(name, []).append(value_ms if interval.latencies.count else math.nan)
    return found
