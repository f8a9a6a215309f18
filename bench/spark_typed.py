"""A topic of Avro records as typed columns, beside Spark's own `from_avro` on its bytes; and how late a stream is.

Two million records of ten fields are read into Spark and aggregated over all fields: decoded by our readers, or read as
bytes and decoded by Spark. Rounds alternate; the first one warms Spark's compiler up and does not count.

Then 10,000 messages a second are published while a stream reads them as fast as it can. Each micro-batch says how old
its messages are when `foreach_batch` has them.
"""

import statistics
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from measurement import payload
from rows import Report, median_of_pairs, ratio
from spark_read import timed

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.spark import read_topic, release, session, stop, stream
from support.spark.jars import jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, LIVE = "bench-spark-avro", "bench-spark-live"
MESSAGES = 2_000_000
RECORDS = 1_000
MESSAGES_PER_CALL = 100_000
ROUNDS = 4
RATE = 10_000
PUBLISHED_PER_TICK = 100
STREAM_S = 25.0
WARM_UP_S = 10.0


@dataclass
class Reading:
    """Ten fields of a sensor's message."""

    device: str
    site: str
    number: int
    count: int
    temperature: float
    pressure: float
    humidity: float
    healthy: bool
    note: str | None
    error: int | None


def run(cluster: RayCluster, report: Report) -> None:
    """The rows: `from_avro` over our columns in seconds, and the median age of messages in a stream."""
    publish(cluster)
    configs = {"spark.ui.enabled": "false", "spark.jars": ",".join(map(str, jars("spark")))}
    spark = session("magnetar-bench", 1, 2, "2g", configs)
    try:
        compare(spark, report)
        report.rows.append(lateness(cluster, spark))
    finally:
        stop()


def publish(cluster: RayCluster) -> None:
    """Fill the topic, which a durable subscription keeps."""
    readings = [
        Reading(f"d{n % 97}", f"s{n % 7}", n, n * 7, n / 3, 1e3 + n, n / 7, n % 2 == 0, None if n % 3 else "ok", None)
        for n in range(RECORDS)
    ] * (MESSAGES_PER_CALL // RECORDS)
    with cluster.client() as client:
        client.subscribe(TOPIC, "spark", initial_position=magnetar.InitialPosition.Earliest).close()
        producer = client.create_producer(
            TOPIC, schema=magnetar.AvroSchema(Reading), batching_enabled=True, block_if_queue_full=True
        )
        for _ in range(MESSAGES // MESSAGES_PER_CALL):
            producer.send_many(readings)
        producer.close()


def compare(spark: "SparkSession", report: Report) -> None:
    """Typed columns, and the bytes with `from_avro`, read and aggregated in turn."""
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro

    info = magnetar.AvroSchema(Reading).info
    assert info is not None
    schema = info.definition.decode()
    typed = read_topic(spark, TOPIC, schema="auto", columns=list(Reading.__dataclass_fields__))
    payloads = read_topic(spark, TOPIC, columns=["value"])
    decoded = payloads.select(from_avro(F.col("value"), schema).alias("r")).select("r.*")
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(ROUNDS):
        ours.append(timed(lambda: expect(typed)))
        theirs.append(timed(lambda: expect(decoded)))
    release(typed)
    release(payloads)
    figure, samples = median_of_pairs(theirs[1:], ours[1:])
    note = f"{statistics.median(ours[1:]):.2f} s, from_avro {statistics.median(theirs[1:]):.2f} s"
    report.rows.append(ratio("Spark, Avro ÷ from_avro", figure, 1.0, better="higher", samples=samples, note=note))


def expect(frame: "DataFrame") -> None:
    """Something of every field; raises unless all rows are there."""
    from pyspark.sql import functions as F

    texts = [F.sum(F.length(name)) for name in ("device", "site", "note")]
    numbers = [F.sum(name) for name in ("number", "count", "temperature", "pressure", "humidity", "error")]
    healthy = F.sum(F.col("healthy").cast("int"))
    row = frame.agg(F.count("*").alias("rows"), *texts, *numbers, healthy).collect()[0]
    if row["rows"] != MESSAGES:
        raise RuntimeError(f"{row['rows']:,} rows of {MESSAGES:,} messages")


def lateness(cluster: RayCluster, spark: "SparkSession") -> Any:
    """The row of the stream: the median age of messages when `foreach_batch` gets them."""
    ages: list[tuple[float, int, int]] = []
    begun = time.monotonic()

    def store(frame: "DataFrame", number: int) -> None:
        called_ms = time.time_ns() // 1_000_000
        counted = frame.selectExpr("unix_millis(__publishTime) AS at").groupBy("at").count().collect()
        if time.monotonic() - begun > WARM_UP_S:
            ages.extend((called_ms - row["at"], row["count"], number) for row in counted)

    with cluster.client() as client:
        producer = client.create_producer(LIVE, batching_enabled=True, block_if_queue_full=True)
        query = stream(LIVE, "bench", store, columns=["__publishTime", "value"], spark=spark)
        ending = threading.Event()
        publishing = threading.Thread(target=at_a_rate, args=(producer, ending))
        publishing.start()
        query.await_termination(STREAM_S)
        ending.set()
        publishing.join()
        query.stop()
        if query.exception() is not None:
            raise RuntimeError("the stream failed") from query.exception()
        producer.close()
    in_order = sorted(ages)
    total, seen, median_ms = sum(count for _, count, _ in ages), 0, 0.0
    for age_ms, count, _ in in_order:
        seen += count
        if seen * 2 >= total:
            median_ms = age_ms
            break
    if not total:
        raise RuntimeError("the stream gave nothing")
    batches = len({number for _, _, number in ages})
    note = f"{total:,} messages in {batches} micro-batches, the oldest {in_order[-1][0] / 1000:.2f} s"
    return ratio("Spark stream, age of messages, p50", median_ms / 1000, 1.0, better="lower", unit="s", note=note)


def at_a_rate(producer: Any, ending: threading.Event) -> None:
    """Publish `RATE` messages a second until the end."""
    message, due = payload(100), time.monotonic()
    while not ending.is_set():
        producer.send_many([message] * PUBLISHED_PER_TICK)
        due += PUBLISHED_PER_TICK / RATE
        ending.wait(max(due - time.monotonic(), 0.0))
