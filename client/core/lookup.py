"""Finding brokers: connections shared by address, and the owner of a topic.

Any broker answers LOOKUP and PARTITIONED_METADATA. The service URL's hosts are tried in turn, beginning at a random
one; one that works is kept. A lookup follows redirects. It is repeated with back-off while the failure is temporary
(`is_retriable`) and the operation's time-out has not passed.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import Message as WireMessage

from ...protocol.errors import (
    AlreadyClosed,
    ConnectError,
    MagnetarError,
    ProtocolError,
    Timeout,
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
from ..schemas.schema import SchemaInfo
from .configuration import ClientConfiguration
from .connection import Answer, ClientConnection, connect
from .service_url import Address, parse_service_url

T = TypeVar("T")

REDIRECTS_MAX = 20
PARTITIONS_MAX = 100_000
"""A broker's answer with more partitions than this is an error: each costs a producer or consumer."""
TRY_TIMEOUT_S = 5.0
"""One question to one broker: a broker that has stopped keeps its sockets open, and another one can answer as well."""


class ConnectionPool:
    """One connection for each address (and broker behind it, through a proxy), made when first asked for."""

    def __init__(self, configuration: ClientConfiguration) -> None:
        self._configuration = configuration
        self._connections: dict[tuple[Address, Address | None], ClientConnection] = {}
        self._connecting: dict[tuple[Address, Address | None], asyncio.Task[ClientConnection]] = {}
        self._closed = False

    def sockets(self) -> list[int]:
        """The numbers of the open connections' sockets."""
        return [number for number in (one.socket_number() for one in self._connections.values()) if number >= 0]

    async def get(self, address: Address, broker: Address | None = None) -> ClientConnection:
        """The connection to `address`. Raises ConnectError, AlreadyClosed."""
        if self._closed:
            raise AlreadyClosed("the client is closed: create a new one")
        key = (address, broker)
        found = self._connections.get(key)
        if found is not None and not found.closed:
            return found
        task = self._connecting.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(key), name=f"connect to {address}")
            task.add_done_callback(_retrieve)
            self._connecting[key] = task
        # Shielded: others may be waiting for the same connection.
        return await asyncio.shield(task)

    def is_broken(self, address: Address) -> bool:
        """Whether the last connection to `address` has ended, so that others are worth trying first."""
        found = self._connections.get((address, None))
        return found is not None and found.closed

    async def _connect(self, key: tuple[Address, Address | None]) -> ClientConnection:
        try:
            connection = await connect(self._configuration, *key)
        finally:
            self._connecting.pop(key, None)
        if self._closed:
            connection.close()
            raise AlreadyClosed("the client is closed: create a new one")
        self._connections[key] = connection
        return connection

    async def close(self) -> None:
        """Close all connections; endpoints that are still on them are told."""
        self._closed = True
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections.values()):
            connection.close(AlreadyClosed("the client is closed: create a new one"))
        self._connections.clear()


def _retrieve(task: asyncio.Task[ClientConnection]) -> None:
    """Look at the outcome, so that a failure after all waiters have gone is not reported as forgotten."""
    if not task.cancelled():
        task.exception()


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
        self._current = 0
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
            connection = await self._any_broker()
            authoritative = False
            for _ in range(REDIRECTS_MAX):
                request_id = connection.next_request_id()
                command = CommandLookupTopic(topic=topic, request_id=request_id, authoritative=authoritative)
                answer = await self.ask(connection, command, request_id, CommandLookupTopicResponse)
                if answer.response == CommandLookupTopicResponse.Failed:
                    raise exception_for_server_error(answer.error, answer.message)
                if not answer.brokerServiceUrl:
                    raise TopicLookupError(f"the broker names no owner of {topic}")
                owner = parse_service_url(answer.brokerServiceUrl)[0]
                proxied = answer.proxy_through_service_url
                target = await (self._pool.get(connection.address, owner) if proxied else self._pool.get(owner))
                if answer.response == CommandLookupTopicResponse.Connect:
                    return target
                connection, authoritative = target, answer.authoritative
        raise TopicLookupError(f"the lookup of {topic} was redirected more than {REDIRECTS_MAX} times")

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
            return await connection.request(command, request_id, min(self.timeout_s, TRY_TIMEOUT_S), answer_type)
        except TimeoutError:
            self._current += 1
            raise

    async def _any_broker(self) -> ClientConnection:
        """A connection to the current host, or else to the first of the others that answers."""
        if not self._hosts:
            await self._refresh()
        failure: ConnectError | None = None
        count = len(self._hosts)
        turns = [(self._current + step) % count for step in range(count)]
        for turn in sorted(turns, key=lambda turn: self._pool.is_broken(self._hosts[turn])):
            try:
                connection = await self._pool.get(self._hosts[turn])
            except ConnectError as error:
                failure = error
                continue
            self._current = turn
            return connection
        # All are gone: brokers found through Ray may have come back elsewhere.
        await self._refresh()
        raise failure or ConnectError("the service URL names no host")

    async def _refresh(self) -> None:
        hosts = parse_service_url(await self._discover())
        if hosts != self._hosts:
            self._hosts = hosts
            self._current = self._environment.random.randrange(len(hosts))
