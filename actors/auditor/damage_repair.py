"""Brings back what bookies say is damaged on their disks: a good copy of each such entry, from another bookie.

A bookie notes damaged entries durably and tells how many there are with its heartbeat (`storage/bookie/damage.py`). The
auditor asks the bookie for them, in pages. It has the bookie copy each from the others, as it copies missing entries.
The bookie ends the note when the copy is durable. So a failure at any step only means that the entry is still noted at
the next round.

This is done in every state of the ledger. The bookie had accepted just this entry. So with the same bytes again, a
writer or a recovery sees no change, except that a read succeeds. Two kinds are left out. The notes of a ledger that was
deleted or has another nonce end when the bookie collects it. Entries behind the end of a closed ledger are never read,
and the bookie is told to forget these.
"""

from collections.abc import Callable
from itertools import groupby

from ...protocol.errors import MagnetarError, NoSuchLedger
from ...storage.metadata.entry_gaps import ranges_of
from ...storage.metadata.ledger_records import LedgerRecords
from ..members.contracts_bookie import BookieContract, EntryPlace
from ..members.peer_calls import MemberCalls
from .repair import LedgerRepair

ENTRIES_PER_PAGE = 1000


async def repair_damage(
    bookie: str,
    calls: MemberCalls[BookieContract],
    records: LedgerRecords,
    repair: LedgerRepair,
    on_failure: Callable[[str, MagnetarError], None],
) -> None:
    """Repair all that a bookie knows to be damaged; what fails is told and left out.

    Raises what asking the bookie for the list raises.
    """
    after = EntryPlace(-1, -1)
    while True:
        page = await calls.of(bookie).damaged_entries(after=after, limit=ENTRIES_PER_PAGE)
        for (ledger_id, nonce), keys in groupby(page, key=lambda key: (key.ledger, key.nonce)):
            entry_ids = [key.entry for key in keys]
            try:
                record = await records.get(ledger_id)
                if record.metadata.nonce != nonce:
                    continue
                if record.metadata.closed and entry_ids[-1] > record.metadata.last_entry:
                    last = record.metadata.last_entry
                    await calls.of(bookie).forget_damage(ledger=ledger_id, above=last)
                    entry_ids = [entry_id for entry_id in entry_ids if entry_id <= last]
            except NoSuchLedger:
                continue
            except MagnetarError as error:
                on_failure(f"damaged entries of ledger {ledger_id}", error)
                continue
            for first, last in ranges_of(entry_ids):
                try:
                    await repair.fill_range(record.metadata, first, last, bookie)
                except MagnetarError as error:
                    on_failure(f"damaged entries {first} to {last} of ledger {ledger_id} on {bookie}", error)
        if len(page) < ENTRIES_PER_PAGE:
            return
        after = EntryPlace(page[-1].ledger, page[-1].entry)
