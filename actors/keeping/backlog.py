"""What is measured of a topic's backlog, and the place from which it is small enough. Pure."""

from collections.abc import Iterable, Sequence
from math import floor
from typing import NamedTuple, Protocol

from ...protocol.message_id import Position
from ...storage.managed.chain import LedgerInfo


class BacklogOf(Protocol):
    """A durable cursor."""

    @property
    def backlog_entries(self) -> int: ...
    @property
    def backlog_bytes(self) -> int: ...
    @property
    def first_unacknowledged(self) -> Position: ...


class Backlog(NamedTuple):
    """Of the slowest durable subscription: its size, and the first entry that it has not acknowledged.

    A topic where every subscription has acknowledged everything has none (`first` is None), whatever its ledgers hold.
    """

    size_bytes: int
    first: Position | None


def measure(cursors: Iterable[BacklogOf]) -> Backlog:
    """The backlog of a topic."""
    behind = [one for one in cursors if one.backlog_entries > 0]
    if not behind:
        return Backlog(0, None)
    return Backlog(max(one.backlog_bytes for one in behind), min(one.first_unacknowledged for one in behind))


def place_with_bytes_behind(infos: Sequence[LedgerInfo], size_bytes: int) -> Position | None:
    """The first of the newest entries that have this size together, at most. Entries of one ledger count as equally
    large. None if that is all of them."""
    left = size_bytes
    for info in reversed(infos):
        if info.size_bytes > left:
            kept = floor(info.entries * left / info.size_bytes)
            return (info.ledger_id, info.entries - kept)
        left -= info.size_bytes
    return None
