"""The checks of all topics of a broker, from one timer: expiry of messages, and backlog quotas.

A round asks each loaded topic. A topic without the policy costs one comparison. `AT_A_TIME` topics are looked at
together, each for up to `TOPIC_LIMIT_S`, so that a topic whose bookies are away does not hold up the others. A round
that is due while the last one of its kind runs is left out. What fails for a topic is tried again in the next round.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from ...protocol.errors import MagnetarError
from ...protocol.topics import TopicName
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from .topic_keeping import TopicKeeping

logger = logging.getLogger(__name__)

AT_A_TIME = 8
TOPIC_LIMIT_S = 30.0


class KeepingTopic(Protocol):
    """A loaded topic that stores messages."""

    name: TopicName
    keeping: TopicKeeping


class Round(enum.Enum):
    """What is checked."""

    EXPIRY = "expiry of messages"
    QUOTAS = "backlog quotas"


class KeepingRounds:
    """See the module. `topics()` gives those that are loaded. Begins with `start`."""

    def __init__(self, settings: Settings, topics: Callable[[], Iterable[KeepingTopic]]) -> None:
        self._topics = topics
        self._intervals_s = {Round.EXPIRY: settings.message_expiry_check_interval_minutes * 60}
        if settings.backlog_quota_check_enabled:
            self._intervals_s[Round.QUOTAS] = settings.backlog_quota_check_interval_s
        self._due: dict[Round, float] = {}
        self._running: dict[Round, asyncio.Task[None]] = {}
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

    async def _run(self, one: Round) -> None:
        permits = asyncio.Semaphore(AT_A_TIME)

        async def check(topic: KeepingTopic, work: Callable[[], Awaitable[None]]) -> None:
            try:
                async with permits, asyncio.timeout(TOPIC_LIMIT_S):
                    await work()
            except (MagnetarError, TimeoutError) as error:
                logger.info("the %s of %s is checked again later: %r", one.value, topic.name.full, error)

        wanted = [
            (topic, topic.keeping.expire_old if one is Round.EXPIRY else topic.keeping.check_quotas)
            for topic in self._topics()
            if topic.keeping.wants(expiry=one is Round.EXPIRY)
        ]
        await asyncio.gather(*(check(topic, work) for topic, work in wanted))
