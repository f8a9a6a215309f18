"""Reading a topic into a Ray dataset, beside Ray's own `read_kafka` from Apache Kafka with the same data.

Two million messages of 100 B lie in four partitions of each. A round materializes each dataset, with all columns, and
the two take turns. The first round starts Ray's workers and does not count. Ray makes one task for each partition of
Kafka.
"""

import statistics
from pathlib import Path

import ray.data
from confluent_kafka import Producer
from kafka_broker import kafka
from measurement import payload
from rows import Report, median_of_pairs, ratio
from spark_read import PARTITIONS, PAYLOADS, expect, publish, timed

import magnetar
from magnetar.cluster.ray_cluster import RayCluster

TOPIC = "bench-data"
MESSAGES = 2_000_000
MESSAGE_SIZE = 100
ROUNDS = 4
WAITING_MAX = 200_000


def run(cluster: RayCluster, directory: Path, report: Report) -> None:
    """The row: seconds of `read_kafka` over seconds of ours."""
    ray.data.DataContext.get_current().enable_progress_bars = False
    publish(cluster, TOPIC, PARTITIONS, MESSAGES)
    with kafka(directory, PARTITIONS) as address:
        fill(address)
        ours: list[float] = []
        theirs: list[float] = []
        for _ in range(ROUNDS):
            dataset = ray.data.read_kafka(TOPIC, bootstrap_servers=address)
            theirs.append(timed(lambda read=dataset: expect(read.materialize().count(), MESSAGES)))
            dataset = magnetar.data.read_topic(TOPIC)
            ours.append(timed(lambda read=dataset: expect(read.materialize().count(), MESSAGES)))
    figure, samples = median_of_pairs(theirs[1:], ours[1:])
    rates = [MESSAGES / statistics.median(one[1:]) for one in (ours, theirs)]
    note = "{:,.0f} rows/s over {:,.0f} rows/s".format(*rates)
    report.rows.append(ratio("Ray Data: read ÷ read_kafka", figure, 2.0, better="higher", samples=samples, note=note))


def fill(address: str) -> None:
    """The same messages in Kafka, in turn over its partitions."""
    bodies = [payload(MESSAGE_SIZE, seed) for seed in range(PAYLOADS)]
    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": WAITING_MAX * 2})
    for number in range(MESSAGES):
        producer.produce(TOPIC, bodies[number % PAYLOADS], partition=number % PARTITIONS)
        if number % WAITING_MAX == 0:
            producer.flush()
    producer.flush()
