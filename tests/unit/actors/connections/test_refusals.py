"""Connections beyond the maximum: clients get the reason and an orderly end, and the broker keeps little of them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.actors.connections import limits
from magnetar.protocol.commands import BROKER_REQUEST_ID, encode
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandConnect, CommandError, ServerError
from support.clients.wire_peer import WirePeer
from support.servers.broker_bench import BrokerFront, broker_front, until

CONNECT = encode(CommandConnect(client_version="x", protocol_version=19))
AT_ONCE = 20


class Stranger:
    """A socket to a broker. Unlike `WirePeer` it tells an orderly end from a reset."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, front: BrokerFront) -> "Stranger":
        return cls(*await asyncio.open_connection("127.0.0.1", front.port))

    async def answer(self) -> CommandError:
        """All that comes until the broker's end, which is one ERROR. Raises ConnectionError after a reset."""
        async with asyncio.timeout(10):
            data = await self.reader.read()
        (frame,) = FrameDecoder(1 << 16).feed(data)
        assert frame.command.type == BaseCommand.ERROR
        return frame.command.error

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


@pytest.fixture
async def full() -> AsyncIterator[BrokerFront]:
    """A broker with its maximum of connections, one."""
    async with broker_front(connections_max=1) as front:
        peer = await WirePeer.open(front.port)
        yield front
        await peer.close()


async def refused(front: BrokerFront, *parts: bytes) -> None:
    stranger = await Stranger.open(front)
    for part in parts:
        stranger.writer.write(part)
        await asyncio.sleep(0.01)
    error = await stranger.answer()
    assert (error.request_id, error.error) == (BROKER_REQUEST_ID, ServerError.NotAllowedError)
    assert error.message == (
        "Reached the maximum number of connections: close connections that you do not need, connect to another broker, "
        "or raise brokerMaxConnections"
    )
    await stranger.close()


@pytest.mark.parametrize(
    "parts",
    [(CONNECT,), (CONNECT[:2], CONNECT[2:9], CONNECT[9:]), (CONNECT + bytes(30_000), bytes(30_000))],
    ids=["whole", "in parts", "with more behind it"],
)
async def test_clients_get_the_reason_and_an_orderly_end(full: BrokerFront, parts: tuple[bytes, ...]) -> None:
    await asyncio.gather(*(refused(full, *parts) for _ in range(AT_ONCE)))
    await until(lambda: not full.connection_limits.refusals.open)
    assert len(full.connections) == 1


async def test_the_answer_waits_for_connect(full: BrokerFront) -> None:
    stranger = await Stranger.open(full)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await stranger.reader.read(1)
    stranger.writer.write(CONNECT)
    assert (await stranger.answer()).error == ServerError.NotAllowedError
    await stranger.close()


async def test_a_silent_client_is_answered_and_closed(full: BrokerFront, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECT_TIMEOUT_S", 0.05)
    monkeypatch.setattr(limits, "LINGER_S", 0.05)
    stranger = await Stranger.open(full)
    assert (await stranger.answer()).error == ServerError.NotAllowedError
    await until(lambda: not full.connection_limits.refusals.open)  # although the client keeps its side open
    await stranger.close()


async def test_a_client_that_ends_its_side_first_gets_the_reason(full: BrokerFront) -> None:
    stranger = await Stranger.open(full)
    stranger.writer.write_eof()
    assert (await stranger.answer()).error == ServerError.NotAllowedError
    await until(lambda: not full.connection_limits.refusals.open)
    await stranger.close()


async def test_beyond_a_number_of_refusals_a_connection_is_closed_at_once(
    full: BrokerFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "REFUSALS_MAX", 2)
    strangers = [await Stranger.open(full) for _ in range(2)]
    await until(lambda: len(full.connection_limits.refusals.open) == 2)
    flood = [await Stranger.open(full) for _ in range(AT_ONCE)]
    for one in flood:
        assert (await one.answer()).error == ServerError.NotAllowedError  # without a word of theirs, no reset
        await one.close()
    assert len(full.connection_limits.refusals.open) == 2
    for one in strangers:
        one.writer.write(CONNECT)
        assert (await one.answer()).error == ServerError.NotAllowedError
        await one.close()
    await until(lambda: not full.connection_limits.refusals.open)


async def test_a_client_that_sends_too_much_is_cut_off(full: BrokerFront) -> None:
    stranger = await Stranger.open(full)
    stranger.writer.write((1 << 30).to_bytes(4) + bytes(limits.READ_MAX_BYTES))
    await until(lambda: full.connection_limits.refusals.open)
    await until(lambda: not full.connection_limits.refusals.open)
    await stranger.close()


async def test_a_client_that_goes_away_is_forgotten(full: BrokerFront) -> None:
    stranger = await Stranger.open(full)
    await until(lambda: full.connection_limits.refusals.open)
    stranger.writer.transport.abort()
    await until(lambda: not full.connection_limits.refusals.open)


async def test_a_broker_that_ends_keeps_nothing_of_refused_connections(full: BrokerFront) -> None:
    strangers = [await Stranger.open(full) for _ in range(3)]
    await until(lambda: len(full.connection_limits.refusals.open) == 3)
    (first, *_) = full.connection_limits.refusals.open
    full.connection_limits.refusals.close()
    assert not full.connection_limits.refusals.open and first.state is limits.RefusalState.CLOSED
    for stranger in strangers:
        async with asyncio.timeout(10):
            assert await stranger.reader.read() == b""
        await stranger.close()
