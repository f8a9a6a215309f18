"""Publish rate of our client over that of the official one, on the same cluster with the same settings.

100-byte messages; batches of up to 1,000 messages, 10 ms, 128 KiB; equal limits on pending messages. Every message is
counted by its own callback. Runs alternate between the clients, each run in a process of its own, so that no run
inherits another's threads. The figure is the median of the ratios of neighbouring runs. `send_many` on 64 partitions is
compared with one partition, with equal limits on all pending messages.

    python bench/client_rate.py pulsar://localhost:6650 http://localhost:8080     # the comparison, printed
    python bench/client_rate.py URL --one magnetar.send_async                    # one run, as JSON
"""

import argparse
import json
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from admin_http import ask
from measurement import measurement, payload
from rows import Report, median_of_pairs, ratio

MESSAGE_SIZE = 100
BATCH_MESSAGES = 1_000
BATCH_DELAY_MS = 10
BATCH_BYTES = 128 * 1024
PENDING_MAX = 30_000
"""For both clients. Thirty full batches: with fewer the figure is the latency of the disk and not the client's rate."""
RUNS = 5
WARM_UP_S = 0.5
RUN_S = 2.0
DRAIN_TIMEOUT_S = 60.0
PARTITIONS = 64
MANY_PARTITIONS = "magnetar.send_many.64"
WAYS = ("pulsar.send_async", "magnetar.send_async", "magnetar.send_many", MANY_PARTITIONS)
TARGETS = {"magnetar.send_async": 5.0, "magnetar.send_many": 15.0}
MANY_PARTITIONS_TARGET = 0.75


@dataclass
class Rates:
    """Messages a second of each way, run by run."""

    by_way: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})

    def ratio(self, way: str, anchor: str = "pulsar.send_async") -> tuple[float, list[float]]:
        """Median of the rate of one way over another's (the official client's), and the single ratios."""
        return median_of_pairs(self.by_way[way], self.by_way[anchor])


class Receipts:
    """How many messages have their receipt, and how many of those failed."""

    def __init__(self) -> None:
        self.received = 0
        self.failed = 0

    def callback(self, ok: Any) -> Callable[[Any, Any], None]:
        """The callback that counts, once for each message."""

        def receipt(result: Any, message_id: Any) -> None:
            self.received += 1
            if result != ok:
                self.failed += 1

        return receipt


def run(cluster: Any, report: Report) -> None:
    """All rows, against a running cluster."""
    rates = compare(cluster.service_url, cluster.admin_url)
    for way, target in TARGETS.items():
        figure, samples = rates.ratio(way)
        ours, theirs = median(rates.by_way[way]), median(rates.by_way["pulsar.send_async"])
        note = f"{ours:,.0f}/s over {theirs:,.0f}/s"
        name = f"publish rate, {way.partition('.')[2]}"
        report.rows.append(ratio(name, figure, target, better="higher", samples=samples, note=note))
    figure, samples = rates.ratio(MANY_PARTITIONS, "magnetar.send_many")
    many, one = median(rates.by_way[MANY_PARTITIONS]), median(rates.by_way["magnetar.send_many"])
    name, note = f"send_many on {PARTITIONS} partitions ÷ on 1", f"{many:,.0f}/s over {one:,.0f}/s"
    report.rows.append(ratio(name, figure, MANY_PARTITIONS_TARGET, better="higher", samples=samples, note=note))
    for way, found in rates.by_way.items():
        driver, _, method = way.partition(".")
        report.raw.append(
            measurement(
                "1-topic-1-partition-100b",
                message_size=MESSAGE_SIZE,
                publish_rates=found,
                driver={"pulsar": "pulsar-client", "magnetar": "Magnetar"}[driver],
                method=method,
                pendingMax=PENDING_MAX,
            )
        )


def compare(service_url: str, admin_url: str, runs: int = RUNS, seconds: float = RUN_S) -> Rates:
    """Run all ways in turn, `runs` times over."""
    rates = Rates()
    for _ in range(runs):
        for way in WAYS:
            topic = f"bench-rate-{way.replace('.', '-')}-{secrets.token_hex(3)}"
            if way == MANY_PARTITIONS:
                _create_partitions(admin_url, topic)
            command = [sys.executable, __file__, service_url, "--one", way, "--seconds", str(seconds), "--topic", topic]
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120, check=False)
            if done.returncode:
                raise RuntimeError(f"{way} failed: {done.stderr[-2000:]}")
            rates.by_way[way].append(json.loads(done.stdout.splitlines()[-1])["rate"])
    return rates


def _create_partitions(admin_url: str, topic: str) -> None:
    ask("PUT", f"{admin_url}/admin/v2/persistent/public/default/{topic}/partitions", PARTITIONS)


def one_run(service_url: str, way: str, topic: str, seconds: float, **options: Any) -> dict[str, Any]:
    """One way for `seconds`, after a warm-up; messages a second from the first send to the last receipt.

    `options` are those of the client.
    """
    library, _, method = way.partition(".")
    if library == "pulsar":
        import pulsar as module

        client = module.Client(service_url, logger=module.ConsoleLogger(module.LoggerLevel.Error), **options)
    else:
        import magnetar as module

        client = module.Client(service_url, **options)
    ok = module.Result.Ok
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=BATCH_MESSAGES,
        batching_max_publish_delay_ms=BATCH_DELAY_MS,
        batching_max_allowed_size_in_bytes=BATCH_BYTES,
        max_pending_messages=PENDING_MAX,
        max_pending_messages_across_partitions=PENDING_MAX,
        block_if_queue_full=True,
    )
    send = _one_by_one if method == "send_async" else _many
    try:
        send(producer, Receipts(), ok, WARM_UP_S)
        receipts = Receipts()
        begin = time.perf_counter()
        sent = send(producer, receipts, ok, seconds)
        elapsed = time.perf_counter() - begin
        if receipts.received != sent or receipts.failed:
            raise RuntimeError(f"{sent} sent, {receipts.received} receipts, {receipts.failed} failures")
    finally:
        client.close()
    return {"way": way, "rate": sent / elapsed, "messages": sent}


def _one_by_one(producer: Any, receipts: Receipts, ok: Any, seconds: float) -> int:
    data, receipt, send = payload(MESSAGE_SIZE), receipts.callback(ok), producer.send_async
    sent = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(1_000):
            send(data, receipt)
        sent += 1_000
    _drain(producer, receipts, sent)
    return sent


def _many(producer: Any, receipts: Receipts, ok: Any, seconds: float) -> int:
    block, receipt = [payload(MESSAGE_SIZE)] * 1_000, receipts.callback(ok)
    sent = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        producer.send_many(block, receipt)
        sent += len(block)
    _drain(producer, receipts, sent)
    return sent


def _drain(producer: Any, receipts: Receipts, sent: int) -> None:
    """Until every receipt has come."""
    producer.flush()
    wait = threading.Event()
    end = time.monotonic() + DRAIN_TIMEOUT_S
    while receipts.received < sent and time.monotonic() < end:
        wait.wait(0.0005)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service_url")
    parser.add_argument("admin_url", nargs="?", help="needed for the comparison: creates topics with partitions")
    parser.add_argument("--one", choices=WAYS, help="only one run of this way, printed as JSON")
    parser.add_argument("--topic", default="bench-rate")
    parser.add_argument("--seconds", type=float, default=RUN_S, help="length of a run")
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(options.service_url, options.one, options.topic, options.seconds)))
        return
    if options.admin_url is None:
        parser.error("the comparison needs the admin URL")
    rates = compare(options.service_url, options.admin_url, options.runs, options.seconds)
    for way, found in rates.by_way.items():
        print(f"{way:22}", "  ".join(f"{rate:>10,.0f}" for rate in found), f"  median {median(found):,.0f}/s")
    for way in TARGETS:
        figure, samples = rates.ratio(way)
        print(f"{way} / pulsar.send_async: {figure:.1f}  ({', '.join(f'{sample:.1f}' for sample in samples)})")
    figure, samples = rates.ratio(MANY_PARTITIONS, "magnetar.send_many")
    print(f"{PARTITIONS} partitions / 1: {figure:.2f}  ({', '.join(f'{sample:.2f}' for sample in samples)})")


if __name__ == "__main__":
    main()
