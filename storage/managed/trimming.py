"""Which ledgers of a topic may go. Pure.

Oldest first, stopping at the first one to keep. These ledgers are kept: the current one, those that are not closed,
pinned ones, and those with an entry that a durable cursor has not durably passed. Without any durable cursor nothing is
kept for anybody.
"""

from collections.abc import Collection, Iterable, Sequence

from ...protocol.message_id import Position
from .chain import LedgerInfo


def trimmable(
    infos: Sequence[LedgerInfo],
    durable_marks: Iterable[Position],
    pinned: Collection[int],
    current_ledger_id: int | None,
) -> list[int]:
    """Ids of the ledgers to delete, in the order of the chain. `durable_marks`: what each durable cursor has stored."""
    marks = list(durable_marks)
    slowest = min(marks) if marks else None
    gone: list[int] = []
    for info in infos:
        if info.ledger_id == current_ledger_id or not info.closed or info.ledger_id in pinned:
            break
        if slowest is not None and (info.ledger_id, info.entries - 1) > slowest:
            break
        gone.append(info.ledger_id)
    return gone
