"""What a broker keeps of a topic that nobody uses, and that a closed one needs no garbage collector to be freed."""

import contextlib
import gc
import weakref
from collections.abc import Callable

import pytest

from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAck,
    CommandCloseConsumer,
    CommandCloseProducer,
    CommandSubscribe,
)
from support.clients.wire_peer import entry
from support.fakes.bookies import FakeCluster
from support.servers.broker_bench import TOPIC, BrokerFront, broker_front, until


async def use_once(front: BrokerFront, subscription_type: int) -> None:
    """A consumer and a producer come, one message is published and acknowledged, and both leave."""
    peer = await front.peer()
    await peer.producer(TOPIC)
    await peer.subscribe(TOPIC, "s", subType=subscription_type, consumer_name="c")
    peer.flow(1)
    peer.send_entry(entry(), 0)
    await peer.expect(BaseCommand.SEND_RECEIPT, sequence_id=0)
    message = await peer.expect(BaseCommand.MESSAGE)
    peer.send(
        CommandAck(consumer_id=1, ack_type=CommandAck.Individual, message_id=[message.command.message.message_id])
    )
    for close in (
        CommandCloseProducer(producer_id=1, request_id=91),
        CommandCloseConsumer(consumer_id=1, request_id=92),
    ):
        peer.send(close)
        await peer.expect(BaseCommand.SUCCESS, request_id=close.request_id)
    await peer.close()


def parts_of(front: BrokerFront) -> dict[str, Callable[[], object]]:
    """The topic, and what belongs to it."""
    topic = front.topic
    ledger, cursor, subscription = topic.ledger, topic.ledger.cursors["s"], topic.subscriptions["s", True]
    parts = [topic, topic.publishing, *topic.features, topic.keeping, topic.keeping.inactivity]
    parts += [ledger, ledger._writer, ledger._writer._writer, ledger.trimmer, ledger._owned, ledger.compacted]
    parts += [subscription, subscription.pump, cursor, cursor._writer, cursor._writer.storage]
    return {type(part).__name__: weakref.ref(part) for part in parts}


@pytest.mark.promise("30.22")
@pytest.mark.parametrize("subscription_type", CommandSubscribe.SubType.values(), ids=CommandSubscribe.SubType.Name)
async def test_a_closed_topic_is_freed_without_the_garbage_collector(subscription_type: int) -> None:
    gc.disable()
    try:
        async with broker_front(FakeCluster(), cursor_flush_interval_s=0.01) as front:
            await use_once(front, subscription_type)
            left = parts_of(front)
            front.topics.revoke(TOPIC)
            await until(lambda: not any(one.closing for one in front.topics.table.records.values()))
            with contextlib.suppress(TimeoutError):
                await until(lambda: all(one() is None for one in left.values()), 5)
            assert [name for name, one in left.items() if one() is not None] == []
    finally:
        gc.enable()
