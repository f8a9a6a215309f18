"""The official client as a witness for our bytes: each side reads the entries that the other one wrote.

The official client talks to a small stand-in for a broker, which answers commands with our codec, keeps the entries it
is sent, and delivers entries that we built. What brokers do is not tested here.
"""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pulsar
import pytest

from magnetar.protocol import batches, commands, compression, entries
from magnetar.protocol import pulsar_pb2 as pb
from magnetar.protocol.frames import Frame, FrameDecoder
from magnetar.protocol.names import PROTOCOL_VERSION, SERVER_VERSION

PRODUCED_AT = 1_700_000_000_000
SIZE_MAX = 5 << 20
KINDS = list(compression.CompressionType)


@dataclass
class Recorder:
    """A listening stand-in: `sent` is what producers sent, `to_deliver` what consumers get."""

    connections: "dict[Connection, None]" = field(default_factory=dict)
    closed: bool = False
    sent: list[tuple[pb.CommandSend, bytes]] = field(default_factory=list)
    to_deliver: list[bytes] = field(default_factory=list)
    url: str = ""


class Connection(asyncio.Protocol):
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.decoder = FrameDecoder(SIZE_MAX + (10 << 10))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.recorder.connections[self] = None
        if self.recorder.closed:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del self.recorder.connections[self]

    def data_received(self, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            self.transport.writelines(self.answers(frame))

    def answers(self, frame: Frame) -> list[bytes]:
        command = frame.command
        match pb.BaseCommand.Type.Name(command.type):
            case "CONNECT":
                reply = pb.CommandConnected(
                    server_version=SERVER_VERSION, protocol_version=PROTOCOL_VERSION, max_message_size=SIZE_MAX
                )
            case "PING":
                return [commands.pong()]
            case "PARTITIONED_METADATA":
                request_id = command.partitionMetadata.request_id
                reply = pb.CommandPartitionedTopicMetadataResponse(
                    partitions=0, request_id=request_id, response="Success"
                )
            case "LOOKUP":
                reply = pb.CommandLookupTopicResponse(
                    brokerServiceUrl=self.recorder.url,
                    response="Connect",
                    request_id=command.lookupTopic.request_id,
                    authoritative=True,
                )
            case "PRODUCER":
                reply = pb.CommandProducerSuccess(request_id=command.producer.request_id, producer_name="official")
            case "SUBSCRIBE":
                reply = pb.CommandSuccess(request_id=command.subscribe.request_id)
            case "CLOSE_PRODUCER":
                reply = pb.CommandSuccess(request_id=command.close_producer.request_id)
            case "CLOSE_CONSUMER":
                reply = pb.CommandSuccess(request_id=command.close_consumer.request_id)
            case "SEND":
                assert frame.entry is not None
                send = command.send
                self.recorder.sent.append((send, frame.entry))
                return [commands.send_receipt(send.producer_id, send.sequence_id, 0, 7, len(self.recorder.sent) - 1)]
            case "FLOW":
                deliver, self.recorder.to_deliver = self.recorder.to_deliver, []
                consumer = command.flow.consumer_id
                return [
                    part
                    for number, entry in enumerate(deliver)
                    for part in (commands.message_header(consumer, 7, number, -1, 0, None, len(entry)), entry)
                ]
            case _:
                return []
        return [commands.encode(reply)]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """The stand-in, on a loop in a thread of its own, because the official client blocks."""
    recorder, loop = Recorder(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def listen() -> asyncio.Server:
        return await loop.create_server(lambda: Connection(recorder), "127.0.0.1", 0)

    async def stop(server: asyncio.Server) -> None:
        server.close()
        recorder.closed = True
        for connection in recorder.connections:
            connection.transport.abort()
        async with asyncio.timeout(10):
            while recorder.connections or len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - the last is just accepted
                await asyncio.sleep(0)

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    recorder.url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield recorder
    finally:
        asyncio.run_coroutine_threadsafe(stop(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def client(recorder: Recorder) -> Iterator[pulsar.Client]:
    client = pulsar.Client(recorder.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_we_read_what_the_official_client_wrote(
    recorder: Recorder, client: pulsar.Client, kind: compression.CompressionType
) -> None:
    producer = client.create_producer(
        "t",
        compression_type=getattr(pulsar.CompressionType, kind.name.replace("ZLIB", "ZLib")),
        batching_enabled=True,
        batching_max_publish_delay_ms=1000,
        properties={"who": "official"},
    )
    producer.send_async(b"plain " * 20, lambda *_: None)
    producer.send_async(
        b"keyed",
        lambda *_: None,
        partition_key="key-é",
        ordering_key="order",
        properties={"a": "b", "ü": ""},
        event_timestamp=PRODUCED_AT,
    )
    producer.send_async(b"", lambda *_: None)
    producer.flush()
    ((send, entry),) = recorder.sent
    metadata, payload = entries.parse_entry(entry)
    assert entries.entry_checksum_ok(entry)
    assert (send.num_messages, entries.message_count(metadata), entries.is_batch(metadata)) == (3, 3, True)
    assert (metadata.compression, metadata.producer_name, metadata.sequence_id) == (kind, "official", 0)
    plain = compression.decompress(metadata.compression, payload, metadata.uncompressed_size, SIZE_MAX)
    messages = batches.decode_batch(plain, 3)
    assert [message for _, message in messages] == [b"plain " * 20, b"keyed", b""]
    assert batches.decode_payloads(plain, 3) == [b"plain " * 20, b"keyed", b""]
    single = messages[1][0]
    assert single is not None
    assert (single.partition_key, single.ordering_key, single.event_time) == ("key-é", b"order", PRODUCED_AT)
    assert {pair.key: pair.value for pair in single.properties} == {"a": "b", "ü": ""}
    # Byte for byte what we would have built from the same parts.
    assert entries.build_entry(metadata, bytes(payload)) == entry


def test_we_build_the_official_clients_batch(recorder: Recorder, client: pulsar.Client) -> None:
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=1000)
    for number in range(3):
        producer.send_async(b"x" * number, lambda *_: None, partition_key="k", event_timestamp=PRODUCED_AT)
    producer.flush()
    ((_, entry),) = recorder.sent
    _, payload = entries.parse_entry(entry)
    ours = b"".join(
        batches.encode_single(b"x" * number, partition_key="k", event_time=PRODUCED_AT, sequence_id=number)
        for number in range(3)
    )
    assert bytes(payload) == ours


def test_we_read_a_message_sent_alone(recorder: Recorder, client: pulsar.Client) -> None:
    producer = client.create_producer("t", batching_enabled=False)
    producer.send(b"alone", properties={"a": "b"}, partition_key="k")
    ((send, entry),) = recorder.sent
    metadata, payload = entries.parse_entry(entry)
    assert (send.num_messages, entries.is_batch(metadata), entries.message_count(metadata)) == (1, False, 1)
    assert (bytes(payload), metadata.partition_key) == (b"alone", "k")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_official_client_reads_what_we_wrote(
    recorder: Recorder, client: pulsar.Client, kind: compression.CompressionType
) -> None:
    pieces = [
        batches.encode_batch([b"plain " * 20, b"", b"plain"]),
        batches.encode_single(b"keyed", partition_key="k", properties={"a": "é"}, event_time=PRODUCED_AT),
    ]
    batch = b"".join(pieces)
    metadata = pb.MessageMetadata(
        producer_name="ours",
        sequence_id=5,
        publish_time=PRODUCED_AT,
        num_messages_in_batch=4,
        uncompressed_size=len(batch),
        compression=pb.CompressionType.Name(kind),
    )
    alone = pb.MessageMetadata(
        producer_name="ours",
        sequence_id=9,
        publish_time=PRODUCED_AT,
        partition_key="alone",
        uncompressed_size=5,
        compression=pb.CompressionType.Name(kind),
    )
    recorder.to_deliver = [
        entries.build_entry(metadata, compression.compress(kind, batch)),
        entries.build_entry(alone, compression.compress(kind, b"alone")),
    ]
    consumer = client.subscribe("t", "s", initial_position=pulsar.InitialPosition.Earliest)
    messages = [consumer.receive(timeout_millis=5000) for _ in range(5)]
    assert [message.data() for message in messages] == [b"plain " * 20, b"", b"plain", b"keyed", b"alone"]
    assert [message.partition_key() for message in messages[3:]] == ["k", "alone"]
    assert messages[3].properties() == {"a": "é"}
    assert messages[3].event_timestamp() == messages[3].publish_timestamp() == PRODUCED_AT
    assert str(messages[3].message_id()) == "(7,0,-1,3)"
    assert str(messages[4].message_id()) == "(7,1,-1,-1)"
