"""Clients that ask about topics that do not exist, by every question that must create none.

I10: a name that was only asked about never has a record, whatever fails meanwhile, and the question is answered: a
lookup by a broker, a subscriber that does not force the topic's creation by TopicNotFound. `MetadataWatch` looks for
records of such names (`ASKED`) at every change.
"""

import asyncio
from random import Random

from magnetar.protocol.errors import MagnetarError, TopicNotFound
from magnetar.protocol.pulsar_pb2 import CommandSubscribe, CommandSuccess

from ..checkers.history import History
from ..checkers.metadata_watch import ASKED
from ..world.cluster import SimCluster
from .workload import Workload

REQUEST_TIMEOUT_S = 10.0


class Asking(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str) -> None:
        super().__init__(cluster, history, random, name)
        self._asked = 0
        self._partitioned = cluster.settings.allow_auto_topic_creation_type == "partitioned"
        self.may_crash = random.random() < 0.5

    async def setup(self) -> None:
        self.connect()

    async def start(self) -> None:
        self.begin(self._ask_on(), "ask")

    async def _ask_on(self) -> None:
        while not self.stopping:
            try:
                await self._ask()
            except (MagnetarError, TimeoutError) as error:
                self.history.counts[f"asking failed: {type(error).__name__}"] += 1
            await asyncio.sleep(self.random.random() * 0.5)

    async def _ask(self) -> None:
        """About a new name, once."""
        self._asked += 1
        topic = f"persistent://public/default/{ASKED}-{self.name}-{self._asked}"
        lookup = self.client._running_core().lookup
        if not self._partitioned and await lookup.partitions(topic):
            self.history.violated(f"I10: {topic} does not exist and is said to have partitions")
        await lookup.retry("a lookup", lambda: lookup.connection(topic))
        await self._subscribe(topic)
        self.history.counts["asked about what is not there"] += 1

    async def _subscribe(self, topic: str) -> None:
        core = self.client._running_core()
        connection = await core.lookup.connection(topic)
        request_id = connection.next_request_id()
        command = CommandSubscribe(
            topic=topic,
            subscription=self.name,
            subType=CommandSubscribe.Shared,
            consumer_id=core.next_id(),
            request_id=request_id,
            force_topic_creation=False,
        )
        try:
            await connection.request(command, request_id, REQUEST_TIMEOUT_S, CommandSuccess)
        except TopicNotFound:
            return
        self.history.violated(f"I10: {self.name} subscribed to {topic}, which does not exist")

    async def stop(self) -> None:
        """I8: asked once more, and answered."""
        self.stopping = True
        for task in self.tasks:
            await task
        await self.again(self._ask)
