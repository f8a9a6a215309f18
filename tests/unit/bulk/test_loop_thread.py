"""Coroutines from blocking code: results, errors, a caller that has a loop, and clean-up after an interruption."""

import asyncio
import threading

import pytest

from magnetar.bulk import loop_thread
from magnetar.bulk.loop_thread import run_apart
from support.checks.reading_threads import wait_for_readings


def test_results_and_errors_come_back() -> None:
    async def give() -> int:
        await asyncio.sleep(0)
        return 7

    async def fail() -> None:
        raise KeyError("inside")

    assert run_apart(give()) == 7
    with pytest.raises(KeyError, match="inside"):
        run_apart(fail())


async def test_a_caller_with_a_running_loop_may_use_it() -> None:
    async def thread() -> str:
        return threading.current_thread().name

    assert run_apart(thread()) == "magnetar-read"


def test_an_interruption_cancels_and_waits_for_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    cleaned: list[str] = []
    running = threading.Event()

    async def work() -> None:
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append("unpinned")

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread() is threading.main_thread() and timeout is None:
                assert running.wait(5)
                raise KeyboardInterrupt
            return super().wait(timeout)

    class Threading:
        Event = Interrupted
        Thread = threading.Thread

    monkeypatch.setattr(loop_thread, "threading", Threading)
    with pytest.raises(KeyboardInterrupt):
        run_apart(work())
    assert cleaned == ["unpinned"]
    assert "magnetar-read" not in [thread.name for thread in threading.enumerate()]


def test_what_was_left_running_is_ended() -> None:
    ended: list[str] = []

    async def straggler() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("straggler")

    async def work() -> None:
        tasks.append(asyncio.create_task(straggler()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    run_apart(work())
    assert ended == ["straggler"]


def test_the_caller_goes_on_while_afterwards_runs() -> None:
    returned = threading.Event()
    seen: list[object] = []

    async def work() -> int:
        return 7

    async def afterwards() -> None:
        seen.append(await asyncio.to_thread(returned.wait, 10))

    assert run_apart(work(), afterwards) == 7
    assert seen == []
    returned.set()
    wait_for_readings()
    assert seen == [True]


def test_afterwards_runs_when_the_coroutine_fails() -> None:
    seen: list[str] = []

    async def work() -> None:
        raise KeyError("inside")

    async def afterwards() -> None:
        seen.append("closed")

    with pytest.raises(KeyError, match="inside"):
        run_apart(work(), afterwards)
    wait_for_readings()
    assert seen == ["closed"]
