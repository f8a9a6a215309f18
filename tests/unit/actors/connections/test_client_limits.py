"""The bounds on what clients may open: Pulsar's settings, and its refusals."""

import asyncio
from typing import Any

import pytest

from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandSubscribe,
    CommandSuccess,
    ServerError,
)
from support.clients.wire_peer import WirePeer
from support.servers.broker_bench import TOPIC, broker_front, until

SHARED: Any = {"subType": CommandSubscribe.Shared}


@pytest.mark.parametrize("setting", ["connections_max", "connections_max_per_ip"])
async def test_a_connection_beyond_the_bound_gets_an_error_and_is_closed(setting: str) -> None:
    async with broker_front(**{setting: 2}) as front:
        first, second = await front.peer(), await front.peer()
        third = await front.peer(connect=False)
        error = await third.expect(BaseCommand.ERROR)
        assert error.error == ServerError.NotAllowedError and "maximum number of connections" in error.message
        await third.wait_ended()
        assert len(front.connections) == 2
        await first.close()
        await until(lambda: len(front.connections) == 1)
        fourth = await front.peer()  # the place is free again, and only that one
        fifth = await front.peer(connect=False)
        await fifth.wait_ended()
        for peer in (second, third, fourth, fifth):
            await peer.close()
        await until(lambda: not front.connections)
        assert not front.connection_limits._counts and not front.connection_limits._total


async def test_a_connection_that_is_made_while_the_broker_closes_is_closed() -> None:
    async with broker_front() as front:
        front.accepts_connections = False
        peer = await front.peer(connect=False)
        await peer.wait_ended()
        assert not front.connections and not front.connection_limits._total
        await peer.close()


async def test_a_producer_beyond_the_bound_is_busy_and_one_that_returns_is_not() -> None:
    async with broker_front(producers_max_per_topic=2) as front:
        peer, other = await front.peer(), await front.peer()
        await peer.producer(TOPIC, 1, producer_name="a", user_provided_producer_name=False)
        await peer.producer(TOPIC, 2)
        refused = await other.producer(TOPIC, 3)
        assert refused.error == ServerError.ProducerBusy and refused.message.endswith("raise maxProducersPerTopic")
        # The same producer by a new session takes its own place, not another one.
        again = await other.producer(TOPIC, 4, producer_name="a", epoch=1, user_provided_producer_name=False)
        assert again.producer_name == "a"
        await peer.request(CommandCloseProducer(producer_id=2))
        assert (await other.producer(TOPIC, 5)).producer_ready
        await peer.close()
        await other.close()


async def test_consumers_beyond_the_bounds_of_topic_and_subscription_are_busy() -> None:
    async with broker_front(consumers_max_per_topic=3, consumers_max_per_subscription=2) as front:
        peer = await front.peer()
        for consumer_id in (1, 2):
            assert type(await peer.subscribe(TOPIC, "s", consumer_id, **SHARED)) is CommandSuccess
        refused = await peer.subscribe(TOPIC, "s", 3, **SHARED)
        assert refused.error == ServerError.ConsumerBusy
        assert refused.message.startswith(f"subscription s of {TOPIC} has as many consumers")
        assert type(await peer.subscribe(TOPIC, "t", 4, **SHARED)) is CommandSuccess
        refused = await peer.subscribe(TOPIC, "u", 5, **SHARED)
        assert refused.error == ServerError.ConsumerBusy and refused.message.endswith("raise maxConsumersPerTopic")
        await peer.request(CommandCloseConsumer(consumer_id=1))
        assert type(await peer.subscribe(TOPIC, "s", 6, **SHARED)) is CommandSuccess
        await peer.close()


async def test_durable_subscriptions_beyond_the_bound_are_refused_also_at_once() -> None:
    async with broker_front(subscriptions_max_per_topic=3) as front:
        peers = [await front.peer() for _ in range(6)]

        async def subscribe(peer: WirePeer, number: int) -> Any:
            return await peer.subscribe(TOPIC, f"s{number}")

        answers = await asyncio.gather(*(subscribe(peer, number) for number, peer in enumerate(peers)))
        refused = [answer for answer in answers if type(answer) is not CommandSuccess]
        assert len(refused) == 3 and {answer.error for answer in refused} == {ServerError.NotAllowedError}
        assert "raise maxSubscriptionsPerTopic" in refused[0].message
        assert type(await peers[0].subscribe(TOPIC, "reader", 9, durable=False)) is CommandSuccess
        assert sum(durable for _, durable in front.topic.subscriptions) == 3
        for peer in peers:
            await peer.close()


async def test_by_default_nothing_is_bounded() -> None:
    async with broker_front() as front:
        peer = await front.peer()
        for number in range(50):
            assert (await peer.producer(TOPIC, number)).producer_ready
            assert type(await peer.subscribe(TOPIC, f"s{number % 10}", number, **SHARED)) is CommandSuccess
        await peer.close()
