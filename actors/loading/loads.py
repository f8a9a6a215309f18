"""The loads of a broker's topics: which comes next, how many run at a time, and what is tried again.

A topic is loaded because somebody *asks* for it (a client, a member), or because the broker does so *by itself*. The
broker does so for each topic that it gains, unless the last owner left it at rest. It also does so for a topic at rest
to which a change of policies gives something to do.

States of a topic that is not loaded, each where the collections have it:

- *unread*: gained, and it is not known yet how the last owner left it (`_unread`). Pages of `PAGE` topics are read.
- *waiting*: somebody asks (`_asked`), or the broker wants it by itself. Of the latter come first those whose last
  ledger was open (`_recent`), the latest in front, then all others (`_others`).
- *under way* (`_running`): up to `concurrency_max` at a time. The broker's own loads take up to half of the places. So
  they keep no client waiting, not even while bookies are away and each load takes its whole time.
- *failed* (`_again`): a load of the broker's own. It waits for its next try, later each time, up to `RETRY_MAX_S`.
- *at rest*: `rested` was called, and nothing is done until somebody asks.

Somebody who asks makes an unread, waiting or failed topic go first, in the order of asking. `forget` ends everything
but a load under way, which finds by itself that the topic is no longer this broker's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Generic, TypeVar

from ...protocol.errors import MagnetarError, ServiceUnitNotReady
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks

logger = logging.getLogger(__name__)

PAGE = 500
READ_RETRY_INITIAL_S = 0.05
READ_RETRY_MAX_S = 2.0
RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 300.0
AT_REST = -1
"""In place of the time at which a topic's open ledger was begun: its last owner left nothing to do."""

Loaded = TypeVar("Loaded")


class TopicLoads(Generic[Loaded]):
    """See the module. Topics are named in full.

    `load(name)` loads one. `read(names)` says of each when its open ledger was begun, in milliseconds since the epoch,
    0 if it has none, or `AT_REST`. `rested(name)` follows in the same step for those that are at rest.
    """

    def __init__(
        self,
        env: Environment,
        concurrency_max: int,
        load: Callable[[str], Awaitable[Loaded]],
        read: Callable[[Sequence[str]], Awaitable[Sequence[int]]],
        rested: Callable[[str], None],
    ) -> None:
        self._env = env
        self._concurrency_max = concurrency_max
        self._load = load
        self._read = read
        self._rested = rested
        self._unread: dict[str, None] = {}
        self._asked: dict[str, None] = {}
        self._recent: dict[str, None] = {}
        self._others: dict[str, None] = {}
        self._again: dict[str, asyncio.TimerHandle] = {}
        self._backoffs: dict[str, Backoff] = {}
        """Of the topics that the broker is to load by itself, as long as they are not loaded."""
        self._results: dict[str, asyncio.Future[Loaded]] = {}
        """Of what somebody asked for, and of what is under way."""
        self._running: dict[str, asyncio.Task[None]] = {}
        self._by_itself: dict[str, None] = {}
        """Those under way that nobody had asked for when they began."""
        self._reading = False
        self._tasks = Tasks()

    @property
    def under_way(self) -> list[asyncio.Task[None]]:
        """The loads that run now."""
        return list(self._running.values())

    def ask(self, name: str) -> "asyncio.Future[Loaded]":
        """Somebody needs the topic. Returns the result of its load."""
        result = self._results.get(name)
        if result is None:
            self._leave_queues(name)
            self._asked[name] = None
            result = self._results[name] = asyncio.get_running_loop().create_future()
            self._begin_some()
        return result

    def gained(self, name: str) -> None:
        """The topic became this broker's. It is loaded when its turn comes, unless it is at rest."""
        self._want(name)
        if name not in self._results:
            self._leave_queues(name)
            self._unread[name] = None
            if not self._reading and not self._tasks.closed:
                self._reading = True
                self._tasks.spawn(self._read_all(), "read how topics were left")

    def load_later(self, name: str) -> None:
        """The topic has something to do: it is loaded when its turn comes."""
        self._want(name)
        if name not in self._results:
            self._leave_queues(name)
            self._others[name] = None
            self._begin_some()

    def forget(self, name: str, error: MagnetarError) -> None:
        """The topic is no longer this broker's. Those who asked for it get the error."""
        self._backoffs.pop(name, None)
        if name not in self._running:
            self._leave_queues(name)
            if (result := self._results.pop(name, None)) is not None:
                _fail(result, error)

    async def close(self) -> None:
        """Nothing is loaded from now on."""
        for name in list(self._again):
            self._again.pop(name).cancel()
        await self._tasks.close()

    # -- reading -------------------------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        """Read how gained topics were left, until none is unread."""
        backoff = Backoff(self._env.random, READ_RETRY_INITIAL_S, READ_RETRY_MAX_S)
        try:
            while self._unread:
                try:
                    await self._read_page(list(islice(self._unread, PAGE)))
                    backoff.reset()
                except MagnetarError as error:
                    logger.info("how gained topics were left cannot be read yet: %s", error)
                    await asyncio.sleep(backoff.next_delay_s())
        finally:
            self._reading = False

    async def _read_page(self, names: list[str]) -> None:
        found = zip(names, await self._read(names), strict=True)
        left = [(begun_ms, name) for name, begun_ms in found if name in self._unread]
        for begun_ms, name in sorted(left, key=lambda one: -one[0]):
            del self._unread[name]
            if begun_ms == AT_REST:
                self._backoffs.pop(name, None)
                self._rested(name)
            else:
                (self._recent if begun_ms else self._others)[name] = None
        self._begin_some()

    # -- loading -------------------------------------------------------------------------------------------------

    def _want(self, name: str) -> None:
        if name not in self._backoffs:
            self._backoffs[name] = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)

    def _leave_queues(self, name: str) -> None:
        for queue in (self._unread, self._asked, self._recent, self._others):
            queue.pop(name, None)
        if (timer := self._again.pop(name, None)) is not None:
            timer.cancel()

    def _begin_some(self) -> None:
        while len(self._running) < self._concurrency_max and not self._tasks.closed:
            if (name := _first(self._asked)) is None:
                name = _first(self._recent) or _first(self._others)
                if name is None or len(self._by_itself) >= max(1, self._concurrency_max // 2):
                    return
                self._by_itself[name] = None
            self._leave_queues(name)
            result = self._results.get(name)
            if result is None:
                result = self._results[name] = asyncio.get_running_loop().create_future()
            load = self._running[name] = self._tasks.spawn(self._run(name, result), f"load {name}")
            load.add_done_callback(lambda _, name=name: self._ended(name))

    async def _run(self, name: str, result: "asyncio.Future[Loaded]") -> None:
        try:
            loaded = await self._load(name)
        except Exception as error:
            if not isinstance(error, MagnetarError):
                logger.exception("loading %s failed", name)
                error = ServiceUnitNotReady(f"{name} could not be loaded: {error!r}")
            else:
                logger.warning("%s could not be loaded: %s", name, error)
            _fail(result, error)
        else:
            self._backoffs.pop(name, None)
            if not result.done():
                result.set_result(loaded)

    def _ended(self, name: str) -> None:
        """Also when it was cancelled before it began."""
        del self._running[name]
        self._by_itself.pop(name, None)
        _fail(self._results.pop(name), ServiceUnitNotReady(f"the load of {name} was given up"))
        backoff = self._backoffs.get(name)
        if backoff is not None and not self._tasks.closed:
            delay_s = backoff.next_delay_s()
            self._again[name] = asyncio.get_running_loop().call_later(delay_s, self._try_again, name)
        self._begin_some()

    def _try_again(self, name: str) -> None:
        del self._again[name]
        self._others[name] = None
        self._begin_some()


def _first(queue: Iterable[str]) -> str | None:
    return next(iter(queue), None)


def _fail(result: "asyncio.Future[Loaded]", error: MagnetarError) -> None:
    if not result.done():
        result.set_exception(error)
        result.exception()  # perhaps nobody waits
