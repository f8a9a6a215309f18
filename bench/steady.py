"""A steady load that the machine bears with ease: how long do the slowest publishes take?

5,000 messages of 1 KB a second, in batches of at most 1 ms, for so long that every bookie fills several journals. In
the same run, three processes each append 8 KB and sync it 600 times per second. This is about the load of each bookie's
disk. Load and appenders take turns, so that neighbours in time see the same disk. For minutes, a virtual disk can stop
for tenths of a second at a time.

    python bench/steady.py URL SECONDS     the load alone, its latencies as JSON
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from appender import append_in_processes
from measurement import Latency, measurement, payload
from rows import Report, ratio

RATE = 5_000
SIZE = 1024
BATCH_DELAY_MS = 1
WARM_UP_S = 3.0
LOAD_S = 30.0
TURNS = 3
APPEND_BYTES = 8 << 10
APPENDS_PER_S = 600
APPEND_S = 20.0
PENDING_MAX = 30_000
TICK_S = 0.0005
DRAIN_S = 30.0
ROTATIONS_MIN = 2
TARGET = 6.0


def run(cluster: Any, directory: Path, report: Report, seconds: float = LOAD_S, anchor_s: float = APPEND_S) -> None:
    """Both rows. `directory` is the cluster's, on the disk of the bookies."""
    anchor, receipts, delays = Latency(), Latency(), Latency()
    sent = 0
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        journals = journal_ids(directory)
        for _ in range(TURNS):
            measure_anchor(Path(scratch), anchor, anchor_s / (TURNS + 1))
            sent += load(cluster.service_url, seconds / TURNS, receipts, delays)
        measure_anchor(Path(scratch), anchor, anchor_s / (TURNS + 1))
        rotations = {bookie: last - journals.get(bookie, 0) for bookie, last in journal_ids(directory).items()}
    if seconds >= LOAD_S and min(rotations.values()) < ROTATIONS_MIN:
        raise RuntimeError(f"too few journals were filled for a figure: {rotations}")
    report.raw.append(
        measurement(
            "1-topic-1-partition-1kb-5000-per-second",
            message_size=SIZE,
            publish_rates=[sent / seconds],
            latencies={"PublishLatency": receipts, "PublishDelayLatency": delays},
            journalsFilled=rotations,
        )
    )
    report.raw.append(
        measurement(
            "3-processes-append-8kb-600-per-second",
            message_size=APPEND_BYTES,
            latencies={"PublishLatency": anchor},
            driver="fdatasync",
        )
    )
    for percent, name in ((99.0, "p99"), (99.9, "p99.9")):
        own, limit = receipts.quantile_ms(percent), anchor.quantile_ms(percent)
        note = (
            f"{own:.1f} ms over {limit:.1f} ms; {min(rotations.values())} to {max(rotations.values())} journals filled"
        )
        report.rows.append(ratio(f"steady load, {name}", own / limit, TARGET, better="lower", note=note))


def measure_anchor(scratch: Path, anchor: Latency, seconds: float) -> None:
    """Three processes that append and sync."""
    for latency in append_in_processes(scratch, processes=3, size=APPEND_BYTES, rate=APPENDS_PER_S, seconds=seconds):
        anchor.record(latency)


def journal_ids(directory: Path) -> dict[str, int]:
    """The number of each bookie's newest journal."""
    found: dict[str, int] = {}
    for path in directory.glob("bookie-*/*.journal"):
        bookie = path.parent.name
        found[bookie] = max(found.get(bookie, 0), int(path.stem, 16))
    return found


def load(service_url: str, seconds: float, receipts: Latency, delays: Latency) -> int:
    """Send from a process of its own; returns the messages sent.

    Adds their publish latencies to `receipts`, and how late each was sent to `delays`.
    """
    command = [sys.executable, __file__, service_url, str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * 2 + 120, check=False)
    if done.returncode:
        raise RuntimeError(f"the load failed: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    for latency, counts in ((receipts, found["receipts_us"]), (delays, found["delays_us"])):
        for microseconds, count in counts.items():
            latency.record(int(microseconds) / 1e6, count)
    return found["sent"]


def one_load(service_url: str, seconds: float) -> dict[str, Any]:
    """Send on schedule; the latencies as counts by microsecond."""
    import magnetar

    with magnetar.Client(service_url) as client:
        producer = client.create_producer(
            "bench-steady",
            batching_enabled=True,
            batching_max_publish_delay_ms=BATCH_DELAY_MS,
            max_pending_messages=PENDING_MAX,
            block_if_queue_full=True,
        )
        send_on_schedule(producer, WARM_UP_S)
        sent, receipts, delays, failures = send_on_schedule(producer, seconds)
        producer.close()
    if failures or sum(receipts.values()) != sent:
        raise RuntimeError(f"{sent} sent, {sum(receipts.values())} receipts, failures: {failures[:3]}")
    return {"sent": sent, "receipts_us": receipts, "delays_us": delays}


def send_on_schedule(producer: Any, seconds: float) -> tuple[int, dict[int, int], dict[int, int], list[Any]]:
    """Messages sent, counts of latencies by microsecond, counts of delays, and failures."""
    import magnetar

    data = payload(SIZE)
    receipts: dict[int, int] = {}
    delays: dict[int, int] = {}
    failures: list[Any] = []
    ok = magnetar.Result.Ok

    def receipt(sent_at: float, result: Any, message_id: Any) -> None:
        microseconds = int((time.perf_counter() - sent_at) * 1e6)
        receipts[microseconds] = receipts.get(microseconds, 0) + 1
        if result != ok:
            failures.append(result)

    total = int(RATE * seconds)
    begin = time.perf_counter()
    sent = 0
    while sent < total:
        now = time.perf_counter()
        due = min(total, int((now - begin) * RATE) + 1)
        while sent < due:
            now = time.perf_counter()
            delay = int((now - begin - sent / RATE) * 1e6)
            delays[delay] = delays.get(delay, 0) + 1
            producer.send_async(data, lambda result, message_id, now=now: receipt(now, result, message_id))
            sent += 1
        time.sleep(TICK_S)
    producer.flush()
    end = time.monotonic() + DRAIN_S
    while sum(receipts.values()) < sent and time.monotonic() < end:
        time.sleep(TICK_S)
    return sent, receipts, delays, failures


if __name__ == "__main__":
    print(json.dumps(one_load(sys.argv[1], float(sys.argv[2]))))
