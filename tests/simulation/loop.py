"""An asyncio event loop in virtual time, whose every handle belongs to a simulated process.

Nothing waits: when nothing is ready, time jumps to the next timer. Which process a handle belongs to says the context
variable `PROCESS` of the context it was scheduled in; without one it belongs to the simulator itself. The handles of a
paused process are kept until it goes on, which is when first what was ready, then what came from sockets, then timers
run, as in a real loop after SIGCONT. The timers of a dead process are dropped; what else it still does (its tasks
are cancelled) reaches neither disk nor network.

Tasks and futures hash by a counter, so that sets of them have the same order in every run.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, Protocol

TURNS_WITHOUT_TIME_MAX = 200_000
START_S = 1_000.0


class Owner(Protocol):
    """What the loop needs to know of a process."""

    name: str
    alive: bool
    paused: bool
    stalled: "list[asyncio.Handle]"
    tasks: "dict[asyncio.Task[Any], None]"
    after_event: "Callable[[], None] | None"
    """Called when a handle of it has run: what looks after its state."""


PROCESS: ContextVar[Owner | None] = ContextVar("PROCESS", default=None)


class Stuck(Exception):
    """Nothing is left that could ever happen, or time does not go on."""


class Delivery(asyncio.TimerHandle):
    """A timer that stands for bytes at a socket."""


class SimTask(asyncio.Task[Any]):
    """A task with a hash that does not depend on its address."""

    number: int

    def __hash__(self) -> int:
        return self.number


class SimFuture(asyncio.Future[Any]):
    """A future with a hash that does not depend on its address."""

    number: int

    def __hash__(self) -> int:
        return self.number


class SimLoop(asyncio.BaseEventLoop):
    """See the module. `handles_run` counts, for the unseed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START_S
        self.handles_run = 0
        self.network: Any = None
        self.failures: list[str] = []
        self._numbers = itertools.count(1)
        self._turns = 0
        self._ready: deque[asyncio.Handle]
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.set_exception_handler(self._report)
        self.set_task_factory(self._make_task)

    # -- time and chance of the loop -------------------------------------------------------------------------------

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Context | None = None) -> Any:
        return self._schedule(asyncio.TimerHandle(when, callback, arguments, self, context), when)

    def deliver_at(self, when: float, context: Context, callback: Callable[..., object], *arguments: Any) -> None:
        """Run something that a socket brought."""
        self._schedule(Delivery(when, callback, arguments, self, context), when)

    def _schedule(self, handle: asyncio.TimerHandle, when: float) -> asyncio.TimerHandle:
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self) -> Any:
        future = SimFuture.__new__(SimFuture)
        future.number = next(self._numbers)
        future.__init__(loop=self)
        return future

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        task = SimTask.__new__(SimTask)
        task.number = next(self._numbers)
        context: Context | None = options.get("context")
        owner = context.get(PROCESS) if context is not None else PROCESS.get()
        task.__init__(coroutine, loop=self, **options)
        if owner is not None:
            owner.tasks[task] = None
            task.add_done_callback(lambda done: owner.tasks.pop(done, None) and None)
        return task

    # -- the turn --------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if ready:
            self._turns += 1
            if self._turns > TURNS_WITHOUT_TIME_MAX:
                raise Stuck(f"time stands still at {self.now}: {ready[0]}")
        else:
            while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
                heapq.heappop(timers)
            if not timers:
                raise Stuck("no timer is left")
            if timers[0][0] > self.now:
                self.now = timers[0][0]
                self._turns = 0
            while timers and timers[0][0] <= self.now:
                ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:  # type: ignore[attr-defined]
                continue
            owner = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if owner is not None:
                if owner.paused and owner.alive:
                    owner.stalled.append(handle)
                    continue
                if not owner.alive and isinstance(handle, asyncio.TimerHandle):
                    continue
            self.handles_run += 1
            handle._run()
            if owner is not None and owner.after_event is not None and owner.alive:
                owner.after_event()
            if self._stopping:  # type: ignore[attr-defined]
                break

    def go_on(self, owner: Owner) -> None:
        """Run what a resumed process missed, in the order of a real loop."""
        stalled, owner.stalled = owner.stalled, []
        for kind in (0, 1, 2):
            self._ready.extend(handle for handle in stalled if _kind(handle) == kind)

    def abandon(self) -> None:
        """Nothing is run any more, whatever finalizers may still schedule."""
        never: Any = asyncio.Handle(lambda: None, (), self)
        self.call_soon = self.call_at = self.call_later = lambda *_, **__: never  # type: ignore[method-assign]
        self._ready.clear()
        self._timers.clear()

    # -- what a selector loop has ------------------------------------------------------------------------------------

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    def _write_to_self(self) -> None:
        pass

    def _process_events(self, event_list: object) -> None:
        pass

    def _report(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        owner = PROCESS.get()
        if owner is not None and not owner.alive:
            return
        error = context.get("exception")
        where = owner.name if owner is not None else "the simulator"
        self.failures.append(f"{where}: {context.get('message')}: {error!r}")


def _kind(handle: asyncio.Handle) -> int:
    if isinstance(handle, Delivery):
        return 1
    return 2 if isinstance(handle, asyncio.TimerHandle) else 0
