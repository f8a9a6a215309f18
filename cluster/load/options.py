"""Options that both commands of `magnetar perf` have, and the plot that one of them asks for.

The plot has the rate and the latencies over time, and the latencies of the whole run.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

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


PerfTopic = Annotated[str, typer.Argument(help="The topic; with several topics, the beginning of their names.")]
PerfTopics = Annotated[
    int, typer.Option("-t", "--num-topics", min=1, help="Topics; several are called TOPIC-0, TOPIC-1 and so on.")
]
PerfNumber = Annotated[int, typer.Option("-m", "--num-messages", min=0, help="Messages in all; 0 = no limit.")]
PerfDuration = Annotated[
    float, typer.Option("-time", "--test-duration", min=0, help="Seconds of the run; 0 = no limit.")
]
PerfEveryS = Annotated[
    float, typer.Option("-i", "--stats-interval-seconds", min=0.1, help="Seconds between two lines of figures.")
]
PerfWarmUp = Annotated[float, typer.Option("--warmup-time", min=0, help="Seconds before latencies count.")]
PerfHistogramFile = Annotated[
    Path | None, typer.Option("--histogram-file", help="Write the latencies of each interval as an HDR log.")
]
PerfPlotFile = Annotated[
    Path | None, typer.Option("--plot-file", help="Draw rates and latencies into this PNG at the end.")
]


@dataclass(frozen=True)
class Figures:
    """How the figures of a run are shown."""

    every_s: float
    warmup_s: float
    histogram_file: Path | None
    plot_file: Path | None

    @contextmanager
    def report(self, word: str) -> Generator[Report]:
        """The report of a run; writes its files at the end, also of one that fails. Raises ClusterError, OSError."""
        if self.plot_file is not None:
            check_plotting()
        log = self.histogram_file.open("w") if self.histogram_file is not None else None
        try:
            report = Report(word, self.every_s, self.warmup_s, log)
            try:
                yield report
            finally:
                if self.plot_file is not None:
                    plot(report, self.plot_file)
        finally:
            if log is not None:
                log.close()


def names_of(topic: str, topics: int) -> list[str]:
    return [topic] if topics == 1 else [f"{topic}-{number}" for number in range(topics)]
