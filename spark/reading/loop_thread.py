"""A coroutine run to its end from blocking code, even if the calling thread runs a loop of its own (notebooks do)."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import TypeVar

T = TypeVar("T")

Afterwards = Callable[[], Coroutine[object, object, None]]


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
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.shutdown_asyncgens()
        await loop.shutdown_default_executor()
