"""Drained members, at the moment when the desired state forgets them, and when a bookie's directory is emptied.

- I9: a bookie is retired only when no closed ledger with entries names it, and no open ledger of which it has taken
  entries. Each entry of a closed ledger is then on an ack quorum of the other bookies that its record names, as far as
  they run and are not damaged. No process of it serves. Its directory is emptied only afterwards, and never that of a
  bookie which the desired state names.
- I9: no process of a broker serves when it is retired.
"""

from collections.abc import Container, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.desired.record import DesiredState
from magnetar.storage.bookie.entry_store import EntryStore
from magnetar.storage.bookie.held_ledgers import HeldLedger
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from support.stores.memory_store import MemoryRecords

from .history import History
from .moves_watch import durable_entries
from .store_watch import is_dead, who


class RetirementWatch:
    """See the module."""

    def __init__(self, history: History, records: MemoryRecords) -> None:
        self._history = history
        self._records = records
        self._taken: dict[tuple[int, str], None] = {}
        """(ledger, bookie): the bookie has taken an entry of it once."""

    def install(self, stack: ExitStack) -> None:
        """Watch what bookies accept until the stack is left."""
        append_entry = EntryStore.append_entry

        def appending(store: EntryStore, state: HeldLedger, *rest: Any) -> None:
            append_entry(store, state, *rest)
            if not is_dead():
                self.takes(state.ledger_id, who())

        stack.enter_context(patch.object(EntryStore, "append_entry", appending))

    def takes(self, ledger_id: int, bookie: str) -> None:
        """A bookie has accepted an entry of a ledger."""
        self._taken[(ledger_id, bookie)] = None

    def retired(self, member: str, serves: bool, stores: Mapping[str, BookieStore], harmed: Container[str]) -> None:
        """The desired state has forgotten a member. `stores` are the other bookies that run."""
        self._history.counts["members retired"] += 1
        if serves:
            self._history.violated(f"I9: {member} is retired, and its process serves")
        for metadata in self.ledgers():
            if member in metadata.bookies:
                if metadata.last_entry >= 0 if metadata.closed else (metadata.ledger_id, member) in self._taken:
                    self._history.violated(f"I9: {member} is retired, and the record of ledger {metadata} names it")
            elif metadata.closed and (metadata.ledger_id, member) in self._taken:
                self._held_elsewhere(member, metadata, stores, harmed)

    def _held_elsewhere(
        self, member: str, metadata: LedgerMetadata, stores: Mapping[str, BookieStore], harmed: Container[str]
    ) -> None:
        held: dict[str, dict[int, None] | None] = {}
        for bookie in metadata.bookies:
            store = stores.get(bookie)
            is_known = store is not None and not store.limbo and not store.failed and bookie not in harmed
            held[bookie] = durable_entries(store, metadata) if store is not None and is_known else None
        for entry_id in range(metadata.last_entry + 1):
            write_set = metadata.write_set(entry_id)
            # a bookie of which nothing is known may hold it
            holders = [one for one in write_set if (has := held[one]) is None or entry_id in has]
            if len(holders) < metadata.ack_quorum:
                self._history.violated(
                    f"I9: {member} is retired, and entry {(metadata.ledger_id, entry_id)} is on {holders} only"
                )
                return

    def erased(self, bookie: str, serves: bool, desired: DesiredState) -> None:
        """The directory of a bookie is about to be emptied."""
        self._history.counts["bookies erased"] += 1
        if bookie in desired:
            self._history.violated(f"I9: the directory of {bookie} is emptied, and the desired state names it")
        if serves:
            self._history.violated(f"I9: the directory of {bookie} is emptied, and its process serves")

    def ledgers(self) -> list[LedgerMetadata]:
        """All records of ledgers."""
        return [
            LedgerMetadata.unpack(record.value)
            for key, record in sorted(self._records.by_key.items())
            if key.startswith(metadata_keys.LEDGERS_PREFIX)
        ]
