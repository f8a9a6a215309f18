"""What members are told of each other: the lists of live bookies and brokers, and pushes when something changes.

Every registered member except a bookie listens: it is told of every change, under the epoch of this coordinator. A
change is packed once, however many listen.
"""

from ...protocol.cluster_status import rpc_address
from ...protocol.names import ROLE_BOOKIE, ROLE_BROKER
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.messages import encode_call
from ...storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from ...storage.metadata.ledger_ids import LedgerIds
from ...storage.metadata.slot_rows import SlotRows
from ..members.contracts_coordinator import BrokerInfo, MemberContract
from ..members.contracts_namespaces import NamespacePolicies
from .announcements import listing
from .membership import Membership, Session


class MemberLists:
    """See the module. `bookies` is this process's own directory; it is kept up to date like those of the members."""

    def __init__(
        self,
        epoch: int,
        membership: Membership,
        bookies: BookieDirectory,
        ledger_ids: LedgerIds,
    ) -> None:
        ledger_ids.on_restored = self.bookies_changed
        self._ledger_ids = ledger_ids
        self._epoch = epoch
        self._membership = membership
        self._directory = bookies
        self._listeners: dict[RpcConnection, None] = {}
        self._members = MemberContract(self._notify)

    # -- listeners -----------------------------------------------------------------------------------------------

    def listen(self, connection: RpcConnection) -> None:
        """Push every change to this connection from now on."""
        self._listeners[connection] = None

    def leave(self, connection: RpcConnection) -> None:
        """Push nothing more to this connection."""
        self._listeners.pop(connection, None)

    def listens(self, connection: RpcConnection) -> bool:
        return connection in self._listeners

    # -- the lists -----------------------------------------------------------------------------------------------

    def bookies(self) -> list[BookieInfo]:
        """Live bookies, each with the end of the ledger ids that are in doubt."""
        sessions, end = self._membership.of_role(ROLE_BOOKIE), self._ledger_ids.restored.doubtful_end
        return [self._bookie_info(one, end) for one in sessions]

    def _bookie_info(self, one: Session, doubtful_end: int) -> BookieInfo:
        draining = self._membership.is_draining(one.node_id)
        writable, limbo = listing(one.report, one.data)
        place = one.data.get("node", ""), one.data.get("zone", "")
        return BookieInfo(
            one.node_id, one.host, one.port, writable and not draining, limbo, doubtful_end, draining, *place
        )

    def brokers(self) -> list[BrokerInfo]:
        """Live brokers."""
        return [
            BrokerInfo(one.node_id, one.incarnation, one.host, one.port, url_of(one), one.data)
            for one in self._membership.of_role(ROLE_BROKER)
        ]

    def bookies_in_limbo(self) -> dict[str, str]:
        """Live bookies that lost data, and why."""
        sessions = self._membership.of_role(ROLE_BOOKIE)
        limbo = {session.node_id: session.report.get("limbo", "") for session in sessions}
        return {bookie: reason for bookie, reason in limbo.items() if reason}

    def damaged_bookies(self) -> dict[str, int]:
        """Live bookies that hold damaged entries, and how many."""
        sessions = self._membership.of_role(ROLE_BOOKIE)
        counts = {session.node_id: session.report.get("scrub", {}).get("damaged", 0) for session in sessions}
        return {bookie: count for bookie, count in counts.items() if count}

    def find_broker(self, broker_id: str) -> tuple[str, str, int] | None:
        """Where a live broker takes internal calls: (incarnation, host, port)."""
        session = self._membership.find(ROLE_BROKER, broker_id)
        address = rpc_address(session.data) if session is not None else None
        return (session.incarnation, *address) if session is not None and address is not None else None

    # -- pushes --------------------------------------------------------------------------------------------------

    def bookies_changed(self) -> None:
        bookies = self.bookies()
        self._directory.update(bookies)
        self._members.bookies_changed(epoch=self._epoch, bookies=bookies)

    def brokers_changed(self) -> None:
        self._members.brokers_changed(epoch=self._epoch, brokers=self.brokers())

    def slots_changed(self, number: int, rows: SlotRows) -> None:
        self._members.slots_changed(epoch=self._epoch, number=number, rows=rows.pack())

    def policies_changed(self, change: NamespacePolicies) -> None:
        self._members.policies_changed(epoch=self._epoch, changes=[change])

    def partitions_changed(self, topic: str, partitions: int) -> None:
        """A topic has so many partitions now, or (−1) is gone. Nobody is told of new topics."""
        self._members.partitions_changed(epoch=self._epoch, topic=topic, partitions=partitions)

    def _notify(self, method: str, **arguments: object) -> None:
        if self._listeners:
            packed = encode_call(method, arguments)
            for connection in list(self._listeners):
                connection.notify(packed)


def url_of(session: Session) -> str:
    """Where clients reach a broker."""
    return session.data.get("url", f"pulsar://{session.host}:{session.port}")
