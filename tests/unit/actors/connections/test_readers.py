"""Readers on a broker's connections: where a non-durable subscription begins, how long it lives, how it ends."""

import asyncio

import pytest

from magnetar.protocol.message_id import EARLIEST_POSITION, LATEST_POSITION, WireMessageId
from magnetar.protocol.pulsar_pb2 import CommandCloseConsumer, CommandSeek, CommandSubscribe, MessageIdData, ServerError
from support.servers.broker_bench import TOPIC, broker_front, cursor, filled, until

SHARED = CommandSubscribe.Shared


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (WireMessageId(1, 2), 2),
        (WireMessageId(1, 2, batch_index=0), 2),
        (WireMessageId(1, 2, batch_index=7), 2),
        (WireMessageId(1, -1), 0),
        (WireMessageId(0, 99), 0),
        (WireMessageId(*EARLIEST_POSITION), 0),
        (WireMessageId(*LATEST_POSITION), 5),
        (WireMessageId(1, 5), 5),
        (WireMessageId(1, 99), 5),
        (WireMessageId(9, 0), 5),
    ],
)
async def test_a_reader_is_served_from_the_entry_of_its_start_id_on(start, first):
    async with broker_front() as front:
        peer = await filled(front, 5)
        options = {"start_message_id": start.to_data(), "initialPosition": CommandSubscribe.Latest}
        await peer.subscribe(TOPIC, "r", durable=False, **options)
        assert (await cursor(front, "r", durable=False)).first_unacknowledged == (1, first)
        await peer.close()


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (WireMessageId(1, 3), 3),
        (WireMessageId(1, 5), 5),
        (WireMessageId(1, 99), 0),
        (WireMessageId(*LATEST_POSITION), 0),
        (None, 0),
    ],
)
async def test_a_start_id_behind_the_end_leaves_it_to_the_initial_position(start, first):
    """As Pulsar does: the id is none of this topic's, so the reader begins where it would without one."""
    async with broker_front() as front:
        peer = await filled(front, 5)
        given = {} if start is None else {"start_message_id": start.to_data()}
        await peer.subscribe(TOPIC, "r", durable=False, initialPosition=CommandSubscribe.Earliest, **given)
        assert (await cursor(front, "r", durable=False)).first_unacknowledged == (1, first)
        await peer.close()


async def test_a_reader_that_goes_back_in_time_does_so_whatever_its_start_id():
    """A Java reader with a rollback duration names `earliest` too."""
    async with broker_front() as front:
        peer = await filled(front, 5)
        front.ledger.publish_times = {(1, index): (0 if index < 3 else 1 << 60) for index in range(5)}
        start = WireMessageId(*EARLIEST_POSITION).to_data()
        await peer.subscribe(TOPIC, "r", durable=False, start_message_id=start, start_message_rollback_duration_sec=60)
        assert (await cursor(front, "r", durable=False)).first_unacknowledged == (1, 3)
        await peer.close()


@pytest.mark.promise("21.4")
async def test_durable_and_non_durable_share_a_name_and_the_latter_ends_with_its_consumer():
    async with broker_front() as front:
        peer = await filled(front, 1)
        await peer.subscribe(TOPIC, "s", 1)
        await peer.subscribe(TOPIC, "s", 2, durable=False)
        assert len(front.topic.subscriptions) == 2
        await peer.request(CommandCloseConsumer(consumer_id=2, request_id=0))
        assert list(front.topic.subscriptions) == [("s", True)]
        await peer.request(CommandCloseConsumer(consumer_id=1, request_id=0))
        assert list(front.topic.subscriptions) == [("s", True)]
        await peer.close()


async def test_a_reader_that_goes_while_its_topic_loads_leaves_no_subscription():
    async with broker_front() as front:
        front.open_gate.clear()
        peers = [await front.peer() for _ in range(20)]
        for number, peer in enumerate(peers):
            options = {"topic": TOPIC, "subscription": f"r{number}", "subType": 0, "consumer_id": 1, "request_id": 1}
            peer.send(CommandSubscribe(durable=False, **options))
        await until(lambda: front.opened)
        for peer in peers[1:]:
            await peer.close()
        await until(lambda: len(front.connections) == 1)
        front.open_gate.set()
        await peers[0].answer(1)
        await until(lambda: not front.requests)
        assert list(front.topic.subscriptions) == [("r0", False)]
        await peers[0].close()
        await until(lambda: not front.topic.subscriptions)


async def test_of_two_readers_that_attach_at_once_the_one_that_fails_ends_nothing():
    async with broker_front() as front:
        one, two = await filled(front, 1), await front.peer()
        await one.subscribe(TOPIC, "r", durable=False)
        two.send(
            CommandSubscribe(topic=TOPIC, subscription="r", subType=SHARED, consumer_id=1, request_id=7, durable=False)
        )
        assert (await two.answer(7)).error == ServerError.ConsumerBusy
        assert list(front.topic.subscriptions) == [("r", False)]
        one.flow(10)
        assert await one.messages(1) == [(0, 0)]
        await one.close()
        await two.close()


async def test_a_reader_keeps_the_place_it_sought_and_ends_if_it_does_not_come_back():
    async with broker_front(reader_return_timeout_s=0.05) as front:
        peer = await filled(front, 5)
        start = WireMessageId(1, 0).to_data()
        await peer.subscribe(TOPIC, "r", durable=False, start_message_id=start)
        await peer.request(CommandSeek(consumer_id=1, request_id=0, message_id=MessageIdData(ledgerId=1, entryId=3)))
        await peer.subscribe(TOPIC, "r", durable=False, start_message_id=start)
        peer.flow(100)
        await asyncio.sleep(0.08)
        assert [index for index, _ in await peer.messages(2)] == [3, 4]
        await peer.request(CommandSeek(consumer_id=1, request_id=0, message_id=MessageIdData(ledgerId=1, entryId=3)))
        assert front.topic.subscriptions
        await asyncio.sleep(0.08)
        assert not front.topic.subscriptions
        await peer.close()
