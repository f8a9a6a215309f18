"""The thread in which a worker of `consume` calls its function."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import pytest

from magnetar.tasks import call_thread
from magnetar.tasks.call_thread import TELL_INTERVAL_S, CallThread

WAIT_S = 30.0
Call = Callable[[], object]


class Kit:
    """A thread whose calls are functions, and what the loop was told."""

    def __init__(self) -> None:
        self.told: list[Sequence[Call]] = []
        self.has_told = asyncio.Event()
        self.thread: CallThread[Call] = CallThread(lambda call: call(), self.returned)

    def returned(self, calls: Sequence[Call]) -> None:
        self.told.append(calls)
        self.has_told.set()

    @property
    def all_told(self) -> list[Call]:
        return [one for calls in self.told for one in calls]


def raises(error: BaseException) -> Call:
    def fail() -> object:
        raise error

    return fail


async def test_calls_are_made_in_order_and_all_are_told_at_the_end() -> None:
    kit = Kit()
    made: list[int] = []
    calls: list[Call] = [lambda number=number: made.append(number) for number in range(100)]
    assert await kit.thread.run(calls) == (100, None)
    assert made == [*range(100)]
    assert kit.all_told == calls
    kit.thread.close()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
async def test_an_error_of_any_kind_ends_the_run_and_not_the_loop(error: BaseException) -> None:
    kit = Kit()
    made: list[str] = []
    calls: list[Call] = [lambda: made.append("first"), raises(error), lambda: made.append("third")]
    assert await kit.thread.run(calls) == (1, error)
    assert made == ["first"]
    assert kit.all_told == calls[:1]
    assert await kit.thread.run(calls[2:]) == (1, None), "the thread goes on"
    kit.thread.close()


async def test_what_is_to_be_awaited_ends_the_run() -> None:
    kit = Kit()

    async def answer() -> int:
        return 7

    returned, given = await kit.thread.run([lambda: None, answer, lambda: None])
    assert returned == 1
    assert given is not None and not isinstance(given, BaseException)
    assert await given == 7
    kit.thread.close()


async def test_a_call_that_returned_is_told_while_the_next_one_runs() -> None:
    kit = Kit()
    go_on = threading.Event()
    calls: list[Call] = [lambda: None, lambda: None, lambda: go_on.wait(WAIT_S)]
    run = asyncio.ensure_future(kit.thread.run(calls))
    try:
        async with asyncio.timeout(WAIT_S):
            while len(kit.all_told) < 2:  # the first at once, the second with the timer
                kit.has_told.clear()
                await kit.has_told.wait()
        assert not run.done()
    finally:
        go_on.set()
    assert await run == (3, None)
    assert kit.all_told == calls
    kit.thread.close()


async def test_short_calls_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_thread, "RUN_S", WAIT_S)
    kit = Kit()
    began_s = time.monotonic()
    calls: list[Call] = [lambda: None] * 20_000
    assert await kit.thread.run(calls) == (20_000, None)
    assert len(kit.all_told) == 20_000
    # In an interval the loop is told at once, by the timer, and by the end of the run.
    assert len(kit.told) <= 2 * (time.monotonic() - began_s) / TELL_INTERVAL_S + 2
    kit.thread.close()


async def test_a_run_ends_behind_the_call_in_which_stop_comes() -> None:
    kit = Kit()
    begun, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def first() -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(WAIT_S)

    run = asyncio.ensure_future(kit.thread.run([first, raises(AssertionError("called behind a stop"))]))
    await begun.wait()
    kit.thread.stop()
    go_on.set()
    assert await run == (1, None)
    assert kit.all_told == [first]
    kit.thread.close()


async def test_a_run_ends_when_its_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_thread, "RUN_S", 0.0)
    kit = Kit()
    assert await kit.thread.run([lambda: None, raises(AssertionError("called too late"))]) == (1, None)
    kit.thread.close()
