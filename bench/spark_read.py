"""Reading a topic into Spark, beside what Spark reads elsewhere: all on the same executors, one after the other.

Five million messages of 100 B in four partitions lie in Magnetar, in Apache Kafka, in Parquet files, and as ready-made
Arrow blocks in Ray's object store. Each round takes the same kind of aggregate over every column of each, and of
Magnetar's topic over the publish time alone. The first round warms Spark's compiler up and does not count. Kafka has
seven columns, Magnetar ten.

The same topic with one partition is read by one of Spark's tasks at a time and by two.
"""

import contextlib
import json
import shutil
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from block_maker import BlockMaker
from kafka_broker import kafka
from measurement import measurement, payload
from rows import Report, median_of_pairs, ratio

import magnetar
from magnetar.bulk.typed.columns import SCHEMA
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.runtime.ray_calls import ask, kill_actor, start_actor
from magnetar.spark import read_topic, release, session, stop
from support.spark.jars import jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, ALONE = "bench-spark", "bench-spark-alone"
PARTITIONS = 4
MESSAGES = 5_000_000
MESSAGES_ALONE = 2_000_000
MESSAGES_PER_CALL = 100_000
PAYLOADS = 1000
MESSAGE_SIZE = 100
ROUNDS = 4
BLOCKS_TIMEOUT_S = 120.0
EXECUTOR_CORES = 2
EXECUTOR_MEMORY = "2g"


def run(cluster: RayCluster, directory: Path, report: Report) -> None:
    """The rows: seconds of each anchor over seconds of ours, and the pruning of columns."""
    published = publish(cluster, TOPIC, PARTITIONS, MESSAGES)
    publish(cluster, ALONE, 0, MESSAGES_ALONE)
    spark = session(
        "magnetar-bench",
        1,
        EXECUTOR_CORES,
        EXECUTOR_MEMORY,
        {"spark.ui.enabled": "false", "spark.jars": ",".join(map(str, jars("spark")))},
    )
    try:
        with anchors(spark, directory) as (ready, parquet, kafka_frame):
            frame, times = read_topic(spark, TOPIC), read_topic(spark, TOPIC, columns=["__publishTime"])
            measured: dict[str, Callable[[], None]] = {
                "ours": lambda: expect(aggregate(frame)),
                "publish time": lambda: expect(count(times, "__publishTime")),
                "ready-made blocks": lambda: expect(aggregate(ready)),
                "Kafka's source": lambda: expect(aggregate_kafka(kafka_frame)),
                "Parquet": lambda: expect(aggregate(parquet)),
            }
            rounds = [{name: timed(work) for name, work in measured.items()} for _ in range(ROUNDS)][1:]
            release(frame)
            release(times)
        alone = [(alone_by(spark, 1), alone_by(spark, 2)) for _ in range(ROUNDS)][1:]
    finally:
        stop()
    seconds = {name: [one[name] for one in rounds] for name in measured}
    ours = seconds["ours"]
    for name, target in (("Kafka's source", 2.0), ("Parquet", 0.3), ("ready-made blocks", 0.8)):
        figure, samples = median_of_pairs(seconds[name], ours)
        note = f"{statistics.median(ours):.2f} s, {name} {statistics.median(seconds[name]):.2f} s"
        report.rows.append(ratio(f"Spark ÷ {name}", figure, target, better="higher", samples=samples, note=note))
    figure, samples = median_of_pairs(ours, seconds["publish time"])
    note = f"{statistics.median(seconds['publish time']):.2f} s"
    report.rows.append(
        ratio("Spark, publish time only ÷ every column", figure, 1.5, better="higher", samples=samples, note=note)
    )
    figure, samples = median_of_pairs([one for one, _ in alone], [two for _, two in alone])
    note = f"{statistics.median(one for one, _ in alone):.2f} s over {statistics.median(two for _, two in alone):.2f} s"
    report.rows.append(
        ratio("Spark, one partition, 2 readers ÷ 1", figure, 1.5, better="higher", samples=samples, note=note)
    )
    report.raw.append(
        measurement(
            "backlog-1-topic-4-partitions-100b-into-spark",
            message_size=MESSAGE_SIZE,
            partitions=PARTITIONS,
            publish_rates=[published],
            consume_rates=[MESSAGES / one for one in ours],
            seconds=seconds,
        )
    )


def publish(cluster: RayCluster, topic: str, partitions: int, count: int, size: int = MESSAGE_SIZE) -> float:
    """Fill a topic with messages of `size` bytes, which a durable subscription keeps; messages a second."""
    if partitions:
        request = urllib.request.Request(
            f"{cluster.admin_url}/admin/v2/persistent/public/default/{topic}/partitions",
            data=json.dumps(partitions).encode(),
            method="PUT",
            headers={"Content-Type": "application/json"},
        )
        urllib.request.urlopen(request).close()
    messages = [payload(size, seed) for seed in range(PAYLOADS)] * (MESSAGES_PER_CALL // PAYLOADS)
    with cluster.client() as client:
        client.subscribe(topic, "spark", initial_position=magnetar.InitialPosition.Earliest).close()
        producer = client.create_producer(
            topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=50_000
        )
        begin = time.perf_counter()
        for _ in range(count // MESSAGES_PER_CALL):
            producer.send_many(messages)
        producer.flush()
        elapsed = time.perf_counter() - begin
        producer.close()
    return count / elapsed


@contextlib.contextmanager
def anchors(spark: "SparkSession", directory: Path) -> "Iterator[tuple[DataFrame, DataFrame, DataFrame]]":
    """The topic as ready-made blocks, in Parquet, and in Kafka."""
    from raydp.spark import ray_dataset_to_spark_dataframe

    maker = start_actor(BlockMaker, {"num_cpus": 0})
    blocks = ask(maker.blocks(TOPIC, magnetar.connect().admin_url), BLOCKS_TIMEOUT_S)
    ready = ray_dataset_to_spark_dataframe(spark, SCHEMA, blocks)
    files = directory / "parquet"
    ready.write.parquet(str(files))
    with kafka(directory, PARTITIONS) as address:
        writing = ready.selectExpr("value", "__partition AS partition").write.format("kafka")
        writing.option("kafka.bootstrap.servers", address).option("topic", TOPIC).save()
        reading = spark.read.format("kafka").option("kafka.bootstrap.servers", address).option("subscribe", TOPIC)
        yield ready, spark.read.parquet(str(files)), reading.option("startingOffsets", "earliest").load()
    kill_actor(maker)
    shutil.rmtree(files)


def aggregate(frame: "DataFrame") -> int:
    """Something of every column; returns the number of rows."""
    from pyspark.sql import functions as F

    row = frame.agg(
        F.count("*").alias("rows"),
        F.sum(F.length("value")),
        F.count("__key"),
        F.sum(F.length("__topic")),
        F.sum("__partition"),
        F.sum(F.length("__messageId")),
        F.max("__publishTime"),
        F.max("__eventTime"),
        F.sum(F.size("__messageProperties")),
        F.sum(F.length("__producerName")),
        F.sum("__sequenceId"),
    ).collect()[0]
    return int(row["rows"])


def aggregate_kafka(frame: "DataFrame") -> int:
    """The same of the columns of Kafka's source."""
    from pyspark.sql import functions as F

    row = frame.agg(
        F.count("*").alias("rows"),
        F.sum(F.length("value")),
        F.count("key"),
        F.sum(F.length("topic")),
        F.sum("partition"),
        F.sum("offset"),
        F.max("timestamp"),
        F.max("timestampType"),
    ).collect()[0]
    return int(row["rows"])


def count(frame: "DataFrame", column: str) -> int:
    """The rows, and the newest value of a column."""
    from pyspark.sql import functions as F

    return int(frame.agg(F.count("*").alias("rows"), F.max(column)).collect()[0]["rows"])


def alone_by(spark: "SparkSession", readers: int) -> float:
    """Seconds of a read of a topic without partitions, by so many tasks at a time."""
    frame = read_topic(spark, ALONE)
    read = frame.coalesce(1) if readers == 1 else frame  # one task reads split after split
    seconds = timed(lambda: expect(aggregate(read), MESSAGES_ALONE))
    release(frame)
    return seconds


def expect(rows: int, messages: int = MESSAGES) -> None:
    if rows != messages:
        raise RuntimeError(f"{rows:,} rows of {messages:,} messages")


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
