"""Target: the client, with a broker that says anything. Whatever comes, what the application waits for ends with a
result or a MagnetarError within the operation's time, and nothing is left when the client is closed.

The broker answers what it is asked well enough for producers and consumers to come about, and says the input's frames
in between; where the input's first byte says so, it gives the input's frames *as* the answers.
"""

import asyncio
from random import Random
from typing import Any

from magnetar.client.aio.client import AsyncClient
from magnetar.client.core.configuration import ConsumerType, InitialPosition
from magnetar.client.core.context import Core
from magnetar.client.core.discovery import service_url_source
from magnetar.client.core.message_id import MessageId
from magnetar.client.core.threading_bridge import SameThread
from magnetar.protocol.commands import encode, pong, send_receipt
from magnetar.protocol.errors import MagnetarError
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandConnected,
    CommandGetLastMessageIdResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandProducerSuccess,
    CommandSuccess,
    MessageIdData,
)

from .loop import FuzzLoop, MemoryTransport, make_env, run
from .mutation import U32
from .target import Target, Wrong
from .wire import FROM_BROKERS, make_stream

_URL = "pulsar://127.0.0.1:6650"
_ROUNDS_MAX = 60


class _Broker:
    """One connection of the broker. `frames` are what is left of the input."""

    def __init__(self, mode: int, chunks: list[bytes]) -> None:
        self.mode = mode
        self.chunks = chunks

    def accept(self, protocol: asyncio.Protocol, host: str, port: int) -> None:
        decoder = FrameDecoder(1 << 26)

        def heard(data: bytes) -> None:
            for command, _ in decoder.feed(data):
                self._answer(transport, command)

        transport = MemoryTransport(protocol, heard)

    def _answer(self, transport: MemoryTransport, command: BaseCommand) -> None:
        answer = _usual_answer(command)
        if answer is None:
            return
        odd = self.chunks and (command.type != BaseCommand.CONNECT or self.mode & 1)
        if odd and self.mode & 2:
            transport.feed(self.chunks.pop(0))  # as the answer
            return
        transport.feed(answer)
        if odd:
            transport.feed(self.chunks.pop(0))


def _usual_answer(command: BaseCommand) -> bytes | None:
    match command.type:
        case BaseCommand.CONNECT:
            return encode(CommandConnected(server_version="fuzz", protocol_version=21, max_message_size=1 << 15))
        case BaseCommand.PARTITIONED_METADATA:
            answer: Any = CommandPartitionedTopicMetadataResponse(request_id=command.partitionMetadata.request_id)
            answer.response = CommandPartitionedTopicMetadataResponse.Success
            answer.partitions = 0
            return encode(answer)
        case BaseCommand.LOOKUP:
            answer = CommandLookupTopicResponse(request_id=command.lookupTopic.request_id, brokerServiceUrl=_URL)
            answer.response = CommandLookupTopicResponse.Connect
            return encode(answer)
        case BaseCommand.PRODUCER:
            request_id = command.producer.request_id
            return encode(CommandProducerSuccess(request_id=request_id, producer_name="p", last_sequence_id=-1))
        case BaseCommand.SEND:
            return send_receipt(command.send.producer_id, command.send.sequence_id, 0, 1, 2)
        case BaseCommand.SUBSCRIBE:
            return encode(CommandSuccess(request_id=command.subscribe.request_id))
        case BaseCommand.GET_LAST_MESSAGE_ID:
            last = MessageIdData(ledgerId=1, entryId=2)
            request_id = command.getLastMessageId.request_id
            return encode(CommandGetLastMessageIdResponse(request_id=request_id, last_message_id=last))
        case BaseCommand.PING:
            return pong()
        case BaseCommand.CLOSE_PRODUCER:
            return encode(CommandSuccess(request_id=command.close_producer.request_id))
        case BaseCommand.CLOSE_CONSUMER:
            return encode(CommandSuccess(request_id=command.close_consumer.request_id))
        case BaseCommand.SEEK:
            return encode(CommandSuccess(request_id=command.seek.request_id))
        case BaseCommand.UNSUBSCRIBE:
            return encode(CommandSuccess(request_id=command.unsubscribe.request_id))
        case BaseCommand.FLOW | BaseCommand.ACK | BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES:
            return b""
        case _:
            return None


async def _allowed(awaitable: Any) -> Any:
    """The result, None for an error of ours; a time-out of asyncio's own is no answer to an application."""
    try:
        async with asyncio.timeout(1000):
            return await awaitable
    except MagnetarError:
        return None
    except TimeoutError as error:
        raise Wrong("the application got no answer within its time") from error


async def _publish(client: AsyncClient) -> None:
    producer = await _allowed(client.create_producer("t", send_timeout_millis=2000))
    if producer is not None:
        await _allowed(asyncio.gather(*[producer.send(b"x" * size) for size in (0, 1, 300)]))
        await _allowed(producer.flush())
        await _allowed(producer.close())


async def _consume(client: AsyncClient, kind: ConsumerType) -> None:
    consumer = await _allowed(
        client.subscribe("t", "s", consumer_type=kind, initial_position=InitialPosition.Earliest, receiver_queue_size=8)
    )
    if consumer is None:
        return
    for turn in range(8):
        message = await _allowed(consumer.receive(200))
        if message is not None:
            message.properties()
            message.ordering_key()
            await _allowed(consumer.acknowledge(message) if turn % 3 else consumer.negative_acknowledge(message))
    await _allowed(consumer.seek(MessageId.earliest))
    await _allowed(consumer.get_last_message_id())
    await _allowed(consumer.receive(200))
    await _allowed(consumer.close())


async def _read(client: AsyncClient) -> None:
    reader = await _allowed(client.create_reader("t", MessageId.earliest))
    if reader is not None:
        for _ in range(4):
            await _allowed(reader.has_message_available())
            await _allowed(reader.read_next(200))
        await _allowed(reader.close())


def _cut(stream: bytes) -> list[bytes]:
    """The stream frame by frame, as far as its sizes make sense."""
    chunks: list[bytes] = []
    while len(stream) >= 4:
        size = 4 + min(U32.unpack_from(stream)[0], 1 << 16)
        chunks.append(stream[:size])
        stream = stream[size:]
    return chunks[:_ROUNDS_MAX]


async def _main(data: bytes) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FuzzLoop)
    mode = data[0] if data else 0
    loop.connect = _Broker(mode, _cut(data[1:])).accept
    client = AsyncClient(_URL, operation_timeout_seconds=3)
    env = make_env()
    client._environment = env
    client._core = Core(env, client.configuration, SameThread(), service_url_source(env, client.configuration))
    try:
        match mode >> 2 & 3:
            case 0:
                await _publish(client)
            case 1:
                await _consume(client, ConsumerType.Shared)
            case 2:
                await _consume(client, ConsumerType.Exclusive)
            case _:
                await _read(client)
    finally:
        await _allowed(client.close())


def take(data: bytes) -> None:
    run(_main(data))


def make(random: Random) -> bytes:
    return random.randbytes(1) + make_stream(random, FROM_BROKERS, (1, 2, 3, 4, 5))


TARGETS = [Target("client", make, take, share=3)]
