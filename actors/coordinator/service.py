"""The coordinator: who is alive, who owns which topic, and the cluster's metadata for everybody else.

States: *stopped* → *in office* (`start`: epoch raised, records read, listening; brokers are given
`session_timeout_s` to come back before anything of theirs moves) → *ended*, by `close`, or because another coordinator
took office (`wait_ended` then returns, and nothing can be written any more).

Guarantees:
- every write is a compare-and-set guarded by this coordinator's epoch, every push carries it;
- the topics of a broker whose connection closed, or which was silent for `session_timeout_s`, or which registered as
  another incarnation, are given to live brokers at once, in bulk;
- a pause of this process is not held against anybody, nor what became of connections meanwhile (see `membership`);
- it never creates a store or an identity: a store without the cluster's id, or with another's, refuses to start.

Safety never depends on any of these being right about who is alive: ledgers are fenced and records compared.

While it is away, brokers and bookies go on with what they know.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ...protocol.errors import (
    ClusterError,
    CookieMismatch,
    MetadataError,
    NotAllowedError,
    ProtocolError,
    ServiceUnitNotReady,
    StaleEpoch,
)
from ...protocol.names import COORDINATOR_ID, ROLE_BOOKIE, ROLE_BROKER, ROLE_COORDINATOR
from ...runtime.backoff import Backoff
from ...runtime.environment import Environment
from ...runtime.rpc.connection import STATUS_OK, RpcConnection, RpcService
from ...runtime.rpc.keys import Identity, Keys
from ...runtime.rpc.messages import unpack
from ...runtime.rpc.server import RpcServer
from ...runtime.settings.declarations import Settings
from ...runtime.tasks import Tasks
from ...storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from ...storage.metadata.cluster_identity import read_cluster_id
from ...storage.metadata.epoch_guard import EpochMetadataStore, take_office
from ...storage.metadata.ledger_ids import LedgerIds
from ...storage.metadata.remote import MetadataRpc
from ...storage.metadata.store import MetadataStore
from ..auditor.service import Auditor
from ..members.coordinator_link import COORDINATOR_FRAME_SIZE_MAX
from ..members.disk_report import disk_report
from ..members.peer_calls import MemberCalls
from ..members.permissions import COORDINATOR_METHODS, COORDINATOR_OPERATIONS, check_writable
from .announcements import check_registration, check_report, damage_found, listing
from .membership import Membership, Session
from .placement import Change, Placement
from .topic_deletions import TopicDeletions
from .topic_methods import TopicsRpc
from .topic_registry import TopicRegistry

logger = logging.getLogger(__name__)

ASSIGNMENTS_PER_PAGE = 5000
REPORT_BYTES_MAX = 64 << 10
JUDGE_RETRY_MAX_S = 5.0


class CoordinatorService(RpcService, MetadataRpc, TopicsRpc):
    """See the module. `metadata` is opened and closed by whoever makes this; `directory` is only reported on."""

    method_roles = COORDINATOR_METHODS
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
        self._started_ms = 0
        self._tick_interval_s = settings.heartbeat_interval_s / 2
        self._sessions: dict[RpcConnection, Session] = {}
        self._listeners: dict[RpcConnection, None] = {}
        self._bookies = BookieDirectory()
        self._tasks = Tasks()
        self._ended = asyncio.Event()
        self._rebalance_timer: asyncio.TimerHandle | None = None
        self._rebalancing = asyncio.Lock()
        self._rebalance_waits = False
        self._in_office = False
        self.unexpected_errors = 0
        """What the tasks of this coordinator caught that is no error of ours; each went on."""
        self._store: EpochMetadataStore
        self.ledger_ids: LedgerIds
        self._server: RpcServer
        self.membership: Membership
        self.placement: Placement
        self.registry: TopicRegistry
        self.deletions: TopicDeletions
        self.broker_calls: MemberCalls
        self.auditor: Auditor

    # -- life ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take office. Raises ClusterError (no cluster in the store, or another), MetadataUnavailable, OSError."""
        found = await read_cluster_id(self._metadata)
        if found != self._cluster_id:
            raise ClusterError(
                f"the metadata store belongs to cluster {found}, not to {self._cluster_id}"
                if found is not None
                else "the metadata store holds no cluster (only `magnetar start` creates one)"
            )
        env, settings = self._env, self.settings
        self._store = await take_office(self._metadata)
        self._store.on_superseded = self._superseded
        self.ledger_ids = LedgerIds(env, self._store)
        await self.ledger_ids.load()
        identity = Identity(self._cluster_id, ROLE_COORDINATOR, COORDINATOR_ID, str(self._store.epoch))
        self.membership = Membership(settings.session_timeout_s, self._tick_interval_s)
        self.registry = TopicRegistry(env, self._store, settings)
        self.placement = Placement(env, self._store, self.membership, self._push_assignments, self.registry.guard_of)
        self.broker_calls = MemberCalls(env, identity, self._keys, self._find_broker)
        self.deletions = TopicDeletions(
            env, self._store, self.membership, self.placement, self.registry, self.broker_calls
        )
        self.auditor = Auditor(
            env, identity, self._keys, settings, self._store, self._bookies, self._bookies_in_limbo, self._damaged
        )
        await self.registry.start()
        await self.placement.start()
        self.deletions.start()
        self._server = RpcServer(env, identity, self._keys, self, frame_size_max=COORDINATOR_FRAME_SIZE_MAX)
        self._started_ms = env.clock.now_ms()
        self._in_office = True
        await self._server.start(self._host, self._port)
        self._tasks.spawn(self._judge(), "coordinator-sessions")
        self._tasks.spawn(self._verify_office(), "coordinator-office")
        self.auditor.start()
        logger.info(
            "coordinator of cluster %s in office with epoch %d: %d topics, %d assignments",
            self._cluster_id,
            self._store.epoch,
            self.registry.topic_count,
            len(self.placement.table),
        )

    async def close(self) -> None:
        """Leave office: every connection ends. The metadata store stays open."""
        self._in_office = False
        self._ended.set()
        if self._rebalance_timer is not None:
            self._rebalance_timer.cancel()
        await self._tasks.close()
        for part in ("auditor", "_server", "deletions", "placement", "broker_calls"):
            if hasattr(self, part):
                await getattr(self, part).close()

    async def wait_ended(self) -> None:
        """Return when it was closed, or has lost its office to another coordinator."""
        await self._ended.wait()

    @property
    def address(self) -> tuple[str, int]:
        """Where members reach it."""
        return self._server.address

    @property
    def epoch(self) -> int:
        """The epoch of this coordinator."""
        return self._store.epoch

    def _superseded(self) -> None:
        logger.error("another coordinator took office: this one (epoch %d) ends", self._store.epoch)
        self._in_office = False
        self._ended.set()
        for connection in list(self._server.connections):
            connection.close(StaleEpoch("this coordinator was superseded"))

    # -- connections and sessions --------------------------------------------------------------------------------

    def connected(self, connection: RpcConnection) -> None:
        if not self._in_office:
            connection.close(StaleEpoch("this coordinator is not in office"))

    def disconnected(self, connection: RpcConnection) -> None:
        self._listeners.pop(connection, None)
        session = self._sessions.pop(connection, None)
        if session is None or not session.alive or not self._in_office:
            return
        if self.membership.disconnected(session, asyncio.get_running_loop().time()):
            self._ended_session(session, "its connection closed")
        else:
            logger.info("%s left while this coordinator stood still, and has time to come back", session.node_id)

    def data_request(self, connection: RpcConnection, op: int, request_id: int, payload: bytes) -> None:
        """A heartbeat, the only operation: costs no task, and its report is unpacked only when it changed."""
        session = self._sessions.get(connection)
        if session is not None:
            self.membership.heard(session)
            if payload != session.report_bytes:
                self._take_report(session, payload)
        connection.respond(request_id, STATUS_OK)

    def _take_report(self, session: Session, payload: bytes) -> None:
        if len(payload) > REPORT_BYTES_MAX:
            raise ProtocolError(f"the report of {session.node_id} is too long: {len(payload)} bytes")
        report = check_report(session.node_id, unpack(payload))
        before = listing(session.report, session.data), damage_found(session.report)
        session.report_bytes, session.report = payload, report
        if session.role == ROLE_BOOKIE:
            if listing(session.report, session.data) != before[0]:
                self._bookies_changed()
            if damage_found(report) != before[1]:
                self.auditor.wake()

    async def rpc_hello(self, connection: RpcConnection) -> dict[str, Any]:
        """The first call of every connection."""
        return {"epoch": self._store.epoch, "cluster_id": self._cluster_id}

    async def rpc_register(
        self, connection: RpcConnection, role: str, host: str, port: int, data: dict[str, Any]
    ) -> dict[str, Any]:
        """Begin a session. Answers the lists that it will be kept informed of by pushes.

        A bookie is listed only after no ledger id that it knows can be given out any more (see `ledger_ids`).

        Raises NotAllowedError, ProtocolError (a malformed registration), CookieMismatch, StaleEpoch, MetadataError.
        """
        peer = connection.peer
        if role != peer.role:
            raise NotAllowedError(f"{peer.node_id} shook hands as {peer.role} and registers as {role}")
        check_registration(peer.node_id, host, port, data)
        if role == ROLE_BOOKIE:
            await self._check_cookie(peer.node_id, data)
            await self.ledger_ids.known(data.get("ledgers_end") or 0, peer.node_id)
        if connection.closed or not self._in_office:
            raise StaleEpoch("too late to register")
        session = Session(role, peer.node_id, peer.incarnation, host, port, data, connection)
        replaced = self.membership.register(session)
        self._sessions[connection] = session
        if role != ROLE_BOOKIE:
            self._listeners[connection] = None
        if replaced is not None and replaced.connection is not connection:
            self._sessions.pop(replaced.connection, None)
            self._listeners.pop(replaced.connection, None)
            replaced.connection.close()
        if replaced is None or replaced.connection is not connection:
            logger.info("%s registered (incarnation %s, %s:%d)", peer.node_id, peer.incarnation, host, port)
        if role == ROLE_BROKER:
            self._brokers_changed()
            self.placement.broker_lost(peer.node_id)  # whatever an earlier incarnation owned
            self.placement.broker_joined()
            self._rebalance_later()
        elif role == ROLE_BOOKIE:
            self._bookies_changed()
        listens = connection in self._listeners
        return {
            "epoch": self._store.epoch,
            "bookies": self._bookie_list(),
            "brokers": self._broker_list(),
            "assignments": self._assignments_page("") if listens else {"items": [], "more": False},
        }

    async def rpc_assignments(self, connection: RpcConnection, after: str) -> dict[str, Any]:
        """A page of all assignments, behind topic `after`: items [topic, broker, incarnation, epoch, partitions]
        (those of the whole topic), and `more`."""
        return self._assignments_page(after)

    async def rpc_bookies(self, connection: RpcConnection) -> list[list[Any]]:
        """Live bookies: [id, host, port, writable, limbo]."""
        return self._bookie_list()

    async def rpc_brokers(self, connection: RpcConnection) -> list[dict[str, Any]]:
        """Live brokers, as `CoordinatorClient.brokers` holds them."""
        return self._broker_list()

    async def rpc_audit(self, connection: RpcConnection) -> None:
        """Begin a round of the auditor now."""
        self.auditor.wake()

    async def _check_cookie(self, bookie_id: str, data: dict[str, Any]) -> None:
        cookie = await self.cookie_of(bookie_id)
        if cookie is None:
            raise CookieMismatch(f"bookie {bookie_id} has no cookie in the metadata: it must write it first")
        if data.get("instance") not in (None, cookie.get("instance")):
            raise CookieMismatch(f"bookie {bookie_id} runs on another disk than the one in the metadata")

    def _end(self, session: Session, why: str) -> None:
        if self.membership.end(session):
            self._ended_session(session, why)

    def _ended_session(self, session: Session, why: str) -> None:
        logger.warning("%s (incarnation %s) has lost its session: %s", session.node_id, session.incarnation, why)
        self._sessions.pop(session.connection, None)
        self._listeners.pop(session.connection, None)
        session.connection.close()
        if session.role == ROLE_BROKER:
            self.placement.broker_lost(session.node_id)
            self._brokers_changed()
            self._rebalance_later()
        elif session.role == ROLE_BOOKIE:
            self._bookies_changed()

    async def _judge(self) -> None:
        """Judge the sessions for as long as this coordinator lives, whatever goes wrong with one of them."""
        backoff = Backoff(self._env.random, self._tick_interval_s, JUDGE_RETRY_MAX_S)
        while True:
            try:
                self._judge_once(asyncio.get_running_loop().time())
                backoff.reset()
                delay_s = self._tick_interval_s
            except Exception:
                logger.exception("judging the sessions failed; it is tried again")
                self.unexpected_errors += 1
                delay_s = backoff.next_delay_s()
            await asyncio.sleep(delay_s)

    def _judge_once(self, now: float) -> None:
        was_in_grace = self.membership.in_grace
        for connection, session in self._sessions.items():
            if connection.reading_paused:  # its heartbeats wait behind its own calls
                self.membership.heard(session)
        for session in self.membership.tick(now):
            try:
                self._end(session, f"silent for {self.settings.session_timeout_s} s")
            except Exception:  # the others are judged all the same
                logger.exception("ending the session of %s failed", session.node_id)
                self.unexpected_errors += 1
        if was_in_grace and not self.membership.in_grace:
            self.placement.look_at_waiting()

    async def _verify_office(self) -> None:
        """Members that hold on to a coordinator which was replaced, and does not know, would be lost to the cluster."""
        while self._in_office:
            await asyncio.sleep(self.settings.session_timeout_s)
            try:
                await self._store.verify()
            except MetadataError as error:
                logger.debug("cannot look whether this coordinator is in office: %s", error)

    # -- pushes --------------------------------------------------------------------------------------------------

    def _notify(self, method: str, **arguments: Any) -> None:
        for connection in list(self._listeners):
            connection.notify(method, epoch=self._store.epoch, **arguments)

    def _bookies_changed(self) -> None:
        bookies = self._bookie_list()
        self._bookies.update(BookieInfo(*info) for info in bookies)
        self._notify("bookies_changed", bookies=bookies)

    def _brokers_changed(self) -> None:
        self._notify("brokers_changed", brokers=self._broker_list())

    def _push_assignments(self, changes: Sequence[Change]) -> None:
        if changes and self._in_office:
            found = [{**change, "partitions": self.registry.partitions_around(change["topic"])} for change in changes]
            self._notify("assignments_changed", changes=found)

    def _partitions_changed(self, topic: str, partitions: int) -> None:
        self._notify("partitions_changed", topic=topic, partitions=partitions)

    def _bookie_list(self) -> list[list[Any]]:
        sessions = self.membership.of_role(ROLE_BOOKIE)
        return [[one.node_id, one.host, one.port, *listing(one.report, one.data)] for one in sessions]

    def _bookies_in_limbo(self) -> dict[str, str]:
        sessions = self.membership.of_role(ROLE_BOOKIE)
        return {session.node_id: session.report["limbo"] for session in sessions if session.report.get("limbo")}

    def _damaged(self) -> dict[str, int]:
        """Live bookies that hold damaged entries, and how many."""
        sessions = self.membership.of_role(ROLE_BOOKIE)
        counts = {session.node_id: session.report.get("scrub", {}).get("damaged", 0) for session in sessions}
        return {bookie: int(count) for bookie, count in counts.items() if count}

    def _broker_list(self) -> list[dict[str, Any]]:
        return [
            {
                "id": session.node_id,
                "incarnation": session.incarnation,
                "host": session.host,
                "port": session.port,
                "url": session.data.get("url", f"pulsar://{session.host}:{session.port}"),
                "data": session.data,
            }
            for session in self.membership.of_role(ROLE_BROKER)
        ]

    def _assignments_page(self, after: str) -> dict[str, Any]:
        items = self.placement.table.page(after, ASSIGNMENTS_PER_PAGE + 1)
        page = [
            [
                topic,
                assignment.broker,
                assignment.incarnation,
                assignment.epoch,
                self.registry.partitions_around(topic),
            ]
            for topic, assignment in items[:ASSIGNMENTS_PER_PAGE]
        ]
        return {"items": page, "more": len(items) > ASSIGNMENTS_PER_PAGE}

    def _find_broker(self, broker_id: str) -> tuple[str, str, int] | None:
        session = self.membership.find(ROLE_BROKER, broker_id)
        address = session.data.get("rpc") if session is not None else None
        return (session.incarnation, address[0], address[1]) if session is not None and address else None

    # -- rebalancing ---------------------------------------------------------------------------------------------

    def _rebalance_later(self) -> None:
        """Brokers come and go in bursts: even out once they have been the same for a while."""
        if self._rebalance_timer is not None:
            self._rebalance_timer.cancel()
        loop = asyncio.get_running_loop()
        self._rebalance_timer = loop.call_later(self.settings.rebalance_delay_s, self._start_rebalance)

    def _start_rebalance(self) -> None:
        self._rebalance_timer = None
        if self._in_office:
            self._tasks.spawn(self.rebalance(), "rebalance")

    # -- metadata for members ------------------------------------------------------------------------------------

    def metadata_store(self) -> MetadataStore:
        return self._store

    def ledger_id_source(self) -> LedgerIds:
        return self.ledger_ids

    def check_metadata_writer(self, connection: RpcConnection, keys: Sequence[str]) -> None:
        """Members write what is theirs. A broker whose session has ended writes nothing: its successor may be at work
        already.
        """
        peer = connection.peer
        if not self._in_office:
            raise ServiceUnitNotReady("this coordinator is not in office")
        check_writable(peer, keys)
        if peer.role == ROLE_BROKER and self.membership.has_ended(peer.node_id, peer.incarnation):
            raise StaleEpoch(f"the session of {peer.node_id} has ended")

    # -- status --------------------------------------------------------------------------------------------------

    async def rpc_status(self, connection: RpcConnection) -> dict[str, Any]:
        """See `status`."""
        return await self.status()

    async def status(self) -> dict[str, Any]:
        """The cluster as the coordinator sees it: members and what they report, epochs, topics, disks, repairs.

        Sizes are in bytes.
        """
        table = self.placement.table
        members = [
            {
                "id": session.node_id,
                "role": session.role,
                "incarnation": session.incarnation,
                "host": session.host,
                "port": session.port,
                "data": session.data,
                "report": session.report,
                "silent_s": round(session.silent_s, 3),
                "topics": table.count_of(session.node_id) if session.role == ROLE_BROKER else 0,
            }
            for session in sorted(self.membership.all(), key=lambda session: (session.role, session.node_id))
        ]
        return {
            "cluster_id": self._cluster_id,
            "coordinator": {
                "epoch": self._store.epoch,
                "host": self.address[0],
                "port": self.address[1],
                "started_ms": self._started_ms,
                "in_grace": self.membership.in_grace,
                "disk": await disk_report(self._env, self._directory),
            },
            "members": members,
            "registered_bookies": await self.registered_bookies(),
            "topics": self.registry.topic_count,
            "assignments": len(table),
            "deleting": self.deletions.under_way,
            "unexpected_errors": self.unexpected_errors + self.placement.unexpected_errors,
            "auditor": self.auditor.status(),
            "restored_ledgers": [list(one) for one in self.ledger_ids.restored.ranges],
        }
