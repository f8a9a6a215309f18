"""What the operating system's TCP is told and asked, on real sockets."""

import asyncio
import socket
import struct
from typing import Any

import pytest
import uvloop

from magnetar.runtime.sockets import acknowledged_bytes, limit_unacknowledged, probe_when_idle, unacknowledged_s

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_INFO"), reason="needs Linux")


async def _told(asks: Any) -> Any:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
    try:
        return asks(transport)
    finally:
        transport.abort()
        server.close()


def _options(transport: asyncio.Transport) -> list[int]:
    probe_when_idle(transport, 7, 2, 4)
    limit_unacknowledged(transport, 1.5)
    known = transport.get_extra_info("socket")
    return [
        known.getsockopt(*option)
        for option in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT),
        )
    ]


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_options_reach_the_socket_of_either_loop(new_loop: Any) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(_told(_options)) == [1, 7, 2, 4, 1500]


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_healthy_peer_owes_no_acknowledgement(new_loop: Any) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(_told(unacknowledged_s)) == 0


class Socket:
    """A socket of which the kernel says what the test wants."""

    def __init__(self, unacknowledged: int, last_ms: int, not_sent: int = 0, size: int = 148) -> None:
        told = bytearray(148)
        struct.pack_into("=I", told, 24, unacknowledged)
        struct.pack_into("=I", told, 56, last_ms)
        struct.pack_into("=Q", told, 120, 1 << 40)
        struct.pack_into("=I", told, 144, not_sent)
        self.told = bytes(told[:size])

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self.told

    def setsockopt(self, *unused: int) -> None:
        raise OSError(92, "Protocol not available")


class Wire:
    def __init__(self, found: Socket | None, buffered: int = 0) -> None:
        self._found = found
        self.get_write_buffer_size = lambda: buffered

    def get_extra_info(self, name: str) -> Socket | None:
        return self._found


@pytest.mark.parametrize(("unacknowledged", "expected"), [(3, 12.5), (0, 0.0)])
def test_the_time_counts_while_an_acknowledgement_is_owed(unacknowledged: int, expected: float) -> None:
    wire: Any = Wire(Socket(unacknowledged, 12_500))
    assert unacknowledged_s(wire) == expected


@pytest.mark.parametrize(
    ("segments", "not_sent", "buffered", "size", "expected"),
    [
        (3, 0, 0, 148, 1 << 40),
        (0, 9, 0, 148, 1 << 40),
        (0, 0, 9, 148, 1 << 40),
        (0, 0, 0, 148, None),
        (3, 9, 9, 104, None),
    ],
)
def test_bytes_are_acknowledged_while_more_are_on_their_way(
    segments: int, not_sent: int, buffered: int, size: int, expected: int | None
) -> None:
    wire: Any = Wire(Socket(segments, 1, not_sent, size), buffered)
    assert acknowledged_bytes(wire) == expected


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_the_kernel_counts_the_bytes_that_a_slow_reader_took(new_loop: Any) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        transport, _ = await loop.create_connection(asyncio.Protocol, *listening.getsockname())
        peer, _ = await loop.sock_accept(listening)
        assert acknowledged_bytes(transport) is None
        transport.write(bytes(32 << 20))
        taken, seen = 0, [-1]
        while (told := acknowledged_bytes(transport)) is not None:
            if told > seen[-1]:
                seen.append(told)
            taken += len(await loop.sock_recv(peer, 1 << 20))
        while taken < 32 << 20:
            taken += len(await loop.sock_recv(peer, 1 << 20))
        assert len(seen) > 5 and seen[-1] <= 32 << 20
        transport.abort()
        peer.close()
        listening.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def test_without_a_socket_or_the_options_nothing_happens() -> None:
    for wire in (None, Wire(None), Wire(Socket(0, 0))):
        probe_when_idle(wire, 1, 1, 1)  # type: ignore[arg-type]
        limit_unacknowledged(wire, 1.0)  # type: ignore[arg-type]
        assert unacknowledged_s(wire) == 0  # type: ignore[arg-type]
        assert acknowledged_bytes(wire) is None  # type: ignore[arg-type]
