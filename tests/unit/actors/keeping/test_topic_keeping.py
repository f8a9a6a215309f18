"""What a topic gives up by itself, beside a trim that is under way."""

import asyncio
from types import SimpleNamespace
from typing import Any

from magnetar.actors.keeping.topic_keeping import TopicKeeping


async def test_a_cursor_that_moves_during_a_trim_leads_to_one_more_trim() -> None:
    tasks: list[asyncio.Task[Any]] = []
    going_on = asyncio.Event()
    trims = 0

    async def trim() -> None:
        nonlocal trims
        trims += 1
        await going_on.wait()

    host: Any = SimpleNamespace(
        is_open=True,
        ledger=SimpleNamespace(trim=trim),
        spawn=lambda coroutine, name: tasks.append(asyncio.create_task(coroutine, name=name)),
    )
    keeping = TopicKeeping(host)
    keeping.trim_soon()
    await asyncio.sleep(0)
    for _ in range(3):
        keeping.trim_soon()
    assert trims == 1
    going_on.set()
    await tasks[0]
    await tasks[1]
    assert trims == 2 and len(tasks) == 2
