"""How a consumer finds its topics: at first, and those that are created, deleted or get more partitions later.

What is wanted is compared with what is there, in rounds, by one task. So each round can fail, and the next one makes
good for it:

- *Names.* A topic of a list that does not exist is missing, and each round tries to join it.
- *Pattern.* Each round joins topics that match, and leaves those that are gone (`topic_listing`). If a broker tells
  what changes, a round begins at once and looks at that only.
- *Partitions.* Each round asks for the number of partitions of each partitioned topic.
- *Other shapes.* A topic that refuses its consumers may have been created again with other partitions (`reshape`).

Rounds begin every `pattern_auto_discovery_period` and `partitions_update_interval_s` seconds, or at once after `poke`.
A consumer of one topic without partitions has no task until the topic refuses it.
"""

import asyncio
import logging
import re
from collections.abc import Coroutine, Sequence

from ...protocol.errors import AlreadyClosed, MagnetarError, TopicNotFound
from ...protocol.topics import TopicName
from ...runtime.tasks import together
from ..core.configuration import ConsumerConfiguration
from ..core.context import Core
from .topic_listing import TopicListing
from .topic_pattern import TopicPattern
from .topic_set import TopicSet

logger = logging.getLogger(__name__)

JOINED_AT_ONCE_MAX = 100
"""Topics that one consumer subscribes to at the same time."""


class TopicDiscovery:
    """See the module."""

    def __init__(
        self, core: Core, configuration: ConsumerConfiguration, topics: TopicSet, also: Sequence[str] = ()
    ) -> None:
        """`also` names topics beside those of the configuration. Raises InvalidTopicName, InvalidConfiguration."""
        self.names: list[TopicName] = []
        """The topics that are named; none for a pattern."""
        self.listing: TopicListing | None = None
        self._pattern_text = ""
        wanted = self._wanted = configuration.topic
        if isinstance(wanted, re.Pattern):
            pattern = TopicPattern(wanted, configuration.regex_subscription_mode)
            self.listing = TopicListing(core, pattern, self._told)
            self._pattern_text = pattern.text
        else:
            named = (wanted,) if isinstance(wanted, str) else wanted
            self.names = list(dict.fromkeys(TopicName.parse(name) for name in named))
        self._configured = list(self.names)
        self.names += [name for name in map(TopicName.parse, also) if name not in self.names]
        self._core = core
        self._topics = topics
        self._several = configuration.takes_several_topics
        self._period_s = float(configuration.pattern_auto_discovery_period)
        self._partitions_period_s = float(core.configuration.partitions_update_interval_s)
        self._awake = asyncio.Event()
        self._poked = False
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self._refusing: dict[TopicName, None] = {}
        topics.on_lost = self.poke
        topics.on_refused = self._refused

    @property
    def text(self) -> str:
        """The topic, the topics or the pattern, for people."""
        return self._pattern_text or ",".join(name.full for name in self._configured)

    async def open(self) -> None:
        """Subscribe to what there is. Raises the first refusal; the caller closes then what was opened."""
        if isinstance(self._wanted, str):
            await self._topics.join(self.names[0])
        if self._several:
            if self.listing is None:
                await self._join(self._missing(), first=True)
            else:
                await self._follow(self.listing, ask=True, whole=True, first=True)
        if self._several or any(self._topics.partitions.values()):
            self._start()

    def _start(self) -> None:
        self._task = self._core.tasks.spawn(self._serve(), f"discover topics of {self.text}"[:200])

    async def close(self) -> None:
        """Begin no more rounds."""
        if self.listing is not None:
            self.listing.close()
        self._closed = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def poke(self) -> None:
        """Topics have changed: begin a round now, and look at everything."""
        self._poked = True
        self._awake.set()

    # ---- Inside ----

    def _refused(self, topic: TopicName) -> None:
        whole = topic.without_partition()
        self._refusing[whole if whole in self._topics.partitions else topic] = None
        self._awake.set()
        if self._task is None and not self._closed:
            self._start()

    def _told(self) -> None:
        self._awake.set()

    async def _serve(self) -> None:
        loop = self._core.loop
        discover_at, grow_at = loop.time() + self._period_s, loop.time() + self._partitions_period_s
        if not self._several:
            discover_at = float("inf")
        if not self._partitions_period_s:
            grow_at = float("inf")
        while not self._topics.closed:
            try:
                async with asyncio.timeout_at(
                    None if min(discover_at, grow_at) == float("inf") else min(discover_at, grow_at)
                ):
                    await self._awake.wait()
            except TimeoutError:
                pass  # a period has passed
            poked, self._poked = self._poked, False
            awake = self._awake.is_set()
            self._awake.clear()
            refusing, self._refusing = self._refusing, {}
            for topic in refusing:
                await self._round(self._reshape(topic))
            period_over = loop.time() >= discover_at
            if self._several and (awake or period_over):
                await self._round(self._look(ask=period_over, whole=poked or period_over))
            if period_over:
                discover_at = loop.time() + self._period_s
            if poked or loop.time() >= grow_at:
                await self._round(self._grow())
                if self._partitions_period_s:
                    grow_at = loop.time() + self._partitions_period_s

    async def _round(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except (MagnetarError, TimeoutError) as error:
            if not self._topics.closed:
                logger.warning("a round of discovery for %s failed, the next one tries again: %s", self.text, error)

    async def _look(self, *, ask: bool, whole: bool) -> None:
        if self.listing is None:
            await self._join(self._missing(), first=False)
        else:
            await self._follow(self.listing, ask=ask, whole=whole)

    def _missing(self) -> list[TopicName]:
        """Topics that are named, and to be joined."""
        return [name for name in self.names if name not in self._topics.partitions]

    async def _follow(self, listing: TopicListing, *, ask: bool, whole: bool, first: bool = False) -> None:
        """Leave topics that are gone from the list, join those that are new, and partitions that were added.

        Looks at what has changed only, unless it is told to look at the `whole`.
        """
        if ask or listing.due:
            await listing.ask()
        looked_at = {**listing.changed, **(dict.fromkeys((*listing.topics, *self._topics.partitions)) if whole else {})}
        listing.changed.clear()
        for name in looked_at:
            if name in self._topics.partitions and name not in listing.topics:
                await self._topics.leave(name)
        joined = self._topics.partitions
        await self._join(
            sorted(name for name in looked_at if name in listing.topics and name not in joined), first=first
        )
        for name in looked_at:
            if listing.topics.get(name, 0) > joined.get(name, 0) > 0:
                await self._grow_one(name)

    async def _join(self, names: list[TopicName], *, first: bool) -> None:
        for start in range(0, len(names), JOINED_AT_ONCE_MAX):
            await together([self._join_one(name, first) for name in names[start : start + JOINED_AT_ONCE_MAX]])

    async def _join_one(self, name: TopicName, first: bool) -> None:
        try:
            await self._topics.join(name)
        except TopicNotFound:
            # It is created later, or was deleted since the list was made.
            logger.info("%s does not exist: a consumer of several topics joins it when it is created", name.full)
        except AlreadyClosed:
            if not self._topics.closed:
                raise
        except MagnetarError as error:
            if first:
                raise
            logger.warning("a consumer could not join %s, and tries again in the next round: %s", name.full, error)

    async def _grow(self) -> None:
        for name, count in list(self._topics.partitions.items()):
            if count:
                await self._grow_one(name)

    async def _reshape(self, topic: TopicName) -> None:
        try:
            await self._topics.reshape(topic)
        except TopicNotFound:
            return  # not created again yet: its consumers go on trying

    async def _grow_one(self, name: TopicName) -> None:
        try:
            await self._topics.grow(name)
        except TopicNotFound:
            return  # deleted: its consumers hear of it themselves
