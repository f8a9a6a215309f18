"""What policies and kept topics cost: publishing, the time until a policy holds everywhere, memory of idle topics.

- `send_many` of 100-byte messages to a topic with deduplication, a STRING schema and a backlog quota, over the same
  without them. Runs alternate, each in a process of its own.
- A policy is set on a namespace with 1,000 loaded topics, each with one producer. The policy takes no second producer.
  The time ends when every topic has refused one. It contains the 1,000 refusals.
- 1,000 namespaces get a policy each, and a topic with one producer. The time ends when every topic has refused a second
  one.
- 10,000 topics get a durable subscription, one message and its acknowledgement each, and are left idle. The memory of
  the brokers' processes above that before, for each topic.

    python bench/keeping.py pulsar://localhost:6650 http://localhost:8080     # the first two, printed
"""

import argparse
import asyncio
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import client_rate
from admin_http import ask
from idle import proportional_memory_mb
from processes import service_processes
from rows import Report, Row, median_of_pairs, ratio

import magnetar

RUNS = 5
RUN_S = 2.0
WAYS = ("plain", "kept")
RATE_TARGET = 0.9
LOADED_TOPICS = 1_000
LOADED_SECONDS_MAX = 2.0
NAMESPACES = 1_000
NAMESPACES_SECONDS_MAX = 10.0
IDLE_TOPICS = 10_000
IDLE_KILOBYTES_MAX = 10.0
AT_A_TIME = 64
QUOTA = {"limitSize": 100 << 30, "limitTime": -1, "policy": "producer_request_hold"}


def run(cluster: Any, report: Report) -> None:
    """All rows, against a running cluster."""
    rates = compare(cluster.service_url, cluster.admin_url)
    figure, samples = median_of_pairs(rates["kept"], rates["plain"])
    kept, plain = (sorted(rates[way])[RUNS // 2] for way in ("kept", "plain"))
    note = f"{kept:,.0f}/s over {plain:,.0f}/s"
    name = "send_many with deduplication, schema and quota ÷ without"
    report.rows.append(ratio(name, figure, RATE_TARGET, better="higher", samples=samples, note=note))
    seconds = asyncio.run(policy_seconds(cluster.service_url, cluster.admin_url))
    note = f"{LOADED_TOPICS:,} topics have refused a second producer"
    name = "a policy takes effect on 1,000 loaded topics"
    report.rows.append(Row(name, round(seconds, 2), "lower", LOADED_SECONDS_MAX, [], "s", note))
    seconds = asyncio.run(namespace_seconds(cluster.service_url, cluster.admin_url))
    note = f"{seconds / NAMESPACES * 1000:.1f} ms each; all have refused a second producer"
    name = "creating 1,000 namespaces with a policy each"
    report.rows.append(Row(name, round(seconds, 2), "lower", NAMESPACES_SECONDS_MAX, [], "s", note))
    brokers = [process for node, process in service_processes(cluster.status()).items() if node.startswith("broker")]
    kilobytes, elapsed = asyncio.run(idle_kilobytes(cluster.service_url, cluster.admin_url, brokers))
    note = f"{IDLE_TOPICS:,} topics created, published to and consumed in {elapsed:.0f} s"
    name = "broker memory per idle topic with a subscription"
    report.rows.append(Row(name, round(kilobytes, 2), "lower", IDLE_KILOBYTES_MAX, [], "KB", note))


def compare(service_url: str, admin_url: str) -> dict[str, list[float]]:
    """Messages a second of each way, run by run."""
    namespace = new_namespace(admin_url)
    ask("POST", f"{admin_url}/admin/v2/namespaces/{namespace}/deduplication", True)
    ask("POST", f"{admin_url}/admin/v2/namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage", QUOTA)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(RUNS):
        for way in WAYS:
            topic = f"persistent://{namespace if way == 'kept' else 'public/default'}/rate-{secrets.token_hex(3)}"
            command = [sys.executable, __file__, service_url, "--one", way, "--topic", topic]
            done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S + 120, check=False)
            if done.returncode:
                raise RuntimeError(f"{way} failed: {done.stderr[-2000:]}")
            rates[way].append(json.loads(done.stdout.splitlines()[-1]))
    return rates


def one_run(service_url: str, way: str, topic: str) -> float:
    """Messages a second of `send_many`, after a warm-up, from the first send to the last receipt."""
    with magnetar.Client(service_url) as client:
        client.subscribe(topic, "keeper").close()  # a backlog, which the quota has to follow
        producer = client.create_producer(
            topic,
            producer_name="bench",
            schema=magnetar.StringSchema() if way == "kept" else None,
            batching_enabled=True,
            batching_max_messages=client_rate.BATCH_MESSAGES,
            batching_max_publish_delay_ms=client_rate.BATCH_DELAY_MS,
            batching_max_allowed_size_in_bytes=client_rate.BATCH_BYTES,
            max_pending_messages=client_rate.PENDING_MAX,
            block_if_queue_full=True,
        )
        body = "x" * client_rate.MESSAGE_SIZE
        block: list[Any] = [body if way == "kept" else body.encode()] * client_rate.BATCH_MESSAGES
        _send(producer, block, client_rate.WARM_UP_S)
        begin = time.perf_counter()
        sent = _send(producer, block, RUN_S)
        return sent / (time.perf_counter() - begin)


def _send(producer: Any, block: list[Any], seconds: float) -> int:
    """Send blocks for so long, and wait for all receipts. Raises what a publish raised."""
    failures: list[object] = []

    def receipt(result: object, _: object) -> None:
        if result != magnetar.Result.Ok:
            failures.append(result)

    sent, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        producer.send_many(block, receipt)
        sent += len(block)
    producer.flush()
    if failures:
        raise RuntimeError(f"{len(failures)} messages were refused, the first by {failures[0]}")
    return sent


async def policy_seconds(service_url: str, admin_url: str) -> float:
    """Seconds from the change of a policy until all loaded topics of the namespace have refused what it forbids."""
    namespace = new_namespace(admin_url)
    topics = [f"persistent://{namespace}/loaded-{number}" for number in range(LOADED_TOPICS)]
    async with magnetar.AsyncClient(service_url) as client:
        first = await all_of(topics, lambda topic: client.create_producer(topic, batching_enabled=False))
        begin = time.monotonic()
        url = f"{admin_url}/admin/v2/namespaces/{namespace}/maxProducersPerTopic"
        await asyncio.to_thread(ask, "POST", url, 1)
        await all_of(topics, lambda topic: refused(client, topic))
        elapsed = time.monotonic() - begin
        for producer in first:
            await producer.close()
    await asyncio.to_thread(ask, "DELETE", url)
    return elapsed


async def refused(client: magnetar.AsyncClient, topic: str) -> None:
    """Until the topic, which has one producer, refuses another one."""
    while True:
        try:
            second = await client.create_producer(topic, batching_enabled=False)
        except magnetar.ProducerBusy:
            return
        await second.close()


async def namespace_seconds(service_url: str, admin_url: str) -> float:
    """Seconds in which namespaces are created, each with a policy, and the policy of each is in effect."""
    prefix = f"public/many-{secrets.token_hex(3)}"
    async with magnetar.AsyncClient(service_url) as client:

        async def create(namespace: str) -> None:
            url = f"{admin_url}/admin/v2/namespaces/{namespace}"
            await asyncio.to_thread(ask, "PUT", url, {"max_producers_per_topic": 1})
            await client.create_producer(f"persistent://{namespace}/t", batching_enabled=False)
            await refused(client, f"persistent://{namespace}/t")

        begin = time.monotonic()
        await all_of([f"{prefix}-{number}" for number in range(NAMESPACES)], create)
        return time.monotonic() - begin


async def idle_kilobytes(service_url: str, admin_url: str, brokers: list[int]) -> tuple[float, float]:
    """Kilobytes of the brokers for each topic that is left, and the seconds that it took to use them all once."""
    namespace = new_namespace(admin_url)
    topics = [f"persistent://{namespace}/idle-{number}" for number in range(IDLE_TOPICS)]
    before = sum(proportional_memory_mb(process) for process in brokers)
    begin = time.monotonic()
    async with magnetar.AsyncClient(service_url) as client:

        async def use(topic: str) -> None:
            consumer = await client.subscribe(topic, "s", receiver_queue_size=1)
            producer = await client.create_producer(topic, batching_enabled=False)
            await producer.send(b"kept")
            await consumer.acknowledge(await consumer.receive())
            await producer.close()
            await consumer.close()

        await all_of(topics, use)
    elapsed = time.monotonic() - begin
    await asyncio.sleep(5.0)  # the cursors of the closed consumers are written within a second or two
    return 1024 * (sum(proportional_memory_mb(process) for process in brokers) - before) / IDLE_TOPICS, elapsed


async def all_of(names: list[str], task: Callable[[str], Awaitable[Any]]) -> list[Any]:
    """The results of a task for each topic or namespace, some at a time."""
    permits = asyncio.Semaphore(AT_A_TIME)

    async def one(name: str) -> Any:
        async with permits:
            return await task(name)

    return await asyncio.gather(*(one(name) for name in names))


def new_namespace(admin_url: str) -> str:
    """The name of a namespace that was just created."""
    namespace = f"public/bench-{secrets.token_hex(3)}"
    ask("PUT", f"{admin_url}/admin/v2/namespaces/{namespace}", {})
    return namespace


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service_url")
    parser.add_argument("admin_url", nargs="?", help="needed unless --one is given")
    parser.add_argument("--one", choices=WAYS, help="only one run of this way, printed as JSON")
    parser.add_argument("--topic", default="bench-kept")
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_run(options.service_url, options.one, options.topic)))
        return
    if options.admin_url is None:
        parser.error("the admin URL is missing")
    rates = compare(options.service_url, options.admin_url)
    figure, samples = median_of_pairs(rates["kept"], rates["plain"])
    print(f"kept ÷ plain: {figure:.2f} ({', '.join(f'{sample:.2f}' for sample in samples)})")
    print(f"policy: {asyncio.run(policy_seconds(options.service_url, options.admin_url)):.2f} s")


if __name__ == "__main__":
    main()
