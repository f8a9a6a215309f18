"""Coroutines from blocking code: results, errors, a caller that has a loop, and clean-up after an interruption."""

import asyncio
import threading

import pytest

from magnetar.spark.loop_thread import run_apart


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

    def submit(coroutine, loop):  # type: ignore[no-untyped-def]
        future = original(coroutine, loop)
        if coroutine.__name__ == "work":
            result = future.result

            def interrupted(timeout: float | None = None) -> None:
                assert running.wait(5)
                future.result = result
                raise KeyboardInterrupt

            future.result = interrupted
        return future

    original = asyncio.run_coroutine_threadsafe
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", submit)
    with pytest.raises(KeyboardInterrupt):
        run_apart(work())
    assert cleaned == ["unpinned"]
    assert "magnetar-read" not in [thread.name for thread in threading.enumerate()]
