"""Runs the tasks of a queue in a replica of Serve.

What becomes of a message of the queue:

1. It is no task that this queue can read, or nobody here handles tasks of its name: it goes to the queue of
   unprocessable tasks, if there is one, and is acknowledged. A task that can be read is FAILURE then.
2. The task has a final status, or a later attempt of it has begun: the message came again, and is acknowledged.
3. The handler runs. STARTED is stored when it has run for `STARTED_AFTER_S`: nobody would see it of a shorter one.
4. It returned: SUCCESS is stored with the result, then the message is acknowledged.
5. It raised, and may be tried again: RETRY is stored. Then a copy with the next attempt is stored, which is delivered
   after the back-off. Then the message is acknowledged.
6. It raised the last time, or its result cannot be stored: the task goes to the queue of failed tasks, if there is
   one. FAILURE is stored with the text of the error, then the message is acknowledged.
7. The replica died while the handler ran: `deaths` says how that is counted. The task runs alone from then on. When it
   has killed its replica too often, it does not run, and ends as in 6.

Invariants:

- A message is acknowledged only when what follows from it is stored. Until then the broker gives it to another replica
  when this one ends.
- A task whose message is acknowledged does not run again. One that ran in a replica that was killed may run again.
- Before a task runs, the replica asks where the topic of statuses ends, and reads up to there. So a task whose result
  is stored does not run again, and one that was cancelled does not begin.
- A new task runs without the question. That is a first attempt that its broker delivers for the first time, enqueued
  within the last `UNASKED_MAX_MS`. The replica must follow the topic of statuses (`Statuses.follow`). It heeds what it
  has got of that. So only what was stored in the last moment, and within that time, may escape it. It may be that the
  task was cancelled. It may also be that another replica has ended it. For that the broker must have been replaced, or
  must have taken this consumer for gone. Or the message was stored twice, because a receipt was lost.
- At most `concurrency` handlers run. While the outcome of one is being stored, the next one may run, but at most
  `concurrency` outcomes are not stored. The consumer holds `AHEAD_MAX` messages more at most, so that other replicas
  get the rest.
- With order of keys, a task of a key begins when the outcome of the one before it is stored.
- The worker takes tasks until `stop`: where its subscription ends, it subscribes again.
"""

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, cast

from ..bulk.loop_thread import LoopThread
from ..client.aio.client import AsyncClient, subscribe_marked
from ..client.aio.consumer import AsyncConsumer
from ..client.consuming.message import Message, is_first_delivery
from ..client.core.configuration import ConsumerType, InitialPosition
from ..protocol.errors import AlreadyClosed, InvalidMessage, MagnetarError, MessageTooBig
from ..runtime.backoff import Backoff
from ..runtime.environment import Environment
from .configuration import MagnetarAdapterConfig
from .deaths import DeathCount, ReplicaDied, allowed_deaths
from .handler_gate import HandlerGate
from .queue_topics import SUBSCRIPTION
from .records import ATTEMPT, FAILURE, FINAL, RETRY, STARTED, SUCCESS, Task, TaskStatus, load_task
from .sending import TaskSender
from .statuses import Statuses

logger = logging.getLogger("ray.serve")

RETRY_INITIAL_S = 0.5
RETRY_MAX_S = 10.0
GIVE_BACK_DELAY_MS = 1_000
"""Before a message comes again whose outcome could not be stored."""
STARTED_AFTER_S = 0.05
"""A task that runs for so long is shown as STARTED."""
TEXT_MAX = 100_000
"""Characters of what is told of a task: its arguments, its error, where that was raised."""
UNASKED_MAX_MS = 100
"""The age of a task up to which it may run without a question, from its enqueueing by the clocks of both hosts. It
bounds for how long a broker that was fenced, or a replica that stood still, can be wrong about the first delivery."""
AHEAD_MAX = 1
"""Messages that wait in the replica for a handler."""

TaskHandler = Callable[..., object]


class QueueRules(NamedTuple):
    """What Serve says about a queue."""

    queue: str
    concurrency: int
    max_retries: int | None
    failed_queue: str | None
    unprocessable_queue: str | None


class TaskOutcome(NamedTuple):
    """How the handler of a task ended."""

    task: Task
    attempt: int
    key: str | None
    """Of the message."""
    result: object
    error: BaseException | None
    may_retry: bool = True


class TaskWorker:
    """See the module. For the loop of the client, but for the handlers."""

    def __init__(
        self,
        env: Environment,
        client: AsyncClient,
        config: MagnetarAdapterConfig,
        rules: QueueRules,
        statuses: Statuses,
        deaths: DeathCount,
        sender: TaskSender,
        handlers: Mapping[str, TaskHandler],
    ) -> None:
        self._env = env
        self._client = client
        self._config = config
        self._rules = rules
        self._statuses = statuses
        self._deaths = deaths
        self._sender = sender
        self._handlers = handlers
        self._free = asyncio.Semaphore(rules.concurrency)
        """Handlers that may begin."""
        self._room = asyncio.Semaphore(2 * rules.concurrency)
        """Messages that may be taken: those whose handlers run, and those whose outcomes are being stored."""
        self._gate = HandlerGate()
        self._threads = ThreadPoolExecutor(rules.concurrency, "magnetar-task")
        self._handler_loop = LoopThread("magnetar-task-loop")
        """Of handlers that are coroutines: one that blocks does not stop the client."""
        self._running: set[asyncio.Task[None]] = set()
        self._last_of: dict[str, asyncio.Task[None]] = {}
        """With order of keys: what handles the message of a key that was taken last."""
        self._receiving: asyncio.Task[None] | None = None
        self._consumer: AsyncConsumer | None = None

    async def start(self) -> None:
        """Subscribe, and take tasks from now on. Raises what `subscribe` raises."""
        await self._statuses.open()
        await self._deaths.read_notes()
        await self._subscribe()
        self._receive_next()

    async def _subscribe(self) -> AsyncConsumer:
        self._consumer = await subscribe_marked(
            self._client,
            topic=self._rules.queue,
            subscription_name=SUBSCRIPTION,
            consumer_type=ConsumerType.KeyShared if self._config.key_ordered else ConsumerType.Shared,
            receiver_queue_size=AHEAD_MAX,
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=GIVE_BACK_DELAY_MS,
        )
        return self._consumer

    async def stop(self, timeout_s: float) -> bool:
        """Take no more tasks, and wait for those that run. Whether all have ended in time."""
        receiving = self._receiving
        if receiving is None:
            return True
        self._deaths.withdraw()
        receiving.cancel()
        await asyncio.wait({receiving})
        left = set(self._running)
        if left:
            _, left = await asyncio.wait(left, timeout=timeout_s)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        consumer, self._receiving, self._consumer = self._consumer, None, None
        if consumer is not None:
            await consumer.close()
        self._deaths.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        return not left

    # -- one message -------------------------------------------------------------------------------------------------

    def _receive_next(self) -> None:
        self._receiving = asyncio.get_running_loop().create_task(self._receive(), name="receive and handle a task")

    async def _receive(self) -> None:
        """Receive a message, let another task of the loop receive the next one, and handle it.

        What received the message goes on with it in the same turn of the loop, because the message waits.
        """
        await self._room.acquire()
        await self._free.acquire()
        consumer, message = await self._next()
        own = self._receiving
        assert own is not None
        self._receive_next()
        key = message.partition_key() if self._config.key_ordered else ""
        before = self._last_of.get(key) if key else None
        self._running.add(own)
        if key:
            self._last_of[key] = own
        own.add_done_callback(partial(self._ended, key))
        await self._handle(consumer, message, before)

    async def _next(self) -> tuple[AsyncConsumer, Message]:
        """The next message, and whose it is. Subscribes again where the subscription has ended."""
        backoff = Backoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S)
        while True:
            try:
                consumer = self._consumer or await self._subscribe()
                return consumer, await consumer.receive()
            except (MagnetarError, OSError) as error:
                if isinstance(error, MagnetarError) and "entry_id" in error.details:
                    logger.warning("a message of %s cannot be taken: %s", self._rules.queue, error)
                else:
                    logger.error("this replica has to subscribe to %s again: %s", self._rules.queue, error)
                    self._consumer = None
            await asyncio.sleep(backoff.next_delay_s())

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._last_of.get(key) is task:
            del self._last_of[key]

    async def _handle(self, consumer: AsyncConsumer, message: Message, before: asyncio.Task[None] | None) -> None:
        try:
            try:
                if before is not None:
                    await asyncio.wait({before})
                outcome = await self._perform(consumer, message)
            finally:
                self._free.release()
            if outcome is not None:
                await self._store(outcome)
            await consumer.acknowledge(message)
        except Exception as error:  # of any kind: the message must not stay here
            logger.warning(
                "what became of a task of %s cannot be stored, and it comes again: %s",
                self._rules.queue,
                error,
                exc_info=None if isinstance(error, (MagnetarError, OSError)) else error,
            )
            with suppress(AlreadyClosed):  # then it comes again by itself
                await consumer.negative_acknowledge(message)
        finally:
            self._room.release()

    async def _perform(self, consumer: AsyncConsumer, message: Message) -> TaskOutcome | None:
        """Have the task run, unless it has, or cannot. Returns what is to be stored."""
        try:
            task = load_task(self._config.serializer, message.properties(), message.data())
            attempt = int(message.properties().get(ATTEMPT, "0"))
        except (InvalidMessage, ValueError) as error:
            await self._unprocessable("unknown", str(message.message_id()), repr(message.data()[:1_000]), error)
            return None
        asks = attempt > 0 or not (self._is_new(consumer, message) and self._statuses.follow())
        if await self._is_over(task.id, attempt, asks=asks):
            return None
        deaths = self._statuses.deaths_of(task.id)
        if deaths.total:
            await self._deaths.read_notes()  # it may have died on this node since this replica started
            if await self._is_over(task.id, attempt):
                return None
            deaths = self._statuses.deaths_of(task.id)
        handler = self._handlers.get(task.name)
        if handler is None:
            error = InvalidMessage(f"no handler of this application is called {task.name!r}")
            await self._unprocessable(task.name, task.id, repr((task.args, task.kwargs)), error)
            await self._statuses.publish(task.id, TaskStatus(FAILURE, self._now(), str(error), attempt))
            return None
        key = message.partition_key() or None
        if deaths.alone > allowed_deaths(self._rules.max_retries):
            died = ReplicaDied(f"{deaths.alone} replicas died, each while this task ran alone in it")
            return TaskOutcome(task, attempt, key, None, died, may_retry=False)
        waited = await self._gate.enter(alone=deaths.total > 0)
        try:
            if waited and await self._is_over(task.id, attempt):
                return None
            result, error = await self._run(handler, task, attempt)
        finally:
            self._gate.leave()
        return TaskOutcome(task, attempt, key, result, error)

    def _is_new(self, consumer: AsyncConsumer, message: Message) -> bool:
        """Whether nobody can have run the task before, as far as that can be told without a question."""
        if not is_first_delivery(message) or not consumer.is_connected():
            return False
        age_ms = self._env.clock.now_ms() - message.publish_timestamp()
        return 0 <= age_ms <= UNASKED_MAX_MS

    async def _is_over(self, task_id: str, attempt: int, *, asks: bool = True) -> bool:
        """Whether this attempt of a task needs not run: it is done, it was cancelled, or a later one has begun."""
        status = await self._statuses.current(task_id) if asks else self._statuses.known(task_id)
        return status is not None and (status.status in FINAL or status.attempt > attempt)

    def _tell_started(self, task_id: str, attempt: int) -> None:
        self._statuses.tell(task_id, TaskStatus(STARTED, self._now(), None, attempt))

    async def _store(self, outcome: TaskOutcome) -> None:
        """What follows is stored when this returns."""
        task, attempt, key, result, error, may_retry = outcome
        if error is not None:
            await self._failed(task, attempt, key, error, may_retry=may_retry)
            return
        try:
            await self._statuses.publish(task.id, TaskStatus(SUCCESS, self._now(), result, attempt))
        except (TypeError, MessageTooBig) as error:  # so would be the result of another attempt
            await self._failed(task, attempt, None, error, may_retry=False)

    async def _run(self, handler: TaskHandler, task: Task, attempt: int) -> tuple[object, BaseException | None]:
        """What the handler returned, and what it raised."""
        tell = asyncio.get_running_loop().call_later(STARTED_AFTER_S, self._tell_started, task.id, attempt)
        self._deaths.begin(task.id)
        try:
            if inspect.iscoroutinefunction(handler):
                return await asyncio.wrap_future(self._handler_loop.submit(_awaited(handler, task)))
            return await asyncio.get_running_loop().run_in_executor(self._threads, _called, handler, task)
        finally:
            self._deaths.end(task.id)
            tell.cancel()

    async def _failed(
        self, task: Task, attempt: int, key: str | None, error: BaseException, *, may_retry: bool = True
    ) -> None:
        text = _cut(f"{type(error).__name__}: {_text_of(error)}")
        if may_retry and (self._rules.max_retries is None or attempt < self._rules.max_retries):
            delay_s = min(self._config.retry_backoff_s * 2 ** min(attempt, 30), self._config.retry_backoff_max_s)
            logger.warning("task %s (%s) failed and is tried again in %.1f s: %s", task.id, task.name, delay_s, text)
            # The status first: another replica may have the copy at once, and end it before a later status of ours.
            await self._statuses.publish(task.id, TaskStatus(RETRY, self._now(), text, attempt))
            await self._sender.send(self._rules.queue, task, attempt=attempt + 1, delay_s=delay_s, key=key)
            return
        logger.error("task %s (%s) has failed for the last time: %s", task.id, task.name, text, exc_info=error)
        if self._rules.failed_queue is not None:
            trace = "".join(traceback.format_exception(error))
            told: list[object] = [task.id, *map(_cut, (_text_of(error), str(task.args), str(task.kwargs), trace))]
            await self._sender.send(self._rules.failed_queue, self._sender.new(task.name, told))
        await self._statuses.publish(task.id, TaskStatus(FAILURE, self._now(), text, attempt))

    async def _unprocessable(self, name: str, task_id: str, content: str, error: Exception) -> None:
        logger.error("task %s (%s) of %s cannot be processed: %s", task_id, name, self._rules.queue, error)
        if self._rules.unprocessable_queue is not None:
            told: list[object] = [name, task_id, _cut(content), _cut(str(error)), "{}"]
            await self._sender.send(self._rules.unprocessable_queue, self._sender.new(name, told))

    def _now(self) -> float:
        return self._env.clock.now_ms() / 1_000


def _called(handler: TaskHandler, task: Task) -> tuple[object, BaseException | None]:
    """In a thread: what a handler returned, and what it raised."""
    try:
        return handler(*task.args, **task.kwargs), None
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return None, error


async def _awaited(handler: TaskHandler, task: Task) -> tuple[object, BaseException | None]:
    """On the loop of handlers: what a handler returned, and what it raised. `SystemExit` would end the loop."""
    try:
        return await cast("Awaitable[object]", handler(*task.args, **task.kwargs)), None
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return None, error


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # of a class of the application
        return f"its text cannot be had: {type(other).__name__}"


def _cut(text: str) -> str:
    """So much of a text as surely fits into a message."""
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + " …"
