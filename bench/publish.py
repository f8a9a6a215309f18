"""Publishing through our own client against the limits of the disk: latency, bytes a second, small messages."""

import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import limits
from measurement import Latency, measurement, payload
from rows import Report, ratio

import magnetar
from magnetar.cluster.handle import Cluster

LATENCY_MESSAGES = 1500
LATENCY_LIMIT_S = 3.0
DISK_BYTES = 256 << 20
SMALL_SECONDS = 3.0
SMALL_IN_FLIGHT = 64
ROUNDS = 3


def run(cluster: Cluster, directory: Path, report: Report) -> None:
    """All three rows. `directory` is on the disk of the bookies."""
    with cluster.client() as client, tempfile.TemporaryDirectory(dir=directory) as scratch:
        latency(client, Path(scratch), report)
        small_publishes(client, report)
        disk(client, Path(scratch), report)


def one_at_a_time(producer: Any, data: bytes, count: int) -> tuple[Latency, float]:
    """Send `count` messages, each after the receipt of the one before it; latencies and messages a second."""
    latencies = Latency()
    begin = time.perf_counter()
    for _ in range(count):
        sent = time.perf_counter()
        producer.send(data)
        latencies.record(time.perf_counter() - sent)
    return latencies, count / (time.perf_counter() - begin)


def latency(client: Any, scratch: Path, report: Report) -> None:
    """p50 of sends one at a time, 1 KB, over p50 of three concurrent appends with fdatasync of 1 KB."""
    producer = client.create_producer("bench-latency", batching_enabled=False)
    data = payload(1024)
    one_at_a_time(producer, data, 200)
    ours: list[float] = []
    disk: list[float] = []
    for round_number in range(ROUNDS):
        raw = limits.synced_append_latencies(scratch, writers=3, size=1024, seconds=LATENCY_LIMIT_S / ROUNDS)
        disk.append(limits.median_ms(raw))
        latencies, rate = one_at_a_time(producer, data, LATENCY_MESSAGES // ROUNDS)
        ours.append(latencies.quantile_ms(50))
        report.raw.append(
            measurement(
                "1-topic-1-partition-1kb-one-at-a-time",
                message_size=1024,
                publish_rates=[rate],
                latencies={"PublishLatency": latencies},
                round=round_number,
            )
        )
    producer.close()
    report.limits["three_synced_appends_1kb_p50_ms"] = statistics.median(disk)
    samples = [own / limit for own, limit in zip(ours, disk, strict=True)]
    note = f"{statistics.median(ours):.2f} ms over {statistics.median(disk):.2f} ms"
    report.rows.append(
        ratio("publish latency", statistics.median(samples), 5, better="lower", samples=samples, note=note)
    )


def small_publishes(client: Any, report: Report) -> None:
    """Unbatched messages of 100 B, 64 in flight, over the same one at a time."""
    data = payload(100)
    producer = client.create_producer(
        "bench-small", batching_enabled=False, max_pending_messages=SMALL_IN_FLIGHT, block_if_queue_full=True
    )
    samples: list[float] = []
    rates: list[tuple[float, float]] = []
    one_at_a_time(producer, data, 200)
    for _ in range(ROUNDS):
        _, alone = one_at_a_time(producer, data, 800)
        many = pipelined(producer, data, SMALL_SECONDS / ROUNDS)
        rates.append((alone, many))
        samples.append(many / alone)
    producer.close()
    many_rates = [many for _, many in rates]
    report.raw.append(
        measurement("1-topic-1-partition-100b-unbatched-64-in-flight", message_size=100, publish_rates=many_rates)
    )
    note = f"{statistics.median(many_rates):,.0f}/s over {statistics.median([alone for alone, _ in rates]):,.0f}/s"
    figure = min(samples)  # every round has to reach it
    report.rows.append(ratio("small publishes", figure, 12, better="higher", samples=samples, note=note))


def pipelined(producer: Any, data: bytes, seconds: float) -> float:
    """Messages a second with the producer's queue kept full; every receipt is counted by its own callback."""
    received = 0
    failures: list[object] = []
    done = threading.Event()

    def receipt(result: object, message_id: object) -> None:
        nonlocal received
        received += 1
        if result != magnetar.Result.Ok:
            failures.append(result)

    begin = time.perf_counter()
    end = begin + seconds
    sent = 0
    while time.perf_counter() < end:
        producer.send_async(data, receipt)
        sent += 1
    producer.flush()
    elapsed = time.perf_counter() - begin
    deadline = time.monotonic() + 10
    while received < sent and time.monotonic() < deadline:
        done.wait(0.001)
    if failures or received != sent:
        raise RuntimeError(f"{sent} sent, {received} receipts, failures: {failures[:3]}")
    return sent / elapsed


def disk(client: Any, scratch: Path, report: Report) -> None:
    """Bytes published a second (1 KB, batched) times three copies, over one process that syncs blocks of 1 MiB."""
    data = payload(1024)
    block = [data] * 1000
    producer = client.create_producer(
        "bench-disk",
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_allowed_size_in_bytes=1 << 20,
        max_pending_messages=20_000,
        block_if_queue_full=True,
    )
    samples: list[float] = []
    ours: list[float] = []
    raw: list[float] = []
    share = DISK_BYTES // ROUNDS
    for _ in range(ROUNDS):
        raw.append(limits.synced_write_rate(scratch, size=share))
        begin = time.perf_counter()
        sent = 0
        while sent < share:
            producer.send_many(block)
            sent += len(block) * len(data)
        producer.flush()
        ours.append(sent / (time.perf_counter() - begin))
        samples.append(3 * ours[-1] / raw[-1])
    producer.close()
    report.limits["synced_write_bytes_per_s"] = statistics.median(raw)
    report.raw.append(
        measurement(
            "max-rate-1-topic-1-partition-1p-1c-1kb",
            message_size=1024,
            publish_rates=[rate / len(data) for rate in ours],
        )
    )
    note = f"3 x {statistics.median(ours) / 1e6:,.0f} MB/s over {statistics.median(raw) / 1e6:,.0f} MB/s"
    report.rows.append(ratio("disk", statistics.median(samples), 0.2, better="higher", samples=samples, note=note))
