"""What the coordinator answers about topics: creating, assigning, moving, deleting.

A mixture of the registry (what exists), the placement (who owns it) and calls to the owning brokers, which alone know
what a topic stores. Topics are named in full on the RPC.
"""

import asyncio
import contextlib

from ...protocol.errors import InvalidConfiguration, KeyExists, NotAllowedError, ServiceUnitNotReady
from ...protocol.names import ROLE_BROKER
from ...protocol.properties import changed_properties
from ...protocol.system_topics import heartbeat_topic
from ...protocol.topics import TopicName
from ...runtime.rpc.connection import RpcConnection
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.store import unpack
from ..members.contracts_coordinator import Owner
from ..members.contracts_topics import TopicPage, TopicRecord
from ..members.permissions import check_topic_creation
from .assignment_table import Assignment
from .member_lists import url_of
from .office import Office

ASSIGN_TIMEOUT_S = 8.0


class TopicMethods:
    """See the module."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._membership = office.membership
        self._placement = office.placement
        self._registry = office.registry

    # -- assignments ---------------------------------------------------------------------------------------------

    async def rpc_lookup(self, connection: RpcConnection, topic: str) -> str:
        """The URL of the broker that serves a partition or plain topic. Nothing is created.

        For a topic that is missing, but would be created by a producer or consumer, it is that of the broker which
        shall create it. Raises what `rpc_assign` raises.
        """
        name = TopicName.parse(topic)
        if self._registry.would_create(name):
            session = self._membership.find(ROLE_BROKER, self._placement.candidate(name.full))
            if session is None:
                raise ServiceUnitNotReady("no broker is alive")
            return url_of(session)
        return (await self.rpc_assign(connection, topic, create=False)).url

    async def rpc_assign(
        self, connection: RpcConnection, topic: str, create: bool | None = None, here: bool = False
    ) -> Owner:
        """The owner of a partition or plain topic.

        `create` makes a missing topic (None: if automatic creation is allowed). A plain topic without an owner goes to
        the broker that calls, if it says `here`. Raises TopicNotFound, NotAllowedError, ServiceUnitNotReady (no broker,
        or it takes too long).
        """
        check_topic_creation(connection, create)
        name = TopicName.parse(topic)
        wanted = self._office.namespaces.creation(name.namespace).allow if create is None else create
        await self._registry.check_assignable(name, wanted)
        preferred = connection.peer.node_id if here and name.partition < 0 else None
        assignment = await self._assign(name.full, preferred)
        session = self._membership.find(ROLE_BROKER, assignment.broker)
        if session is None or session.incarnation != assignment.incarnation:
            raise ServiceUnitNotReady(f"{topic} is being moved")
        return Owner(assignment.broker, assignment.incarnation, assignment.epoch, url_of(session))

    async def rpc_unload(self, connection: RpcConnection, topic: str, destination: str | None = None) -> None:
        """Close a topic (of a partitioned one: every partition) where it is and give it to `destination`, or to any
        other broker. Raises TopicNotFound, InvalidConfiguration (no such broker).
        """
        if destination is not None and self._membership.find(ROLE_BROKER, destination) is None:
            raise InvalidConfiguration(f"{destination} is not a live broker: choose one that `magnetar status` lists")
        topics = [name for name in self._registry.members(TopicName.parse(topic)) if name in self._placement.table]
        await self._office.rebalancer.order(dict.fromkeys(topics, destination))

    async def _assign(self, topic: str, preferred: str | None = None) -> Assignment:
        try:
            async with asyncio.timeout(ASSIGN_TIMEOUT_S):
                return await self._placement.assign(topic, preferred)
        except TimeoutError:
            raise ServiceUnitNotReady(f"{topic} could not be assigned within {ASSIGN_TIMEOUT_S} s") from None

    # -- topics --------------------------------------------------------------------------------------------------

    async def rpc_partitions(self, connection: RpcConnection, topic: str, create: bool = False) -> int:
        """Partitions of a topic, 0 without. `create` is for missing topics: one that the settings want partitioned is
        created, any other has none. Raises TopicNotFound."""
        check_topic_creation(connection, create)
        return await self._registry.partitions(TopicName.parse(topic), create=create)

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
        """Raise the number of partitions. Raises TopicNotFound, InvalidConfiguration."""
        name = TopicName.parse(topic)
        await self._registry.grow(name, partitions)
        self._office.lists.partitions_changed(name.full, partitions)

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

    async def rpc_heartbeat_topic(self, connection: RpcConnection) -> str:
        """The topic that the health check of the calling broker uses, made and assigned to it if need be.

        Raises ServiceUnitNotReady: no session, or the topic is being deleted at this moment.
        """
        session = self._membership.find(ROLE_BROKER, connection.peer.node_id)
        if session is None:
            raise ServiceUnitNotReady(f"{connection.peer.node_id} is not registered")
        address = url_of(session).removeprefix("pulsar://").replace("[", "").replace("]", "")
        name = heartbeat_topic(address)
        with contextlib.suppress(KeyExists):
            await self._registry.create(name, 0, system=True)
        assignment = await self._assign(name.full, session.node_id)
        if assignment.broker != session.node_id:
            await self._office.rebalancer.move({name.full: session.node_id})
        return name.full

    async def rpc_topic_records(
        self, connection: RpcConnection, namespace: str, after: str = "", limit: int = 1000
    ) -> list[TopicRecord]:
        """A page of a namespace's topics, behind `after`. Raises TopicNotFound."""
        return [TopicRecord(*found) for found in self._registry.list_topics(namespace, after, limit)]

    async def rpc_watch_topics(self, connection: RpcConnection, namespace: str, after: str = "") -> TopicPage:
        """Tell the broker of the namespace's changes from now on; see `topic_watchers`."""
        return self._office.watchers.watch(connection, namespace, after)

    async def rpc_unwatch_topics(self, connection: RpcConnection, namespace: str) -> None:
        self._office.watchers.unwatch(connection, namespace)
