"""`magnetar.consume` while brokers, the coordinator and workers are killed."""

import os
import signal
import uuid
from collections import Counter
from typing import Any

import ray

import magnetar
from magnetar.cluster.ray_cluster import RayCluster
from magnetar.protocol.names import COORDINATOR_ID
from support.servers import ray_nodes
from support.servers.ray_nodes import wait_until

MESSAGES = 600
WAIT_S = 120.0


@ray.remote(num_cpus=0)
class Calls:
    """Which messages were handled, in order, and by which process."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str]] = []

    async def add(self, process: int, text: str) -> None:
        self.rows.append((process, text))

    async def read(self) -> list[tuple[int, str]]:
        return self.rows


def test_no_message_is_lost_when_brokers_workers_and_the_coordinator_are_killed(harmed: RayCluster) -> None:
    topic = f"killed-{uuid.uuid4().hex[:12]}"
    calls: Any = Calls.remote()

    def handle(message: magnetar.Message) -> None:
        ray.get(calls.add.remote(os.getpid(), message.data().decode()))

    def handled(count: int) -> list[tuple[int, str]]:
        def enough() -> list[tuple[int, str]]:
            rows = ray.get(calls.read.remote())
            return rows if len({text for _, text in rows}) >= count else []

        return wait_until(enough, f"{count} messages were handled", WAIT_S)

    with (
        harmed.client() as client,
        magnetar.consume(topic, "workers", handle, concurrency=2, num_cpus=0) as consuming,
    ):
        producer = client.create_producer(topic, block_if_queue_full=True)
        for place, node in enumerate(("broker-1", COORDINATOR_ID, "broker-2")):
            for number in range(place * 200, place * 200 + 200):
                producer.send_async(str(number).encode(), None)
            process, _ = handled(place * 200 + 20)[-1]
            old = ray_nodes.kill(node)
            os.kill(process, signal.SIGKILL)
            producer.flush()
            ray_nodes.wait_new_process(node, old)
        rows = handled(MESSAGES)
        wait_until(lambda: consuming.stats().replaced == 3, "three workers were replaced", WAIT_S)
        assert consuming.stats().failed == 0
    counts = Counter(text for _, text in rows)
    assert set(counts) == {str(number) for number in range(MESSAGES)}
