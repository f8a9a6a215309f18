"""Tells the coordinator, once per interval, what the topics of this broker cost.

The counters are those of statistics, so publishing and dispatch do nothing for it. A round looks at every loaded topic,
`TOPICS_AT_A_TIME` in one step of the event loop. What it sends names up to `UNITS_PER_REPORT_MAX` of those that moved
data. A report that does not get through is lost: the next one follows an interval later, and covers its own interval.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from ...protocol.errors import MagnetarError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ..balancing.sampling import LoadSampler, TopicCounts
from ..members.coordinator_link import CoordinatorClient
from ..topics.topic import Topic

logger = logging.getLogger(__name__)

TOPICS_AT_A_TIME = 200


class LoadReporting:
    """See the module. `coordinator` gives the link, and raises ServiceUnitNotReady without a session."""

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        loaded: Mapping[str, Topic],
        coordinator: Callable[[], CoordinatorClient],
    ) -> None:
        self._env = env
        self._interval_s = settings.load_report_interval_ms / 1000
        self._loaded = loaded
        self._coordinator = coordinator

    async def run(self) -> None:
        """Report until cancelled."""
        loop = asyncio.get_running_loop()
        sampler = LoadSampler(loop.time(), self._env.clock.cpu_s())
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._look(sampler)
                report = sampler.report(loop.time(), self._env.clock.cpu_s())
                await self._coordinator().ask.report_load(report=report)
            except MagnetarError as error:
                logger.debug("a load report did not get through: %s", error)
            except Exception:  # of any kind: the coordinator moves nothing while a broker does not report
                logger.exception("a load report failed; the next one follows")

    async def _look(self, sampler: LoadSampler) -> None:
        topics = list(self._loaded.items())
        for first in range(0, len(topics), TOPICS_AT_A_TIME):
            for full_name, topic in topics[first : first + TOPICS_AT_A_TIME]:
                sampler.look(full_name, topic.epoch, counts_of_topic(topic))
            await asyncio.sleep(0)


def counts_of_topic(topic: Topic) -> TopicCounts:
    """What went in and out of a topic since it was loaded."""
    published = topic.publishing.published
    messages, size, entries = 0, 0, 0
    for subscription in topic.subscriptions.values():
        sent = subscription.sent
        messages += sent[0]
        size += sent[1]
        entries += sent[2]
    return TopicCounts(published.messages, published.entries, published.bytes, messages, entries, size)
