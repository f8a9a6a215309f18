"""A topic that hands messages on and keeps nothing, over a socket, without a cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandCloseConsumer, CommandSubscribe
from magnetar.protocol.topic_figures import SubscriptionFigures
from support.clients.wire_peer import WirePeer, entry
from support.servers.broker_bench import BrokerFront, broker_front

TOPIC = "non-persistent://public/default/t"


class Peers:
    """Connections to a broker that owns TOPIC; they are closed with it."""

    def __init__(self, front: BrokerFront) -> None:
        self._front = front
        self._opened: list[WirePeer] = []

    async def open(self) -> WirePeer:
        self._opened.append(await self._front.peer())
        return self._opened[-1]

    async def close(self) -> None:
        for peer in self._opened:
            await peer.close()


@asynccontextmanager
async def owner(**changes: object) -> AsyncIterator[tuple[BrokerFront, Peers]]:
    """A broker that owns TOPIC; `changes` are settings."""
    async with broker_front(**changes) as front:
        front.topics.assign(TOPIC, 1, load=False)
        peers = Peers(front)
        try:
            yield front, peers
        finally:
            await peers.close()


async def publish(peer: WirePeer, count: int, *, start: int = 0, **fields: object) -> None:
    """Send entries, and wait for the receipt of each."""
    for index in range(start, start + count):
        peer.send_entry(entry(b"%d" % index, sequence_id=index, **fields), index, producer_id=9)  # type: ignore[arg-type]
        receipt = await peer.expect(BaseCommand.SEND_RECEIPT)
        assert (receipt.sequence_id, receipt.message_id.ledgerId, receipt.message_id.entryId) == (index, 0, 0)


async def received(peer: WirePeer) -> list[bytes]:
    """The payloads of everything that has come."""
    await peer.settle()
    frames, peer.received = peer.received, []
    return [frame.entry[-1:] for frame in frames if frame.entry is not None]


def subscription(front: BrokerFront, name: str = "s") -> SubscriptionFigures:
    return next(one for one in front.topics.loaded[TOPIC].describe().subscriptions if one.name == name)


@pytest.mark.promise("24.1", "24.3")
async def test_entries_go_to_permits_and_others_are_dropped_and_counted() -> None:
    async with owner() as (front, peers):
        peer, reader = await peers.open(), await peers.open()
        await peer.producer(TOPIC, 9)
        await publish(peer, 2)
        await reader.subscribe(TOPIC, "s")
        await publish(peer, 1, start=2)
        reader.flow(2)
        await reader.settle()
        await publish(peer, 4, start=3)
        assert await received(reader) == [b"3", b"4"]
        figures = subscription(front)
        assert (figures.messages, figures.dropped_messages, figures.backlog_entries) == (2, 3, 0)
        reader.flow(10)
        assert await received(reader) == []
        await publish(peer, 1, start=7)
        assert await received(reader) == [b"7"]
        assert front.opened == []


@pytest.mark.promise("24.2")
async def test_shared_drops_only_when_no_consumer_has_permits() -> None:
    async with owner() as (front, peers):
        peer, one, two = await peers.open(), await peers.open(), await peers.open()
        await peer.producer(TOPIC, 9)
        for reader in (one, two):
            await reader.subscribe(TOPIC, "s", subType=CommandSubscribe.Shared)
        one.flow(1)
        two.flow(2)
        await one.settle()
        await two.settle()
        await publish(peer, 4)
        assert sorted(await received(one) + await received(two)) == [b"0", b"1", b"2"]
        assert subscription(front).dropped_messages == 1


@pytest.mark.promise("24.2")
async def test_key_shared_drops_what_the_consumer_of_the_key_cannot_take() -> None:
    async with owner() as (front, peers):
        peer, one, two = await peers.open(), await peers.open(), await peers.open()
        await peer.producer(TOPIC, 9)
        for reader, name in ((one, "one"), (two, "two")):  # their names say which keys they get
            await reader.subscribe(TOPIC, "s", subType=CommandSubscribe.Key_Shared, consumer_name=name)
        one.flow(100)
        await one.settle()
        for index in range(8):
            await publish(peer, 1, start=index, partition_key=f"key-{index}")
        got = await received(one)
        assert 0 < len(got) < 8 and await received(two) == []
        assert subscription(front).dropped_messages == 8 - len(got)


@pytest.mark.promise("24.4")
async def test_a_subscription_ends_with_its_last_consumer() -> None:
    async with owner() as (front, peers):
        reader = await peers.open()
        await reader.subscribe(TOPIC, "s")
        topic = front.topics.loaded[TOPIC]
        assert topic.in_use and [*topic.subscriptions] == [("s", True)]
        await reader.request(CommandCloseConsumer(consumer_id=1))
        assert not topic.subscriptions
        assert not topic.in_use


async def test_policies_hold_for_producers_and_consumers() -> None:
    async with owner(producers_max_per_topic=1, consumers_max_per_topic=1) as (front, peers):
        peer = await peers.open()
        assert (await peer.producer(TOPIC, 1)).producer_name
        assert "raise maxProducersPerTopic" in (await peer.producer(TOPIC, 2)).message
        await peer.subscribe(TOPIC, "s")
        assert "raise maxConsumersPerTopic" in (await peer.subscribe(TOPIC, "t", 2)).message
        assert [*front.topics.loaded[TOPIC].subscriptions] == [("s", True)]


async def test_closing_the_topic_sends_its_clients_away() -> None:
    async with owner() as (front, peers):
        peer = await peers.open()
        await peer.producer(TOPIC, 9)
        await peer.subscribe(TOPIC, "s")
        await front.topics.release(TOPIC)
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        await peer.expect(BaseCommand.CLOSE_CONSUMER)
        assert TOPIC not in front.topics.loaded
