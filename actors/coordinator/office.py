"""The office of the coordinator: everything that it has from the moment it is active.

`Office.open` takes office: it raises the epoch, reads the records and returns the whole. It returns nothing half-built:
a failure closes what was made, and raises.

States: *active* (`open`) → *ended* (`end`, or another coordinator took office) → *closed* (`close`). An ended office
pushes no changes of slots and begins no moves. Its store refuses every write after another coordinator took office.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from ...protocol.errors import ClusterError, ServiceUnitNotReady, TopicNotFound
from ...protocol.names import COORDINATOR_ID, ROLE_COORDINATOR
from ...protocol.topics import PERSISTENT, TopicName
from ...runtime.environment import Environment
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.contract import CALLER
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.settings.declarations import Settings
from ...storage.ledger.bookie_directory import BookieDirectory
from ...storage.metadata.cluster_identity import convert, read_cluster_id
from ...storage.metadata.epoch_guard import EpochMetadataStore, take_office
from ...storage.metadata.ledger_ids import LedgerIds
from ...storage.metadata.registered_bookies import registered_instances
from ...storage.metadata.slot_rows import SlotRows
from ...storage.metadata.store import MetadataStore
from ..auditor.service import Auditor
from ..desired.state import DesiredMembers
from ..members.contracts_broker import BrokerContract
from ..members.contracts_coordinator import (
    MemberContract,
    NamespacePolicies,
    TopicChange,
    TopicPage,
    TopicWatchContract,
)
from ..members.peer_calls import MemberCalls
from ..slots.contents import SlotContents
from .drains import Drains
from .grants import Grants
from .member_lists import MemberLists
from .membership import Membership
from .namespace_deletions import NamespaceDeletions
from .namespaces import Namespaces
from .placement import SlotPlacement
from .rebalancing import Rebalancer
from .topic_deletions import TopicDeletions
from .topic_growth import TopicGrowths
from .topic_policies import TopicPolicies
from .topic_registry import TopicRegistry

logger = logging.getLogger(__name__)

PAGE = 5000
"""Topics that one answer holds."""


class TopicWatchers(TopicWatchContract):
    """Which brokers watch the topics of which namespaces, and what they are told: each creation, growth and deletion.

    A broker asks for pages of a namespace's topics (`watch_topics`). From the first page on, it is pushed each change
    in the namespace over the same connection, until it says `unwatch_topics` or the connection ends. Pages and pushes
    have numbers. A page holds all changes up to its number, and a push with a greater number is not in it. A number is
    taken and used in one step of the event loop, with the change in the registry. A change in a namespace that nobody
    watches costs nothing.

    Nothing of this is stored. When a connection ends, or another coordinator becomes active, brokers ask again.
    """

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

    async def watch_topics(self, *, namespace: str, after: str = "", caller: RpcConnection = CALLER) -> TopicPage:
        if not caller.closed:
            self._watching.setdefault(namespace, {}).setdefault(caller, MemberContract(caller.notify))
        try:
            found = self._registry.list_topics(namespace, max(after, f"{PERSISTENT}:"), PAGE + 1)
        except TopicNotFound:
            found = []
        return TopicPage(self._number, found[:PAGE], len(found) > PAGE)

    async def unwatch_topics(self, *, namespace: str, caller: RpcConnection = CALLER) -> None:
        self._unwatch(caller, namespace)

    def _unwatch(self, connection: RpcConnection, namespace: str) -> None:
        connections = self._watching.get(namespace, {})
        connections.pop(connection, None)
        if not connections:
            self._watching.pop(namespace, None)

    def leave(self, connection: RpcConnection) -> None:
        """The connection has ended."""
        for namespace in [name for name, connections in self._watching.items() if connection in connections]:
            self._unwatch(connection, namespace)

    def _changed(self, topic: TopicName, before: int | None, partitions: int | None) -> None:
        connections = self._watching.get(topic.namespace)
        if not connections or not topic.persistent:
            return
        self._number += 1
        changes = [TopicChange(topic.full, partitions)]
        for member in connections.values():
            member.topics_changed(epoch=self._epoch, namespace=topic.namespace, number=self._number, changes=changes)


TOPIC_EPOCH_TIMEOUT_S = 8.0
"""How long the creation of a topic waits until it is certain who owns which slot."""


class Office:
    """See the module. Made by `open` only. `on_ended` is called when another coordinator took office.

    The cluster has so many `slots`.
    """

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        ledger_ids: LedgerIds,
        cluster_id: str,
        keys: Keys,
        settings: Settings,
        slots: int,
        on_ended: Callable[[], None],
    ) -> None:
        self.active = True
        self.env = env
        self.settings = settings
        self.stopping = False
        """Whether the whole cluster is being stopped: members leave one after the other."""
        self.store = store
        self.ledger_ids = ledger_ids
        self.identity = Identity(cluster_id, ROLE_COORDINATOR, COORDINATOR_ID, str(store.epoch))
        self.bookies = BookieDirectory()
        self.membership = Membership(settings.session_timeout_s, self.tick_interval_s)
        self.namespaces = Namespaces(env, store, settings, self._policies_changed)
        self.registry = TopicRegistry(env, store, settings, self.namespaces)
        self.watchers = TopicWatchers(store.epoch, self.registry)
        self.topic_policies = TopicPolicies(env, store, settings, self.registry, self._policies_changed)
        self.lists = MemberLists(store.epoch, self.membership, self.bookies, ledger_ids)
        contents = SlotContents(slots)
        self.placement = SlotPlacement(env, store, self.membership, slots, self._slots_changed, contents.is_empty)
        self.registry.topic_epoch = self._topic_epoch
        self.registry.on_changed.append(self._topic_changed)
        self.registry.on_deletion = self._deletion_begins
        self.broker_calls = MemberCalls(env, self.identity, keys, self.lists.find_broker, BrokerContract)
        self.rebalancer = Rebalancer(
            self.membership, self.placement, contents, self.broker_calls, settings.rebalance_delay_s
        )
        self.drains = Drains(env, DesiredMembers(env, store, settings), store, self.rebalancer)
        self.deletions = TopicDeletions(
            env,
            store,
            self.membership,
            self.placement,
            self.registry,
            self.topic_policies,
            self.broker_calls,
            Grants(self.placement, self.registry),
        )
        self.growths = TopicGrowths(env, store, self.placement, self.registry, self.broker_calls, self.grants)
        self.namespace_deletions = NamespaceDeletions(env, self.namespaces, self.registry, self.deletions)
        self.auditor = Auditor(
            env,
            self.identity,
            keys,
            settings,
            store,
            self.bookies,
            self.lists.bookies_in_limbo,
            self.lists.damaged_bookies,
        )
        store.on_written = self.auditor.written
        self.auditor.forget_retired(self._is_retired)
        self.desired.on_change.append(self._desired_changed)
        store.on_superseded = partial(self._superseded, on_ended)

    @classmethod
    async def open(
        cls,
        env: Environment,
        metadata: MetadataStore,
        cluster_id: str,
        keys: Keys,
        settings: Settings,
        on_ended: Callable[[], None],
    ) -> "Office":
        """Take office. Raises ClusterError (no cluster in the store, or another), MetadataUnavailable."""
        found = await read_cluster_id(metadata)
        if found != cluster_id:
            raise ClusterError(
                f"the metadata store belongs to cluster {found}, not to {cluster_id}"
                if found is not None
                else "the metadata store holds no cluster: create one with `magnetar start`"
            )
        store = await take_office(metadata)
        store.on_superseded = on_ended
        slots = await convert(store)
        ledger_ids = LedgerIds(env, store)
        await ledger_ids.load()
        office = cls(env, store, ledger_ids, cluster_id, keys, settings, slots, on_ended)
        try:
            await office.desired.start()
            office.membership.draining = office.desired.emptied
            await office.namespaces.start()
            await office.registry.start()
            await office.topic_policies.start()
            await office.placement.start()
            office.deletions.start()
            office.growths.start()
            office.namespace_deletions.start()
            office.drains.start()
        except BaseException:
            await office.close()
            raise
        return office

    @property
    def desired(self) -> DesiredMembers:
        """What should run."""
        return self.drains.desired

    @property
    def contents(self) -> SlotContents:
        """Which topics lie in which slot."""
        return self.rebalancer.contents

    @property
    def grants(self) -> Grants:
        """Makes what owners open topics with."""
        return self.deletions.grants

    @property
    def tick_interval_s(self) -> float:
        """How often sessions are judged."""
        return self.settings.heartbeat_interval_s / 2

    @property
    def cluster_id(self) -> str:
        """Of the cluster that the metadata store belongs to."""
        return self.identity.cluster_id

    @property
    def epoch(self) -> int:
        """The epoch of this coordinator."""
        return self.store.epoch

    async def registered_instances(self) -> dict[str, str]:
        """The life of the disk in each bookie's cookie. Raises MetadataUnavailable, MetadataError."""
        return await registered_instances(self.store)

    def end(self) -> None:
        """Leave office."""
        self.active = False
        self.rebalancer.stop()

    async def close(self) -> None:
        """Leave office and end all that is under way. The metadata store stays open."""
        self.end()
        await self.drains.close()
        await self.rebalancer.close()
        await self.auditor.close()
        await self.namespace_deletions.close()
        await self.growths.close()
        await self.deletions.close()
        await self.topic_policies.close()
        await self.registry.close()
        await self.namespaces.close()
        await self.placement.close()
        await self.broker_calls.close()

    def _superseded(self, on_ended: Callable[[], None]) -> None:
        logger.error("another coordinator became active, so this one (epoch %d) ends", self.epoch)
        self.end()
        on_ended()

    def broker_ended(self, broker: str) -> None:
        """A broker's session ended, or it lives on as another incarnation: other brokers get its slots.

        Topics that exist in memory only end with it.
        """
        table = self.placement.table
        gone = [topic for slot in table.slots_of(broker) for topic, _ in self.contents.members(slot)]
        for topic in (*gone, *table.exceptions_of(broker)):
            self.registry.forget(topic)
        self.placement.broker_lost(broker)

    def _slots_changed(self, number: int, rows: SlotRows) -> None:
        if self.active:
            self.lists.slots_changed(number, rows)

    def _deletion_begins(self, topic: TopicName) -> None:
        if self.active:
            self.lists.partitions_changed(topic.full, -1)

    def _topic_changed(self, topic: TopicName, before: int | None, now: int | None) -> None:
        self.contents.change(topic.full, before, now)
        if self.active and before is not None:
            self.lists.partitions_changed(topic.full, -1 if now is None else now)

    async def _topic_epoch(self) -> int:
        try:
            async with asyncio.timeout(TOPIC_EPOCH_TIMEOUT_S):
                return await self.placement.topic_epoch()
        except TimeoutError:
            raise ServiceUnitNotReady(
                f"the owners of slots are not certain within {TOPIC_EPOCH_TIMEOUT_S} s: try again"
            ) from None

    def _desired_changed(self) -> None:
        if self.desired.emptied != self.membership.draining:
            self.membership.draining = self.desired.emptied
            self.lists.bookies_changed()
            self.placement.broker_joined()  # one that stays after all gets slots again
            self.rebalancer.brokers_changed()
            self.auditor.wake()  # a bookie that was retired is not lost

    def _is_retired(self, bookie: str) -> bool:
        """Whether the record of what should run does not name it; without a record no bookie is retired."""
        state = self.desired.state
        return state is not None and bookie not in state

    def _policies_changed(self, change: NamespacePolicies) -> None:
        if self.active:
            self.lists.policies_changed(change)
