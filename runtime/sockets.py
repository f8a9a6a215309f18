"""What the operating system's TCP is told and asked about a connection.

Two ways to notice that the other machine is gone:

- `probe_when_idle`: TCP's own keep-alive. On a connection with nothing under way, the kernels exchange empty packets.
  It costs neither process anything, and a peer that is only busy answers, because its kernel does.
- `limit_unacknowledged`: the TCP user time-out. It also ends a connection whose peer takes nothing for so long because
  its process does not read. Brokers stop reading from clients on purpose (back-pressure). So it is for connections
  between nodes of the cluster only.

Where the system lacks one of them, nothing happens: all these are beside time-outs of our own.
"""

import asyncio
import socket
import struct

_TCP_INFO_BYTES = 148
_UNACKNOWLEDGED_AT = 24
_LAST_ACKNOWLEDGEMENT_AT = 56
_ACKNOWLEDGED_BYTES_AT = 120
_NOT_SENT_BYTES_AT = 144


def probe_when_idle(transport: asyncio.BaseTransport | None, idle_s: int, interval_s: int, count: int) -> None:
    """After `idle_s` without data the kernel asks the other one. It ends the connection when `count` questions in a
    row, `interval_s` apart, had no answer.
    """
    _set(transport, socket.SOL_SOCKET, "SO_KEEPALIVE", 1)
    _set(transport, socket.IPPROTO_TCP, "TCP_KEEPIDLE", idle_s)
    _set(transport, socket.IPPROTO_TCP, "TCP_KEEPINTVL", interval_s)
    _set(transport, socket.IPPROTO_TCP, "TCP_KEEPCNT", count)


def limit_unacknowledged(transport: asyncio.BaseTransport | None, limit_s: float) -> None:
    """The kernel ends the connection when what was sent stays unacknowledged, or untaken, for so long."""
    _set(transport, socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", round(limit_s * 1000))


def unacknowledged_s(transport: asyncio.BaseTransport | None) -> float:
    """For how many seconds the other kernel has sent no acknowledgement, while it owes one; 0 if it owes none.

    A peer that does not read still acknowledges: its kernel answers. 0 also where the system does not say.
    """
    told = _tcp_info(transport)
    if len(told) < _LAST_ACKNOWLEDGEMENT_AT + 4:
        return 0.0
    (unacknowledged,) = struct.unpack_from("=I", told, _UNACKNOWLEDGED_AT)
    (last_ms,) = struct.unpack_from("=I", told, _LAST_ACKNOWLEDGEMENT_AT)
    return last_ms / 1000 if unacknowledged else 0.0


def acknowledged_bytes(transport: asyncio.Transport | None) -> int | None:
    """How many bytes the other kernel has acknowledged since the beginning, while more are on their way.

    None if it has acknowledged all that was written, and where the system does not say.
    """
    told = _tcp_info(transport)
    if transport is None or len(told) < _NOT_SENT_BYTES_AT + 4:
        return None
    (unacknowledged,) = struct.unpack_from("=I", told, _UNACKNOWLEDGED_AT)
    (not_sent,) = struct.unpack_from("=I", told, _NOT_SENT_BYTES_AT)
    if not (unacknowledged or not_sent or transport.get_write_buffer_size()):
        return None
    return struct.unpack_from("=Q", told, _ACKNOWLEDGED_BYTES_AT)[0]


def _tcp_info(transport: asyncio.BaseTransport | None) -> bytes:
    """What the kernel tells of a connection; empty where it does not."""
    known = None if transport is None else transport.get_extra_info("socket")
    kind = getattr(socket, "TCP_INFO", None)
    if known is None or kind is None:
        return b""
    try:
        return known.getsockopt(socket.IPPROTO_TCP, kind, _TCP_INFO_BYTES)
    except (OSError, NotImplementedError, TypeError):
        return b""


def _set(transport: asyncio.BaseTransport | None, level: int, name: str, value: int) -> None:
    known = None if transport is None else transport.get_extra_info("socket")
    option = getattr(socket, name, None)
    if known is None or option is None:
        return
    try:
        known.setsockopt(level, option, value)
    except (OSError, NotImplementedError, TypeError):
        return  # the kernel, or a socket of another family, does not have it
