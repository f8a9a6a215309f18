"""What the coordinator answers about topics, namespaces and tenants: creating, assigning, moving, deleting.

A mixture of the registry (what exists), the placement (who owns it) and calls to the owning brokers, which alone know
what a topic stores. Topics are named in full on the RPC.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ...protocol.errors import InvalidConfiguration, MagnetarError, NotAllowedError, ServiceUnitNotReady
from ...protocol.names import ROLE_BROKER
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.rpc.connection import RpcConnection
from ...runtime.settings.declarations import Settings
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.store import MetadataStore, list_all, unpack
from ..members.peer_calls import MemberCalls
from ..members.permissions import check_topic_creation
from .assignment_table import Assignment
from .membership import Membership, Session
from .placement import Placement
from .topic_deletions import TopicDeletions
from .topic_registry import TopicRegistry

logger = logging.getLogger(__name__)

ASSIGN_TIMEOUT_S = 8.0
RELEASE_TIMEOUT_S = 5.0
CALLS_AT_A_TIME = 16
REBALANCE_MOVES_AT_A_TIME = 50


class TopicsRpc:
    """Mixed into the coordinator's RPC service, whose parts it uses."""

    settings: Settings
    membership: Membership
    placement: Placement
    registry: TopicRegistry
    broker_calls: MemberCalls
    deletions: TopicDeletions
    _env: Environment
    _rebalancing: asyncio.Lock
    _rebalance_waits: bool

    def metadata_store(self) -> MetadataStore:
        raise NotImplementedError

    def _partitions_changed(self, topic: str, partitions: int) -> None:
        raise NotImplementedError

    # -- assignments ---------------------------------------------------------------------------------------------

    async def rpc_lookup(self, connection: RpcConnection, topic: str) -> str:
        """The URL of the broker that serves a partition or plain topic. Nothing is created.

        For a topic that is missing, but would be created by a producer or consumer, it is that of the broker which
        shall create it. Raises what `rpc_assign` raises.
        """
        name = TopicName.parse(topic)
        if self.settings.allow_auto_topic_creation and self.registry.would_create(name):
            session = self.membership.find(ROLE_BROKER, self.placement.candidate(name.full))
            if session is None:
                raise ServiceUnitNotReady("no broker is alive")
            return _url_of(session)
        return (await self.rpc_assign(connection, topic, create=False))["url"]

    async def rpc_assign(
        self, connection: RpcConnection, topic: str, create: bool | None = None, here: bool = False
    ) -> dict[str, Any]:
        """The owner of a partition or plain topic: `broker`, `incarnation`, `epoch`, `url`.

        `create` makes a missing topic (None: if automatic creation is allowed). A plain topic without an owner goes to
        the broker that calls, if it says `here`. Raises TopicNotFound, NotAllowedError, ServiceUnitNotReady (no broker,
        or it takes too long).
        """
        check_topic_creation(connection, create)
        name = TopicName.parse(topic)
        wanted = self.settings.allow_auto_topic_creation if create is None else create
        await self.registry.check_assignable(name, wanted)
        preferred = connection.peer.node_id if here and name.partition < 0 else None
        assignment = await self._assign(name.full, preferred)
        session = self.membership.find(ROLE_BROKER, assignment.broker)
        if session is None or session.incarnation != assignment.incarnation:
            raise ServiceUnitNotReady(f"{topic} is being moved")
        return {
            "broker": assignment.broker,
            "incarnation": assignment.incarnation,
            "epoch": assignment.epoch,
            "url": _url_of(session),
        }

    async def rpc_unload(self, connection: RpcConnection, topic: str, destination: str | None = None) -> None:
        """Close a topic (of a partitioned one: every partition) where it is and give it to `destination`, or to any
        other broker. Raises TopicNotFound, InvalidConfiguration (no such broker).
        """
        if destination is not None and self.membership.find(ROLE_BROKER, destination) is None:
            raise InvalidConfiguration(f"there is no live broker {destination}")
        topics = [name for name in self.registry.members(TopicName.parse(topic)) if name in self.placement.table]
        await self._move(dict.fromkeys(topics, destination))

    async def rebalance(self) -> None:
        """Move topics until they are spread evenly, a few at a time.

        One at a time: of those that are asked for meanwhile one runs afterwards, and looks at things as they are then.
        """
        if self._rebalance_waits:
            return
        self._rebalance_waits = True
        try:
            await self._rebalancing.acquire()
        finally:
            self._rebalance_waits = False
        try:
            await self._rebalance()
        finally:
            self._rebalancing.release()

    async def _rebalance(self) -> None:
        moved = 0
        bound = len(self.placement.table)
        while moved < bound:
            brokers = [session.node_id for session in self.membership.of_role(ROLE_BROKER)]
            moves = self.placement.table.rebalance(brokers, REBALANCE_MOVES_AT_A_TIME)
            if not moves:
                break
            logger.info("rebalancing: %d topics move", len(moves))
            await self._move(moves)
            moved += len(moves)

    async def _assign(self, topic: str, preferred: str | None = None) -> Assignment:
        try:
            async with asyncio.timeout(ASSIGN_TIMEOUT_S):
                return await self.placement.assign(topic, preferred)
        except TimeoutError:
            raise ServiceUnitNotReady(f"{topic} could not be assigned within {ASSIGN_TIMEOUT_S} s") from None

    async def _move(self, moves: Mapping[str, str | None]) -> None:
        """Have the owners close these topics, then assign them elsewhere. An owner that does not answer is no reason to
        wait: the new one fences its ledgers.
        """
        self.placement.hold(moves)
        try:
            await self._at_a_time([self._release(topic) for topic in moves])
            self.placement.force(moves)
        finally:
            self.placement.unhold(moves)
        await self.placement.settle()

    async def _release(self, topic: str) -> None:
        assignment = self.placement.table.get(topic)
        if assignment is None:
            return
        try:
            await self.broker_calls.call(assignment.broker, "unload", topic=topic, timeout_s=RELEASE_TIMEOUT_S)
        except MagnetarError as error:
            logger.warning("%s did not release %s in order: %s", assignment.broker, topic, error)

    async def _at_a_time(self, coroutines: Sequence[Any]) -> None:
        permits = asyncio.Semaphore(CALLS_AT_A_TIME)

        async def bounded(coroutine: Any) -> None:
            async with permits:
                await coroutine

        await asyncio.gather(*(bounded(coroutine) for coroutine in coroutines))

    # -- topics --------------------------------------------------------------------------------------------------

    async def rpc_partitions(self, connection: RpcConnection, topic: str, create: bool = False) -> int:
        """Partitions of a topic, 0 without. `create` is for missing topics: one that the settings want partitioned is
        created, any other has none. Raises TopicNotFound."""
        check_topic_creation(connection, create)
        return await self.registry.partitions(TopicName.parse(topic), create=create)

    async def rpc_create_topic(self, connection: RpcConnection, topic: str, partitions: int = 0) -> None:
        """Raises KeyExists, TopicNotFound (no such namespace), NotAllowedError, InvalidConfiguration."""
        await self.registry.create(TopicName.parse(topic), partitions)

    async def rpc_grow_topic(self, connection: RpcConnection, topic: str, partitions: int) -> None:
        """Raise the number of partitions. Raises TopicNotFound, InvalidConfiguration."""
        name = TopicName.parse(topic)
        await self.registry.grow(name, partitions)
        self._partitions_changed(name.full, partitions)

    async def rpc_delete_topic(self, connection: RpcConnection, topic: str, force: bool = False) -> None:
        """Delete a topic with all its partitions and data; see `topic_deletions`.

        Raises TopicNotFound, NotAllowedError (in use and not `force`), ServiceUnitNotReady: it takes long and goes on.
        After any error it can be called again.
        """
        name = TopicName.parse(topic)
        if name.partition >= 0 and self.registry.find(name) is None:
            raise NotAllowedError(f"{topic} is a partition: delete the topic as a whole")
        await self.deletions.delete(name, force=force)

    async def rpc_topic_records(
        self, connection: RpcConnection, namespace: str, after: str = "", limit: int = 1000
    ) -> list[tuple[str, int]]:
        """A page of a namespace's topics, behind `after`: [full name, partitions]. Raises TopicNotFound."""
        return self.registry.list_topics(namespace, after, limit)

    # -- namespaces and tenants ----------------------------------------------------------------------------------

    async def rpc_namespaces(self, connection: RpcConnection, tenant: str) -> list[str]:
        """Raises NoSuchKey for a missing tenant."""
        return self.registry.namespaces(tenant)

    async def rpc_namespace(self, connection: RpcConnection, namespace: str) -> dict[str, Any]:
        """The record of a namespace. Raises TopicNotFound."""
        return self.registry.namespace(namespace)

    async def rpc_create_namespace(
        self, connection: RpcConnection, namespace: str, policies: dict[str, Any] | None = None
    ) -> None:
        """Raises KeyExists, NoSuchKey (no such tenant), InvalidTopicName."""
        await self.registry.create_namespace(namespace, policies or {})

    async def rpc_delete_namespace(self, connection: RpcConnection, namespace: str) -> None:
        """Raises TopicNotFound, NotAllowedError while it has topics."""
        await self.registry.delete_namespace(namespace)

    async def rpc_tenants(self, connection: RpcConnection) -> list[str]:
        return self.registry.tenants()

    async def rpc_tenant(self, connection: RpcConnection, tenant: str) -> dict[str, Any]:
        """Raises NoSuchKey."""
        return self.registry.tenant(tenant)

    async def rpc_put_tenant(
        self, connection: RpcConnection, tenant: str, record: dict[str, Any], create: bool = True
    ) -> None:
        """Create a tenant, or change one. Raises KeyExists, NoSuchKey, InvalidTopicName."""
        await self.registry.put_tenant(tenant, record, create=create)

    async def rpc_delete_tenant(self, connection: RpcConnection, tenant: str) -> None:
        """Raises NoSuchKey, NotAllowedError while it has namespaces."""
        await self.registry.delete_tenant(tenant)

    # -- bookies in the metadata ---------------------------------------------------------------------------------

    async def cookie_of(self, bookie_id: str) -> dict[str, Any] | None:
        """The cookie of a bookie, None when it never was."""
        record = await self.metadata_store().get(metadata_keys.bookie(bookie_id))
        return unpack(record.value) if record is not None else None

    async def registered_bookies(self) -> list[str]:
        """Ids of all bookies that have a cookie, alive or not."""
        records = await list_all(self.metadata_store(), metadata_keys.BOOKIES_PREFIX)
        return [metadata_keys.bookie_id_of(key) for key, _ in records]


def _url_of(session: Session) -> str:
    return session.data.get("url", f"pulsar://{session.host}:{session.port}")
