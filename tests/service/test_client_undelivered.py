"""Messages that the client cannot open: it says so, acknowledges nothing of them, and goes on with the others."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.aio.consumer import AsyncConsumer
from magnetar.client.blocking.client import Client
from magnetar.client.core.configuration import ConsumerBatchReceivePolicy, ConsumerType, InitialPosition
from magnetar.client.core.message_id import MessageId
from magnetar.protocol.batches import encode_batch
from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import (
    ChecksumError,
    CryptoError,
    InvalidMessage,
    MagnetarError,
    MessageTooBig,
    OperationNotSupported,
)
from magnetar.protocol.pulsar_pb2 import EncryptionKeys, MessageMetadata
from support.clients.calls import TOPIC, nothing_more, numbers, publish, receive, subscription
from support.fakes.broker import FakeBroker, FakeBrokerThread

EARLIEST = InitialPosition.Earliest
LIMIT = 80 * 1024 * 1024


def entry(payload: bytes = b"x", **options: Any) -> bytes:
    return build_entry(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **options), payload)


def damaged() -> bytes:
    whole = entry(b"whole")
    return whole[:-1] + bytes([whole[-1] ^ 1])


def of_unknown_compression() -> bytes:
    """What protobuf takes for uncompressed, because its enumeration lacks the value."""
    described = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, uncompressed_size=99)
    return build_entry(described.SerializeToString() + b"\x40\x09", b"squeezed")


UNOPENABLE: dict[str, tuple[Callable[[], bytes], type[MagnetarError], str]] = {
    "chunk without a place": (lambda: entry(num_chunks_from_msg=2, chunk_id=2, uuid="u"), InvalidMessage, "chunk 2"),
    "encrypted": (
        lambda: entry(encryption_keys=[EncryptionKeys(key="k", value=b"v")], encryption_algo="AES"),
        CryptoError,
        "encrypted",
    ),
    "too large a batch": (
        lambda: entry(compression=1, uncompressed_size=LIMIT + 1, num_messages_in_batch=2),
        MessageTooBig,
        "decompressed_size_max_bytes",
    ),
    "unknown compression": (of_unknown_compression, OperationNotSupported, "compression 9"),
    "cut off batch": (
        lambda: entry(encode_batch([b"a", b"b"])[:-1], num_messages_in_batch=2),
        InvalidMessage,
        "cannot be decoded",
    ),
    "damaged compression": (lambda: entry(compression=2, uncompressed_size=9), InvalidMessage, "cannot be decoded"),
    "no metadata": (lambda: build_entry(b"\xff\xff", b"x"), InvalidMessage, "cannot be decoded"),
    "damaged": (damaged, ChecksumError, "checksum"),
}


async def among_others(broker: FakeBroker, client: AsyncClient, kind: str, before: int = 1, behind: int = 2) -> None:
    """So many good messages, one entry of that kind, and good ones again."""
    await publish(client, numbers(before))
    broker.topic(TOPIC).entries.append(UNOPENABLE[kind][0]())
    await publish(client, numbers(behind, before))


def acknowledged(broker: FakeBroker) -> set[int]:
    assert not any(command.HasField("validation_error") for command in broker.commands("ACK"))
    return subscription(broker).acked


async def refused(consumer: AsyncConsumer) -> MagnetarError:
    with pytest.raises(MagnetarError) as caught:
        await consumer.receive(2000)
    return caught.value


@pytest.mark.parametrize("kind", UNOPENABLE)
@pytest.mark.parametrize("shared", [False, True])
async def test_receive_fails_goes_on_and_nothing_undelivered_is_acknowledged(
    broker: FakeBroker, client: AsyncClient, kind: str, shared: bool
) -> None:
    await among_others(broker, client, kind)
    consumer_type = ConsumerType.Shared if shared else ConsumerType.Exclusive
    consumer = await client.subscribe("t", "s", consumer_type, initial_position=EARLIEST)
    await consumer.acknowledge(await consumer.receive(2000))
    error = await refused(consumer)
    assert type(error) is UNOPENABLE[kind][1]
    assert UNOPENABLE[kind][2] in error.message and TOPIC in error.message and "1:1:-1" in error.message
    assert "acknowledge MessageId(-1, 1, 1)" in error.message
    place = {"topic": TOPIC, "partition": -1, "ledger_id": 1, "entry_id": 1}
    assert place.items() <= error.details.items()
    for number in (1, 2):
        message = await consumer.receive(2000)
        assert message.data() == b"%d" % number
        await consumer.acknowledge(message)
    assert await nothing_more(consumer)
    await consumer.close()
    assert acknowledged(broker) == {0, 2, 3}


async def test_cumulative_acknowledgement_leaves_out_what_was_not_delivered(
    broker: FakeBroker, client: AsyncClient
) -> None:
    await among_others(broker, client, "encrypted", 2, 3)
    broker.topic(TOPIC).entries.append(UNOPENABLE["unknown compression"][0]())
    await publish(client, numbers(6, 5), 3)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    assert await receive(consumer, 2) == numbers(2)
    await refused(consumer)
    await receive(consumer, 2)
    await consumer.acknowledge_cumulative(await consumer.receive(2000))
    await broker.until(lambda: acknowledged(broker) == {0, 1, 3, 4, 5})
    await refused(consumer)
    assert await receive(consumer, 3) == numbers(3, 5)
    await consumer.acknowledge_cumulative(await consumer.receive(2000))
    await broker.until(lambda: acknowledged(broker) == {0, 1, 3, 4, 5, 7})
    await consumer.acknowledge(MessageId(-1, 1, 2))
    await consumer.acknowledge(MessageId(-1, 1, 6))
    await receive(consumer, 1)
    await consumer.acknowledge_cumulative(await consumer.receive(2000))
    await broker.until(lambda: acknowledged(broker) == set(range(9)))


async def test_what_was_not_delivered_comes_again_with_the_next_subscription(
    broker: FakeBroker, client: AsyncClient
) -> None:
    await among_others(broker, client, "encrypted")
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST)
    await consumer.acknowledge_cumulative(await consumer.receive(2000))
    await refused(consumer)
    await receive(consumer, 1)
    last = await consumer.receive(2000)
    await broker.until(lambda: acknowledged(broker) == {0})
    broker.drop_connections()
    await broker.until(lambda: broker.count("SUBSCRIBE") == 2 and consumer.is_connected())
    await consumer.acknowledge_cumulative(last)
    await consumer.close()
    assert acknowledged(broker) == {0, 2, 3}, "before the error came again"
    again = await client.subscribe("t", "s", initial_position=EARLIEST)
    await refused(again)


async def test_permits_of_what_cannot_be_opened_go_back(broker: FakeBroker, client: AsyncClient) -> None:
    topic = broker.topic(TOPIC)
    for _ in range(30):
        topic.entries += [UNOPENABLE[kind][0]() for kind in UNOPENABLE]
    await publish(client, [b"last"])
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, receiver_queue_size=4)
    for _ in range(30 * len(UNOPENABLE)):
        await refused(consumer)
    assert await receive(consumer, 1) == [b"last"]


async def test_a_damaged_entry_is_asked_for_again_with_growing_pauses(
    broker: FakeBroker, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.client.acknowledging.negative_acks.DAMAGED_DELAY_MIN_S", 0.05)
    await publish(client, [b"damaged on the way"])
    broker.corrupt = 3
    consumer = await client.subscribe(
        "t", "s", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=0
    )
    begin = asyncio.get_running_loop().time()
    for _ in range(3):
        assert type(await refused(consumer)) is ChecksumError
    message = await consumer.receive(2000)
    assert message.data() == b"damaged on the way"
    assert asyncio.get_running_loop().time() - begin > 0.05 + 0.1 + 0.2
    assert broker.count("REDELIVER_UNACKNOWLEDGED_MESSAGES") == 3
    assert acknowledged(broker) == set()
    await consumer.acknowledge(message)
    await broker.until(lambda: acknowledged(broker) == {0})


async def test_a_cumulative_ack_does_not_withdraw_the_request_for_a_damaged_entry(
    broker: FakeBroker, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.client.acknowledging.negative_acks.DAMAGED_DELAY_MIN_S", 0.3)
    await publish(client, numbers(3))
    broker.corrupt = 1
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, negative_ack_redelivery_delay_ms=0)
    assert type(await refused(consumer)) is ChecksumError
    await receive(consumer, 1)
    await consumer.acknowledge_cumulative(await consumer.receive(2000))
    await broker.until(lambda: acknowledged(broker) == {1, 2})
    assert await receive(consumer, 1) == numbers(1)


async def test_many_hands_over_what_came_before_an_error_first(broker: FakeBroker, client: AsyncClient) -> None:
    await among_others(broker, client, "unknown compression", 3, 3)
    policy = ConsumerBatchReceivePolicy(100, -1, 200)
    consumer = await client.subscribe("t", "s", initial_position=EARLIEST, batch_receive_policy=policy)
    await broker.until(lambda: subscription(broker).next_entry == 7)
    assert [message.data() for message in await consumer.receive_many(100, 2000)] == numbers(3)
    with pytest.raises(OperationNotSupported, match="compression"):
        await consumer.receive_many(100, 2000)
    assert [message.data() for message in await consumer.receive_many(100, 2000)] == numbers(3, 3)
    again = await client.subscribe("t", "u", initial_position=EARLIEST, batch_receive_policy=policy)
    assert [message.data() for message in await again.batch_receive()] == numbers(3)
    with pytest.raises(OperationNotSupported, match="compression"):
        await again.batch_receive()
    assert [message.data() for message in await again.batch_receive()] == numbers(3, 3)


async def test_a_reader_goes_on_behind_the_error(broker: FakeBroker, client: AsyncClient) -> None:
    await among_others(broker, client, "encrypted", 1, 0)
    reader = await client.create_reader("t", MessageId.earliest)
    assert (await reader.read_next(2000)).data() == b"0"
    assert await reader.has_message_available()
    with pytest.raises(CryptoError, match="next read continues behind it"):
        await reader.read_next(2000)
    assert not await reader.has_message_available()


def test_blocking_calls_and_listeners_go_on() -> None:
    with FakeBrokerThread() as broker, Client(broker.url, operation_timeout_seconds=3) as client:
        broker.topic(TOPIC).entries += [entry(b"0"), UNOPENABLE["encrypted"][0](), entry(b"1")]
        policy = ConsumerBatchReceivePolicy(2, -1, 2000)
        consumer = client.subscribe("t", "s", initial_position=EARLIEST, batch_receive_policy=policy)
        assert [message.data() for message in consumer.batch_receive()] == [b"0"]
        with pytest.raises(CryptoError):
            consumer.receive(2000)
        assert consumer.receive(2000).data() == b"1"
        heard: list[bytes] = []
        both = threading.Event()

        def listen(_: object, message: Any) -> None:
            heard.append(message.data())
            if len(heard) == 2:
                both.set()

        client.subscribe("t", "listened", initial_position=EARLIEST, message_listener=listen)
        assert both.wait(5) and heard == [b"0", b"1"]
        with client.create_reader("t", MessageId.earliest) as reader:
            assert reader.read_next(2000).data() == b"0"
            with pytest.raises(CryptoError):
                reader.read_next(2000)
            assert reader.read_next(2000).data() == b"1" and not reader.has_message_available()
