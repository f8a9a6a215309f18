"""Frames of the internal RPC between coordinator, brokers, bookies and our own tools.

    [u32 size of the rest][u8 kind][u8 code][u32 request id][payload]       big-endian

A connection is symmetric: both sides may send requests. `code` is the operation of a request or notification and the
status of a response. Operation 0 is a call by name. Its payload is msgpack `[method, arguments]`, and its OK answer is
msgpack of the result. Its error answer (status 255) is msgpack of the triple of `errors.error_to_wire`. Other
operations have binary payloads of their own (`bookie_wire`).

Handshake, time-outs and matching of answers to requests belong to `runtime.rpc.connection`.
"""

from struct import Struct
from typing import NamedTuple

from .byte_stream import FrameCutter
from .errors import ProtocolError

KIND_REQUEST = 0
KIND_RESPONSE = 1
KIND_NOTIFY = 2

OP_CALL = 0

STATUS_OK = 0
# Never on the wire: what a request's callback gets when its connection ends before the answer.
STATUS_DISCONNECTED = 254
STATUS_ERROR = 255

_HEADER = Struct(">IBBI")
_INNER = Struct(">BBI")

pack_frame_header = _HEADER.pack
"""Everything of a frame before its payload, of the size of what follows the size field, kind, code and request id."""
HEADER_SIZE_BYTES = _HEADER.size
# What the size field counts besides the payload.
OVERHEAD_SIZE_BYTES = _INNER.size
_SIZE_FIELD_BYTES = HEADER_SIZE_BYTES - OVERHEAD_SIZE_BYTES

RpcFrameFields = tuple[int, int, int, bytes]
"""What an `RpcFrame` consists of. The decoder makes plain tuples: it makes one for each entry."""


class RpcFrame(NamedTuple):
    """One frame; `code` is an operation or a status, see the module."""

    kind: int
    code: int
    request_id: int
    payload: bytes


class RpcFrameDecoder:
    """Turns chunks of a socket into frames. After an error every later `feed` raises ProtocolError."""

    __slots__ = ("_cutter",)

    def __init__(self, frame_size_max: int) -> None:
        self._cutter = FrameCutter(frame_size_max, OVERHEAD_SIZE_BYTES)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the unfinished frame kept between chunks."""
        return self._cutter.buffered_bytes

    def allow(self, frame_size_max: int) -> None:
        """Accept frames up to that size from the next chunk on."""
        self._cutter.frame_size_max = frame_size_max

    def feed(self, data: bytes | bytearray | memoryview) -> list[RpcFrameFields]:
        """The frames that `data` completes, as (kind, code, request id, payload), payloads copied once.

        FrameTooLarge as soon as a size field exceeds the limit; ProtocolError for a frame too short or of unknown kind.
        """
        frames: list[RpcFrameFields] = []
        cutter = self._cutter
        if type(data) is bytes and cutter.between_frames:
            # The usual chunk: whole frames, one behind the other. The cutter judges what is cut off or wrong.
            at, end, size_max = 0, len(data), cutter.frame_size_max
            while at + HEADER_SIZE_BYTES <= end:
                size, kind, code, request_id = _HEADER.unpack_from(data, at)
                stop = at + _SIZE_FIELD_BYTES + size
                if stop > end or size > size_max or size < OVERHEAD_SIZE_BYTES or kind > KIND_NOTIFY:
                    break
                frames.append((kind, code, request_id, data[at + HEADER_SIZE_BYTES : stop]))
                at = stop
            if at == end:
                return frames
            data = memoryview(data)[at:]
        view, cuts = cutter.cut(data)
        for start, end in cuts:
            kind, code, request_id = _INNER.unpack_from(view, start)
            if kind > KIND_NOTIFY:
                self._cutter.fail()
                raise ProtocolError(f"an RPC frame has the unknown kind {kind}", kind=kind)
            frames.append((kind, code, request_id, bytes(view[start + OVERHEAD_SIZE_BYTES : end])))
        return frames
