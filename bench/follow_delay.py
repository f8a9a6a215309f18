"""Delay from publishing to the batch, while a topic is followed at a steady rate: `magnetar.data.follow`.

50,000 messages of 100 B a second, from a process of its own, in four partitions. Each message has the time at which it
was due, so a publisher that stalls does not hide it. The delay ends when `iter_batches` gives the batch. What comes in
the first seconds does not count. Every message must come exactly once.

    python bench/follow_delay.py URL SECONDS     the load alone, the number of messages as JSON
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
from admin_http import ask
from measurement import Latency, measurement
from rows import Report, ratio

import magnetar

TOPIC = "bench-follow"
PARTITIONS = 4
RATE = 50_000
SIZE = 100
LOAD_S = 30.0
WARM_UP_S = 5.0
TICK_S = 0.002
BATCH_DELAY_MS = 5
BATCH_MESSAGES = 1_000
PENDING_MAX = 100_000
READERS = 2
TARGET_S = 1.0


def run(cluster: Any, report: Report, seconds: float = LOAD_S) -> None:
    """The row."""
    ask("PUT", f"{cluster.admin_url}/admin/v2/persistent/public/default/{TOPIC}/partitions", PARTITIONS)
    command = [sys.executable, __file__, cluster.service_url, str(seconds)]
    load = os.getloadavg()[0]
    following = magnetar.data.follow(TOPIC, "bench", columns=["value"], concurrency=READERS, num_cpus=0)
    delays = Latency()
    with (
        following.iter_batches(batch_size=None, batch_format="pyarrow") as batches,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as publisher,
    ):
        began = time.time()
        seen = np.zeros(int(RATE * seconds), dtype=np.int64)
        cpu = time.process_time()
        count = 0
        for batch in batches:
            now = time.time()
            rows = rows_of(batch)
            np.add.at(seen, rows["number"], 1)
            count += len(rows)
            late = rows["due"][rows["due"] > began + WARM_UP_S]
            found = np.unique(((now - late) * 1e6).astype(int), return_counts=True)
            for microseconds, times in zip(*found, strict=True):
                delays.record(microseconds / 1e6, int(times))
            if count >= len(seen):
                break
        cpu = time.process_time() - cpu
        _, problem = publisher.communicate(timeout=60)
    if publisher.returncode:
        raise RuntimeError(f"the publisher failed: {problem[-2000:]}")
    if not (seen == 1).all():
        raise RuntimeError(f"{(seen == 0).sum()} messages are missing, {(seen > 1).sum()} came more than once")
    report.raw.append(
        measurement(
            "1-topic-4-partitions-100b-50000-per-second-followed",
            message_size=SIZE,
            partitions=PARTITIONS,
            publish_rates=[RATE],
            latencies={"EndToEndLatency": delays},
        )
    )
    p50, p99 = delays.quantile_ms(50), delays.quantile_ms(99)
    note = (
        f"{RATE:,} messages/s, p50 {p50:.0f} ms, p99 {p99:.0f} ms, most {delays.maximum_ms:.0f} ms; "
        f"{cpu / seconds:.0%} of a processor in the driver, load {load:.1f} before"
    )
    report.rows.append(ratio("follow: publish → batch, p99", p99 / 1000, TARGET_S, better="lower", unit="s", note=note))


def rows_of(batch: Any) -> Any:
    """Due times and numbers of the messages of an Arrow table, without a loop over them."""
    values = batch.column("value").combine_chunks()
    begin = values.offset
    data = np.frombuffer(values.buffers()[2], np.uint8)[begin * SIZE : (begin + len(values)) * SIZE]
    return data.view(np.dtype([("due", "<f8"), ("number", "<i8"), ("rest", f"S{SIZE - 16}")]))


def publish(service_url: str, seconds: float) -> dict[str, Any]:
    """Publish on schedule."""
    total = int(RATE * seconds)
    block = np.zeros(total, np.dtype([("due", "<f8"), ("number", "<i8"), ("rest", f"S{SIZE - 16}")]))
    block["number"] = np.arange(total)
    block["rest"] = b"x" * (SIZE - 16)
    failures: list[Any] = []

    def receipt(result: Any, message_id: Any) -> None:
        if result != magnetar.Result.Ok:
            failures.append(result)

    with magnetar.Client(service_url) as client:
        producer = client.create_producer(
            TOPIC,
            batching_enabled=True,
            batching_max_messages=BATCH_MESSAGES,
            batching_max_publish_delay_ms=BATCH_DELAY_MS,
            max_pending_messages=PENDING_MAX,
            max_pending_messages_across_partitions=PENDING_MAX * PARTITIONS,
            block_if_queue_full=True,
        )
        began = time.time()
        block["due"] = began + np.arange(total) / RATE
        raw = block.tobytes()
        sent = 0
        while sent < total:
            due = min(total, int((time.time() - began) * RATE))
            if due > sent:
                producer.send_many([raw[place * SIZE : (place + 1) * SIZE] for place in range(sent, due)], receipt)
                sent = due
            time.sleep(TICK_S)
        producer.flush()
    if failures:
        raise RuntimeError(f"{len(failures)} messages failed: {failures[:3]}")
    return {"sent": sent}


if __name__ == "__main__":
    print(json.dumps(publish(sys.argv[1], float(sys.argv[2]))))
