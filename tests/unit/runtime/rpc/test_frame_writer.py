"""When the frames of one end of a connection leave, and in which order."""

import asyncio

import pytest

from magnetar.protocol.rpc_frames import KIND_REQUEST, RpcFrameDecoder
from magnetar.runtime.rpc.connection import FLUSH_AT_FRAMES, KIND_RESPONSE, FrameWriter


class Socket:
    """A transport that notes each write."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.unsent_bytes = 0

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.writes.append([request_id for _, _, request_id, _ in RpcFrameDecoder(1000).feed(data)])

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


@pytest.fixture
async def sock() -> Socket:
    return Socket()


@pytest.fixture
async def writer(sock: Socket) -> FrameWriter:
    writer = FrameWriter(1000, lambda: sock.writes.append([-1]))
    writer.open(sock)
    return writer


async def end_of_turn() -> None:
    await asyncio.sleep(0)


async def test_frames_of_one_turn_leave_together_at_its_end(writer: FrameWriter, sock: Socket) -> None:
    for turn in range(2):
        writer.send(KIND_REQUEST, 1, 2 * turn, (b"x",))
        writer.send(KIND_REQUEST, 1, 2 * turn + 1, (b"y",))
        assert len(sock.writes) == turn
        await end_of_turn()
    assert sock.writes == [[0, 1], [2, 3]]


async def test_many_answers_leave_at_once(writer: FrameWriter, sock: Socket) -> None:
    writer.respond_all([7, 8], 0)
    assert sock.writes == [[7, 8]]


async def test_many_answers_leave_behind_what_is_gathered(writer: FrameWriter, sock: Socket) -> None:
    writer.send(KIND_RESPONSE, 0, 1, ())
    writer.respond_all([7, 8], 0)
    await end_of_turn()
    assert sock.writes == [[1, 7, 8]]


async def test_answers_wait_for_a_connection_and_are_dropped_behind_its_end(sock: Socket) -> None:
    writer = FrameWriter(1000, lambda: None)
    writer.respond_all([1], 0)
    writer.open(sock)
    await end_of_turn()
    writer.respond_all([2], 0)
    writer.close()
    writer.respond_all([3], 0)
    await end_of_turn()
    assert sock.writes == [[1], [2]]


async def test_a_long_turn_writes_in_runs_and_once_more_at_its_end(writer: FrameWriter, sock: Socket) -> None:
    """In the next turn, too, all frames leave with one write: runs leave no further calls behind."""
    for number in range(2 * FLUSH_AT_FRAMES + 1):
        writer.send(KIND_REQUEST, 1, number, ())
    await end_of_turn()
    assert list(map(len, sock.writes)) == [FLUSH_AT_FRAMES, FLUSH_AT_FRAMES, 1]
    loop = asyncio.get_running_loop()
    for number in range(5):
        loop.call_soon(writer.send, KIND_REQUEST, 1, number, ())
    await end_of_turn()
    await end_of_turn()
    assert sock.writes[3:] == [[0, 1, 2, 3, 4]]


async def test_a_peer_that_does_not_read_is_told_of_when_answers_leave(writer: FrameWriter, sock: Socket) -> None:
    sock.unsent_bytes = 1001
    writer.respond_all([1], 0)
    assert sock.writes == [[1], [-1]]
