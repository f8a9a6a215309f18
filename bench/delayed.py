"""A million delayed messages on one topic: what the broker's memory grows by, and how exact their delivery is.

One Shared consumer is connected. Messages of 100 bytes are published, each an entry of its own, since messages with a
delivery time travel alone. Most of them are due in a day. Every fiftieth is due in a window that begins when all are
published, spread evenly over it. So these have to be found among all others.

Memory is the resident set of the broker's process: the largest after the last delivery, or while the messages are
published, over that before. Before, the broker has stored and delivered 50,000 plain messages, so that its caches are
there. The error of a delivery is the time between the consumer's receipt and the delivery time, early or late.

It takes minutes, and therefore runs only when it is asked for: `python bench/run.py --only delayed`.

    python bench/delayed.py pulsar://localhost:6650 http://localhost:8080 COUNT PROCESS…     against a running cluster
"""

import asyncio
import json
import sys
import time
import urllib.request
from struct import Struct
from typing import Any

from measurement import Latency, measurement, payload
from processes import Memory, service_processes
from rows import Report, Row

import magnetar

MESSAGES = 1_000_000
SAMPLED = 50
"""One of so many messages is due soon."""
WINDOW_S = 20.0
WARM_UP_MESSAGES = 50_000
FIRST_MESSAGES = 50_000
"""Their rate tells when all will be published."""
MARGIN = 1.6
MARGIN_S = 10.0
DAY_MS = 86_400_000
PENDING_MAX = 10_000
SIZE = 100
TOPIC = "bench-delayed"
DUE = Struct(">q")
"""The delivery time, which is the beginning of the payload."""
MEMORY_MAX_MB = 100.0
ERROR_MAX_MS = 1100.0
"""One tick, as it is by default, and 100 ms."""


def run(cluster: Any, report: Report, count: int = MESSAGES) -> None:
    """Both rows."""
    processes = [process for node, process in service_processes(cluster.status()).items() if node.startswith("broker")]
    found = asyncio.run(measure(cluster.service_url, cluster.admin_url, count, processes))
    errors: Latency = found["errors"]
    rate, held = found["rate"], found["held"]
    note = f"{held:,} held; published at {rate:,.0f}/s; {found['index_bytes'] / 1e6:.1f} MB of index"
    title = f"{count:,} delayed messages"
    grown_mb, error_ms = round(found["grown_mb"], 1), round(errors.quantile_ms(99), 1)
    report.rows.append(Row(f"{title}: memory of the broker", grown_mb, "lower", MEMORY_MAX_MB, [], "MB", note))
    note = f"{found['delivered']:,} messages over {WINDOW_S:.0f} s, p50 {errors.quantile_ms(50):.0f} ms, tick 1,000 ms"
    report.rows.append(Row(f"{title}: error of delivery, p99", error_ms, "lower", ERROR_MAX_MS, [], "ms", note))
    report.raw.append(
        measurement(
            "1-topic-1-partition-100b-delayed",
            message_size=SIZE,
            publish_rates=[rate],
            latencies={"DeliveryErrorLatency": errors},
            delayedMessages=held,
            brokerMemoryMb=found["grown_mb"],
        )
    )


async def measure(service_url: str, admin_url: str, count: int, processes: list[int]) -> dict[str, Any]:
    """Publish, and receive what is due in the window."""
    errors, watch = Latency(), Memory(processes)
    async with magnetar.AsyncClient(service_url) as client:
        options: dict[str, Any] = {"batching_enabled": False, "max_pending_messages": PENDING_MAX}
        await _warm_up(client, options)
        watch.begin()
        consumer = await client.subscribe(TOPIC, "bench", magnetar.ConsumerType.Shared, receiver_queue_size=10_000)
        producer = await client.create_producer(TOPIC, **options)
        publishing = _Publishing(producer, watch)
        began = time.perf_counter()
        first = min(FIRST_MESSAGES, count // 10)
        far_ms = int(time.time() * 1000) + DAY_MS
        await publishing.send([far_ms] * first)
        rate = first / (time.perf_counter() - began)
        opens_ms = int((time.time() + (count - first) / rate * MARGIN + MARGIN_S) * 1000)
        due = range(0, count - first, SAMPLED)
        step_ms = WINDOW_S * 1000 / len(due)
        times = [far_ms] * (count - first)
        for number, index in enumerate(due):
            times[index] = opens_ms + int(number * step_ms)
        await publishing.send(times)
        rate = count / (time.perf_counter() - began)
        if time.time() * 1000 > opens_ms:
            raise RuntimeError("publishing slowed down, and the window had begun before its end: run it again")
        await asyncio.sleep(3.0)  # the broker reads the last of them, and stores what is beyond its memory
        stats = await asyncio.to_thread(_statistics, admin_url)
        watch.look()
        for _ in due:
            message = await consumer.receive(600_000)
            (due_ms,) = DUE.unpack_from(message.data())
            errors.record(abs(time.time() - due_ms / 1000))
        watch.look()
    return {
        "errors": errors,
        "rate": rate,
        "held": stats["msgDelayed"],
        "index_bytes": stats["delayedMessageIndexSizeInBytes"],
        "delivered": len(due),
        "grown_mb": watch.grown_mb,
    }


class _Publishing:
    """Publishes messages, and looks at the broker's memory meanwhile."""

    def __init__(self, producer: magnetar.AsyncProducer, watch: Memory) -> None:
        self._producer = producer
        self._watch = watch
        self._room = asyncio.Semaphore(PENDING_MAX)
        self._filling = payload(SIZE - DUE.size)
        self._failed: list[object] = []

    async def send(self, times_ms: list[int]) -> None:
        """One message for each time, 0 for no delay. Returns when all are stored."""
        for number, due_ms in enumerate(times_ms):
            await self._room.acquire()
            self._producer.send_async(DUE.pack(due_ms) + self._filling, self._sent, deliver_at=due_ms or None)
            if number % 50_000 == 0:
                self._watch.look()
        await self._producer.flush()
        if self._failed:
            raise RuntimeError(f"{len(self._failed)} messages were not stored: {self._failed[0]}")

    def _sent(self, result: object, message_id: object) -> None:
        self._room.release()
        if result != magnetar.Result.Ok:
            self._failed.append(result)


async def _warm_up(client: magnetar.AsyncClient, options: dict[str, Any]) -> None:
    consumer = await client.subscribe(TOPIC, "warm-up", magnetar.ConsumerType.Shared, receiver_queue_size=10_000)
    producer = await client.create_producer(TOPIC, **options)
    await _Publishing(producer, Memory([])).send([0] * WARM_UP_MESSAGES)
    for _ in range(WARM_UP_MESSAGES):
        await consumer.acknowledge(await consumer.receive(60_000))
    await consumer.unsubscribe()
    await producer.close()


def _statistics(admin_url: str) -> dict[str, Any]:
    """Of the subscription."""
    with urllib.request.urlopen(f"{admin_url}/admin/v2/persistent/public/default/{TOPIC}/stats", timeout=30) as answer:
        return json.load(answer)["subscriptions"]["bench"]


def main() -> None:
    """Print what was found."""
    found = asyncio.run(measure(sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(one) for one in sys.argv[4:]]))
    errors = found.pop("errors")
    print(json.dumps({**found, "p50_ms": errors.quantile_ms(50), "p99_ms": errors.quantile_ms(99)}))


if __name__ == "__main__":
    main()
