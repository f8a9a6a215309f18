"""Finding brokers: one that answers, and the owner of a topic.

Any broker answers LOOKUP and PARTITIONED_METADATA. The service URL's hosts are tried in turn, beginning at a random
one; one that works is kept. Behind them come the brokers that lookups named. One that is silent, or whose connection
has ended, comes last. If a host does not answer at once, the next one is tried beside it (`CONNECT_STAGGER_S`). If a
host refuses the connection, because it has reached its limit, say, the next one is tried at once.

A lookup follows redirects. It is repeated with back-off while the failure is temporary (`is_retriable`) and the
operation's time-out has not passed. A topic's owner may have been lost a moment ago, and a connection to it hang. So a
try waits `CONNECT_WAIT_S` only, and then the owner is looked up again; the attempt to connect goes on beside that.

`elsewhere` is what `client.core.liveness` asks about a connection that is silent.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message as WireMessage

from ...protocol.addresses import Address
from ...protocol.errors import (
    AlreadyClosed,
    ConnectError,
    ConnectionClosed,
    MagnetarError,
    NotAllowedError,
    ProtocolError,
    Timeout,
    TlsError,
    TooManyLookupRequestException,
    exception_for_server_error,
    is_retriable,
)
from ...protocol.errors import LookupError as TopicLookupError
from ...protocol.pulsar_pb2 import (
    CommandGetOrCreateSchema,
    CommandGetOrCreateSchemaResponse,
    CommandGetSchema,
    CommandGetSchemaResponse,
    CommandLookupTopic,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadata,
    CommandPartitionedTopicMetadataResponse,
)
from ...runtime import retry
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.tls_contexts import ClientContexts
from ..schemas.schema import SchemaInfo
from .configuration import ClientConfiguration
from .connection import Answer, ClientConnection
from .connection_pool import ConnectionPool, retrieve
from .service_url import goes_through_proxy, parse_service_url

logger = logging.getLogger(__name__)

T = TypeVar("T")

REDIRECTS_MAX = 20
PARTITIONS_MAX = 100_000
"""A broker's answer with more partitions than this is an error: each costs a producer or consumer."""
CONNECT_STAGGER_S = 0.3
CONNECT_WAIT_S = 1.0
KNOWN_BROKERS_MAX = 64
"""Brokers that are kept in mind beside the hosts of the service URL: those that lookups named last."""
ASKED_ELSEWHERE_MAX = 3
"""Brokers that one question about a silent one goes to, until one answers."""
NEW_CONNECTION_S = 2.0
"""For a new connection to a silent broker, and a question on it."""
TRY_TIMEOUT_S = 5.0
"""One question to one broker: a broker that has stopped keeps its sockets open, and another one can answer as well."""


class Lookup:
    """Answers where topics are. `discover` gives the service URL: a constant, or what the cluster says now."""

    def __init__(
        self,
        environment: Environment,
        configuration: ClientConfiguration,
        pool: ConnectionPool,
        discover: Callable[[], Awaitable[str]],
    ) -> None:
        self._environment = environment
        self._configuration = configuration
        self._pool = pool
        self._discover = discover
        self._hosts: list[Address] = []
        self._through_proxy = False
        self._known: dict[Address, None] = {}
        """Brokers that lookups named, the latest last."""
        self._current = 0
        self._turn = 0
        pool.elsewhere = self.elsewhere
        self._contexts = ClientContexts(environment, configuration.tls)
        self._limit = asyncio.Semaphore(configuration.concurrent_lookup_requests)

    @property
    def timeout_s(self) -> float:
        """How long one operation may take, in seconds."""
        return float(self._configuration.operation_timeout_seconds)

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        """Number of partitions of a topic, 0 for one that has none. Raises what the broker says, or Timeout.

        With `create` the broker may create a topic that does not exist.
        """
        return await self.retry(f"looking up the partitions of {topic}", lambda: self._ask_partitions(topic, create))

    async def at_any_broker(self, what: str, ask: Callable[[ClientConnection], Awaitable[T]]) -> T:
        """What `ask` returns for a connection to some broker, repeated with back-off. Raises as `retry`."""

        async def once() -> T:
            async with self._limit:
                return await ask(await self._any_broker())

        return await self.retry(what, once)

    async def schema(self, topic: str, version: bytes) -> SchemaInfo:
        """A topic's schema of that version, its latest for an empty one. Raises TopicNotFound if there is none."""

        async def ask(connection: ClientConnection) -> SchemaInfo:
            request_id = connection.next_request_id()
            command = CommandGetSchema(request_id=request_id, topic=topic)
            if version:
                command.schema_version = version
            answer = await self.ask(connection, command, request_id, CommandGetSchemaResponse)
            if answer.HasField("error_code"):
                raise exception_for_server_error(answer.error_code, answer.error_message)
            return SchemaInfo.of_wire(answer.schema)

        return await self.at_any_broker(f"fetching the schema of {topic}", ask)

    async def version_of_schema(self, topic: str, schema: SchemaInfo) -> bytes:
        """The version of a schema in a topic that exists. The broker adds the schema if it is new and may be added.

        Raises IncompatibleSchema, TopicNotFound, what else the broker says, or Timeout.
        """

        async def ask() -> bytes:
            connection = await self.connection(topic)
            request_id = connection.next_request_id()
            command = CommandGetOrCreateSchema(topic=topic, request_id=request_id, schema=schema.to_wire())
            answer = await self.ask(connection, command, request_id, CommandGetOrCreateSchemaResponse)
            if answer.HasField("error_code"):
                raise exception_for_server_error(answer.error_code, answer.error_message)
            return answer.schema_version

        return await self.retry(f"asking for the version of a schema of {topic}", ask)

    async def connection(self, topic: str) -> ClientConnection:
        """A connection to the broker that owns `topic`; one try.

        Raises what the broker says, ConnectError, TimeoutError.
        """
        async with self._limit:
            connection, owner, proxied = await self._owner(await self._any_broker(), topic)
        return await self._through(connection.address, owner) if proxied else await self._reach(owner)

    async def _owner(self, connection: ClientConnection, topic: str) -> tuple[ClientConnection, Address, bool]:
        """Who says who owns `topic`, the owner, and whether the owner is reached through the one that says it.

        Begins at `connection`, and follows redirects. Raises as `connection`.
        """
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            request_id = connection.next_request_id()
            command = CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
            if self._configuration.listener_name:
                command.advertised_listener_name = self._configuration.listener_name
            answer = await self.ask(connection, command, request_id, CommandLookupTopicResponse)
            if answer.response == CommandLookupTopicResponse.Failed:
                raise exception_for_server_error(answer.error, answer.message)
            owner = self._named(answer, topic)
            through_proxy = answer.proxy_through_service_url or self._through_proxy
            if not through_proxy:
                self._learn(owner)
            proxied = through_proxy and owner != connection.address
            if answer.response == CommandLookupTopicResponse.Connect:
                return connection, owner, proxied
            authoritative = answer.authoritative
            connection = await (self._through(connection.address, owner) if proxied else self._reach(owner))
        raise TopicLookupError(f"the lookup of {topic} was redirected more than {REDIRECTS_MAX} times")

    def _named(self, answer: CommandLookupTopicResponse, topic: str) -> Address:
        """The owner that an answer names for this kind of client. Raises LookupError, TlsError."""
        with_tls = self._pool.contexts is not None
        url = answer.brokerServiceUrlTls if with_tls else answer.brokerServiceUrl
        if url:
            return parse_service_url(url)[0]
        if answer.brokerServiceUrl:
            raise TlsError(
                f"the owner of {topic} is at {answer.brokerServiceUrl} and has no TLS: set brokerServicePortTls for "
                "all brokers, or add pulsar+ssl:// to its advertisedListeners"
            )
        if answer.brokerServiceUrlTls:
            raise TlsError(
                f"the owner of {topic} is at {answer.brokerServiceUrlTls} and takes TLS only: use pulsar+ssl:// as "
                "service URL"
            )
        raise TopicLookupError(f"the broker names no owner of {topic}")

    def _learn(self, owner: Address) -> None:
        self._known.pop(owner, None)
        self._known[owner] = None
        if len(self._known) > KNOWN_BROKERS_MAX:
            del self._known[next(iter(self._known))]

    async def _reach(self, address: Address, broker: Address | None = None) -> ClientConnection:
        """A connection to a broker that may be lost.

        Raises ConnectError, also when it takes too long, and what the broker refuses it with.
        """
        try:
            async with asyncio.timeout(CONNECT_WAIT_S):
                return await self._pool.get(address, broker)
        except TimeoutError as error:
            raise ConnectError(f"cannot connect to {self._pool.url(address)}: no answer yet") from error

    async def _through(self, proxy: Address, owner: Address) -> ClientConnection:
        """A connection to `owner` through `proxy`, or through another host if that one forwards too many already.

        Raises as `_reach`, and TooManyLookupRequestException if no host has room.
        """
        refusals: list[TooManyLookupRequestException] = []
        for address in dict.fromkeys([proxy, *self._hosts]):
            try:
                return await self._reach(address, owner)
            except TooManyLookupRequestException as error:
                refusals.append(error)
        raise refusals[0]

    async def elsewhere(self, suspect: ClientConnection, topic: str, silent: bool) -> str:
        """What speaks against staying with `suspect` for a topic; empty if nothing does, or nobody can tell.

        Another broker says who owns the topic. If none is known, and the broker is `silent`, a new connection to its
        address is tried. The old connection may be dead, and another broker may answer there.
        """
        candidates = self._others(suspect)
        proxy_answers = True
        for address in candidates[:ASKED_ELSEWHERE_MAX]:
            try:
                _, owner, _ = await self._owner(await self._reach(address), topic)
            except (ConnectError, ConnectionClosed, TimeoutError):
                proxy_answers = proxy_answers and address != suspect.address
                continue
            except NotAllowedError as error:  # it has reached its limit of connections; the next one may have room
                logger.debug("%s does not say who owns %s: %s", self._pool.url(address), topic, error)
                continue
            except MagnetarError as error:
                logger.debug("nobody says who owns %s: %s", topic, error)
                return ""
            if not proxy_answers:
                return f"the proxy at {suspect.url} does not answer"
            return "" if owner == suspect.broker else f"{topic} belongs to the broker at {self._pool.url(owner)}"
        if candidates or not silent:
            return ""
        return await self._asked_again(suspect, topic)

    def _others(self, suspect: ClientConnection) -> list[Address]:
        """Brokers to ask about a silent one: those first to which there is a connection, in turns. What lies behind a
        proxy is asked of the proxy first, because that may be what is silent.
        """
        known = dict.fromkeys([*self._hosts, *self._known])
        known.pop(suspect.address, None)
        found = list(known)
        self._turn += 1
        turn = self._turn % len(found) if found else 0
        others = sorted(found[turn:] + found[:turn], key=self._pool.rank)
        return [suspect.address, *others] if suspect.proxied else others

    async def _asked_again(self, suspect: ClientConnection, topic: str) -> str:
        where = suspect.url
        try:
            async with asyncio.timeout(NEW_CONNECTION_S):
                connection = await self._pool.alone(suspect.address, suspect.proxied)
                try:
                    await self._owner(connection, topic)
                finally:
                    connection.close()
        except (MagnetarError, TimeoutError) as error:
            logger.debug("%s does not answer on a new connection: %s", where, error)
            return ""
        return f"the broker at {where} answers on a new connection"

    async def retry(self, what: str, attempt: Callable[[], Awaitable[T]], deadline: asyncio.Timeout | None = None) -> T:
        """The result of `attempt`, repeated with back-off while its failure may pass and the operation has time left.

        An attempt may put off the `deadline` that its caller made. Without one the operation time-out holds.

        Raises the last failure, or Timeout when the time is up.
        """
        failures: deque[Exception] = deque(maxlen=1)

        def remember(error: Exception, delay_s: float) -> None:
            failures.append(error)

        try:
            async with deadline or asyncio.timeout(self.timeout_s):
                return await retry.forever(
                    self.new_backoff(),
                    attempt,
                    retriable=lambda error: isinstance(error, MagnetarError | TimeoutError) and is_retriable(error),
                    on_retry=remember,
                )
        except TimeoutError as error:
            last = failures[0] if failures else None
            reason = f": {last}" if last is not None and str(last) else ""
            if isinstance(last, ConnectError):
                raise ConnectError(f"{what} failed: no broker could be reached{reason}") from error
            raise Timeout(f"{what} was not done within {self.timeout_s:g} s{reason}") from error

    def new_backoff(self) -> Backoff:
        """The pauses between tries of anything that concerns a broker."""
        configuration = self._configuration
        return Backoff(
            self._environment.random,
            configuration.backoff_initial_ms / 1000,
            configuration.backoff_maximum_ms / 1000,
        )

    async def _ask_partitions(self, topic: str, create: bool) -> int:
        async with self._limit:
            connection = await self._any_broker()
            request_id = connection.next_request_id()
            command = CommandPartitionedTopicMetadata(topic=topic, request_id=request_id)
            if not create:
                command.metadata_auto_creation_enabled = False
            answer = await self.ask(connection, command, request_id, CommandPartitionedTopicMetadataResponse)
        if answer.response == CommandPartitionedTopicMetadataResponse.Failed:
            raise exception_for_server_error(answer.error, answer.message)
        if answer.partitions > PARTITIONS_MAX:
            raise ProtocolError(
                f"the broker answered that {topic} has {answer.partitions} partitions, which is impossible"
            )
        return answer.partitions

    async def ask(
        self, connection: ClientConnection, command: WireMessage, request_id: int, answer_type: type[Answer]
    ) -> Answer:
        """One question to one broker. Raises as `ClientConnection.request`."""
        try:
            limit_s = min(self.timeout_s, TRY_TIMEOUT_S)
            return await connection.request(command, request_id, limit_s, answer_type, anywhere=True)
        except TimeoutError:
            self._current += 1
            raise

    async def _any_broker(self) -> ClientConnection:
        """A connection to the current host, or else to the first of the others that answers."""
        if not self._hosts:
            await self._refresh()
        count = len(self._hosts)
        turns = [self._hosts[(self._current + step) % count] for step in range(count)]
        known = dict.fromkeys([*turns, *reversed(self._known)])
        addresses = sorted(known, key=self._pool.rank)
        connection = self._pool.live(addresses[0])
        if connection is not None:
            return connection
        try:
            return await self._first_of(addresses)
        except AlreadyClosed:
            raise
        except MagnetarError:
            # All are gone or refuse: brokers found through Ray may have come back elsewhere, or there are more.
            await self._refresh()
            raise

    async def _first_of(self, addresses: list[Address]) -> ClientConnection:
        """The first connection that stands, each address tried a moment after the one before.

        Raises what the last broker said, a failure that may pass before a refusal that lasts.
        """
        waiting = deque(addresses)
        trying: dict[asyncio.Task[ClientConnection], Address] = {}
        failure: MagnetarError | None = None
        try:
            while waiting or trying:
                if waiting:
                    address = waiting.popleft()
                    trying[asyncio.ensure_future(self._pool.get(address))] = address
                pause_s = CONNECT_STAGGER_S if waiting else None
                done, _ = await asyncio.wait(trying, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in trying if task in done]:
                    address = trying.pop(task)
                    try:
                        connection = task.result()
                    except AlreadyClosed:
                        raise
                    except MagnetarError as error:
                        if failure is None or error.retriable:
                            failure = error
                        continue
                    if address in self._hosts:
                        self._current = self._hosts.index(address)
                    return connection
        finally:
            for task in trying:
                task.add_done_callback(retrieve)
                task.cancel()
        raise failure or ConnectError("the service URL names no host")

    async def _refresh(self) -> None:
        url = await self._discover()
        hosts, self._through_proxy = parse_service_url(url), goes_through_proxy(url)
        self._pool.contexts = self._contexts if self._configuration.speaks_tls(url) else None
        if hosts != self._hosts:
            self._hosts = hosts
            self._current = self._environment.random.randrange(len(hosts))
