"""A coroutine run to its end from blocking code, even if the calling thread runs a loop of its own (notebooks do)."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def run_apart(coroutine: Coroutine[object, object, T]) -> T:
    """Run `coroutine` on a loop in a thread that lives as long, and return what it returns.

    If the wait is interrupted (Ctrl-C), the coroutine is cancelled and its clean-up awaited.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="magnetar-read", daemon=True)
    thread.start()
    ended = threading.Event()

    async def begin() -> asyncio.Task[T]:
        task = loop.create_task(coroutine)
        task.add_done_callback(lambda _: ended.set())
        return task

    task = asyncio.run_coroutine_threadsafe(begin(), loop).result()
    try:
        ended.wait()
    finally:
        asyncio.run_coroutine_threadsafe(_end(task), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
    return task.result()


async def _end(task: asyncio.Task[object]) -> None:
    """Cancel the task if it still runs and wait for it; then what it left behind, which no caller needs."""
    task.cancel()
    await asyncio.wait([task])
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
