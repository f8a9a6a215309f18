"""How a producer notices partitions that are added to its topic: it asks every `partitions_update_interval_s` seconds.

A round that fails is made good for by the next one. The task ends with the producer.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...protocol.errors import MagnetarError
from ..core.context import Core

logger = logging.getLogger(__name__)


class PartitionGrowth:
    """See the module. `grow` is called with a number of partitions that is greater than `count` was."""

    def __init__(self, core: Core, topic: str, count: int, grow: Callable[[int], Awaitable[None]]) -> None:
        self._core = core
        self._topic = topic
        self._count = count
        self._grow = grow
        period_s = core.configuration.partitions_update_interval_s
        self._task: asyncio.Task[None] | None = None
        if period_s:
            self._task = core.tasks.spawn(self._watch(period_s), f"partitions of {topic}"[:200])

    def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self, period_s: float) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                count = await self._core.lookup.partitions(self._topic, create=False)
                if count > self._count:
                    await self._grow(count)
                    self._count = count
            except (MagnetarError, TimeoutError) as error:
                logger.warning("the partitions of %s could not be looked up or joined: %s", self._topic, error)
