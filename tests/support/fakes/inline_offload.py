"""An `Offload` without threads: work runs on the loop, in order, deterministic. For tests with files in memory.

A lane can be held back, so that a test decides what happens while a batch is at the disk.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from magnetar.runtime.offload import Lane, LaneCallback

T = TypeVar("T")


class InlineLane(Lane):
    """Runs one piece of work a turn of the loop. `hold()` stops it, `release()` goes on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._work: deque[tuple[Callable[..., Any], tuple[Any, ...], LaneCallback]] = deque()
        self._held = False
        self._scheduled = False
        self._closed = False

    def submit(self, function: Callable[..., Any], arguments: tuple[Any, ...], callback: LaneCallback) -> None:
        if self._closed:
            raise RuntimeError("this lane is closed")
        self._work.append((function, arguments, callback))
        self._schedule()

    def close(self) -> None:
        self._closed = True

    def hold(self) -> None:
        self._held = True

    def release(self) -> None:
        self._held = False
        self._schedule()

    def _schedule(self) -> None:
        if self._work and not self._held and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        if self._held or not self._work:
            return
        function, arguments, callback = self._work.popleft()
        try:
            result, error = function(*arguments), None
        except Exception as caught:
            result, error = None, caught
        self._schedule()
        callback(result, error)


class InlineOffload:
    """Lanes are kept by name in `lanes`."""

    def __init__(self) -> None:
        self.lanes: dict[str, InlineLane] = {}

    def run(self, function: Callable[..., T], *arguments: Any) -> Awaitable[T]:
        return InlineLane("pool").run(function, *arguments)

    def lane(self, name: str) -> InlineLane:
        lane = self.lanes[name] = InlineLane(name)
        return lane

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
