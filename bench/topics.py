"""What a topic costs the coordinator: the CPU time of its process for each topic that is created and loaded."""

import asyncio
import time

import ray
from processes import cpu_seconds
from rows import Report, Row

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.protocol.names import COORDINATOR_ACTOR, RAY_NAMESPACE
from magnetar.runtime.ray_calls import ask

TOPICS = 1000
ROUNDS = 3
PRODUCERS_AT_A_TIME = 64
MILLISECONDS_MAX = 1.0


def run(cluster: RayCluster, report: Report) -> None:
    """The row. Each topic is created by a producer, so that it is created, assigned, loaded and pushed to all brokers.

    What the coordinator does anyway in that time (heartbeats, the auditor) is measured before, and taken off.
    """
    process = ask(ray.get_actor(COORDINATOR_ACTOR, RAY_NAMESPACE).process_id.remote(), 20)
    samples = [asyncio.run(_create(cluster, process, number)) for number in range(ROUNDS)]
    figure = sorted(samples)[len(samples) // 2]
    note = f"median of {ROUNDS} times {TOPICS} topics"
    report.rows.append(
        Row("creating 1,000 topics, coordinator CPU per topic", figure, "lower", MILLISECONDS_MAX, samples, "ms", note)
    )


async def _create(cluster: RayCluster, process: int, number: int) -> float:
    """Milliseconds of the coordinator's CPU time per topic of one round."""
    began, idle_before = time.perf_counter(), cpu_seconds(process)
    await asyncio.sleep(2.0)
    idle_share = (cpu_seconds(process) - idle_before) / (time.perf_counter() - began)
    async with magnetar.AsyncClient(cluster.service_url) as client:
        permits = asyncio.Semaphore(PRODUCERS_AT_A_TIME)

        async def open_producer(name: str) -> None:
            async with permits:
                await client.create_producer(name, batching_enabled=False)

        began, before = time.perf_counter(), cpu_seconds(process)
        await asyncio.gather(*(open_producer(f"bench-cost-{number}-{topic}") for topic in range(TOPICS)))
        used = cpu_seconds(process) - before - idle_share * (time.perf_counter() - began)
    return round(1000 * used / TOPICS, 3)
