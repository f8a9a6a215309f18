"""A broker: the socket that Pulsar's clients speak to, the topics it owns, and its place in the cluster.

`TRANSITIONS` has the states. Without a session, lookups and creations get ServiceNotReady. In SERVING the topics that
the coordinator assigns are loaded. When a broker's session is lost, other brokers may own its topics. The broker closes
all its topics, ends its incarnation and registers as a new one. Its sockets stay open meanwhile. Losing the connection
to the coordinator alone changes nothing: it serves on with what it has.

It keeps nothing that cannot be rebuilt from ledgers and metadata.
"""

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from ...protocol.cluster_status import MemberData
from ...protocol.errors import MagnetarError, NotAllowedError, RpcError, ServiceUnitNotReady
from ...protocol.names import ROLE_BROKER
from ...protocol.topics import TopicName
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.repeated_warnings import RepeatedWarnings
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.rpc.server import RpcServer
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...runtime.transitions import check_transition
from ...storage.managed.managed_ledger import ManagedLedger
from ...storage.managed.record import LeftBehind, left_behind
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.store import Guard
from ..balancing.sampling import LoadSampler, TopicCounts
from ..connections.connection import ServerConnection, refusal_of_connection
from ..connections.consumer_commands import ConsumerCommands
from ..connections.forwarding import Forwards
from ..connections.limits import ConnectionLimits, NoTls, PublishBudget
from ..connections.link import MakeFamily
from ..connections.lookup_commands import LookupCommands
from ..connections.producer_commands import ProducerCommands
from ..connections.schema_commands import SchemaCommands
from ..connections.topic_list_commands import TopicListCommands
from ..features.table import FEATURES
from ..members.coordinator_link import CoordinatorClient
from ..members.matched_topics import MatchedLists
from ..members.topic_lookup import Lookups
from ..members.topic_watch import TopicWatch
from ..schemas.registry import SchemaRegistry
from ..security.audit import AuditLog
from ..security.authentication import ClientAuthentication
from ..security.authorization import Authorization
from ..topics.loaded_topics import Topic, Topics
from ..topics.topic import SubscriptionStart
from .health import HealthMethods
from .listeners import Listeners
from .methods import BrokerRpc
from .ownership import Ownership
from .read_planning import point_of_start
from .session import BrokerSession

logger = logging.getLogger(__name__)

TOPICS_AT_A_TIME = 200


class LoadReporting:
    """Tells the coordinator, once per interval, what the topics of this broker cost.

    The counters are those of statistics, so publishing and dispatch do nothing for it. A round looks at every loaded
    topic, `TOPICS_AT_A_TIME` in one step of the event loop. What it sends names up to `UNITS_PER_REPORT_MAX` of those
    that moved data. A report that does not get through is lost: the next one follows an interval later, and covers its
    own interval.

    `coordinator` gives the link, and raises ServiceUnitNotReady without a session.
    """

    def __init__(
        self,
        env: Environment,
        settings: Settings,
        loaded: Mapping[str, Topic],
        coordinator: Callable[[], CoordinatorClient],
    ) -> None:
        self._env = env
        self._interval_s = settings.load_report_interval_ms / 1000
        self._loaded = loaded
        self._coordinator = coordinator

    async def run(self) -> None:
        """Report until cancelled."""
        loop = asyncio.get_running_loop()
        sampler = LoadSampler(loop.time(), self._env.clock.cpu_s())
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._look(sampler)
                report = sampler.report(loop.time(), self._env.clock.cpu_s())
                await self._coordinator().ask.report_load(report=report)
            except MagnetarError as error:
                logger.debug("a load report did not get through: %s", error)
            except Exception:  # of any kind: the coordinator moves nothing while a broker does not report
                logger.exception("a load report failed; the next one follows")

    async def _look(self, sampler: LoadSampler) -> None:
        topics = list(self._loaded.items())
        for first in range(0, len(topics), TOPICS_AT_A_TIME):
            for full_name, topic in topics[first : first + TOPICS_AT_A_TIME]:
                sampler.look(full_name, topic.epoch, counts_of_topic(topic))
            await asyncio.sleep(0)


def counts_of_topic(topic: Topic) -> TopicCounts:
    """What went in and out of a topic since it was loaded."""
    published = topic.publishing.published
    messages, size, entries = 0, 0, 0
    for subscription in topic.subscriptions.values():
        sent = subscription.sent
        messages += sent[0]
        size += sent[1]
        entries += sent[2]
    return TopicCounts(published.messages, published.entries, published.bytes, messages, entries, size)


class ProducerNames:
    """Names that no other producer in the cluster has or had: a prefix that is the broker's own, and a number.

    The prefix is the cluster's name with a number that the metadata store gives out once.
    """

    def __init__(self) -> None:
        self.prefix = ""
        self._count = 0

    def new(self) -> str:
        """The next name. Raises ServiceUnitNotReady while there is no prefix."""
        if not self.prefix:
            raise ServiceUnitNotReady("this broker is joining the cluster")
        self._count += 1
        return f"{self.prefix}-{self._count}"


RPC_FRAME_SIZE_MAX = 64 << 20
SESSION_RETRY_INITIAL_S = 0.1
SESSION_RETRY_MAXIMUM_S = 5.0
CLOSE_TIMEOUT_S = 20.0
COMMAND_FAMILIES: tuple[MakeFamily, ...] = (
    ProducerCommands,
    ConsumerCommands,
    LookupCommands,
    TopicListCommands,
    SchemaCommands,
)
"""What clients may say on a connection, beside CONNECT, PING and PONG."""


def command_families(listener: str) -> tuple[MakeFamily, ...]:
    """The families of connections to a socket of this listener."""
    if not listener:
        return COMMAND_FAMILIES
    lookups = partial(LookupCommands, listener=listener)
    return tuple(lookups if one is LookupCommands else one for one in COMMAND_FAMILIES)


class BrokerState(enum.Enum):
    """See `TRANSITIONS`."""

    STOPPED = enum.auto()
    LISTENING = enum.auto()
    SERVING = enum.auto()
    RENEWING = enum.auto()
    CLOSED = enum.auto()


TRANSITIONS: Mapping[BrokerState, Collection[BrokerState]] = {
    BrokerState.STOPPED: (
        BrokerState.LISTENING,  # `start`
        BrokerState.CLOSED,  # `close`
    ),
    BrokerState.LISTENING: (  # the sockets open, and nothing keeps a session
        BrokerState.SERVING,  # the first incarnation is registered
        BrokerState.RENEWING,  # the coordinator refused it or declared it over before that
        BrokerState.CLOSED,
    ),
    BrokerState.SERVING: (
        BrokerState.RENEWING,  # the session was lost
        BrokerState.CLOSED,
    ),
    BrokerState.RENEWING: (  # topics are closed, then a new incarnation registers, tried again with back-off
        BrokerState.SERVING,  # it is registered
        BrokerState.LISTENING,  # an unexpected error ended the attempts; a loss of the last session begins them again
        BrokerState.CLOSED,
    ),
    BrokerState.CLOSED: (),
}


class BrokerService:
    """See the module. `locate_coordinator` says where the coordinator is now.

    `host` is bound. Members reach the broker under `advertised_host`, by default the same. What clients are told, say
    the settings; see `listeners`.
    """

    def __init__(
        self,
        env: Environment,
        broker_id: str,
        cluster_id: str,
        keys: Keys,
        settings: Settings,
        host: str,
        port: int,
        locate_coordinator: Callable[[], Awaitable[tuple[str, int]]],
        advertised_host: str | None = None,
    ) -> None:
        self.env = env
        self.broker_id = broker_id
        self.state = BrokerState.STOPPED
        self.settings = settings
        self.topics = Topics(
            env,
            settings,
            self._open_ledger,
            self._delete_ledger,
            self._read_left,
            self._claim,
            self._retire,
            self._prepare_subscription,
            features=FEATURES,
        )
        lists = MatchedLists(TopicWatch(env, self._coordinator))
        self.ownership = Ownership(env, self.topics)
        """What it owns."""
        self.lookups = Lookups(self._coordinator, self.ownership, settings.lookup_requests_max, lists)
        self.schemas = SchemaRegistry(env, lambda: self._coordinator().metadata)
        self.topics.policies.on_permissions = self._permissions_changed
        self.authentication = ClientAuthentication(env, settings, keys.client_key)
        self.authorization = Authorization.of_settings(settings, self.topics.policies)
        self.audit = AuditLog(env, settings, broker_id)
        self.strangers = RepeatedWarnings(logger, lambda: env.clock.now_ms() / 1000)
        """Of clients that were not let in."""
        self.connection_limits = ConnectionLimits(settings)
        self.publish_budget = PublishBudget(settings.publish_buffer_max_mb << 20)
        self.requests = Tasks()
        self.connections: dict[ServerConnection, None] = {}
        self._cluster_id = cluster_id
        self._keys = keys
        self._listeners = Listeners(
            env,
            settings,
            broker_id,
            (host, port),
            advertised_host or host,
            self._connection,
            self._answer_plain,
            lambda: self._coordinator().brokers.values(),
        )
        self._locate_coordinator = locate_coordinator
        self._session: BrokerSession | None = None
        self._rpc: RpcServer | None = None
        self._tasks = Tasks()
        self._tick: asyncio.TimerHandle | None = None
        self._names = ProducerNames()

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, then register, however long the coordinator takes.

        Raises OSError when an address is taken, SettingError when the settings' addresses make no sense here, or a key
        cannot be read.
        """
        self._become(BrokerState.LISTENING)
        loop = asyncio.get_running_loop()
        await self.authentication.start()
        await self._listeners.open()
        identity = Identity(self._cluster_id, ROLE_BROKER, self.broker_id, self.env.random.hex(8))
        self._rpc = RpcServer(
            self.env,
            identity,
            self._keys,
            BrokerRpc(
                self.topics,
                self.ownership,
                self.schemas,
                lambda: self._coordinator().bookies.bookies.values(),
                HealthMethods(self.env, self.topics, lambda: self._coordinator().ask.heartbeat_topic()),
                self.service_url.partition("://")[2],
                self._lacking_copies,
            ),
            frame_size_max=RPC_FRAME_SIZE_MAX,
        )
        await self._rpc.start(self._listeners.node_host, 0)
        await self._begin_session(identity)
        if self.state is BrokerState.LISTENING:
            self._become(BrokerState.SERVING)
        self._tick = loop.call_later(self.settings.keep_alive_interval_s, self._keep_alive)
        if self.settings.load_balancer_enabled:
            reporting = LoadReporting(self.env, self.settings, self.topics.loaded, self._coordinator)
            self._tasks.spawn(reporting.run(), "load-reports")

    async def close(self) -> None:
        """Send all clients away, write all cursors, leave the cluster."""
        if self.state is BrokerState.CLOSED:
            return
        self._become(BrokerState.CLOSED)
        if self._tick is not None:
            self._tick.cancel()
        await self._tasks.close()
        self._listeners.close()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self.topics.close()
        except TimeoutError:
            logger.error("%s stops, although some topics did not close in time", self.broker_id)
        await self.ownership.close()
        for connection in list(self.connections):
            connection.close()
        self.connection_limits.refusals.close()
        await self.requests.close()
        await self.lookups.lists.close()
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._rpc is not None:
            await self._rpc.close()
        await self._listeners.wait_closed()

    def _become(self, state: BrokerState) -> None:
        check_transition(TRANSITIONS, self.broker_id, self.state, state)
        self.state = state

    @property
    def accepts_connections(self) -> bool:
        return self.state is not BrokerState.CLOSED

    @property
    def address(self) -> tuple[str, int]:
        """Where clients connect; the port is the real one when 0 was asked for."""
        return self._listeners.address

    @property
    def service_url(self) -> str:
        """What LOOKUP answers for topics of this broker to clients that name no listener. A broker that has TLS only
        answers `pulsar+ssl://`.
        """
        return self._listeners.told.first

    @property
    def where_tls_is(self) -> str:
        return self._listeners.told.url_tls

    @property
    def forwards(self) -> Forwards:
        """The clients' connections that are forwarded to other brokers."""
        return self._listeners.forwards

    def _connection(self, listener: str) -> ServerConnection:
        return ServerConnection(self, command_families(listener))

    def _answer_plain(self) -> NoTls:
        url = self.where_tls_is or "pulsar+ssl://"
        error = NotAllowedError(f"this port of {self.broker_id} speaks TLS only: use {url} and trust the broker's CA")
        return NoTls(self.connection_limits.refusals, refusal_of_connection(error))

    # -- the session -----------------------------------------------------------------------------------------------

    async def _begin_session(self, identity: Identity) -> None:
        assert self._rpc is not None
        self._rpc.identity = identity
        session = BrokerSession(
            self.env,
            identity,
            self._keys,
            self.settings,
            self._locate_coordinator,
            self.ownership,
            self.lookups.lists.watch,
            self._session_lost,
        )
        self._session = session
        listeners = self._listeners
        data: MemberData = {**listeners.data, "rpc": list(self._rpc.address)}
        await session.start(listeners.node_host, listeners.address[1], data)
        if not self._names.prefix:
            number = await session.coordinator.metadata.allocate(metadata_keys.PRODUCER_COUNTER, 1)
            self._names.prefix = f"{self.settings.cluster_name}-{number}"

    def _session_lost(self) -> None:
        if self.state in (BrokerState.LISTENING, BrokerState.SERVING):
            self._become(BrokerState.RENEWING)
            self._tasks.spawn(self._renew(), "renew-session")

    async def _renew(self) -> None:
        logger.warning("%s lost its session: it closes its topics and registers again", self.broker_id)
        backoff = Backoff(self.env.random, SESSION_RETRY_INITIAL_S, SESSION_RETRY_MAXIMUM_S)
        try:
            while True:
                session, self._session = self._session, None
                self.ownership.end()
                await self.topics.close_all()
                if session is not None:
                    await session.close()
                try:
                    await self._begin_session(
                        Identity(self._cluster_id, ROLE_BROKER, self.broker_id, self.env.random.hex(8))
                    )
                    if self.state is BrokerState.RENEWING:
                        self._become(BrokerState.SERVING)
                    return
                except MagnetarError as error:
                    logger.warning("%s could not register at the coordinator: %s", self.broker_id, error)
                    await asyncio.sleep(backoff.next_delay_s())
        finally:
            if self.state is BrokerState.RENEWING:
                self._become(BrokerState.LISTENING)

    def _coordinator(self) -> CoordinatorClient:
        if self._session is None:
            raise ServiceUnitNotReady("this broker is joining the cluster")
        return self._session.coordinator

    async def _open_ledger(self, name: TopicName, epoch: int) -> ManagedLedger:
        session = self._session
        if session is None:
            raise ServiceUnitNotReady("this broker is joining the cluster")
        return await session.open_ledger(name, epoch)

    async def _delete_ledger(self, name: TopicName, epoch: int) -> None:
        session = self._session
        if session is None:
            raise ServiceUnitNotReady("this broker is joining the cluster")
        await session.delete_ledger(name, epoch)

    async def _read_left(self, names: Sequence[TopicName]) -> Sequence[LeftBehind]:
        return await left_behind(self._coordinator().metadata, [name.path for name in names])

    def _lacking_copies(self) -> int:
        return self._session.lacking_copies() if self._session is not None else 0

    async def _claim(self, name: TopicName, create: bool) -> bool:
        return await self.lookups.claim(name, create)

    async def _retire(self, name: TopicName) -> None:
        await self._coordinator().ask.delete_inactive_topic(topic=name.full)

    async def _prepare_subscription(
        self, name: TopicName, subscription: str, start: SubscriptionStart, properties: Mapping[str, str]
    ) -> Guard | None:
        """See `PrepareSubscription`. Raises what the coordinator's method raises."""
        try:
            version = await self._coordinator().ask.prepare_subscription(
                topic=name.full,
                subscription=subscription,
                position=point_of_start(start, self.env.clock.now_ms()),
                properties=dict(properties),
            )
        except RpcError as error:
            if type(error) is not RpcError or "has no method" not in error.message:
                raise
            return None  # an older coordinator has no conditions
        return None if version is None else Guard(metadata_keys.topic(name.without_partition().path), version)

    # -- for connections -------------------------------------------------------------------------------------------

    def new_producer_name(self) -> str:
        """A producer name that no other producer in the cluster has or had."""
        return self._names.new()

    def _permissions_changed(self) -> None:
        if self.authorization.enabled:
            for connection in list(self.connections):
                connection.permissions_changed()

    def _keep_alive(self) -> None:
        for connection in list(self.connections):
            connection.tick()
        self.topics.check()
        self._tick = asyncio.get_running_loop().call_later(self.settings.keep_alive_interval_s, self._keep_alive)
