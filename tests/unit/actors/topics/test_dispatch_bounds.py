"""What a subscription may have unacknowledged, and what an entry that cannot be read costs the others."""

import asyncio

import pytest

from magnetar.actors.dispatch.shared import SharedDispatcher
from magnetar.actors.topics import pump as pump_module
from magnetar.protocol.commands import ack
from magnetar.protocol.pulsar_pb2 import CommandRedeliverUnacknowledgedMessages, CommandSubscribe, MessageIdData
from support.servers.broker_bench import TOPIC, broker_front, cursor, filled, until

SHARED = CommandSubscribe.Shared


def stats(front):
    return front.topic.describe().subscriptions[0]


# -- unacknowledged messages -------------------------------------------------------------------------------------------


async def test_a_shared_subscription_stops_at_its_bound_and_goes_on_at_half():
    async with broker_front(unacked_messages_max_per_subscription=6) as front:
        one, two = await filled(front, 20), await front.peer()
        for peer in (one, two):
            await peer.subscribe(TOPIC, "s", subType=SHARED)
            peer.flow(100)
        await until(lambda: stats(front).unacked_messages == 6)
        await one.settle()
        await two.settle()
        assert stats(front).blocked and stats(front).unacked_messages == 6
        got = [*await _taken(one), *await _taken(two)]
        assert sorted(index for index, _ in got) == list(range(6))
        one.write(ack(1, [(1, 0), (1, 1)]))
        await one.settle()
        assert stats(front).unacked_messages == 4  # not yet
        one.write(ack(1, [(1, 2)]))
        await until(lambda: stats(front).unacked_messages == 6)
        await one.close()  # what it held goes to the other
        await until(lambda: stats(front).consumers[0].unacked_messages == 6)
        done: set[int] = set()
        while len(done) < 17:
            for index, _ in await _taken(two):
                done.add(index)
                two.write(ack(1, [(1, index)]))
            await two.settle()
        assert (await cursor(front)).backlog_entries == 0 and not stats(front).blocked
        await two.close()


async def _taken(peer):
    """What has come by now."""
    await peer.settle()
    return await peer.messages(len([frame for frame in peer.received if frame.command.HasField("message")]))


async def test_an_exclusive_consumer_that_acknowledges_in_order_is_never_stopped():
    async with broker_front(unacked_messages_max_per_subscription=2) as front:
        peer = await filled(front, 50)
        await peer.subscribe(TOPIC, "s")
        peer.flow(100)
        await peer.messages(50)  # nothing is acknowledged, as by one that does so at its checkpoints
        peer.write(ack(1, [(1, 49)], cumulative=True))
        await peer.settle()
        assert (await cursor(front)).backlog_entries == 0
        await peer.close()


async def test_an_exclusive_consumer_is_stopped_by_holes_until_it_fills_half_of_them():
    async with broker_front(unacked_messages_max_per_subscription=4) as front:
        peer = await filled(front, 40)
        await peer.subscribe(TOPIC, "s")
        peer.flow(10)
        await peer.messages(10)
        peer.write(ack(1, [(1, index) for index in (1, 3, 5, 7)]))
        peer.flow(100)
        await peer.settle()
        assert not peer.received and stats(front).blocked
        peer.write(ack(1, [(1, 2)]))
        await peer.settle()
        assert not peer.received
        peer.write(ack(1, [(1, 4)]))
        assert [index for index, _ in await peer.messages(30)] == list(range(10, 40))
        await peer.close()


async def test_a_consumer_that_connects_again_gets_what_lies_in_the_holes():
    async with broker_front(unacked_messages_max_per_subscription=2) as front:
        peer, again = await filled(front, 12), await front.peer()
        await peer.subscribe(TOPIC, "s")
        peer.flow(6)
        await peer.messages(6)
        peer.write(ack(1, [(1, 1), (1, 3), (1, 5)]))
        peer.flow(100)
        await peer.settle()
        assert not peer.received
        await peer.close()
        await again.subscribe(TOPIC, "s")
        again.flow(100)
        for expected in (0, 2, 4, 6):
            assert await again.messages(1) == [(expected, 0)]
            again.write(ack(1, [(1, expected)]))
        assert [index for index, _ in await again.messages(5)] == [7, 8, 9, 10, 11]
        await again.close()


# -- entries that cannot be read ---------------------------------------------------------------------------------------


async def test_a_shared_subscription_goes_on_without_an_unreadable_entry(monkeypatch):
    monkeypatch.setattr(pump_module, "RECALL_INTERVAL_S", 0.02)
    async with broker_front() as front:
        peer = await filled(front, 10)
        front.ledger.unreadable = {(1, 0), (1, 4), (1, 5)}
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        assert [index for index, _ in await peer.messages(7)] == [1, 2, 3, 6, 7, 8, 9]
        peer.write(ack(1, [(1, index) for index in (1, 2, 3, 6, 7, 8, 9)]))
        await peer.settle()
        assert (await cursor(front)).backlog_entries == 3 and stats(front).replay_entries == 3
        front.ledger.unreadable = {(1, 4)}
        assert sorted(index for index, _ in await peer.messages(2)) == [0, 5]
        front.ledger.unreadable.clear()
        assert await peer.messages(1) == [(4, 0)]
        await peer.close()


async def test_an_unreadable_entry_among_redeliveries_leaves_the_others():
    async with broker_front() as front:
        peer = await filled(front, 10)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        await peer.messages(10)
        front.ledger.unreadable = {(1, 2)}
        wanted = [MessageIdData(ledgerId=1, entryId=index) for index in (0, 2, 3, 9)]
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=wanted))
        assert [index for index, _ in await peer.messages(3)] == [0, 3, 9]
        await peer.close()


async def test_when_nothing_can_be_read_a_shared_subscription_pauses(monkeypatch):
    """Then it is not the entries' fault: all of the backlog would be set aside, read by read."""
    monkeypatch.setattr(pump_module, "READ_RETRY_INITIAL_S", 60.0)
    monkeypatch.setattr(pump_module, "READ_RETRY_MAXIMUM_S", 60.0)
    async with broker_front() as front:
        peer = await filled(front, 100)
        front.ledger.unreadable = {(1, index) for index in range(100)}
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        await peer.settle()
        await asyncio.sleep(0.05)
        assert front.ledger.reads == pump_module.PASSED_OVER_MAX + 1
        await peer.close()


@pytest.mark.parametrize("unreadable", [30, 3])
async def test_a_run_of_unreadable_entries_is_passed_over_in_the_end(monkeypatch, unreadable):
    monkeypatch.setattr(pump_module, "READ_RETRY_INITIAL_S", 0.01)
    monkeypatch.setattr(pump_module, "READ_RETRY_MAXIMUM_S", 0.02)
    async with broker_front() as front:
        peer = await filled(front, 40)
        front.ledger.unreadable = {(1, index) for index in range(unreadable)}
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        assert [index for index, _ in await peer.messages(40 - unreadable)] == list(range(unreadable, 40))
        await peer.close()


async def test_after_an_outage_what_was_set_aside_comes_again_in_few_rounds(monkeypatch):
    """Each round that can be read is followed by one of twice as many; what cannot be read begins with few again."""
    monkeypatch.setattr(pump_module, "READ_RETRY_INITIAL_S", 0.01)
    monkeypatch.setattr(pump_module, "READ_RETRY_MAXIMUM_S", 0.02)
    monkeypatch.setattr(pump_module, "RECALL_INTERVAL_S", 0.05)
    async with broker_front() as front:
        peer = await filled(front, 80)
        front.ledger.unreadable = {(1, index) for index in range(80)}
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        subscription = front.topic.subscriptions["s", True]
        sizes = []

        def recalled(entries_max, recall=SharedDispatcher.recall):
            sizes.append(entries_max)
            return recall(subscription.dispatcher, entries_max)

        monkeypatch.setattr(subscription.dispatcher, "recall", recalled)
        peer.flow(100)
        await until(lambda: len(sizes) > 2)
        assert set(sizes) == {pump_module.RECALL_ENTRIES_MIN}
        front.ledger.unreadable.clear()
        sizes.clear()
        assert sorted(index for index, _ in await peer.messages(80)) == list(range(80))
        assert len(sizes) < 8, sizes
        await peer.close()
