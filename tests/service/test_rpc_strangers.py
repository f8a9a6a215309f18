"""What strangers can do at the internal port of a real coordinator before they have proven anything."""

import asyncio
import contextlib

import pytest

from magnetar.protocol.errors import HandshakeRefused
from magnetar.protocol.rpc_frames import KIND_NOTIFY
from magnetar.runtime.rpc import connection as rpc
from magnetar.runtime.rpc import handshake as rpc_handshake
from magnetar.runtime.rpc import server as rpc_admission
from magnetar.runtime.rpc.connection import Identity, rpc_connect
from support.files.rpc_frames import encode_frame_header
from support.servers.coordination import CLUSTER, KEYS, coordination, eventually

FRAME_SIZE_MAX = 64 << 20


@pytest.fixture
async def cluster():
    async with coordination() as found:
        yield found


@contextlib.asynccontextmanager
async def stranger(cluster):
    reader, writer = await asyncio.open_connection(*cluster.coordinator.address)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def member(cluster):
    identity = Identity(CLUSTER, "broker", "broker-1", "1")
    host, port = cluster.coordinator.address
    connection = await rpc_connect(cluster.env, host, port, identity, KEYS, frame_size_max=FRAME_SIZE_MAX)
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


async def ended(reader):
    """Wait until the other end closes, in order or by a reset."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(5):
            await reader.read()


def connections(cluster):
    return cluster.coordinator._require_active().server.connections


def held_bytes(cluster):
    return sum(connection._decoder.buffered_bytes for connection in connections(cluster))


async def test_a_strangers_large_frame_is_refused_before_it_is_buffered(cluster, monkeypatch):
    monkeypatch.setattr(rpc, "HANDSHAKE_TIMEOUT_S", 60.0)
    async with stranger(cluster) as (reader, writer):
        writer.write(encode_frame_header(KIND_NOTIFY, rpc_handshake.HELLO, 0, 4 << 20) + bytes(1 << 20))
        await ended(reader)
        await eventually(lambda: not connections(cluster))


async def test_a_half_sent_handshake_frame_holds_no_more_than_the_bound(cluster):
    async with stranger(cluster) as (_, writer):
        size = rpc.HANDSHAKE_FRAME_SIZE_MAX - 100
        writer.write(encode_frame_header(KIND_NOTIFY, rpc_handshake.HELLO, 0, size) + bytes(size - 1))
        await eventually(lambda: held_bytes(cluster) > size - 1)
        assert held_bytes(cluster) <= rpc.HANDSHAKE_FRAME_SIZE_MAX + 16


async def test_hello_alone_does_not_raise_the_bound(cluster, monkeypatch):
    monkeypatch.setattr(rpc, "HANDSHAKE_TIMEOUT_S", 60.0)
    async with stranger(cluster) as (reader, writer):
        hello = rpc_handshake.encode_hello(
            Identity(CLUSTER, "broker", "broker-1", "1"), bytes(rpc_handshake.NONCE_SIZE_BYTES)
        )
        writer.write(encode_frame_header(KIND_NOTIFY, rpc_handshake.HELLO, 0, len(hello)) + hello)
        await reader.readexactly(10)
        writer.write(encode_frame_header(KIND_NOTIFY, rpc_handshake.PROOF, 0, 4 << 20) + bytes(1 << 20))
        await ended(reader)
        await eventually(lambda: not connections(cluster))


async def test_a_member_may_send_large_frames_after_its_handshake(cluster):
    async with member(cluster) as connection:
        assert await connection.call("metadata_get_many", keys=["k" * 100] * 10_000) == [None] * 10_000


async def test_silent_connections_are_bounded_and_do_not_keep_a_member_out(cluster, monkeypatch):
    monkeypatch.setattr(rpc_admission, "UNAUTHENTICATED_CONNECTIONS_MAX", 20)
    async with contextlib.AsyncExitStack() as opened:
        streams = [await opened.enter_async_context(stranger(cluster)) for _ in range(50)]
        for reader, _ in streams[:30]:
            await ended(reader)
        await eventually(lambda: len(connections(cluster)) == 20)
        async with member(cluster) as connection:
            assert (await connection.call("hello"))["cluster_id"] == CLUSTER
            await eventually(lambda: len(connections(cluster)) == 20)


async def test_a_silent_connection_ends_after_the_handshake_time_out(cluster, monkeypatch):
    monkeypatch.setattr(rpc, "HANDSHAKE_TIMEOUT_S", 0.2)
    async with stranger(cluster) as (reader, _):
        await ended(reader)
        await eventually(lambda: not connections(cluster))
        assert not cluster.coordinator._require_active().server._admission.unauthenticated


async def test_one_connection_too_many_is_refused_and_the_others_go_on(cluster, monkeypatch):
    monkeypatch.setattr(rpc_admission, "CONNECTIONS_MAX", 2)
    async with member(cluster) as first:
        async with member(cluster) as second:
            with pytest.raises(HandshakeRefused, match="2 internal connections"):
                async with member(cluster):
                    raise AssertionError("must not connect")
            for connection in (first, second):
                assert (await connection.call("hello"))["cluster_id"] == CLUSTER
        await eventually(lambda: len(connections(cluster)) == 1)
        async with member(cluster) as third:
            assert (await third.call("hello"))["cluster_id"] == CLUSTER
