"""How long a message takes from its publishing until a consumer has it: non-persistent over persistent."""

import contextlib
import time
from typing import Any

from measurement import Latency, measurement, payload
from rows import Report, median_of_pairs, ratio

import magnetar
from magnetar.cluster.handle import Cluster

MESSAGES = 500
ROUNDS = 3
RECEIVE_MS = 10_000
SHARE_MAX = 0.5
TOPICS = {domain: f"{domain}://public/default/bench-passing" for domain in ("non-persistent", "persistent")}


def run(cluster: Cluster, report: Report) -> None:
    """The row: p50 of messages of 1 KB, one at a time, on topics of both kinds in turn."""
    p50: dict[str, list[float]] = {domain: [] for domain in TOPICS}
    with cluster.client() as client:
        ends = {
            domain: (client.subscribe(topic, "bench"), client.create_producer(topic, batching_enabled=False))
            for domain, topic in TOPICS.items()
        }
        data = payload(1024)
        for consumer, producer in ends.values():
            _first(consumer, producer, data)
        for round_number in range(ROUNDS):
            for domain, (consumer, producer) in ends.items():
                latencies, rate = through(consumer, producer, data)
                p50[domain].append(latencies.quantile_ms(50))
                report.raw.append(
                    measurement(
                        f"1-topic-{domain}-1kb-publish-to-receive",
                        message_size=1024,
                        publish_rates=[rate],
                        latencies={"EndToEndLatency": latencies},
                        round=round_number,
                    )
                )
    figure, samples = median_of_pairs(p50["non-persistent"], p50["persistent"])
    note = f"{min(p50['non-persistent']):.2f} ms over {min(p50['persistent']):.2f} ms"
    report.rows.append(
        ratio("non-persistent publish to receive", figure, SHARE_MAX, better="lower", samples=samples, note=note)
    )


def _first(consumer: Any, producer: Any, data: bytes) -> None:
    """A non-persistent topic drops what comes before the consumer's permits. So send until something arrives, and take
    what is on its way."""
    for _ in range(100):
        producer.send(data)
        with contextlib.suppress(magnetar.Timeout):
            consumer.acknowledge(consumer.receive(200))
            return
    raise RuntimeError("no message arrived")


def through(consumer: Any, producer: Any, data: bytes) -> tuple[Latency, float]:
    """Send messages, each when the one before it has arrived; latencies and messages a second."""
    latencies = Latency()
    begin = time.perf_counter()
    for _ in range(MESSAGES):
        sent = time.perf_counter()
        producer.send_async(data, None)
        message = consumer.receive(RECEIVE_MS)
        latencies.record(time.perf_counter() - sent)
        consumer.acknowledge(message)
    return latencies, MESSAGES / (time.perf_counter() - begin)
