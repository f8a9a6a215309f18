"""How a producer or consumer is registered at the broker of its topic: on one connection after the other.

`TRANSITIONS` has the states. `connection` is set in READY; after FAILED it may still be there, so that closing can tell
its broker. A READY registration that loses its connection is made again by a task of its own, until that succeeds. The
first reason of an end is kept as `failure`, and everything asked for later raises it.

A refusal ends the first registration. Later it does not: a topic that was deleted may be created again, a permission
given back, a limit raised. The official client goes on in all these cases, too. Only the owner knows refusals that are
final even then; `ends` asks it.

Each attempt uses a new id, so that late answers to an earlier attempt are ignored. An attempt whose outcome is unknown
is withdrawn at the broker, which would otherwise hold the name or the subscription against the next one.
"""

import asyncio
import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message as WireMessage

from ...protocol.commands import encode
from ...protocol.errors import (
    AlreadyClosed,
    ConnectionClosed,
    ConsumerBusy,
    MagnetarError,
    ProducerBusy,
    UnknownError,
    is_retriable,
)
from ...protocol.pulsar_pb2 import CommandSuccess
from ...protocol.topics import TopicName
from ...runtime.transitions import check_transition
from .connection import Answer, ClientConnection
from .context import Core

logger = logging.getLogger(__name__)


class RegistrationState(enum.Enum):
    """See `TRANSITIONS`."""

    CONNECTING = enum.auto()
    READY = enum.auto()
    FAILED = enum.auto()
    CLOSED = enum.auto()


TRANSITIONS: Mapping[RegistrationState, Collection[RegistrationState]] = {
    RegistrationState.CONNECTING: (
        RegistrationState.READY,  # the broker has answered PRODUCER or SUBSCRIBE
        RegistrationState.FAILED,  # the broker's refusal is final: see `_is_final`
        RegistrationState.CLOSED,  # by the application, or because this is the child of a fork
    ),
    RegistrationState.READY: (
        RegistrationState.CONNECTING,  # the connection ended, the broker closed it, or it refused an entry for now
        RegistrationState.FAILED,  # the broker refused an entry finally: topic terminated, producer fenced
        RegistrationState.CLOSED,  # as above
    ),
    RegistrationState.FAILED: (),
    RegistrationState.CLOSED: (),
}


E = TypeVar("E")
"""What a connection keeps: the endpoint of a producer or of a consumer."""


@dataclass(frozen=True)
class RegistrationKind(Generic[E]):
    """What differs between producers and consumers."""

    name: str
    registers: str
    """The verb for an error's text."""
    endpoints: Callable[[ClientConnection], dict[int, E]]
    """Where a connection keeps them by id."""
    close_command: Callable[[int, int], WireMessage]
    """From an id and a request id."""


class Registration(Generic[E]):
    """See the module. All methods are for the loop's thread."""

    def __init__(
        self,
        core: Core,
        topic: TopicName,
        kind: RegistrationKind[E],
        endpoint: E,
        register: Callable[[], Awaitable[None]],
        failed: Callable[[MagnetarError], None],
        ends: Callable[[MagnetarError], bool],
    ) -> None:
        """`register` makes one attempt, with `attempt`. `failed` is told that the next one was refused finally.

        `ends` says whether a refusal that is not temporary ends what was registered before.
        """
        self.state = RegistrationState.CONNECTING
        self.connection: ClientConnection | None = None
        self.id = -1
        """Of the last successful attempt."""
        self.failure: MagnetarError | None = None
        """Why it is FAILED or CLOSED."""
        self._core = core
        self._topic = topic.full
        self._kind = kind
        self._endpoint = endpoint
        self._register = register
        self._failed = failed
        self._ends = ends
        self._refused = False
        """Whether the attempts since the last connection were refused, and a warning says so."""
        self._asking: tuple[ClientConnection, int] | None = None
        """Where an attempt waits for the broker's answer, and its request id."""
        self._deadline: asyncio.Timeout | None = None
        """Of the first registration."""
        self.at_end = False
        """Of a consumer: whether its broker says that the topic was terminated and everything is acknowledged."""
        self._reconnecting = False
        """Whether the task of `reconnect` is under way."""
        self._ready_waiters: deque[asyncio.Future[None]] = deque()
        """Callers of `ready_connection`, until it is READY or has ended."""

    def _become(self, state: RegistrationState) -> None:
        check_transition(TRANSITIONS, f"the {self._kind.name} on {self._topic}", self.state, state)
        self.state = state

    def check(self) -> None:
        """Raise why it has ended, if it has."""
        if self.failure is not None:
            raise self.failure

    async def open(self, what: str) -> None:
        """Register for the first time. Raises the broker's refusal, ConnectError or Timeout.

        A producer that waits for exclusive access waits without a time-out, also when its topic moves meanwhile.
        """
        self._deadline = asyncio.timeout(self._core.timeout_s)
        try:
            await self._core.lookup.retry(what, self._register, self._deadline)
        finally:
            self._deadline = None

    async def attempt(
        self,
        command: Callable[[int, int], WireMessage],
        answer_type: type[Answer],
        then: Callable[[ClientConnection, int], Awaitable[None]] | None = None,
    ) -> Answer:
        """Register with the broker that has the topic now, and return its answer.

        `command` gets the new id and a request id. `then` gets the connection and the new id, once the broker has
        answered; it may ask for more (`ask`), and the attempt fails with it. Raises the broker's refusal, `failure`,
        ConnectError, ConnectionClosed or TimeoutError.
        """
        connection = await self._core.lookup.connection(self._topic)
        self.check()
        endpoints = self._kind.endpoints(connection)
        endpoint_id, request_id = self._core.next_id(), connection.next_request_id()
        endpoints[endpoint_id] = self._endpoint
        registered = False
        try:
            answer = await self.ask(connection, command(endpoint_id, request_id), request_id, answer_type)
            registered = True
            if then is not None and endpoint_id in endpoints and self.failure is None:
                await then(connection, endpoint_id)
        except BaseException as error:
            left = endpoints.pop(endpoint_id, None) is not None
            unknown = isinstance(error, TimeoutError | asyncio.CancelledError) or self.failure is not None
            if unknown or (registered and left and not connection.closed):
                # The broker may still register it, and would then hold the name against the next attempt.
                self._withdraw(connection, endpoint_id)
            raise
        if endpoint_id not in endpoints:
            during = f"while the {self._kind.name} {self._kind.registers}"
            raise ConnectionClosed(f"the connection to the broker of {self._topic} ended {during}")
        if self.failure is not None:
            endpoints.pop(endpoint_id, None)
            self._withdraw(connection, endpoint_id)
            raise self.failure
        self._become(RegistrationState.READY)
        self.connection = connection
        self.id = endpoint_id
        self._refused = False
        self._wake_waiters()
        return answer

    async def ask(
        self, connection: ClientConnection, asked: WireMessage, request_id: int, answer_type: type[Answer]
    ) -> Answer:
        """Send a request of an attempt. It fails at once when the broker sends the endpoint away meanwhile."""
        self._asking = (connection, request_id)
        try:
            return await connection.request(asked, request_id, self._core.timeout_s, answer_type, self._deadline)
        finally:
            self._asking = None

    def _withdraw(self, connection: ClientConnection, endpoint_id: int) -> None:
        connection.write(encode(self._kind.close_command(endpoint_id, connection.next_request_id())))

    async def ready_connection(self) -> ClientConnection:
        """The connection that it lives on, as soon as it is READY. Raises why it never will."""
        while (connection := self.connection) is None:
            self.check()
            waiter: asyncio.Future[None] = self._core.loop.create_future()
            self._ready_waiters.append(waiter)
            await waiter
        return connection

    def _wake_waiters(self) -> None:
        while self._ready_waiters:
            waiter = self._ready_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    def lost(self, connection: ClientConnection) -> None:
        """A connection has ended, or the broker closed this endpoint on it: go on with another one."""
        if self._asking is not None and self._asking[0] is connection:
            self._stop_asking(ConnectionClosed(f"the broker sent the {self._kind.name} on {self._topic} away"))
        if connection is self.connection:
            self.let_go()
            self.reconnect()

    def _stop_asking(self, error: MagnetarError) -> None:
        """An attempt waits in vain, perhaps without a time-out: it fails with `error`."""
        if self._asking is not None:
            connection, request_id = self._asking
            connection.requests.fail(request_id, error)

    def let_go(self) -> ClientConnection | None:
        """Leave the connection, without a word to its broker. Returns it if the broker can still be told."""
        connection, self.connection = self.connection, None
        self.at_end = False
        if self.state is RegistrationState.READY:
            self._become(RegistrationState.CONNECTING)
        if connection is None or connection.closed:
            return None
        self._kind.endpoints(connection).pop(self.id, None)
        return connection

    def reconnect(self, first: Callable[[], Awaitable[None]] | None = None) -> None:
        """Register again, in a task, as long as it is CONNECTING. The task begins with `first`."""
        if self.state is RegistrationState.CONNECTING and not self._reconnecting:
            self._reconnecting = True
            self._core.tasks.spawn(self._reconnect_until_ready(first), f"reconnect {self._kind.name} on {self._topic}")

    async def _reconnect_until_ready(self, first: Callable[[], Awaitable[None]] | None) -> None:
        def wanted() -> bool:
            return self.state is RegistrationState.CONNECTING

        try:
            if first is not None:
                await first()
            what = f"{self._kind.name} on {self._topic}"
            await self._core.reconnect(what, self._register, wanted, self._is_final)
        except Exception as error:  # of any kind: waiting callers must get it
            if self.failure is not None:
                return  # closed meanwhile
            logger.warning("the %s on %s has failed: %r", self._kind.name, self._topic, error)
            self._failed(error if isinstance(error, MagnetarError) else UnknownError(repr(error)))
        finally:
            self._reconnecting = False

    def _is_final(self, error: MagnetarError) -> bool:
        # Busy: our own former registration may not have been noticed as gone yet.
        if is_retriable(error) or isinstance(error, ProducerBusy | ConsumerBusy):
            return False
        if self.id < 0 or isinstance(error, AlreadyClosed) or self._ends(error):
            return True
        if not self._refused:
            self._refused = True
            logger.warning(
                "the broker refuses the %s on %s, which goes on trying: %s", self._kind.name, self._topic, error
            )
        return False

    def end(self, state: RegistrationState, error: MagnetarError) -> MagnetarError:
        """End, as FAILED or CLOSED. Returns why it ended: an earlier reason stays."""
        if self.failure is None:
            self._end(state, error)
            self._wake_waiters()
            return error
        return self.failure

    def _end(self, state: RegistrationState, error: MagnetarError) -> None:
        self._become(state)
        self.failure = error
        self._stop_asking(error)

    def inherited(self, error: MagnetarError) -> None:
        """See `forking`: the connection belongs to the parent process."""
        if self.failure is None:
            self._end(RegistrationState.CLOSED, error)  # no caller wakes: the parent's threads are not here
        self.failure = error
        self.connection = None

    async def close_on_broker(self, connection: ClientConnection) -> None:
        """Have the broker close what was registered on `connection`. Never raises the broker's errors."""
        request_id = connection.next_request_id()
        command = self._kind.close_command(self.id, request_id)
        try:
            await connection.request(command, request_id, self._core.timeout_s, CommandSuccess)
        except (MagnetarError, TimeoutError) as error:
            logger.info(
                "the broker did not confirm that the %s on %s is closed: %s", self._kind.name, self._topic, error
            )

    def leave_at_once(self, connection: ClientConnection) -> None:
        """Tell the broker as `close_on_broker` does, and do not wait for the answer."""
        self._withdraw(connection, self.id)
