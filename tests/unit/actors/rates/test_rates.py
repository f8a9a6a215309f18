"""Rates of topics: a connection that is not read while its topic has taken enough, and subscriptions that wait."""

import asyncio
from typing import Any

import pytest

from magnetar.actors.policies.effective import EffectivePolicies
from magnetar.actors.rates.publish import PublishThrottle
from magnetar.actors.topics.stages import PublishRateLimit
from magnetar.protocol.commands import encode, ping, send_header
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
)
from magnetar.runtime.settings.declarations import Settings
from support.clients.wire_peer import WirePeer, entry
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, filled, until

SHARED: Any = {"subType": CommandSubscribe.Shared}


def policies(**values: object) -> EffectivePolicies:
    return EffectivePolicies.resolve(Settings(), values)


def publish_rate(messages: int = -1, size_bytes: int = -1) -> EffectivePolicies:
    return policies(publish_rate={"publishThrottlingRateInMsg": messages, "publishThrottlingRateInByte": size_bytes})


def dispatch_rate(messages: int, name: str = "topic_dispatch_rate", **further: object) -> EffectivePolicies:
    return policies(**{name: {"dispatchThrottlingRateInMsg": messages, **further}})


async def limited(front: BrokerFront, rate: EffectivePolicies) -> WirePeer:
    peer = await front.peer()
    await peer.producer(TOPIC)
    front.topic.use_policies(rate)
    return peer


async def debt(front: BrokerFront, peer: WirePeer) -> None:
    """Send much more than the rate allows."""
    peer.send_entry(entry(sequence_id=0, messages=1000), 0, messages=1000)
    await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
    assert throttle(front)._held


def throttle(front: BrokerFront) -> PublishThrottle:
    (stage,) = front.topic.publishing.stages
    assert isinstance(stage, PublishRateLimit)
    return stage.throttle


# -- publishing --------------------------------------------------------------------------------------------------------


def test_a_topic_without_a_rate_has_no_stage_and_no_limit() -> None:
    async def scenario() -> None:
        async with broker_front() as front:
            peer = await limited(front, publish_rate(0, -1))
            assert front.topic.publishing.stages == () and front.topic._rates.limits() == ()
            await peer.close()

    asyncio.run(scenario())


async def test_a_connection_is_not_read_while_its_topic_has_taken_more_than_its_rate() -> None:
    async with broker_front() as front:
        peer, other = await limited(front, publish_rate(1000)), await front.peer()
        started = asyncio.get_running_loop().time()
        for index in range(3):
            peer.send_entry(entry(sequence_id=index, messages=600), index, messages=600)
            await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=index)
        await other.settle()  # other connections are read
        peer.send_entry(entry(sequence_id=3), 3)
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=3)
        assert asyncio.get_running_loop().time() - started > 0.7  # 1,800 messages, of which 1,000 at once
        await peer.close()
        await other.close()


async def test_bytes_count_too() -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(-1, 10_000))
        started = asyncio.get_running_loop().time()
        for index in range(2):
            peer.send_entry(entry(bytes(13_000), sequence_id=index), index)
            await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=index)
        assert asyncio.get_running_loop().time() - started > 0.25
        await peer.close()


@pytest.mark.parametrize("rate", [publish_rate(1_000_000), policies()], ids=["higher", "none"])
async def test_a_rate_that_is_raised_or_taken_away_lets_the_connection_go_on(rate: EffectivePolicies) -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(1))
        await debt(front, peer)
        front.topic.use_policies(rate)
        peer.send_entry(entry(sequence_id=1), 1)
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=1)
        await peer.close()


async def test_a_change_of_another_policy_forgives_no_debt() -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(1))
        await debt(front, peer)
        before = throttle(front)
        rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
        front.topic.use_policies(policies(publish_rate=rate, max_producers_per_topic=7))
        assert throttle(front) is before and before._held
        await peer.close()


async def test_a_topic_that_closes_lets_its_connections_go_on() -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(1))
        await debt(front, peer)
        stage = throttle(front)
        closing = asyncio.create_task(front.topic.close())
        await peer.expect(BaseCommand.CLOSE_PRODUCER)
        await closing
        await peer.settle()
        assert stage._timer is None and not stage._held
        await peer.close()


async def test_a_connection_that_ends_while_it_is_held_is_forgotten() -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(1))
        await debt(front, peer)
        (connection,) = throttle(front)._held
        connection.close()  # type: ignore[attr-defined]
        assert not throttle(front)._held and not front.topic.publishing.producers
        await peer.close()


async def test_a_connection_that_is_held_counts_as_alive() -> None:
    async with broker_front(connection_liveness_timeout_ms=50) as front:
        peer, other = await limited(front, publish_rate(1)), await front.peer()
        await debt(front, peer)
        connection: Any = next(iter(throttle(front)._held))
        assert await connection.check_alive() and not connection.closed
        await peer.close()
        await other.close()


def burst(first: int, count: int) -> bytes:
    """So many entries, for one write."""
    bodies = [entry(b"%d" % number, sequence_id=number) for number in range(first, first + count)]
    return b"".join(send_header(1, first + at, 0, 1, len(body)) + body for at, body in enumerate(bodies))


def indebted(rest: bytes) -> bytes:
    """Entry 0, for which the topic owes a thousand seconds at one message a second, and what follows in the write."""
    body = entry(sequence_id=0, messages=1000)
    return send_header(1, 0, 0, 1000, len(body)) + body + rest


@pytest.mark.promise("30.21")
async def test_what_was_read_already_waits_in_its_order_and_passes_when_the_rate_allows_it() -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(1))
        peer.write(indebted(burst(1, 15) + ping()))
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        (connection,) = front.connections
        assert len(connection._waiting) == 16 and not peer.received, "15 entries and the PING wait"
        front.topic.use_policies(policies())
        for number in range(1, 16):
            receipt = await peer.expect(BaseCommand.SEND_RECEIPT)
            assert receipt.sequence_id == number
        await peer.expect(BaseCommand.PONG)
        assert not connection._waiting
        await peer.close()


async def test_a_burst_takes_as_long_as_its_rate_says() -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(50))
        started = asyncio.get_running_loop().time()
        peer.write(burst(0, 100))
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=99)
        assert asyncio.get_running_loop().time() - started > 0.9
        await peer.close()


async def test_what_waits_is_dropped_with_its_connection() -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(1))
        peer.write(indebted(burst(1, 15)))
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        (connection,) = front.connections
        connection.close()
        assert not connection._waiting
        front.topic.use_policies(policies())
        assert front.topic.publishing.pending == 0
        await peer.close()


async def test_a_frame_that_waits_may_still_end_its_connection() -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(1))
        peer.write(indebted(burst(1, 1) + encode(CommandConnect(client_version="x")) + burst(2, 1)))
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        front.topic.use_policies(policies())
        await peer.ended.wait()
        await until(lambda: not front.connections)
        await peer.close()


async def test_a_connection_that_two_topics_hold_waits_for_both() -> None:
    async with broker_front() as front:
        peer = await limited(front, publish_rate(1))
        peer.write(indebted(burst(1, 2)))
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
        (connection,) = front.connections
        other = PublishThrottle(throttle(front).rate)
        other.took(connection, 1000, 0)
        front.topic.use_policies(policies())
        assert len(connection._waiting) == 2
        other.end()
        await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=2)
        await peer.close()


# -- dispatch ----------------------------------------------------------------------------------------------------------


async def receive_in(peer: WirePeer, count: int) -> float:
    started = asyncio.get_running_loop().time()
    await peer.messages(count)
    return asyncio.get_running_loop().time() - started


@pytest.mark.parametrize("name", ["topic_dispatch_rate", "subscription_dispatch_rate"])
@pytest.mark.parametrize("kind", [CommandSubscribe.Shared, CommandSubscribe.Exclusive])
async def test_a_subscription_gives_out_no_more_than_its_rate(name: str, kind: Any) -> None:
    async with broker_front() as front:
        peer = await filled(front, 60)
        front.topic.use_policies(dispatch_rate(40, name))
        await peer.subscribe(TOPIC, "s", subType=kind)
        peer.flow(1000)
        assert await receive_in(peer, 60) > 0.4
        await peer.close()


async def test_each_message_of_a_batch_counts_and_a_large_batch_is_owed() -> None:
    async with broker_front() as front:
        peer = await filled(front, 3, messages=100)
        front.topic.use_policies(dispatch_rate(250))
        await peer.subscribe(TOPIC, "s", **SHARED)
        peer.flow(1000)
        await peer.messages(3)
        peer.send_entry(entry(sequence_id=3), 3, producer_id=9)
        assert await receive_in(peer, 1) > 0.15  # of 300 messages 50 are owed
        await peer.close()


async def test_subscriptions_share_the_rate_of_the_topic_and_have_their_own_each() -> None:
    async with broker_front() as front:
        peer = await filled(front, 30)
        for name, least, most in (("topic_dispatch_rate", 0.3, 9.0), ("subscription_dispatch_rate", 0.0, 0.5)):
            front.topic.use_policies(dispatch_rate(40, name))
            for number in (1, 2):
                await peer.subscribe(TOPIC, f"{name}-{number}", number, initialPosition=CommandSubscribe.Earliest)
                peer.flow(1000, number)
            assert least <= await receive_in(peer, 60) < most
            for number in (1, 2):
                front.topic.subscriptions[f"{name}-{number}", True].disconnect_all()
                await peer.expect(BaseCommand.CLOSE_CONSUMER)
        await peer.close()


async def test_messages_that_are_sent_again_count_too() -> None:
    async with broker_front() as front:
        peer = await filled(front, 20)
        await peer.subscribe(TOPIC, "s", **SHARED)
        peer.flow(1000)
        await peer.messages(20)
        front.topic.use_policies(dispatch_rate(10))
        peer.send(CommandRedeliverUnacknowledgedMessages(consumer_id=1))
        assert await receive_in(peer, 20) > 0.8
        await peer.close()


@pytest.mark.parametrize("rate", [dispatch_rate(1_000_000), policies()], ids=["higher", "none"])
async def test_a_dispatch_rate_that_is_raised_or_taken_away_lets_dispatch_go_on(rate: EffectivePolicies) -> None:
    async with broker_front() as front:
        peer = await filled(front, 50)
        front.topic.use_policies(dispatch_rate(1))
        await peer.subscribe(TOPIC, "s", **SHARED)
        peer.flow(1000)
        pump = front.topic.subscriptions["s", True].pump
        await until(lambda: pump._throttled)
        pump.check()  # a subscription that waits for its rate has not stalled
        await asyncio.sleep(0)
        assert pump._throttled
        front.topic.use_policies(rate)
        await peer.messages(49)
        await peer.close()


async def test_a_rate_relative_to_the_publish_rate_is_that_much_more() -> None:
    async with broker_front() as front:
        peer = await filled(front, 200)
        front.topic.use_policies(dispatch_rate(1, relativeToPublishRate=True))
        published = front.topic.publishing.published.message_rate(asyncio.get_running_loop().time())
        assert published > 50
        await peer.subscribe(TOPIC, "s", **SHARED)
        peer.flow(1000)
        assert await receive_in(peer, 60) < 5
        await peer.close()


async def test_a_subscription_that_ends_while_it_waits_leaves_no_timer() -> None:
    async with broker_front() as front:
        peer = await filled(front, 50)
        front.topic.use_policies(dispatch_rate(1))
        await peer.subscribe(TOPIC, "s", **SHARED)
        peer.flow(1000)
        pump = front.topic.subscriptions["s", True].pump
        await until(lambda: pump._throttled)
        await front.topic.close()
        assert pump._retry is None
        await peer.close()
