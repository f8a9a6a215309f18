"""What members say of themselves, checked before others hear of it.

The coordinator passes addresses, URLs and reports on in its lists, and every other member relies on them. One malformed
registration would otherwise break the registration of all other members. Pure.
"""

from typing import cast

from ...protocol.cluster_status import MemberData, MemberReport, rpc_address
from ...protocol.errors import ProtocolError
from ...runtime.rpc.messages import pack
from ...runtime.rpc.shapes import Misfit, shape_of

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
