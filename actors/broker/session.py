"""One incarnation of a broker: the identity under which it is registered, and everything that hangs on that.

What it owns is `Ownership`'s. A topic is opened under the guard of its own record, as the coordinator named it. When
that record has changed since (the topic got partitions, or properties) the coordinator is asked again.
"""

from collections.abc import Awaitable, Callable

from ...protocol.cluster_status import MemberData
from ...protocol.errors import ConditionFailed, ServiceUnitNotReady
from ...protocol.topics import TopicName
from ...runtime.environment import Environment
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.settings.declarations import Settings
from ...storage.ledger.bookie_client import BookieClient
from ...storage.ledger.entry_cache import EntryCache
from ...storage.ledger.ledgers import Ledgers
from ...storage.managed.deletion import delete_managed_ledger
from ...storage.managed.managed_ledger import ManagedLedger
from ..members.coordinator_link import CoordinatorClient
from ..members.feeds import Feeds
from ..members.topic_watch import TopicWatch
from .ownership import Ownership

OPEN_TRIES_MAX = 3
"""With the record of the topic as the coordinator names it, which may change meanwhile."""


class BrokerSession:
    """See the module. `on_lost` is called once if the coordinator declares this incarnation over."""

    def __init__(
        self,
        env: Environment,
        identity: Identity,
        keys: Keys,
        settings: Settings,
        locate_coordinator: Callable[[], Awaitable[tuple[str, int]]],
        ownership: Ownership,
        topic_watch: TopicWatch,
        on_lost: Callable[[], None],
    ) -> None:
        ownership.topics.policies.begin_session()
        feeds = Feeds(ownership.topics.policies, topic_watch, ownership)
        self.identity = identity
        self.coordinator = CoordinatorClient(env, identity, keys, settings, locate_coordinator, feeds)
        self._env = env
        self._settings = settings
        self._ownership = ownership
        self._bookies = BookieClient(env, identity, keys, settings, self.coordinator.bookies)
        self._ledgers = Ledgers(env, self.coordinator.metadata, self._bookies, settings)
        self._cache = EntryCache(settings.cache_size_mb << 20)
        """The latest entries of all topics of this broker."""
        ownership.begin(self.coordinator)
        self.coordinator.on_session_lost.append(on_lost)

    async def start(self, host: str, port: int, data: MemberData) -> None:
        """Connect and register. Raises StaleEpoch, HandshakeRefused, CoordinatorUnavailable."""
        await self.coordinator.start()
        await self.coordinator.register(host, port, data)

    async def open_ledger(self, name: TopicName, epoch: int) -> ManagedLedger:
        """Open a topic's managed ledger as its owner under `epoch`; recovers what the previous owner left open."""
        for _ in range(OPEN_TRIES_MAX):
            try:
                return await ManagedLedger.open(
                    self._env,
                    self._ledgers,
                    self.coordinator.metadata,
                    name.path,
                    epoch,
                    self._settings,
                    needs=self._ownership.guard(name, epoch),
                    cache=self._cache,
                )
            except ConditionFailed:
                if not await self._ownership.claimed(await self.coordinator.ask.assign(topic=name.full, create=False)):
                    break
        raise ServiceUnitNotReady(f"{name.full} has changed while it was opened: try again")

    async def delete_ledger(self, name: TopicName, epoch: int) -> None:
        """Delete all that a topic stores; see `managed.deletion`."""
        await delete_managed_ledger(self._env, self._ledgers, self.coordinator.metadata, name.path, epoch)

    def lacking_copies(self) -> int:
        """How many of the ledgers that are written have fewer copies than they should."""
        return self._ledgers.lacking_copies()

    async def close(self) -> None:
        """Leave the cluster. The topics must be closed by then."""
        await self._bookies.close()
        await self.coordinator.close()
