"""The loads of a broker's topics: which comes next, how many run at a time, and what is tried again.

A topic is loaded because somebody *asks* for it (a client, a member), or because the broker does so *by itself*. The
broker does so for each topic that it gains, unless the last owner left it at rest. It also does so for a topic at rest
to which a change of policies gives something to do.

`owned_topic` has the states. A *queued* topic waits in one of the queues of `LoadQueue`, which are views of the
records:

- *unread*: gained, and it is not known yet how the last owner left it. Pages of `PAGE` topics are read.
- *asked*: somebody asks. These topics come first, in the order of asking.
- *recent* and *other*: the broker wants them by itself. Those whose last ledger was open come first, the latest in
  front.
- *failed*: a load of the broker's own. It waits for its next try, later each time, up to `RETRY_MAX_S`.

Up to `concurrency_max` loads run at a time. The broker's own loads take up to half of the places. So they keep no
client waiting, not even while bookies are away and each load takes its whole time.

Somebody who asks makes an unread, waiting or failed topic go first. `forget` ends everything but a load under way,
which finds by itself that the topic is no longer this broker's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice

from ...protocol.errors import MagnetarError, ServiceUnitNotReady
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tasks import Tasks
from .owned_topic import LoadQueue, OwnedState, OwnedTopic, Topic, TopicTable

logger = logging.getLogger(__name__)

PAGE = 500
READ_RETRY_INITIAL_S = 0.05
READ_RETRY_MAX_S = 2.0
RETRY_INITIAL_S = 0.1
RETRY_MAX_S = 300.0
AT_REST = -1
"""In place of the time at which a topic's open ledger was begun: its last owner left nothing to do."""


class TopicLoads:
    """See the module.

    `load(topic)` makes the topic *loaded*, in the step in which it returns. `read(topics)` says of each when its open
    ledger was begun, in milliseconds since the epoch, 0 if it has none, or `AT_REST`. `rested(topic)` follows in the
    same step for those that are at rest, and makes them *resting*.
    """

    def __init__(
        self,
        env: Environment,
        concurrency_max: int,
        table: TopicTable,
        load: Callable[[OwnedTopic], Awaitable[Topic]],
        read: Callable[[Sequence[OwnedTopic]], Awaitable[Sequence[int]]],
        rested: Callable[[OwnedTopic], None],
    ) -> None:
        self._env = env
        self._concurrency_max = concurrency_max
        self._table = table
        self._load = load
        self._read = read
        self._rested = rested
        self._queues: dict[LoadQueue, dict[OwnedTopic, None]] = {queue: {} for queue in LoadQueue}
        self._under_way = 0
        self._by_itself = 0
        self._reading = False
        self._tasks = Tasks()

    def ask(self, topic: OwnedTopic) -> "asyncio.Future[Topic]":
        """Somebody needs the topic, which is granted and not loaded. Returns the result of its load."""
        result = topic.result
        if result is None:
            result = topic.result = asyncio.get_running_loop().create_future()
            self._put(topic, LoadQueue.ASKED)
            self._begin_some()
        return result

    def gained(self, topic: OwnedTopic) -> None:
        """The topic became this broker's. It is loaded when its turn comes, unless it is at rest."""
        self._want(topic)
        if topic.result is None:
            self._put(topic, LoadQueue.UNREAD)
            if not self._reading and not self._tasks.closed:
                self._reading = True
                self._tasks.spawn(self._read_all(), "read how topics were left")

    def load_later(self, topic: OwnedTopic) -> None:
        """The topic has something to do: it is loaded when its turn comes."""
        self._want(topic)
        if topic.result is None:
            self._put(topic, LoadQueue.OTHER)
            self._begin_some()

    def forget(self, topic: OwnedTopic, error: MagnetarError) -> None:
        """The topic is no longer this broker's, or about to be so. Those who asked for it get the error."""
        topic.backoff = None
        if topic.load is None:
            self._leave(topic)
            if (result := topic.result) is not None:
                topic.result = None
                _fail(result, error)

    def flaws(self) -> list[str]:
        """What the queues have that the records do not say."""
        return [
            f"{topic} waits as {queue.name}, and its record says {topic.queue}"
            for queue, topics in self._queues.items()
            for topic in topics
            if topic.queue is not queue or self._table.find(topic.full_name) is not topic
        ]

    async def close(self) -> None:
        """Nothing is loaded from now on."""
        for topic in self._queues[LoadQueue.FAILED]:
            if topic.next_try is not None:
                topic.next_try.cancel()
        await self._tasks.close()

    # -- reading -------------------------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        """Read how gained topics were left, until none is unread."""
        backoff = Backoff(self._env.random, READ_RETRY_INITIAL_S, READ_RETRY_MAX_S)
        unread = self._queues[LoadQueue.UNREAD]
        try:
            while unread:
                try:
                    await self._read_page(list(islice(unread, PAGE)))
                    backoff.reset()
                except MagnetarError as error:
                    logger.info("how gained topics were left cannot be read yet: %s", error)
                    await asyncio.sleep(backoff.next_delay_s())
        finally:
            self._reading = False

    async def _read_page(self, topics: list[OwnedTopic]) -> None:
        found = zip(topics, await self._read(topics), strict=True)
        left = [(begun_ms, topic) for topic, begun_ms in found if topic.queue is LoadQueue.UNREAD]
        for begun_ms, topic in sorted(left, key=lambda one: -one[0]):
            if begun_ms == AT_REST:
                self._leave(topic)
                topic.backoff = None
                self._rested(topic)
            else:
                self._put(topic, LoadQueue.RECENT if begun_ms else LoadQueue.OTHER)
        self._begin_some()

    # -- loading -------------------------------------------------------------------------------------------------

    def _want(self, topic: OwnedTopic) -> None:
        if topic.backoff is None:
            topic.backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)

    def _put(self, topic: OwnedTopic, queue: LoadQueue) -> None:
        self._leave(topic)
        if topic.state is not OwnedState.QUEUED:
            self._table.become(topic, OwnedState.QUEUED)
        topic.queue = queue
        self._queues[queue][topic] = None

    def _leave(self, topic: OwnedTopic) -> None:
        if topic.queue is not None:
            del self._queues[topic.queue][topic]
            topic.queue = None
        if topic.next_try is not None:
            topic.next_try.cancel()
            topic.next_try = None

    def _begin_some(self) -> None:
        queues = self._queues
        while self._under_way < self._concurrency_max and not self._tasks.closed:
            topic = _first(queues[LoadQueue.ASKED])
            by_itself = topic is None
            if topic is None:
                topic = _first(queues[LoadQueue.RECENT]) or _first(queues[LoadQueue.OTHER])
                if topic is None or self._by_itself >= max(1, self._concurrency_max // 2):
                    return
            self._begin(topic, by_itself)

    def _begin(self, topic: OwnedTopic, by_itself: bool) -> None:
        self._leave(topic)
        if topic.result is None:
            topic.result = asyncio.get_running_loop().create_future()
        topic.by_itself = by_itself
        self._under_way += 1
        self._by_itself += by_itself
        topic.load = self._tasks.spawn(self._run(topic), f"load {topic}")
        topic.load.add_done_callback(lambda _: self._given_up(topic))
        self._table.become(topic, OwnedState.LOADING)

    async def _run(self, topic: OwnedTopic) -> None:
        try:
            loaded = await self._load(topic)
        except Exception as error:
            if not isinstance(error, MagnetarError):
                logger.exception("loading %s failed", topic)
                error = ServiceUnitNotReady(f"{topic} could not be loaded: {error!r}")
            else:
                logger.warning("%s could not be loaded: %s", topic, error)
            self._failed(topic, error)
        else:
            topic.backoff = None
            result = self._ended(topic)
            if not result.done():
                result.set_result(loaded)
            self._begin_some()

    def _given_up(self, topic: OwnedTopic) -> None:
        """The task has ended. It was cancelled, perhaps before it began, if the load counts as under way."""
        if topic.load is not None and topic.load.done():
            self._failed(topic, ServiceUnitNotReady(f"the load of {topic} was given up"))

    def _failed(self, topic: OwnedTopic, error: MagnetarError) -> None:
        _fail(self._ended(topic), error)
        if topic.state is OwnedState.CLOSING:
            self._table.tidy(topic)
        elif topic.backoff is not None and not self._tasks.closed:
            self._put(topic, LoadQueue.FAILED)
            delay_s = topic.backoff.next_delay_s()
            topic.next_try = asyncio.get_running_loop().call_later(delay_s, self._try_again, topic)
        else:
            self._table.become(topic, OwnedState.GRANTED)
        self._begin_some()

    def _ended(self, topic: OwnedTopic) -> "asyncio.Future[Topic]":
        """The load is over. Returns the result for those who asked."""
        result = topic.result
        assert result is not None
        topic.load = topic.result = None
        self._under_way -= 1
        self._by_itself -= topic.by_itself
        topic.by_itself = False
        return result

    def _try_again(self, topic: OwnedTopic) -> None:
        self._put(topic, LoadQueue.OTHER)
        self._begin_some()


def _first(queue: Iterable[OwnedTopic]) -> OwnedTopic | None:
    return next(iter(queue), None)


def _fail(result: "asyncio.Future[Topic]", error: MagnetarError) -> None:
    if not result.done():
        result.set_exception(error)
        result.exception()  # perhaps nobody waits
