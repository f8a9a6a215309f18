"""The background tasks of one service: referenced until they end, their failures reported, all of them gone after
`close`.

The event loop itself keeps only weak references to tasks, and an unawaited task's exception is shown when it is
collected, if at all.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """A set of tasks with one owner. `on_error` gets every exception that a task did not handle itself."""

    __slots__ = ("__weakref__", "_closed", "_on_error", "_running")

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._running: dict[asyncio.Task[object], None] = {}  # a dict, because its order is that of creation
        self._on_error = on_error
        self._closed = False

    def __len__(self) -> int:
        return len(self._running)

    @property
    def closed(self) -> bool:
        """Whether `close` was called: nothing can be started any longer."""
        return self._closed

    def spawn(self, coroutine: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
        """Start a task. Raises RuntimeError after `close`."""
        if self._closed:
            coroutine.close()
            raise RuntimeError(f"cannot start {name}: its service is closed")
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel all tasks and wait for them to end; the calling task, if it is one of them, is left out."""
        self._closed = True
        current = asyncio.current_task()
        waiting = [task for task in self._running if task is not current]
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.gather(*waiting, return_exceptions=True)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._running.pop(task, None)
        if not self._running:
            self._running = {}  # a dict keeps the room that it once needed
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            logger.error("task %s failed", task.get_name(), exc_info=error)
            if self._on_error is not None:
                self._on_error(error)


async def together(coroutines: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Run all at once; their results in the order given.

    When one fails, or the caller is cancelled, the others are cancelled, and have ended when this raises (what
    `asyncio.gather` does not do). Raises the first error.
    """
    tasks = [asyncio.get_running_loop().create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
