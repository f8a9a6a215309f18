"""How the life of a topic's storage begins at an owner, and how it ends.

The owner recovers the ledgers of the chain (`settle`) before it writes to the topic. `TRANSITIONS` has the states from
then on.

A topic that is terminated ends for ever: behind its last entry nothing is stored. `Termination` takes two steps:

1. appends are no longer taken, and every ledger of the chain is closed. Now the end of the chain cannot move;
2. the end is stored in the record, by compare-and-set under the owner's epoch.

A crash before 2 leaves a topic that takes entries; nobody was told that it ended. A crash behind 2 leaves a terminated
one: each later owner reads the record before it could append. Between both the owner takes nothing. When terminating
fails, it is not known here whether the end is stored, so the topic must be opened again.
"""

import asyncio
import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from ...protocol.errors import LedgerFenced, MagnetarError, StaleEpoch
from ...protocol.message_id import Position
from ...runtime.environment import Environment
from ...runtime.tasks import together
from ...runtime.transitions import check_transition
from ..ledger.ledgers import Ledgers
from ..metadata.ledger_records import LedgerRecord
from .chain import LedgerChain, LedgerInfo
from .chain_writer import ChainWriter
from .record import ManagedLedgerRecord, OwnedRecord, holding


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


class Termination:
    """The end of a topic that was terminated, see the module.

    `on_stored` is called when the end is stored: what was kept for appends may be trimmed.
    """

    def __init__(
        self,
        owned: OwnedRecord,
        record_lock: asyncio.Lock,
        chain: LedgerChain,
        writer: ChainWriter,
        on_stored: Callable[[], None],
    ) -> None:
        self._owned = owned
        self._record_lock = record_lock
        self._chain = chain
        self._writer = writer
        self._on_stored = on_stored

    @property
    def end(self) -> Position | None:
        """The stored place of the last entry, (−1, −1) where there is none. None: the topic is not terminated."""
        return self._owned.record.terminated

    def opened(self) -> None:
        """The topic was opened: one that is terminated takes no append."""
        if self.end is not None:
            self._chain.last_confirmed = max(self._chain.last_confirmed, self.end)
            self._writer.refuse_appends()

    async def terminate(self) -> Position:
        """Terminate the topic. Returns the place of its last entry. What is pending gets an error.

        Raises StaleEpoch, LedgerFenced, RecoveryFailed, MetadataUnavailable, OutcomeUnknown.
        """
        try:
            self._writer.refuse_appends()
            await self._writer.recover_chain()
            async with holding(self._owned, self._record_lock):
                if self.end is None:
                    await self._owned.change(self._ended)
        except (StaleEpoch, LedgerFenced) as error:
            self._writer.fence(error)
            raise
        self._on_stored()
        return self._chain.last_confirmed if self.end is None else self.end

    def _ended(self, record: ManagedLedgerRecord) -> ManagedLedgerRecord:
        return replace(record, ledgers=self._chain.as_known(record.ledgers), terminated=self._chain.last_confirmed)
