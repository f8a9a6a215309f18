"""The internal RPC over real loopback sockets: calls, data requests, typed errors, handshakes that must fail, lost
connections.
"""

import asyncio
import contextlib
import socket
from functools import partial
from typing import Any

import pytest
import uvloop

from magnetar.protocol.errors import BadVersion, HandshakeRefused, ProtocolError, RpcDisconnected, RpcError, RpcTimeout
from magnetar.protocol.rpc_frames import KIND_NOTIFY, KIND_REQUEST
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc import handshake as rpc_handshake
from magnetar.runtime.rpc.connection import (
    HANDSHAKE_TIMEOUT_S,
    STATUS_DISCONNECTED,
    STATUS_OK,
    Identity,
    RpcConnection,
    RpcConnectionState,
    rpc_connect,
)
from magnetar.runtime.rpc.contract import CALLER, Contract, handlers_of, method
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.rpc.messages import encode_call
from magnetar.runtime.rpc.server import RpcServer
from magnetar.runtime.transitions import ForbiddenTransition
from support.files.rpc_frames import encode_frame_header
from support.servers.open_rpc import OpenService

KEYS = RootKeys(b"s" * 32)
FRAME_MAX = 1 << 20


class EchoContract(Contract):
    @method(frozenset())
    async def add(self, *, a: Any, b: Any) -> Any: ...

    @method(frozenset())
    async def conflict(self) -> None: ...

    @method(frozenset())
    async def broken(self) -> None: ...

    @method(frozenset())
    async def wait(self) -> None: ...

    @method(frozenset())
    def tell(self, *, text: object) -> None: ...

    @method(frozenset())
    async def call_me_back(self, *, caller: RpcConnection = CALLER) -> int: ...


class EchoService(OpenService, EchoContract):
    contract = EchoContract

    def __init__(self):
        self.handlers = handlers_of(EchoContract, self)
        self.connections = []
        self.lost = []
        self.heard = asyncio.Queue()
        self.release = asyncio.Event()
        self.waiting = []

    def connected(self, connection):
        self.connections.append(connection)

    def disconnected(self, connection):
        self.lost.append(connection)
        self.heard.put_nowait("lost")

    def data_request(self, connection, op, request_id, payload):
        if op == 7:
            connection.respond(request_id, STATUS_OK, [payload[:2], payload[2:]])
        elif op == 8:
            connection.close()
        elif op == 9:
            self.waiting.append(request_id)
            if payload:
                connection.respond_all(self.waiting, 3)

    async def add(self, *, a, b):
        return a + b

    async def conflict(self):
        raise BadVersion("stale")

    async def broken(self):
        raise ZeroDivisionError("oops")

    async def wait(self):
        await self.release.wait()

    def tell(self, *, text):
        self.heard.put_nowait(text)

    async def call_me_back(self, *, caller=CALLER):
        return await caller.call("add", a=20, b=22)


@contextlib.asynccontextmanager
async def cluster(client_service=None, client=None, **options):
    env = Environment.real()
    service = EchoService()
    server = RpcServer(env, Identity("c1", "bookie", "b1", "i1"), KEYS, service, frame_size_max=FRAME_MAX)
    host, port = await server.start("127.0.0.1")
    options = {"frame_size_max": FRAME_MAX, **options}
    identity = client or Identity("c1", "broker", "k1", "i9")
    try:
        connection = await rpc_connect(
            env, host, port, identity, options.pop("keys", KEYS), service=client_service, **options
        )
        try:
            yield service, server, connection
        finally:
            connection.close()
            await connection.wait_closed()
    finally:
        await server.close()
        env.close()


async def request(connection: RpcConnection, op: int, *parts: bytes):
    answer = asyncio.get_running_loop().create_future()
    connection.request(op, parts, lambda status, payload: answer.set_result((status, payload)))
    return await asyncio.wait_for(answer, 5)


async def test_both_ends_know_each_other_after_the_handshake():
    async with cluster() as (service, server, connection):
        assert connection.peer == Identity("c1", "bookie", "b1", "i1")
        await connection.call("add", a=0, b=0)
        assert service.connections[0].peer == Identity("c1", "broker", "k1", "i9")
        assert len(server.connections) == 1


async def test_many_requests_are_answered_at_once_behind_what_was_answered_before():
    async with cluster() as (_, _, connection):
        order = []
        done = asyncio.get_running_loop().create_future()

        def answered(number, status, payload):
            order.append((number, status, payload))
            if len(order) == 4:
                done.set_result(None)

        for number, op, payload in ((0, 9, b""), (1, 9, b""), (2, 7, b"abc"), (3, 9, b"!")):
            connection.request(op, (payload,), partial(answered, number))
        await asyncio.wait_for(done, 5)
        assert order == [(2, 0, b"abc"), (0, 3, b""), (1, 3, b""), (3, 3, b"")]


async def test_a_call_returns_its_result_and_raises_its_typed_error():
    async with cluster() as (_, _, connection):
        assert await connection.call("add", a=[1], b=[2, b"\x00"]) == [1, 2, b"\x00"]
        with pytest.raises(BadVersion, match="stale"):
            await connection.call("conflict")
        with pytest.raises(RpcError, match="ZeroDivisionError"):
            await connection.call("broken")
        with pytest.raises(RpcError, match="no method nonsense"):
            await connection.call("nonsense")
        with pytest.raises(ProtocolError, match="no argument 'wrong'"):
            await connection.call("add", wrong=1)


async def test_calls_go_both_ways_on_one_connection():
    async with cluster(client_service=EchoService()) as (_, _, connection):
        assert await connection.call("call_me_back") == 42


async def test_notifications_arrive_in_order():
    async with cluster() as (service, _, connection):
        for number in range(100):
            connection.notify("tell", text=number)
        assert [await service.heard.get() for _ in range(100)] == list(range(100))


async def test_one_packed_notification_is_for_several_connections():
    packed = encode_call("tell", {"text": 5})
    async with cluster() as (one, _, first), cluster() as (two, _, second):
        for connection in (first, second):
            connection.notify(packed)
        assert (await one.heard.get(), await two.heard.get()) == (5, 5)
        first.close()
        first.notify(packed)
        second.notify("tell", text=6)
        assert await two.heard.get() == 6
        assert await one.heard.get() == "lost", "the service noticed the end, and nothing before it"


async def test_data_requests_are_pipelined_and_matched():
    async with cluster() as (_, _, connection):
        answers = await asyncio.gather(*(request(connection, 7, b"%d" % n, b"-tail") for n in range(500)))
        assert answers == [(STATUS_OK, b"%d-tail" % n) for n in range(500)]


async def test_a_lost_connection_answers_every_pending_request_once():
    async with cluster() as (service, _, connection):
        closed = []
        connection.on_close.append(closed.append)
        waiting = [asyncio.create_task(connection.call("wait")) for _ in range(3)]
        assert await request(connection, 8) == (STATUS_DISCONNECTED, b"")
        for task in waiting:
            with pytest.raises(RpcDisconnected):
                await task
        assert closed == [connection] and connection.closed
        assert connection.state is RpcConnectionState.CLOSED
        with pytest.raises(ForbiddenTransition, match="the connection of k1 with b1 cannot go from closed to ready"):
            connection._become(RpcConnectionState.READY)
        assert await request(connection, 7, b"xx") == (STATUS_DISCONNECTED, b"")
        assert await asyncio.wait_for(service.heard.get(), 5) == "lost"
        service.release.set()


async def test_a_slow_call_times_out_and_its_late_answer_does_no_harm():
    async with cluster() as (service, _, connection):
        with pytest.raises(RpcTimeout):
            await connection.call("wait", timeout_s=0.02)
        service.release.set()
        assert await connection.call("add", a=1, b=1) == 2


async def test_a_stranger_without_the_secret_is_refused():
    with pytest.raises(HandshakeRefused, match="secret"):
        async with cluster(keys=RootKeys(b"x" * 32)):
            raise AssertionError("must not connect")


async def test_a_member_of_another_cluster_is_refused():
    with pytest.raises(HandshakeRefused, match="cluster"):
        async with cluster(client=Identity("c2", "broker", "k1", "i9")):
            raise AssertionError("must not connect")


async def test_a_reused_port_of_another_node_is_noticed():
    with pytest.raises(HandshakeRefused, match="at the address of b2"):
        async with cluster(expected_node_id="b2"):
            raise AssertionError("must not connect")


async def test_the_acceptor_refuses_a_wrong_proof():
    """An initiator that skips its own check still cannot get in."""
    async with cluster() as (service, server, _):
        reader, writer = await asyncio.open_connection(*server.address)
        hello = rpc_handshake.encode_hello(Identity("c1", "broker", "evil", "i"), b"n" * 16)
        writer.write(encode_frame_header(KIND_NOTIFY, rpc_handshake.HELLO, 0, len(hello)) + hello)
        writer.write(encode_frame_header(KIND_NOTIFY, rpc_handshake.PROOF, 0, 32) + b"p" * 32)
        rest = await asyncio.wait_for(reader.read(), 5)
        assert b"does not hold the key of that node" in rest
        writer.close()
        await writer.wait_closed()
        assert [connection.peer.node_id for connection in service.connections] == ["k1"]


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", encode_frame_header(KIND_REQUEST, 7, 1, 2) + b"hi"],
    ids=["noise", "http", "request-before-handshake"],
)
async def test_garbage_closes_only_its_own_connection(garbage):
    async with cluster() as (service, server, connection):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(garbage)
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()
        assert await connection.call("add", a=1, b=2) == 3
        assert len(service.connections) == 1


async def test_a_server_that_closes_ends_a_connection_that_is_accepted_but_not_yet_made():
    async with cluster() as (_, server, _):
        connection = server._accept()
        server_closes = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        ours, theirs = socket.socketpair()
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock=theirs)
        with ours:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S / 2):
                await server_closes
        assert connection.closed and transport.is_closing()


@pytest.mark.parametrize("turns", range(8))
def test_a_connect_that_is_given_up_at_any_turn_leaves_no_error_in_the_loop(turns):
    """uvloop closes the transport of such a connection on its own, and does not call `connection_lost`."""
    errors = []

    async def give_up():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        env = Environment.real()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            identity = Identity("c", "r", "n", "i")
            connect = rpc_connect(env, "127.0.0.1", port, identity, KEYS, frame_size_max=FRAME_MAX)
            task = asyncio.create_task(connect)
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0.01)  # the turns in which an error would show
        env.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(give_up())
    assert errors == []


async def test_nobody_listening():
    env = Environment.real()
    with pytest.raises(RpcDisconnected, match="cannot connect"):
        await rpc_connect(env, "127.0.0.1", 1, Identity("c", "r", "n", "i"), KEYS, frame_size_max=FRAME_MAX)
    env.close()


def test_malformed_handshakes_are_protocol_errors():
    for payload in [
        b"",
        b"\xc1",
        b"\x93\x01\x02\x03",
        rpc_handshake.encode_hello(Identity("a", "b", "c", "d"), b"short"),
    ]:
        with pytest.raises(ProtocolError):
            rpc_handshake.decode_hello(payload)


async def test_a_peer_that_never_reads_is_cut_off():
    async with cluster() as (service, _, connection):
        await connection.call("add", a=1, b=1)
        server_side = service.connections[0]
        server_side._writer.buffer_max_bytes = 8 << 20
        connection._transport.pause_reading()
        block = b"x" * (1 << 20)
        while not server_side.closed:
            server_side.notify("tell", text=block)
            await asyncio.sleep(0)
        assert isinstance(server_side.close_reason, RpcError)
        connection._transport.resume_reading()
