"""Reading a topic into Spark: `read_topic` and an aggregate, over the same aggregate on blocks that are there already.

Two million messages of 100 B in four partitions. The brokers are stopped (SIGSTOP) when a read is planned and continue
when the aggregate is done. So everything comes from the bookies. Each round measures the read together with the first
aggregate. Then it measures the aggregate alone on the blocks of the read, twice; the faster run counts. The first round
warms Spark's compiler up and does not count.
"""

import json
import os
import signal
import statistics
import time
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING

from failover import broker_process
from measurement import measurement, payload
from rows import Report, median_of_pairs, ratio

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.spark import read_topic, release, session, stop

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "bench-spark"
PARTITIONS = 4
MESSAGES = 2_000_000
MESSAGES_PER_CALL = 100_000
PAYLOADS = 1000
MESSAGE_SIZE = 100
ROUNDS = 4
EXECUTOR_CORES = 2
EXECUTOR_MEMORY = "2g"


def run(cluster: RayCluster, report: Report) -> None:
    """The row: rows per second read from topics, and the ratio to the same aggregate on ready-made blocks."""
    published = publish(cluster)
    spark = session("magnetar-bench", 1, EXECUTOR_CORES, EXECUTOR_MEMORY, {"spark.ui.enabled": "false"})
    try:
        rounds = [measure(cluster, spark) for _ in range(ROUNDS)][1:]
    finally:
        stop()
    ours = [MESSAGES / reading for reading, _ in rounds]
    ready = [MESSAGES / aggregating for _, aggregating in rounds]
    figure, samples = median_of_pairs(ours, ready)
    note = f"{statistics.median(ours):,.0f} rows/s over {statistics.median(ready):,.0f} rows/s"
    report.rows.append(ratio("Spark", figure, 0.3, better="higher", samples=samples, note=note))
    report.raw.append(
        measurement(
            "backlog-1-topic-4-partitions-100b-into-spark",
            message_size=MESSAGE_SIZE,
            partitions=PARTITIONS,
            publish_rates=[published],
            consume_rates=ours,
            readyBlocksRate=ready,
        )
    )


def publish(cluster: RayCluster) -> float:
    """Fill the topic, which a durable subscription keeps; messages a second."""
    request = urllib.request.Request(
        f"{cluster.admin_url}/admin/v2/persistent/public/default/{TOPIC}/partitions",
        data=json.dumps(PARTITIONS).encode(),
        method="PUT",
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request).close()
    messages = [payload(MESSAGE_SIZE, seed) for seed in range(PAYLOADS)] * (MESSAGES_PER_CALL // PAYLOADS)
    with cluster.client() as client:
        client.subscribe(TOPIC, "spark", initial_position=magnetar.InitialPosition.Earliest).close()
        producer = client.create_producer(
            TOPIC, batching_enabled=True, block_if_queue_full=True, max_pending_messages=50_000
        )
        begin = time.perf_counter()
        for _ in range(MESSAGES // MESSAGES_PER_CALL):
            producer.send_many(messages)
        producer.flush()
        elapsed = time.perf_counter() - begin
        producer.close()
    return MESSAGES / elapsed


def measure(cluster: RayCluster, spark: "SparkSession") -> tuple[float, float]:
    """Seconds of a read with its first aggregate, and of the aggregate on ready-made blocks."""
    # After a stop the topic may be on its way to another owner; planning from its end waits for that.
    release(read_topic(spark, TOPIC, start="latest", progress=False))
    processes = [broker_process(number) for number in range(1, len(cluster.service_urls) + 1)]
    stopped: list[int] = []

    def stop_brokers() -> None:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
            stopped.append(process)

    try:
        begin = time.perf_counter()
        frame = read_topic(spark, TOPIC, progress=False, on_planned=stop_brokers)
        rows = aggregate(frame)
        reading = time.perf_counter() - begin
    finally:
        for process in stopped:
            os.kill(process, signal.SIGCONT)
    if rows != MESSAGES:
        raise RuntimeError(f"{rows:,} rows of {MESSAGES:,} messages")
    aggregating = min(timed(lambda: aggregate(frame)), timed(lambda: aggregate(frame)))
    release(frame)
    return reading, aggregating


def aggregate(frame: "DataFrame") -> int:
    """Something of every column; returns the number of rows."""
    from pyspark.sql import functions as F

    row = frame.agg(
        F.count("*").alias("rows"),
        F.sum(F.length("value")),
        F.count("__key"),
        F.max("__topic"),
        F.sum("__partition"),
        F.max("__messageId"),
        F.max("__publishTime"),
        F.max("__eventTime"),
        F.sum(F.size("__messageProperties")),
        F.max("__producerName"),
        F.sum("__sequenceId"),
    ).collect()[0]
    return int(row["rows"])


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
