"""The office of the coordinator: everything that it has from the moment it is active.

`Office.open` takes office: it raises the epoch, reads the records and returns the whole. It returns nothing half-built:
a failure closes what was made, and raises.

States: *active* (`open`) → *ended* (`end`, or another coordinator took office) → *closed* (`close`). An ended office
pushes no assignments and begins no moves. Its store refuses every write after another coordinator took office.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from ...protocol.errors import ClusterError
from ...protocol.names import COORDINATOR_ID, ROLE_COORDINATOR
from ...runtime.environment import Environment
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.settings.declarations import Settings
from ...storage.ledger.bookie_directory import BookieDirectory
from ...storage.metadata.cluster_identity import read_cluster_id
from ...storage.metadata.epoch_guard import EpochMetadataStore, take_office
from ...storage.metadata.ledger_ids import LedgerIds
from ...storage.metadata.registered_bookies import registered_instances
from ...storage.metadata.store import MetadataStore
from ..auditor.service import Auditor
from ..desired.drains import Drains
from ..desired.state import DesiredMembers
from ..members.contracts_broker import BrokerContract
from ..members.contracts_coordinator import AssignmentChange
from ..members.contracts_namespaces import NamespacePolicies
from ..members.peer_calls import MemberCalls
from .member_lists import MemberLists
from .membership import Membership
from .namespace_deletions import NamespaceDeletions
from .namespaces import Namespaces
from .placement import Placement
from .rebalancing import Rebalancer
from .topic_deletions import TopicDeletions
from .topic_policies import TopicPolicies
from .topic_registry import TopicRegistry
from .topic_watchers import TopicWatchers

logger = logging.getLogger(__name__)


class Office:
    """See the module. Made by `open` only. `on_ended` is called when another coordinator took office."""

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        ledger_ids: LedgerIds,
        cluster_id: str,
        keys: Keys,
        settings: Settings,
        on_ended: Callable[[], None],
    ) -> None:
        self.active = True
        self.env = env
        self.settings = settings
        self.store = store
        self.ledger_ids = ledger_ids
        self.identity = Identity(cluster_id, ROLE_COORDINATOR, COORDINATOR_ID, str(store.epoch))
        self.bookies = BookieDirectory()
        self.membership = Membership(settings.session_timeout_s, self.tick_interval_s)
        self.namespaces = Namespaces(env, store, settings, self._policies_changed)
        self.registry = TopicRegistry(env, store, settings, self.namespaces)
        self.watchers = TopicWatchers(store.epoch, self.registry)
        self.topic_policies = TopicPolicies(env, store, settings, self.registry, self._policies_changed)
        self.lists = MemberLists(store.epoch, self.membership, self.registry, self.bookies, ledger_ids)
        self.placement = Placement(env, store, self.membership, self._assignments_changed, self.registry)
        self.broker_calls = MemberCalls(env, self.identity, keys, self.lists.find_broker, BrokerContract)
        self.rebalancer = Rebalancer(self.membership, self.placement, self.broker_calls, settings.rebalance_delay_s)
        self.drains = Drains(env, DesiredMembers(env, store, settings), store, self.rebalancer)
        self.deletions = TopicDeletions(
            env, store, self.membership, self.placement, self.registry, self.topic_policies, self.broker_calls
        )
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
        ledger_ids = LedgerIds(env, store)
        await ledger_ids.load()
        office = cls(env, store, ledger_ids, cluster_id, keys, settings, on_ended)
        try:
            await office.desired.start()
            office.membership.draining = office.desired.emptied
            await office.namespaces.start()
            await office.registry.start()
            await office.topic_policies.start()
            await office.placement.start()
            office.deletions.start()
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
        await self.deletions.close()
        await self.topic_policies.close()
        await self.namespaces.close()
        await self.placement.close()
        await self.broker_calls.close()

    def _superseded(self, on_ended: Callable[[], None]) -> None:
        logger.error("another coordinator became active, so this one (epoch %d) ends", self.epoch)
        self.end()
        on_ended()

    def _assignments_changed(self, changes: Sequence[AssignmentChange]) -> None:
        if changes and self.active:
            self.lists.assignments_changed(changes)

    def _desired_changed(self) -> None:
        if self.desired.emptied != self.membership.draining:
            self.membership.draining = self.desired.emptied
            self.lists.bookies_changed()
            self.rebalancer.brokers_changed()  # one that stays after all gets topics again

    def _policies_changed(self, change: NamespacePolicies) -> None:
        if self.active:
            self.lists.policies_changed(change)
