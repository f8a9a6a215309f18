"""What a connection needs of its broker, and what the commands of one subject are to their connection.

No command is carried out without a decision: a handler is listed together with what its command needs (`Guarded`).
The connection asks before it calls the handler. A handler that asks nothing says so, by `of_own`.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...protocol.pulsar_pb2 import (
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandGetTopicsOfNamespace,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    CommandSend,
    CommandWatchTopicList,
)
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.repeated_warnings import RepeatedWarnings
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ..dispatch.consumer import AttachedConsumer
from ..members.topic_lookup import Lookups
from ..schemas.registry import SchemaRegistry
from ..security.audit import AuditLog
from ..security.authentication import ClientAuthentication
from ..security.authorization import Authorization, Need, Scope
from ..topics.loaded_topics import Topics
from ..topics.producer import AttachedProducer
from .forwarding import Forwards
from .limits import ConnectionLimits, PublishBudget

if TYPE_CHECKING:
    from .connection import ServerConnection

CommandHandler = Callable[[Any], None]
"""Handles the content of one type of command. Which one, says the type under which the handler is listed."""
EntryHandler = Callable[[CommandSend, bytes], None]
"""The same for a command that carries an entry. It names a producer of this connection, which was permitted."""
OfTopic = CommandLookupTopic | CommandPartitionedTopicMetadata | CommandGetSchema | CommandGetOrCreateSchema
OfNamespace = CommandGetTopicsOfNamespace | CommandWatchTopicList
Asked = Iterable[tuple[Need, Scope]]
"""What a command needs, and of what. All of it must be permitted."""


class Guarded(NamedTuple):
    """A handler, and what each command that it handles needs."""

    handler: CommandHandler
    asks: Callable[..., Asked]
    """From the content of the command. It does nothing until it is iterated over. Raises InvalidTopicName then."""


def of_own(handler: CommandHandler) -> Guarded:
    """The command names a producer, a consumer or a watcher of this connection: its beginning was permitted."""
    return Guarded(handler, _nothing)


def of_topic(need: Need, handler: CommandHandler) -> Guarded:
    """The command names a topic."""

    def asks(content: OfTopic) -> Asked:
        yield need, Scope.of_topic(TopicName.parse(content.topic))

    return Guarded(handler, asks)


def of_namespace(need: Need, handler: CommandHandler) -> Guarded:
    """The command names a namespace."""

    def asks(content: OfNamespace) -> Asked:
        yield need, Scope.of_namespace(content.namespace)

    return Guarded(handler, asks)


def _nothing(content: object) -> Asked:
    return ()


class ConnectionHost(Protocol):
    """A broker, as the connections of its clients see it."""

    env: Environment
    settings: Settings
    topics: Topics
    lookups: Lookups
    schemas: SchemaRegistry
    publish_budget: PublishBudget
    connection_limits: ConnectionLimits
    authentication: ClientAuthentication
    authorization: Authorization
    audit: AuditLog
    strangers: RepeatedWarnings
    requests: Tasks
    connections: "dict[ServerConnection, None]"

    @property
    def forwards(self) -> Forwards: ...

    @property
    def where_tls_is(self) -> str:
        """The URL of the broker for clients with TLS; empty without."""
        ...

    @property
    def accepts_connections(self) -> bool:
        """False once the broker closes: a connection that is made then is closed at once."""
        ...

    def new_producer_name(self) -> str:
        """A producer name that no other producer in the cluster has or had. Raises ServiceUnitNotReady."""
        ...


class CommandFamily:
    """The commands of one subject on one connection. A family overrides what concerns it.

    The broker's service lists the families that its connections have.
    """

    def handlers(self) -> dict[int, Guarded]:
        """The type of a command → what handles its content. Raises ProtocolError there to end the connection."""
        return {}

    def entry_handlers(self) -> dict[int, EntryHandler]:
        """The same for commands that carry an entry. SEND is the only one; the connection calls it directly."""
        return {}

    def permissions_changed(self) -> None:
        """Other roles may do other things now: let go of what is no longer permitted."""

    def wake(self) -> None:
        """The connection can be written to again."""

    def producer_closed(self, producer: AttachedProducer) -> None:
        """A topic has sent a producer away."""

    def consumer_closed(self, consumer: AttachedConsumer) -> None:
        """A topic has sent a consumer away."""

    def connection_closed(self) -> None:
        """Let go of everything: the connection has ended."""


MakeFamily = Callable[["ServerConnection"], CommandFamily]
