"""Which brokers watch the topics of which namespaces, and what they are told: each creation, growth and deletion.

A broker asks for pages of a namespace's topics (`watch`). From the first page on, it is pushed each change in the
namespace over the same connection, until it says `unwatch` or the connection ends. Pages and pushes have numbers. A
page holds all changes up to its number, and a push with a greater number is not in it. A number is taken and used in
one step of the event loop, with the change in the registry. A change in a namespace that nobody watches costs nothing.

Nothing of this is stored. When a connection ends, or another coordinator becomes active, brokers ask again.
"""

from collections.abc import Mapping

from ...protocol.errors import TopicNotFound
from ...protocol.topics import PERSISTENT, TopicName
from ...runtime.rpc.connection import RpcConnection
from ..members.contracts_coordinator import MemberContract
from ..members.contracts_topics import TopicChange, TopicPage, TopicRecord
from .topic_registry import TopicRegistry

PAGE = 5000
"""Topics that one answer holds."""


class TopicWatchers:
    """See the module."""

    def __init__(self, epoch: int, registry: TopicRegistry) -> None:
        self._epoch = epoch
        self._registry = registry
        self._number = 0
        self._watching: dict[str, dict[RpcConnection, MemberContract]] = {}
        registry.on_changed.append(self._changed)

    @property
    def namespaces(self) -> Mapping[str, int]:
        """How many brokers watch each namespace."""
        return {namespace: len(connections) for namespace, connections in self._watching.items()}

    def watch(self, connection: RpcConnection, namespace: str, after: str) -> TopicPage:
        """Tell this connection of the namespace's changes, and answer its persistent topics behind the name `after`."""
        if not connection.closed:
            self._watching.setdefault(namespace, {}).setdefault(connection, MemberContract(connection.notify))
        try:
            found = self._registry.list_topics(namespace, max(after, f"{PERSISTENT}:"), PAGE + 1)
        except TopicNotFound:
            found = []
        return TopicPage(self._number, [TopicRecord(*one) for one in found[:PAGE]], len(found) > PAGE)

    def unwatch(self, connection: RpcConnection, namespace: str) -> None:
        """Tell this connection nothing more about the namespace."""
        connections = self._watching.get(namespace, {})
        connections.pop(connection, None)
        if not connections:
            self._watching.pop(namespace, None)

    def leave(self, connection: RpcConnection) -> None:
        """The connection has ended."""
        for namespace in [name for name, connections in self._watching.items() if connection in connections]:
            self.unwatch(connection, namespace)

    def _changed(self, topic: TopicName, before: int | None, partitions: int | None) -> None:
        connections = self._watching.get(topic.namespace)
        if not connections or not topic.persistent:
            return
        self._number += 1
        changes = [TopicChange(topic.full, partitions)]
        for member in connections.values():
            member.topics_changed(epoch=self._epoch, namespace=topic.namespace, number=self._number, changes=changes)
