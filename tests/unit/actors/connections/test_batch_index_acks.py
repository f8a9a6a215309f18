"""Acknowledgement of single messages of batches, as a broker answers it on the wire."""

import pytest

from magnetar.protocol.bounds import ACK_SET_WORDS_MAX
from magnetar.protocol.commands import ack
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
    MessageIdData,
    ServerError,
)
from magnetar.storage.managed import acknowledged
from support.servers.broker_bench import TOPIC, broker_front, cursor, filled

ON = {"acknowledgment_at_batch_index_level_enabled": True}
OFF = {"acknowledgment_at_batch_index_level_enabled": False}
SHARED = CommandSubscribe.Shared
EXCLUSIVE = CommandSubscribe.Exclusive


def part(entry_id, *open_indexes, size=4):
    return (1, entry_id, [sum(1 << index for index in open_indexes)], size)


def consumers(front):
    return front.topic.subscriptions["s", True].consumers


async def delivered(peer, count):
    """(entry, words of the ack set) of the next messages."""
    found = []
    for _ in range(count):
        message = (await peer.expect(BaseCommand.MESSAGE)).command.message
        found.append((message.message_id.entryId, list(message.ack_set)))
    return found


@pytest.mark.promise("12.1")
async def test_a_redelivered_batch_says_which_of_its_messages_are_open():
    async with broker_front(**ON) as front:
        peer = await filled(front, 3, messages=4)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        assert await delivered(peer, 3) == [(0, []), (1, []), (2, [])]
        peer.write(ack(1, [(1, 2)], partial=[part(0, 1, 3), part(1, 0, 1, 2)]))
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        assert await delivered(peer, 2) == [(0, [0b1010]), (1, [0b0111])]
        await peer.close()


async def test_permits_and_unacknowledged_messages_count_only_open_messages():
    async with broker_front(**ON) as front:
        peer = await filled(front, 2, messages=4)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(10)
        await delivered(peer, 2)
        (consumer,) = consumers(front)
        assert (consumer.permits, consumer.unacked_messages) == (2, 8)
        peer.write(ack(1, [], partial=[part(0, 1, 3)]))
        await peer.settle()
        assert consumer.unacked_messages == 6
        peer.write(ack(1, [], partial=[part(0, 1, 2, 3)]))  # says nothing new, and takes nothing back
        await peer.settle()
        assert consumer.unacked_messages == 6
        peer.send(
            CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[MessageIdData(ledgerId=1, entryId=0)])
        )
        assert await delivered(peer, 1) == [(0, [0b1010])]
        assert (consumer.permits, consumer.unacked_messages) == (0, 6)
        peer.write(ack(1, [(1, 0)]))
        await peer.settle()
        assert consumer.unacked_messages == 4
        await peer.close()


@pytest.mark.promise("12.6")
async def test_a_batch_is_done_when_all_its_messages_are():
    async with broker_front(**ON) as front:
        peer = await filled(front, 2, messages=4)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(10)
        await delivered(peer, 2)
        peer.write(ack(1, [], partial=[part(0, 1, 3), part(0, 0, 2)]))
        await peer.settle()
        found = await cursor(front)
        assert found.mark_delete_position == (1, 0) and not found.batches
        assert consumers(front)[0].unacked_messages == 4
        await peer.close()


async def test_a_blocked_consumer_goes_on_when_indexes_are_acknowledged():
    async with broker_front(**ON, unacked_messages_max_per_consumer=4) as front:
        peer = await filled(front, 2, messages=4)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        assert await delivered(peer, 1) == [(0, [])]
        peer.write(ack(1, [], partial=[part(0, 3)]))
        assert await delivered(peer, 1) == [(1, [])]
        await peer.close()


async def test_another_consumers_indexes_are_taken_from_the_one_that_holds_them():
    async with broker_front(**ON) as front:
        peer = await filled(front, 1, messages=4)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(4)
        await delivered(peer, 1)
        await peer.subscribe(TOPIC, "s", consumer_id=2, subType=SHARED)
        peer.write(ack(2, [], partial=[part(0, 3)]))
        await peer.settle()
        assert [one.unacked_messages for one in consumers(front)] == [1, 0]
        await peer.close()


async def test_a_cumulative_acknowledgement_inside_a_batch_keeps_the_rest():
    async with broker_front(**ON) as front:
        peer = await filled(front, 3, messages=4)
        await peer.subscribe(TOPIC, "s")
        peer.flow(100)
        await delivered(peer, 3)
        peer.write(ack(1, [], partial=[part(1, 2, 3)], cumulative=True))
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        assert await delivered(peer, 2) == [(1, [0b1100]), (2, [])]
        assert (await cursor(front)).mark_delete_position == (1, 0)
        await peer.close()


async def test_a_refused_cumulative_acknowledgement_acknowledges_nothing():
    async with broker_front(**ON) as front:
        peer = await filled(front, 3, messages=4)
        await peer.subscribe(TOPIC, "s")
        peer.flow(100)
        await delivered(peer, 3)
        large = (1, 2, [1] * (ACK_SET_WORDS_MAX + 1), 4)
        peer.write(ack(1, [], partial=[large], cumulative=True, request_id=7))
        assert (await peer.answer(7)).error == ServerError.NotAllowedError
        assert (await cursor(front)).mark_delete_position == (1, -1)
        await peer.close()


@pytest.mark.promise("12.1", "12.3")
async def test_with_the_switch_off_parts_of_batches_are_ignored():
    for subscription_type in (SHARED, EXCLUSIVE):
        async with broker_front(**OFF) as front:
            peer = await filled(front, 2, messages=4)
            await peer.subscribe(TOPIC, "s", subType=subscription_type)
            peer.flow(100)
            await delivered(peer, 2)
            peer.write(ack(1, [], partial=[part(0, 3), part(0, 0, 1, 2)], request_id=7))
            assert not (await peer.answer(7)).HasField("error")
            peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
            assert await delivered(peer, 2) == [(0, []), (1, [])]
            assert not (await cursor(front)).batches
            await peer.close()


async def test_with_the_switch_off_a_cumulative_part_ends_before_its_batch():
    async with broker_front(**OFF) as front:
        peer = await filled(front, 3, messages=4)
        await peer.subscribe(TOPIC, "s")
        peer.flow(100)
        await delivered(peer, 3)
        peer.write(ack(1, [], partial=[part(2, 2, 3)], cumulative=True))
        await peer.settle()
        found = await cursor(front)
        assert found.mark_delete_position == (1, 1) and not found.batches
        await peer.close()


async def test_what_was_never_written_and_odd_sets_change_nothing():
    async with broker_front(**ON) as front:
        peer = await filled(front, 1, messages=4)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        await delivered(peer, 1)
        unwritten = [
            (1, 5, [1], 4),
            (7, 0, [1], 4),
            (-1, -1, [1], 4),
            (1, 0, [0b1111], 4),
            (1, 0, [-1, -1, -1], 1 << 30),
        ]
        peer.write(ack(1, [], partial=unwritten))
        await peer.settle()
        found = await cursor(front)
        assert not found.batches and found.mark_delete_position == (1, -1)
        assert consumers(front)[0].unacked_messages == 4
        await peer.close()


async def test_beyond_the_bound_an_index_is_refused_and_the_batch_stays(monkeypatch):
    monkeypatch.setattr(acknowledged, "BATCHES_SIZE_MAX_BYTES", 1)
    async with broker_front(**ON) as front:
        peer = await filled(front, 2, messages=4)
        await peer.subscribe(TOPIC, "s", subType=SHARED)
        peer.flow(100)
        await delivered(peer, 2)
        peer.write(ack(1, [], partial=[part(0, 3)], request_id=7))
        assert not (await peer.answer(7)).HasField("error")
        peer.write(ack(1, [], partial=[part(1, 3)], request_id=8))
        assert (await peer.answer(8)).error == ServerError.NotAllowedError
        peer.write(ack(1, [(1, 1)], partial=[part(0, 2)], request_id=9))  # what is there goes on, and ends
        assert not (await peer.answer(9)).HasField("error")
        assert (await cursor(front)).mark_delete_position == (1, 1)
        await peer.close()
