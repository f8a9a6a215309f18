"""`magnetar.consume` with 4 workers, and a plain consumer that calls the same function in one process.

The function takes `CPU_S` of a processor for each message. The messages are published when the consumer or all workers
have subscribed, so no start is measured. Time counts from the first call to the last one, as the function says it. The
ratio depends on how many processors are free. So the note says how busy they were.

It also says what this machine can reach: the same function, as often, in 4 tasks of Ray without messages, beside the
same cluster, over the same plain consumer. The rounds of the three alternate.
"""

import asyncio
import os
import statistics
import sys
import time
from typing import Any

import ray
from ray import cloudpickle
from rows import Report, Row, median_of_pairs

import magnetar
from magnetar.cluster.ray_cluster import RayCluster

TOPIC = "bench-consume-tasks"
MESSAGES = 1_000
WORKERS = 4
CPU_S = 0.010
ROUNDS = 3
END_S = 120.0
"""A round that takes longer has failed."""


class Times:
    """An actor that is told when calls began and ended."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, float]] = []

    def add(self, calls: list[tuple[float, float]]) -> None:
        self._calls += calls

    def rate(self) -> float:
        """Calls/s from the begin of the first to the end of the last that it was told of."""
        span_s = max(end for _, end in self._calls) - min(begin for begin, _ in self._calls)
        return len(self._calls) / span_s


class Gate:
    """An actor where tasks wait for each other, so that all begin at once."""

    def __init__(self) -> None:
        self._waiting = 0
        self._open = asyncio.Event()

    async def meet(self) -> None:
        """Returns when all tasks are here."""
        self._waiting += 1
        if self._waiting == WORKERS:
            self._open.set()
        await self._open.wait()


class Burn:
    """The function: it takes `CPU_S` of a processor, and tells when, ten calls at a time."""

    def __init__(self, times: Any) -> None:
        self._times = times
        self._calls: list[tuple[float, float]] = []

    def __call__(self, message: magnetar.Message | None) -> None:
        began = time.monotonic()
        until = time.thread_time() + CPU_S
        while time.thread_time() < until:
            pass
        self._calls.append((began, time.monotonic()))
        if len(self._calls) == 10:
            self._times.add.remote(self._calls)
            self._calls = []


def run(cluster: RayCluster, report: Report) -> None:
    """The row."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    rates: dict[str, list[float]] = {"plain": [], "pool": [], "bare": []}
    load = os.getloadavg()[0]
    for number in range(ROUNDS):
        rates["plain"].append(_plain(f"{TOPIC}-plain-{number}"))
        rates["pool"].append(_pool(cluster, f"{TOPIC}-pool-{number}"))
        rates["bare"].append(_bare())
    figure, ratios = median_of_pairs(rates["pool"], rates["plain"])
    limit, _ = median_of_pairs(rates["bare"], rates["plain"])
    report.limits["4 bare Ray tasks over a plain consumer"] = limit
    note = (
        "{:,.0f} calls/s over {:,.0f} calls/s".format(*(statistics.median(rates[one]) for one in ("pool", "plain")))
        + f"; 4 tasks of Ray without messages: {limit:.2f}; {os.cpu_count()} processors, load {load:.1f} before"
    )
    report.rows.append(Row("consume: 4 tasks ÷ a plain consumer", round(figure, 2), "higher", 1.7, ratios, "", note))


def publish(client: magnetar.Client, topic: str) -> None:
    """Each message is an entry of its own, so any worker may get it."""
    producer = client.create_producer(topic, block_if_queue_full=True)
    for _ in range(MESSAGES):
        producer.send_async(b"x" * 100, None)
    producer.flush()
    producer.close()


def _plain(topic: str) -> float:
    """Calls/s of one process with a consumer."""
    times: Any = ray.remote(num_cpus=0)(Times).remote()
    ray.get(ray.remote(num_cpus=0)(_consume_plainly).remote(topic, times), timeout=END_S)
    return ray.get(times.rate.remote())


def _consume_plainly(topic: str, times: Any) -> None:
    burn = Burn(times)
    with magnetar.Client() as client:
        consumer = client.subscribe(topic, "plain", magnetar.ConsumerType.Shared)
        publish(client, topic)
        for _ in range(MESSAGES):
            message = consumer.receive(timeout_millis=30_000)
            burn(message)
            consumer.acknowledge(message)
        consumer.close()


def _pool(cluster: RayCluster, topic: str) -> float:
    """Calls/s of four workers."""
    times: Any = ray.remote(num_cpus=0)(Times).remote()
    end = time.monotonic() + END_S
    with (
        cluster.client() as client,
        magnetar.consume(
            topic, "pool", Burn, concurrency=WORKERS, num_cpus=0, fn_constructor_args=[times]
        ) as consuming,
    ):
        while consuming.stats().workers < WORKERS:
            assert time.monotonic() < end, consuming.stats()
            time.sleep(0.5)
        publish(client, topic)
        while consuming.stats().done < MESSAGES:
            assert time.monotonic() < end, consuming.stats()
            time.sleep(0.5)
    return ray.get(times.rate.remote())


def _bare() -> float:
    """Calls/s of four tasks of Ray that get no messages."""
    times: Any = ray.remote(num_cpus=0)(Times).remote()
    gate: Any = ray.remote(num_cpus=0)(Gate).remote()
    task = ray.remote(num_cpus=0)(_burn)
    ray.get([task.remote(times, gate) for _ in range(WORKERS)], timeout=END_S)
    return ray.get(times.rate.remote())


def _burn(times: Any, gate: Any) -> None:
    burn = Burn(times)
    ray.get(gate.meet.remote())
    for _ in range(MESSAGES // WORKERS):
        burn(None)
