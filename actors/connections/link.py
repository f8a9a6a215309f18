"""What a connection needs of its broker, and what the commands of one subject are to their connection."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ...protocol.pulsar_pb2 import CommandSend
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ..dispatch.consumer import AttachedConsumer
from ..members.topic_lookup import Lookups
from ..schemas.registry import SchemaRegistry
from ..topics.loaded_topics import Topics
from ..topics.producer import AttachedProducer
from .forwarding import Forwards
from .limits import ConnectionLimits, PublishBudget

if TYPE_CHECKING:
    from .connection import ServerConnection

CommandHandler = Callable[[Any], None]
"""Handles the content of one type of command. Which one, says the type under which the handler is listed."""
EntryHandler = Callable[[CommandSend, bytes], None]
"""The same for a command that carries an entry."""


class ConnectionHost(Protocol):
    """A broker, as the connections of its clients see it."""

    env: Environment
    settings: Settings
    topics: Topics
    lookups: Lookups
    schemas: SchemaRegistry
    publish_budget: PublishBudget
    connection_limits: ConnectionLimits
    requests: Tasks
    connections: "dict[ServerConnection, None]"

    @property
    def forwards(self) -> Forwards: ...

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

    def handlers(self) -> dict[int, CommandHandler]:
        """The type of a command → what handles its content. Raises ProtocolError there to end the connection."""
        return {}

    def entry_handlers(self) -> dict[int, EntryHandler]:
        """The same for commands that carry an entry. SEND is the only one; the connection calls it directly."""
        return {}

    def wake(self) -> None:
        """The connection can be written to again."""

    def producer_closed(self, producer: AttachedProducer) -> None:
        """A topic has sent a producer away."""

    def consumer_closed(self, consumer: AttachedConsumer) -> None:
        """A topic has sent a consumer away."""

    def connection_closed(self) -> None:
        """Let go of everything: the connection has ended."""


MakeFamily = Callable[["ServerConnection"], CommandFamily]
