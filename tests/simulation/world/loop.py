"""An asyncio event loop in virtual time, whose every handle belongs to a simulated process.

Nothing waits: when nothing is ready, time jumps to the next timer. Which process a handle belongs to says the context
variable `PROCESS` of the context it was scheduled in; without one it belongs to the simulator itself. The handles of a
paused process are kept until it goes on, which is when first what was ready, then what came from sockets, then timers
run, as in a real loop after SIGCONT. The timers of a dead process are dropped; what else it still does (its tasks
are cancelled) reaches neither disk nor network.

A handle is what runs between two awaits: a process that is to be struck after so many handles ends at any await.

The clock is that of uvloop, on which all services run. `time` counts milliseconds, and stands still within a turn. So
two events often have the same time: a PING and its PONG, a write and the answer. A delay is rounded to milliseconds,
and a timer may be up to half a millisecond early. The world itself (packets, disks) goes by `now`, which is exact.

Tasks and futures hash by a counter, so that sets of them have the same order in every run.

Of asyncio's loop only what is called while a run lasts is replaced, in fewer steps: a run is tens of thousands of
handles, and the loop's own share of each decides how many seeds fit into a minute.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol

HANDLES_WITHOUT_TIME_MAX = 500_000
START_S = 1_000.0
END_S = START_S + 600.0
"""No run is as long as that."""
DELAY_MAX_S = 1e6
"""The longest delay; the infinite one is as long."""
TASKS_SWEPT_MIN = 32
TICKS_PER_S = 1000
"""The clock's resolution."""
ROUNDING_TICKS = 1e-6
"""A timer that is due at a tick is not a tick early because of its binary fraction."""
TURN_S = 0.0001
"""A delay that is rounded to nothing is over after the next turn. This long a turn takes then: else a caller that waits
for the next tick would wait for ever."""

READY, SOCKET, TIMER = range(3)
"""Kinds of handles, in the order in which a resumed process runs them."""


class Owner(Protocol):
    """What the loop needs to know of a process. `hindered`: it is paused, dead, or about to be struck."""

    name: str
    alive: bool
    paused: bool
    hindered: bool
    strike_in: int
    stalled: "list[SimHandle]"
    tasks: "list[asyncio.Task[Any]]"
    tasks_max: int
    after_event: "Callable[[], None] | None"
    """Called when a handle of it has run: what looks after its state."""

    def kill(self) -> None: ...


PROCESS: ContextVar[Owner | None] = ContextVar("PROCESS", default=None)


class Stuck(Exception):
    """Nothing is left that could ever happen, time does not go on, or the run does not end."""


class SimHandle:
    """What asyncio has as Handle and TimerHandle, of one of the kinds; `moment` is when it is due (0 when ready)."""

    __slots__ = ("arguments", "callback", "context", "dropped", "kind", "moment")

    callback: Any
    arguments: tuple[Any, ...]

    def __init__(self, callback: Any, arguments: tuple[Any, ...], context: Context, kind: int, moment: float) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.kind = kind
        self.moment = moment
        self.dropped = False

    def cancel(self) -> None:
        self.dropped = True
        self.callback, self.arguments = None, ()

    def cancelled(self) -> bool:
        return self.dropped

    def when(self) -> float:
        return self.moment

    def __repr__(self) -> str:
        return f"<{self.callback!r} at {self.moment}>"


class Pipe(Protocol):
    """What brings bytes to a socket."""

    def arrives(self, arrival: "Arrival") -> bool: ...


class Arrival(SimHandle):
    """So many items of a pipe on their way: when they are there the pipe says whether anybody hears of it."""

    __slots__ = ("count", "pipe")

    def __init__(self, pipe: Pipe, count: int, context: Context, callback: Any, moment: float) -> None:
        self.callback = callback
        self.arguments = ()
        self.context = context
        self.kind = SOCKET
        self.moment = moment
        self.dropped = False
        self.pipe = pipe
        self.count = count


class _Numbered:
    """A hash that does not depend on the address, but on when it was first asked for."""

    number: int

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:
            self.number = next(self.get_loop()._numbers)  # type: ignore[attr-defined]
            return self.number


class SimTask(_Numbered, asyncio.Task[Any]):
    """A task with such a hash."""


class SimFuture(_Numbered, asyncio.Future[Any]):
    """A future with such a hash."""


def _be_over(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)


class SimLoop(asyncio.BaseEventLoop):
    """See the module. `handles_run` counts, for the unseed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START_S
        """The exact time."""
        self._tick = int(START_S * TICKS_PER_S)
        self._clock = START_S
        self.handles_run = 0
        self.network: Any = None
        self.failures: list[str] = []
        self.owners: list[Owner] = []
        self._numbers = itertools.count(1)
        self._ready: deque[SimHandle]
        self._timers: list[tuple[float, int, SimHandle]] = []
        self._swept: Owner | None = None
        self.set_exception_handler(self._report)

    # -- time and chance of the loop -------------------------------------------------------------------------------

    def time(self) -> float:
        return self._clock

    def _move_to(self, moment: float) -> None:
        self.now = moment
        self._tick = int(moment * TICKS_PER_S + ROUNDING_TICKS)
        self._clock = self._tick / TICKS_PER_S

    def call_soon(self, callback: Any, *arguments: Any, context: Context | None = None) -> Any:
        handle = SimHandle(callback, arguments, copy_context() if context is None else context, READY, 0.0)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, context: Context | None = None) -> Any:
        return self.call_soon(callback, *arguments, context=context)

    def call_later(self, delay: float, callback: Any, *arguments: Any, context: Context | None = None) -> Any:
        if delay <= 0:
            return self.call_soon(callback, *arguments, context=context)
        ticks = round(min(delay, DELAY_MAX_S) * TICKS_PER_S)
        when = (self._tick + ticks) / TICKS_PER_S if ticks else self.now + TURN_S
        handle = SimHandle(callback, arguments, copy_context() if context is None else context, TIMER, when)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_at(self, when: float, callback: Any, *arguments: Any, context: Context | None = None) -> Any:
        return self.call_later(when - self._clock, callback, *arguments, context=context)

    def happen(self, seconds: float, callback: Any, *arguments: Any, context: Context) -> None:
        """Something of the world that takes exactly so long."""
        when = self.now + seconds
        handle = SimHandle(callback, arguments, context, TIMER, when)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))

    async def passing(self, seconds: float) -> None:
        """Wait for something of the world that takes exactly so long."""
        over = self.create_future()
        self.happen(seconds, _be_over, over, context=copy_context())
        await over

    def deliver(self, context: Context, callback: Callable[..., object], *arguments: Any) -> None:
        """Run something that a socket brought."""
        self._ready.append(SimHandle(callback, arguments, context, SOCKET, self.now))

    def send(self, arrival: Arrival) -> None:
        """Let something arrive at its moment."""
        heapq.heappush(self._timers, (arrival.moment, next(self._numbers), arrival))

    def create_future(self) -> Any:
        return SimFuture(loop=self)

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> Any:
        task = SimTask(coro, loop=self, name=name, context=context)
        owner = context.get(PROCESS) if context is not None else PROCESS.get()
        if owner is not None:
            owner.tasks.append(task)
            if len(owner.tasks) > owner.tasks_max:
                self.sweep(owner)
        return task

    def sweep(self, owner: Owner) -> None:
        """Let go of the tasks of a process that are done; what they failed of unheard is reported now."""
        self._swept = owner
        owner.tasks = [task for task in owner.tasks if not task.done()]
        owner.tasks_max = max(TASKS_SWEPT_MIN, 2 * len(owner.tasks))
        self._swept = None

    def sweep_all(self) -> None:
        """`sweep` every process that ever was."""
        for owner in self.owners:
            self.sweep(owner)

    # -- the run -----------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """All turns until the loop is stopped: its caller would do nothing between them."""
        ready, timers, heappop, get = self._ready, self._timers, heapq.heappop, PROCESS
        handles, handles_max = self.handles_run, self.handles_run + HANDLES_WITHOUT_TIME_MAX
        try:
            while True:
                while ready:
                    handle = ready.popleft()
                    if handle.dropped:
                        continue
                    context = handle.context
                    owner = context.get(get)
                    if owner is not None and owner.hindered and self._is_held(owner, handle):
                        continue
                    handles += 1
                    if handles > handles_max:
                        raise Stuck(f"time stands still at {self.now}: {handle}")
                    try:
                        context.run(handle.callback, *handle.arguments)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        what = {"message": f"exception in {handle.callback!r}", "exception": error}
                        context.run(self.call_exception_handler, what)
                    if owner is not None and owner.after_event is not None and owner.alive:
                        owner.after_event()
                    if self._stopping:  # type: ignore[attr-defined]
                        return
                while timers and timers[0][2].dropped:
                    heappop(timers)
                if not timers:
                    raise Stuck("no timer is left")
                if timers[0][0] > self.now:
                    self._move_to(timers[0][0])
                    if self.now > END_S:
                        raise Stuck(f"the run does not end: {END_S - START_S:.0f} s of its time have passed")
                    handles_max = handles + HANDLES_WITHOUT_TIME_MAX
                    self.handles_run = handles  # for whoever watches
                now = self.now
                while timers and timers[0][0] <= now:
                    handle = heappop(timers)[2]
                    if handle.kind != SOCKET or handle.pipe.arrives(handle):  # type: ignore[attr-defined]
                        ready.append(handle)
        finally:
            self.handles_run = handles

    def _is_held(self, owner: Owner, handle: SimHandle) -> bool:
        """Whether a handle of a hindered process is not run now."""
        if owner.alive and owner.paused:
            owner.stalled.append(handle)
            return True
        if owner.alive and owner.strike_in:
            owner.strike_in -= 1
            if not owner.strike_in:
                Context().run(owner.kill)
        return not owner.alive and handle.kind != READY

    def go_on(self, owner: Owner) -> None:
        """Run what a resumed process missed, in the order of a real loop."""
        stalled, owner.stalled = owner.stalled, []
        stalled.sort(key=lambda handle: handle.kind)
        self._ready.extend(stalled)

    def abandon(self) -> None:
        """Nothing is run any longer, whatever finalizers may still schedule."""
        never = SimHandle(None, (), copy_context(), READY, 0.0)
        self.call_soon = self.call_at = self.call_later = self.happen = lambda *_, **__: never  # type: ignore
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
        owner = self._swept or PROCESS.get()
        if owner is not None and not owner.alive:
            return
        error = context.get("exception")
        where = owner.name if owner is not None else "the simulator"
        self.failures.append(f"{where}: {context.get('message')}: {error!r}")
