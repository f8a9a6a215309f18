"""What the commands of one client need of its connection, and of the broker behind it.

The connection knows its commands; they know only this, so that each can be read without the other.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ...protocol.errors import MagnetarError
from ...protocol.pulsar_pb2 import CommandSend
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ..dispatch.consumer import AttachedConsumer
from ..members.topic_lookup import Lookups
from ..schemas.registry import SchemaRegistry
from ..topics.loaded_topics import Topics
from ..topics.producer import AttachedProducer, PublishOutlet

CommandHandler = Callable[[Any], None]
"""Handles the content of one type of command. Which one, says the type under which the handler is listed."""
EntryHandler = Callable[[CommandSend, bytes], None]
"""The same for a command that carries an entry."""


class LinkHost(Protocol):
    """A broker, as the commands of its clients see it."""

    env: Environment
    settings: Settings
    topics: Topics
    lookups: Lookups
    schemas: SchemaRegistry

    def new_producer_name(self) -> str:
        """A producer name that no other producer in the cluster has or had. Raises ServiceUnitNotReady."""
        ...


class ClientLink(PublishOutlet, Protocol):
    """A client's connection, as its commands see it."""

    @property
    def host(self) -> LinkHost: ...

    def error(self, request_id: int, error: BaseException, *, about: str = "") -> None:
        """Answer a request with ERROR. `about` names what the request was for, where the error's text does not."""
        ...

    def start(
        self,
        coroutine: Coroutine[object, object, bytes | None],
        name: str,
        on_error: Callable[[MagnetarError], None],
    ) -> None:
        """Serve a request that has to wait: the coroutine's result is written, what it raises goes to `on_error`."""
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


MakeFamily = Callable[[ClientLink], CommandFamily]
