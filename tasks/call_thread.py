"""The thread in which a worker of `magnetar.consume` calls a plain function: many calls in a row.

To hand one call to the thread, and its end back to the loop, takes longer than a short call. While the function runs,
the loop also waits up to 5 ms for each turn (`sys.getswitchinterval`). So the loop hands over a run of calls.

The thread says which calls have returned. It says so at once, when it has said nothing for `TELL_INTERVAL_S`. Else the
loop looks that much later, however long the next call takes. It also looks when the run ends.

A run ends with its last call, with an error, and with a call that gives an awaitable. It ends early behind the call in
which `stop` comes, and behind the call in which `RUN_S` have passed.

Invariants:

- One call runs at a time, in order.
- `returned` gets each call that has returned once, in order, on the loop, before `run` returns.
"""

import asyncio
import inspect
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

C = TypeVar("C")
T = TypeVar("T")

TELL_INTERVAL_S = 0.02
RUN_S = 0.1


class CallThread(Generic[C]):
    """See the module. Made on the loop; `run` is called by one task at a time."""

    def __init__(self, call: Callable[[C], object], returned: Callable[[Sequence[C]], None]) -> None:
        self._call = call
        self._returned = returned
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(1, "magnetar-consume")
        self._finished: deque[C] = deque()
        """Calls that `returned` has not got yet. The thread appends, the loop takes."""
        self._told_s = 0.0
        """When the thread told the loop last."""
        self._waits_for_timer = False
        """Whether the loop was told to look later, and has not looked since."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False

    async def work(self, work: Callable[[], T]) -> T:
        """What another piece of work gives, in the same thread."""
        return await self._loop.run_in_executor(self._threads, work)

    async def run(self, calls: Sequence[C]) -> tuple[int, BaseException | Awaitable[object] | None]:
        """Make these calls.

        Returns how many have returned, and what the next one raised, or gave to be awaited. None: nothing was wrong.
        """
        # What the loop still has to do, such as to send permits, it does before the function takes the GIL.
        await asyncio.sleep(0)
        try:
            return await self._loop.run_in_executor(self._threads, self._make, calls)
        finally:
            self._tell()

    def stop(self) -> None:
        """End the run behind the call that is running."""
        self._stopping = True

    def close(self) -> None:
        """A call that runs is not waited for. What has returned and was not told never is."""
        self._stopping = True
        self._stop_timer()
        self._threads.shutdown(wait=False)

    def _make(self, calls: Sequence[C]) -> tuple[int, BaseException | Awaitable[object] | None]:
        """In the thread. Returns an error in place of raising it: an executor makes others of some."""
        began_s = time.monotonic()
        for number, one in enumerate(calls, 1):
            try:
                given = self._call(one)
            except BaseException as error:  # also KeyboardInterrupt: of the function, because no signal comes here
                return number - 1, error
            if given is not None and inspect.isawaitable(given):
                return number - 1, given
            self._finished.append(one)
            now_s = time.monotonic()
            if number == len(calls) or self._stopping or now_s >= began_s + RUN_S:
                self._told_s = now_s
                return number, None
            if now_s >= self._told_s + TELL_INTERVAL_S:
                self._told_s = now_s
                self._loop.call_soon_threadsafe(self._tell)
            elif not self._waits_for_timer:
                self._waits_for_timer = True
                self._loop.call_soon_threadsafe(self._tell_later)
        return 0, None

    def _tell_later(self) -> None:
        if self._waits_for_timer and self._timer is None:
            self._timer = self._loop.call_later(TELL_INTERVAL_S, self._tell)

    def _tell(self) -> None:
        """On the loop: say what has returned."""
        self._waits_for_timer = False  # before looking: what returns from here on sets the timer again
        self._stop_timer()
        if finished := [self._finished.popleft() for _ in range(len(self._finished))]:
            self._returned(finished)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
