"""An operator's work on a topic whose broker dies at any of its writes: each subscription is where it was, or is done.

The broker is taken for dead before or behind its n-th write of metadata. The next owner opens the topic: no
subscription has lost a message that the operator did not give up, and all can be read. The same request ends the work.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from magnetar.actors.broker import backlog
from magnetar.actors.topics.topic import SubscriptionStart
from magnetar.protocol.errors import MagnetarError, StaleEpoch
from magnetar.protocol.message_id import Position
from support.fakes.bookies import FakeCluster
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, filled, until

MESSAGES = 12
SETTINGS: Any = {"ledger_entries_max": 4, "ledger_rollover_min_minutes": 0, "cursor_flush_interval_s": 0.01}
NAMES = ("a", "b", "c")
pytestmark = pytest.mark.cluster_settings(add_entry_timeout_s=1.0, **SETTINGS)

Operation = Callable[[Any], Awaitable[object]]


async def truncate(topic: Any) -> None:
    await backlog.truncate(topic)


async def skip(topic: Any) -> None:
    for name in NAMES:
        subscription = topic.subscriptions[name, True]
        await backlog.skip(topic, subscription, max(0, subscription.backlog_entries - 5))


async def expire(topic: Any) -> None:
    now_ms = topic.env.clock.now_ms
    began_ms = now_ms()
    await until(lambda: now_ms() > began_ms)  # what arrived in this millisecond is not older than it
    for name in NAMES:
        await topic.keeping.expire(topic.subscriptions[name, True], 0)


def die(cluster: FakeCluster, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse the n-th write of metadata and all behind it; an odd `step` lets the n-th one through."""
    write_many, seen = cluster.metadata.write_many, 0

    async def write(writes: Sequence[Any], guard: Any = None) -> Any:
        nonlocal seen
        seen += 1
        if seen > step // 2 + 1 or (seen == step // 2 + 1 and not step % 2):
            raise StaleEpoch("this broker was taken for dead")
        return await write_many(writes, guard)

    monkeypatch.setattr(cluster.metadata, "write_many", write)


async def loaded(front: BrokerFront) -> Any:
    peer = await front.peer()
    await peer.producer(TOPIC, 7)
    await peer.close()
    return front.topic


async def contents(topic: Any) -> dict[Position, bytes]:
    ledger = topic.ledger
    return dict(await ledger.read(ledger.first_position, 1000, 1 << 20))


def backlogs(topic: Any) -> dict[str, int]:
    return {name: topic.subscriptions[name, True].backlog_entries for name in NAMES}


@pytest.mark.parametrize("step", range(16))
@pytest.mark.parametrize(
    ("operation", "left"), [(truncate, 0), (skip, 5), (expire, 0)], ids=["truncate", "skip", "expire"]
)
async def test_a_backlog_that_is_given_up_is_whole_or_gone_at_the_next_owner(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, operation: Operation, left: int, step: int
) -> None:
    async with broker_front(cluster, **SETTINGS) as front:
        await (await filled(front, 1)).close()
        for name in NAMES:
            await front.topic.subscription(name, durable=True, start=SubscriptionStart(earliest=True))
        await (await filled(front, MESSAGES - 1)).close()
        await until(lambda: all(count == MESSAGES for count in backlogs(front.topic).values()))
        before = await contents(front.topic)
        with monkeypatch.context() as patched:
            die(cluster, step, patched)
            with contextlib.suppress(MagnetarError):
                async with asyncio.timeout(5):
                    await operation(front.topic)
            async with asyncio.timeout(5):
                await front.topics.close()
    async with broker_front(cluster, epoch=2, **SETTINGS) as front:
        topic = await loaded(front)
        after = await contents(topic)
        assert after.items() <= before.items()
        assert set(backlogs(topic).values()) <= {left, MESSAGES}
        for name in NAMES:
            cursor = topic.subscriptions[name, True].cursor
            wanted = [place for place in before if place > cursor.mark_delete_position]
            assert len(wanted) == topic.subscriptions[name, True].backlog_entries
            assert set(wanted) <= set(after), "what is not given up can be read"
        await operation(topic)
        assert backlogs(topic) == dict.fromkeys(NAMES, left)
