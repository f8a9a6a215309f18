"""A topic of 4 GB into Spark, on a Ray whose object store has 400 MB: that it ends, and what memory it takes.

The reader must not hold a topic in memory. So a Ray of its own is started with a small object store, and a cluster on
it with two copies of each entry, to spare the disk. Four million messages of 1,000 B go into four partitions. Spark
reads them with `read_topic` and takes an aggregate over every column, on one executor of two cores.

Meanwhile a thread asks Ray five times a second how full the object store is. Ray also counts the bytes that were ever
put into the store, and those that it spilled to disk. The kernel keeps the peak of each process's resident set: the
thread reads it of Spark's Python workers and of the executor.

It takes minutes and 10 GB of disk, and therefore runs only when it is asked for:

    python bench/run.py --only spark-large
    python bench/spark_large.py --gb 1                  # the same on its own, with a smaller topic
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from measurement import measurement
from rows import RESULTS, Report, Row
from spark_read import MESSAGES_PER_CALL, PARTITIONS, aggregate, expect, publish, timed

from magnetar.cluster import processes
from magnetar.cluster.preparing import StartOptions
from magnetar.cluster.ray_cluster import start_on_ray
from magnetar.runtime.ray_calls import init, put
from magnetar.spark import read_topic, release, session, stop

TOPIC = "bench-spark-large"
GB = 4
MESSAGE_SIZE = 1000
OBJECT_STORE_BYTES = 400_000_000
COPIES = {
    "managedLedgerDefaultEnsembleSize": 2,
    "managedLedgerDefaultWriteQuorum": 2,
    "managedLedgerDefaultAckQuorum": 2,
}
WORKER_TARGET_MB = 400.0
"""What a Python worker may take: a tenth of the topic, and no more for a larger one."""
DAEMON = "pyspark.daemon"
PROBE_BYTES = 10_000_000
LOOK_EVERY_S = 0.2
TIMEOUT_S = 1800.0


@dataclass
class Figures:
    """What was measured of one read. Bytes are those of all Ray nodes, and there is one."""

    messages: int
    published_per_s: float
    read_s: float
    store_peak_bytes: int
    store_put_bytes: int
    """All that was ever put into the store while Spark read, also what went again between two looks."""
    spilled_bytes: int
    worker_peak_bytes: int
    """Resident set of the Python worker that had most."""
    workers: int
    executor_peak_bytes: int
    """Resident set of the executor's JVM."""


def run(directory: Path, report: Report) -> None:
    """The rows. Runs in a process of its own: this one has joined another Ray."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, __file__, "--gb", str(GB), "--directory", str(directory), "--json"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_S)
    figures = Figures(**json.loads(done.stdout.splitlines()[-1]))
    report.rows.extend(rows(figures))
    report.raw.append(
        measurement(
            "backlog-1-topic-4-partitions-1kb-into-spark-with-a-small-object-store",
            message_size=MESSAGE_SIZE,
            partitions=PARTITIONS,
            publish_rates=[figures.published_per_s],
            consume_rates=[figures.messages / figures.read_s],
            figures=asdict(figures),
        )
    )


def rows(figures: Figures) -> list[Row]:
    """That it ended, with the figures of the object store, and the memory of a Python worker."""
    size_mb = figures.messages * MESSAGE_SIZE / 1e6
    name = f"Spark, {size_mb / 1000:g} GB with a {OBJECT_STORE_BYTES / 1e6:g} MB object store"
    note = (
        f"{figures.messages:,} messages of {MESSAGE_SIZE:,} B in two copies, published at "
        f"{figures.published_per_s * MESSAGE_SIZE / 1e6:.0f} MB/s, read in {figures.read_s:.1f} s, "
        f"{size_mb / figures.read_s:.0f} MB/s; {figures.spilled_bytes:,} B spilled, "
        f"{figures.store_put_bytes:,} B put into the store"
    )
    memory = f"of {figures.workers} workers; the executor's JVM {figures.executor_peak_bytes / 1e6:.0f} MB"
    worker_mb = round(figures.worker_peak_bytes / 1e6, 1)
    return [
        Row(f"{name}: its peak", figures.store_peak_bytes / 1e6, "lower", OBJECT_STORE_BYTES / 1e7, [], "MB", note),
        Row(f"{name}: a Python worker's peak", worker_mb, "lower", WORKER_TARGET_MB, [], "MB", memory),
    ]


def measure(directory: Path, gigabytes: float) -> Figures:
    """On a Ray and a cluster of its own. The number of messages is a multiple of what a call publishes."""
    messages = int(gigabytes * 1e9) // MESSAGE_SIZE // MESSAGES_PER_CALL * MESSAGES_PER_CALL
    init(
        address="local",
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    with tempfile.TemporaryDirectory(dir=directory, prefix="large-") as data:
        cluster = start_on_ray(data, StartOptions(COPIES, port=0, admin_port=0), detach=False)
        try:
            published = publish(cluster, TOPIC, PARTITIONS, messages, MESSAGE_SIZE)
            spark = session("magnetar-bench", 1, 2, "2g", {"spark.ui.enabled": "false"})
            try:
                frame = read_topic(spark, TOPIC)
                with Watch() as watch:
                    read_s = timed(lambda: expect(aggregate(frame), messages))
                release(frame)
            finally:
                stop()
        finally:
            cluster.stop()
    return Figures(messages, published, read_s, **watch.figures)


class Watch:
    """Looks at Ray's object store and at the processes of Spark's executor, from a thread of its own, in a `with`."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self._error: BaseException | None = None
        self._store_peak = 0
        self._workers: dict[int, int] = {}
        """Peaks in bytes, by process id."""
        self._executors: dict[int, int] = {}

    def __enter__(self) -> Self:
        """Raises RuntimeError if Ray does not count what is put into its store: then a zero would say nothing."""
        created_bytes = store_statistics().cumulative_created_bytes
        kept = put(bytes(PROBE_BYTES))
        self._before = store_statistics()
        if self._before.cumulative_created_bytes < created_bytes + PROBE_BYTES:
            raise RuntimeError("Ray does not count the bytes of its object store")
        del kept
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error
        self._after = store_statistics()

    def _run(self) -> None:
        try:
            while not self._ended.wait(LOOK_EVERY_S):
                self._look()
            self._look()  # workers stay for a minute behind their last task
        except BaseException as error:  # `__exit__` raises it
            self._error = error

    def _look(self) -> None:
        self._store_peak = max(self._store_peak, store_statistics().object_store_bytes_used)
        ray = [process for pid in children() if (process := processes.current(pid)) is not None]
        found = {process.pid: command_line(process.pid) for process in processes.descendants(ray)}
        for pid, command in found.items():
            parent = parent_of(pid) if DAEMON in command else 0
            if DAEMON in found.get(parent, ""):  # the executor's daemon forks the workers
                _see(self._workers, pid)
            elif parent:
                _see(self._executors, parent)

    @property
    def figures(self) -> dict[str, int]:
        """Raises RuntimeError if Spark's processes were not seen: nothing was measured."""
        if not self._workers or not self._executors:
            raise RuntimeError(f"{len(self._workers)} Python workers and {len(self._executors)} executors were seen")
        return {
            "store_peak_bytes": self._store_peak,
            "store_put_bytes": self._after.cumulative_created_bytes - self._before.cumulative_created_bytes,
            "spilled_bytes": self._after.spilled_bytes_total - self._before.spilled_bytes_total,
            "worker_peak_bytes": max(self._workers.values()),
            "workers": len(self._workers),
            "executor_peak_bytes": max(self._executors.values()),
        }


def store_statistics() -> Any:
    """What `ray memory --stats-only` prints, of all nodes; Ray has no public call for it."""
    from ray._private import state
    from ray._private.internal_api import get_memory_info_reply

    return get_memory_info_reply(state.state).store_stats


def children() -> list[int]:
    """The processes that this one has started: those of a local Ray are among them."""
    return [int(pid) for thread in Path("/proc/self/task").iterdir() for pid in text_of(thread / "children").split()]


def command_line(pid: int) -> str:
    """Empty for a process that has ended."""
    return text_of(Path(f"/proc/{pid}/cmdline"))


def status_of(pid: int) -> dict[str, int]:
    """Numbers that the kernel tells of a process, memory in KiB; empty for one that has ended."""
    words = [line.split() for line in text_of(Path(f"/proc/{pid}/status")).splitlines()]
    return {one[0].rstrip(":"): int(one[1]) for one in words if len(one) > 1 and one[1].isdigit()}


def parent_of(pid: int) -> int:
    """0 for a process that has ended."""
    return status_of(pid).get("PPid", 0)


def text_of(path: Path) -> str:
    """What the kernel tells; empty of a process or thread that has ended."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _see(peaks: dict[int, int], pid: int) -> None:
    peaks[pid] = max(peaks.get(pid, 0), status_of(pid).get("VmHWM", 0) << 10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=GB, help="how large the topic is")
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the cluster's data lies")
    parser.add_argument("--json", action="store_true", help="print figures as one line of JSON")
    options = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    options.directory.mkdir(parents=True, exist_ok=True)
    figures = measure(options.directory, options.gb)
    if options.json:
        print(json.dumps(asdict(figures)))
        return 0
    for row in rows(figures):
        print(f"{row.row}: {row.figure:g} {row.unit} (wanted: {row.better} than {row.target:g}); {row.note}")
    return 0 if all(row.ok for row in rows(figures)) else 1


if __name__ == "__main__":
    sys.exit(main())
