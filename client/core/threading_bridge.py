"""How application and event loop meet: on one thread, or on two.

The cores of producer and consumer are written once. The asyncio and the blocking face differ in three things: whether a
lock is needed, how the loop is woken, and how a caller waits. A `Handover` answers these three. The one for two threads
lives with the blocking face (`blocking/loop.py`); this one is for callers on the loop itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from ...protocol.errors import MagnetarError, OperationNotSupported

if TYPE_CHECKING:
    import threading

T = TypeVar("T")


class NoLock:
    """The lock of callers that are all on the loop."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class LoopSignal:
    """Waiting coroutines; each `notify_all` lets all of them look again."""

    def __init__(self) -> None:
        self.waiting: deque[asyncio.Future[None]] = deque()
        """Empty while nobody waits."""

    def notify_all(self) -> None:
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Until the next `notify_all`."""
        waiter = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self.waiting:
                self.waiting.remove(waiter)


ThreadLock: TypeAlias = "NoLock | threading.Lock | threading.RLock"
"""A context manager that excludes other threads, if there are any."""
Signal: TypeAlias = "LoopSignal | threading.Condition"
"""A caller may wait for a change that is made under this signal's lock."""


class Handover(Protocol):
    """The meeting of one client's callers with its loop."""

    def lock(self) -> ThreadLock: ...
    def lock_and_signal(self) -> tuple[ThreadLock, Signal]: ...
    def inherited(self, error: MagnetarError) -> None:
        """This is the child of a fork (`forking`): from now on `wake` raises `error`."""
        ...

    def wake(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call `function` soon. Between threads a system call: once per batch, never per message."""
        ...

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """What a coroutine on the loop returns. Raises OperationNotSupported on the loop's own thread."""
        ...


class SameThread:
    """Callers are coroutines and callbacks of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._error: MagnetarError | None = None

    def lock(self) -> ThreadLock:
        return NoLock()

    def lock_and_signal(self) -> tuple[ThreadLock, Signal]:
        return NoLock(), LoopSignal()

    def inherited(self, error: MagnetarError) -> None:
        self._error = error

    def wake(self, function: Callable[..., object], *arguments: object) -> None:
        if self._error is not None:
            raise self._error
        self._loop.call_soon(function, *arguments)

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        coroutine.close()
        raise OperationNotSupported("the event loop cannot wait for itself: await the message before its value")
