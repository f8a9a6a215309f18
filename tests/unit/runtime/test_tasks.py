"""Running coroutines together: results, the first failure, being cancelled."""

import asyncio

import pytest

from magnetar.runtime.tasks import together


class Runs:
    """Coroutines that wait for a gate, and what became of them."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.ended: list[tuple[int, str]] = []

    async def run(self, number: int) -> int:
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # whoever cleans up may need the loop
            self.ended.append((number, "cancelled"))
            raise
        self.ended.append((number, "done"))
        return number * 10

    async def fail(self) -> int:
        raise ValueError("the first to fail")


async def test_results_come_in_the_order_given() -> None:
    runs = Runs()
    runs.gate.set()
    assert await together(runs.run(number) for number in (3, 1, 2)) == [30, 10, 20]
    assert await together([]) == []


async def test_the_first_failure_ends_the_others_before_it_is_raised() -> None:
    runs = Runs()
    with pytest.raises(ValueError, match="the first to fail"):
        await together([runs.run(1), runs.fail(), runs.run(2)])
    assert runs.ended == [(1, "cancelled"), (2, "cancelled")]


async def test_cancelling_the_caller_ends_all_of_them() -> None:
    runs = Runs()
    caller = asyncio.create_task(together([runs.run(1), runs.run(2)]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert runs.ended == [(1, "cancelled"), (2, "cancelled")]
