"""A client that speaks raw frames, to say exactly what a test wants said to a broker."""

import asyncio
import ssl
from typing import Any

from magnetar.protocol.commands import encode, ping, pong, send_header
from magnetar.protocol.entries import build_entry
from magnetar.protocol.frames import Frame, FrameDecoder
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandConnect,
    CommandFlow,
    CommandProducer,
    CommandSubscribe,
    MessageMetadata,
)

TIMEOUT_S = 5.0


def entry(payload: bytes = b"x", *, sequence_id: int = 0, messages: int | None = None, **fields: Any) -> bytes:
    """An entry as producers build it; with `messages` it counts as a batch of so many (the payload is not made one)."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=fields.pop("at", 1), **fields)
    if messages is not None:
        metadata.num_messages_in_batch = messages
    return build_entry(metadata, payload)


class WirePeer:
    """One connection. `received` keeps every frame that was not waited for."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answer_pings: bool = True
    ) -> None:
        self.received: list[Frame] = []
        self.ended = asyncio.Event()
        self.requests = 0
        self._reader = reader
        self._writer = writer
        self._answer_pings = answer_pings
        self._arrived = asyncio.Event()
        self._pump = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls,
        port: int,
        *,
        host: str = "127.0.0.1",
        connect: bool = True,
        answer_pings: bool = True,
        ssl: ssl.SSLContext | None = None,
    ) -> "WirePeer":
        reader, writer = await asyncio.open_connection(host, port, ssl=ssl)
        peer = cls(reader, writer, answer_pings=answer_pings)
        if connect:
            peer.send(CommandConnect(client_version="wire-peer", protocol_version=19))
            await peer.expect(BaseCommand.CONNECTED)
        return peer

    async def _read(self) -> None:
        decoder = FrameDecoder(64 << 20)
        try:
            while data := await self._reader.read(1 << 16):
                for frame in decoder.feed(data):
                    if frame.command.type == BaseCommand.PING and self._answer_pings:
                        self._writer.write(pong())
                    else:
                        self.received.append(frame)
                self._arrived.set()
        except ConnectionError:
            self.received.clear()
        finally:
            self.ended.set()
            self._arrived.set()

    def next_request(self) -> int:
        self.requests += 1
        return self.requests

    def send(self, command: Any) -> None:
        self._writer.write(encode(command))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def send_entry(self, body: bytes, sequence_id: int, *, producer_id: int = 1, messages: int = 1) -> None:
        self._writer.write(send_header(producer_id, sequence_id, 0, messages, len(body)) + body)

    async def expect(self, kind: int, **fields: Any) -> Any:
        """The first frame of that type (and with those field values), taken out; its content, or the whole frame for
        a MESSAGE."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for index, frame in enumerate(self.received):
                    content = _content(frame)
                    if frame.command.type == kind and all(getattr(content, name) == fields[name] for name in fields):
                        del self.received[index]
                        return frame if frame.entry is not None else content
                assert not self.ended.is_set(), f"the broker closed the connection; received {self.received}"
                self._arrived.clear()
                await self._arrived.wait()

    async def messages(self, count: int) -> list[tuple[int, int]]:
        """(entry id, redelivery count) of the next MESSAGEs, in order of arrival."""
        out = []
        for _ in range(count):
            message = (await self.expect(BaseCommand.MESSAGE)).command.message
            out.append((message.message_id.entryId, message.redelivery_count))
        return out

    async def settle(self) -> None:
        """Wait until the broker has answered everything that was sent before."""
        self.write(ping())
        await self.expect(BaseCommand.PONG)

    async def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> Any:
        request_id = self.next_request()
        self.send(CommandProducer(topic=topic, producer_id=producer_id, request_id=request_id, **fields))
        return await self.answer(request_id)

    async def subscribe(self, topic: str, name: str, consumer_id: int = 1, **fields: Any) -> Any:
        request_id = self.next_request()
        fields.setdefault("subType", CommandSubscribe.Exclusive)
        fields.setdefault("initialPosition", CommandSubscribe.Earliest)
        self.send(
            CommandSubscribe(topic=topic, subscription=name, consumer_id=consumer_id, request_id=request_id, **fields)
        )
        return await self.answer(request_id)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.send(CommandFlow(consumer_id=consumer_id, messagePermits=permits))

    async def answer(self, request_id: int) -> Any:
        """The answer to a request, whatever its type."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for index, frame in enumerate(self.received):
                    content = _content(frame)
                    if (
                        "request_id" in content.DESCRIPTOR.fields_by_name
                        and content.request_id == request_id
                        and frame.command.type not in (BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER)
                    ):
                        del self.received[index]
                        return content
                assert not self.ended.is_set(), f"the broker closed the connection; received {self.received}"
                self._arrived.clear()
                await self._arrived.wait()

    async def request(self, command: Any) -> Any:
        command.request_id = self.next_request()
        self.send(command)
        return await self.answer(command.request_id)

    async def wait_ended(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self.ended.wait()

    async def close(self) -> None:
        self._writer.close()
        await self._pump


def _content(frame: Frame) -> Any:
    command = frame.command
    return getattr(command, BaseCommand.DESCRIPTOR.fields_by_number[command.type].name)
