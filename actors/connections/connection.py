"""One client's connection to a broker, in Pulsar's protocol.

`TRANSITIONS` has the states. In NEW only CONNECT is accepted. In AUTHENTICATING nothing is, while a provider looks who
the client is. In FORWARDED another broker answers; see `forwarding`.
When the broker has its maximum of connections, a new one is refused; see `limits.Refusals`. Closing lets go of
its producers and consumers at once; requests under way end unanswered.

Back-pressure: reading pauses while too many publishes of this connection, or too many bytes of publishes of the broker,
are in flight. It also pauses while the peer does not read its answers, and while a topic has taken more than its rate
allows. Where a topic's rate or the bytes of the broker are the reason, what was read before waits, too. These frames
are kept in order, at most one read buffer of them. Dispatch to its consumers pauses with a full write buffer
(`writable`). What is written within one turn of the loop leaves together.

What the commands do lies in families (`link.CommandFamily`), of which the broker's service hands in the list. Only
SEND is not looked up among them: it has a path of its own. Each handler is listed with what its command needs, and the
connection decides before it calls it, in the name of `principal`.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from functools import partial

from google.protobuf.message import Message

from ...protocol.bounds import check_command
from ...protocol.commands import BROKER_REQUEST_ID, encode, ping, pong, refusal
from ...protocol.errors import (
    AuthorizationError,
    FrameTooLarge,
    MagnetarError,
    NotAllowedError,
    ProtocolError,
    TooManyLookupRequestException,
    server_error_code,
)
from ...protocol.frames import FIELD_OF_TYPE, FRAME_PADDING_BYTES, Frame, FrameDecoder
from ...protocol.names import PROTOCOL_VERSION, SERVER_VERSION
from ...protocol.pulsar_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthChallenge,
    CommandAuthResponse,
    CommandConnect,
    CommandConnected,
    CommandError,
    CommandPing,
    CommandPong,
    CommandSend,
    FeatureFlags,
)
from ...runtime.sockets import probe_when_idle
from ...runtime.transitions import check_transition
from ..dispatch.consumer import AttachedConsumer
from ..rates.publish import Holder
from ..security.authentication import NONE, Proof, Verified
from ..security.credentials import DATA_MAX_BYTES, NOBODY, Credential, Peer, Principal
from ..topics.producer import AttachedProducer
from .link import Asked, ConnectionHost, EntryHandler, Guarded, MakeFamily, of_own
from .renewal import Renewal

logger = logging.getLogger(__name__)

FIRST_PING_S = 0.4
"""After reading has paused. A client that was read until then waits longer before it doubts."""
NEXT_PING_S = 1.0


class SignsOfLife:
    """Signs of life on a connection: those of the client, and those that the broker gives while it reads nothing.

    A client asks a broker for a sign of life with PING when it hears nothing for a second. It leaves a connection that
    does not answer soon, if a new one does. A broker that pauses reading does not see the PING: a topic has taken more
    than its rate allows, or the disks are slow and too many publishes wait. The client must not leave then. It would
    send all of these publishes again, and would get round the rate. So the broker sends PINGs of its own as long as it
    does not read.

    `unread` says whether the connection is not read on purpose, `write` sends bytes.
    """

    def __init__(self, unread: Callable[[], bool], write: Callable[[bytes], None]) -> None:
        self.heard = True
        """Whether the client has sent anything since the last tick."""
        self.silent_ticks = 0
        """Ticks without a sign of life."""
        self._unread = unread
        self._write = write
        self._timer: asyncio.TimerHandle | None = None

    def paused(self) -> None:
        """The connection is not read from now on. One timer follows, however often this is called."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FIRST_PING_S, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._unread():
            self._write(ping())
            self._timer = asyncio.get_running_loop().call_later(NEXT_PING_S, self._look)


SILENT_TICKS_MAX = 2
PROBE_IDLE_S = 10
"""After so many seconds without data the kernel asks the client's machine,"""
PROBE_INTERVAL_S = 5
"""so often,"""
PROBES = 3
"""and ends the connection after so many questions without an answer: what a lost client holds is free earlier."""
JOIN_BELOW_BYTES = 4096  # average part size below which one joined write beats a vectored one

_SEND = int(BaseCommand.SEND)
TRANSACTIONS_OFF = "Transactions are not enabled."
"""Pulsar's words where they are switched off."""
_OF_TRANSACTIONS = frozenset(
    {
        BaseCommand.TC_CLIENT_CONNECT_REQUEST,
        BaseCommand.NEW_TXN,
        BaseCommand.ADD_PARTITION_TO_TXN,
        BaseCommand.ADD_SUBSCRIPTION_TO_TXN,
        BaseCommand.END_TXN,
    }
)


class ServerConnectionState(enum.Enum):
    """See `TRANSITIONS`."""

    NEW = enum.auto()
    AUTHENTICATING = enum.auto()
    CONNECTED = enum.auto()
    FORWARDED = enum.auto()
    CLOSED = enum.auto()


TRANSITIONS: Mapping[ServerConnectionState, Collection[ServerConnectionState]] = {
    ServerConnectionState.NEW: (
        ServerConnectionState.AUTHENTICATING,  # CONNECT has come, and clients have to prove who they are
        ServerConnectionState.CONNECTED,  # CONNECT has come, and nobody asks who the client is
        ServerConnectionState.FORWARDED,  # the same, and it names another broker
        ServerConnectionState.CLOSED,  # as below, or there are too many connections, or CONNECT does not come in time
    ),
    ServerConnectionState.AUTHENTICATING: (
        ServerConnectionState.CONNECTED,  # it is known who the client is
        ServerConnectionState.FORWARDED,  # the same, and CONNECT names another broker, which will ask again
        ServerConnectionState.CLOSED,  # the credential is refused, or not checked in time, or as below
    ),
    # The peer's end, malformed or out-of-order commands, a frame above the limit, silence for two keep-alive periods,
    # a PING that was not answered in time, the end of the broker.
    ServerConnectionState.CONNECTED: (ServerConnectionState.CLOSED,),
    ServerConnectionState.FORWARDED: (ServerConnectionState.CLOSED,),  # either side's end, or the end of the broker
    ServerConnectionState.CLOSED: (),
}

STRANGER_FRAME_MAX_BYTES = 4 * DATA_MAX_BYTES
"""Of a frame of a client that is not known yet: CONNECT has two credentials at most."""
STRANGER_MAX_S = 20.0
"""So long it may take until the client is known."""
_CONNECTED = ServerConnectionState.CONNECTED
_BEFORE_CONNECTED = frozenset({ServerConnectionState.NEW, ServerConnectionState.AUTHENTICATING})
AUTH_REFRESH = b"PulsarAuthRefresh"
"""What AUTH_CHALLENGE has in it when it asks for another credential, as Pulsar's clients know it."""
_NOBODY = Verified(NOBODY, Credential(""))


class Pause(enum.Flag):
    """Why a connection is not read."""

    NONE = 0
    PUBLISHES = enum.auto()
    HELD = enum.auto()
    WRITES = enum.auto()


TLS_HANDSHAKE = 0x1603
"""The first two bytes of a TLS connection: a record of the handshake, of TLS 1 or SSL 3. As the beginning of a frame's
size they announce more than any frame has.
"""
TLS_ALERT = bytes((21, 3, 1, 0, 2, 2, 40))
"""A record with a fatal alert, handshake_failure, as RFC 5246 and RFC 8446 have it."""


class ServerConnection(asyncio.Protocol):
    """See the module. Made by a listening socket of the broker."""

    def __init__(self, host: ConnectionHost, families: Sequence[MakeFamily]) -> None:
        self.host = host
        self.state = ServerConnectionState.NEW
        self.closed = False
        """Whether the state is CLOSED: writing asks for this at each frame."""
        self._halted = False
        """Whether the next frame is not taken: the state is CLOSED, or somebody holds the connection."""
        self._waiting: list[Frame] = []
        """Frames that were read before somebody held the connection, and not taken since."""
        self.writable = True
        self.remote_address = ""
        self.client_version = ""
        self.principal: Principal = NOBODY
        """In whose name the client acts, once it is CONNECTED."""
        self._renewal: Renewal | None = None
        self.tls = False
        """Whether the client speaks TLS. What it showed is its transport's `peercert`."""
        self._ip = ""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(STRANGER_FRAME_MAX_BYTES)
        self._stranger: asyncio.TimerHandle | None = None
        """Ends the connection if it is not CONNECTED by then."""
        self._write_high_bytes = host.settings.connection_write_buffer_max_bytes
        self._publishes_max = host.settings.pending_publishes_max_per_connection
        self._publishes = 0
        self._pause = Pause.NONE
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._flush_scheduled = False
        self._holders: dict[Holder, None] = {}
        self._life = SignsOfLife(self._unread, self.write)
        self._alive: asyncio.Event | None = None
        self._requests = 0
        self._families = tuple(make(self) for make in families)
        self._handlers: dict[int, Guarded] = {
            BaseCommand.CONNECT: of_own(self._connect),
            BaseCommand.AUTH_RESPONSE: of_own(self._auth_response),
            BaseCommand.PING: of_own(self._ping),
            BaseCommand.PONG: of_own(_nothing_follows),
        }
        self._send: EntryHandler = _nobody_sends
        for family in self._families:
            self._handlers.update(family.handlers())
            self._send = family.entry_handlers().get(_SEND, self._send)

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if not self.host.accepts_connections:
            self._become(ServerConnectionState.CLOSED)
            transport.abort()  # type: ignore[attr-defined]
            return
        probe_when_idle(transport, PROBE_IDLE_S, PROBE_INTERVAL_S, PROBES)
        transport.set_write_buffer_limits(high=self._write_high_bytes)  # type: ignore[attr-defined]
        self.tls = transport.get_extra_info("sslcontext") is not None
        peer: tuple[object, ...] | str | None = transport.get_extra_info("peername")
        self.remote_address = f"/{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else "/unknown"
        self._ip = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        refused = self.host.connection_limits.enter(self._ip)
        if refused:
            self._become(ServerConnectionState.CLOSED)
            answer = refusal_of_connection(NotAllowedError(refused))
            self.host.connection_limits.refusals.begin(transport, answer)  # type: ignore[arg-type]
            return
        self.host.connections[self] = None
        self._stranger = self._loop.call_later(STRANGER_MAX_S, self._end_stranger)

    def _end_stranger(self) -> None:
        if self.state in _BEFORE_CONNECTED:
            self.close()

    def data_received(self, data: bytes) -> None:
        self._life.heard = True
        if self._alive is not None:
            self._alive.set()
        try:
            frames = self._decoder.feed(data)
            if self._waiting:
                self._waiting += frames
            else:
                self._take(frames)
        except Exception as error:
            self._fail(error)

    def _take(self, frames: Iterable[Frame]) -> None:
        """Carry out what the client sent, up to the frame behind which somebody holds the connection."""
        rest = iter(frames)
        for command, entry in rest:
            if self._halted:
                if not self.closed:
                    self._waiting = [Frame(command, entry), *rest]
                return
            kind = command.type
            if kind == _SEND and entry is not None and self.state is _CONNECTED:
                self._send(command.send, entry)
            else:
                self._handle(command)

    def _fail(self, error: Exception) -> None:
        """What the client sent cannot be carried out, or not even be decoded."""
        if self.state is ServerConnectionState.NEW and _is_tls(error):
            self._refuse_tls()
        elif isinstance(error, ProtocolError):
            logger.warning("the connection of %s is closed: %s", self.remote_address, error)
        else:
            what = "the connection of %s is closed after an unexpected error"
            logger.error(what, self.remote_address, exc_info=error)
        self.close()

    def _refuse_tls(self) -> None:
        """The client speaks TLS. Only an alert of TLS ends its attempt: after a mere close it would try again."""
        logger.warning(
            "%s speaks TLS on a port without it: its client has to use %s",
            self.remote_address,
            self.host.where_tls_is or "pulsar:// in place of pulsar+ssl://, because this broker has no TLS",
        )
        self.write(TLS_ALERT)

    def pause_writing(self) -> None:
        self.writable = False
        self._pause_reading(Pause.WRITES)

    def resume_writing(self) -> None:
        self._resume_reading(Pause.WRITES)
        self._become_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._let_go()

    # -- writing -------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send a frame. Nothing happens on a closed connection."""
        if self.closed:
            return
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def write_all(self, parts: list[bytes], size: int) -> None:
        """Send many frames, `size` bytes in total."""
        if self.closed:
            return
        self._outgoing += parts
        self._outgoing_bytes += size
        if self._outgoing_bytes >= self._write_high_bytes:
            self.writable = False
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.closed or self._transport is None or not self._outgoing:
            return
        outgoing, size = self._outgoing, self._outgoing_bytes
        self._outgoing, self._outgoing_bytes = [], 0
        if size < JOIN_BELOW_BYTES * len(outgoing):
            self._transport.write(b"".join(outgoing))
        else:
            self._transport.writelines(outgoing)
        if not self.writable and Pause.WRITES not in self._pause:
            self._become_writable()

    def _become_writable(self) -> None:
        if not self.closed:
            self.writable = True
            for family in self._families:
                family.wake()

    # -- answers -------------------------------------------------------------------------------------------------

    def error(self, request_id: int, error: BaseException, *, about: str = "") -> None:
        """Answer a request with ERROR. `about` names what the request was for, where the error's text does not."""
        self.write(encode(_error(request_id, error, about)))

    def start(
        self,
        coroutine: Coroutine[object, object, bytes | None],
        name: str,
        on_error: Callable[[MagnetarError], None],
    ) -> None:
        """Serve a request that has to wait: the coroutine's result is written, what it raises goes to `on_error`."""
        if self._requests >= self.host.settings.connection_requests_max:
            coroutine.close()
            on_error(
                TooManyLookupRequestException("too many requests are in flight on this connection: wait for answers")
            )
            return
        self._requests += 1
        serving = self._serve(coroutine, name, on_error)
        task = self.host.requests.spawn(serving, f"{name} of {self.remote_address}")
        task.add_done_callback(lambda _: coroutine.close())  # a broker that stops may cancel it before its first step

    async def _serve(
        self, coroutine: Coroutine[object, object, bytes | None], name: str, on_error: Callable[[MagnetarError], None]
    ) -> None:
        try:
            answer = await coroutine
            if answer is not None:
                self.write(answer)
        except MagnetarError as error:
            on_error(error)
        except Exception as error:
            logger.exception("%s of %s failed", name, self.remote_address)
            on_error(MagnetarError(f"internal error: {error!r}"))
        finally:
            self._requests -= 1

    # -- bounds --------------------------------------------------------------------------------------------------

    def publish_began(self, size_bytes: int) -> None:
        """One publish more is under way."""
        self._publishes += 1
        if self._publishes >= self._publishes_max:
            self._pause_reading(Pause.PUBLISHES)
        self.host.publish_budget.take(self, size_bytes)

    def publish_ended(self, size_bytes: int) -> None:
        """One publish less is under way."""
        self._publishes -= 1
        if (
            self._pause is not Pause.NONE
            and Pause.PUBLISHES in self._pause
            and self._publishes <= self._publishes_max // 2
        ):
            self._resume_reading(Pause.PUBLISHES)
        self.host.publish_budget.give(size_bytes)

    def hold(self, holder: Holder) -> None:
        """Take nothing more until all holders have released it."""
        self._holders[holder] = None
        self._halted = True
        self._pause_reading(Pause.HELD)

    def release(self, holder: Holder) -> None:
        """Go on with what was read before, unless another one holds it; then read on, unless it is held again."""
        self._holders.pop(holder, None)
        if self._holders or self.closed:
            return
        self._halted = False
        waiting, self._waiting = self._waiting, []
        try:
            self._take(waiting)
        except Exception as error:
            self._fail(error)
        if not self._halted:
            self._resume_reading(Pause.HELD)

    def _pause_reading(self, reason: Pause) -> None:
        if not self._pause and self._transport is not None and not self.closed:
            self._transport.pause_reading()
        self._pause |= reason
        if reason is not Pause.WRITES:
            self._life.paused()

    def _unread(self) -> bool:
        return not self.closed and bool(self._pause & (Pause.PUBLISHES | Pause.HELD))

    def _resume_reading(self, reason: Pause) -> None:
        if not self._pause:
            return
        self._pause &= ~reason
        if not self._pause and self._transport is not None and not self.closed:
            self._transport.resume_reading()

    # -- life ----------------------------------------------------------------------------------------------------

    def _become(self, state: ServerConnectionState) -> None:
        check_transition(TRANSITIONS, f"the connection of {self.remote_address}", self.state, state)
        self.state = state
        self.closed = state is ServerConnectionState.CLOSED
        self._halted = self.closed or bool(self._holders)

    def tick(self) -> None:
        """Called once per keep-alive period: asks a silent peer for a sign of life, closes one that gives none."""
        life = self._life
        if self.state in _BEFORE_CONNECTED:
            if life.silent_ticks:  # it had a whole period to say CONNECT, and to be authenticated
                self.close()
            life.silent_ticks = 1
        elif self.state is ServerConnectionState.FORWARDED:
            pass  # the client and the owner send their own PINGs
        elif self._unread():
            life.silent_ticks = 0
            self.write(ping())  # its own PINGs are not read now: this PING shows it that the broker is alive
        elif life.heard:
            life.heard = False
            life.silent_ticks = 0
            if self._decoder.buffered_bytes:
                self.write(ping())  # a large frame comes slowly, and the client's PINGs lie behind it
        elif life.silent_ticks + 1 >= SILENT_TICKS_MAX:
            logger.info("the connection of %s is closed: it did not answer a PING", self.remote_address)
            self.close()
        else:
            life.silent_ticks += 1
            self.write(ping())

    async def check_alive(self) -> bool:
        """Whether the peer answers a PING in time; if it does not, the connection is closed. One that is held cannot
        answer, and counts as alive."""
        if self.closed or self._holders:
            return not self.closed
        if self._alive is None:
            self._alive = asyncio.Event()
        alive = self._alive
        self.write(ping())
        try:
            async with asyncio.timeout(self.host.settings.connection_liveness_timeout_ms / 1000):
                await alive.wait()
        except TimeoutError:
            if not self._holders:
                self.close()
        finally:
            if self._alive is alive:
                self._alive = None
        return not self.closed

    def close(self) -> None:
        """Let go of everything and end the connection after what was written."""
        if self._transport is not None and not self.closed:
            self._flush()
            self._transport.close()
        self._let_go()

    def _let_go(self) -> None:
        if self.closed:
            return
        self._become(ServerConnectionState.CLOSED)
        self.writable = False
        self._outgoing.clear()
        self._waiting.clear()
        if self._alive is not None:
            self._alive.set()
        if self in self.host.connections:
            del self.host.connections[self]
            self.host.connection_limits.leave(self._ip)
        if self._stranger is not None:
            self._stranger.cancel()
        for holder in self._holders:
            holder.forget(self)
        if self._renewal is not None:
            self._renewal.close()
        for family in self._families:
            family.connection_closed()

    # -- what topics say -----------------------------------------------------------------------------------------

    def producer_closed(self, producer: AttachedProducer) -> None:
        """The topic has sent a producer away."""
        for family in self._families:
            family.producer_closed(producer)

    def consumer_closed(self, consumer: AttachedConsumer) -> None:
        """The topic has sent a consumer away."""
        for family in self._families:
            family.consumer_closed(consumer)

    # -- commands ------------------------------------------------------------------------------------------------

    def _handle(self, command: BaseCommand) -> None:
        kind = command.type
        if self.state is not _CONNECTED and kind != BaseCommand.CONNECT:
            raise ProtocolError(f"the client sent {FIELD_OF_TYPE[kind]} before it was CONNECTED")
        content = getattr(command, FIELD_OF_TYPE[kind])
        guarded = self._handlers.get(kind)
        if guarded is not None:
            try:
                check_command(kind, content)
                self.check(guarded.asks(content))
            except MagnetarError as error:
                if isinstance(error, AuthorizationError):
                    self.audit(FIELD_OF_TYPE[kind], str(getattr(content, "topic", "")), str(error))
                self._refuse(kind, content, error)
            else:
                guarded.handler(content)
        elif "request_id" in content.DESCRIPTOR.fields_by_name and FIELD_OF_TYPE[kind] not in _ANSWERS:
            if kind in _OF_TRANSACTIONS:
                self.error(content.request_id, NotAllowedError(TRANSACTIONS_OFF))
            else:
                self._refuse(kind, content, NotAllowedError(f"{FIELD_OF_TYPE[kind]} is not supported"))
        elif FIELD_OF_TYPE[kind] not in _ANSWERS:
            raise ProtocolError(f"the client sent the unexpected command {FIELD_OF_TYPE[kind]}")

    def _refuse(self, kind: int, content: Message, error: MagnetarError) -> None:
        """Answer a command with an error. CONNECT ends the connection. Raises ProtocolError when there is no answer."""
        if kind == BaseCommand.CONNECT:
            self.error(BROKER_REQUEST_ID, error)
            self.close()
            return
        if "request_id" not in content.DESCRIPTOR.fields_by_name:
            raise ProtocolError(f"the client sent a {FIELD_OF_TYPE[kind]} that is refused: {error}") from error
        self.write(refusal(kind, content.request_id, server_error_code(error), str(error)))  # type: ignore[attr-defined]

    def check(self, asked: Asked) -> None:
        """Raise AuthorizationError unless the client may do all that, ServiceUnitNotReady while nobody knows."""
        authorization = self.host.authorization
        if authorization.enabled:
            for need, scope in asked:
                authorization.check(self.principal, need, scope)

    def audit(self, action: str, target: str, refused: str = "") -> None:
        """The client did something to a target, or it was refused to it."""
        self.host.audit.tell(self.principal, self.remote_address, action, target, refused)

    def permits(self, asked: Asked) -> bool:
        """Whether the client may do all that."""
        authorization = self.host.authorization
        return all(authorization.permits(self.principal, need, scope) for need, scope in asked)

    def permissions_changed(self) -> None:
        """Other roles may do other things now."""
        for family in self._families:
            family.permissions_changed()

    def _connect(self, command: CommandConnect) -> None:
        if self.state is not ServerConnectionState.NEW:
            raise ProtocolError("the client sent CONNECT twice")
        if not self.host.authentication.enabled:
            self._admit(command, _NOBODY)
            return
        self._become(ServerConnectionState.AUTHENTICATING)
        self.host.requests.spawn(self._authenticate(command), f"authenticate {self.remote_address}")

    async def _authenticate(self, command: CommandConnect) -> None:
        try:
            verified = await self.host.authentication.connect(command, self._peer())
        except MagnetarError as error:
            self._send_away(error)
            return
        if self.closed:
            return
        try:
            self._admit(command, verified)
        except MagnetarError as error:
            self._fail(error)

    def _peer(self) -> Peer:
        transport = self._transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        return Peer(self.remote_address, certificate, lambda: self.closed)

    def _send_away(self, error: MagnetarError) -> None:
        """The client's credential is refused, or is over, or cannot be checked now."""
        if not self.closed:
            self.host.strangers.note(f"{self.remote_address} is not authenticated, and its connection ends: {error}")
            self.audit("connect", "", str(error))
            self.error(BROKER_REQUEST_ID, error)
            self.close()

    def _admit(self, command: CommandConnect, verified: Verified) -> None:
        """Answer CONNECT, or hand it on to the broker that it names."""
        if command.proxy_to_broker_url:
            try:
                target = self.host.forwards.target(command.proxy_to_broker_url)
            except MagnetarError as error:
                self.error(BROKER_REQUEST_ID, error)
                self.close()
                return
            if target is not None and self._transport is not None:
                if self._decoder.buffered_bytes:
                    raise ProtocolError("the client did not wait for CONNECTED")
                self._become(ServerConnectionState.FORWARDED)
                self.host.forwards.begin(target, command, self._transport, partial(self.connection_lost, None))
                return
        self._become(ServerConnectionState.CONNECTED)
        self.client_version = command.client_version
        self.principal = verified.principal
        if self._stranger is not None:
            self._stranger.cancel()
        self._decoder.allow(self.host.settings.max_message_size_bytes + FRAME_PADDING_BYTES)
        watchers = self.host.settings.topic_watchers_enabled
        self.write(
            encode(
                CommandConnected(
                    server_version=SERVER_VERSION,
                    protocol_version=max(min(command.protocol_version, PROTOCOL_VERSION), 0),
                    max_message_size=self.host.settings.max_message_size_bytes,
                    feature_flags=FeatureFlags(
                        supports_auth_refresh=self.host.authentication.enabled or None,
                        supports_topic_watchers=watchers,
                        supports_topic_watcher_reconcile=watchers,
                        supports_get_partitioned_metadata_without_auto_creation=True,
                    ),
                )
            )
        )
        if self.host.authentication.enabled:
            self.audit("connect", "")
            self._renewal = self._renewal_of(command, verified)

    def _renewal_of(self, command: CommandConnect, verified: Verified) -> Renewal:
        """A proxy's client is not asked for another credential: the connection ends with the one that it has."""
        ends_ms = [
            one.expires_at_ms for one in (verified.own, verified.original) if one and one.expires_at_ms is not None
        ]
        through_proxy = bool(verified.principal.original_role)
        return Renewal(
            self.host.env.clock,
            Credential(verified.own.role, min(ends_ms, default=None)),
            self.host.authentication.refresh_s,
            can_renew=command.feature_flags.supports_auth_refresh and not through_proxy,
            ask=partial(self._ask_for_credential, command.auth_method_name or NONE, command.protocol_version),
            end=self._send_away,
        )

    def _ask_for_credential(self, method: str, protocol_version: int) -> None:
        self.write(
            encode(
                CommandAuthChallenge(
                    server_version=SERVER_VERSION,
                    challenge=AuthData(auth_method_name=method, auth_data=AUTH_REFRESH),
                    protocol_version=protocol_version,
                )
            )
        )

    def _auth_response(self, command: CommandAuthResponse) -> None:
        renewal = self._renewal
        if renewal is None:
            raise ProtocolError("the client sent AUTH_RESPONSE, and nobody asked who it is")
        renewal.answered()
        proof = Proof(command.response.auth_method_name or NONE, command.response.auth_data)
        self.host.requests.spawn(self._renew(renewal, proof), f"authenticate {self.remote_address} again")

    async def _renew(self, renewal: Renewal, proof: Proof) -> None:
        try:
            renewal.renewed(await self.host.authentication.verify(proof, self._peer()))
        except MagnetarError as error:
            self._send_away(error)

    def _ping(self, command: CommandPing) -> None:
        self.write(pong())


# What peers answer to questions of ours (CLOSE_PRODUCER, CLOSE_CONSUMER): of no consequence.
_ANSWERS = frozenset({"success", "error"})


def refusal_of_connection(error: MagnetarError) -> bytes:
    """The frame that a client gets in place of CONNECTED."""
    return encode(_error(BROKER_REQUEST_ID, error))


def _error(request_id: int, error: BaseException, about: str = "") -> CommandError:
    text = f"{about}: {error}" if about else str(error)
    return CommandError(request_id=request_id, error=server_error_code(error), message=text)  # type: ignore[arg-type]


def _is_tls(error: Exception) -> bool:
    """Whether what a client began with is no frame, but a TLS handshake, which may come in pieces."""
    size = error.details.get("size_bytes") if isinstance(error, FrameTooLarge) else None
    return isinstance(size, int) and size >> 16 == TLS_HANDSHAKE


def _nobody_sends(command: CommandSend, entry: bytes) -> None:
    raise ProtocolError("the client sent a message, but this connection takes no producers")


def _nothing_follows(command: CommandPong) -> None:
    pass  # that something came is what counts
