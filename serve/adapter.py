"""The adapter by which Ray Serve's `@task_consumer` takes its tasks from a topic. See `worker` for what becomes of one.

Serve makes an adapter in each replica, and a program makes one with `instantiate_adapter_from_config` to enqueue tasks.
The calls of an adapter may come from any thread. Its client is on a loop in a thread of its own.
"""

import asyncio
import atexit
import threading
import weakref
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TypeVar

from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig, TaskResult

from ..bulk.access import check_urls
from ..bulk.loop_thread import LoopThread
from ..client.aio.client import AsyncClient
from ..protocol.errors import ConnectError, CoordinatorUnavailable, InvalidConfiguration, MagnetarError
from ..runtime.backoff import LimitedBackoff
from ..runtime.environment import Environment
from ..runtime.ray_calls import own_ray_address
from ..runtime.retry import limited, silently
from .configuration import MagnetarAdapterConfig
from .deaths import DeathCount
from .outcomes import CountedStatuses
from .queue_topics import QueueTopics
from .records import FINAL, PENDING, REVOKED, Task, TaskStatus
from .sending import TaskSender
from .worker import QueueRules, TaskHandler, TaskWorker

T = TypeVar("T")

CLOSE_TIMEOUT_S = 5.0
CREATE_TIMEOUT_S = 30.0
RETRY_INITIAL_S = 0.2
RETRY_MAX_S = 3.0


class MagnetarTaskProcessorAdapter(TaskProcessorAdapter):
    """Task queues of Serve on topics, for the `adapter` of a `TaskProcessorConfig`.

    Options of `enqueue_task_sync` and `enqueue_task_async`: `task_id` (its own id), `countdown` (seconds before it may
    run), `eta` (a datetime before which it may not run), `key` (tasks of one key keep their order with `key_ordered`).
    """

    def __init__(self, config: TaskProcessorConfig, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportUnknownMemberType] (Serve gives it no types)
        if not isinstance(config.adapter_config, MagnetarAdapterConfig):
            raise TypeError("TaskProcessorConfig.adapter_config must be an instance of MagnetarAdapterConfig")
        given = config.adapter_config
        check_urls(given.service_url, given.admin_url)
        self._config = config
        self._given = given
        self._topics = QueueTopics(config.queue_name, given.admin_url)
        self._handlers: dict[str, TaskHandler] = {}
        self._lock = threading.Lock()
        self._worker: TaskWorker | None = None
        self._reporting: asyncio.Task[None] | None = None

    def initialize(self, consumer_concurrency: int = 1) -> None:
        self._concurrency = consumer_concurrency
        self._env = Environment.real(threads_max=1)
        self._loop = LoopThread("magnetar-task-queue")
        self._loop.run(self._connect())
        atexit.register(_close, weakref.ref(self))

    async def _connect(self) -> None:
        others = [one for one in (self._failed_queue, self._unprocessable_queue) if one is not None]
        # A replica may be started while the admin's actor is being started again.
        backoff = LimitedBackoff(self._env.random, RETRY_INITIAL_S, RETRY_MAX_S, CREATE_TIMEOUT_S)
        await limited(
            backoff,
            lambda: self._topics.create(others, self._given.result_expires_s),
            retriable=lambda error: isinstance(error, ConnectError | CoordinatorUnavailable),
            on_retry=silently,
        )
        # The topics are there now. One that somebody deletes must not come back by a client that connects again.
        self._client = AsyncClient(self._given.service_url, allow_auto_topic_creation=False)
        self._statuses = CountedStatuses(self._client, self._topics.status, self._given.serializer)
        self._sender = TaskSender(self._env, self._client, self._given.serializer)

    @property
    def _failed_queue(self) -> str | None:
        return self._config.failed_task_queue_name

    @property
    def _unprocessable_queue(self) -> str | None:
        return self._config.unprocessable_task_queue_name

    def register_task_handle(self, func: TaskHandler, name: str | None = None) -> None:
        self._handlers[name or func.__name__] = func

    def close(self) -> None:
        """End the worker and the connections. The adapter cannot be used any longer."""
        self.stop_consumer(CLOSE_TIMEOUT_S)
        self._loop.run(asyncio.wait_for(self._disconnect(), CLOSE_TIMEOUT_S))

    async def _disconnect(self) -> None:
        await self._statuses.close()
        await self._client.close()

    # -- enqueuing, and asking ---------------------------------------------------------------------------------------

    def enqueue_task_sync(
        self,
        task_name: str,
        args: Iterable[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        **options: object,
    ) -> TaskResult:
        return self._loop.run(self._enqueue_task(task_name, args, kwargs, options))

    async def enqueue_task_async(
        self,
        task_name: str,
        args: Iterable[object] | None = None,
        kwargs: Mapping[str, object] | None = None,
        **options: object,
    ) -> TaskResult:
        return await self._here(self._enqueue_task(task_name, args, kwargs, options))

    def get_task_status_sync(self, task_id: str) -> TaskResult:
        return self._loop.run(self._status(task_id))

    async def get_task_status_async(self, task_id: str) -> TaskResult:
        return await self._here(self._status(task_id))

    def cancel_task_sync(self, task_id: str) -> None:
        self._loop.run(self._cancel(task_id))

    async def cancel_task_async(self, task_id: str) -> None:
        await self._here(self._cancel(task_id))

    def get_metrics_sync(self) -> dict[str, object]:
        return self._loop.run(self._metrics())

    async def get_metrics_async(self) -> dict[str, object]:
        return await self._here(self._metrics())

    def health_check_sync(self) -> list[dict[str, object]]:
        return self._loop.run(self._health())

    async def health_check_async(self) -> list[dict[str, object]]:
        return await self._here(self._health())

    # -- the replica's part ------------------------------------------------------------------------------------------

    def start_consumer(self, **kwargs: object) -> None:
        with self._lock:
            if self._worker is None:
                self._worker = self._loop.run(self._started())

    def stop_consumer(self, timeout: float = 10.0) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            self._loop.run(self._stopped(worker, timeout))

    async def _stopped(self, worker: TaskWorker, timeout_s: float) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        await worker.stop(timeout_s)

    async def _started(self) -> TaskWorker:
        rules = QueueRules(
            self._topics.queue,
            self._concurrency,
            self._config.max_retries,
            self._failed_queue,
            self._unprocessable_queue,
        )
        deaths = DeathCount(self._env, self._cluster(), self._topics.queue, self._statuses)
        worker = TaskWorker(
            self._env, self._client, self._given, rules, self._statuses, deaths, self._sender, self._handlers
        )
        await worker.start()
        self._reporting = asyncio.get_running_loop().create_task(self._statuses.report(self._topics.queue))
        return worker

    def _cluster(self) -> str:
        """Which cluster has the queue, as replicas on this node agree on."""
        return self._given.service_url or own_ray_address()

    # -- on the loop -------------------------------------------------------------------------------------------------

    async def _here(self, coroutine: Coroutine[object, object, T]) -> T:
        return await asyncio.wrap_future(self._loop.submit(coroutine))

    async def _enqueue_task(
        self,
        name: str,
        args: Iterable[object] | None,
        kwargs: Mapping[str, object] | None,
        options: dict[str, object],
    ) -> TaskResult:
        delay_s = _delay_s(options.pop("countdown", None), options.pop("eta", None), self._now())
        task_id = str(options.pop("task_id", None) or self._env.random.hex(16))
        key = options.pop("key", None)
        if not isinstance(key, str | None):
            raise InvalidConfiguration("the key of a task must be a string")
        if options:
            wrong = next(iter(options))
            raise InvalidConfiguration(f"{wrong} is no option of a task: use task_id, countdown, eta or key")
        task = Task(task_id, name, list(args or ()), dict(kwargs or {}), self._now())
        await self._sender.send(self._topics.queue, task, delay_s=delay_s, key=key)
        return TaskResult(id=task.id, status=PENDING, created_at=task.created_at, result=None)

    async def _status(self, task_id: str) -> TaskResult:
        found = await self._statuses.current(task_id)
        if found is None:
            return TaskResult(id=task_id, status=PENDING, result=None)
        return TaskResult(id=task_id, status=found.status, result=found.result)

    async def _cancel(self, task_id: str) -> None:
        found = await self._statuses.current(task_id)
        if found is None or found.status not in FINAL:
            await self._statuses.publish(task_id, TaskStatus(REVOKED, self._now(), None, found.attempt if found else 0))

    async def _metrics(self) -> dict[str, object]:
        figures = await self._topics.figures()
        return {"queue": self._topics.queue, **figures._asdict()}

    async def _health(self) -> list[dict[str, object]]:
        figures = await self._topics.figures()
        return [{self._topics.queue: {"ok": "pong", "replicas": figures.replicas}}]

    def _now(self) -> float:
        return self._env.clock.now_ms() / 1_000


def _close(adapter: "weakref.ref[MagnetarTaskProcessorAdapter]") -> None:
    """At the end of the process."""
    one = adapter()
    if one is not None:
        with suppress(TimeoutError, MagnetarError):  # what is not acknowledged comes again
            one.close()


def _delay_s(countdown: object, eta: object, now: float) -> float:
    if countdown is not None and eta is not None:
        raise InvalidConfiguration("countdown and eta say the same in two ways: pass one of them")
    if isinstance(eta, datetime):
        return eta.timestamp() - now
    if eta is not None or not isinstance(countdown, int | float | None):
        raise InvalidConfiguration("countdown must be a number of seconds, and eta a datetime")
    return float(countdown or 0)
