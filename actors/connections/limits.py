"""How many clients' connections a broker takes, in all and from one IP address, how many of everything one connection
may have, and how many bytes of publishes all of them together. What single commands may hold is bounded in
`protocol.bounds`.

A broker that has its maximum of connections refuses one more so that the client gets the reason. A socket that is
closed with unread bytes in it is reset, and the reset may destroy the answer that was sent before. So the broker reads
the client's CONNECT, answers it with ERROR, and ends its own bytes. Then it waits for the peer's end. Pulsar sends the
same answer without waiting for CONNECT, and closes at once: its clients often see a reset.

What was read is counted and thrown away. `TRANSITIONS` has the states of a refused connection. Invariants: a refused
connection lasts CONNECT_TIMEOUT_S + LINGER_S at most, with one timer, and without a task. A broker has REFUSALS_MAX of
them at most; beyond that, the answer is sent and the socket is closed at once.
"""

import asyncio
import enum
from collections.abc import Collection, Mapping

from ...protocol.errors import TooManyLookupRequestException
from ...runtime.settings.declarations import Settings
from ...runtime.transitions import check_transition
from ..rates.publish import Holdable, Holder


class PublishBudget(Holder):
    """Above `bytes_max`, connections that publish are paused; all continue when half of it is free again."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._paused: dict[Holdable, None] = {}

    def take(self, connection: Holdable, size_bytes: int) -> None:
        """A publish begins."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.bytes_max and connection not in self._paused:
            self._paused[connection] = None
            connection.hold(self)

    def give(self, size_bytes: int) -> None:
        """A publish ended."""
        self.used_bytes -= size_bytes
        if self._paused and self.used_bytes <= self.bytes_max // 2:
            paused, self._paused = self._paused, {}
            for connection in paused:
                connection.release(self)

    def forget(self, connection: Holdable) -> None:
        """A connection is gone; what it published is still given back entry by entry."""
        self._paused.pop(connection, None)


PRODUCERS_MAX = 100_000
"""Of one connection. Pulsar has no such bound; a client has one connection to a broker for all its topics."""
CONSUMERS_MAX = 100_000
"""Of one connection."""
WATCHERS_MAX = 1000
"""Topic list watchers of one connection."""
DEPARTED_MAX = 10_000
"""Producers of one connection that the broker sent away, whose late messages it still knows."""

_WHAT_TO_DO = "close connections that you do not need, connect to another broker, or raise"


def check_number(what: str, number: int, number_max: int) -> None:
    """Raise TooManyLookupRequestException when a connection with so many is to have one more."""
    if number >= number_max:
        raise TooManyLookupRequestException(
            f"this connection has {number_max} {what} already: close some, or open a connection"
        )


class ConnectionLimits:
    """Counts connections by the address that they come from. Refused ones are not counted; see `Refusals`."""

    def __init__(self, settings: Settings) -> None:
        self._max = settings.connections_max
        self._max_per_address = settings.connections_max_per_ip
        self.refusals = Refusals()
        self._counts: dict[str, int] = {}
        self._total = 0

    def enter(self, address: str) -> str:
        """Count a connection, and return nothing; or return why it is refused: Pulsar's words, and what to do."""
        if 0 < self._max <= self._total:
            return f"Reached the maximum number of connections: {_WHAT_TO_DO} brokerMaxConnections"
        count = self._counts.get(address, 0)
        if 0 < self._max_per_address <= count:
            return (
                f"Reached the maximum number of connections on address {address}: {_WHAT_TO_DO} "
                "brokerMaxConnectionsPerIp"
            )
        self._counts[address] = count + 1
        self._total += 1
        return ""

    def leave(self, address: str) -> None:
        """A counted connection has ended."""
        self._total -= 1
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]


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


class NoTls(asyncio.Protocol):
    """A client that does not speak TLS, on a port that does. It is refused with `answer`."""

    def __init__(self, refusals: Refusals, answer: bytes) -> None:
        self._refusals = refusals
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._refusals.begin(transport, self._answer)  # type: ignore[arg-type]


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
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()  # TLS has no half of a connection; it tells the client of the end, too

    def _finish(self) -> None:
        if self.state is not RefusalState.CLOSED:
            self._become(RefusalState.CLOSED)
            self._timer.cancel()
            del self._refusals.open[self]

    def _become(self, state: RefusalState) -> None:
        check_transition(TRANSITIONS, "a refused connection", self.state, state)
        self.state = state
