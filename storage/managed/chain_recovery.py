"""Recovery of the ledgers of a topic's chain, which each owner does before it writes to the topic."""

from dataclasses import replace

from ...runtime.environment import Environment
from ...runtime.tasks import together
from ..ledger.ledgers import Ledgers
from ..metadata.ledger_records import LedgerRecord
from .chain import LedgerInfo
from .record import ManagedLedgerRecord


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
