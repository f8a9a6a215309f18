"""An event loop in a thread of its own, for callers that have none, or that run on another one (as notebooks do)."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import TypeVar

import uvloop

T = TypeVar("T")

Afterwards = Callable[[], Coroutine[object, object, None]]


class LoopThread:
    """A loop in a thread of its own, from the first `run` to `close`. `run` may be called from any other thread."""

    def __init__(self, name: str) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """What the coroutine returns or raises. An interruption of the caller (Ctrl-C) cancels it."""
        future = self.submit(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[object, object, T]) -> "Future[T]":
        """Run the coroutine; the future has what it returns or raises. A cancelled future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def start(self, coroutine: Coroutine[object, object, object]) -> None:
        """Run the coroutine, and do not wait for it. It reports its own failures."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def items(self, rows: AsyncGenerator[T]) -> Generator[T]:
        """What an asynchronous generator yields. It is closed when this one is."""

        async def following() -> T | None:
            return await anext(rows, None)

        try:
            while (item := self.run(following())) is not None:
                yield item
        finally:
            self.run(rows.aclose())

    def close(self) -> None:
        """Cancel what still runs, and end the thread."""
        self.run(_end_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def run_apart(coroutine: Coroutine[object, object, T], afterwards: Afterwards | None = None) -> T:
    """Run `coroutine` on a loop in a thread of its own, and return what it returns.

    `afterwards` runs on the same loop when the coroutine has ended, also by an error. The caller does not wait for it;
    the end of the process does. If the wait for the coroutine is interrupted (Ctrl-C), the coroutine is cancelled, and
    its clean-up and `afterwards` are awaited.
    """
    loop = asyncio.new_event_loop()
    task = loop.create_task(coroutine)
    ended = threading.Event()
    task.add_done_callback(lambda _: ended.set())
    thread = threading.Thread(target=_run, args=(loop, task, afterwards), name="magnetar-read")
    thread.start()
    try:
        ended.wait()
    except BaseException:
        with contextlib.suppress(RuntimeError):  # the coroutine has just ended by itself, and the loop is closed
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    if afterwards is None:
        thread.join()
    return task.result()


def _run(loop: asyncio.AbstractEventLoop, task: asyncio.Task[object], afterwards: Afterwards | None) -> None:
    try:
        loop.run_until_complete(_to_the_end(task, afterwards))
    finally:
        loop.close()


async def _to_the_end(task: asyncio.Task[object], afterwards: Afterwards | None) -> None:
    """Wait for the task; then end what it left behind, which no caller needs."""
    await asyncio.wait([task])
    try:
        if afterwards is not None:
            await afterwards()
    finally:
        await _end_others()


async def _end_others() -> None:
    """Cancel all other tasks of this loop, and end what they leave behind."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
