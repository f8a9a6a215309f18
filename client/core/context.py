"""What the producers and consumers of one client share: configuration, world, connections, look-ups, ids, tasks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from ...protocol.errors import AlreadyClosed, MagnetarError
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from ..schemas.versions import SchemaVersions
from .configuration import ClientConfiguration
from .connection_pool import ConnectionPool
from .forking import inherited_error, release_sockets, watch
from .lookup import Lookup
from .memory_limit import MemoryLimit
from .threading_bridge import Handover

logger = logging.getLogger(__name__)

EAGER_S = 5.0
"""For so long after a lost connection the pauses between attempts stay short,"""
EAGER_PAUSE_S = 0.1
"""this short for one producer or consumer,"""
EAGER_ATTEMPTS_PER_S = 1_000.0
"""and so many attempts a second for all of the client together."""


class Closeable(Protocol):
    """A producer or consumer of a topic."""

    async def close(self) -> None: ...
    def abandon(self, reason: MagnetarError) -> None: ...
    def inherited(self) -> None: ...
    def end_interval(self, now_s: float) -> None:
        """An interval of its statistics has ended, and the next one begins."""
        ...


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
        self.schemas = SchemaVersions(self.lookup.schema)
        self.tasks = Tasks()
        limit_bytes = configuration.memory_limit_bytes
        self.memory = MemoryLimit(handover, limit_bytes) if limit_bytes else None
        """Of all producers together; None for no limit."""
        self.opened: dict[Closeable, None] = {}
        """Producers and consumers that are not closed."""
        self._closing: dict[asyncio.Task[None], Closeable] = {}
        self._interval_end: asyncio.TimerHandle | None = None
        self._last_id = 0
        self._reconnecting = 0
        self.error: MagnetarError | None = None
        """Why nothing works here: this is the child of a fork."""
        watch(self)

    @property
    def timeout_s(self) -> float:
        """How long one operation may take, in seconds."""
        return float(self.configuration.operation_timeout_seconds)

    def next_id(self) -> int:
        """An id for a producer or consumer; never used twice, so that late answers to an earlier one are ignored."""
        self._last_id += 1
        return self._last_id

    def enter(self, opened: Closeable) -> None:
        """A producer or consumer is open from now on. It leaves by `opened.pop`."""
        self.opened[opened] = None
        if self._interval_end is None:
            self._start_interval()

    def _start_interval(self) -> None:
        interval_s = self.configuration.stats_interval_in_seconds
        if interval_s:
            self._interval_end = self.loop.call_later(interval_s, self._end_interval)

    def _end_interval(self) -> None:
        self._interval_end = None
        now_s = self.loop.time()
        for opened in list(self.opened):
            opened.end_interval(now_s)
        if self.opened:  # else the next one that is opened starts it
            self._start_interval()

    async def reconnect(
        self,
        what: str,
        attempt: Callable[[], Awaitable[None]],
        wanted: Callable[[], bool],
        final: Callable[[MagnetarError], bool],
    ) -> None:
        """Repeat `attempt` until it succeeds, or until it is no longer `wanted`. Raises its first `final` failure.

        The pauses grow, but slowly at first. A topic finds a new broker within about a second, and pauses that double
        each time would be longer than that. How eager it is depends on how many do the same.
        """
        backoff = self.lookup.new_backoff()
        eager_until = self.loop.time() + EAGER_S
        self._reconnecting += 1
        try:
            while wanted():
                try:
                    await attempt()
                except (MagnetarError, TimeoutError) as error:
                    if isinstance(error, MagnetarError) and wanted() and final(error):
                        raise
                    pause_s = backoff.next_delay_s()
                    if self.loop.time() < eager_until:
                        pause_s = min(pause_s, max(EAGER_PAUSE_S, self._reconnecting / EAGER_ATTEMPTS_PER_S))
                    logger.debug("%s: %s; the next try is in %.3f s", what, error, pause_s)
                    await asyncio.sleep(pause_s)
        finally:
            self._reconnecting -= 1

    def inherited(self) -> None:
        """See `forking`."""
        self.error = inherited_error("client")
        self.handover.inherited(self.error)
        for opened in [*self.opened, *self._closing.values()]:
            opened.inherited()
        self.opened.clear()
        self._closing.clear()
        release_sockets(self.pool.sockets())

    def close_soon(self, forgotten: Closeable) -> None:
        """Close a producer or consumer that the application dropped. What it has pending is sent first."""
        if forgotten in self.opened:
            task = self.loop.create_task(forgotten.close(), name="close what the application dropped")
            self._closing[task] = forgotten
            task.add_done_callback(self._closing.pop)

    async def close(self) -> None:
        """Close all producers and consumers, then all tasks and connections."""
        await asyncio.gather(*self._closing, *[opened.close() for opened in list(self.opened)])
        await self._end()

    async def abandon(self) -> None:
        """End at once: pending operations fail, and the broker is not told."""
        self.give_up()
        await self._end()

    def give_up(self) -> None:
        """Whatever is pending fails now."""
        for opened in [*self.opened, *self._closing.values()]:
            opened.abandon(AlreadyClosed("the client was shut down: create a new one"))

    async def _end(self) -> None:
        if self._interval_end is not None:
            self._interval_end.cancel()
        await self.tasks.close()
        await self.pool.close()
