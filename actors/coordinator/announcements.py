"""What members say of themselves, checked before others hear of it.

The coordinator hands on addresses, URLs and reports in its lists, and every other member relies on them: one malformed
registration would otherwise break the registration of everybody else. Pure.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ...protocol.errors import ProtocolError
from ...runtime.rpc.messages import pack

DATA_BYTES_MAX = 64 << 10


def check_registration(node_id: str, host: object, port: object, data: object) -> None:
    """Raise ProtocolError unless this is where and how a member can be reached.

    Of `data` a broker's `url` and `rpc` ([host, port]), a bookie's `instance`, `writable` and `ledgers_end` are known;
    the rest is handed on as it is, if it is small.
    """
    if not _is_address([host, port]):
        raise ProtocolError(f"the registration of {node_id} has an impossible address: {host!r:.100}, {port!r:.100}")
    if not isinstance(data, dict):
        raise ProtocolError(f"the registration of {node_id} has no description of the node")
    _check(node_id, "registration", data, _DATA)
    if len(pack(data)) > DATA_BYTES_MAX:
        raise ProtocolError(f"the registration of {node_id} is too long")


def check_report(node_id: str, report: object) -> dict[str, Any]:
    """The report of a heartbeat. Raises ProtocolError when its `writable`, `limbo`, `disk` or `scrub` cannot be
    read."""
    if not isinstance(report, dict):
        raise ProtocolError(f"the report of {node_id} is malformed")
    _check(node_id, "report", report, _REPORT)
    return report


def listing(report: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a bookie takes new ledgers, and whether it is in limbo; `data` counts until the first report."""
    return bool(report.get("writable", data.get("writable", True))), bool(report.get("limbo"))


def damage_found(report: Mapping[str, Any]) -> int:
    """How many damaged entries a bookie has found in all its life."""
    return report.get("scrub", {}).get("found", 0)


def _check(node_id: str, what: str, values: Mapping[Any, Any], known: Mapping[str, Callable[[object], bool]]) -> None:
    for name, fits in known.items():
        value = values.get(name)
        if value is not None and not fits(value):
            raise ProtocolError(f"the {what} of {node_id} is malformed: {name} is {value!r:.100}")


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_address(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and type(value[1]) is int
        and 0 <= value[1] < 1 << 16
    )


def _is_disk(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(name, 0), int) for name in ("used", "total", "free", "full")
    )


def _is_scrub(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(name, 0), int | float)
        for name in ("damaged", "found", "repaired", "passes", "pass_share", "scrubbed_bytes")
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


_DATA = {
    "url": _is_text,
    "rpc": _is_address,
    "instance": _is_text,
    "writable": _is_bool,
    "ledgers_end": _is_count,
}
_REPORT = {
    "writable": _is_bool,
    "limbo": _is_text,
    "disk": _is_disk,
    "scrub": _is_scrub,
    "unknown_ledgers": _is_count,
}
