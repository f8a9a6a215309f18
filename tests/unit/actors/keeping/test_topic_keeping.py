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
        name=SimpleNamespace(full="t"),
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
        self.first = first
        self.cursor = SimpleNamespace(first_unacknowledged=first, is_acknowledged=lambda position: False)
        self.passed: list[tuple[int, int]] = []

    def pass_over(self, place: tuple[int, int], *, expired: bool) -> int:
        self.passed.append(place)
        self.cursor.first_unacknowledged = place
        return 1


async def test_a_subscription_that_cannot_be_read_keeps_no_other_from_expiring() -> None:
    """It is the last one when it is tried again, since the time of a check is limited."""
    subscriptions = [OneSubscription(name, (index, 0)) for index, name in enumerate("abc")]
    asked: list[tuple[int, int]] = []

    async def read(place: tuple[int, int], *_: int, upto: tuple[int, int]) -> list[tuple[tuple[int, int], bytes]]:
        asked.append(place)
        if place == (0, 0):
            raise EntryUnknown("its bookies are away")
        return [(place, build_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b""))]

    arrivals = SimpleNamespace(
        before=lambda before_ms: (-1, -1),  # nothing is certain: each entry has to be read
        found_upto=(2, 0),
        earliest_ms=lambda place: 0 if place[1] == 0 else 10_000,
        arrived_ms=lambda place, stamp: stamp,
    )
    host: Any = SimpleNamespace(
        is_open=True,
        name=SimpleNamespace(full="t"),
        env=SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: 10_000)),
        policies=SimpleNamespace(message_ttl=1),
        ledger=SimpleNamespace(arrivals=arrivals, read=read, next_position=lambda place: (place[0], place[1] + 1)),
        subscriptions={(one.name, True): one for one in subscriptions},
    )
    keeping = TopicKeeping(host)
    for _ in range(2):
        with pytest.raises(EntryUnknown):
            await keeping.expire_old()
        for one in subscriptions:
            one.cursor.first_unacknowledged = one.first
    assert [len(one.passed) for one in subscriptions] == [0, 2, 2]
    assert asked == [(0, 0), (1, 0), (2, 0), (1, 0), (2, 0), (0, 0)]
