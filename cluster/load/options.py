"""Options that both commands of `magnetar perf` have."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from .plot import check_plotting, plot
from .report import Report

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
    """The topics of a run."""
    return [topic] if topics == 1 else [f"{topic}-{number}" for number in range(topics)]
