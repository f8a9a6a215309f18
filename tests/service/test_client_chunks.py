"""Messages in chunks, against a scripted broker: cutting, putting together, acknowledging, seeking."""

import asyncio
import pickle
from typing import Any

import pytest

from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.configuration import ConsumerType, InitialPosition
from magnetar.client.core.message_id import MessageId, positions_of
from magnetar.protocol.compression import CompressionType
from magnetar.protocol.entries import build_entry, parse_entry
from magnetar.protocol.errors import InvalidConfiguration, InvalidMessage, MessageTooBig
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from support.clients.calls import TOPIC, nothing_more, subscription
from support.fakes.broker import FakeBroker

SIZE_MAX = 1000
LARGE = bytes(range(256)) * 20  # 6 chunks
PLAIN = build_entry(MessageMetadata(producer_name="q", sequence_id=1, publish_time=1), b"plain")
EARLIEST: dict[str, Any] = {"initial_position": InitialPosition.Earliest, "ack_group_time_ms": 0}


@pytest.fixture(autouse=True)
def small_entries(broker: FakeBroker) -> None:
    broker.message_size_max = SIZE_MAX


def chunk(index: int, count: int = 2, uuid: str = "u", body: bytes = b"", **options: Any) -> bytes:
    body = body or b"%d" % index
    described = {"total_chunk_msg_size": count, **options}
    metadata = MessageMetadata(
        producer_name="p", sequence_id=1, publish_time=1, uuid=uuid, chunk_id=index, num_chunks_from_msg=count,
        **described,
    )  # fmt: skip
    return build_entry(metadata, body)


async def send(client: AsyncClient, *contents: bytes, **options: Any) -> list[MessageId]:
    producer = await client.create_producer("t", batching_enabled=False, chunking_enabled=True, **options)
    ids = [await producer.send(content, properties={"a": "b"}, partition_key="k") for content in contents]
    await producer.close()
    return ids


@pytest.mark.promise("13.1", "13.4", "13.7")
@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
async def test_a_large_message_travels_in_chunks(
    broker: FakeBroker, client: AsyncClient, compression: CompressionType
) -> None:
    content = bytes(hash((n, 7)) % 251 for n in range(5000))
    (sent,) = await send(client, content, compression_type=compression, producer_name="p")
    entries = broker.topic(TOPIC).entries
    described = [parse_entry(entry)[0] for entry in entries]
    assert [one.chunk_id for one in described] == list(range(len(entries))) and len(entries) > 1
    assert all(len(entry) <= SIZE_MAX + 14 for entry in entries)
    assert {(one.uuid, one.num_chunks_from_msg, one.partition_key) for one in described} == {("p-0", len(entries), "k")}
    assert {one.total_chunk_msg_size for one in described} == {sum(len(parse_entry(one)[1]) for one in entries)}
    assert all(command.is_chunk and command.num_messages == 1 for command in broker.commands("SEND"))
    consumer = await client.subscribe("t", "s", **EARLIEST)
    message = await consumer.receive(2000)
    assert message.data() == content and message.properties() == {"a": "b"}
    assert message.message_id() == sent and str(message.message_id()) == str(sent)
    await consumer.acknowledge(message)
    await broker.until(lambda: subscription(broker).acked == set(range(len(entries))))


@pytest.mark.promise("31.10")
async def test_ids_of_chunked_messages_travel(broker: FakeBroker, client: AsyncClient) -> None:
    (sent,) = await send(client, LARGE)
    assert str(sent) == f"(1,0,-1,-1);(1,{sent.entry_id()},-1,-1)"
    assert sent.text == f"1:0:-1;1:{sent.entry_id()}:-1"
    back = MessageId.deserialize(sent.serialize())
    assert back == sent and str(back) == str(sent) and back.text.startswith("1:0:-1;")
    assert positions_of(pickle.loads(pickle.dumps(sent))) == positions_of(sent)
    consumer = await client.subscribe("t", "s", **EARLIEST)
    restored = pickle.loads(pickle.dumps(await consumer.receive(2000)))
    assert positions_of(restored.message_id()) == positions_of(sent)
    await consumer.acknowledge(back)  # it knows the first and the last chunk only, the consumer knows all
    await broker.until(lambda: len(subscription(broker).acked) == len(positions_of(sent)))


@pytest.mark.promise("13.8", "13.9")
async def test_interwoven_chunks_and_ordinary_messages(broker: FakeBroker, client: AsyncClient) -> None:
    broker.topic(TOPIC).entries += [chunk(0), chunk(0, uuid="v"), PLAIN, chunk(1, uuid="v"), chunk(1)]
    consumer = await client.subscribe("t", "s", **EARLIEST)
    messages = [await consumer.receive(2000) for _ in range(3)]
    assert [message.data() for message in messages] == [b"plain", b"01", b"01"]
    assert [message.message_id().text for message in messages] == ["1:2:-1", "1:1:-1;1:3:-1", "1:0:-1;1:4:-1"]
    await consumer.acknowledge_cumulative(messages[1])
    await broker.until(lambda: subscription(broker).acked == {1, 2, 3})
    await consumer.acknowledge_cumulative(messages[2])
    await broker.until(lambda: subscription(broker).acked == {0, 1, 2, 3, 4})


async def test_cumulative_acks_spare_an_incomplete_message(broker: FakeBroker, client: AsyncClient) -> None:
    broker.topic(TOPIC).entries += [chunk(0), PLAIN]
    consumer = await client.subscribe("t", "s", **EARLIEST)
    await consumer.acknowledge_cumulative(await consumer.receive(2000))
    await broker.until(lambda: subscription(broker).acked == {1})
    broker.drop_connections()
    broker.topic(TOPIC).entries.append(chunk(1))
    assert (await consumer.receive(2000)).data() == b"01"


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
async def test_a_negative_ack_brings_all_chunks(broker: FakeBroker, client: AsyncClient, kind: ConsumerType) -> None:
    await send(client, LARGE)
    consumer = await client.subscribe("t", "s", consumer_type=kind, negative_ack_redelivery_delay_ms=10, **EARLIEST)
    await consumer.negative_acknowledge(await consumer.receive(2000))
    assert (await consumer.receive(2000)).data() == LARGE
    consumer.redeliver_unacknowledged_messages()
    assert (await consumer.receive(2000)).data() == LARGE


@pytest.mark.promise("13.7")
async def test_a_second_copy_of_a_chunk_is_acknowledged(broker: FakeBroker, client: AsyncClient) -> None:
    broker.topic(TOPIC).entries += [chunk(0, 3), chunk(1, 3), chunk(1, 3), chunk(2, 3)]
    consumer = await client.subscribe("t", "s", **EARLIEST)
    message = await consumer.receive(2000)
    assert message.data() == b"012"
    await broker.until(lambda: subscription(broker).acked == {2})
    await consumer.acknowledge(message)
    await broker.until(lambda: subscription(broker).acked == {0, 1, 2, 3})


async def test_a_first_chunk_again_begins_the_message_again(broker: FakeBroker, client: AsyncClient) -> None:
    broker.topic(TOPIC).entries += [chunk(0, body=b"x"), chunk(0, body=b"y"), chunk(1)]
    consumer = await client.subscribe("t", "s", **EARLIEST)
    assert (await consumer.receive(2000)).data() == b"y1"
    await broker.until(lambda: subscription(broker).acked == {0})


@pytest.mark.promise("13.11", "13.12")
@pytest.mark.parametrize("acknowledges", [True, False])
async def test_beyond_the_bound_the_oldest_message_is_dropped(
    broker: FakeBroker, client: AsyncClient, acknowledges: bool
) -> None:
    broker.topic(TOPIC).entries += [chunk(0, uuid="a"), chunk(0, uuid="b"), chunk(1, uuid="b"), chunk(1, uuid="a")]
    consumer = await client.subscribe(
        "t", "s", consumer_type=ConsumerType.Shared, max_pending_chunked_message=1,
        auto_ack_oldest_chunked_message_on_queue_full=acknowledges, negative_ack_redelivery_delay_ms=10, **EARLIEST,
    )  # fmt: skip
    first = await consumer.receive(2000)
    assert positions_of(first.message_id()) == ((1, 1), (1, 2))
    if acknowledges:
        await broker.until(lambda: subscription(broker).acked == {0})
        assert await nothing_more(consumer)
    else:
        assert positions_of((await consumer.receive(2000)).message_id()) == ((1, 0), (1, 3))


@pytest.mark.promise("13.13")
async def test_an_incomplete_message_expires(broker: FakeBroker, client: AsyncClient) -> None:
    broker.topic(TOPIC).entries += [chunk(0, 3), chunk(1, 3)]
    await client.subscribe("t", "s", expire_time_of_incomplete_chunked_message_ms=20, **EARLIEST)
    await broker.until(lambda: subscription(broker).acked == {0, 1})


async def test_a_damaged_chunk_comes_again(broker: FakeBroker, client: AsyncClient) -> None:
    broker.topic(TOPIC).entries += [chunk(0), chunk(1)]
    broker.corrupt = 1
    consumer = await client.subscribe(
        "t", "s", consumer_type=ConsumerType.Shared, negative_ack_redelivery_delay_ms=10,
        expire_time_of_incomplete_chunked_message_ms=100, **EARLIEST,
    )  # fmt: skip
    with pytest.raises(Exception, match="checksum"):
        await consumer.receive(2000)
    assert (await consumer.receive(3000)).data() == b"01"


@pytest.mark.promise("13.7")
@pytest.mark.parametrize(
    ("entries", "error"),
    [
        ([chunk(2)], InvalidMessage),
        ([chunk(0, uuid="")], InvalidMessage),
        ([chunk(0), chunk(1, total_chunk_msg_size=5)], InvalidMessage),
        ([chunk(0), chunk(1, body=b"xyz")], InvalidMessage),
        ([chunk(0, body=bytes(200)), chunk(1)], InvalidMessage),
        ([chunk(0, total_chunk_msg_size=1 << 30), chunk(1, total_chunk_msg_size=1 << 30)], MessageTooBig),
    ],
)
async def test_chunks_that_make_no_sense_are_not_acknowledged(
    broker: FakeBroker, client: AsyncClient, entries: list[bytes], error: type[Exception]
) -> None:
    broker.topic(TOPIC).entries += [*entries, PLAIN]
    consumer = await client.subscribe("t", "s", **EARLIEST)
    with pytest.raises(error):
        await consumer.receive(2000)
    message = await consumer.receive(2000)
    assert message.data() == b"plain"
    await consumer.acknowledge_cumulative(message)
    await broker.until(lambda: subscription(broker).acked == {len(entries)})


@pytest.mark.parametrize("inclusive", [True, False])
async def test_seek_to_a_chunked_message(broker: FakeBroker, client: AsyncClient, inclusive: bool) -> None:
    sent = await send(client, b"first", LARGE, LARGE[::-1], b"last")
    consumer = await client.subscribe("t", "s", start_message_id_inclusive=inclusive, **EARLIEST)
    for _ in range(4):
        await consumer.acknowledge(await consumer.receive(2000))
    await consumer.seek(MessageId.deserialize(sent[1].serialize()))
    expected = [LARGE, LARGE[::-1], b"last"][not inclusive :]
    assert [(await consumer.receive(2000)).data() for _ in expected] == expected
    reader = await client.create_reader("t", sent[2], start_message_id_inclusive=inclusive)
    expected = [LARGE[::-1], b"last"][not inclusive :]
    assert [(await reader.read_next(2000)).data() for _ in expected] == expected
    assert not await reader.has_message_available()


async def test_a_reader_keeps_chunks_across_connections(broker: FakeBroker, client: AsyncClient) -> None:
    broker.topic(TOPIC).entries += [chunk(0, 3), chunk(1, 3)]
    reader = await client.create_reader("t", MessageId.earliest)
    await broker.until(lambda: broker.count("FLOW"))
    broker.drop_connections()
    broker.topic(TOPIC).entries += [chunk(2, 3)]
    assert (await reader.read_next(2000)).data() == b"012"


async def test_without_a_receiver_queue(broker: FakeBroker, client: AsyncClient) -> None:
    await send(client, LARGE, b"x")
    consumer = await client.subscribe("t", "s", receiver_queue_size=0, **EARLIEST)
    assert [(await consumer.receive(2000)).data() for _ in range(2)] == [LARGE, b"x"]


@pytest.mark.promise("13.4")
async def test_chunks_are_sent_again_after_a_reconnect(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_enabled=False, chunking_enabled=True)
    broker.receipts_lost = 6
    sending = asyncio.ensure_future(producer.send(LARGE))
    await broker.until(lambda: len(broker.topic(TOPIC).entries) == 6)
    broker.drop_connections()
    assert positions_of(await sending) == tuple((1, number) for number in range(6, 12))
    consumer = await client.subscribe("t", "s", **EARLIEST)
    assert [(await consumer.receive(2000)).data() for _ in range(2)] == [LARGE, LARGE]
    assert await producer.send(b"next") > await sending


@pytest.mark.promise("13.4")
async def test_a_message_in_chunks_fails_as_a_whole(broker: FakeBroker, client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_enabled=False, chunking_enabled=True, send_timeout_millis=200)
    broker.mute_sends = True
    with pytest.raises(Exception, match="within"):
        await producer.send(LARGE)
    broker.mute_sends = False
    assert await producer.send(b"next")


@pytest.mark.promise("13.1")
async def test_metadata_that_leaves_no_room_is_refused(client: AsyncClient) -> None:
    producer = await client.create_producer("t", batching_enabled=False, chunking_enabled=True)
    with pytest.raises(MessageTooBig, match="metadata"):
        await producer.send(b"x", properties={"a": "x" * SIZE_MAX})
    with pytest.raises(MessageTooBig, match="maxMessageSize"):
        await (await client.create_producer("t")).send(LARGE)


@pytest.mark.promise("13.2", "13.3")
async def test_what_chunking_cannot_be_combined_with(client: AsyncClient) -> None:
    with pytest.raises(InvalidConfiguration, match="Batching and chunking of messages can't be enabled together"):
        await client.create_producer("t", chunking_enabled=True, batching_enabled=True)
    with pytest.raises(InvalidConfiguration, match="persistent"):
        await client.create_producer("non-persistent://public/default/t", batching_enabled=False, chunking_enabled=True)
