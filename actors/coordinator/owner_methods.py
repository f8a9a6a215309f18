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
from ...runtime.rpc.contract import CALLER
from ...storage.metadata.slot_rows import SlotEntry, SlotOwner
from ..members.contracts_coordinator import GrantPage, Owner, PlacementContract
from ..members.permissions import check_topic_creation
from .member_lists import url_of
from .membership import Session
from .office import Office

ASSIGN_TIMEOUT_S = 8.0
GRANTS_PER_PAGE = 1000


class PlacementMethods(PlacementContract):
    """See the module."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._membership = office.membership
        self._placement = office.placement
        self._registry = office.registry

    async def lookup(self, *, topic: str) -> str:
        name = TopicName.parse(topic)
        if not self._registry.would_create(name):
            await self._registry.check_assignable(name, create=False)
        return url_of((await self._owner(name))[1])

    async def assign(self, *, topic: str, create: bool | None = None, caller: RpcConnection = CALLER) -> Owner:
        check_topic_creation(caller, create)
        name = TopicName.parse(topic)
        wanted = self._office.namespaces.creation(name.namespace).allow if create is None else create
        await self._registry.check_assignable(name, wanted)
        entry, session = await self._owner(name)
        facts = self._registry.facts(name)
        if facts is None:
            raise ServiceUnitNotReady(f"{topic} is being deleted")
        asks = caller.peer.node_id == session.node_id and caller.peer.incarnation == session.incarnation
        grant = self._office.grants.make(name) if asks else None
        return Owner(session.node_id, session.incarnation, max(entry.epoch, facts.epoch), url_of(session), grant)

    async def slot_topics(self, *, slots: list[int], caller: RpcConnection = CALLER) -> GrantPage:
        contents, placement = self._office.contents, self._placement
        if not slots or not all(0 <= slot < contents.slots for slot in slots):
            raise ProtocolError(f"there are {contents.slots} slots")
        free = list(takewhile(lambda slot: not placement.may_move(slot), slots))
        if not free:
            raise ServiceUnitNotReady(f"slot {slots[0]} may be about to move: ask again")
        members, done = contents.page(free, GRANTS_PER_PAGE)
        peer = SlotOwner(caller.peer.node_id, caller.peer.incarnation)
        grants: list[TopicGrant] = []
        for topic, index in members:
            name = TopicName.parse(topic)
            name = name if index < 0 else name.partition_topic(index)
            grant = self._office.grants.make(name) if placement.table.entry_of(name).owner == peer else None
            if grant is not None:
                grants.append(grant)
        return GrantPage(grants, done)

    async def unload(self, *, topic: str, destination: str | None = None) -> None:
        if destination is not None and self._membership.find(ROLE_BROKER, destination) is None:
            raise InvalidConfiguration(f"{destination} is not a live broker: choose one that `magnetar status` lists")
        topics = self._registry.members(TopicName.parse(topic))
        await self._office.rebalancer.order(dict.fromkeys(topics, destination))

    async def heartbeat_topic(self, *, caller: RpcConnection = CALLER) -> str:
        session = self._membership.find(ROLE_BROKER, caller.peer.node_id)
        if session is None:
            raise ServiceUnitNotReady(f"{caller.peer.node_id} is not registered")
        address = url_of(session).partition("://")[2].replace("[", "").replace("]", "")
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
