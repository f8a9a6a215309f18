"""Failover on a broker's connections: who gets messages, who is told, how one consumer takes over from another."""

import pytest

from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandCloseConsumer, CommandSubscribe, ServerError
from support.servers.broker_bench import TOPIC, broker_front, filled

FAILOVER = CommandSubscribe.Failover


async def joined(front, peer, consumer_id, name, **fields):
    answer = await peer.subscribe(TOPIC, "s", consumer_id, subType=FAILOVER, consumer_name=name, **fields)
    assert answer.DESCRIPTOR.name == "CommandSuccess", answer
    peer.flow(100, consumer_id)


async def change(peer, consumer_id):
    return (await peer.expect(BaseCommand.ACTIVE_CONSUMER_CHANGE, consumer_id=consumer_id)).is_active


def changes(peer):
    return [frame for frame in peer.received if frame.command.type == BaseCommand.ACTIVE_CONSUMER_CHANGE]


@pytest.mark.promise("17.2")
async def test_the_first_subscriber_is_active_and_the_next_takes_over():
    async with broker_front() as front:
        peer = await filled(front, 4)
        await joined(front, peer, 1, "b")
        assert await change(peer, 1) is True
        await joined(front, peer, 2, "a")
        assert await change(peer, 2) is False
        assert [index for index, _ in await peer.messages(4)] == [0, 1, 2, 3]
        await peer.settle()
        assert not changes(peer)
        front.topic.subscriptions["s", True].cursor.acknowledge([(1, 0), (1, 2)])
        peer.send(CommandCloseConsumer(consumer_id=1, request_id=peer.next_request()))
        assert await change(peer, 2) is True
        frames = [await peer.expect(BaseCommand.MESSAGE) for _ in range(2)]
        assert [(one.command.message.consumer_id, one.command.message.message_id.entryId) for one in frames] == [
            (2, 1),
            (2, 3),
        ]
        await peer.settle()
        assert not changes(peer)
        await peer.close()


async def test_the_answer_to_subscribe_comes_before_the_news():
    async with broker_front() as front:
        peer = await filled(front, 0)
        peer.send(CommandSubscribe(topic=TOPIC, subscription="s", subType=FAILOVER, consumer_id=1, request_id=77))
        assert await change(peer, 1) is True
        assert [frame.command.success.request_id for frame in peer.received] == [77]
        await peer.close()


async def test_a_consumer_is_told_what_it_is_with_its_first_flow():
    """The Go client does not know its consumer before it has asked, and drops the news."""
    async with broker_front(active_consumer_failover_delay_ms=3_600_000) as front:
        peer = await filled(front, 1)
        for consumer_id, name in ((1, "a"), (2, "b")):
            await peer.subscribe(TOPIC, "s", consumer_id, subType=FAILOVER, consumer_name=name)
        await peer.settle()
        assert not changes(peer)
        peer.flow(1, 2)
        assert await change(peer, 2) is False
        peer.flow(1, 1)
        assert await change(peer, 1) is True
        assert await peer.messages(1) == [(0, 0)]
        peer.flow(1, 2)
        await peer.settle()
        assert not changes(peer), "each is told once"
        await peer.close()


async def test_a_consumer_that_asks_late_is_told_only_what_holds_then():
    async with broker_front(active_consumer_failover_delay_ms=3_600_000) as front:
        peer = await filled(front, 0)
        await peer.subscribe(TOPIC, "s", 1, subType=FAILOVER, priority_level=1)
        await peer.settle()
        await joined(front, peer, 2, "better", priority_level=0)
        assert await change(peer, 2) is True
        peer.flow(1, 1)
        assert await change(peer, 1) is False
        await peer.settle()
        assert not changes(peer)
        await peer.close()


async def test_a_consumer_that_does_not_ask_is_told_after_the_delay():
    async with broker_front(active_consumer_failover_delay_ms=50) as front:
        peer = await filled(front, 0)
        await peer.subscribe(TOPIC, "s", 1, subType=FAILOVER)
        assert not changes(peer)
        assert await change(peer, 1) is True
        await peer.close()


async def test_a_better_priority_takes_over_when_the_delay_is_over():
    async with broker_front(active_consumer_failover_delay_ms=50) as front:
        peer = await filled(front, 2)
        await joined(front, peer, 1, "a", priority_level=1)
        assert await change(peer, 1) is True
        assert len(await peer.messages(2)) == 2
        await joined(front, peer, 2, "b", priority_level=0)
        assert await change(peer, 1) is False
        assert await change(peer, 2) is True
        await peer.settle()
        assert not peer.received  # the former one may still acknowledge
        frames = [await peer.expect(BaseCommand.MESSAGE) for _ in range(2)]
        assert [one.command.message.consumer_id for one in frames] == [2, 2]
        await peer.close()


@pytest.mark.promise("17.3")
async def test_a_lost_connection_makes_the_next_consumer_active():
    async with broker_front() as front:
        peer, other = await filled(front, 1), await front.peer()
        await joined(front, peer, 1, "a")
        assert await peer.messages(1)
        await joined(front, other, 1, "b")
        assert await change(other, 1) is False
        await peer.close()
        assert await change(other, 1) is True
        assert await other.messages(1) == [(0, 0)]
        await other.close()


@pytest.mark.promise("16.4")
@pytest.mark.parametrize(
    "first, second",
    [("Exclusive", "Failover"), ("Failover", "Shared"), ("Shared", "Exclusive"), ("Failover", "Exclusive")],
)
async def test_another_type_is_refused_while_a_consumer_is_connected(first, second):
    async with broker_front() as front:
        peer = await filled(front, 0)
        await peer.subscribe(TOPIC, "s", 1, subType=CommandSubscribe.SubType.Value(first))
        error = await peer.subscribe(TOPIC, "s", 2, subType=CommandSubscribe.SubType.Value(second))
        assert error.error == ServerError.ConsumerBusy
        assert error.message == (
            f"subscription s of {TOPIC}: its connected consumers are of type {first}, and this one is {second}: "
            f"subscribe as {first}, or close them first"
        )
        assert len(front.topic.subscriptions["s", True].consumers) == 1
        await peer.close()
