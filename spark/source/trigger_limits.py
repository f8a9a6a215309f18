"""How far a micro-batch reads when it is limited, by bytes or by messages.

Each partition gets a share of the limit in proportion to what is left of it. So all of them end at about the same
time. A limit in bytes ends with an entry. Ledgers tell how large their entries are.

Nothing tells how many messages an entry has. So the first entries of a share are read. If they have enough messages,
the micro-batch ends exactly. If not, the others are taken to have as many on average.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from ...bulk.read_plan import PartitionPlan, ReadSplit, ledger_ranges, sizes_of_entries, split_by_size
from ...protocol.message_id import WireMessageId
from .offsets import Reached

SAMPLE_BYTES = 1 << 20
"""About how much of a partition is read to count its messages."""

ReadIds = Callable[[ReadSplit], Awaitable[list[bytes]]]
"""Reads the column `__messageId` of a split."""


def shares(plans: Sequence[PartitionPlan], limit: int) -> list[int]:
    """What each partition gets of a limit, at least 1."""
    sizes = [_size_bytes(plan) for plan in plans]
    return [max(1, limit * size // max(sum(sizes), 1)) for size in sizes]


def place_within(plan: PartitionPlan, size_bytes: int) -> Reached | None:
    """The last entry of a plan that about so many bytes reach, at least the first; None if the plan has none."""
    return _place(plan, size_bytes, sizes_of_entries(plan))


async def place_of_message(plan: PartitionPlan, messages: int, read_ids: ReadIds) -> Reached | None:
    """The place of about the last of so many messages, at least the first; None if the plan has no more of them.

    Raises what `read_ids` raises.
    """
    splits = split_by_size([plan], SAMPLE_BYTES)
    if not splits:
        return None
    ids = await read_ids(splits[0])
    if len(splits) == 1 and len(ids) <= messages:
        return None
    if len(ids) >= messages:
        found = WireMessageId.deserialize(ids[messages - 1])
        following = WireMessageId.deserialize(ids[messages]) if len(ids) > messages else found
        # The last message of a batch stands for its entry, so that the backlog does not count the entry.
        index = found.batch_index if following.position == found.position else -1
        return Reached(found.ledger_id, found.entry_id, index)
    per_entry = max(len(ids) / splits[0].entries, 1.0)
    return _place(plan, int(messages / per_entry), dict.fromkeys(sizes_of_entries(plan), 1))


def _size_bytes(plan: PartitionPlan) -> int:
    sizes = sizes_of_entries(plan)
    return sum(part.entries * sizes[part.ledger.ledger_id] for part in ledger_ranges(plan))


def _place(plan: PartitionPlan, room: int, costs: Mapping[int, int]) -> Reached | None:
    """The last entry for which there is room; `costs` says what an entry of each ledger takes of it."""
    found: Reached | None = None
    for part in ledger_ranges(plan):
        cost = costs[part.ledger.ledger_id]
        entries = min(part.entries, max(room // cost, 0 if found is not None else 1))
        if entries:
            found = Reached(part.ledger.ledger_id, part.first_entry + entries - 1)
        room -= entries * cost
        if entries < part.entries:
            break
    return found
