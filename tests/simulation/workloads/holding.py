"""An idle consumer that holds a message, on a cluster with one broker: `Holding`.

The client knows no other broker that it could ask about a silent one, and nothing but PINGs travels.

I19: as long as nothing is wrong, the consumer has one session. `LeaveWatch` sees why it left. Here it is seen that the
message that it holds does not come again. When other faults begin it may come again, and in the end it is acknowledged.
"""

from random import Random
from typing import Any

import magnetar

from ..checkers.history import History
from ..world.cluster import SimCluster
from .workload import Workload

HELD_MS = 8_000
"""Longer than a client waits for the first two PONGs, and doubts after each."""
SUBSCRIPTION = "holder"


class Holding(Workload):
    """See the module. Made before the cluster begins, which has one broker then."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str, topic: str) -> None:
        super().__init__(cluster, history, random, name)
        for node in cluster.brokers[1:]:
            cluster.nodes.remove(node)
        del cluster.brokers[1:]
        cluster.client_hosts = [node.name for node in cluster.brokers]
        self._topic = topic
        self._consumer: Any
        self._held: Any

    async def setup(self) -> None:
        self.connect()
        self._consumer = await self.again(self._subscribe)
        producer = await self.again(self._create)
        await self.again(lambda: producer.send(b"held"))
        await producer.close()
        self._held = await self._consumer.receive()

    async def _create(self) -> Any:
        return await self.client.create_producer(self._topic)

    async def _subscribe(self) -> Any:
        return await self.client.subscribe(self._topic, SUBSCRIPTION, consumer_type=magnetar.ConsumerType.Shared)

    async def start(self) -> None:
        """Alone with it, where nothing else is wrong yet."""
        if not self.cluster.calm:
            return
        self.history.counts["held"] += 1
        try:
            again = await self._consumer.receive(HELD_MS)
        except magnetar.Timeout:
            return
        self.history.violated(f"I19: {self.name} is given {again.message_id()} again, which it holds")

    async def stop(self) -> None:
        self.stopping = True
        self.history.will_acknowledge(self._held.topic_name(), SUBSCRIPTION, self._held.message_id())
        await self.again(lambda: self._consumer.acknowledge(self._held))
