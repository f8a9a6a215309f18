"""A connection that is forwarded to another broker: which targets there are, bytes, ends, bounds, time-outs."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from magnetar.actors.connections import forwarding
from magnetar.actors.connections.forwarding import BUFFER_MAX_BYTES
from magnetar.actors.members.contracts_coordinator import BrokerInfo
from magnetar.protocol.commands import BROKER_REQUEST_ID, encode
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandConnect, CommandPing, ServerError
from support.servers.broker_bench import BrokerFront, broker_front, until

OWNER = "owner.example.com:6651"
"""Nothing resolves this name: the broker connects to where the owner registered."""


class Owner:
    """A listening socket that stands for another broker: it takes CONNECT and then does what the test does."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []
        """Of both sides, to be closed at the end."""
        self._server: asyncio.Server | None = None

    async def start(self) -> BrokerInfo:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        url = f"pulsar://{OWNER}"
        return BrokerInfo("broker-2", "2", "127.0.0.1", port, url, {"url": url})

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.accepted.put_nowait((reader, writer))

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, CommandConnect]:
        """The next connection, and the CONNECT that it brought."""
        async with asyncio.timeout(10):
            reader, writer = await self.accepted.get()
            head = await reader.readexactly(4)
            [frame] = FrameDecoder(1 << 20).feed(head + await reader.readexactly(int.from_bytes(head, "big")))
        assert frame.command.type == BaseCommand.CONNECT
        return reader, writer, frame.command.connect


@contextlib.asynccontextmanager
async def front_and_owner(**settings: Any) -> AsyncIterator[tuple[BrokerFront, Owner]]:
    owner = Owner()
    async with broker_front(**settings) as front:
        front.brokers.append(await owner.start())
        try:
            yield front, owner
        finally:
            await owner.stop()
    for writer in owner.writers:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class Client:
    """A raw socket to the forwarding broker, behind CONNECT."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(
        cls, front: BrokerFront, owner: Owner, target: str = OWNER, after: bytes = b"", **fields: Any
    ) -> "Client":
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        owner.writers.append(writer)
        connect = CommandConnect(client_version="test", protocol_version=21, proxy_to_broker_url=target, **fields)
        writer.write(encode(connect) + after)
        return cls(reader, writer)

    async def refusal(self) -> tuple[int, str]:
        """The error that ends the connection."""
        async with asyncio.timeout(10):
            content = await self.reader.read()
        [frame] = FrameDecoder(1 << 20).feed(content)
        assert frame.command.type == BaseCommand.ERROR and frame.command.error.request_id == BROKER_REQUEST_ID
        return frame.command.error.error, frame.command.error.message


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether nothing more comes."""
    async with asyncio.timeout(10):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


def nothing_left(front: BrokerFront) -> Callable[[], bool]:
    return lambda: not front.forwards.open and not front.connections and not front.connection_limits._total


async def test_the_owner_gets_connect_without_the_target_and_then_all_bytes() -> None:
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner, original_principal="somebody", auth_data=b"secret")
        reader, writer, connect = await owner.connection()
        assert not connect.HasField("proxy_to_broker_url")
        assert (connect.client_version, connect.original_principal, connect.auth_data) == (
            "test",
            "somebody",
            b"secret",
        )
        writer.write(b"\x00from the owner")
        assert await client.reader.readexactly(15) == b"\x00from the owner"
        client.writer.write(b"from the client\xff" * 1_000)
        assert await reader.readexactly(16_000) == b"from the client\xff" * 1_000
        assert len(front.forwards.open) == len(front.connections) == 1
        client.writer.close()
        assert await ended(reader)
        writer.close()
        await until(nothing_left(front))


@pytest.mark.parametrize("target", [OWNER, f"pulsar://{OWNER}", f"pulsar://{OWNER}/", OWNER.upper()])
async def test_a_target_may_be_written_as_clients_write_it(target: str) -> None:
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner, target)
        _, writer, _ = await owner.connection()
        writer.close()
        assert await ended(client.reader)


async def test_a_broker_that_is_its_own_target_serves_the_client_itself() -> None:
    async with front_and_owner() as (front, _):
        peer = await front.peer(connect=False)
        peer.send(
            CommandConnect(client_version="t", protocol_version=21, proxy_to_broker_url=f"127.0.0.1:{front.port}")
        )
        await peer.expect(BaseCommand.CONNECTED)
        assert not front.forwards.open
        await peer.close()


HOSTILE = [
    "127.0.0.1:22",
    "127.0.0.1:1",
    "localhost:6651",
    "169.254.169.254:80",
    "owner.example.com:6650",
    "owner.example.com.:6651",
    "owner.example.com:6651.evil.example",
    "evil.example@owner.example.com:6651",
    "owner.example.com:6651@evil.example:80",
    "owner.example.com:6651,evil.example:80",
    "owner.example.com:6651#:80",
    "owner.example.com\x00.evil:6651",
    " owner.example.com:6651",
    "0.0.0.0:6651",
    "[::]:6651",
    "[owner.example.com]:66510",
    "http://owner.example.com:6651",
    "pulsar+ssl://other.example.com:6651",
    "pulsar+ssl://pulsar://owner.example.com:6651",
    "pulsar://pulsar://owner.example.com:6651",
    "owner.example.com",
    ":6651",
    "a" * 100_000 + ":6651",
    "оwner.example.com:6651",
]


@pytest.mark.promise("30.20")
@pytest.mark.parametrize("target", HOSTILE, ids=range(len(HOSTILE)))
async def test_nothing_but_live_brokers_is_connected_to(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with front_and_owner() as (front, owner):
        asked: list[Any] = []
        monkeypatch.setattr(front.forwards, "begin", lambda *arguments: asked.append(arguments))
        client = await Client.open(front, owner, target)
        code, message = await client.refusal()
        assert code in (ServerError.ServiceNotReady, ServerError.NotAllowedError) and len(message) < 400
        assert not asked and owner.accepted.empty()
        await until(nothing_left(front))


async def test_an_owner_that_cannot_be_reached_is_not_ready() -> None:
    async with front_and_owner() as (front, owner):
        await owner.stop()
        client = await Client.open(front, owner)
        code, message = await client.refusal()
        assert code == ServerError.ServiceNotReady and "broker-2 cannot be reached" in message
        await until(nothing_left(front))


async def test_an_owner_that_does_not_accept_in_time_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async with front_and_owner(proxy_connect_timeout_ms=20) as (front, owner):

        async def never(*arguments: Any, **options: Any) -> None:
            await asyncio.Event().wait()

        client = await asyncio.open_connection("127.0.0.1", front.port)
        owner.writers.append(client[1])
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never, raising=False)
        connect = CommandConnect(client_version="test", protocol_version=21, proxy_to_broker_url=OWNER)
        client[1].write(encode(connect))
        code, message = await Client(*client).refusal()
        assert code == ServerError.ServiceNotReady and "no answer in time" in message
        await until(nothing_left(front))


async def test_no_more_than_the_maximum_is_forwarded_and_zero_forbids_it() -> None:
    async with front_and_owner(proxy_connections_max=1) as (front, owner):
        first = await Client.open(front, owner)
        _, writer, _ = await owner.connection()
        assert (await (await Client.open(front, owner)).refusal())[0] == ServerError.TooManyRequests
        writer.close()
        assert await ended(first.reader)
        first.writer.close()
        await until(nothing_left(front))
        await Client.open(front, owner)
        await owner.connection()
    async with front_and_owner(proxy_connections_max=0) as (front, owner):
        code, message = await (await Client.open(front, owner)).refusal()
        assert code == ServerError.NotAllowedError and "brokerProxyMaxConnections=0" in message


@pytest.mark.parametrize("after", [encode(CommandPing()), encode(CommandPing())[:5], b"\x00"])
async def test_a_client_that_does_not_wait_for_connected_is_closed(after: bytes) -> None:
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner, after=after)
        assert await ended(client.reader)
        await until(nothing_left(front))


async def test_a_client_that_ends_its_bytes_still_gets_answers_until_the_owner_ends() -> None:
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner)
        reader, writer, _ = await owner.connection()
        client.writer.write(b"last words")
        client.writer.write_eof()
        assert await reader.read() == b"last words"
        for _ in range(3):
            writer.write(b"still here")
            assert await client.reader.readexactly(10) == b"still here"
        assert len(front.forwards.open) == 1
        writer.write_eof()
        assert await ended(client.reader)
        await until(nothing_left(front))


@pytest.mark.promise("30.20")
@pytest.mark.parametrize("to_owner", [True, False])
async def test_a_side_that_does_not_read_holds_the_other_back(to_owner: bool) -> None:
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner)
        owner_reader, owner_writer, _ = await owner.connection()
        sender, receiver = (client.writer, owner_reader) if to_owner else (owner_writer, client.reader)
        sent, chunk = 0, bytes(1 << 16)
        with contextlib.suppress(TimeoutError):
            while sent < 256 << 20:
                sender.write(chunk)
                sent += len(chunk)
                async with asyncio.timeout(0.5):
                    await sender.drain()
        assert sent < 64 << 20, "buffers of sockets, streams and the broker"
        [one] = front.forwards.open
        waiting = [side._transport.get_write_buffer_size() for side in (one._client, one._owner)]
        assert 0 < max(waiting) < BUFFER_MAX_BYTES + (1 << 20)
        received = 0
        async with asyncio.timeout(30):
            while received < sent:
                received += len(await receiver.read(1 << 20))
        assert received == sent


@pytest.mark.promise("30.20")
async def test_silence_of_both_sides_ends_it_and_a_ping_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with front_and_owner(proxy_read_timeout_ms=1, keep_alive_interval_s=0.05) as (front, owner):
        client = await Client.open(front, owner)
        reader, _, _ = await owner.connection()
        for _ in range(10):
            client.writer.write(b"p")
            assert await reader.readexactly(1) == b"p"
            await asyncio.sleep(0.03)
        assert len(front.forwards.open) == 1
        assert await ended(client.reader) and await ended(reader)
        await until(nothing_left(front))


async def test_what_a_lost_owner_sent_still_reaches_the_client() -> None:
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner)
        _, writer, _ = await owner.connection()
        writer.write(b"x" * 5_000_000)
        await writer.drain()
        writer.close()
        async with asyncio.timeout(10):
            assert len(await client.reader.readexactly(5_000_000)) == 5_000_000
        client.writer.close()
        await until(nothing_left(front))


def waiting_bytes(front: BrokerFront) -> int:
    """Bytes that the broker holds for the client."""
    return sum(one._client._transport.get_write_buffer_size() for one in front.forwards.open)


async def test_a_client_that_never_reads_is_cut_off_soon_after_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "LINGER_S", 0.05)
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner)
        _, writer, _ = await owner.connection()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not waiting_bytes(front):
            writer.write(bytes(1 << 16))
            await writer.drain()
            await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        assert 0 < waiting_bytes(front) < BUFFER_MAX_BYTES, "the owner is still read"
        writer.transport.abort()
        await until(nothing_left(front))


async def test_a_client_that_never_reads_is_cut_off_by_the_time_out() -> None:
    async with front_and_owner(proxy_read_timeout_ms=1, keep_alive_interval_s=0.05) as (front, owner):
        client = await Client.open(front, owner)
        _, writer, _ = await owner.connection()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(bytes(32 << 20))
        await until(lambda: waiting_bytes(front) > BUFFER_MAX_BYTES)
        await until(nothing_left(front))


async def test_a_client_that_goes_while_the_owner_is_connected_leaves_nothing() -> None:
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner)
        client.writer.transport.abort()
        with contextlib.suppress(asyncio.IncompleteReadError, TimeoutError):
            _, writer, _ = await owner.connection()
            writer.close()
        await until(nothing_left(front))


async def test_a_broker_that_closes_ends_what_it_forwards() -> None:
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner)
        reader, _, _ = await owner.connection()
    assert await ended(client.reader) and await ended(reader)
    assert nothing_left(front)()


async def test_the_brokers_own_keep_alive_leaves_a_forwarded_connection_alone() -> None:
    async with front_and_owner() as (front, owner):
        client = await Client.open(front, owner)
        _, writer, _ = await owner.connection()
        for _ in range(5):
            for connection in list(front.connections):
                connection.tick()
        writer.write(b"only this")
        writer.write_eof()
        async with asyncio.timeout(10):
            assert await client.reader.read() == b"only this"


async def test_a_target_that_has_left_the_cluster_is_not_ready() -> None:
    async with front_and_owner() as (front, owner):
        front.brokers[:] = [dataclasses.replace(front.brokers[0], url="pulsar://elsewhere:1", data={})]
        code, message = await (await Client.open(front, owner)).refusal()
        assert code == ServerError.ServiceNotReady and "look the topic up again" in message
