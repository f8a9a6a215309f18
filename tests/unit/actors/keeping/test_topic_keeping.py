"""What a topic gives up by itself, beside a trim that is under way."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.actors.keeping.topic_keeping import TopicKeeping
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import EntryUnknown
from magnetar.protocol.pulsar_pb2 import MessageMetadata


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


class OneSubscription:
    """A subscription, by the place of its first entry."""

    durable, closed, idle_since_ms = True, False, 0

    def __init__(self, name: str, first: tuple[int, int]) -> None:
        self.name = name
        self.cursor = SimpleNamespace(first_unacknowledged=first)
        self.passed: list[tuple[int, int]] = []

    def pass_over(self, place: tuple[int, int], *, expired: bool) -> int:
        self.passed.append(place)
        return 1


async def test_a_subscription_that_cannot_be_read_keeps_no_other_from_expiring() -> None:
    """It is the last one when it is tried again, since the time of a check is limited."""
    subscriptions = [OneSubscription(name, (1, index)) for index, name in enumerate("abc")]
    asked: list[tuple[int, int]] = []

    async def read(place: tuple[int, int], *_: int, upto: tuple[int, int]) -> list[tuple[tuple[int, int], bytes]]:
        asked.append(place)
        if place == (1, 0):
            raise EntryUnknown("its bookies are away")
        return [(place, build_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b""))]

    async def find(before_ms: int, first: tuple[int, int]) -> tuple[int, int]:
        return (first[0], first[1] + 1)

    host: Any = SimpleNamespace(
        is_open=True,
        name=SimpleNamespace(full="t"),
        env=SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: 10_000)),
        policies=SimpleNamespace(message_ttl=1),
        ledger=SimpleNamespace(last_confirmed=(1, 9), read=read, find_by_publish_time=find),
        subscriptions={(one.name, True): one for one in subscriptions},
    )
    keeping = TopicKeeping(host)
    for _ in range(2):
        with pytest.raises(EntryUnknown):
            await keeping.expire_old()
    assert [len(one.passed) for one in subscriptions] == [0, 2, 2]
    assert (asked[0], asked[-1]) == ((1, 0), (1, 0))
