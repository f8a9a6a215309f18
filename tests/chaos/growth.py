"""`make growth`: partitioned topics grow under load, with the official client. Prints how many messages were lost.

    python tests/chaos/growth.py --runs 10

Each case (`GROWTH_CASES`) is run so many times, on a topic of its own: from 2 to 6 partitions while messages are
published. A connected consumer of the official client looks for new partitions once a minute. So the runs of that case
go on at the same time, and each waits until its consumer has everything. Exit status 1 when a message was lost.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import pulsar

from support.servers.embedded_cluster import EmbeddedCluster
from support.servers.growth_cases import GROWTH_CASES, GrowthCase, GrowthFigures, full

BEFORE = 2
AFTER = 6
PATIENCE_S = 120.0
"""So long a connected consumer may take: the client looks for partitions once a minute."""


def run_case(cluster: EmbeddedCluster, case: GrowthCase, runs: int) -> list[GrowthFigures]:
    """The figures of so many runs. A crash of the coordinator concerns all topics, so such runs follow each other."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    patience_s = PATIENCE_S if case.connected and case.step is None else 0.0

    def run(number: int) -> GrowthFigures:
        client = pulsar.Client(cluster.service_url, operation_timeout_seconds=60, logger=logger)
        try:
            return case.run(cluster, client, full(f"{case.slug}-{number}"), BEFORE, AFTER, patience_s)
        finally:
            client.close()

    with ThreadPoolExecutor(runs if case.step is None else 1) as pool:
        return list(pool.map(run, range(runs)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases and print a row for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="of each case")
    runs = parser.parse_args(arguments).runs
    lost = 0
    print(f"growth {BEFORE} -> {AFTER} under load; {'official client':53} {'runs':>4} {'published':>9} {'lost':>4}")
    with tempfile.TemporaryDirectory() as directory, EmbeddedCluster(Path(directory), brokers=2) as cluster:
        for case in GROWTH_CASES:
            began = time.monotonic()
            figures = run_case(cluster, case, runs)
            good = sum(not one.lost and one.on_new_partitions > 0 for one in figures)
            lost += sum(one.lost for one in figures) + (runs - good)
            published = sum(one.published for one in figures)
            took = time.monotonic() - began
            print(
                f"{case.name:79} {good:2}/{runs} {published:8} {sum(one.lost for one in figures):4}   {took:.0f} s",
                flush=True,
            )
    return int(lost > 0)


if __name__ == "__main__":
    raise SystemExit(main())
