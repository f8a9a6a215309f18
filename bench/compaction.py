"""Rate of compacting a topic over that of reading all of it, by a consumer of ours that lags behind.

5,000,000 messages of 100 bytes with 100,000 keys in random order, in batches of up to 1,000. The consumer reads the
whole topic before and after the compaction; the figure is over the faster of the two.

    python bench/compaction.py pulsar://localhost:6650 http://localhost:8080 [--messages N]
"""

import argparse
import random
import secrets
import time
from typing import Any

from admin_http import ask
from measurement import payload
from rows import Report, ratio

import magnetar

MESSAGE_SIZE = 100
MESSAGES = 5_000_000
KEYS = 100_000
BATCH_MESSAGES = 1_000
QUEUE_SIZE = 10_000
TARGET = 0.5
RECEIVE_TIMEOUT_MS = 60_000
COMPACTION_LIMIT_S = 600.0
LOOK_INTERVAL_S = 0.2
ROW = "compaction ÷ reading the same topic"


def run(cluster: Any, report: Report, messages: int = MESSAGES) -> None:
    """The row, against a running cluster."""
    compacted, read, kept = compare(cluster.service_url, cluster.admin_url, messages)
    note = f"{compacted:,.0f}/s over {read:,.0f}/s, {kept:,} entries kept"
    report.rows.append(ratio(ROW, compacted / read, TARGET, better="higher", note=note))


def compare(service_url: str, admin_url: str, messages: int) -> tuple[float, float, int]:
    """Messages a second of a compaction, and of reading; how many entries the compacted ledger has."""
    topic = f"bench-compaction-{secrets.token_hex(4)}"
    admin = f"{admin_url}/admin/v2/persistent/public/default/{topic}"
    with magnetar.Client(service_url) as client:
        client.subscribe(topic, "keeper", initial_position=magnetar.InitialPosition.Earliest).close()
        publish(client, topic, messages)
        before = read_all(client, topic, messages)
        compacted = compact(admin, messages)
        after = read_all(client, topic, messages)
    return compacted, max(before, after), ask("GET", f"{admin}/internalStats")["compactedLedger"]["entries"]


def publish(client: magnetar.Client, topic: str, messages: int) -> None:
    """Fill the topic."""
    chance = random.Random(1)
    keys = [f"key-{number:06d}" for number in range(KEYS)]
    body = payload(MESSAGE_SIZE)
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=BATCH_MESSAGES, block_if_queue_full=True
    )
    for _ in range(messages):
        producer.send_async(body, lambda *_: None, partition_key=chance.choice(keys))
    producer.close()


def read_all(client: magnetar.Client, topic: str, messages: int) -> float:
    """Messages a second of one consumer that reads the topic from its beginning."""
    consumer = client.subscribe(
        topic,
        f"read-{secrets.token_hex(4)}",
        initial_position=magnetar.InitialPosition.Earliest,
        receiver_queue_size=QUEUE_SIZE,
    )
    begin = time.monotonic()
    left = messages
    while left > 0:
        left -= len(consumer.receive_many(QUEUE_SIZE, RECEIVE_TIMEOUT_MS))
    rate = messages / (time.monotonic() - begin)
    consumer.unsubscribe()
    return rate


def compact(admin: str, messages: int) -> float:
    """Messages a second of one compaction, as the broker measures it."""
    ask("PUT", f"{admin}/compaction")
    end = time.monotonic() + COMPACTION_LIMIT_S
    while (found := ask("GET", f"{admin}/compaction"))["status"] == "RUNNING":
        if time.monotonic() > end:
            raise TimeoutError("the compaction did not end")
        time.sleep(LOOK_INTERVAL_S)
    if found["status"] != "SUCCESS":
        raise RuntimeError(f"the compaction failed: {found['lastError']}")
    return messages / (ask("GET", f"{admin}/stats")["compaction"]["lastCompactionDurationTimeInMills"] / 1000)


def main() -> None:
    """One comparison, printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service_url")
    parser.add_argument("admin_url")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    options = parser.parse_args()
    compacted, read, kept = compare(options.service_url, options.admin_url, options.messages)
    print(f"{compacted:,.0f}/s compacted, {read:,.0f}/s read: {compacted / read:.2f}, {kept:,} entries kept")


if __name__ == "__main__":
    main()
