"""The checks of all topics of a broker, from one timer: what has expired, what exceeds a quota, what nobody uses.

A round asks each loaded topic. A topic without the policy costs one comparison. `AT_A_TIME` topics are looked at
together, each for up to `TOPIC_LIMIT_S`, so that a topic whose bookies are away does not hold up the others. A round
that is due while the last one of its kind runs is left out. What fails for a topic is tried again in the next round.

A topic that is inactive is deleted by the coordinator, on this broker's request (`retire`). Partitions live as long as
their topic. With `brokerDeleteInactivePartitionedTopicMetadataEnabled` the broker of partition 0 asks for the whole
topic, and the coordinator then asks the others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from ...protocol.errors import MagnetarError
from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from .checks import Check, TopicChecks, Work

logger = logging.getLogger(__name__)

AT_A_TIME = 8
TOPIC_LIMIT_S = 30.0


Retire = Callable[[TopicName], Awaitable[None]]
"""Has an inactive topic deleted. Raises MagnetarError when that is refused."""


class KeepingRounds:
    """See the module. `topics()` gives the checks of those that are loaded. Begins with `start`."""

    def __init__(self, settings: Settings, topics: Callable[[], Iterable[TopicChecks]], retire: Retire) -> None:
        self._topics = topics
        self._retire = retire
        self._whole_topics = settings.inactive_partitioned_topics_deletion_enabled
        self._intervals_s = {
            Check.EXPIRY: settings.message_expiry_check_interval_minutes * 60,
            Check.SUBSCRIPTIONS: settings.subscription_expiry_check_interval_minutes * 60,
            Check.INACTIVITY: settings.inactive_topics_check_interval_s,
        }
        if settings.backlog_quota_check_enabled:
            self._intervals_s[Check.QUOTAS] = settings.backlog_quota_check_interval_s
        self._due: dict[Check, float] = {}
        self._running: dict[Check, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    def start(self) -> None:
        """Check from now on, if that has not begun."""
        if self._timer is None and not self._tasks.closed:
            now = asyncio.get_running_loop().time()
            self._due = {one: now + interval_s for one, interval_s in self._intervals_s.items()}
            self._set_timer()

    async def close(self) -> None:
        """End what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    def _set_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_at(min(self._due.values()), self._fire)

    def _fire(self) -> None:
        now = asyncio.get_running_loop().time()
        for one, due in self._due.items():
            if due <= now:
                self._due[one] = now + self._intervals_s[one]
                if one not in self._running or self._running[one].done():
                    self._running[one] = self._tasks.spawn(self._run(one), one.value)
        self._set_timer()

    async def _run(self, one: Check) -> None:
        permits = asyncio.Semaphore(AT_A_TIME)

        async def check(topic: TopicChecks, work: Work) -> None:
            try:
                async with permits, asyncio.timeout(TOPIC_LIMIT_S):
                    await work()
            except (MagnetarError, TimeoutError) as error:
                logger.info("the %s of %s is checked again later: %r", one.value, topic.name.full, error)

        wanted = [(topic, work) for topic in self._topics() if (work := self._work(topic, one)) is not None]
        await asyncio.gather(*(check(topic, work) for topic, work in wanted))

    def _work(self, topic: TopicChecks, one: Check) -> Work | None:
        if one is not Check.INACTIVITY:
            return topic.work(one)
        partition = topic.name.partition
        asks = partition < 0 or (partition == 0 and self._whole_topics)
        return partial(self._retire_unused, topic) if asks and topic.inactivity.check() else None

    async def _retire_unused(self, topic: TopicChecks) -> None:
        if await topic.is_inactive():
            logger.info("%s has not been used for long: the broker has it deleted", topic.name.full)
            await self._retire(topic.name)
