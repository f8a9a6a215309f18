"""Cutting a stream of bytes into frames that begin with their size.

A connection hands over whatever the socket gave: many frames in one chunk, or one frame in many chunks. `FrameCutter`
keeps at most one unfinished frame. The cost is linear in the bytes, for chunks of any size. A frame inside one chunk is
not copied here. A frame across chunks is copied once into a growing buffer. A size above the limit is refused as soon
as its four bytes are there, before anything of the frame is kept.

States: *between frames* (no buffer) → *inside a frame* (the buffer holds its beginning; `_needed` bytes complete what
is known of it) → back. An error leads to *broken*, which is final: the stream has lost its position, and the connection
must be closed. Invariant: after `cut` returns, the buffer is shorter than `_needed` ≤ 4 + `frame_size_max`.
"""

from struct import Struct

from .errors import FrameTooLarge, ProtocolError

_SIZE = Struct(">I")
_SIZE_BYTES = _SIZE.size

Buffer = bytes | bytearray | memoryview


class FrameCutter:
    """Cuts `[u32 size][size bytes]` frames out of chunks. `frame_size_max` bounds the size field, in bytes."""

    __slots__ = ("_broken", "_buffer", "_needed", "between_frames", "frame_size_max", "frame_size_min")

    def __init__(self, frame_size_max: int, frame_size_min: int = 0) -> None:
        self.frame_size_max = frame_size_max
        self.frame_size_min = frame_size_min
        self._buffer = bytearray()
        self._needed = 0
        self._broken = False
        self.between_frames = True
        """Whether the next byte begins a frame. An attribute, because it is asked for with each chunk."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the unfinished frame kept between chunks."""
        return len(self._buffer)

    def cut(self, data: bytes | bytearray | memoryview) -> tuple[memoryview, list[tuple[int, int]]]:
        """The frames that `data` completes: a view, and where in it each frame begins (behind its size) and ends.

        The view is good until the caller lets go of `data`. FrameTooLarge or ProtocolError for a size that cannot be;
        frames that came before it in the same chunk are lost with the connection.
        """
        if self._broken:
            raise ProtocolError("the stream is broken by an earlier error")
        if self._buffer:
            buffer = self._buffer
            buffer += data
            if len(buffer) < self._needed:
                return memoryview(b""), []
            self._buffer = bytearray()
            self.between_frames = True
            view = memoryview(buffer)
        else:
            view = memoryview(data)
        frames: list[tuple[int, int]] = []
        position, end = 0, len(view)
        size_max, size_min = self.frame_size_max, self.frame_size_min
        while True:
            start = position + _SIZE_BYTES
            if start > end:
                self._needed = _SIZE_BYTES
                break
            size: int = _SIZE.unpack_from(view, position)[0]
            if size > size_max or size < size_min:
                self.fail()
                if size > size_max:
                    raise FrameTooLarge(
                        f"a frame has {size} bytes, but {size_max} are allowed",
                        size_bytes=size,
                        size_max_bytes=size_max,
                    )
                raise ProtocolError(f"a frame has {size} bytes, which is too short", size_bytes=size)
            position = start + size
            if position > end:
                position = start - _SIZE_BYTES
                self._needed = _SIZE_BYTES + size
                break
            frames.append((start, position))
        if position < end:
            self._buffer += view[position:]
            self.between_frames = False
        return view, frames

    def fail(self) -> None:
        """Mark the stream broken: what was inside a frame made no sense."""
        self._broken = True
        self.between_frames = False
        self._buffer = bytearray()
