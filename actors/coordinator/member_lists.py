"""What members are told of each other: the lists of live bookies and brokers, and pushes when something changes.

Every registered member except a bookie listens: it is told of every change, under the epoch of this coordinator. A
change is packed once, however many listen.

What members say of themselves, checked before others hear of it.

The coordinator passes addresses, URLs and reports on in its lists, and every other member relies on them. One malformed
registration would otherwise break the registration of all other members. Pure.
"""

from typing import cast

from ...protocol.cluster_status import MemberData, MemberReport, rpc_address
from ...protocol.errors import ProtocolError
from ...protocol.names import ROLE_BOOKIE, ROLE_BROKER
from ...runtime.rpc.connection import RpcConnection
from ...runtime.rpc.messages import encode_call, pack
from ...runtime.rpc.shapes import Misfit, shape_of
from ...storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from ...storage.metadata.ledger_ids import LedgerIds
from ...storage.metadata.slot_rows import SlotRows
from ..members.contracts_coordinator import BrokerInfo, MemberContract, NamespacePolicies
from .membership import Membership, Session

DATA_BYTES_MAX = 64 << 10
COUNT_END = 1 << 62

_report_shape = shape_of(MemberReport)


def check_registration(node_id: str, host: str, port: int, data: MemberData) -> None:
    """Raise ProtocolError unless this is where and how a member can be reached.

    The contract has checked the types. What `MemberData` does not declare is handed on as it is, if it is small.
    """
    if not _is_port(port):
        raise ProtocolError(f"the registration of {node_id} has an impossible address: {host!r:.100}, {port!r:.100}")
    if "rpc" in data:
        address = rpc_address(data)
        if address is None or not _is_port(address[1]):
            raise ProtocolError(f"the registration of {node_id} is malformed: rpc is {data['rpc']!r:.100}")
    _check_count(node_id, "registration", "ledgers_end", data.get("ledgers_end", 0))
    _check_count(node_id, "registration", "launch", data.get("launch", 0))
    if len(pack(data)) > DATA_BYTES_MAX:
        raise ProtocolError(f"the registration of {node_id} is too long")


def check_report(node_id: str, report: object) -> MemberReport:
    """The report of a heartbeat. Raises ProtocolError for what is no `MemberReport`."""
    try:
        checked = cast("MemberReport", _report_shape(report))
    except Misfit as error:
        raise ProtocolError(f"the report of {node_id} is malformed: it holds {error}") from None
    _check_count(node_id, "report", "unknown_ledgers", checked.get("unknown_ledgers", 0))
    return checked


def listing(report: MemberReport, data: MemberData) -> tuple[bool, bool]:
    """Whether a bookie takes new ledgers, and whether it is in limbo; `data` counts until the first report."""
    return report.get("writable", data.get("writable", True)), bool(report.get("limbo"))


def damage_found(report: MemberReport) -> int:
    """How many damaged entries a bookie has found in all its life."""
    return report.get("scrub", {}).get("found", 0)


def _is_port(port: int) -> bool:
    return 0 <= port < 1 << 16


def _check_count(node_id: str, what: str, name: str, count: int) -> None:
    if not 0 <= count < COUNT_END:
        raise ProtocolError(f"the {what} of {node_id} is malformed: {name} is {count}")


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
        """A topic has so many partitions now, or (−1) is gone, or about to be. Nobody is told of new topics."""
        self._members.partitions_changed(epoch=self._epoch, topic=topic, partitions=partitions)

    def _notify(self, method: str, **arguments: object) -> None:
        if self._listeners:
            packed = encode_call(method, arguments)
            for connection in list(self._listeners):
                connection.notify(packed)


def url_of(session: Session) -> str:
    """Where clients reach a broker."""
    return session.data.get("url", f"pulsar://{session.host}:{session.port}")
