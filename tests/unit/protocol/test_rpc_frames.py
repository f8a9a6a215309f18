"""Frames of the internal RPC."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.errors import FrameTooLarge, ProtocolError
from magnetar.protocol.rpc_frames import (
    HEADER_SIZE_BYTES,
    KIND_NOTIFY,
    KIND_REQUEST,
    KIND_RESPONSE,
    OVERHEAD_SIZE_BYTES,
    RpcFrame,
    RpcFrameDecoder,
)
from support.files.rpc_frames import encode_frame_header

FRAMES = st.builds(
    RpcFrame,
    st.sampled_from([KIND_REQUEST, KIND_RESPONSE, KIND_NOTIFY]),
    st.integers(0, 255),
    st.integers(0, (1 << 32) - 1),
    st.binary(max_size=30),
)


def encode(frame: RpcFrame) -> bytes:
    return encode_frame_header(frame.kind, frame.code, frame.request_id, len(frame.payload)) + frame.payload


@given(st.lists(FRAMES, max_size=6), st.integers(1, 40))
def test_round_trip(frames: list[RpcFrame], step: int) -> None:
    stream = b"".join(map(encode, frames))
    decoder = RpcFrameDecoder(36)
    found = [frame for start in range(0, len(stream), step) for frame in decoder.feed(stream[start : start + step])]
    assert found == frames


def test_layout() -> None:
    assert encode(RpcFrame(1, 255, 7, b"ab")) == bytes.fromhex("00000008 01 ff 00000007 6162")
    assert (HEADER_SIZE_BYTES, OVERHEAD_SIZE_BYTES) == (10, 6)


def test_views_are_taken_and_copied() -> None:
    data = bytearray(encode(RpcFrame(0, 1, 2, b"abc")))
    (frame,) = RpcFrameDecoder(100).feed(memoryview(data))
    data[:] = bytes(len(data))
    assert frame == RpcFrame(0, 1, 2, b"abc")


def test_limits() -> None:
    with pytest.raises(FrameTooLarge):
        RpcFrameDecoder(8).feed(encode(RpcFrame(0, 1, 2, b"abc"))[:4])
    assert RpcFrameDecoder(9).feed(encode(RpcFrame(0, 1, 2, b"abc"))) == [RpcFrame(0, 1, 2, b"abc")]
    with pytest.raises(ProtocolError):
        RpcFrameDecoder(100).feed(b"\x00\x00\x00\x05" + bytes(5))


def test_unknown_kind_breaks_the_stream() -> None:
    decoder = RpcFrameDecoder(100)
    with pytest.raises(ProtocolError, match="kind"):
        decoder.feed(encode(RpcFrame(3, 0, 0, b"")))
    with pytest.raises(ProtocolError, match="broken"):
        decoder.feed(encode(RpcFrame(0, 0, 0, b"")))


@pytest.mark.parametrize("bad", [RpcFrame(3, 0, 1, b""), RpcFrame(0, 0, 1, b"12345")])
def test_a_wrong_frame_behind_good_ones_breaks_the_stream(bad: RpcFrame) -> None:
    decoder = RpcFrameDecoder(10)
    good = encode(RpcFrame(0, 1, 2, b"1234"))
    with pytest.raises(ProtocolError):
        decoder.feed(good + good + encode(bad))
    with pytest.raises(ProtocolError):
        decoder.feed(good)


def test_whole_frames_and_the_beginning_of_the_next_one_in_a_chunk() -> None:
    decoder = RpcFrameDecoder(10)
    first, second = RpcFrame(0, 1, 2, b"ab"), RpcFrame(1, 255, 3, b"")
    data = encode(first) + encode(second) + encode(first)
    for cut in range(len(data) - len(encode(first)), len(data)):
        assert decoder.feed(data[:cut]) == [first, second]
        assert decoder.feed(data[cut:]) == [first]
