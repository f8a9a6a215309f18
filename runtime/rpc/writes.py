"""What one end of an RPC connection writes: frames gathered until the end of the loop's turn, then one system call.
Many frames of one turn leave in runs of `FLUSH_AT_FRAMES`.

The kernel is told to end a connection whose other machine is gone (`runtime.sockets`).

A peer that does not read cannot make this end keep more than `buffer_max_bytes`. Above that, `on_too_slow` is called
and the connection ends.
"""

import asyncio
from collections.abc import Callable, Sequence

from ...protocol.byte_stream import Buffer
from ...protocol.rpc_frames import encode_empty_responses, encode_frame_header
from ..sockets import limit_unacknowledged, probe_when_idle

WRITE_BUFFER_HIGH_BYTES = 4 << 20
WRITE_BUFFER_MAX_BYTES = 256 << 20
JOIN_BELOW_BYTES = 1024
"""Parts that are smaller than this on average are copied together: that costs less than a vector element for each."""
PROBE_IDLE_S = 3
PROBE_INTERVAL_S = 1
PROBES = 3
UNACKNOWLEDGED_MAX_S = 15.0
"""A node that was cut off, or whose process does not read for so long, is lost to its peers by then. Calls to it time
out before, one by one; the end of the connection lets the next ones fail at once, or connect again."""
FLUSH_AT_FRAMES = 32
"""So many frames do not wait for the end of the turn: the peer begins with them while this end makes the next ones.
Else both ends work in turns, and one of two processors has nothing to do."""


class FrameWriter:
    """See the module. Before `open` frames wait; after `close` they are dropped."""

    def __init__(self, buffer_max_bytes: int, on_too_slow: Callable[[], None]) -> None:
        self.buffer_max_bytes = buffer_max_bytes
        self._on_too_slow = on_too_slow
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._outgoing_frames = 0
        self._flush_scheduled = False
        self._closed = False

    def open(self, transport: asyncio.WriteTransport) -> None:
        """Write to this from now on."""
        self._transport = transport
        probe_when_idle(transport, PROBE_IDLE_S, PROBE_INTERVAL_S, PROBES)
        limit_unacknowledged(transport, UNACKNOWLEDGED_MAX_S)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)

    def close(self) -> None:
        """Drop what was not written, and all that comes."""
        self._closed = True
        self._transport = None
        self._outgoing.clear()

    def send(self, kind: int, code: int, request_id: int, parts: Sequence[Buffer]) -> None:
        """Write a frame at the end of this turn of the loop."""
        if self._closed:
            return
        size = sum(map(len, parts))
        outgoing = self._outgoing
        outgoing.append(encode_frame_header(kind, code, request_id, size))
        outgoing.extend(parts)
        self._outgoing_bytes += size
        self._outgoing_frames += 1
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._end_of_turn)
        elif self._outgoing_frames >= FLUSH_AT_FRAMES:
            self.flush()

    def send_empty_responses(self, status: int, request_ids: Sequence[int]) -> None:
        """Write many responses at once, without waiting for the end of the turn. A service that answers so many has
        nothing to add in this turn, and the wait would cost one more turn.
        """
        if not self._closed:
            self._outgoing.append(encode_empty_responses(status, request_ids))
            self.flush()

    def _end_of_turn(self) -> None:
        self._flush_scheduled = False
        self.flush()

    def flush(self) -> None:
        """Write what is gathered now."""
        transport = self._transport
        if not self._outgoing or transport is None:
            return
        outgoing, self._outgoing = self._outgoing, []
        size, self._outgoing_bytes, self._outgoing_frames = self._outgoing_bytes, 0, 0
        if size < JOIN_BELOW_BYTES * len(outgoing):
            transport.write(b"".join(outgoing))
        else:
            transport.writelines(outgoing)
        if transport.get_write_buffer_size() > self.buffer_max_bytes:
            self._on_too_slow()
