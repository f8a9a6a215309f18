"""Publish times of a topic: a place found by time, and the time of the last message.

A place is found by binary search over the entries of the chain.

Producers stamp entries with their own clocks, so times ascend only roughly; the answer is exact when they do.
"""

import logging
from typing import Protocol

from ...protocol.entries import parse_metadata
from ...protocol.errors import MagnetarError, NoSuchEntry
from ...protocol.message_id import Position
from .chain import LedgerChain
from .chain_reader import ChainReads

logger = logging.getLogger(__name__)


async def find_by_publish_time(
    chain: LedgerChain, reads: ChainReads, publish_time_ms: int, start: Position = (-1, -1)
) -> Position:
    """The first entry whose publish time is `publish_time_ms` or later; the place behind the last one if there is none.

    Only entries at or behind `start` are looked at.

    Raises what reading raises, ProtocolError for an entry without message metadata.
    """
    end = chain.last_confirmed
    low = chain.ceiling(start)
    if low is None:
        return chain.next_position(end)
    behind = 0
    first = low
    ahead = chain.count_between((first[0], first[1] - 1), end)
    while behind < ahead:
        middle = (behind + ahead) // 2
        position = _at(chain, first, middle)
        if position is None:
            ahead = middle
            continue
        found = await reads.read(position, 1, 1, upto=position)
        if not found:
            raise NoSuchEntry(f"entry {position} was trimmed during the search")
        if int(parse_metadata(found[0][1]).publish_time) < publish_time_ms:
            behind = middle + 1
        else:
            ahead = middle
    return _at(chain, first, behind) or chain.next_position(max(end, chain.last_confirmed))


def _at(chain: LedgerChain, first: Position, index: int) -> Position | None:
    """The entry number `index`, counted from `first`, also while ledgers before it are trimmed."""
    index += first[1] if chain.get(first[0]) is not None else 0
    for info in chain.infos:
        if info.ledger_id < first[0]:
            continue
        if index < info.entries:
            return (info.ledger_id, index)
        index -= info.entries
    return None


class StoredEntries(Protocol):
    """What is asked for the last message: the managed ledger."""

    @property
    def last_confirmed(self) -> Position: ...

    async def read(
        self, first: Position, entries_max: int, bytes_max: int, upto: Position | None = None
    ) -> list[tuple[Position, bytes]]: ...


class LastPublish:
    """When a topic got its last message: noted as entries become durable, and read from the last one after a load.

    `at_ms` is 0 while it is not known, and for a topic without messages.
    """

    def __init__(self, ledger: StoredEntries) -> None:
        self.at_ms = 0
        self._ledger = ledger
        self._position = ledger.last_confirmed

    def appended(self, now_ms: int) -> None:
        """Entries may have become durable."""
        position = self._ledger.last_confirmed
        if position != self._position:
            self._position = position
            self.at_ms = now_ms

    async def learn(self) -> None:
        """Ask the last stored message, as long as none was published since the topic was loaded."""
        position = self._position
        if self.at_ms or position < (0, 0):
            return
        try:
            entries = await self._ledger.read(position, 1, 1, upto=position)
            found = int(parse_metadata(entries[0][1]).publish_time) if entries else 0
        except MagnetarError as error:
            logger.info("the publish time of the last message at %s is not known: %s", position, error)
            return
        if not self.at_ms:  # something may have been published meanwhile
            self.at_ms = found
