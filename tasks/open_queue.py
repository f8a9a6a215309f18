"""The queues that this process has open: one event loop for all, and for each handle a producer and a consumer.

An item that was given out is *held* by its taker until the taker is done with it. What is held is not acknowledged. So
the broker gives it to another consumer when the process dies. A taker is an asyncio task, or else a thread. It holds an
item

- until it gets again: then the item is acknowledged;
- until it ends: then the item is acknowledged, but an asyncio task that failed, or was cancelled, gives it back;
- until the handle is closed, or dropped: then the item is acknowledged;
- until the process ends: then the item is acknowledged, but a process that an error ends gives it back.

Invariants:

- The consumer has no receive queue. It asks for an item only when somebody waits for one, so no handle keeps an item
  from the others. What comes when nobody waits any longer is given back at once.
- What is given to a caller that was cancelled meanwhile is given back.
- No client here has its broker create a topic. So handles of a deleted queue end, and do not bring its topic back.
- Everything here but `Taking` runs on the loop of `shared_loop`.
"""

import asyncio
import atexit
import os
import sys
import threading
import weakref
from collections.abc import Hashable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import NamedTuple

from ..bulk.loop_thread import LoopThread
from ..client.aio.client import AsyncClient
from ..client.aio.consumer import AsyncConsumer
from ..client.aio.producer import AsyncProducer
from ..client.consuming.message import Message
from ..client.core.configuration import ConsumerType, InitialPosition
from ..protocol.errors import AlreadyClosed, InvalidConfiguration, MagnetarError, Timeout
from ..runtime.environment import Chance, Environment
from ..runtime.tasks import Tasks

SUBSCRIPTION = "queue"
CLOSE_TIMEOUT_S = 5.0
"""At the end of a process."""


class QueuePlace(NamedTuple):
    """Where a queue is: its topic, and the cluster's service URL. Without one the cluster is found through Ray."""

    topic: str
    service_url: str | None


class _Shared:
    """The loop of this process, and its clients by service URL and by whether they may create topics."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.environment = Environment.real(threads_max=1)
        self.loop = LoopThread("magnetar-queues")
        self.clients: dict[tuple[str | None, bool], AsyncClient] = {}
        self.open: weakref.WeakSet[OpenQueue] = weakref.WeakSet()

    def close(self) -> None:
        if self.process_id != os.getpid():  # a child of a fork has got this call, but not the thread
            return
        failed = hasattr(sys, "last_value")  # Python has reported an error that nobody handled
        with suppress(TimeoutError, MagnetarError):  # the process ends: the broker gives back what is not acknowledged
            self.loop.run(asyncio.wait_for(self._close(failed=failed), CLOSE_TIMEOUT_S))

    async def _close(self, *, failed: bool) -> None:
        await asyncio.gather(*(one.close(done=not failed) for one in self.open), return_exceptions=True)
        await asyncio.gather(*(one.close() for one in self.clients.values()), return_exceptions=True)


_shared: _Shared | None = None
_lock = threading.RLock()  # garbage collection may call `_of_this_process` in the midst of it


def shared_random() -> Chance:
    """The random numbers of this process's queues."""
    return _of_this_process().environment.random


def shared_loop() -> LoopThread:
    """The loop on which the queues of this process are. It begins with the first call, and ends with the process."""
    return _of_this_process().loop


def shared_client(service_url: str | None, *, creates_topics: bool = True) -> AsyncClient:
    """The client of this process for the cluster, on the loop of `shared_loop`."""
    clients = _of_this_process().clients
    client = clients.get((service_url, creates_topics))
    if client is None:
        client = AsyncClient(service_url, allow_auto_topic_creation=creates_topics)
        clients[service_url, creates_topics] = client
    return client


def _of_this_process() -> _Shared:
    global _shared
    with _lock:
        if _shared is None or _shared.process_id != os.getpid():  # a child of a fork has not got the thread
            _shared = _Shared()
            atexit.register(_shared.close)
        return _shared


def _thread_ended(token: Hashable, opened: "weakref.WeakSet[OpenQueue]", process_id: int) -> None:
    if process_id == os.getpid():  # a child of a fork has lost the other threads
        for one in opened:
            shared_loop().start(one.done(token))


class ThreadTaker:
    """Stands for a thread among the takers, and ends with it."""

    def __init__(self) -> None:
        self.token = object()
        self.opened: weakref.WeakSet[OpenQueue] = weakref.WeakSet()
        """Where the thread got items."""
        weakref.finalize(self, _thread_ended, self.token, self.opened, os.getpid()).atexit = False


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.taker = ThreadTaker()


_of_thread = _OfThread()


def this_thread() -> ThreadTaker:
    """The taker that stands for the thread that calls."""
    return _of_thread.taker


class Taking:
    """Messages on their way from the loop to the thread or task that waits for them."""

    def __init__(self, queue: "OpenQueue", taker: Hashable) -> None:
        self.future: Future[list[Message]] = Future()
        self._queue = queue
        self._taker = taker

    def abandon(self) -> None:
        """The caller waits no more: what came, or comes, is given back. From any thread."""
        if not self.future.cancel():
            with suppress(MagnetarError, CancelledError):
                shared_loop().start(self._queue.give_back(self._taker, self.future.result()))


class OpenQueue:
    """A producer and a consumer of one handle. See the module."""

    def __init__(self, place: QueuePlace) -> None:
        self._place = place
        self._opening: asyncio.Task[tuple[AsyncProducer, AsyncConsumer]] | None = None
        self._held: dict[Hashable, list[Message]] = {}
        self._waiting = 0
        self._stray: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self._closed = False
        _of_this_process().open.add(self)

    # -- putting -----------------------------------------------------------------------------------------------------

    async def put(self, bodies: Sequence[bytes]) -> None:
        """Returns when all are stored. Raises what `send_many` raises."""
        producer, _ = await self._both()
        if len(bodies) == 1:
            await producer.send(bodies[0])
        else:
            await producer.send_many(bodies)

    # -- taking ------------------------------------------------------------------------------------------------------

    async def take(self, taking: Taking, taker: Hashable, count: int, timeout_s: float | None) -> None:
        """Give `count` items to `taker`, which is done with those that it holds. All or none.

        The future gets Timeout when one of them does not come within `timeout_s`.
        """
        work = asyncio.current_task()
        assert work is not None
        loop = asyncio.get_running_loop()
        taking.future.add_done_callback(
            lambda future: loop.call_soon_threadsafe(work.cancel) if future.cancelled() else None
        )
        messages: list[Message] = []
        try:
            await self.done(taker)
            await self._both()
            while len(messages) < count:
                async with asyncio.timeout(timeout_s):
                    messages.append(await self._next())
            self._held.setdefault(taker, []).extend(messages)  # it may have others, which came at the same time
            taking.future.set_result(messages)
        except InvalidStateError:
            await self.give_back(taker, messages)
        except TimeoutError:
            await self._not_taken(taking, messages, Timeout(f"{count} items did not come within {timeout_s} s"))
        except BaseException as error:  # of any kind: the caller waits for it
            await self._not_taken(taking, messages, _closed() if self._closed else error)

    async def _not_taken(self, taking: Taking, messages: Sequence[Message], error: BaseException) -> None:
        if not self._waiting and self._stray is None and not self._closed:
            # The broker was asked for an item that nobody waits for now.
            self._stray = self._tasks.spawn(self._give_stray_back(), "give a stray item back")
        try:
            await self._return(messages)
        finally:
            with suppress(InvalidStateError):  # the caller was cancelled
                taking.future.set_exception(error)

    async def _next(self) -> Message:
        _, consumer = await self._both()
        if self._stray is not None:
            self._stray.cancel()
            self._stray = None
        self._waiting += 1
        try:
            return await consumer.receive()
        finally:
            self._waiting -= 1

    async def _give_stray_back(self) -> None:
        _, consumer = await self._both()
        with suppress(AlreadyClosed):
            await consumer.negative_acknowledge(await consumer.receive())

    async def done(self, taker: Hashable) -> None:
        """The taker needs no longer what it holds."""
        if held := self._held.pop(taker, None):
            _, consumer = await self._both()
            await consumer.acknowledge_many(held)

    async def give_back(self, taker: Hashable, messages: Sequence[Message] | None = None) -> None:
        """Another consumer gets what the taker holds, or only these of it."""
        held = self._held.pop(taker, [])
        if messages is not None:
            kept = [one for one in held if one not in messages]
            if kept:
                self._held[taker] = kept
            held = [one for one in held if one in messages]
        await self._return(held)

    async def _return(self, messages: Sequence[Message]) -> None:
        if messages and not self._closed:
            _, consumer = await self._both()
            for message in messages:
                await consumer.negative_acknowledge(message)

    # -- opening and closing -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect, and make the subscription if there is none. Raises what a client raises that cannot."""
        await self._both()

    async def _both(self) -> tuple[AsyncProducer, AsyncConsumer]:
        if self._closed:
            raise _closed()
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = self._tasks.spawn(self._open(), f"open {self._place.topic}")
        return await asyncio.shield(self._opening)

    async def _open(self) -> tuple[AsyncProducer, AsyncConsumer]:
        client = shared_client(self._place.service_url, creates_topics=False)
        try:
            consumer = await client.subscribe(
                self._place.topic,
                SUBSCRIPTION,
                ConsumerType.Shared,
                receiver_queue_size=0,
                initial_position=InitialPosition.Earliest,
                negative_ack_redelivery_delay_ms=0,
                ack_group_time_ms=0,
            )
        except InvalidConfiguration:  # what cannot be without a receive queue
            topic = self._place.topic
            raise InvalidConfiguration(f"{topic} has partitions, and a queue has none: choose another name") from None
        try:
            producer = await client.create_producer(self._place.topic, batching_enabled=False, block_if_queue_full=True)
            return producer, consumer
        except BaseException:
            await consumer.close()
            raise

    async def close(self, *, done: bool = True) -> None:
        """Acknowledge what is held if it is `done`, and leave: the broker gives out the rest. May be called twice."""
        if self._closed:
            return
        for taker in list(self._held) if done else ():
            with suppress(MagnetarError):  # the broker gives it out again
                await self.done(taker)
        self._closed = True
        opened = self._opening
        if opened is not None and opened.done() and not opened.cancelled() and opened.exception() is None:
            await asyncio.gather(*(one.close() for one in opened.result()), return_exceptions=True)
        await self._tasks.close()


def _closed() -> AlreadyClosed:
    return AlreadyClosed("this handle of the queue is closed: make a new one of the same name")
