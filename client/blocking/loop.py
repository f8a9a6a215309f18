"""The event loop behind blocking clients: one thread, and how other threads meet it.

Inside Ray's workers, the tasks and actors of one process share it, and its connections, for equal configurations. There
it lives as long as the process.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TypeVar

import uvloop

from ...protocol.errors import AlreadyClosed, MagnetarError, OperationNotSupported
from ...runtime.environment import Environment
from ..core.configuration import ClientConfiguration
from ..core.context import Closeable, Core
from ..core.discovery import in_ray_worker, service_url_source
from ..core.forking import inherited_error, watch

T = TypeVar("T")

STOP_TIMEOUT_S = 5.0
CLOSED = "the client is closed: create a new one"


def _submit(
    coroutine: Coroutine[object, object, T], loop: asyncio.AbstractEventLoop, thread: int | None
) -> "Future[T]":
    """Have a loop, which runs on that thread, run a coroutine, for a thread that waits for its result.

    Raises OperationNotSupported on the loop's own thread, AlreadyClosed when the loop has ended.
    """
    if threading.get_ident() == thread:
        coroutine.close()
        raise OperationNotSupported(
            "a callback runs on the client's loop and cannot wait for it: make the call in another thread"
        )
    try:
        return asyncio.run_coroutine_threadsafe(coroutine, loop)
    except RuntimeError:
        coroutine.close()
        raise AlreadyClosed(CLOSED) from None


class TwoThreads:
    """The handover between a loop's thread and all others."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._error: MagnetarError | None = None

    def lock(self) -> threading.Lock:
        return threading.Lock()

    def lock_and_signal(self) -> tuple[threading.Lock, threading.Condition]:
        lock = threading.Lock()
        return lock, threading.Condition(lock)

    def inherited(self, error: MagnetarError) -> None:
        self._error = error

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        if self._error is not None:
            coroutine.close()
            raise self._error
        future = _submit(coroutine, self._loop, self._loop_thread)
        try:
            return future.result()
        except CancelledError:
            raise AlreadyClosed(CLOSED) from None
        except BaseException:
            future.cancel()  # without effect unless this thread was interrupted
            raise

    def wake(self, function: Callable[..., object], *arguments: object) -> None:
        if self._error is not None:
            raise self._error
        if threading.get_ident() == self._loop_thread:
            self._loop.call_soon(function, *arguments)
            return
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            raise AlreadyClosed(CLOSED) from None


class Running:
    """A core on a loop on a thread of its own."""

    def __init__(self, configuration: ClientConfiguration) -> None:
        self.error: MagnetarError | None = None
        """Why nothing runs here: this is the child of a fork."""
        self._environment = Environment.real(threads_max=1)
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="magnetar-client", daemon=True)
        self._thread.start()
        watch(self)
        self.core: Core = self.run(self._make_core(configuration))

    async def _make_core(self, configuration: ClientConfiguration) -> Core:
        discover = service_url_source(self._environment, configuration)
        return Core(self._environment, configuration, TwoThreads(self._loop), discover)

    def inherited(self) -> None:
        """See `forking`."""
        self.error = inherited_error("client")

    def is_here(self) -> bool:
        """Whether the caller is on the loop's thread (in a callback), where nothing may block."""
        return threading.get_ident() == self._thread.ident and self.error is None

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine on the loop and return its result.

        Raises OperationNotSupported on the loop's own thread, AlreadyClosed when the loop has ended or is that of the
        parent process.
        """
        if self.error is not None:
            coroutine.close()
            raise self.error
        future = _submit(coroutine, self._loop, self._thread.ident)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # without effect unless this thread was interrupted
            raise

    def close_soon(self, forgotten: Closeable) -> None:
        """Have the loop close what the application dropped. Waits for nothing: garbage collection calls this."""
        if self.error is None and forgotten in self.core.opened:
            with suppress(RuntimeError):  # the loop has ended, and all of it with it
                self._loop.call_soon_threadsafe(self.core.close_soon, forgotten)

    def close(self) -> None:
        """Close everything, end the loop and its thread. May be called twice."""
        if self.error is None and not self._loop.is_closed():
            self.run(self.core.close())
            self.stop()

    def stop(self) -> None:
        """End the loop and its thread at once; whatever is pending fails. May be called twice, and on any thread."""
        if self.error is not None:
            return
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:
            return  # it has ended
        if not self.is_here():
            self._thread.join(STOP_TIMEOUT_S)

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(self._wind_up())
        finally:
            loop.close()
            self._environment.close()

    async def _wind_up(self) -> None:
        await self.core.abandon()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # transports that were aborted close in the next round


class SharedLoops:
    """The loops that this process shares, by configuration."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[ClientConfiguration, Running] = {}
        watch(self)

    def inherited(self) -> None:
        """See `forking`."""
        self._lock = threading.Lock()
        self._running = {}

    def get(self, configuration: ClientConfiguration) -> Running:
        """The one loop for this configuration."""
        with self._lock:
            running = self._running.get(configuration)
            if running is None:
                running = self._running[configuration] = Running(configuration)
            return running


_shared = SharedLoops()


def obtain(configuration: ClientConfiguration) -> tuple[Running, bool]:
    """A loop for a client, and whether it is shared (and must be left running)."""
    if in_ray_worker():
        return _shared.get(configuration), True
    return Running(configuration), False
