"""Compression: round trips, and payloads that lie about their size or are damaged."""

import os
import tracemalloc
import zlib

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.compression import CompressionType, compress, decompress
from magnetar.protocol.errors import ProtocolError

KINDS = list(CompressionType)
LIMIT = 1 << 20


@given(st.sampled_from(KINDS), st.binary(max_size=300), st.integers(1, 20))
def test_round_trip(kind: CompressionType, data: bytes, times: int) -> None:
    packed = compress(kind, memoryview(data * times))
    assert type(packed) is bytes
    for form in (packed, memoryview(packed), bytearray(packed)):
        assert decompress(kind, form, len(data) * times, LIMIT) == data * times


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_announcing_another_size(kind: CompressionType, size: int) -> None:
    data = (os.urandom(50) * 2000)[:size]
    packed = compress(kind, data)
    for wrong in (size - 1, size + 1, 2 * size + 3, LIMIT + 1, -1):
        with pytest.raises(ProtocolError):
            decompress(kind, packed, wrong, LIMIT)
    if size > 0 or kind is not CompressionType.ZSTD:  # of an empty frame the library does not read the end
        with pytest.raises(ProtocolError):
            decompress(kind, packed + b"x", size, LIMIT)
    if size > 0:
        with pytest.raises(ProtocolError):
            decompress(kind, packed[:-1], size, LIMIT)


def test_without_compression_only_the_limit_counts() -> None:
    assert decompress(CompressionType.NONE, b"abc", 0, 3) == b"abc"
    with pytest.raises(ProtocolError):
        decompress(CompressionType.NONE, b"abc", 0, 2)


def test_unknown_kind() -> None:
    with pytest.raises(ProtocolError):
        compress(9, b"")
    with pytest.raises(ProtocolError):
        decompress(9, b"", 0, 0)


BOMB = bytes(50 << 20)


@pytest.mark.parametrize(
    ("kind", "packed"),
    [
        (CompressionType.ZLIB, zlib.compress(BOMB)),
        (CompressionType.ZSTD, zstandard.ZstdCompressor().compress(BOMB)),
        (CompressionType.ZSTD, zstandard.ZstdCompressor(write_content_size=False).compress(BOMB)),
        (CompressionType.SNAPPY, bytes(cramjam.snappy.compress_raw(BOMB))),
        (CompressionType.SNAPPY, b"\xff\xff\xff\xff\x0f"),
        (CompressionType.LZ4, compress(CompressionType.LZ4, BOMB)),
    ],
)
def test_bombs_do_not_go_off(kind: CompressionType, packed: bytes) -> None:
    tracemalloc.start()
    try:
        for size in (0, 1000):
            with pytest.raises(ProtocolError):
                decompress(kind, packed, size, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()


def test_zstd_without_the_size_in_its_frame() -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(b"abc" * 100)
    assert decompress(CompressionType.ZSTD, packed, 300, LIMIT) == b"abc" * 100


@given(st.sampled_from(KINDS), st.binary(max_size=60), st.integers(0, 200))
def test_any_bytes(kind: CompressionType, data: bytes, size: int) -> None:
    try:
        result = decompress(kind, data, size, 100)
        assert len(result) == (len(data) if kind is CompressionType.NONE else size) <= 100
    except ProtocolError:
        return


@given(st.sampled_from(KINDS[1:]), st.data())
def test_damaged(kind: CompressionType, data: st.DataObject) -> None:
    packed = bytearray(compress(kind, b"some text, some text, some more text" * 3))
    position = data.draw(st.integers(0, len(packed) - 1))
    packed[position] ^= data.draw(st.integers(1, 255))
    try:
        assert len(decompress(kind, packed, 108, LIMIT)) == 108
    except ProtocolError:
        return
