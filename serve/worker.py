"""Runs the tasks of a queue in a replica of Serve.

What becomes of a message of the queue:

1. It is no task that this queue can read, or nobody here handles tasks of its name: it goes to the queue of
   unprocessable tasks, if there is one, and is acknowledged. A task that can be read is FAILURE then.
2. The task has a final status, or a later attempt of it has begun: the message came again, and is acknowledged.
3. The status STARTED is stored, and the handler runs.
4. It returned: SUCCESS is stored with the result, then the message is acknowledged.
5. It raised, and may be tried again: RETRY is stored. Then a copy with the next attempt is stored, which is delivered
   after the back-off. Then the message is acknowledged.
6. It raised the last time: the task goes to the queue of failed tasks, if there is one. FAILURE is stored with the text
   of the error, then the message is acknowledged.

Invariants:

- A message is acknowledged only when what follows from it is stored. Until then the broker gives it to another replica
  when this one ends.
- A task whose message is acknowledged does not run again. One that ran in a replica that was killed may run again.
- At most `concurrency` tasks run. The consumer holds one message more at most, so that other replicas get the rest.
"""

import asyncio
import inspect
import logging
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from ..bulk.loop_thread import LoopThread
from ..client.aio.client import AsyncClient
from ..client.aio.consumer import AsyncConsumer
from ..client.consuming.message import Message
from ..client.core.configuration import ConsumerType, InitialPosition
from ..protocol.errors import AlreadyClosed, InvalidMessage, MagnetarError
from ..runtime.backoff import Backoff
from ..runtime.environment import Environment
from .configuration import MagnetarAdapterConfig
from .queue_topics import SUBSCRIPTION
from .records import ATTEMPT, FAILURE, FINAL, RETRY, STARTED, SUCCESS, Task, TaskStatus, load_task
from .sending import TaskSender
from .statuses import Statuses

logger = logging.getLogger("ray.serve")

RECEIVE_RETRY_INITIAL_S = 0.5
RECEIVE_RETRY_MAX_S = 10.0
GIVE_BACK_DELAY_MS = 1_000
"""Before a message comes again whose outcome could not be stored."""

TaskHandler = Callable[..., object]


class QueueRules(NamedTuple):
    """What Serve says about a queue."""

    queue: str
    concurrency: int
    max_retries: int | None
    failed_queue: str | None
    unprocessable_queue: str | None


class TaskWorker:
    """See the module. For the loop of the client, but for the handlers."""

    def __init__(
        self,
        env: Environment,
        client: AsyncClient,
        config: MagnetarAdapterConfig,
        rules: QueueRules,
        statuses: Statuses,
        sender: TaskSender,
        handlers: Mapping[str, TaskHandler],
    ) -> None:
        self._env = env
        self._client = client
        self._config = config
        self._rules = rules
        self._statuses = statuses
        self._sender = sender
        self._handlers = handlers
        self._free = asyncio.Semaphore(rules.concurrency)
        self._threads = ThreadPoolExecutor(rules.concurrency, "magnetar-task")
        self._handler_loop = LoopThread("magnetar-task-loop")
        """Of handlers that are coroutines: one that blocks does not stop the client."""
        self._running: set[asyncio.Task[None]] = set()
        self._receiving: asyncio.Task[None] | None = None
        self._consumer: AsyncConsumer | None = None

    async def start(self) -> None:
        """Subscribe, and take tasks from now on. Raises what `subscribe` raises."""
        self._consumer = await self._client.subscribe(
            self._rules.queue,
            SUBSCRIPTION,
            ConsumerType.KeyShared if self._config.key_ordered else ConsumerType.Shared,
            receiver_queue_size=1,
            initial_position=InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=GIVE_BACK_DELAY_MS,
        )
        self._receiving = asyncio.get_running_loop().create_task(self._receive(self._consumer), name="receive tasks")

    async def stop(self, timeout_s: float) -> bool:
        """Take no more tasks, and wait for those that run. Whether all have ended in time."""
        receiving, consumer = self._receiving, self._consumer
        if receiving is None or consumer is None:
            return True
        receiving.cancel()
        await asyncio.wait({receiving})
        left = set(self._running)
        if left:
            _, left = await asyncio.wait(left, timeout=timeout_s)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._receiving = self._consumer = None
        await consumer.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        return not left

    # -- one message -------------------------------------------------------------------------------------------------

    async def _receive(self, consumer: AsyncConsumer) -> None:
        backoff = Backoff(self._env.random, RECEIVE_RETRY_INITIAL_S, RECEIVE_RETRY_MAX_S)
        while True:
            await self._free.acquire()
            try:
                message = await consumer.receive()
            except asyncio.CancelledError:
                self._free.release()
                raise
            except AlreadyClosed as error:
                logger.error("this replica takes no more tasks of %s: %s", self._rules.queue, error)
                return
            except MagnetarError as error:  # of one message: the next call goes on
                logger.warning("a message of %s cannot be taken: %s", self._rules.queue, error)
                self._free.release()
                await asyncio.sleep(backoff.next_delay_s())
                continue
            backoff.reset()
            task = asyncio.get_running_loop().create_task(self._handle(consumer, message), name="handle a task")
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _handle(self, consumer: AsyncConsumer, message: Message) -> None:
        try:
            await self._settle(message)
            await consumer.acknowledge(message)
        except (MagnetarError, OSError) as error:
            logger.warning(
                "what became of a task of %s cannot be stored, and it comes again: %s", self._rules.queue, error
            )
            with suppress(AlreadyClosed):  # then it comes again by itself
                await consumer.negative_acknowledge(message)
        finally:
            self._free.release()

    async def _settle(self, message: Message) -> None:
        """Have the task run, unless it has. What follows is stored when this returns."""
        try:
            task = load_task(self._config.serializer, message.properties(), message.data())
            attempt = int(message.properties().get(ATTEMPT, "0"))
        except (InvalidMessage, ValueError) as error:
            await self._unprocessable("unknown", str(message.message_id()), repr(message.data()[:1_000]), error)
            return
        status = await self._statuses.current(task.id)
        if status is not None and (status.status in FINAL or status.attempt > attempt):
            return
        handler = self._handlers.get(task.name)
        if handler is None:
            error = InvalidMessage(f"no handler of this application is called {task.name!r}")
            await self._unprocessable(task.name, task.id, repr((task.args, task.kwargs)), error)
            await self._statuses.publish(task.id, TaskStatus(FAILURE, self._now(), str(error), attempt))
            return
        await self._statuses.publish(task.id, TaskStatus(STARTED, self._now(), None, attempt))
        try:
            result = await self._run(handler, task)
        except Exception as error:  # whatever the handler raises
            await self._failed(task, attempt, message.partition_key() or None, error)
            return
        try:
            await self._statuses.publish(task.id, TaskStatus(SUCCESS, self._now(), result, attempt))
        except TypeError as error:
            await self._failed(task, attempt, None, error, may_retry=False)

    async def _run(self, handler: TaskHandler, task: Task) -> object:
        if inspect.iscoroutinefunction(handler):
            return await asyncio.wrap_future(self._handler_loop.submit(handler(*task.args, **task.kwargs)))
        call = partial(handler, *task.args, **task.kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _failed(
        self, task: Task, attempt: int, key: str | None, error: Exception, *, may_retry: bool = True
    ) -> None:
        text = f"{type(error).__name__}: {error}"
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
            told: list[object] = [task.id, str(error), str(task.args), str(task.kwargs), trace]
            await self._sender.send(self._rules.failed_queue, self._sender.new(task.name, told))
        await self._statuses.publish(task.id, TaskStatus(FAILURE, self._now(), text, attempt))

    async def _unprocessable(self, name: str, task_id: str, content: str, error: Exception) -> None:
        logger.error("task %s (%s) of %s cannot be processed: %s", task_id, name, self._rules.queue, error)
        if self._rules.unprocessable_queue is not None:
            told: list[object] = [name, task_id, content, str(error), "{}"]
            await self._sender.send(self._rules.unprocessable_queue, self._sender.new(name, told))

    def _now(self) -> float:
        return self._env.clock.now_ms() / 1_000
