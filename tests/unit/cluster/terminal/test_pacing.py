"""Rates of messages."""

import asyncio
from unittest import mock

import pytest

from magnetar.cluster.terminal import pacing
from magnetar.cluster.terminal.pacing import Pace, Tally, live


async def test_turns_follow_the_first_one_however_late_a_message_is() -> None:
    slept: list[float] = []

    async def sleep(delay_s: float) -> None:
        slept.append(delay_s)

    loop = mock.Mock()
    loop.time.side_effect = [10.0, 10.02, 10.5, 10.5]
    with (
        mock.patch.object(pacing.asyncio, "get_running_loop", lambda: loop),
        mock.patch.object(pacing.asyncio, "sleep", sleep),
    ):
        pace = Pace(10)
        turns = [await pace.turn() for _ in range(4)]
    assert turns == pytest.approx([10.0, 10.1, 10.2, 10.3])
    assert slept == pytest.approx([0.08])


async def test_without_a_rate_every_turn_is_now() -> None:
    pace = Pace(0)
    begin = asyncio.get_running_loop().time()
    assert all(begin <= turn <= asyncio.get_running_loop().time() for turn in [await pace.turn() for _ in range(100)])


async def test_live_rates_are_shown_only_for_seconds_with_messages() -> None:
    shown: asyncio.Queue[str] = asyncio.Queue()
    tally = Tally()
    with mock.patch.object(pacing, "LIVE_INTERVAL_S", 0.001):
        async with live(tally, "produced", shown.put_nowait):
            await asyncio.sleep(0.01)
            assert shown.empty()
            tally.add(10)
            line = await asyncio.wait_for(shown.get(), 10)
    assert line.startswith("produced 1 messages, ") and line.endswith("/s")
    assert (tally.messages, tally.size_bytes) == (1, 10)
