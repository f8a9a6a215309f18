"""What the commands of one client need of its connection, and of the broker behind it.

The connection knows its commands; they know only this, so that each can be read without the other.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ...protocol.errors import MagnetarError
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ..members.topic_lookup import Lookups
from ..topics.loaded_topics import Topics
from ..topics.producer import PublishOutlet


class LinkHost(Protocol):
    """A broker, as the commands of its clients see it."""

    env: Environment
    settings: Settings
    topics: Topics
    lookups: Lookups

    def new_producer_name(self) -> str:
        """A producer name that nobody else in the cluster has or had. Raises ServiceUnitNotReady."""
        ...


class ClientLink(PublishOutlet, Protocol):
    """A client's connection, as its commands see it."""

    @property
    def host(self) -> LinkHost: ...

    def error(self, request_id: int, error: BaseException) -> None:
        """Answer a request with ERROR."""
        ...

    def start(
        self,
        coroutine: Coroutine[Any, Any, bytes | None],
        name: str,
        on_error: Callable[[MagnetarError], None],
    ) -> None:
        """Serve a request that has to wait: the coroutine's result is written, what it raises goes to `on_error`."""
        ...
