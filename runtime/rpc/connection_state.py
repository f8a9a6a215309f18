"""The states of a connection of the internal RPC, at either end."""

import enum
from collections.abc import Collection, Mapping


class RpcConnectionState(enum.Enum):
    """See `TRANSITIONS`."""

    CONNECTING = enum.auto()
    READY = enum.auto()
    CLOSED = enum.auto()


TRANSITIONS: Mapping[RpcConnectionState, Collection[RpcConnectionState]] = {
    RpcConnectionState.CONNECTING: (  # the handshake is under way, and nothing else is accepted
        RpcConnectionState.READY,  # both ends have proven themselves
        RpcConnectionState.CLOSED,  # as below, or the handshake was refused or took too long
    ),
    # By `close`, the peer's end of file, a malformed frame, or more unsent bytes than `write_buffer_max_bytes`.
    RpcConnectionState.READY: (RpcConnectionState.CLOSED,),
    RpcConnectionState.CLOSED: (),
}
