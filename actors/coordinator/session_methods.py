"""The sessions of members over their connections: registration, heartbeats, judging, and the lists they ask for.

`membership` decides who is alive; this is what follows from it for connections, lists, placement and auditor.
"""

import asyncio
import logging

from ...protocol.cluster_status import MemberData
from ...protocol.errors import CookieMismatch, NotAllowedError, ProtocolError, StaleEpoch
from ...protocol.names import ROLE_ADMIN, ROLE_BOOKIE, ROLE_BROKER
from ...runtime.backoff import Backoff
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.contract import CALLER
from ...runtime.rpc.messages import unpack
from ...storage.ledger.bookie_directory import BookieInfo
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.store import unpack as unpack_record
from ..members.contracts_coordinator import BrokerInfo, Greeting, PolicyPage, Registered, SessionContract, SlotListing
from .member_lists import check_registration, check_report, damage_found, listing
from .membership import Session
from .office import Office
from .topic_policies import policy_page

logger = logging.getLogger(__name__)

REPORT_BYTES_MAX = 64 << 10
JUDGE_RETRY_MAX_S = 5.0


class SessionMethods(SessionContract):
    """See the module."""

    def __init__(self, office: Office) -> None:
        self.unexpected_errors = 0
        """What judging caught that is no error of ours; it went on."""
        self.sessions: dict[RpcConnection, Session] = {}
        self._office = office
        office.desired.on_change.append(self._desired_changed)

    # -- connections ---------------------------------------------------------------------------------------------

    def disconnected(self, connection: RpcConnection) -> None:
        """A connection has ended."""
        self._office.lists.leave(connection)
        self._office.watchers.leave(connection)
        session = self.sessions.pop(connection, None)
        if session is None or not session.alive or not self._office.active:
            return
        if self._office.membership.disconnected(session, asyncio.get_running_loop().time()):
            self._ended(session, "its connection closed")
        else:
            logger.info(
                "the connection of %s ended while this coordinator was paused; the session timeout starts now",
                session.node_id,
            )

    def heartbeat(self, connection: RpcConnection, payload: bytes) -> None:
        """Costs no task, and its report is unpacked only when it changed. Raises ProtocolError."""
        session = self.sessions.get(connection)
        if session is not None:
            self._office.membership.heard(session)
            if payload != session.report_bytes:
                self._take_report(session, payload)

    def _take_report(self, session: Session, payload: bytes) -> None:
        if len(payload) > REPORT_BYTES_MAX:
            raise ProtocolError(f"the report of {session.node_id} is too long: {len(payload)} bytes")
        report = check_report(session.node_id, unpack(payload))
        before = listing(session.report, session.data), damage_found(session.report)
        session.report_bytes, session.report = payload, report
        if session.role == ROLE_BOOKIE:
            if listing(session.report, session.data) != before[0]:
                self._office.lists.bookies_changed()
            if damage_found(report) != before[1]:
                self._office.auditor.wake()

    # -- methods -------------------------------------------------------------------------------------------------

    async def hello(self, *, caller: RpcConnection = CALLER) -> Greeting:
        self._check_wanted(caller.peer.role, caller.peer.node_id)
        return Greeting(self._office.epoch, self._office.cluster_id, self._office.contents.slots)

    async def register(
        self, *, role: str, host: str, port: int, data: MemberData, caller: RpcConnection = CALLER
    ) -> Registered:
        office = self._office
        peer = caller.peer
        if role != peer.role:
            raise NotAllowedError(f"{peer.node_id} is a {peer.role} by its handshake, but registers as a {role}")
        check_registration(peer.node_id, host, port, data)
        self._check_wanted(role, peer.node_id)
        if role == ROLE_BOOKIE:
            await self._check_cookie(peer.node_id, data)
            await office.ledger_ids.known(data.get("ledgers_end", 0), peer.node_id)
        if caller.closed or not office.active:
            raise StaleEpoch(
                "the connection or this coordinator ended before the registration was done: register again"
            )
        session = Session(role, peer.node_id, peer.incarnation, host, port, data, caller)
        replaced = office.membership.register(session)
        self.sessions[caller] = session
        if role != ROLE_BOOKIE:
            office.lists.listen(caller)
        if replaced is not None and replaced.connection is not caller:
            self._forget(replaced)
            replaced.connection.close()
        if replaced is None or replaced.connection is not caller:
            logger.info("%s registered (incarnation %s, %s:%d)", peer.node_id, peer.incarnation, host, port)
        if role == ROLE_BROKER:
            office.lists.brokers_changed()
            if replaced is None or replaced.incarnation != session.incarnation:
                office.broker_ended(peer.node_id)  # whatever an earlier incarnation owned
            office.placement.broker_joined()
            office.rebalancer.brokers_changed()
        elif role == ROLE_BOOKIE:
            office.lists.bookies_changed()
        slots, policies = None, PolicyPage([], False)
        if office.lists.listens(caller):
            slots = await self.slot_listing()
        if role in (ROLE_BROKER, ROLE_ADMIN):
            policies = await self.policies(after="")
        return Registered(office.epoch, office.lists.bookies(), office.lists.brokers(), slots, policies)

    async def slot_listing(self) -> SlotListing:
        placement = self._office.placement
        return SlotListing(placement.number, placement.table.rows().pack())

    async def policies(self, *, after: str) -> PolicyPage:
        return policy_page(self._office.namespaces, self._office.topic_policies, after)

    async def bookies(self) -> list[BookieInfo]:
        return self._office.lists.bookies()

    async def brokers(self) -> list[BrokerInfo]:
        return self._office.lists.brokers()

    def _check_wanted(self, role: str, member: str) -> None:
        """A supervisor that was superseded, and does not know, may start a member that has been retired."""
        if role in (ROLE_BROKER, ROLE_BOOKIE) and not self._office.drains.may_run(member):
            raise StaleEpoch(f"{member} should not run: it was drained, and has ended")

    def _desired_changed(self) -> None:
        for session in self._office.membership.all():
            if session.role in (ROLE_BROKER, ROLE_BOOKIE) and not self._office.drains.may_run(session.node_id):
                self.end(session, "it was retired")

    async def _check_cookie(self, bookie_id: str, data: MemberData) -> None:
        record = await self._office.store.get(metadata_keys.bookie(bookie_id))
        if record is None:
            raise CookieMismatch(
                f"bookie {bookie_id} has no cookie in the metadata: it must write one before it registers"
            )
        if data.get("instance") not in (None, unpack_record(record.value).get("instance")):
            raise CookieMismatch(
                f"bookie {bookie_id} runs on another disk than the metadata names: put its own disk back"
            )

    # -- the end of sessions -------------------------------------------------------------------------------------

    def end(self, session: Session, why: str) -> None:
        """End a session, if it is alive."""
        if self._office.membership.end(session):
            self._ended(session, why)

    def _ended(self, session: Session, why: str) -> None:
        # An operator must not take an orderly end for a fault.
        level = logging.INFO if self._office.stopping else logging.WARNING
        logger.log(level, "%s (incarnation %s) lost its session: %s", session.node_id, session.incarnation, why)
        self._forget(session)
        session.connection.close()
        if session.role == ROLE_BROKER:
            self._office.broker_ended(session.node_id)
            self._office.lists.brokers_changed()
            self._office.rebalancer.brokers_changed()
        elif session.role == ROLE_BOOKIE:
            self._office.lists.bookies_changed()

    def _forget(self, session: Session) -> None:
        self.sessions.pop(session.connection, None)
        self._office.lists.leave(session.connection)
        self._office.watchers.leave(session.connection)

    async def judge(self) -> None:
        """Judge the sessions for as long as this coordinator lives, whatever goes wrong with one of them."""
        tick_s = self._office.tick_interval_s
        backoff = Backoff(self._office.env.random, tick_s, JUDGE_RETRY_MAX_S)
        while True:
            try:
                self._judge_once(asyncio.get_running_loop().time())
                backoff.reset()
                delay_s = tick_s
            except Exception:
                logger.exception("the check of the sessions failed and is tried again")
                self.unexpected_errors += 1
                delay_s = backoff.next_delay_s()
            await asyncio.sleep(delay_s)

    def _judge_once(self, now: float) -> None:
        membership = self._office.membership
        was_in_grace = membership.in_grace
        for connection, session in self.sessions.items():
            if connection.reading_paused:  # its heartbeats wait behind its own calls
                membership.heard(session)
        for session in membership.tick(now):
            try:
                self.end(session, f"it sent no heartbeat for {self._office.settings.session_timeout_s} s")
            except Exception:  # the others are judged all the same
                logger.exception("ending the session of %s failed", session.node_id)
                self.unexpected_errors += 1
        if was_in_grace and not membership.in_grace:
            self._office.placement.look_at_waiting()
