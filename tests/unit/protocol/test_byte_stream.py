"""Cutting streams into frames: any chunks give the same frames, at linear cost, within bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.byte_stream import FrameCutter
from magnetar.protocol.errors import FrameTooLarge, ProtocolError


def framed(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def cut(cutter: FrameCutter, data: bytes) -> list[bytes]:
    view, cuts = cutter.cut(data)
    return [bytes(view[start:end]) for start, end in cuts]


@given(st.lists(st.binary(max_size=20), max_size=8), st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_any_chunks_give_the_same_frames(bodies: list[bytes], steps: list[int]) -> None:
    stream, cutter = framed(bodies), FrameCutter(20)
    found: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        step = steps[turn % len(steps)]
        found += cut(cutter, stream[position : position + step])
        assert cutter.buffered_bytes < 24
        position, turn = position + step, turn + 1
    assert found == bodies
    assert cutter.buffered_bytes == 0


def test_too_large_is_refused_before_it_is_buffered() -> None:
    cutter = FrameCutter(100)
    assert cut(cutter, framed([b"x" * 100])[:50]) == []
    assert cut(cutter, framed([b"x" * 100])[50:]) == [b"x" * 100]
    assert cut(cutter, b"\x00\x00\x00") == []
    with pytest.raises(FrameTooLarge) as caught:
        cut(cutter, b"\x65" + b"x" * 50)
    assert caught.value.details == {"size_bytes": 101, "size_max_bytes": 100}
    assert cutter.buffered_bytes == 0
    with pytest.raises(ProtocolError, match="broken"):
        cut(cutter, framed([b"good"]))


def test_too_short_is_refused() -> None:
    cutter = FrameCutter(100, frame_size_min=4)
    with pytest.raises(ProtocolError, match="too short"):
        cut(cutter, framed([b"abc"]))


class CountingBytes(bytearray):
    """Counts the bytes appended to a buffer."""

    appended = 0

    def __iadd__(self, other: bytes) -> "CountingBytes":  # type: ignore[override]
        CountingBytes.appended += len(other)
        self.extend(other)
        return self


def test_a_large_frame_in_chunks_is_copied_once() -> None:
    size, chunk = 5 << 20, 1 << 16
    cutter = FrameCutter(size)
    cutter._buffer = CountingBytes()
    CountingBytes.appended = 0
    stream = framed([bytes(size)])
    found = [frame for start in range(0, len(stream), chunk) for frame in cut(cutter, stream[start : start + chunk])]
    assert found == [bytes(size)]
    assert CountingBytes.appended == len(stream)


def test_many_frames_in_one_chunk_are_not_copied() -> None:
    data = framed([b"x"] * 1000)
    view, cuts = FrameCutter(10).cut(data)
    assert view.obj is data
    assert len(cuts) == 1000
