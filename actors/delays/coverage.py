"""Which positions of a subscription a dispatcher need not read, because buckets have them. Pure but for `bridged`."""

import asyncio
import sys
from collections.abc import Sequence

from ...protocol.message_id import Position
from ...storage.managed.acknowledged import EntryRanges
from ...storage.managed.cursor import Cursor
from .bucket import Covered

SKIPS_MAX = 1000
GAPS_AT_ONCE = 1000
"""Gaps that are looked at before others get the loop."""


class Coverage:
    """What all buckets cover. It is forgotten when the read position has passed it."""

    def __init__(self, cursor: Cursor) -> None:
        self.open = False
        """Whether the read position may come to positions that a bucket has."""
        self._cursor = cursor
        self._covered: Covered = {}
        self._last: Position = (-1, -1)

    def add(self, covered: Covered) -> None:
        """What one more bucket covers."""
        self.open = True
        self._last = max(self._last, last_of(covered))
        for ledger_id, ranges in covered.items():
            known = self._covered.get(ledger_id)
            if known is None:
                self._covered[ledger_id] = ranges
            else:
                for first, last in ranges:
                    known.add(first, last)

    def clear(self) -> None:
        """Nothing is covered."""
        self._covered, self.open = {}, False

    def among(self, positions: Sequence[Position]) -> list[Position]:
        """Those of the positions that are covered."""
        covered = self._covered
        found: list[Position] = []
        for position in positions:
            ranges = covered.get(position[0])
            if ranges is not None and ranges.end_of(position[1]) is not None:
                found.append(position)
        return found

    def skip(self, position: Position) -> tuple[Position, int]:
        """The next place to read at or behind a position, and how many entries may be read there before others are
        covered."""
        for _ in range(SKIPS_MAX):
            position = self._cursor.next_unacknowledged(position)
            if position > self._last:
                self.clear()
                return position, sys.maxsize
            ranges = self._covered.get(position[0])
            if ranges is None:
                return position, sys.maxsize
            end = ranges.end_of(position[1])
            if end is None:
                following = ranges.pairs(ranges.count_before(position[1]), 1)
                return position, following[0] - position[1] if following else sys.maxsize
            position = (position[0], end + 1)
        return position, 1


async def bridged(cursor: Cursor, covered: Covered) -> Covered:
    """What is covered, with the positions between ranges of it that are acknowledged."""
    joined: Covered = {}
    looked = 0
    for ledger_id, ranges in covered.items():
        firsts: list[int] = []
        lasts: list[int] = []
        for first, last in ranges:
            looked += 1
            if looked % GAPS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if lasts and cursor.next_unacknowledged((ledger_id, lasts[-1] + 1)) >= (ledger_id, first):
                lasts[-1] = last
            else:
                firsts.append(first)
                lasts.append(last)
        joined[ledger_id] = EntryRanges()
        joined[ledger_id].extend(firsts, lasts)
    return joined


def last_of(covered: Covered) -> Position:
    """The last position that is covered."""
    ledger_id = max(covered)
    return (ledger_id, max(last for _, last in covered[ledger_id]))
