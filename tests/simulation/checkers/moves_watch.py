"""I1 when a closed ledger moves: a record names a bookie only once that bookie holds the entries durably.

This looks at each change of a closed ledger's record, at the moment in which the database makes it. A bookie that is
named for entries now, and was not before, must have them on its disk, synced. Whether they are as written is what other
checkers find out. A bookie that does not run at that moment, or is in limbo, cannot be asked.
"""

from collections.abc import Callable, Mapping

from magnetar.actors.auditor.plan import pieces_of
from magnetar.protocol.errors import EntryCorrupt
from magnetar.storage.bookie.segment_reader import SegmentReader
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from magnetar.storage.metadata.store import Versioned

from .ledger_history import LedgerHistory


class MovesWatch:
    """See the module. `stores` returns the bookies that run now."""

    def __init__(self, history: LedgerHistory, stores: Callable[[], Mapping[str, BookieStore]]) -> None:
        self._history = history
        self._stores = stores

    def changed(self, key: str, before: Versioned | None, after: Versioned | None) -> None:
        """A record was written, or (None) deleted."""
        if not key.startswith(metadata_keys.LEDGERS_PREFIX) or before is None or after is None:
            return
        old, new = LedgerMetadata.unpack(before.value), LedgerMetadata.unpack(after.value)
        if not old.closed or old.fragments == new.fragments:
            return
        self._history.counts["ledgers moved"] += 1
        stores = self._stores()
        had = {(piece.first, piece.bookie) for piece in pieces_of(old)}
        for piece in pieces_of(new):
            store = stores.get(piece.bookie)
            if (piece.first, piece.bookie) in had or store is None or store.limbo or store.failed:
                continue
            stripe = piece.stripe(new)
            wanted = [entry_id for entry_id in range(piece.first, piece.last + 1) if entry_id in stripe]
            held = durable_entries(store, new)
            lacking = [entry_id for entry_id in wanted if held is not None and entry_id not in held]
            if lacking:
                self._history.violated(
                    f"I1: the record of ledger {new.ledger_id} names {piece.bookie} for entries {lacking}, which it "
                    "does not hold durably"
                )


def durable_entries(
    store: BookieStore, metadata: LedgerMetadata, last_entry: int | None = None
) -> dict[int, None] | None:
    """Entries of a ledger that are durable on this disk; None when a damaged index cannot tell.

    Up to its end, or up to `last_entry`.
    """
    last = metadata.last_entry if last_entry is None else last_entry
    state = store.entries.ledgers.get(metadata.ledger_id)
    found: dict[int, None] = {}
    if state is None or state.nonce != metadata.nonce:
        return found
    reader = SegmentReader(store.entries.env.files)
    try:
        for segment in state.segments:
            rows = segment.rows.get(metadata.ledger_id)
            if rows is None and metadata.ledger_id not in segment.table:
                continue
            if rows is None:
                rows = reader.rows(segment, metadata.ledger_id)
            found.update(dict.fromkeys(row.entry_id for row in rows.between(0, last, len(rows), segment.synced_end)))
    except (EntryCorrupt, OSError):
        return None
    finally:
        reader.close()
    return found
