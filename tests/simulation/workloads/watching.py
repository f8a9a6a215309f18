"""A pattern consumer's list of topics, kept by news from brokers, beside one client that creates and deletes topics.

Brokers and coordinator end, pause and lose connections meanwhile. The client asks for nothing that it was not told to
ask for: no period passes in a run. So what a broker or the coordinator forgets to tell stays missing.

In some runs the database loses answers while a topic is created, and carries out late what it was asked for. The topic
may be deleted by then.

I8: in the end the list is that of the coordinator, which knows what is stored (`copies_agree`).
"""

import asyncio
import re
from random import Random

from magnetar.actors.members.coordinator_link import CoordinatorClient
from magnetar.actors.members.matched_topics import names_of
from magnetar.client.consuming.topic_discovery import TopicListing, TopicPattern
from magnetar.client.core.configuration import RegexSubscriptionMode
from magnetar.protocol.errors import KeyExists, MagnetarError, TopicNotFound

from ..checkers.history import History
from ..world.cluster import SimCluster
from .admin import new_admin
from .workload import Workload

SPACE = "persistent://public/default/"
TOPICS = 4
PAUSES_MAX_S = (0.05, 0.5)
TROUBLED_SHARE = 0.5
TROUBLE = 0.7
DELETE_TIMEOUT_S = 20.0
CONVERGE_LIMIT_S = 30.0


class Watching(Workload):
    """See the module."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, name: str) -> None:
        super().__init__(cluster, history, random, name)
        self._pause_max_s = random.choice(PAUSES_MAX_S)
        self._troubled = random.random() < TROUBLED_SHARE
        self._there = asyncio.Event()
        self._admin: CoordinatorClient
        self._listing: TopicListing

    async def setup(self) -> None:
        self.connect()
        self._admin = await new_admin(self)
        pattern = TopicPattern(re.compile(f"{self.name}-.*"), RegexSubscriptionMode.PersistentOnly)
        self._listing = TopicListing(self.client._running_core(), pattern, self._there.set)
        await self.again(self._listing.ask)

    async def start(self) -> None:
        self.begin(self._follow(), "follow the list")
        self.begin(self._change(), "create and delete")

    async def _follow(self) -> None:
        """Ask when the list says that it is due, and at no other time."""
        while True:
            await self._there.wait()
            self._there.clear()
            if self._listing.due:
                await self.again(self._listing.ask)
                self.history.counts["lists watched again"] += 1

    async def _change(self) -> None:
        while not self.stopping:
            topic = f"{SPACE}{self.name}-{self.random.randrange(TOPICS)}"
            try:
                if self.random.random() < 0.6:
                    await self._create(topic)
                else:
                    await self._admin.call("delete_topic", topic=topic, timeout_s=DELETE_TIMEOUT_S)
                self.history.counts["watched topics changed"] += 1
            except (KeyExists, TopicNotFound):
                pass
            except (MagnetarError, TimeoutError) as error:
                self.history.counts[f"changing watched topics failed: {type(error).__name__}"] += 1
            await asyncio.sleep(self.random.random() * self._pause_max_s)

    async def _create(self, topic: str) -> None:
        is_troubled = self._troubled
        if is_troubled:
            self.cluster.set_metadata_trouble(TROUBLE)
        try:
            await self._admin.call("create_topic", topic=topic, partitions=self.random.choice((0, 1, 2)))
        finally:
            if is_troubled:
                self.cluster.set_metadata_trouble(0.0)

    def healed(self) -> None:
        """Else nothing would start again in time that needs the database often."""
        self._troubled = False

    def _agrees(self) -> bool:
        """Whether the list is that of the coordinator, and a broker tells what changes."""
        node = self.cluster.coordinator
        if not node.ready or not self._listing.watched or node.service.office.deletions.under_way:
            return False
        found = node.service.office.registry.list_topics("public/default", f"{SPACE}{self.name}-", TOPICS)
        wanted = {topic: len(names_of(topic, count)) for topic, count in found if f"/{self.name}-" in topic}
        return {topic.full: count for topic, count in self._listing.topics.items()} == wanted

    async def stop(self) -> None:
        """I8: the list converges, without being asked for."""
        self.stopping = True
        follower, changer = self.tasks
        await changer
        await self.cluster.until(
            self._agrees, CONVERGE_LIMIT_S, "I8: a watched list of topics is not that of the coordinator"
        )
        follower.cancel()
        await asyncio.wait((follower,))

    async def close(self) -> None:
        self._listing.close()
        await self._admin.close()
        await super().close()
