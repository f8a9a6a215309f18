"""One idle Shared consumer that holds one message, on a cluster with one broker: how many sessions, how many times it
gets the message again.

The client knows no other broker that it could ask about a silent one, and nothing but PINGs travels. So this shows
whether its connection stays. Each session is an address of the consumer in the statistics of its topic.

It takes a minute, and therefore runs only when it is asked for: `python bench/run.py --only held`.

    python bench/held.py --seconds 60      the figures, on a cluster of its own
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from admin_http import ask
from rows import RESULTS, Report, Row

import magnetar
from magnetar.cluster.preparing import StartOptions
from magnetar.cluster.ray_cluster import RayCluster, start_on_ray

SECONDS = 60.0
LOOK_MS = 250
TOPIC = "bench-held"
SUBSCRIPTION = "holder"


def run(directory: Path, report: Report, seconds: float = SECONDS) -> None:
    """Both rows."""
    options = StartOptions(brokers=1, port=0, admin_port=0)
    cluster = start_on_ray(str(directory / "held"), options, detach=False)
    try:
        sessions, redeliveries = measure(cluster, seconds)
    finally:
        cluster.stop()
    where = "one Shared consumer with one held message, one broker"
    title = f"idle for {seconds:g} s"
    report.rows.append(Row(f"{title}: sessions", sessions, "lower", 1, [], "", where))
    report.rows.append(Row(f"{title}: redeliveries", redeliveries, "lower", 0, [], "", where))


def measure(cluster: RayCluster, seconds: float) -> tuple[int, int]:
    """How many sessions the consumer had, and how many times the message came again."""
    topic = f"{cluster.admin_url}/admin/v2/persistent/public/default/{TOPIC}"
    sessions: set[str] = set()
    redeliveries = 0
    with cluster.client() as client:
        consumer = client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=magnetar.ConsumerType.Shared)
        producer = client.create_producer(TOPIC)
        producer.send(b"held")
        producer.close()
        consumer.receive(10_000)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sessions.update(
                one["address"] for one in ask("GET", f"{topic}/stats")["subscriptions"][SUBSCRIPTION]["consumers"]
            )
            try:
                consumer.receive(LOOK_MS)
                redeliveries += 1
            except magnetar.Timeout:
                continue
    return len(sessions), redeliveries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    os.environ.pop("RAY_ADDRESS", None)
    RESULTS.mkdir(parents=True, exist_ok=True)
    report = Report()
    with tempfile.TemporaryDirectory(dir=RESULTS, prefix="cluster-") as directory:
        run(Path(directory), report, options.seconds)
    for row in report.rows:
        print(f"{row.row}: {row.figure:g} (wanted: {row.target:g}); {row.note}")
    return 0 if all(row.ok for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
