"""`magnetar.Queue`: `ray.util.queue.Queue` whose items are stored, on a topic of its own.

    queue = magnetar.Queue(maxsize=1_000)        # or Queue(name="orders"), which other programs find by its name
    queue.put({"order": 1})                      # returns when the item is on the disks of two bookies
    order = queue.get()                          # held until this task or thread gets again

A handle may be passed to Ray tasks and actors. The items outlive all processes; `shutdown` deletes them.
"""

import asyncio
import json
import os
import pickle
import queue
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Generator, Hashable, Iterable
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

from ..bulk.access import ask_of_topic, check_urls
from ..protocol.errors import ClusterError, InvalidConfiguration, Timeout
from ..protocol.topics import TopicName
from ..runtime.backoff import Backoff
from .open_queue import SUBSCRIPTION, OpenQueue, QueuePlace, Taking, shared_loop, shared_random, this_thread

T = TypeVar("T")

NAME_SIZE_BYTES = 16
"""Of the names that are made up."""
FULL_POLL_INITIAL_S = 0.005
FULL_POLL_MAX_S = 0.25
"""Between two looks at a full queue."""
NOWAIT_S = 1.0
"""An item that is in the queue comes within this time, or another handle has taken it."""
NOWAIT_TRIES = 5
LOOKS = 3
LOOK_PAUSE_S = 0.02
"""An item that comes to a handle which waits no more is back in the queue within these looks."""


class Empty(queue.Empty):
    """There is no item in the queue, or none came in time.

    What to do: Wait longer, or try again later: `get` without a `timeout` waits until an item comes.
    """


class Full(queue.Full):
    """There is no room in the queue, or none came in time.

    What to do: Wait longer, or start more tasks that get. `maxsize` says how many items may wait.
    """


class Queue:
    """A first-in, first-out queue that Ray tasks, actors and drivers share, and that survives them.

    Its methods are those of `ray.util.queue.Queue`. An item that was got is *held* by its taker, which is an asyncio
    task, or else a thread. The taker is done with it when it gets again, when the asyncio task returns, when the thread
    ends, or when the handle is closed or dropped. If the process dies before, or an error ends it, or the asyncio task
    fails, another taker gets the item: so an item may be got twice, and is never lost. With `lease` a block of code
    says it: an error gives the item back.

    Items are pickled. So all who may publish to the topic may run code in the process that gets.
    """

    def __init__(
        self,
        maxsize: int = 0,
        actor_options: object = None,
        *,
        name: str | None = None,
        service_url: str | None = None,
        admin_url: str | None = None,
    ) -> None:
        """Make a queue, or open the one of this name.

        Args:
            maxsize: Maximum number of items that wait; 0 = no limit. Each put looks before it stores. So the queue may
                exceed it by as many items as there are puts at the same moment.
            actor_options: Accepted without effect: there is no actor.
            name: The queue's topic, in any form of a topic's name. None makes up a new one.
            service_url: `pulsar://host:port` of the cluster. None finds it through Ray.
            admin_url: `http://host:port` of the cluster's admin HTTP, which is needed with a `service_url`.

        Raises:
            InvalidConfiguration: If `maxsize` is negative, or only one of the URLs is given.
            InvalidTopicName: If the name is none of a persistent topic.
            ClusterError: If there is no cluster.
            MagnetarError: Why the topic cannot be made.
        """
        if maxsize < 0:
            raise InvalidConfiguration(
                f"maxsize is {maxsize}: pass 0 for a queue without a limit, or a positive number"
            )
        topic = TopicName.parse(f"queue-{shared_random().hex(NAME_SIZE_BYTES)}" if name is None else name)
        if not topic.persistent:
            raise InvalidConfiguration(f"{topic.full} keeps nothing: name a persistent topic")
        self._restore(topic.full, maxsize, service_url, admin_url)
        self._run(self._create(topic))

    def _restore(self, name: str, maxsize: int, service_url: str | None, admin_url: str | None) -> None:
        check_urls(service_url, admin_url)
        self.name = name
        self.maxsize = maxsize
        self._service_url = service_url
        self._admin_url = admin_url
        self._open: OpenQueue | None = None
        self._process_id = 0
        self._lock = threading.Lock()
        self._watched: weakref.WeakSet[asyncio.Task[object]] = weakref.WeakSet()

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (self.name, self.maxsize, self._service_url, self._admin_url)

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    # -- how full it is ----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """Count the items that wait.

        Returns:
            Their number. Items that a taker holds are not among them.

        Raises:
            ClusterError: If the queue was deleted, or no cluster is there.
            ConnectError: If the admin HTTP does not answer.
            CoordinatorUnavailable: If the cluster cannot answer now.
        """
        return self._run(self._size())

    def qsize(self) -> int:
        """Count the items that wait, as `size` does.

        Returns:
            Their number.

        Raises:
            ClusterError: If the queue was deleted, or no cluster is there.
            ConnectError: If the admin HTTP does not answer.
            CoordinatorUnavailable: If the cluster cannot answer now.
        """
        return self.size()

    def empty(self) -> bool:
        """Look whether no item waits.

        Returns:
            True if `size` is 0.

        Raises:
            ClusterError: If the queue was deleted, or no cluster is there.
            ConnectError: If the admin HTTP does not answer.
            CoordinatorUnavailable: If the cluster cannot answer now.
        """
        return self.size() == 0

    def full(self) -> bool:
        """Look whether `maxsize` items wait.

        Returns:
            Whether they do. Without a `maxsize` always False.

        Raises:
            ClusterError: If the queue was deleted, or no cluster is there.
            ConnectError: If the admin HTTP does not answer.
            CoordinatorUnavailable: If the cluster cannot answer now.
        """
        return self.maxsize > 0 and self.size() >= self.maxsize

    # -- putting -----------------------------------------------------------------------------------------------------

    def put(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, and return when it is stored on the disks of the ack quorum.

        Args:
            item: The item. It is pickled.
            block: Whether to wait for room in a full queue.
            timeout: Maximum seconds to wait for room. None waits without end.

        Raises:
            Full: If there is no room, or none comes in time.
            ValueError: If `timeout` is negative.
            TypeError: If the item holds a reference to an object of Ray, which ends with its owner.
            MagnetarError: Why it could not be stored.
        """
        self._run(self._put([_pickled(item)], _waited(block, timeout)))

    async def put_async(self, item: object, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, as `put` does.

        Args:
            item: The item. It is pickled.
            block: Whether to wait for room in a full queue.
            timeout: Maximum seconds to wait for room. None waits without end.

        Raises:
            Full: If there is no room, or none comes in time.
            ValueError: If `timeout` is negative.
            TypeError: If the item holds a reference to an object of Ray.
            MagnetarError: Why it could not be stored.
        """
        coroutine = self._put([_pickled(item)], _waited(block, timeout))
        await asyncio.wrap_future(shared_loop().submit(coroutine))

    def put_nowait(self, item: object) -> None:
        """Add an item, as `put` with `block=False` does.

        Args:
            item: The item. It is pickled.

        Raises:
            Full: If there is no room.
            TypeError: If the item holds a reference to an object of Ray.
            MagnetarError: Why it could not be stored.
        """
        self.put(item, block=False)

    def put_nowait_batch(self, items: Iterable[object]) -> None:
        """Add items in their order. After an error some may be stored.

        Args:
            items: The items. They are pickled.

        Raises:
            Full: If there is no room for all of them. Then none is stored.
            TypeError: If `items` is no iterable, or an item holds a reference to an object of Ray.
            MagnetarError: Why they could not be stored.
        """
        if not isinstance(items, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise TypeError("Argument 'items' must be an Iterable")
        bodies = [_pickled(item) for item in items]
        if bodies:
            self._run(self._put(bodies, 0.0))

    # -- getting -----------------------------------------------------------------------------------------------------

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take the next item, and be done with the item before it.

        This thread holds the item until it gets again.

        Args:
            block: Whether to wait for an item.
            timeout: Maximum seconds to wait. None waits without end.

        Returns:
            The item.

        Raises:
            Empty: If there is no item, or none comes in time.
            ValueError: If `timeout` is negative.
            MagnetarError: Why the queue cannot be read.
        """
        return self._get(1, _waited(block, timeout), self._thread())[0]

    def get_async(self, block: bool = True, timeout: float | None = None) -> Coroutine[object, object, Any]:
        """Take the next item, and be done with the item before it.

        The asyncio task that calls this holds the item until it gets again, or ends. If it fails, it gives the item
        back. That holds also where another task awaits the call, as in `asyncio.wait_for(queue.get_async(), 5)`.

        Args:
            block: Whether to wait for an item.
            timeout: Maximum seconds to wait. None waits without end.

        Returns:
            The item.

        Raises:
            Empty: If there is no item, or none comes in time.
            ValueError: If `timeout` is negative.
            MagnetarError: Why the queue cannot be read.
        """
        return self._get_for(_caller(), _waited(block, timeout))

    def get_nowait(self) -> Any:
        """Take the next item, as `get` with `block=False` does.

        Returns:
            The item.

        Raises:
            Empty: If there is none.
            MagnetarError: Why the queue cannot be read.
        """
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take items, all of which this thread holds until it gets again.

        Args:
            num_items: How many.

        Returns:
            So many items in their order.

        Raises:
            Empty: If there are not so many. Then none is taken.
            TypeError: If `num_items` is no integer.
            ValueError: If it is negative.
            MagnetarError: Why the queue cannot be read.
        """
        if not isinstance(num_items, int):  # pyright: ignore[reportUnnecessaryIsInstance] (callers may be untyped)
            raise TypeError("Argument 'num_items' must be an int")
        if num_items < 0:
            raise ValueError("'num_items' must be nonnegative")
        return self._get(num_items, 0.0, self._thread()) if num_items else []

    @contextmanager
    def lease(self, timeout: float | None = None) -> Generator[Any]:
        """Take the next item for a block. An error in the block gives the item back to the queue.

            with queue.lease() as order:
                ship(order)

        Args:
            timeout: Maximum seconds to wait. None waits without end.

        Returns:
            The item.

        Raises:
            Empty: If no item comes in time.
            ValueError: If `timeout` is negative.
            MagnetarError: Why the queue cannot be read.
        """
        lease = object()
        item = self._get(1, _waited(True, timeout), lease)[0]
        try:
            yield item
        except BaseException:
            self._run(self._opened().give_back(lease))
            raise
        self._run(self._opened().done(lease))

    @asynccontextmanager
    async def lease_async(self, timeout: float | None = None) -> AsyncGenerator[Any]:
        """Take the next item for a block, as `lease` does.

        Args:
            timeout: Maximum seconds to wait. None waits without end.

        Returns:
            The item.

        Raises:
            Empty: If no item comes in time.
            ValueError: If `timeout` is negative.
            MagnetarError: Why the queue cannot be read.
        """
        lease = object()
        item = (await self._get_async(1, _waited(True, timeout), lease))[0]
        try:
            yield item
        except BaseException:
            shared_loop().start(self._opened().give_back(lease))
            raise
        await asyncio.wrap_future(shared_loop().submit(self._opened().done(lease)))

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close this handle. What its takers hold is done; the queue and its items stay.

        Raises:
            MagnetarError: Why the broker cannot be told.
        """
        with self._lock:
            opened = self._open
        if opened is not None and self._process_id == os.getpid():
            self._run(opened.close())

    def shutdown(self, force: bool = False, grace_period_s: int = 5) -> None:
        """Delete the queue with all its items. Other handles can no longer use it.

        Args:
            force: Accepted without effect.
            grace_period_s: Accepted without effect.

        Raises:
            ClusterError: If it cannot be deleted.
            ConnectError: If the admin HTTP does not answer.
            CoordinatorUnavailable: If the cluster cannot answer now.
        """
        self._opened()
        self.close()
        self._run(self._delete())

    # -- inside ------------------------------------------------------------------------------------------------------

    def _run(self, coroutine: Coroutine[object, object, T]) -> T:
        return shared_loop().run(coroutine)

    def _opened(self) -> OpenQueue:
        """What this process has open for the handle."""
        with self._lock:
            if self._open is None or self._process_id != os.getpid():
                self._process_id = os.getpid()
                self._open = OpenQueue(QueuePlace(self.name, self._service_url))
                weakref.finalize(self, _dropped, self._open, self._process_id).atexit = False
            return self._open

    async def _put(self, bodies: list[bytes], timeout_s: float | None) -> None:
        if self.maxsize > 0:
            await self._room_for(len(bodies), timeout_s)
        await self._opened().put(bodies)

    async def _room_for(self, count: int, timeout_s: float | None) -> None:
        backoff = Backoff(shared_random(), FULL_POLL_INITIAL_S, FULL_POLL_MAX_S)
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while (size := await self._size()) + count > self.maxsize:
            left_s = None if deadline is None else deadline - loop.time()
            if left_s is not None and left_s <= 0:
                raise Full(f"Cannot add {count} items to queue of size {size} and maxsize {self.maxsize}.")
            delay_s = backoff.next_delay_s()
            await asyncio.sleep(delay_s if left_s is None else min(delay_s, left_s))

    def _get(self, count: int, timeout_s: float | None, taker: Hashable) -> list[Any]:
        opened = self._opened()
        for _ in range(NOWAIT_TRIES if timeout_s == 0 else 1):
            if timeout_s == 0:
                self._check_holds(count, self._run(self._after(opened, taker, count)))
            taking = Taking(opened, taker)
            try:
                shared_loop().start(opened.take(taking, taker, count, NOWAIT_S if timeout_s == 0 else timeout_s))
                return [pickle.loads(one.data()) for one in taking.future.result()]
            except Timeout:
                continue
            except BaseException:
                taking.abandon()
                raise
        raise Empty(_none_came(count, timeout_s))

    async def _get_for(self, task: "asyncio.Task[object] | None", timeout_s: float | None) -> object:
        if task is None:  # no coroutine has called
            return (await self._get_async(1, timeout_s, self._thread()))[0]
        item = (await self._get_async(1, timeout_s, task))[0]
        if task.done() or task not in self._watched:
            self._watched.add(task)
            held_in = self._opened()
            task.add_done_callback(partial(_task_ended, held_in))
        return item

    def _thread(self) -> Hashable:
        """This thread as a taker, which gives up what it holds here when it ends."""
        taker = this_thread()
        taker.opened.add(self._opened())
        return taker.token

    async def _get_async(self, count: int, timeout_s: float | None, taker: Hashable) -> list[object]:
        opened = self._opened()
        for _ in range(NOWAIT_TRIES if timeout_s == 0 else 1):
            if timeout_s == 0:
                size = await asyncio.wrap_future(shared_loop().submit(self._after(opened, taker, count)))
                self._check_holds(count, size)
            taking = Taking(opened, taker)
            try:
                shared_loop().start(opened.take(taking, taker, count, NOWAIT_S if timeout_s == 0 else timeout_s))
                return [pickle.loads(one.data()) for one in await asyncio.wrap_future(taking.future)]
            except Timeout:
                continue
            except BaseException:
                taking.abandon()
                raise
        raise Empty(_none_came(count, timeout_s))

    async def _after(self, opened: OpenQueue, taker: Hashable, count: int) -> int:
        """How many items wait, now that `taker` is done with what it held.

        A handle that waited in vain may just be giving the next item back. So this looks again where others hold some.
        """
        await opened.done(taker)
        for _ in range(LOOKS):
            size, held = await self._figures()
            if size >= count or size + held < count:
                return size
            await asyncio.sleep(LOOK_PAUSE_S)
        return await self._size()

    def _check_holds(self, count: int, size: int) -> None:
        if size < count:
            raise Empty(f"Cannot get {count} items from queue of size {size}.")

    # -- the admin HTTP ----------------------------------------------------------------------------------------------

    async def _create(self, topic: TopicName) -> None:
        """Make the topic, which has no partitions, and its subscription."""
        await ask_of_topic(self._admin_url, self.name, "", "PUT", accepted=(HTTPStatus.CONFLICT,))
        await self._opened().open()

    async def _delete(self) -> None:
        await ask_of_topic(self._admin_url, self.name, "?force=true", "DELETE", accepted=(HTTPStatus.NOT_FOUND,))

    async def _size(self) -> int:
        return (await self._figures())[0]

    async def _figures(self) -> tuple[int, int]:
        """How many items wait, and how many are held."""
        stats = json.loads(await ask_of_topic(self._admin_url, self.name, "/stats"))
        figures = stats["subscriptions"].get(SUBSCRIPTION)
        if figures is None:
            raise ClusterError(f"{self.name} has no subscription {SUBSCRIPTION}: it was removed, so make a new queue")
        held = figures["unackedMessages"]
        return max(0, figures["msgBacklog"] - held), held


def _restored(name: str, maxsize: int, service_url: str | None, admin_url: str | None) -> Queue:
    found = Queue.__new__(Queue)
    found._restore(name, maxsize, service_url, admin_url)  # pyright: ignore[reportPrivateUsage] (its second constructor)
    return found


def _waited(block: bool, timeout: float | None) -> float | None:
    if not block:
        return 0.0
    if timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return timeout


def _none_came(count: int, timeout_s: float | None) -> str:
    return f"{count} items did not come within {timeout_s} s"


def _dropped(opened: OpenQueue, process_id: int) -> None:
    """Nobody refers to the handle now. Waits for nothing: garbage collection calls this."""
    if process_id == os.getpid():
        shared_loop().start(opened.close())


def _caller() -> "asyncio.Task[object] | None":
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None


def _task_ended(opened: OpenQueue, task: asyncio.Task[object]) -> None:
    # Its error, but not by `exception()`: asyncio would then say nothing of an error that nobody else looks at.
    failed = task.cancelled() or task._exception is not None  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownMemberType]
    shared_loop().start(opened.give_back(task) if failed else opened.done(task))


def _pickled(item: object) -> bytes:
    """With Ray's cloudpickle where Ray is in use: it takes functions and classes of `__main__`, too."""
    if "ray" not in sys.modules:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    from .ray_pickling import dumps

    return dumps(item)
