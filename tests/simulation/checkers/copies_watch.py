"""I8 copies: once faults have healed, every entry of a closed ledger lies intact on its whole write set again.

Bits that flipped at rest stay flipped however often the bookie restarts, and no read may ever meet them: only a scrub
finds them. So this looks at the disks themselves, beside the bookies: a look through their own reads would find the
damage for them. Given a bookie whose scrub begins a pass every few seconds and an auditor, whatever was lost or mangled
on one bookie has to be back within a bound.
"""

from collections.abc import Iterable, Mapping

from magnetar.protocol.errors import EntryCorrupt
from magnetar.storage.bookie.segment_reader import SegmentReader
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata


def lacking_copies(ledgers: Iterable[LedgerMetadata], stores: Mapping[str, BookieStore]) -> list[str]:
    """The first entry of each closed ledger that is not intact on all of its write set. Bookies that are not among
    `stores` have none."""
    lacking: list[str] = []
    for metadata in ledgers:
        if not metadata.closed or metadata.last_entry < 0:
            continue
        held = {
            bookie: intact_entries(stores[bookie], metadata) if bookie in stores else {} for bookie in metadata.bookies
        }
        for entry_id in range(metadata.last_entry + 1):
            write_set = metadata.write_set(entry_id)
            holders = [bookie for bookie in write_set if entry_id in held[bookie]]
            if len(holders) < len(write_set):
                lacking.append(
                    f"I8 copies: entry {(metadata.ledger_id, entry_id)} is intact on {holders} only of {write_set}"
                )
                break
    return lacking


def intact_entries(store: BookieStore, metadata: LedgerMetadata) -> dict[int, None]:
    """Entries of a ledger of which a durable copy on this disk is as it was written."""
    state = store.entries.ledgers.get(metadata.ledger_id)
    found: dict[int, None] = {}
    if state is None or state.nonce != metadata.nonce:
        return found
    reader = SegmentReader(store.entries.env.files)
    try:
        for segment in state.segments:
            rows = segment.rows.get(metadata.ledger_id)
            if rows is None and metadata.ledger_id not in segment.table:
                continue  # damage took all that it held of this ledger, and its index was rebuilt
            try:
                if rows is None:
                    rows = reader.rows(segment, metadata.ledger_id)
                for row in rows.between(0, metadata.last_entry, len(rows), segment.synced_end):
                    if reader.read_entry(segment, metadata.ledger_id, row) is not None:
                        found[row.entry_id] = None
            except EntryCorrupt:
                continue
    finally:
        reader.close()
    return found
