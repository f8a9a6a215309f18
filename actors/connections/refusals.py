"""How a broker that has its maximum of connections refuses one more, so that the client gets the reason.

A socket that is closed with unread bytes in it is reset, and the reset may destroy the answer that was sent before. So
the broker reads the client's CONNECT, answers it with ERROR, and ends its own bytes. Then it waits for the peer's end.
Pulsar sends the same answer without waiting for CONNECT, and closes at once: its clients often see a reset.

What was read is counted and thrown away. `TRANSITIONS` has the states. Invariants: a refused connection lasts
CONNECT_TIMEOUT_S + LINGER_S at most, with one timer, and without a task. A broker has REFUSALS_MAX of them at most;
beyond that, the answer is sent and the socket is closed at once.
"""

import asyncio
import enum
from collections.abc import Collection, Mapping

from ...runtime.transitions import check_transition

REFUSALS_MAX = 256
"""Refused connections of one broker that are open."""
CONNECT_TIMEOUT_S = 1.0
"""How long CONNECT may take to come; the answer is sent then all the same."""
LINGER_S = 1.0
"""How long the client may take to end its side after the answer."""
READ_MAX_BYTES = 64 << 10
"""What a refused client may send; the connection ends at once after that. CONNECT has some hundred bytes."""
LENGTH_BYTES = 4


class RefusalState(enum.Enum):
    """See `TRANSITIONS`."""

    CONNECTING = enum.auto()
    ANSWERED = enum.auto()
    CLOSED = enum.auto()


TRANSITIONS: Mapping[RefusalState, Collection[RefusalState]] = {
    RefusalState.CONNECTING: (
        RefusalState.ANSWERED,  # the client's first frame has come, or its end, or CONNECT_TIMEOUT_S is over
        RefusalState.CLOSED,  # the connection is lost, the client sends too much, or the broker ends
    ),
    RefusalState.ANSWERED: (RefusalState.CLOSED,),  # the client's end has come, or LINGER_S is over, or as above
    RefusalState.CLOSED: (),
}


class Refusals:
    """The connections of one broker that are being refused."""

    def __init__(self) -> None:
        self.open: dict[RefusedConnection, None] = {}

    def begin(self, transport: asyncio.Transport, answer: bytes) -> None:
        """Take a connection over that was just made, and refuse it. `answer` is the frame that says why."""
        if len(self.open) >= REFUSALS_MAX:
            transport.write(answer)
            transport.close()
            return
        refusal = RefusedConnection(self, transport, answer)
        self.open[refusal] = None
        transport.set_protocol(refusal)

    def close(self) -> None:
        """End all at once."""
        for refusal in list(self.open):
            refusal.abort()


class RefusedConnection(asyncio.Protocol):
    """One refused connection; see the module."""

    def __init__(self, refusals: Refusals, transport: asyncio.Transport, answer: bytes) -> None:
        self.state = RefusalState.CONNECTING
        self._refusals = refusals
        self._transport = transport
        self._answer = answer
        self._length = b""
        self._read_bytes = 0
        self._timer = asyncio.get_running_loop().call_later(CONNECT_TIMEOUT_S, self._answer_now)

    def data_received(self, data: bytes) -> None:
        self._read_bytes += len(data)
        if self._read_bytes > READ_MAX_BYTES:
            self.abort()
        elif self.state is RefusalState.CONNECTING:
            self._length += data[: LENGTH_BYTES - len(self._length)]
            if self._read_bytes >= LENGTH_BYTES + int.from_bytes(self._length) and len(self._length) == LENGTH_BYTES:
                self._answer_now()

    def eof_received(self) -> bool:
        if self.state is RefusalState.CONNECTING:
            self._answer_now()
        return False  # the socket is closed behind the answer

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def abort(self) -> None:
        """End at once. The answer, if it was sent, is in the kernel; all that came was read, so nothing resets it."""
        self._finish()
        self._transport.abort()

    def _answer_now(self) -> None:
        self._become(RefusalState.ANSWERED)
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(LINGER_S, self.abort)
        self._transport.write(self._answer)
        self._transport.write_eof()

    def _finish(self) -> None:
        if self.state is not RefusalState.CLOSED:
            self._become(RefusalState.CLOSED)
            self._timer.cancel()
            del self._refusals.open[self]

    def _become(self, state: RefusalState) -> None:
        check_transition(TRANSITIONS, "a refused connection", self.state, state)
        self.state = state
