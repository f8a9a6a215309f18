"""Running blocking work off the event loop: on any thread, or in order on a lane's own thread.

Files, SQL and compression of big blocks go through here, because one blocking call on the loop stalls every connection
of the process. A lane is for work that must stay in order and answer fast (a journal, an SQLite connection). It is one
dedicated thread, first in first out, with a hand-over of some tens of microseconds.
"""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

LaneCallback = Callable[[Any, BaseException | None], None]
"""Takes the result, of whatever type the function returns, and None; or None and the error."""


class Lane(ABC):
    """One thread of its own. Work runs in the order of submission, each piece after the one before it has ended.

    Implementations derive from this for `run`, which rests on their `submit`.
    """

    def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> Awaitable[T]:
        """Await the result of `function(*arguments)`. A cancelled wait does not stop work that already runs."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def finish(result: T, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(function, arguments, finish)
        return future

    @abstractmethod
    def submit(
        self, function: Callable[[*Arguments], object], arguments: tuple[*Arguments], callback: LaneCallback
    ) -> None:
        """Run `function(*arguments)`, then call `callback(result, None)` or `callback(None, error)` on the loop."""

    @abstractmethod
    def close(self) -> None:
        """Refuse new work; the thread ends after what is queued."""


class Offload(Protocol):
    """Where blocking work goes."""

    def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> Awaitable[T]:
        """Await `function(*arguments)`, run on some thread of a bounded pool."""
        ...

    def lane(self, name: str) -> Lane:
        """A new lane; its owner closes it."""
        ...

    def close(self) -> None:
        """End all threads after what is queued, lanes included."""
        ...


class ThreadLane(Lane):
    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[Callable[..., object], tuple[object, ...], LaneCallback] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=f"magnetar-{name}", daemon=True)
        self._thread.start()

    def submit(
        self, function: Callable[[*Arguments], object], arguments: tuple[*Arguments], callback: LaneCallback
    ) -> None:
        if self._closed:
            raise RuntimeError("this lane is closed")
        self._work.put((function, arguments, callback))

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._work.put(None)

    def join(self) -> None:
        """Wait, blocking, until the thread has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            function, arguments, callback = item
            result, error = None, None
            try:
                result = function(*arguments)
            except BaseException as caught:  # handed over to the waiter, whatever it is
                error = caught
            try:
                self._loop.call_soon_threadsafe(callback, result, error)
            except RuntimeError:
                return  # the loop has closed: no caller is left
            del item, function, arguments, callback, result, error  # an idle lane must not keep the last batch alive


class ThreadOffload:
    """A bounded pool of threads, and lanes beside it."""

    def __init__(self, threads_max: int) -> None:
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="magnetar-offload")
        self._lanes: list[ThreadLane] = []

    def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def lane(self, name: str) -> Lane:
        lane = ThreadLane(name)
        self._lanes = [other for other in self._lanes if not other.closed]
        self._lanes.append(lane)
        return lane

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        for lane in self._lanes:
            lane.join()
        self._lanes.clear()
        self._pool.shutdown(wait=True)
