"""System calls of one unbatched entry in the broker and in a bookie, counted by strace.

The figures of docs/design/budget.md come from here.

    python bench/system_calls.py [--directory DIR] [--entries N]

Starts a cluster, publishes one message at a time and prints what each process called for an entry. Calls that come no
more often than once in ten entries are left out; so are epoll_wait and timerfd_settime, which are Ray's own threads.
A traced process is slower, so that its threads meet less often than they do else: futex counts are lower bounds.
"""

import argparse
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from entry_cost import MESSAGE_SIZE, WARM_UP
from measurement import payload
from processes import cpu_seconds, service_processes
from rows import RESULTS

from magnetar.cluster.planning import read_settings
from magnetar.cluster.preparing import StartOptions
from magnetar.cluster.ray_cluster import start_on_ray

RARE = 0.1
RAYS_OWN = ("epoll_wait", "timerfd_settime")
ATTACH_TIMEOUT_S = 30.0


class Trace:
    """strace on one process while the context lasts; `calls` then counts by name."""

    def __init__(self, process: int, directory: Path) -> None:
        self._process = process
        self._path = directory / f"trace-{process}"
        self.calls: dict[str, int] = {}

    def __enter__(self) -> "Trace":
        command = ["strace", "-f", "-c", "-o", str(self._path), "-p", str(self._process)]
        self._strace = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._strace.stderr is not None
        timer = threading.Timer(ATTACH_TIMEOUT_S, self._strace.kill)
        timer.start()
        attached = self._strace.stderr.readline()
        timer.cancel()
        if "attached" not in attached:
            raise RuntimeError(f"strace did not attach to {self._process}: {attached}")
        threading.Thread(target=self._strace.stderr.read, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._strace.send_signal(signal.SIGINT)
        self._strace.wait()
        for line in self._path.read_text().splitlines():
            fields = line.split()
            if len(fields) >= 5 and fields[3].isdigit() and fields[-1] != "total":
                self.calls[fields[-1]] = int(fields[3])


def count(cluster: Any, directory: Path, entries: int) -> dict[str, dict[str, float]]:
    """Calls for an entry by name, of the broker that owns the topic and of one bookie."""
    processes = service_processes(cluster.status())
    with cluster.client() as client:
        producer = client.create_producer("bench-system-calls", batching_enabled=False)
        data = payload(MESSAGE_SIZE)
        brokers = {node: process for node, process in processes.items() if node.startswith("broker")}
        before = {node: cpu_seconds(process) for node, process in brokers.items()}
        for _ in range(WARM_UP):
            producer.send(data)
        owner = max(brokers, key=lambda node: cpu_seconds(brokers[node]) - before[node])
        with Trace(brokers[owner], directory) as broker, Trace(processes["bookie-1"], directory) as bookie:
            for _ in range(entries):
                producer.send(data)
        producer.close()
    return {
        name: {call: made / entries for call, made in sorted(trace.calls.items()) if made / entries > RARE}
        for name, trace in (("broker", broker), ("bookie", bookie))
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=RESULTS)
    parser.add_argument("--entries", type=int, default=2_000)
    options = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.directory, prefix="cluster-") as directory:
        cluster = start_on_ray(directory, StartOptions(read_settings(), port=0, admin_port=0), detach=False)
        try:
            begin = time.monotonic()
            counted = count(cluster, Path(directory), options.entries)
            print(f"{options.entries} entries in {time.monotonic() - begin:.0f} s")
        finally:
            cluster.stop()
    for process, calls in counted.items():
        shown = {call: round(each, 1) for call, each in calls.items() if call not in RAYS_OWN}
        print(f"{process}: {shown}, {sum(shown.values()):.1f} in all")


if __name__ == "__main__":
    main()
