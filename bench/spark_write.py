"""Writing from Spark 4 on one core, over `send_many` of our client from one process.

Two million rows of 100 B in four tasks, from Spark's memory into a topic of four partitions. The same messages go from
one process into the same topic. Rounds alternate; the figure is the median of the ratios of neighbours. The first round
warms Spark's compiler up and does not count.

    python bench/spark_write.py pulsar://localhost:6650     # the comparison, printed; needs build/spark4 (.ci/spark4)
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from measurement import measurement, payload
from rows import Report, median_of_pairs, ratio

import magnetar

TOPIC = "bench-spark-write"
PARTITIONS = 4
ROWS = 2_000_000
ROWS_PER_CALL = 100_000
MESSAGE_SIZE = 100
ROUNDS = 4
PYTHON = Path(__file__).resolve().parents[1] / "build" / "spark4" / "bin" / "python"
TARGET = 1.0


def run(cluster: Any, report: Report) -> None:
    """The row, against a running cluster."""
    ours, anchor = compare(cluster.service_url)
    figure, samples = median_of_pairs(ours, anchor)
    note = f"{statistics.median(ours):,.0f} rows/s over {statistics.median(anchor):,.0f} messages/s"
    report.rows.append(ratio("Spark write", figure, TARGET, better="higher", samples=samples, note=note))
    report.raw.append(
        measurement(
            "1-topic-4-partitions-100b-from-spark",
            message_size=MESSAGE_SIZE,
            partitions=PARTITIONS,
            publish_rates=ours,
            sendManyRate=anchor,
        )
    )


def compare(service_url: str) -> tuple[list[float], list[float]]:
    """Rows a second of Spark, and messages a second of `send_many`, round by round."""
    arguments = [service_url, TOPIC, ROWS, MESSAGE_SIZE, PARTITIONS, ROUNDS]
    process = subprocess.Popen(
        [str(PYTHON), str(Path(__file__).with_name("spark_writer.py")), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    ours: list[float] = []
    anchor: list[float] = []
    with process:
        for _ in range(ROUNDS):
            process.stdin.write("\n")
            process.stdin.flush()
            ours.append(ROWS / float(process.stdout.readline()))
            anchor.append(send_many(service_url))
    return ours[1:], anchor[1:]


def send_many(service_url: str) -> float:
    """Messages a second from one process, from the first call to the last receipt."""
    messages = [payload(MESSAGE_SIZE, seed) for seed in range(1_000)] * (ROWS_PER_CALL // 1_000)
    with magnetar.Client(service_url) as client:
        producer = client.create_producer(
            TOPIC, batching_enabled=True, block_if_queue_full=True, max_pending_messages=30_000
        )
        begin = time.perf_counter()
        for _ in range(ROWS // ROWS_PER_CALL):
            producer.send_many(messages)
        producer.flush()
        return ROWS / (time.perf_counter() - begin)


if __name__ == "__main__":
    ours, anchor = compare(sys.argv[1])
    figure, samples = median_of_pairs(ours, anchor)
    print(json.dumps({"write": ours, "send_many": anchor, "ratio": figure, "samples": samples}))
