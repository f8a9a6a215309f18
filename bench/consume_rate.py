"""Rate of receiving and acknowledging with our client over that of the official one, on the same topic.

100-byte messages, published once in batches of 1,000. Every run consumes all of them under a subscription of its own,
reads every payload and acknowledges every message. It has a process of its own and the same receiver queue. Runs
alternate between the ways, and the figure is the median of the ratios of neighbouring runs.

    python bench/consume_rate.py pulsar://localhost:6650             # the comparison, printed
    python bench/consume_rate.py URL --one magnetar.receive_many      # one run, as JSON
"""

import argparse
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from measurement import measurement, payload
from rows import Report, median_of_pairs, ratio

import magnetar

MESSAGE_SIZE = 100
MESSAGES = 400_000
WARM_UP_MESSAGES = 40_000
"""Received before the clock starts."""
BATCH_MESSAGES = 1_000
QUEUE_SIZE = 10_000
"""For both clients: ten batches, so that the figure is the client's rate and not the way to the broker and back."""
RUNS = 5
RECEIVE_TIMEOUT_MS = 30_000
OFFICIAL = "pulsar.receive"
TARGETS = {"magnetar.receive": 1.7, "magnetar.receive_many": 4.0}
WAYS = (OFFICIAL, *TARGETS)
ROWS = {
    "magnetar.receive": "receive + acknowledge ÷ official",
    "magnetar.receive_many": "receive_many + acknowledge_many ÷ official",
}


def run(cluster: Any, report: Report) -> None:
    """Both rows, against a running cluster."""
    rates = compare(cluster.service_url)
    for way, target in TARGETS.items():
        figure, samples = median_of_pairs(rates[way], rates[OFFICIAL])
        note = f"{median(rates[way]):,.0f}/s over {median(rates[OFFICIAL]):,.0f}/s"
        report.rows.append(ratio(ROWS[way], figure, target, better="higher", samples=samples, note=note))
    for way, found in rates.items():
        driver, _, method = way.partition(".")
        report.raw.append(
            measurement(
                "1-topic-1-partition-100b-consume",
                message_size=MESSAGE_SIZE,
                consume_rates=found,
                driver={"pulsar": "pulsar-client", "magnetar": "Magnetar"}[driver],
                method=method,
                receiverQueueSize=QUEUE_SIZE,
            )
        )


def compare(service_url: str, runs: int = RUNS) -> dict[str, list[float]]:
    """Messages a second of each way, run by run: publish the topic, then run all ways in turn, `runs` times over."""
    topic = f"bench-consume-{secrets.token_hex(4)}"
    publish(service_url, topic)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(runs):
        for way in WAYS:
            command = [sys.executable, __file__, service_url, "--one", way, "--topic", topic]
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
            if done.returncode:
                raise RuntimeError(f"{way} failed: {done.stderr[-2000:]}")
            rates[way].append(json.loads(done.stdout.splitlines()[-1])["rate"])
    return rates


def publish(service_url: str, topic: str) -> None:
    """What all runs consume."""
    block = [payload(MESSAGE_SIZE)] * BATCH_MESSAGES
    with magnetar.Client(service_url) as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
        producer = client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=BATCH_MESSAGES,
            batching_max_allowed_size_in_bytes=BATCH_MESSAGES * MESSAGE_SIZE * 2,
            max_pending_messages=30 * BATCH_MESSAGES,
        )
        for _ in range(MESSAGES // BATCH_MESSAGES):
            producer.send_many(block, lambda result, message_id: None)
        producer.flush()


def one_run(service_url: str, way: str, topic: str) -> dict[str, Any]:
    """One way once through the topic; messages a second after the warm-up."""
    library, _, method = way.partition(".")
    if library == "pulsar":
        import pulsar as module

        client: Any = module.Client(service_url, logger=module.ConsoleLogger(module.LoggerLevel.Error))
    else:
        import magnetar as module

        client = module.Client(service_url)
    take: Callable[[Any, int], int] = _many if method == "receive_many" else _one_by_one
    try:
        consumer = client.subscribe(
            topic,
            f"{way}-{secrets.token_hex(4)}",
            initial_position=module.InitialPosition.Earliest,
            receiver_queue_size=QUEUE_SIZE,
        )
        done = take(consumer, WARM_UP_MESSAGES)
        begin, cpu = time.perf_counter(), time.process_time()
        measured = take(consumer, MESSAGES - done)
        elapsed, cpu = time.perf_counter() - begin, time.process_time() - cpu
        if done + measured != MESSAGES:
            raise RuntimeError(f"{done + measured} messages of {MESSAGES}")
        consumer.unsubscribe()
    finally:
        client.close()
    return {"way": way, "rate": measured / elapsed, "cpu_us": cpu / measured * 1e6, "messages": measured}


def _one_by_one(consumer: Any, wanted: int) -> int:
    receive, acknowledge = consumer.receive, consumer.acknowledge
    size = 0
    for _ in range(wanted):
        message = receive(RECEIVE_TIMEOUT_MS)
        size += len(message.data())
        acknowledge(message)
    _check(size, wanted)
    return wanted


def _many(consumer: Any, wanted: int) -> int:
    """At least so many; the topic ends at the end of a batch."""
    taken = size = 0
    while taken < wanted:
        messages = consumer.receive_many(BATCH_MESSAGES, RECEIVE_TIMEOUT_MS)
        for message in messages:
            size += len(message.data())
        consumer.acknowledge_many(messages)
        taken += len(messages)
    _check(size, taken)
    return taken


def _check(size: int, messages: int) -> None:
    if size != messages * MESSAGE_SIZE:
        raise RuntimeError(f"{size} bytes in {messages} messages of {MESSAGE_SIZE}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service_url")
    parser.add_argument("--one", choices=WAYS, help="only one run of this way, printed as JSON")
    parser.add_argument("--topic", help="with --one: what `--publish` filled")
    parser.add_argument("--publish", metavar="TOPIC", help="only fill this topic")
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    if options.publish:
        publish(options.service_url, options.publish)
    elif options.one:
        print(json.dumps(one_run(options.service_url, options.one, options.topic)))
    else:
        rates = compare(options.service_url, options.runs)
        for way, found in rates.items():
            print(f"{way:22}", "  ".join(f"{rate:>10,.0f}" for rate in found), f"  median {median(found):,.0f}/s")
        for way in TARGETS:
            figure, samples = median_of_pairs(rates[way], rates[OFFICIAL])
            print(f"{ROWS[way]}: {figure:.2f}  ({', '.join(f'{sample:.2f}' for sample in samples)})")


if __name__ == "__main__":
    main()
