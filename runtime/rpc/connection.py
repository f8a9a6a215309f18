"""The internal RPC: persistent, pipelined, authenticated connections between coordinator, bookies, brokers and tools.

Two kinds of traffic share a connection. *Data requests* (entries) are an op, raw bytes and a plain callback, with no
future and no task each. *Calls* (control) name a method of the other end's contract, with msgpack arguments and
typed errors. Both ends may ask.

`TRANSITIONS` has the states of a connection, at either end. Closing answers every pending request with
STATUS_DISCONNECTED exactly once; whether the peer carried it out is then unknown.

Until the peer has proven itself, its frames may have `HANDSHAKE_FRAME_SIZE_MAX` bytes: an unknown peer makes this
process keep no more. A correct peer sends nothing behind its proof before the answer to it. So the larger limit, which
holds from the next chunk on, is always in force in time. `rpc.server` bounds the number of connections.

All frames written within one turn of the loop leave in one system call. The accepting side stops reading while its
answers pile up; the initiating side never does, so that the two cannot wait for each other.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from itertools import repeat
from typing import Any

from ...protocol.byte_stream import Buffer
from ...protocol.errors import (
    AuthorizationError,
    HandshakeRefused,
    MagnetarError,
    ProtocolError,
    RpcDisconnected,
    RpcError,
    RpcTimeout,
    error_to_wire,
)
from ...protocol.rpc_frames import (
    KIND_NOTIFY,
    KIND_REQUEST,
    KIND_RESPONSE,
    OVERHEAD_SIZE_BYTES,
    RpcFrameDecoder,
    pack_frame_header,
)
from ..environment import Environment
from ..sockets import limit_unacknowledged, probe_when_idle
from ..tasks import Tasks
from ..transitions import check_transition
from . import handshake
from .contract import CALLER_NAME, Contract, Handler, Method
from .handshake import Handshake
from .keys import Identity, Keys
from .messages import decode_call, decode_error, encode_call, pack, unpack

logger = logging.getLogger(__name__)


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
    """What one end of an RPC connection writes: frames gathered until the end of the loop's turn, then one system call.
    Many frames of one turn leave in runs of `FLUSH_AT_FRAMES`.

    The kernel is told to end a connection whose other machine is gone (`runtime.sockets`).

    A peer that does not read cannot make this end keep more than `buffer_max_bytes`. Above that, `on_too_slow` is
    called and the connection ends.

    Before `open` frames wait; after `close` they are dropped.
    """

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
        outgoing.append(pack_frame_header(OVERHEAD_SIZE_BYTES + size, kind, code, request_id))
        outgoing.extend(parts)
        self._outgoing_bytes += size
        self._outgoing_frames += 1
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)
        elif self._outgoing_frames >= FLUSH_AT_FRAMES:
            self.flush()
            self._flush_scheduled = True  # the call at the end of the turn is still to come

    def respond_all(self, request_ids: Sequence[int], status: int) -> None:
        """Write many responses without payload at once, without waiting for the end of the turn. A service that answers
        so many has nothing to add in this turn, and the wait would cost one more turn.
        """
        transport = self._transport
        if self._outgoing or transport is None:  # they leave behind what is gathered
            for request_id in request_ids:
                self.send(KIND_RESPONSE, status, request_id, ())
            return
        constant = repeat(OVERHEAD_SIZE_BYTES), repeat(KIND_RESPONSE), repeat(status)
        transport.write(b"".join(map(pack_frame_header, *constant, request_ids)))
        if transport.get_write_buffer_size() > self.buffer_max_bytes:
            self._on_too_slow()

    def flush(self) -> None:
        """Write what is gathered now. The end of a turn that wrote earlier may find nothing left to write."""
        self._flush_scheduled = False
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


OP_CALL = 0
STATUS_OK = 0
STATUS_DISCONNECTED = 254
STATUS_ERROR = 255

CALL_TIMEOUT_S = 10.0
HANDSHAKE_TIMEOUT_S = 5.0
HANDSHAKE_FRAME_SIZE_MAX = 4096
CALLS_UNDER_WAY_MAX = 1024

_READY = RpcConnectionState.READY
"""Asked for at every frame: a global is found faster than a member of an enum."""

Locate = Callable[[], Awaitable[tuple[str, int]]]
"""Where a server listens now: (host, port)."""

ResponseCallback = Callable[[int, bytes], None]


class RpcService:
    """What one end offers to the other. For each method of its contract it has a handler (see `contract`).

    Handlers of notifications run in the order of arrival. What is neither in the contract nor in the table of
    operations is refused to every peer.
    """

    contract: type[Contract] = Contract
    """The methods, with their arguments, and the roles whose nodes may call them."""
    handlers: Mapping[str, Handler] = {}
    """What serves each method, as `handlers_of` returns it."""
    operation_roles: Mapping[int, frozenset[str]] = {}
    """Operation of a data request → the roles whose nodes may ask for it."""

    def handler(self, method: str) -> Handler | None:
        """What serves a method, or None."""
        return self.handlers.get(method)

    def declared(self, method: str) -> Method | None:
        """The declaration of a method, None when there is none."""
        return self.contract.methods.get(method)

    def may_call(self, role: str, declared: Method) -> bool:
        """Whether nodes of that role may call the method."""
        return role in declared.roles

    def operations_of(self, role: str) -> Container[int]:
        """The data operations that nodes of that role may ask for."""
        return frozenset(op for op, roles in self.operation_roles.items() if role in roles)

    def connected(self, connection: "RpcConnection") -> None:
        """The handshake is done; `connection.peer` is proven."""

    def disconnected(self, connection: "RpcConnection") -> None:
        """A connection that was `connected` has ended."""

    def data_request(self, connection: "RpcConnection", op: int, request_id: int, payload: bytes) -> None:
        """Answer a data request by exactly one `connection.respond`, now or later."""
        connection.respond_error(request_id, RpcError(f"this service has no data operation {op}"))


class RpcConnection(asyncio.Protocol):
    """One end of a connection. Made by `rpc.server.RpcServer` and `rpc_connect` only."""

    def __init__(
        self,
        env: Environment,
        identity: Identity,
        keys: Keys,
        service: RpcService,
        *,
        initiator: bool,
        frame_size_max: int,
        expected_node_id: str | None = None,
        on_ready: Callable[["RpcConnection"], None] | None = None,
        admit: Callable[[], None] | None = None,
        write_buffer_max_bytes: int = WRITE_BUFFER_MAX_BYTES,
    ) -> None:
        self.identity = identity
        self.state = RpcConnectionState.CONNECTING
        self.closed = False
        """Whether the state is CLOSED: answering asks for this at each frame."""
        self.close_reason: BaseException | None = None
        self.on_close: list[Callable[[RpcConnection], None]] = []
        self._loop = asyncio.get_running_loop()
        self._service = service
        self._initiator = initiator
        self._on_ready = on_ready
        self._admit = admit
        self._operations: Container[int] = ()
        nonce = env.random.token(handshake.NONCE_SIZE_BYTES)
        self._handshake = Handshake(identity, keys, nonce, initiator=initiator, expected_node_id=expected_node_id)
        self._frame_size_max = frame_size_max
        self._decoder = RpcFrameDecoder(min(frame_size_max, HANDSHAKE_FRAME_SIZE_MAX))
        self._transport: asyncio.Transport | None = None
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._writer = FrameWriter(write_buffer_max_bytes, self._peer_too_slow)
        self._send = self._writer.send
        self.respond_all = self._writer.respond_all
        """Answers many data requests, without payload, in one write and at once."""
        self._pending: dict[int, ResponseCallback] = {}
        self._next_request_id = 0
        self._handlers = Tasks()
        self._reading_paused_by_calls = False
        self._writable = True
        self._ended = asyncio.Event()

    # -- asking ------------------------------------------------------------------------------------------------

    def request(self, op: int, parts: Sequence[Buffer], callback: ResponseCallback) -> None:
        """Send a data request. `callback(status, payload)` is called once, on the loop, never from within this call.

        On a closed connection it gets STATUS_DISCONNECTED.
        """
        if self.state is not _READY:
            self._loop.call_soon(callback, STATUS_DISCONNECTED, b"")
            return
        request_id = self._next_request_id
        if request_id in self._pending:
            request_id = self._free_request_id()
        self._next_request_id = (request_id + 1) & 0xFFFFFFFF
        self._pending[request_id] = callback
        self._send(KIND_REQUEST, op, request_id, parts)

    async def call(self, method: str, /, *, timeout_s: float = CALL_TIMEOUT_S, **arguments: object) -> Any:
        """Call a method of the other end and return its result. Services do so by a `Contract` only.

        Raises the error that the method raised, RpcDisconnected or RpcTimeout (in both cases the call may have been
        carried out).
        """
        answer: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()

        def answered(status: int, payload: bytes) -> None:
            if not answer.done():
                answer.set_result((status, payload))

        self.request(OP_CALL, (encode_call(method, arguments),), answered)
        try:
            async with asyncio.timeout(timeout_s):
                status, payload = await answer
        except TimeoutError:
            raise RpcTimeout(
                f"{self.peer.node_id or 'the peer'} did not answer {method} within {timeout_s} s"
            ) from None
        if status == STATUS_OK:
            return unpack(payload)
        if status == STATUS_DISCONNECTED:
            raise RpcDisconnected(f"the connection to {self.peer.node_id or 'the peer'} ended during {method}")
        raise decode_error(payload)

    def notify(self, method: str | bytes, /, **arguments: object) -> None:
        """Call a method of the other end without an answer. It is lost with the connection, without an error.

        Instead of a name it takes a call that `encode_call` has packed, for several connections.
        """
        if self.state is _READY:
            packed = method if isinstance(method, bytes) else encode_call(method, arguments)
            self._send(KIND_NOTIFY, OP_CALL, 0, (packed,))

    # -- answering -----------------------------------------------------------------------------------------------

    def respond(self, request_id: int, status: int, parts: Sequence[Buffer] = ()) -> None:
        """Answer a data request. Nothing happens when the connection has ended."""
        if not self.closed:
            self._send(KIND_RESPONSE, status, request_id, parts)

    def respond_error(self, request_id: int, error: BaseException) -> None:
        """Answer with a typed error."""
        self.respond(request_id, STATUS_ERROR, (pack(list(error_to_wire(error))),))

    # -- life ----------------------------------------------------------------------------------------------------

    @property
    def peer(self) -> Identity:
        """Who is at the other end, proven once the connection is READY."""
        return self._handshake.peer

    @property
    def reading_paused(self) -> bool:
        """Whether nothing is read from the peer because too many of its calls are under way: its silence then says
        nothing about it.
        """
        return self._reading_paused_by_calls

    def close(self, error: BaseException | None = None) -> None:
        """End the connection. What was written still leaves, unless `error` says that the stream is broken."""
        if self.closed:
            return
        if self._transport is None:  # accepted, and not yet made: `connection_made` ends it
            self.close_reason = self.close_reason or error or RpcDisconnected("the connection was closed at once")
            return
        self.close_reason = self.close_reason or error
        if error is None:
            self._writer.flush()
            self._transport.close()
        else:
            self._transport.abort()

    async def wait_closed(self) -> None:
        await self._ended.wait()
        await self._handlers.close()

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        if self.close_reason is not None:  # the server gave it up before it was made
            self.fail(self.close_reason)
            return
        self._writer.open(self._transport)  # type: ignore[arg-type]
        self._handshake_timer = self._loop.call_later(
            HANDSHAKE_TIMEOUT_S, self.fail, HandshakeRefused("the peer did not complete the handshake in time")
        )
        if self._initiator:
            self._send_step(*self._handshake.hello())
            # Not at the end of the turn: uvloop may have closed the transport by then, without a call of
            # `connection_lost`, because the caller of `rpc_connect` was cancelled.
            self._writer.flush()

    def data_received(self, data: bytes) -> None:
        try:
            for kind, code, request_id, payload in self._decoder.feed(data):
                if self.state is not _READY:
                    if self.closed:
                        return
                    self._shake(kind, code, payload)
                elif kind == KIND_RESPONSE:
                    callback = self._pending.pop(request_id, None)
                    if callback is not None:
                        callback(code, payload)
                elif kind == KIND_REQUEST:
                    if code == OP_CALL:
                        self._start_call(request_id, payload)
                    elif code in self._operations:
                        self._service.data_request(self, code, request_id, payload)
                    else:
                        self.respond_error(request_id, self._refusal(f"ask for operation {code}"))
                elif kind == KIND_NOTIFY:
                    self._start_call(None, payload)
        except MagnetarError as error:
            logger.warning("the connection with %s is closed: %s", self.peer.node_id or "an unknown peer", error)
            self.fail(error)
        except Exception as error:
            logger.exception("the connection with %s is closed after an unexpected error", self.peer.node_id)
            self.fail(error)

    def pause_writing(self) -> None:
        self._writable = False
        if not self._initiator and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable = True
        if not self._initiator and self._transport is not None and not self._reading_paused_by_calls:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        was_ready = self.state is _READY
        self._become(RpcConnectionState.CLOSED)
        self.close_reason = self.close_reason or exc
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
        self._writer.close()
        self._writable = True
        self._ended.set()
        pending, self._pending = self._pending, {}
        for callback in pending.values():
            try:
                callback(STATUS_DISCONNECTED, b"")
            except Exception:
                logger.exception("a callback of a lost connection failed")
        if was_ready:
            self._service.disconnected(self)
        elif self._on_ready is not None:
            self._on_ready(self)
        for listener in self.on_close:
            listener(self)

    # -- inside --------------------------------------------------------------------------------------------------

    def _become(self, state: RpcConnectionState) -> None:
        what = f"the connection of {self.identity.node_id} with {self.peer.node_id or 'an unknown peer'}"
        check_transition(TRANSITIONS, what, self.state, state)
        self.state = state
        self.closed = state is RpcConnectionState.CLOSED

    def _free_request_id(self) -> int:
        """Only after 2^32 requests, with one still unanswered."""
        request_id = self._next_request_id
        while request_id in self._pending:
            request_id = (request_id + 1) & 0xFFFFFFFF
        return request_id

    def _peer_too_slow(self) -> None:
        limit = self._writer.buffer_max_bytes
        self.fail(RpcError(f"{self.peer.node_id} reads too slowly: over {limit} bytes wait to be sent to it"))

    def fail(self, error: BaseException) -> None:
        """End the connection at once."""
        self.close_reason = self.close_reason or error
        if self._transport is not None:
            self._transport.abort()

    def _send_step(self, step: int, payload: bytes) -> None:
        self._send(KIND_NOTIFY, step, 0, (payload,))

    def _shake(self, kind: int, code: int, payload: bytes) -> None:
        if kind != KIND_NOTIFY:
            raise ProtocolError("the peer sent a request before the handshake was complete")
        if self.close_reason is not None:
            return  # refused by an earlier frame of the same chunk
        try:
            answer = self._handshake.receive(code, payload)
            if self._handshake.done and self._admit is not None:
                self._admit()
        except HandshakeRefused as error:
            if self._initiator:
                raise
            logger.warning("refused a connection: %s", error)
            self.close_reason = error
            self._send_step(handshake.REFUSED, str(error).encode())
            self.close()
            return
        if self._handshake.authenticated:
            self._decoder.allow(self._frame_size_max)
        if answer is not None:
            self._send_step(*answer)
        if self._handshake.done:
            if self._handshake_timer is not None:
                self._handshake_timer.cancel()
            self._become(_READY)
            self._operations = self._service.operations_of(self.peer.role)
            self._service.connected(self)
            if self._on_ready is not None:
                self._on_ready(self)

    def _refusal(self, what: str) -> AuthorizationError:
        return AuthorizationError(
            f"{self.peer.node_id} may not {what} at {self.identity.node_id}: its role {self.peer.role} does not "
            "permit it"
        )

    def _start_call(self, request_id: int | None, payload: bytes) -> None:
        method, given = decode_call(payload)
        declared = self._service.declared(method)
        handler = self._service.handler(method)
        if declared is None or handler is None:
            if request_id is not None:
                self.respond_error(request_id, RpcError(f"{self.identity.role} has no method {method[:100]}"))
            return
        if not self._service.may_call(self.peer.role, declared):
            self._refuse_call(request_id, self._refusal(f"call {method}"))
            return
        try:
            arguments = declared.check(given)
        except ProtocolError as error:
            self._refuse_call(request_id, error)
            return
        if declared.needs_caller:
            arguments[CALLER_NAME] = self
        serving = self._serve_call(request_id, method, handler, arguments, waits=not declared.notification)
        self._handlers.spawn(serving, f"rpc-{method}")
        if len(self._handlers) >= CALLS_UNDER_WAY_MAX and not self._initiator and self._transport is not None:
            self._reading_paused_by_calls = True
            self._transport.pause_reading()

    def _refuse_call(self, request_id: int | None, error: MagnetarError) -> None:
        logger.warning("refused a call of %s: %s", self.peer.node_id, error)
        if request_id is not None:
            self.respond_error(request_id, error)

    async def _serve_call(
        self, request_id: int | None, method: str, handler: Handler, arguments: dict[str, object], *, waits: bool
    ) -> None:
        try:
            answering = handler(**arguments)
            result = await answering if waits else None
            if request_id is not None:
                self.respond(request_id, STATUS_OK, (pack(result),))
        except MagnetarError as error:
            if request_id is not None:
                self.respond_error(request_id, error)
            else:
                logger.warning("notification %s failed: %s", method, error)
        except Exception as error:
            logger.exception("method %s failed", method)
            if request_id is not None:
                self.respond_error(request_id, RpcError(f"{method} failed at {self.identity.node_id}: {error!r}"))
        finally:
            if self._reading_paused_by_calls and len(self._handlers) <= CALLS_UNDER_WAY_MAX // 2:
                self._reading_paused_by_calls = False
                if self._transport is not None and not self.closed and self._writable:
                    self._transport.resume_reading()


async def rpc_connect(
    env: Environment,
    host: str,
    port: int,
    identity: Identity,
    keys: Keys,
    *,
    service: RpcService | None = None,
    expected_node_id: str | None = None,
    frame_size_max: int,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
) -> RpcConnection:
    """Connect, shake hands and return the ready connection.

    Raises RpcDisconnected when no process listens there or it ended, RpcTimeout, HandshakeRefused when the other end is
    not who it should be.
    """
    loop = asyncio.get_running_loop()
    shaken: asyncio.Future[None] = loop.create_future()

    def on_ready(connection: RpcConnection) -> None:
        if shaken.done():
            return
        if connection.state is _READY:
            shaken.set_result(None)
        elif isinstance(connection.close_reason, MagnetarError):
            shaken.set_exception(connection.close_reason)
        else:
            shaken.set_exception(RpcDisconnected(f"{host}:{port} closed the connection during the handshake"))

    connection = RpcConnection(
        env,
        identity,
        keys,
        service or RpcService(),
        initiator=True,
        frame_size_max=frame_size_max,
        expected_node_id=expected_node_id,
        on_ready=on_ready,
    )
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: connection, host, port)
            await shaken
    except TimeoutError:
        connection.close(RpcTimeout("gave up"))
        raise RpcTimeout(f"{host}:{port} did not answer within {timeout_s} s") from None
    except OSError as error:
        raise RpcDisconnected(f"cannot connect to {host}:{port}: {error}") from error
    except BaseException:
        connection.close(RpcDisconnected("gave up"))
        raise
    return connection
