"""`make bench`: all rows, one after the other on one cluster; prints a table, writes JSON and a plot.

    python bench/run.py [--only NAME …] [--directory DIR]

The cluster has 2 brokers and 3 bookies, synced 3/3/2. It lies below `--directory`. The default is a temporary directory
in bench/results, which is on the disk of the checkout and not in memory. Idle goes first, because no client may have
used the cluster yet; the kills go late. Behind them go 11,000 topics that stay, and starting and stopping other
clusters. A benchmark that fails is reported and does not keep the others from running. `delayed`, `held` and `repair`,
which take minutes, `forwarding`, `spark-large`, `spark-typed`, `spark-write` and `tls` run only with `--only`. The rows
about Spark fetch jars from Maven Central once. The logs of Ray, Spark and Java go to bench/results/libraries.log.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

import client_rate
import compaction
import consume_rate
import consume_tasks
import data_read
import delayed
import entry_cost
import failover
import follow_delay
import forwarding
import held
import idle
import keeping
import lagging
import lifecycle
import non_persistent
import plot
import publish
import queue_rate
import repair
import serve_scale
import serve_tasks
import spark_large
import spark_read
import spark_typed
import spark_write
import steady
import subscription_types
import tls
import topics
from rich.console import Console
from rich.table import Table
from rows import RESULTS, Report

from magnetar.cluster.demo.quiet import quiet
from magnetar.cluster.planning import read_settings
from magnetar.cluster.preparing import StartOptions
from magnetar.cluster.ray_cluster import RayCluster, start_on_ray

LOG = RESULTS / "libraries.log"
ON_REQUEST = {"delayed", "forwarding", "held", "repair", "spark-large", "spark-typed", "spark-write", "tls"}
"""Only with `--only`."""


def benchmarks(cluster: RayCluster, directory: Path, started: float, report: Report) -> dict[str, Callable[[], None]]:
    """By name, in the order in which they run."""
    return {
        "idle": lambda: idle.run(cluster.status(), started, report),
        "publish": lambda: publish.run(cluster, directory, report),
        "cpu": lambda: entry_cost.run(cluster, directory, report),
        "steady": lambda: steady.run(cluster, directory, report),
        "client": lambda: client_rate.run(cluster, report),
        "consume": lambda: consume_rate.run(cluster, report),
        "queue": lambda: queue_rate.run(report),
        "consume-tasks": lambda: consume_tasks.run(cluster, report),
        "serve-tasks": lambda: serve_tasks.run(directory, report),
        "serve-scale": lambda: serve_scale.run(report),
        "types": lambda: subscription_types.run(cluster, report),
        "compaction": lambda: compaction.run(cluster, report),
        "lagging": lambda: lagging.run(cluster, report),
        "spark": lambda: spark_read.run(cluster, directory, report),
        "spark-large": lambda: spark_large.run(directory, report),
        "spark-typed": lambda: spark_typed.run(cluster, report),
        "spark-write": lambda: spark_write.run(cluster, report),
        "data": lambda: data_read.run(cluster, directory, report),
        "follow": lambda: follow_delay.run(cluster, report),
        "delayed": lambda: delayed.run(cluster, report),
        "non-persistent": lambda: non_persistent.run(cluster, report),
        "topics": lambda: topics.run(cluster, report),
        "failover": lambda: failover.run(cluster, report),
        "keeping": lambda: keeping.run(cluster, report),
        "forwarding": lambda: forwarding.run(cluster, report),
        "held": lambda: held.run(directory, report),
        "lifecycle": lambda: lifecycle.run(directory, report),
        "repair": lambda: repair.run(directory, report),
        "tls": lambda: tls.run(directory, report),
    }


def main() -> int:
    """Returns the exit status: 0 if every row was measured, whatever the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (
        "idle publish cpu steady client consume queue consume-tasks serve-tasks serve-scale types compaction "
        "lagging spark spark-large spark-typed spark-write data follow "
        "delayed non-persistent topics failover keeping forwarding held lifecycle repair tls"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names.split(), help=f"only these: {names}")
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the cluster's data lies")
    options = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    options.directory.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    with quiet(LOG) as console:
        console.print(f"the logs of Ray, Spark and Java go to {LOG}", highlight=False, soft_wrap=True)
        return _measure(options.directory, options.only, console)


def _measure(parent: Path, only: list[str] | None, console: Console) -> int:
    report = Report()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=parent, prefix="cluster-") as directory:
        with console.status("starting the cluster …"):
            cluster = start_on_ray(directory, StartOptions(read_settings(), port=0, admin_port=0), detach=False)
        try:
            _run_all(benchmarks(cluster, Path(directory), time.monotonic(), report), only, report, console)
        finally:
            cluster.stop()
    latest = report.save()
    if report.rows:
        plot.draw(report.rows, latest.with_suffix(".png"))
    _print(report, console)
    console.print(f"{latest} and .png, {time.monotonic() - begin:.0f} s", highlight=False)
    return 1 if report.problems else 0


def _run_all(
    available: dict[str, Callable[[], None]], only: list[str] | None, report: Report, console: Console
) -> None:
    for name in only or [one for one in available if one not in ON_REQUEST]:
        begin = time.monotonic()
        try:
            with console.status(f"measuring {name} …"):
                available[name]()
        except Exception as error:
            console.print(traceback.format_exc(), markup=False, highlight=False)
            report.problems[name] = f"{type(error).__name__}: {error}"
        console.print(f"{name}: {time.monotonic() - begin:.0f} s", highlight=False)


def _print(report: Report, console: Console) -> None:
    table = Table(title="Magnetar", title_justify="left")
    table.add_column("row")
    table.add_column("figure", justify="right")
    table.add_column("target", justify="right")
    table.add_column("")
    table.add_column("of")
    for row in report.rows:
        sign = "≥" if row.better == "higher" else "≤"
        verdict = "[green]ok[/green]" if row.ok else "[red]no[/red]"
        table.add_row(row.row, f"{row.figure:g} {row.unit}", f"{sign} {row.target:g} {row.unit}", verdict, row.note)
    console.print(table)
    for name, problem in report.problems.items():
        console.print(f"[red]{name} failed:[/red] {problem}", highlight=False)
    for name, reason in report.left_out.items():
        console.print(f"{name} is left out: {reason}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
