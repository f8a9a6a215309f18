"""How long a running producer stands still when its broker is killed with SIGKILL; alone, and with 1,000 topics."""

import asyncio
import json
import os
import signal
import time
import urllib.request
from dataclasses import dataclass, field

import ray
from ray.exceptions import RayError
from rows import Report, Row

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.protocol.names import RAY_NAMESPACE, actor_name, broker_id
from magnetar.runtime.ray_calls import ask

KILLS = 10
SEND_EVERY_S = 0.005
SETTLE_S = 1.5
RECOVERY_TIMEOUT_S = 60.0
MANY_TOPICS = 1000
MANY_SEND_EVERY_S = 0.25


@dataclass
class Gap:
    """The longest time between two receipts of one producer."""

    last: float = field(default_factory=time.perf_counter)
    longest: float = 0.0

    def receipt(self) -> None:
        now = time.perf_counter()
        self.longest = max(self.longest, now - self.last)
        self.last = now

    def restart(self) -> None:
        self.last = time.perf_counter()
        self.longest = 0.0


def run(cluster: RayCluster, report: Report) -> None:
    """Both rows. Two brokers have to run."""
    gaps = asyncio.run(_single(cluster))
    ninth = sorted(gaps)[int(len(gaps) * 0.9) - 1]
    report.rows.append(Row("failover", round(ninth, 3), "lower", 1.0, gaps, "s", f"9 of {len(gaps)} within this"))
    many, moved = asyncio.run(_many(cluster))
    report.rows.append(
        Row("failover, 1,000 topics", round(max(many), 3), "lower", 3.0, many, "s", f"{moved} topics moved")
    )


def owner(cluster: RayCluster, topic: str) -> int:
    """The number of the broker that owns a topic, by the admin's look-up."""
    with urllib.request.urlopen(f"{cluster.admin_url}/lookup/v2/topic/persistent/public/default/{topic}") as answer:
        url = json.load(answer)["brokerUrl"]
    return cluster.service_urls.index(url) + 1


def broker_process(number: int) -> int:
    """The process id of a broker, by its actor."""
    actor = ray.get_actor(actor_name(broker_id(number)), RAY_NAMESPACE)
    return ask(actor.process_id.remote(), 20)


def wait_until_restarted(number: int, former: int) -> None:
    """Return when the supervisor has replaced a killed broker."""
    deadline = time.monotonic() + RECOVERY_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            if broker_process(number) != former:
                return
        except (ValueError, RayError):
            pass  # between the two processes there is no such actor
        time.sleep(0.1)
    raise RuntimeError(f"broker {number} was not restarted within {RECOVERY_TIMEOUT_S:.0f} s")


async def _send(producer: "magnetar.AsyncProducer", gap: Gap, every_s: float) -> None:
    while True:
        await producer.send(b"x" * 100)
        gap.receipt()
        await asyncio.sleep(every_s)


async def _kill_and_recover(cluster: RayCluster, topic: str, gaps: list[Gap]) -> None:
    """Kill the owner of `topic` and wait until every producer has had a receipt again, and the broker is back."""
    number = await asyncio.to_thread(owner, cluster, topic)
    process = await asyncio.to_thread(broker_process, number)
    for gap in gaps:
        gap.restart()
    killed = time.perf_counter()
    os.kill(process, signal.SIGKILL)
    await asyncio.to_thread(wait_until_restarted, number, process)
    deadline = killed + RECOVERY_TIMEOUT_S
    while any(gap.last < killed + SETTLE_S for gap in gaps):
        if time.perf_counter() > deadline:
            raise RuntimeError(f"producers still stand {RECOVERY_TIMEOUT_S:.0f} s after the kill")
        await asyncio.sleep(0.1)


async def _single(cluster: RayCluster) -> list[float]:
    """One producer; its longest gap at each of the kills."""
    gaps: list[float] = []
    async with magnetar.AsyncClient(cluster.service_url) as client:
        producer = await client.create_producer("bench-failover", batching_enabled=False)
        gap = Gap()
        sender = asyncio.create_task(_send(producer, gap, SEND_EVERY_S))
        try:
            for _ in range(KILLS):
                await asyncio.sleep(SETTLE_S)
                await _kill_and_recover(cluster, "bench-failover", [gap])
                gaps.append(round(gap.longest, 4))
        finally:
            sender.cancel()
    return gaps


async def _many(cluster: RayCluster) -> tuple[list[float], int]:
    """A producer on each of 1,000 topics of one broker; every producer's longest gap when it is killed, in order."""
    async with magnetar.AsyncClient(cluster.service_url) as client:
        # Topics spread evenly, so twice as many are made, and those of one broker are used.
        names = [f"bench-many-{number}" for number in range(2 * MANY_TOPICS)]
        limit = asyncio.Semaphore(32)

        async def open_producer(name: str) -> "magnetar.AsyncProducer":
            async with limit:
                return await client.create_producer(name, batching_enabled=False)

        producers = await asyncio.gather(*(open_producer(name) for name in names))
        victim = names[0]
        number = await asyncio.to_thread(owner, cluster, victim)
        owners = await asyncio.gather(*(asyncio.to_thread(owner, cluster, name) for name in names))
        mine = [producer for producer, of in zip(producers, owners, strict=True) if of == number]
        gaps = [Gap() for _ in mine]
        senders = [
            asyncio.create_task(_send(producer, gap, MANY_SEND_EVERY_S))
            for producer, gap in zip(mine, gaps, strict=True)
        ]
        try:
            await asyncio.sleep(SETTLE_S)
            await _kill_and_recover(cluster, victim, gaps)
        finally:
            for sender in senders:
                sender.cancel()
        return sorted((round(gap.longest, 3) for gap in gaps), reverse=True), len(mine)
