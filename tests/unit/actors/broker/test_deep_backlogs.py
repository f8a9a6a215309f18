"""Peeking and skipping deep into a backlog, whatever is acknowledged: without a long turn of the broker's loop."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.broker import backlog
from magnetar.protocol.errors import NoSuchEntry
from magnetar.storage.managed.chain import LedgerChain, LedgerInfo
from magnetar.storage.managed.cursor_state import CursorState

Place = tuple[int, int]


class Topic:
    """A topic and a subscription over a chain that nobody stored."""

    def __init__(self, *ledgers: int) -> None:
        self.chain = LedgerChain([LedgerInfo(number + 1, 0, entries) for number, entries in enumerate(ledgers)])
        self.cursor = CursorState(self.chain, (-1, -1))
        self.passed_to: list[Place] = []
        ledger = SimpleNamespace(next_position=self.chain.next_position, read=self._read)
        ledger.last_confirmed = self.chain.last_confirmed
        self.topic: Any = SimpleNamespace(ledger=ledger, check_open=lambda: None, name=SimpleNamespace(full="t"))
        self.subscription: Any = SimpleNamespace(name="s", cursor=self.cursor, acknowledge_all_to=self._pass)
        self.subscription.backlog_entries = self.cursor.backlog_entries()

    async def _read(self, first: Place, entries_max: int, bytes_max: int, upto: Place) -> list[tuple[Place, bytes]]:
        return [(first, b"")]

    async def _pass(self, place: Place) -> None:
        self.passed_to.append(place)

    async def peek(self, number: int) -> Place:
        return (await backlog.peek(self.topic, self.subscription, number))[0]


async def test_the_entry_of_each_number_is_found_between_those_that_are_acknowledged() -> None:
    topic = Topic(5, 0, 7, 3)
    topic.cursor.acknowledge([(1, 0), (1, 3), (3, 0), (3, 1), (3, 6), (4, 2)])
    wanted = [(1, 1), (1, 2), (1, 4), *[(3, entry) for entry in range(2, 6)], (4, 0), (4, 1)]
    assert [await topic.peek(number + 1) for number in range(len(wanted))] == wanted
    with pytest.raises(NoSuchEntry, match="it has 9"):
        await topic.peek(10)
    await backlog.skip(topic.topic, topic.subscription, 4)
    assert topic.passed_to == [(3, 2)]
    topic.cursor.acknowledge_cumulative((4, 1))
    with pytest.raises(NoSuchEntry, match="it has 0"):
        await topic.peek(1)


@pytest.mark.parametrize("holes", [False, True])
async def test_the_loop_goes_on_while_somebody_looks_deep_into_a_backlog(holes: bool) -> None:
    topic = Topic(*[50_000] * 5)
    if holes:
        for ledger_id in range(1, 6):
            topic.cursor.acknowledge([(ledger_id, entry) for entry in range(1, 50_000, 2)])
    looking = asyncio.create_task(topic.peek(100_000))
    turns: list[float] = []
    while not looking.done():
        begun = time.thread_time()
        await asyncio.sleep(0)
        turns.append(time.thread_time() - begun)
    assert looking.result() == ((4, 49_998) if holes else (2, 49_999))
    assert max(turns) < 0.05, f"{len(turns)} turns of up to {max(turns):.3f} s, {sum(turns):.3f} s in all"
