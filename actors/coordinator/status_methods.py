"""The cluster as the coordinator sees it."""

from collections import Counter

from ...protocol.cluster_status import ClusterView, MemberStatus
from ...protocol.names import ROLE_BROKER, VERSION
from ...protocol.slots import slot_of
from ...protocol.topics import TopicName
from ...runtime.rpc.server import RpcServer
from ...storage.metadata.registered_bookies import registered_bookies
from ..members.contracts_bookie import disk_report
from ..members.contracts_coordinator import StatusContract
from .desired_methods import DesiredMethods
from .load_balancer import LoadBalancer
from .office import Office
from .session_methods import SessionMethods


class StatusMethods(StatusContract):
    """See the module. `directory` is where the coordinator keeps its metadata; its disk is reported on."""

    def __init__(
        self,
        office: Office,
        sessions: SessionMethods,
        server: RpcServer,
        directory: str,
        desired: DesiredMethods,
        balancer: LoadBalancer,
    ) -> None:
        self._office = office
        self._sessions = sessions
        self._server = server
        self._directory = directory
        self._desired = desired
        self._balancer = balancer
        self._started_ms = office.env.clock.now_ms()

    async def registered_bookies(self) -> list[str]:
        return list(await registered_bookies(self._office.store))

    async def status(self) -> ClusterView:
        office = self._office
        topics = self._topics_by_broker()
        host, port = self._server.address
        load = await self._balancer.cluster_load()
        members: list[MemberStatus] = [
            {
                "id": session.node_id,
                "role": session.role,
                "incarnation": session.incarnation,
                "host": session.host,
                "port": session.port,
                "data": session.data,
                "report": session.report,
                "silent_s": round(session.silent_s, 3),
                "topics": topics.get(session.node_id, 0) if session.role == ROLE_BROKER else 0,
            }
            for session in sorted(office.membership.all(), key=lambda session: (session.role, session.node_id))
        ]
        for member in members:
            if member["role"] == ROLE_BROKER and member["id"] in load.brokers:
                member["load"] = round(load.brokers[member["id"]].report.total.load, 1)
        view: ClusterView = {
            "cluster_id": office.cluster_id,
            "coordinator": {
                "epoch": office.epoch,
                "host": host,
                "port": port,
                "started_ms": self._started_ms,
                "in_grace": office.membership.in_grace,
                "disk": await disk_report(office.env, self._directory),
                "version": VERSION,
            },
            "members": members,
            "registered_bookies": await self.registered_bookies(),
            "topics": office.registry.topic_count,
            "assignments": sum(topics.values()),
            "deleting": office.deletions.under_way,
            "unexpected_errors": self._sessions.unexpected_errors + office.placement.unexpected_errors,
            "auditor": office.auditor.status(),
            "load_moves": load.moves,
            "restored_ledgers": [list(one) for one in office.ledger_ids.restored.ranges],
        }
        desired = self._desired.find()
        if desired is not None:
            view["desired"] = desired
        return view

    def _topics_by_broker(self) -> Counter[str]:
        """Partitions and plain topics that each broker owns."""
        table, contents = self._office.placement.table, self._office.contents
        counts: Counter[str] = Counter()
        for slot in range(contents.slots):
            owner = table.get(slot).owner
            if owner is not None and not contents.is_empty(slot):
                counts[owner.broker] += contents.size(slot)
        for topic, one in table.exceptions_in(range(contents.slots)).items():
            home = table.get(slot_of(TopicName.parse(topic), contents.slots)).owner
            if one.owner is not None and home is not None:
                counts[home.broker] -= 1
                counts[one.owner.broker] += 1
        return counts
