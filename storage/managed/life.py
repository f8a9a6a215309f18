"""How the life of a topic's storage begins at an owner, and how it ends.

The owner recovers the ledgers of the chain (`settle`) before it writes to the topic. `TRANSITIONS` has the states from
then on.
"""

import enum
from collections.abc import Collection, Mapping
from dataclasses import replace

from ...protocol.errors import MagnetarError
from ...runtime.environment import Environment
from ...runtime.tasks import together
from ...runtime.transitions import check_transition
from ..ledger.ledgers import Ledgers
from ..metadata.ledger_records import LedgerRecord
from .chain import LedgerInfo
from .record import ManagedLedgerRecord


class ManagedLedgerState(enum.Enum):
    """See `TRANSITIONS`."""

    OPEN = enum.auto()
    FENCED = enum.auto()
    CLOSED = enum.auto()


TRANSITIONS: Mapping[ManagedLedgerState, Collection[ManagedLedgerState]] = {
    ManagedLedgerState.OPEN: (
        ManagedLedgerState.FENCED,  # another owner has the topic: `on_fenced` listeners are told
        ManagedLedgerState.CLOSED,  # `close`
    ),
    ManagedLedgerState.FENCED: (),  # `close` then only lets go of what it holds
    ManagedLedgerState.CLOSED: (),
}


class Life:
    """The state of one `ManagedLedger`, and the error that everything asked for after its end gets."""

    def __init__(self, name: str) -> None:
        self.state = ManagedLedgerState.OPEN
        self._name = name
        self._ended: MagnetarError | None = None

    def become(self, state: ManagedLedgerState, reason: MagnetarError) -> None:
        """End. Raises ForbiddenTransition for a step that the table does not have."""
        check_transition(TRANSITIONS, self._name, self.state, state)
        self.state = state
        self._ended = reason

    def check(self) -> None:
        """Raise why it has ended, if it has."""
        if self._ended is not None:
            raise self._ended.with_traceback(None)


async def settle(env: Environment, ledgers: Ledgers, record: ManagedLedgerRecord) -> tuple[LedgerInfo, ...]:
    """Recover every ledger of the chain that is not CLOSED; what all of them hold in the end."""

    async def settle_one(info: LedgerInfo, found: LedgerRecord) -> LedgerInfo:
        metadata = found.metadata
        if not metadata.closed:
            metadata = await ledgers.recover(info.ledger_id, found)
        return replace(
            info,
            entries=metadata.last_entry + 1,
            size_bytes=metadata.length or info.size_bytes,
            closed=True,
            closed_ms=info.closed_ms or env.clock.now_ms(),
        )

    if not record.ledgers:
        return ()
    records = await ledgers.records.get_many([info.ledger_id for info in record.ledgers])
    return tuple(await together(map(settle_one, record.ledgers, records)))
