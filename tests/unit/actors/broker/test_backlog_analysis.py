"""The analysis of a backlog: what counts, from where on, and where it ends."""

from dataclasses import replace

import pytest

from magnetar.actors.broker.backlog import analyze
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, filled


async def counted(front: BrokerFront, begin: tuple[int, int] | None = None) -> tuple[int, int, bool]:
    found = await analyze(front.topic, front.topic.subscriptions["s", True], begin)
    return found.entries, found.messages, found.aborted


async def test_an_analysis_counts_messages_and_leaves_out_what_is_acknowledged() -> None:
    async with broker_front() as front:
        peer = await filled(front, 6, messages=3)
        await peer.subscribe(TOPIC, "s")
        assert await counted(front) == (6, 18, False)
        front.topic.subscriptions["s", True].cursor.acknowledge([(1, 0), (1, 3)])
        assert await counted(front) == (4, 12, False)
        assert await counted(front, (1, 0)) == (5, 15, False)
        assert await counted(front, (1, 4)) == (2, 6, False)
        assert await counted(front, (9, 0)) == (0, 0, False)
        await peer.close()


@pytest.mark.promise("32.5")
async def test_an_analysis_ends_at_its_bounds_and_says_so() -> None:
    async with broker_front() as front:
        peer = await filled(front, 7)
        await peer.subscribe(TOPIC, "s")
        for bound, entries, aborted in ((3, 3, True), (6, 6, True), (7, 7, False), (100, 7, False)):
            front.topic.settings = replace(front.topic.settings, backlog_scan_entries_max=bound)
            assert await counted(front) == (entries, entries, aborted)
        await peer.close()
