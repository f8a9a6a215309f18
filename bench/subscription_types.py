"""Rates of dispatch to several consumers: Shared over Exclusive, Key_Shared over Shared, and with one stuck key.

Everything is published before the clock starts. Each run has a process of its own, with one thread for each consumer,
and consumes a topic once with `receive_many` and `acknowledge_many`. Runs alternate between the ways of a row, and its
figure is the median of the ratios of neighbouring runs.

- *Shared*: 4 consumers over one Exclusive consumer, 100-byte messages in batches of 1,000.
- *Key_Shared*: 8 consumers over 8 Shared ones, 10,000 keys, key-based batches of 10.
- *stuck key*: 2 consumers, 1,000 keys in key-based batches of 10, and one more key. A third consumer holds a message of
  that key, so that the key drains and its later messages wait, over the same when that message is acknowledged.

    python bench/subscription_types.py pulsar://localhost:6650
"""

import argparse
import json
import secrets
import subprocess
import sys
import threading
import time
from statistics import median
from typing import Any

from measurement import payload
from rows import Report, median_of_pairs, ratio

import magnetar
from magnetar.actors.dispatch.consumer import AttachedConsumer
from magnetar.actors.dispatch.hash_ranges import HashRing
from magnetar.protocol.hashing import INT31_MASK, murmur3_32

MESSAGE_SIZE = 100
BATCH_MESSAGES = 1_000
KEY_BATCH_MESSAGES = 10
MESSAGES = 1_000_000
KEYED_MESSAGES = 100_000
KEYS = 10_000
FREE_KEYS = 1_000
QUEUE_SIZE = 10_000
RUNS = 3
RECEIVE_TIMEOUT_MS = 30_000
HOLDER, WORKERS = "holder", ("worker-0", "worker-1")
ROWS = (
    ("dispatch to 4 Shared consumers ÷ one Exclusive consumer", "shared", "exclusive", 0.8),
    ("Key_Shared, 8 consumers, 10,000 keys ÷ Shared", "key_shared", "keyed_shared", 0.5),
    ("Key_Shared with one stuck key and 1,000 free ones ÷ without", "stuck", "free", 0.9),
)


def run(cluster: Any, report: Report) -> None:
    """All rows, against a running cluster."""
    for name, way, anchor, target in ROWS:
        rates = compare(cluster.service_url, (way, anchor))
        figure, samples = median_of_pairs(rates[way], rates[anchor])
        note = f"{median(rates[way]):,.0f}/s over {median(rates[anchor]):,.0f}/s"
        report.rows.append(ratio(name, figure, target, better="higher", samples=samples, note=note))


def compare(service_url: str, ways: tuple[str, str], runs: int = RUNS) -> dict[str, list[float]]:
    """Messages a second of each way, run by run."""
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(runs):
        for way in ways:
            command = [sys.executable, __file__, service_url, "--one", way]
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
            if done.returncode:
                raise RuntimeError(f"{way} failed: {done.stderr[-2000:]}")
            rates[way].append(json.loads(done.stdout.splitlines()[-1])["rate"])
    return rates


def one_run(service_url: str, way: str) -> dict[str, Any]:
    """One way, once through a topic of its own."""
    topic = f"bench-types-{secrets.token_hex(4)}"
    kind = magnetar.ConsumerType
    with magnetar.Client(service_url) as client:
        client.subscribe(topic, "s", kind.Shared, initial_position=magnetar.InitialPosition.Earliest).close()
        if way in ("exclusive", "shared"):
            publish(client, topic)
            names = ["only"] if way == "exclusive" else [f"worker-{number}" for number in range(4)]
            return consume(client, topic, kind.Exclusive if way == "exclusive" else kind.Shared, names, MESSAGES)
        if way in ("keyed_shared", "key_shared"):
            publish_keyed(client, topic, [f"key-{number}" for number in range(KEYS)])
            names = [f"worker-{number}" for number in range(8)]
            return consume(
                client, topic, kind.Shared if way == "keyed_shared" else kind.KeyShared, names, KEYED_MESSAGES
            )
        stuck, *free = keys_of_the_workers(FREE_KEYS + 1)
        first = client.create_producer(topic)
        first.send(payload(MESSAGE_SIZE), partition_key=stuck)
        first.close()
        publish_keyed(client, topic, [stuck, *free])
        holder = client.subscribe(topic, "s", kind.KeyShared, consumer_name=HOLDER, receiver_queue_size=0)
        message = holder.receive(RECEIVE_TIMEOUT_MS)
        if way == "free":
            holder.acknowledge(message)
        entries = KEYED_MESSAGES // KEY_BATCH_MESSAGES
        waits = sum(index % (FREE_KEYS + 1) == 0 for index in range(entries)) if way == "stuck" else 0
        wanted = (entries - waits) * KEY_BATCH_MESSAGES
        found = consume(client, topic, kind.KeyShared, list(WORKERS), wanted)
        holder.close()
        return found


def keys_of_the_workers(count: int) -> list[str]:
    """Keys that belong to the workers and not to the holder, when all of them are there."""
    ring = HashRing(100)
    for name in (HOLDER, *WORKERS):
        ring.add(AttachedConsumer(None, 0, name))  # type: ignore[arg-type]  # of which the ring needs the name
    keys: list[str] = []
    number = 0
    while len(keys) < count:
        key, number = f"key-{number}", number + 1
        owner = ring.select(ring.slot_of(murmur3_32(key.encode()) & INT31_MASK))
        if owner is not None and owner.name != HOLDER:
            keys.append(key)
    return keys


def publish(client: magnetar.Client, topic: str) -> None:
    """Batches of 1,000 messages."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=BATCH_MESSAGES,
        batching_max_allowed_size_in_bytes=BATCH_MESSAGES * MESSAGE_SIZE * 2,
        max_pending_messages=30 * BATCH_MESSAGES,
        block_if_queue_full=True,
    )
    for _ in range(MESSAGES // BATCH_MESSAGES):
        producer.send_many([payload(MESSAGE_SIZE)] * BATCH_MESSAGES, lambda result, message_id: None)
    producer.flush()
    producer.close()


def publish_keyed(client: magnetar.Client, topic: str, keys: list[str]) -> None:
    """Batches of 10 messages, each of one key, the keys in turn."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=magnetar.BatchingType.KeyBased,
        batching_max_messages=BATCH_MESSAGES,
        batching_max_allowed_size_in_bytes=BATCH_MESSAGES * MESSAGE_SIZE * 2,
        max_pending_messages=30 * BATCH_MESSAGES,
        block_if_queue_full=True,
    )
    data = payload(MESSAGE_SIZE)
    for index in range(KEYED_MESSAGES // KEY_BATCH_MESSAGES):
        for _ in range(KEY_BATCH_MESSAGES):
            producer.send_async(data, None, partition_key=keys[index % len(keys)])
    producer.flush()
    producer.close()


def consume(
    client: magnetar.Client, topic: str, kind: magnetar.ConsumerType, names: list[str], wanted: int
) -> dict[str, Any]:
    """All of the topic by so many consumers, each with a thread; the clock starts when they begin to subscribe."""
    lock, done = threading.Lock(), threading.Event()
    taken = 0

    def work(consumer: magnetar.Consumer) -> None:
        nonlocal taken
        while not done.is_set():
            try:
                messages = consumer.receive_many(BATCH_MESSAGES, 200)
            except magnetar.Timeout:
                continue
            consumer.acknowledge_many(messages)
            with lock:
                taken += len(messages)
                if taken >= wanted:
                    done.set()

    begin = time.perf_counter()
    consumers = [
        client.subscribe(topic, "s", kind, consumer_name=name, receiver_queue_size=QUEUE_SIZE // len(names))
        for name in names
    ]
    threads = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    if not done.wait(RECEIVE_TIMEOUT_MS / 1000):
        done.set()
        raise RuntimeError(f"{taken} messages of {wanted}")
    elapsed = time.perf_counter() - begin
    for thread in threads:
        thread.join()
    if taken != wanted:
        raise RuntimeError(f"{taken} messages of {wanted}")
    return {"rate": taken / elapsed, "messages": taken}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service_url")
    parser.add_argument("--one", choices=[way for row in ROWS for way in row[1:3]], help="only one run, as JSON")
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(options.service_url, options.one)))
        return
    for name, way, anchor, target in ROWS:
        rates = compare(options.service_url, (way, anchor), options.runs)
        figure, samples = median_of_pairs(rates[way], rates[anchor])
        shown = ", ".join(f"{sample:.2f}" for sample in samples)
        print(
            f"{name}: {figure:.2f} (≥ {target}; {shown}), {median(rates[way]):,.0f}/s ÷ {median(rates[anchor]):,.0f}/s"
        )


if __name__ == "__main__":
    main()
