"""The coordinator: who is alive, who owns which slot, and the cluster's metadata for all other processes.

States: *stopped* → *active* (`start`: epoch raised, records read, listening) → *ended*, by `close`, or because another
coordinator became active. After `start`, brokers have `session_timeout_s` to come back before their slots move. When
another coordinator became active, `wait_ended` returns, and no write succeeds from then on.

What it has while it is active is its `Office`. Each part of its contract is served by one object: one of the office, or
one that takes the office. A failed `start` leaves nothing behind.

Guarantees:
- every write is a compare-and-set guarded by this coordinator's epoch, every push carries it;
- a broker's slots are given to live brokers at once, in bulk, when its session ends: its connection closed, it was
  silent for `session_timeout_s`, or it registered as another incarnation;
- a pause of this process is not held against anybody, nor what became of connections meanwhile (see `membership`);
- it never creates a store or an identity: a store without the cluster's id, or with another's, refuses to start.

Safety never depends on any of these being right about who is alive: ledgers are fenced and records compared.

While it is away, brokers and bookies go on with what they know.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...protocol.cluster_status import ClusterView
from ...protocol.errors import MetadataError, ServiceUnitNotReady, StaleEpoch
from ...protocol.names import ROLE_BROKER
from ...runtime.environment import Environment
from ...runtime.rpc.connection import STATUS_OK, Handler, RpcConnection, RpcService
from ...runtime.rpc.contract import handlers_of
from ...runtime.rpc.keys import Keys
from ...runtime.rpc.server import RpcServer
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...storage.metadata.remote import MetadataMethods
from ...storage.metadata.store import MetadataStore
from ..members.contracts_coordinator import CoordinatorContract
from ..members.coordinator_link import COORDINATOR_FRAME_SIZE_MAX
from ..members.permissions import COORDINATOR_OPERATIONS, check_writable
from .desired_methods import DesiredMethods
from .load_balancer import LoadBalancer
from .office import Office
from .owner_methods import PlacementMethods
from .session_methods import SessionMethods
from .status_methods import StatusMethods

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Active:
    """What starting returns."""

    office: Office
    sessions: SessionMethods
    status: StatusMethods
    desired: DesiredMethods
    balancer: LoadBalancer
    server: RpcServer
    handlers: Mapping[str, Handler]
    tasks: Tasks

    async def close(self) -> None:
        self.office.end()
        await self.tasks.close()
        await self.office.rebalancer.close()
        await self.server.close()  # before what its calls use
        await self.office.close()


class CoordinatorService(RpcService):
    """See the module. The caller opens and closes `metadata`. `directory` is only reported on."""

    contract = CoordinatorContract
    operation_roles = COORDINATOR_OPERATIONS

    def __init__(
        self,
        env: Environment,
        metadata: MetadataStore,
        cluster_id: str,
        keys: Keys,
        settings: Settings,
        host: str,
        port: int,
        directory: str,
    ) -> None:
        self.settings = settings
        self._env = env
        self._metadata = metadata
        self._cluster_id = cluster_id
        self._keys = keys
        self._host = host
        self._port = port
        self._directory = directory
        self._ended = asyncio.Event()
        self._active: _Active | None = None
        """None until `start` has everything, and again after a failed `start`."""

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take office. Raises ClusterError (no cluster in the store, or another), MetadataUnavailable, OSError."""
        office = await Office.open(
            self._env, self._metadata, self._cluster_id, self._keys, self.settings, self._superseded
        )
        active = self._active = self._assemble(office)
        try:
            await active.server.start(self._host, self._port)
        except BaseException:
            self._active = None
            await active.close()
            raise
        active.tasks.spawn(active.sessions.judge(), "coordinator-sessions")
        active.tasks.spawn(self._verify_office(office), "coordinator-office")
        active.tasks.spawn(active.balancer.run(), "load-balancer")
        office.auditor.start()
        logger.info(
            "the coordinator of cluster %s is active with epoch %d: %d topics in %d slots",
            self._cluster_id,
            office.epoch,
            office.registry.topic_count,
            office.contents.slots,
        )

    def _assemble(self, office: Office) -> _Active:
        server = RpcServer(self._env, office.identity, self._keys, self, frame_size_max=COORDINATOR_FRAME_SIZE_MAX)
        sessions = SessionMethods(office)
        desired = DesiredMethods(office.desired, office.drains)
        balancer = LoadBalancer(self.settings, office.rebalancer, office.membership.is_alive)
        office.rebalancer.on_order = balancer.ordered
        status = StatusMethods(office, sessions, server, self._directory, desired, balancer)
        metadata = MetadataMethods(office.store, office.ledger_ids, self.check_metadata_writer)
        handlers = handlers_of(
            CoordinatorContract,
            sessions,
            office.auditor,
            office.auditor.feed,
            status,
            balancer,
            PlacementMethods(office),
            office.registry,
            office.growths,
            office.deletions,
            office.watchers,
            office.namespaces.tenants,
            office.namespaces,
            office.namespace_deletions,
            office.topic_policies,
            desired,
            metadata,
        )
        return _Active(office, sessions, status, desired, balancer, server, handlers, Tasks())

    async def cluster_stops(self) -> None:
        """The whole cluster is about to be stopped in good order: that members leave is nothing to warn of."""
        if self._active is not None:
            self._active.office.stopping = True
            await self._active.office.auditor.end_rounds()  # it would ask bookies that are gone

    async def close(self) -> None:
        """Leave office: every connection ends. The metadata store stays open."""
        self._ended.set()
        if self._active is not None:
            await self._active.close()

    async def wait_ended(self) -> None:
        """Return when it was closed, or has lost its office to another coordinator."""
        await self._ended.wait()

    @property
    def office(self) -> Office:
        """What it has since it took office. Raises ServiceUnitNotReady before."""
        return self._require_active().office

    @property
    def sessions(self) -> SessionMethods:
        """The sessions of members. Raises ServiceUnitNotReady before it took office."""
        return self._require_active().sessions

    @property
    def desired(self) -> DesiredMethods:
        """What should run. Raises ServiceUnitNotReady before it took office."""
        return self._require_active().desired

    @property
    def address(self) -> tuple[str, int]:
        """Where members reach it. Raises ServiceUnitNotReady before it took office."""
        return self._require_active().server.address

    async def status(self) -> ClusterView:
        """See `StatusMethods`. Raises ServiceUnitNotReady before it took office."""
        return await self._require_active().status.status()

    def _require_active(self) -> _Active:
        if self._active is None:
            raise ServiceUnitNotReady("this coordinator is not active")
        return self._active

    def _superseded(self) -> None:
        self._ended.set()
        for connection in self._active.server.connections if self._active is not None else ():
            connection.close(StaleEpoch("this coordinator was superseded"))

    async def _verify_office(self, office: Office) -> None:
        """Members that hold on to a coordinator which was replaced, and does not know, would be lost to the cluster."""
        while office.active:
            await asyncio.sleep(self.settings.session_timeout_s)
            try:
                await office.store.verify()
            except MetadataError as error:
                logger.debug("the coordinator could not check whether it is still active: %s", error)

    # -- what connections ask ------------------------------------------------------------------------------------

    def handler(self, method: str) -> Handler | None:
        return self._active.handlers.get(method) if self._active is not None else None

    def connected(self, connection: RpcConnection) -> None:
        if self._active is None or not self._active.office.active:
            connection.close(StaleEpoch("this coordinator is not active"))

    def disconnected(self, connection: RpcConnection) -> None:
        if self._active is not None:
            self._active.sessions.disconnected(connection)

    def data_request(self, connection: RpcConnection, op: int, request_id: int, payload: bytes) -> None:
        """A heartbeat, the only operation."""
        self._require_active().sessions.heartbeat(connection, payload)
        connection.respond(request_id, STATUS_OK)

    def check_metadata_writer(self, connection: RpcConnection, keys: Sequence[str]) -> None:
        """Members write what is theirs. A broker whose session has ended writes nothing: its successor may be at work
        already.
        """
        peer = connection.peer
        office = self.office
        if not office.active:
            raise ServiceUnitNotReady("this coordinator is not active")
        check_writable(peer, keys)
        if peer.role == ROLE_BROKER and office.membership.has_ended(peer.node_id, peer.incarnation):
            raise StaleEpoch(f"the session of {peer.node_id} has ended")
