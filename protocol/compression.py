"""Compression of an entry's payload, in the formats of Pulsar's clients.

LZ4 is one raw block, SNAPPY is raw, ZLIB and ZSTD carry their own framing. The size before compression travels in the
metadata. Decompression never produces or allocates more than that, nor more than the caller allows. A result of any
other size is a ProtocolError.
"""

# lz4 comes without types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

import zlib
from enum import IntEnum

import cramjam
import lz4.block
import zstandard

from .errors import ProtocolError


class CompressionType(IntEnum):
    """Pulsar's numbers."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZLib = 2  # the same under the official Python client's name
    ZSTD = 3
    SNAPPY = 4


_ZSTD_LEVEL = 3


def compress(kind: int, data: bytes | bytearray | memoryview) -> bytes:
    """`data` compressed; ProtocolError for an unknown kind."""
    match kind:
        case CompressionType.NONE:
            return bytes(data)
        case CompressionType.LZ4:
            return lz4.block.compress(data, store_size=False)
        case CompressionType.ZLIB:
            return zlib.compress(data)
        case CompressionType.ZSTD:
            return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
        case CompressionType.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case _:
            raise ProtocolError(f"unknown compression {kind}", compression=kind)


def decompress(kind: int, data: bytes | bytearray | memoryview, uncompressed_size: int, size_max: int) -> bytes:
    """`data` as it was, exactly `uncompressed_size` bytes.

    ProtocolError if that size is over `size_max`, if the data is damaged, or if it holds more or less than announced.
    Without compression the announced size is ignored, because the official client leaves it out. `size_max` may have to
    be above a broker's largest message, because clients apply that limit to the *compressed* size.
    """
    if kind == CompressionType.NONE:
        uncompressed_size = len(data)
    if not 0 <= uncompressed_size <= size_max:
        raise ProtocolError(
            f"a payload has {uncompressed_size} bytes when decompressed, but {size_max} are allowed",
            size_bytes=uncompressed_size,
            size_max_bytes=size_max,
        )
    match kind:
        case CompressionType.NONE:
            result = bytes(data)
        case CompressionType.LZ4:
            result = _decompress_lz4(data, uncompressed_size)
        case CompressionType.ZLIB:
            result = _decompress_zlib(data, uncompressed_size)
        case CompressionType.ZSTD:
            result = _decompress_zstd(data, uncompressed_size)
        case CompressionType.SNAPPY:
            result = _decompress_snappy(data, uncompressed_size)
        case _:
            raise ProtocolError(f"unknown compression {kind}", compression=kind)
    if len(result) != uncompressed_size:
        raise _lie(uncompressed_size)
    return result


def _decompress_lz4(data: bytes | bytearray | memoryview, size: int) -> bytes:
    try:
        return lz4.block.decompress(data, uncompressed_size=size)
    except lz4.block.LZ4BlockError as error:
        raise _damaged("LZ4", error) from None


def _decompress_zlib(data: bytes | bytearray | memoryview, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One byte more than announced shows a lie; 0 would mean "no limit".
        result = stream.decompress(data, size + 1)
    except zlib.error as error:
        raise _damaged("ZLIB", error) from None
    if not stream.eof or stream.unused_data:
        raise _lie(size)
    return result


def _decompress_zstd(data: bytes | bytearray | memoryview, size: int) -> bytes:
    try:
        # The decompressor would allocate whatever the frame announces.
        announced = zstandard.frame_content_size(data)
        if announced >= 0 and announced != size:
            raise _lie(size)
        # The library takes 0 for "no limit".
        limit = max(size, 1)
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _damaged("ZSTD", error) from None


def _decompress_snappy(data: bytes | bytearray | memoryview, size: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(data) != size:
            raise _lie(size)
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise _damaged("SNAPPY", error) from None


def _lie(size: int) -> ProtocolError:
    return ProtocolError(
        f"a payload does not have the {size} bytes that its metadata says when decompressed", size_bytes=size
    )


def _damaged(kind: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"a {kind} payload is damaged: {error}", compression=kind)
