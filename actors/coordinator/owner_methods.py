"""What the coordinator answers about the owners of topics: who serves a topic, what a broker owns, and moving it.

The owner of a topic opens it with a *grant* (`TopicGrant`). Only the present owner gets one, and only for a topic that
exists and is not being deleted. What a grant says is true in the step in which it is made. Numbers of grants and of
releases come from one counter. A broker that was asked to release a topic refuses older grants that arrive late.
"""

import asyncio
import contextlib
from itertools import takewhile

from ...protocol.errors import InvalidConfiguration, KeyExists, ProtocolError, ServiceUnitNotReady
from ...protocol.names import ROLE_BROKER
from ...protocol.slots import TopicGrant
from ...protocol.system_topics import heartbeat_topic
from ...protocol.topics import TopicName
from ...runtime.rpc.connection import RpcConnection
from ...storage.metadata.slot_rows import SlotEntry, SlotOwner
from ..members.contracts_coordinator import GrantPage, Owner
from ..members.permissions import check_topic_creation
from .member_lists import url_of
from .membership import Session
from .office import Office

ASSIGN_TIMEOUT_S = 8.0
GRANTS_PER_PAGE = 1000


class PlacementMethods:
    """See the module."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._membership = office.membership
        self._placement = office.placement
        self._registry = office.registry

    async def rpc_lookup(self, connection: RpcConnection, topic: str) -> str:
        """The URL of the broker that serves a partition or plain topic. Nothing is created.

        For a topic that is missing, but would be created by a producer or consumer, it is that of the broker which
        shall create it. Raises what `rpc_assign` raises.
        """
        name = TopicName.parse(topic)
        if not self._registry.would_create(name):
            await self._registry.check_assignable(name, create=False)
        return url_of((await self._owner(name))[1])

    async def rpc_assign(self, connection: RpcConnection, topic: str, create: bool | None = None) -> Owner:
        """The owner of a partition or plain topic. It gets a grant, if it is the broker that asks.

        `create` makes a missing topic (None: if automatic creation is allowed). Raises TopicNotFound, NotAllowedError,
        ServiceUnitNotReady (no broker, or it takes too long).
        """
        check_topic_creation(connection, create)
        name = TopicName.parse(topic)
        wanted = self._office.namespaces.creation(name.namespace).allow if create is None else create
        await self._registry.check_assignable(name, wanted)
        entry, session = await self._owner(name)
        facts = self._registry.facts(name)
        if facts is None:
            raise ServiceUnitNotReady(f"{topic} is being deleted")
        asks = connection.peer.node_id == session.node_id and connection.peer.incarnation == session.incarnation
        grant = self._office.grants.make(name) if asks else None
        return Owner(session.node_id, session.incarnation, max(entry.epoch, facts.epoch), url_of(session), grant)

    async def rpc_slot_topics(self, connection: RpcConnection, slots: list[int]) -> GrantPage:
        """Grants for what lies in these slots and is the calling broker's: of some of the slots, at least one.

        Slots that it does not own have none. Raises ServiceUnitNotReady when the first one may be about to move,
        ProtocolError for what is no slot.
        """
        contents, placement = self._office.contents, self._placement
        if not slots or not all(0 <= slot < contents.slots for slot in slots):
            raise ProtocolError(f"there are {contents.slots} slots")
        free = list(takewhile(lambda slot: not placement.may_move(slot), slots))
        if not free:
            raise ServiceUnitNotReady(f"slot {slots[0]} may be about to move: ask again")
        members, done = contents.page(free, GRANTS_PER_PAGE)
        peer = SlotOwner(connection.peer.node_id, connection.peer.incarnation)
        grants: list[TopicGrant] = []
        for topic, index in members:
            name = TopicName.parse(topic)
            name = name if index < 0 else name.partition_topic(index)
            grant = self._office.grants.make(name) if placement.table.entry_of(name).owner == peer else None
            if grant is not None:
                grants.append(grant)
        return GrantPage(grants, done)

    async def rpc_unload(self, connection: RpcConnection, topic: str, destination: str | None = None) -> None:
        """Close a topic (of a partitioned one: every partition) where it is and give it to `destination`, or to any
        other broker. Raises TopicNotFound, InvalidConfiguration (no such broker), NotAllowedError (too many topics
        were moved alone).
        """
        if destination is not None and self._membership.find(ROLE_BROKER, destination) is None:
            raise InvalidConfiguration(f"{destination} is not a live broker: choose one that `magnetar status` lists")
        topics = self._registry.members(TopicName.parse(topic))
        await self._office.rebalancer.order(dict.fromkeys(topics, destination))

    async def rpc_heartbeat_topic(self, connection: RpcConnection) -> str:
        """The topic that the health check of the calling broker uses, made and moved to it if need be.

        Raises ServiceUnitNotReady: no session, or the topic is being deleted at this moment.
        """
        session = self._membership.find(ROLE_BROKER, connection.peer.node_id)
        if session is None:
            raise ServiceUnitNotReady(f"{connection.peer.node_id} is not registered")
        address = url_of(session).removeprefix("pulsar://").replace("[", "").replace("]", "")
        name = heartbeat_topic(address)
        with contextlib.suppress(KeyExists):
            await self._registry.create(name, 0, system=True)
        _, owner = await self._owner(name)
        if owner.node_id != session.node_id:
            await self._office.rebalancer.move_topics({name.full: session.node_id})
        return name.full

    async def _owner(self, name: TopicName) -> tuple[SlotEntry, Session]:
        """The entry that names the live owner at this moment, and the owner. Raises ServiceUnitNotReady."""
        try:
            async with asyncio.timeout(ASSIGN_TIMEOUT_S):
                while True:
                    entry = await self._placement.owner(name)
                    if entry == self._placement.table.entry_of(name) and not self._placement.holds(name):
                        break
        except TimeoutError:
            raise ServiceUnitNotReady(f"{name.full} could not be assigned within {ASSIGN_TIMEOUT_S} s") from None
        assert entry.owner is not None
        session = self._membership.find(ROLE_BROKER, entry.owner.broker)
        if session is None or session.incarnation != entry.owner.incarnation:
            raise ServiceUnitNotReady(f"{name.full} is being moved")
        return entry, session
