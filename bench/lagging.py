"""Rate of a consumer that is 5,000,000 messages behind while producers go on, over the same without producers.

Messages of 100 bytes, in batches of 1,000. A process of its own publishes 20,000 of them a second. The consumer reads
until it gets messages that are younger than a second, so it has caught up with the producer. All that it reads counts,
also what was published meanwhile. The same topic is read before that, up to its end, while nobody publishes.

Memory is the resident set of the broker in which it grows most: the largest while the consumer catches up, over that
before the first message was published.

    python bench/lagging.py pulsar://localhost:6650 [--messages N] [--processes PID …]     against a running cluster
"""

import argparse
import secrets
import subprocess
import sys
import time
from typing import Any, NamedTuple

from measurement import measurement, payload
from processes import Memory, service_processes
from rows import Report, Row, ratio

import magnetar

MESSAGE_SIZE = 100
MESSAGES = 5_000_000
BATCH_MESSAGES = 1_000
QUEUE_SIZE = 10_000
PUBLISH_RATE = 20_000
YOUNG_MS = 1_000
RECEIVE_TIMEOUT_MS = 60_000
LOOK_EVERY = 50
"""Takes of the consumer between two looks at the memory."""
TARGET = 0.5
MEMORY_MAX_MB = 100.0


class Lag(NamedTuple):
    """What was measured. Rates are messages a second."""

    plain_rate: float
    lagging_rate: float
    messages: int
    """Read while producers went on."""
    grown_mb: float


def run(cluster: Any, report: Report, messages: int = MESSAGES) -> None:
    """Both rows, against a running cluster."""
    nodes = service_processes(cluster.status())
    found = measure(cluster.service_url, messages, [nodes[node] for node in nodes if node.startswith("broker")])
    title = f"a consumer {messages:,} messages behind"
    note = f"{found.lagging_rate:,.0f}/s over {found.plain_rate:,.0f}/s; {found.messages:,} messages until the end"
    figure = found.lagging_rate / found.plain_rate
    report.rows.append(ratio(f"{title} ÷ without producers", figure, TARGET, better="higher", note=note))
    report.rows.append(
        Row(f"{title}: memory of the broker", round(found.grown_mb, 1), "lower", MEMORY_MAX_MB, [], "MB")
    )
    report.raw.append(
        measurement(
            "1-topic-1-partition-100b-lagging",
            message_size=MESSAGE_SIZE,
            publish_rates=[float(PUBLISH_RATE)],
            consume_rates=[found.lagging_rate],
            brokerMemoryMb=found.grown_mb,
        )
    )


def measure(service_url: str, messages: int, processes: list[int]) -> Lag:
    """Fill a topic, and read it twice."""
    topic = f"bench-lagging-{secrets.token_hex(4)}"
    watch = Memory(processes)
    watch.begin()
    with magnetar.Client(service_url) as client:
        lagging = _subscribe(client, topic, "lagging")
        lagging.close()
        _fill(client, topic, messages)
        plain = _subscribe(client, topic, "plain")
        began = time.perf_counter()
        taken = 0
        while taken < messages:
            taken += _take(plain)[0]
        plain_rate = taken / (time.perf_counter() - began)
        plain.unsubscribe()
        command = [sys.executable, __file__, service_url, "--publish", topic]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as publisher:
            assert publisher.stdout is not None
            publisher.stdout.readline()  # it has begun
            lagging = _subscribe(client, topic, "lagging")
            began = time.perf_counter()
            taken = takes = youngest_ms = 0
            while time.time() * 1000 - youngest_ms > YOUNG_MS:
                count, youngest_ms = _take(lagging)
                taken += count
                takes += 1
                if takes % LOOK_EVERY == 0:
                    watch.look()
            lagging_rate = taken / (time.perf_counter() - began)
            watch.look()
            publisher.kill()
        lagging.unsubscribe()
    if taken <= messages:
        raise RuntimeError(f"{taken:,} messages were read, and {messages:,} were there before: nobody published")
    return Lag(plain_rate, lagging_rate, taken, watch.grown_mb)


def _subscribe(client: magnetar.Client, topic: str, name: str) -> magnetar.Consumer:
    earliest = magnetar.InitialPosition.Earliest
    return client.subscribe(topic, name, initial_position=earliest, receiver_queue_size=QUEUE_SIZE)


def _take(consumer: magnetar.Consumer) -> tuple[int, int]:
    """Receive and acknowledge what is there: how many messages, and the publish time of the last one."""
    found = consumer.receive_many(QUEUE_SIZE, RECEIVE_TIMEOUT_MS)
    consumer.acknowledge_cumulative(found[-1])
    return len(found), found[-1].publish_timestamp()


def _fill(client: magnetar.Client, topic: str, messages: int) -> None:
    producer = _producer(client, topic)
    block = [payload(MESSAGE_SIZE)] * BATCH_MESSAGES
    for _ in range(messages // BATCH_MESSAGES):
        producer.send_many(block, lambda *_: None)
    producer.close()


def _producer(client: magnetar.Client, topic: str) -> magnetar.Producer:
    return client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=BATCH_MESSAGES,
        batching_max_allowed_size_in_bytes=BATCH_MESSAGES * MESSAGE_SIZE * 2,
        max_pending_messages=30 * BATCH_MESSAGES,
    )


def publish(service_url: str, topic: str) -> None:
    """Publish at the rate until killed. Writes a line when the first batch is stored."""
    with magnetar.Client(service_url) as client:
        producer = _producer(client, topic)
        block = [payload(MESSAGE_SIZE)] * BATCH_MESSAGES
        producer.send_many(block)
        print("begun", flush=True)
        due = time.perf_counter()
        while True:
            due += BATCH_MESSAGES / PUBLISH_RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            producer.send_many(block, lambda *_: None)


def main() -> None:
    """One measurement, printed; or the publisher."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service_url")
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--processes", type=int, nargs="*", default=[], help="of the brokers")
    parser.add_argument("--publish", metavar="TOPIC", help="publish to it until killed")
    options = parser.parse_args()
    if options.publish:
        publish(options.service_url, options.publish)
    print(measure(options.service_url, options.messages, options.processes))


if __name__ == "__main__":
    main()
