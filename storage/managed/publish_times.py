"""Finds a place in a topic by publish time: binary search over the entries of the chain.

Producers stamp entries with their own clocks, so times ascend only roughly; the answer is exact when they do.
"""

from ...protocol.entries import parse_metadata
from ...protocol.errors import NoSuchEntry
from ...protocol.message_id import Position
from .chain import LedgerChain
from .chain_reader import ChainReads


async def find_by_publish_time(chain: LedgerChain, reads: ChainReads, publish_time_ms: int) -> Position:
    """The first entry whose publish time is `publish_time_ms` or later; the place behind the last one if there is none.

    Raises what reading raises, ProtocolError for an entry without message metadata.
    """
    end = chain.last_confirmed
    low = chain.ceiling((-1, -1))
    if low is None:
        return chain.next_position(end)
    behind = 0
    ahead = chain.count_between((-1, -1), end)
    first = low
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
    for info in chain.infos:
        if info.ledger_id < first[0]:
            continue
        if index < info.entries:
            return (info.ledger_id, index)
        index -= info.entries
    return None
