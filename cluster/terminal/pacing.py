"""Messages at a rate, and how many there were in each second."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress

LIVE_INTERVAL_S = 1.0


class Pace:
    """Lets `rate` messages a second go on, evenly. 0 is no limit.

    The turn of a message follows from the first one's, not from the turn before it. A late message does not slow down
    those after it.
    """

    def __init__(self, rate: float) -> None:
        self._interval_s = 1 / rate if rate > 0 else 0.0
        self._begin_s: float | None = None
        self._turns = 0

    async def turn(self) -> float:
        """Wait for the next message's turn. Returns when it was, by the clock of the running loop."""
        now_s = asyncio.get_running_loop().time()
        if self._begin_s is None:
            self._begin_s = now_s
        turn_s = self._begin_s + self._turns * self._interval_s if self._interval_s else now_s
        self._turns += 1
        if turn_s > now_s:
            await asyncio.sleep(turn_s - now_s)
        return turn_s


class Tally:
    """Counts messages and bytes."""

    def __init__(self) -> None:
        self.messages = 0
        self.size_bytes = 0
        self._begin_s = time.monotonic()
        self._seen = 0
        self._seen_s = self._begin_s

    def add(self, size_bytes: int) -> None:
        self.messages += 1
        self.size_bytes += size_bytes

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._begin_s

    def line(self, what: str) -> str | None:
        """A line about the time since the last call; None if nothing happened."""
        now_s = time.monotonic()
        messages, seconds = self.messages - self._seen, now_s - self._seen_s
        self._seen, self._seen_s = self.messages, now_s
        return f"{what} {self.messages:,} messages, {messages / seconds:,.1f}/s" if messages and seconds else None


@asynccontextmanager
async def beside(endless: Coroutine[object, object, None]) -> AsyncGenerator[None]:
    """Run a coroutine that does not end by itself while the block runs."""
    task = asyncio.create_task(endless)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def live(tally: Tally, what: str, show: Callable[[str], None]) -> AsyncGenerator[None]:
    """Show a line about `tally` each second while the block runs."""

    async def run() -> None:
        while True:
            await asyncio.sleep(LIVE_INTERVAL_S)
            if line := tally.line(what):
                show(line)

    async with beside(run()):
        yield
