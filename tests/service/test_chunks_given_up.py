"""Options of consumers for chunks whose message is not complete, with each face of our client on a scripted broker."""

from collections.abc import Iterator
from typing import Any

import pytest

import magnetar
from magnetar.client.core.message_id import positions_of
from magnetar.protocol.entries import build_entry
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from support.clients.calls import TOPIC, subscription
from support.clients.sides import Side, connect
from support.fakes.broker import FakeBroker, FakeBrokerThread
from support.servers.figures import until


@pytest.fixture(params=["ours", "asyncio"])
def side(request: pytest.FixtureRequest, broker_thread: FakeBrokerThread) -> Iterator[Side]:
    with connect(broker_thread.broker.url, request.param) as connected:
        yield connected


def chunk(uuid: str, index: int) -> bytes:
    """One of two, which hold a byte each."""
    described = {"chunk_id": index, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
    return build_entry(
        MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, uuid=uuid, **described), b"%d" % index
    )


def join(side: Side, broker: FakeBroker, *chunks: tuple[str, int], **options: Any) -> Any:
    """A consumer of a topic that holds these chunks."""
    broker.topic(TOPIC).entries += [chunk(*one) for one in chunks]
    return side.client.subscribe(
        "t",
        "s",
        consumer_type=magnetar.ConsumerType.Shared,
        initial_position=magnetar.InitialPosition.Earliest,
        negative_ack_redelivery_delay_ms=10,
        ack_group_time_ms=0,
        **options,
    )


@pytest.mark.promise("13.11", "13.12")
@pytest.mark.parametrize("acknowledges", [True, False])
def test_beyond_the_bound_the_oldest_message_is_acknowledged_or_comes_again(
    side: Side, broker_thread: FakeBrokerThread, acknowledges: bool
) -> None:
    broker = broker_thread.broker
    consumer = join(
        side,
        broker,
        *[("a", 0), ("b", 0), ("b", 1), ("a", 1)],
        max_pending_chunked_message=1,
        auto_ack_oldest_chunked_message_on_queue_full=acknowledges,
    )
    assert positions_of(consumer.receive(10_000).message_id()) == ((1, 1), (1, 2))
    if acknowledges:
        until(lambda: subscription(broker).acked == {0})
        assert side.what_comes(consumer, 60) == []
    else:
        assert positions_of(consumer.receive(10_000).message_id()) == ((1, 0), (1, 3))


@pytest.mark.promise("13.13")
def test_an_incomplete_message_is_acknowledged_when_its_time_is_over(
    side: Side, broker_thread: FakeBrokerThread
) -> None:
    broker = broker_thread.broker
    consumer = join(side, broker, ("a", 0), expire_time_of_incomplete_chunked_message_ms=20)
    until(lambda: subscription(broker).acked == {0})
    assert side.what_comes(consumer, 20) == []
