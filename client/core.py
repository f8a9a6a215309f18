"""What the producers and consumers of one client share: configuration, world, connections, look-ups, ids, tasks."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from ..protocol.errors import AlreadyClosed, MagnetarError
from ..runtime.environment import Environment
from ..runtime.tasks import Tasks
from .configuration import ClientConfiguration
from .handover import Handover
from .lookup import ConnectionPool, Lookup


class Closeable(Protocol):
    """A producer or consumer of a topic."""

    async def close(self) -> None: ...
    def abandon(self, reason: MagnetarError) -> None: ...


class Core:
    """Made on the loop that it serves."""

    def __init__(
        self,
        environment: Environment,
        configuration: ClientConfiguration,
        handover: Handover,
        discover: Callable[[], Awaitable[str]],
    ) -> None:
        self.environment = environment
        self.configuration = configuration
        self.handover = handover
        self.loop = asyncio.get_running_loop()
        self.pool = ConnectionPool(configuration)
        self.lookup = Lookup(environment, configuration, self.pool, discover)
        self.tasks = Tasks()
        self.opened: dict[Closeable, None] = {}
        """Producers and consumers that are not closed."""
        self._last_id = 0

    @property
    def timeout_s(self) -> float:
        """How long one operation may take, in seconds."""
        return float(self.configuration.operation_timeout_seconds)

    def next_id(self) -> int:
        """An id for a producer or consumer; never used twice, so that late answers to an earlier one are ignored."""
        self._last_id += 1
        return self._last_id

    async def close(self) -> None:
        """Close all producers and consumers, then all tasks and connections."""
        for opened in list(self.opened):
            await opened.close()
        await self._end()

    async def abandon(self) -> None:
        """End at once: what is pending fails, and nobody is told good-bye."""
        for opened in list(self.opened):
            opened.abandon(AlreadyClosed("the client was shut down"))
        await self._end()

    async def _end(self) -> None:
        await self.tasks.close()
        await self.pool.close()


async def together(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all at once. The first failure cancels the rest and is raised when they have ended."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
