"""One connection to a broker.

CONNECT has the client's credential. When that is over, the broker asks for another by AUTH_CHALLENGE.

`TRANSITIONS` has the states. In READY, requests are matched with their answers by request id. Commands for a producer
or consumer go to the one registered under its id. When the connection ends, every open request fails with
ConnectionClosed, and every registered endpoint is told once.

`client.core.liveness` says what is done about a broker that falls silent. Nothing that still comes on a closed
connection is read.
"""

import asyncio
import enum
import logging
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from google.protobuf.message import Message as WireMessage

from ...protocol.addresses import Address, address_text
from ...protocol.commands import BROKER_REQUEST_ID, encode, pong
from ...protocol.errors import (
    ConnectError,
    ConnectionClosed,
    ErrorGettingAuthenticationData,
    MagnetarError,
    ProtocolError,
    TlsError,
    exception_for_server_error,
)
from ...protocol.frames import FRAME_PADDING_BYTES, FrameDecoder
from ...protocol.names import CLIENT_VERSION, PROTOCOL_VERSION
from ...protocol.pulsar_pb2 import (
    AuthData,
    BaseCommand,
    CommandAuthResponse,
    CommandConnect,
    CommandMessage,
    CommandSendError,
    CommandSendReceipt,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
    FeatureFlags,
)
from ...protocol.topics import TopicName
from ...runtime.sockets import acknowledged_bytes, probe_when_idle, unacknowledged_s
from ...runtime.tls_contexts import BadTlsFiles, ClientContexts
from ...runtime.tls_failures import ENDED, explain
from ...runtime.transitions import check_transition
from .authentication import Authentication, SentCredential
from .configuration import ClientConfiguration
from .liveness import Liveness
from .service_url import format_address

if TYPE_CHECKING:
    from .registration import Registration

logger = logging.getLogger(__name__)

MESSAGE_SIZE_DEFAULT_BYTES = 5 * 1024 * 1024
HANDSHAKE_FRAME_MAX_BYTES = 64 * 1024 * 1024
PROBE_IDLE_S = 3
"""After so many seconds without data the kernel asks the broker's machine,"""
PROBE_INTERVAL_S = 1
"""so often,"""
PROBES = 3
"""and ends the connection after so many questions without an answer."""


class ProducerEndpoint(Protocol):
    """A producer of one partition, as its connection uses it."""

    @property
    def topic(self) -> TopicName: ...
    @property
    def registration(self) -> "Registration[ProducerEndpoint]": ...
    @property
    def awaited_sequence_id(self) -> int | None:
        """Of the oldest entry without a receipt; None without one."""
        ...

    def receipt(self, command: CommandSendReceipt) -> None: ...
    def send_error(self, command: CommandSendError) -> None: ...


class ConsumerEndpoint(Protocol):
    """A consumer of one partition, as its connection uses it."""

    active_changed: Callable[[bool], None] | None
    """Told whether the consumer is the active one of a Failover subscription; None if nobody wants to know."""

    @property
    def topic(self) -> TopicName: ...
    @property
    def registration(self) -> "Registration[ConsumerEndpoint]": ...
    def message(self, command: CommandMessage, entry: bytes) -> None: ...


class WatcherEndpoint(Protocol):
    """A topic list watcher. It hears of lists and updates in the order in which the broker sent them."""

    def listed(self, answer: CommandWatchTopicListSuccess) -> None: ...
    def updated(self, update: CommandWatchTopicUpdate) -> None: ...
    def connection_lost(self, connection: "ClientConnection", reason: MagnetarError) -> None: ...


_ANSWERS = {
    BaseCommand.SUCCESS: "success",
    BaseCommand.PRODUCER_SUCCESS: "producer_success",
    BaseCommand.PARTITIONED_METADATA_RESPONSE: "partitionMetadataResponse",
    BaseCommand.LOOKUP_RESPONSE: "lookupTopicResponse",
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: "getLastMessageIdResponse",
    BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: "getTopicsOfNamespaceResponse",
    BaseCommand.CONSUMER_STATS_RESPONSE: "consumerStatsResponse",
    BaseCommand.ACK_RESPONSE: "ackResponse",
    BaseCommand.WATCH_TOPIC_LIST_SUCCESS: "watchTopicListSuccess",
    BaseCommand.GET_SCHEMA_RESPONSE: "getSchemaResponse",
    BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE: "getOrCreateSchemaResponse",
}

Answer = TypeVar("Answer", bound=WireMessage)
Answering = asyncio.Future[WireMessage]


class PendingRequests:
    """The requests under way on one connection, by request id: each gets one answer, or one error.

    A request has time-outs. One of a producer that waits for access loses them when the broker says so. What any other
    broker could answer, too, fails early when this one is silent.
    """

    def __init__(self) -> None:
        self._futures: dict[int, Answering] = {}
        self._limits: dict[int, tuple[asyncio.Timeout, ...]] = {}
        self._anywhere: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def begin(self, request_id: int, answer: Answering, *, anywhere: bool) -> None:
        """A request is about to be sent. `anywhere`: another broker could answer it as well."""
        self._futures[request_id] = answer
        if anywhere:
            self._anywhere[request_id] = None

    def limit(self, request_id: int, limits: tuple[asyncio.Timeout, ...]) -> None:
        """The time-outs that a request has."""
        self._limits[request_id] = limits

    def end(self, request_id: int) -> None:
        """Nobody waits for the answer any longer."""
        self._futures.pop(request_id, None)
        self._limits.pop(request_id, None)
        self._anywhere.pop(request_id, None)

    def put_off(self, request_id: int) -> None:
        """The answer may take for ever from now on."""
        for limit in self._limits.get(request_id, ()):
            limit.reschedule(None)
        if request_id in self._limits:
            self._limits[request_id] = ()

    @property
    def due(self) -> bool:
        """Whether an answer is awaited that has a time-out."""
        return any(self._limits.values())

    def answer(self, request_id: int, answer: WireMessage) -> None:
        """What the broker answered. Nothing happens if nobody waits for it."""
        future = self._futures.get(request_id)
        if future is not None and not future.done():
            future.set_result(answer)

    def fail(self, request_id: int, error: MagnetarError) -> None:
        """Why a request fails. Nothing happens if nobody waits for it."""
        future = self._futures.get(request_id)
        if future is not None and not future.done():
            future.set_exception(error)

    def fail_anywhere(self, error: MagnetarError) -> None:
        """What other brokers could answer fails."""
        for request_id in list(self._anywhere):
            self.fail(request_id, error)

    def fail_all(self, error: MagnetarError) -> None:
        for request_id in list(self._futures):
            self.fail(request_id, error)


class ConnectionState(enum.Enum):
    """See `TRANSITIONS`."""

    CONNECTING = enum.auto()
    READY = enum.auto()
    CLOSED = enum.auto()


TRANSITIONS: Mapping[ConnectionState, Collection[ConnectionState]] = {
    ConnectionState.CONNECTING: (
        ConnectionState.READY,  # CONNECTED has come, the answer to CONNECT
        ConnectionState.CLOSED,  # the peer is gone, or refuses, or the caller gave up
    ),
    ConnectionState.READY: (ConnectionState.CLOSED,),  # by either side
    ConnectionState.CLOSED: (),
}


class ClientConnection(asyncio.Protocol):
    """See the module. Made by `connect`; all methods are for the loop's thread."""

    def __init__(
        self,
        configuration: ClientConfiguration,
        address: Address,
        proxied: Address | None,
        authentication: Authentication | None = None,
        credential: SentCredential | None = None,
        *,
        tls: bool = False,
    ) -> None:
        self.address = address
        self.tls = tls
        self.url = format_address(address, tls=tls)
        """For messages."""
        self._authentication = authentication
        self._credential = credential
        self._renewing: asyncio.Task[None] | None = None
        self.producers: dict[int, ProducerEndpoint] = {}
        self.consumers: dict[int, ConsumerEndpoint] = {}
        self.watchers: dict[int, WatcherEndpoint] = {}
        self.message_size_max_bytes = MESSAGE_SIZE_DEFAULT_BYTES
        self.state = ConnectionState.CONNECTING
        self.closed = False
        """Whether the state is CLOSED: writing asks for this at each frame."""
        self._configuration = configuration
        self.proxied = proxied
        """The broker behind the proxy at `address`."""
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[FeatureFlags] = self._loop.create_future()
        """Done when the broker has answered CONNECT, with what it can do. Raises ConnectError."""
        self._decoder = FrameDecoder(HANDSHAKE_FRAME_MAX_BYTES)
        self.requests = PendingRequests()
        self._request_id = 0
        self._transport: asyncio.Transport | None = None
        self.heard_at = self._loop.time()
        """When something came last."""
        self.chunks = 0
        """How often something came."""
        self.liveness = Liveness(
            self, self._loop, configuration.keep_alive_interval_s, configuration.silence_timeout_ms / 1000
        )
        self._handlers: dict[int, Callable[[BaseCommand, bytes | None], None]] = {
            BaseCommand.SEND_RECEIPT: self._on_receipt,
            BaseCommand.MESSAGE: self._on_message,
            BaseCommand.CONNECTED: self._on_connected,
            BaseCommand.ERROR: self._on_error,
            BaseCommand.SEND_ERROR: self._on_send_error,
            BaseCommand.CLOSE_PRODUCER: self._on_close_producer,
            BaseCommand.CLOSE_CONSUMER: self._on_close_consumer,
            BaseCommand.ACTIVE_CONSUMER_CHANGE: self._on_active_consumer_change,
            BaseCommand.REACHED_END_OF_TOPIC: self._on_end_of_topic,
            BaseCommand.WATCH_TOPIC_UPDATE: self._on_topic_update,
            BaseCommand.PING: self._on_ping,
            BaseCommand.PONG: self._on_pong,
            BaseCommand.AUTH_CHALLENGE: self._on_auth_challenge,
        }
        self._handlers.update(dict.fromkeys(_ANSWERS, self.on_answer))
        self._handlers[BaseCommand.WATCH_TOPIC_LIST_SUCCESS] = self._on_topic_list

    # ---- For those who use it ----

    def next_request_id(self) -> int:
        """A request id that this connection has not used."""
        self._request_id += 1
        return self._request_id

    async def request(
        self,
        command: WireMessage,
        request_id: int,
        timeout_s: float,
        answer_type: type[Answer],
        deadline: asyncio.Timeout | None = None,
        *,
        anywhere: bool = False,
    ) -> Answer:
        """Send `command`, which carries `request_id`, and return the answer with that id.

        `anywhere`: another broker could answer as well, so it fails early if this one is silent.

        The broker may answer PRODUCER first with the word that the producer waits for access. From then on there is no
        time-out, and no `deadline` of the caller.

        Raises the broker's error, ConnectionClosed, ProtocolError (the answer to something else; the connection is
        closed then), or TimeoutError.
        """
        if self.closed:
            raise ConnectionClosed(f"the connection to {self.url} is closed")
        requests, future = self.requests, cast(Answering, self._loop.create_future())
        requests.begin(request_id, future, anywhere=anywhere)
        try:
            self.write(encode(command))
            async with asyncio.timeout(timeout_s) as limit:
                requests.limit(request_id, (limit,) if deadline is None else (limit, deadline))
                answer = await future
        finally:
            requests.end(request_id)
        if not isinstance(answer, answer_type):
            error = ProtocolError(
                f"the broker answered {type(command).__name__} with {type(answer).__name__}, which does not fit"
            )
            self.close(error)
            raise error
        return answer

    @property
    def features(self) -> FeatureFlags:
        """What the broker can do, as it said when it answered CONNECT."""
        return self.ready.result()

    @property
    def broker(self) -> Address:
        """The broker's own address, behind a proxy, too."""
        return self.proxied or self.address

    def unacknowledged_s(self) -> float:
        """See `runtime.sockets`."""
        return unacknowledged_s(self._transport)

    def acknowledged_bytes(self) -> int | None:
        """See `runtime.sockets`."""
        return acknowledged_bytes(self._transport)

    def socket_number(self) -> int:
        """The file descriptor, −1 when there is none."""
        socket = None if self.closed or self._transport is None else self._transport.get_extra_info("socket")
        return -1 if socket is None else socket.fileno()

    def write(self, data: bytes) -> None:
        """Send one frame; without effect on a closed connection."""
        if self._transport is not None and not self.closed:
            if self.liveness.resting:
                self.liveness.expect()
            self._transport.write(data)

    def writelines(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send many frames at once; without effect on a closed connection."""
        if self._transport is not None and not self.closed:
            if self.liveness.resting:
                self.liveness.expect()
            if self.tls:
                self._transport.write(b"".join(parts))  # each write is a record of TLS, with its own head and seal
            else:
                self._transport.writelines(parts)

    def close(self, reason: MagnetarError | None = None) -> None:
        """End the connection; every request and endpoint on it gets `reason`."""
        if self.closed:
            return
        self._become(ConnectionState.CLOSED)
        self.closed = True
        reason = reason or ConnectionClosed(f"the connection to {self.url} was closed")
        self.liveness.end()
        if self._renewing is not None:
            self._renewing.cancel()
        if self._transport is not None:
            # Not `close`, which would first wait for a peer that may have stopped reading.
            self._transport.abort()
        if not self.ready.done():
            self.ready.set_exception(ConnectError(str(reason)))
        self.requests.fail_all(ConnectionClosed(str(reason)))
        registrations = [one.registration for one in (*self.producers.values(), *self.consumers.values())]
        watchers = [*self.watchers.values()]
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        for registration in registrations:
            registration.lost(self)
        for watcher in watchers:
            watcher.connection_lost(self, reason)

    def _become(self, state: ConnectionState) -> None:
        check_transition(TRANSITIONS, f"the connection to {self.url}", self.state, state)
        self.state = state

    # ---- asyncio.Protocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        probe_when_idle(transport, PROBE_IDLE_S, PROBE_INTERVAL_S, PROBES)
        command = CommandConnect(client_version=CLIENT_VERSION, protocol_version=PROTOCOL_VERSION)
        if self._credential is not None:
            command.auth_method_name, command.auth_data = self._credential
            command.feature_flags.supports_auth_refresh = True
            self._credential = None
        if self.proxied is not None:
            command.proxy_to_broker_url = address_text(self.proxied)  # as Pulsar's clients write it
        self.write(encode(command))

    def connection_lost(self, exc: Exception | None) -> None:
        detail = f": {exc}" if exc else ""
        if self.tls and self.state is ConnectionState.CONNECTING and not self.ready.done():
            # With TLS 1.3 a broker refuses the client's certificate when the client's handshake is done.
            if isinstance(exc, ssl.SSLError):
                self.ready.set_exception(TlsError(f"cannot connect to {self.url}: {explain(exc, self.address[0])}"))
            else:
                self.ready.set_exception(ConnectError(f"cannot connect to {self.url}: {ENDED}"))
        self.close(ConnectionClosed(f"the broker at {self.url} closed the connection{detail}"))

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self.chunks += 1
        try:
            for command, entry in self._decoder.feed(data):
                handler = self._handlers.get(command.type)
                if handler is not None:
                    handler(command, entry)
        except MagnetarError as error:
            logger.warning("%s sent a malformed frame: %s", self.url, error)
            self.close(error)

    # ---- Frames ----

    def _on_connected(self, command: BaseCommand, entry: bytes | None) -> None:
        if command.connected.max_message_size > 0:
            self.message_size_max_bytes = command.connected.max_message_size
        if not self._decoder.buffered_bytes:  # no frame has begun that the old decoder would have to end
            self._decoder = FrameDecoder(self.message_size_max_bytes + FRAME_PADDING_BYTES)
        if not self.ready.done():
            self._become(ConnectionState.READY)
            self.liveness.begin()
            self.ready.set_result(command.connected.feature_flags)

    def _on_auth_challenge(self, command: BaseCommand, entry: bytes | None) -> None:
        """The credential is over. A second question while the first is being answered needs no answer of its own."""
        if self._renewing is None or self._renewing.done():
            self._renewing = self._loop.create_task(self._renew(), name="get another credential")

    async def _renew(self) -> None:
        authentication = self._authentication
        try:
            found = await authentication.credential() if authentication is not None else None
            if found is None:
                raise ErrorGettingAuthenticationData("the broker asks for a credential, and the client has none")
        except MagnetarError as error:
            logger.warning("the credential for %s cannot be renewed: %s", format_address(self.address), error)
            return  # the broker ends the connection when its time is over
        self.write(
            encode(
                CommandAuthResponse(
                    client_version=CLIENT_VERSION,
                    response=AuthData(auth_method_name=found.method, auth_data=found.data),
                    protocol_version=PROTOCOL_VERSION,
                )
            )
        )

    def _on_ping(self, command: BaseCommand, entry: bytes | None) -> None:
        self.write(pong())

    def on_answer(self, command: BaseCommand, entry: bytes | None) -> None:
        """An answer to a request of this client: it goes to the one that waits for it."""
        answer = getattr(command, _ANSWERS[command.type])
        if command.type == BaseCommand.PRODUCER_SUCCESS and not answer.producer_ready:
            self.requests.put_off(answer.request_id)
            return
        self.requests.answer(answer.request_id, answer)

    def _on_error(self, command: BaseCommand, entry: bytes | None) -> None:
        error = exception_for_server_error(command.error.error, command.error.message)
        if not self.ready.done():
            self.ready.set_exception(error)
        elif command.error.request_id == BROKER_REQUEST_ID:  # about the connection, which the broker ends
            logger.warning("%s ends the connection: %s", self.url, error)
            self.close(error)
        else:
            self.requests.fail(command.error.request_id, error)

    def _on_receipt(self, command: BaseCommand, entry: bytes | None) -> None:
        producer = self.producers.get(command.send_receipt.producer_id)
        if producer is not None:
            producer.receipt(command.send_receipt)

    def _on_send_error(self, command: BaseCommand, entry: bytes | None) -> None:
        producer = self.producers.get(command.send_error.producer_id)
        if producer is not None:
            producer.send_error(command.send_error)

    def _on_message(self, command: BaseCommand, entry: bytes | None) -> None:
        if entry is None:
            raise ProtocolError("a MESSAGE holds no entry")
        consumer = self.consumers.get(command.message.consumer_id)
        if consumer is not None:
            consumer.message(command.message, entry)

    def _on_close_producer(self, command: BaseCommand, entry: bytes | None) -> None:
        producer = self.producers.pop(command.close_producer.producer_id, None)
        if producer is not None:
            producer.registration.lost(self)

    def _on_close_consumer(self, command: BaseCommand, entry: bytes | None) -> None:
        consumer = self.consumers.pop(command.close_consumer.consumer_id, None)
        if consumer is not None:
            consumer.registration.lost(self)

    def _on_active_consumer_change(self, command: BaseCommand, entry: bytes | None) -> None:
        change = command.active_consumer_change
        consumer = self.consumers.get(change.consumer_id)
        if consumer is not None and consumer.active_changed is not None:
            consumer.active_changed(change.is_active)

    def _on_end_of_topic(self, command: BaseCommand, entry: bytes | None) -> None:
        consumer = self.consumers.get(command.reachedEndOfTopic.consumer_id)
        if consumer is not None:
            consumer.registration.at_end = True

    def _on_topic_list(self, command: BaseCommand, entry: bytes | None) -> None:
        """An answer, too. The watcher has it before the updates that follow, whenever its caller goes on."""
        watcher = self.watchers.get(command.watchTopicListSuccess.watcher_id)
        if watcher is not None:
            watcher.listed(command.watchTopicListSuccess)
        self.on_answer(command, entry)

    def _on_topic_update(self, command: BaseCommand, entry: bytes | None) -> None:
        watcher = self.watchers.get(command.watchTopicUpdate.watcher_id)
        if watcher is not None:
            watcher.updated(command.watchTopicUpdate)

    def _on_pong(self, command: BaseCommand, entry: bytes | None) -> None:
        self.liveness.ponged()


async def connect(
    configuration: ClientConfiguration,
    address: Address,
    broker: Address | None = None,
    authentication: Authentication | None = None,
    contexts: ClientContexts | None = None,
) -> ClientConnection:
    """A ready connection to `address`, behind which a proxy leads to `broker` if that is given.

    With `contexts` it speaks TLS. Raises ConnectError, TlsError, AuthenticationError, ErrorGettingAuthenticationData.
    """
    loop = asyncio.get_running_loop()
    connection: ClientConnection | None = None
    url = format_address(address, tls=contexts is not None)
    context, name = None, None
    try:
        credential = await authentication.credential() if authentication is not None else None
        async with asyncio.timeout(configuration.connection_timeout_ms / 1000):
            if contexts is not None:
                context, name = await contexts.newest(), address[0]
            _, connection = await loop.create_connection(
                lambda: ClientConnection(
                    configuration, address, broker, authentication, credential, tls=contexts is not None
                ),
                *address,
                ssl=context,
                server_hostname=name,
            )
            await connection.ready
    except BadTlsFiles as error:
        raise TlsError(f"cannot connect to {url}: {error}") from None
    except ssl.SSLError as error:
        raise TlsError(f"cannot connect to {url}: {explain(error, address[0])}") from error
    except (OSError, TimeoutError) as error:
        reason = ConnectError(f"cannot connect to {url}: {str(error) or 'no answer in time'}")
        if connection is not None:
            connection.close(reason)
        raise reason from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection
