"""What the coordinator answers about topics: creating, growing, listing, deleting. Topics are named in full on the RPC.

`owner_methods` answers who owns them.
"""

from ...protocol.errors import NotAllowedError
from ...protocol.properties import changed_properties
from ...protocol.topics import TopicName
from ...runtime.rpc.connection import RpcConnection
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.store import unpack
from ..members.contracts_broker import Point
from ..members.contracts_coordinator import TopicPage, TopicRecord
from ..members.permissions import check_topic_creation
from .office import Office


class TopicMethods:
    """See the module."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._registry = office.registry

    # -- topics --------------------------------------------------------------------------------------------------

    async def rpc_partitions(
        self, connection: RpcConnection, topic: str, create: bool = False, tell_missing: bool = False
    ) -> int:
        """Partitions of a topic, 0 without. `create` is for missing topics: one that the settings want partitioned is
        created, any other has none (with `tell_missing` −1). Raises TopicNotFound."""
        check_topic_creation(connection, create)
        name = TopicName.parse(topic)
        found = await self._registry.partitions(name, create=create)
        return -1 if tell_missing and not found and self._registry.facts(name) is None else found

    async def rpc_create_topic(
        self,
        connection: RpcConnection,
        topic: str,
        partitions: int = 0,
        properties: dict[str, str] | None = None,
    ) -> None:
        """Raises KeyExists, TopicNotFound (no such namespace), NotAllowedError, InvalidConfiguration."""
        await self._registry.create(TopicName.parse(topic), partitions, properties=properties)

    async def rpc_topic_properties(self, connection: RpcConnection, topic: str) -> dict[str, str]:
        """Those of a partition are empty. Raises TopicNotFound."""
        name = TopicName.parse(topic)
        self._registry.members(name)
        record = await self._office.store.get(metadata_keys.topic(name.path))
        return dict(unpack(record.value).get("properties", {})) if record is not None else {}

    async def rpc_change_topic_properties(
        self, connection: RpcConnection, topic: str, put: dict[str, str], remove: list[str] | None = None
    ) -> None:
        """Raises TopicNotFound, NotAllowedError (a partition), InvalidConfiguration (too much)."""
        await self._registry.change_properties(
            TopicName.parse(topic), lambda found: changed_properties(found, put, remove or ())
        )

    async def rpc_grow_topic(self, connection: RpcConnection, topic: str, partitions: int) -> None:
        """Raise the number of partitions; see `topic_growth`.

        Raises TopicNotFound, InvalidConfiguration, NotAllowedError, ServiceUnitNotReady: it takes long and goes on.
        """
        await self._office.growths.grow(TopicName.parse(topic), partitions)

    async def rpc_prepare_subscription(
        self, connection: RpcConnection, topic: str, subscription: str, position: Point, properties: dict[str, str]
    ) -> int | None:
        """See `topic_growth`. Raises NotAllowedError for all but partition 0 of a topic."""
        name = TopicName.parse(topic)
        if name.partition != 0:
            raise NotAllowedError(f"{topic} is not the first partition of a topic")
        return await self._office.growths.prepare_subscription(name, subscription, position, properties)

    async def rpc_delete_topic(self, connection: RpcConnection, topic: str, force: bool = False) -> None:
        """Delete a topic with all its partitions and data; see `topic_deletions`.

        Raises TopicNotFound, NotAllowedError (in use and not `force`), ServiceUnitNotReady: it takes long and goes on.
        After any error it can be called again.
        """
        name = TopicName.parse(topic)
        if name.partition >= 0 and self._registry.find(name) is None:
            raise NotAllowedError(f"{topic} is a partition and cannot be deleted alone: delete the whole topic")
        await self._office.deletions.delete(name, force=force)

    async def rpc_delete_inactive_topic(self, connection: RpcConnection, topic: str) -> None:
        """Delete a topic of which its owner says that nobody uses it; of a partition, the whole topic.

        Raises TopicNotFound, NotAllowedError (an owner of it says otherwise), ServiceUnitNotReady.
        """
        name = TopicName.parse(topic)
        whole = name if self._registry.find(name) is not None else name.without_partition()
        await self._office.deletions.delete(whole, force=False, inactive=True)

    async def rpc_topic_records(
        self, connection: RpcConnection, namespace: str, after: str = "", limit: int = 1000
    ) -> list[TopicRecord]:
        """A page of a namespace's topics, behind `after`. Raises TopicNotFound."""
        return [TopicRecord(*found) for found in self._registry.list_topics(namespace, after, limit)]

    async def rpc_watch_topics(self, connection: RpcConnection, namespace: str, after: str = "") -> TopicPage:
        """Tell the broker of the namespace's changes from now on; see `TopicWatchers`."""
        return self._office.watchers.watch(connection, namespace, after)

    async def rpc_unwatch_topics(self, connection: RpcConnection, namespace: str) -> None:
        self._office.watchers.unwatch(connection, namespace)
