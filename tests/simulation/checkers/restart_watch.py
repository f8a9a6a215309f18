"""I17: a rolling restart takes one process away at a time, and a bookie only while its entries have all other copies.

This stands beside the supervisors, where they ask a process to close because it is restarted.

- No other process is away because the same coordinator restarted it, and no other bookie because any coordinator did.
- Once the faults are over: every other member serves. A broker has given its topics away, if there is another one. An
  entry that was acknowledged a moment ago is on all other bookies that its ledger's record names for it. So one copy of
  it is away while the bookie is. Ledgers that no record names hold nothing that anybody reads: a broker that replaces a
  cursor's ledger may fail to delete the old one, which then stays open until the search for orphans deletes it.
"""

import asyncio
from collections.abc import Container, Mapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.actors.auditor.orphans import ledgers_named_by
from magnetar.protocol.names import ROLE_BOOKIE
from magnetar.storage.bookie.entry_store import EntryStore
from magnetar.storage.bookie.held_ledgers import HeldLedger
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from support.stores.memory_store import MemoryRecords

from .history import History
from .moves_watch import durable_entries
from .store_watch import is_dead

COPIED_WITHIN_S = 1.0
"""Once the faults are over, all copies of an entry are on disk so long after the first."""


class RestartWatch:
    """See the module."""

    def __init__(self, history: History, records: MemoryRecords) -> None:
        self.calm = False
        """Whether the faults are over."""
        self._history = history
        self._records = records
        self._away: dict[str, object] = {}
        """Member → the coordinator that closed it."""
        self._taken: dict[int, dict[int, float]] = {}
        """Ledger → entry → when a bookie took it first."""

    def install(self, stack: ExitStack) -> None:
        """Note when bookies accept entries until the stack is left."""
        append_entry = EntryStore.append_entry

        def appending(
            store: EntryStore, state: HeldLedger, payload: bytes, head: bytes, entry_id: int, *rest: Any
        ) -> int | None:
            refusal = append_entry(store, state, payload, head, entry_id, *rest)
            if refusal is None and not is_dead():
                self.takes(state.ledger_id, entry_id, asyncio.get_running_loop().time())
            return refusal

        stack.enter_context(patch.object(EntryStore, "append_entry", appending))

    def takes(self, ledger_id: int, entry_id: int, now_s: float) -> None:
        """A bookie has accepted an entry."""
        self._taken.setdefault(ledger_id, {}).setdefault(entry_id, now_s)

    def is_back(self, member: str) -> None:
        """A process of it has started."""
        self._away.pop(member, None)

    def waits_for(self, members: Container[str]) -> None:
        """These are there. Nobody waits for others: their machines are lost, or they are not wanted."""
        self._away = {member: by for member, by in self._away.items() if member in members}

    def closes(self, member: str, coordinator: object, down: list[str], serves: list[str]) -> None:
        """A process is about to close because it is restarted. `down` are other members that do not serve, `serves`
        are topics that it could have given to other brokers."""
        self._history.counts["processes restarted"] += 1
        bookies = f"{ROLE_BOOKIE}-"
        others = [
            one
            for one, by in self._away.items()
            if one != member and (by is coordinator or (member.startswith(bookies) and one.startswith(bookies)))
        ]
        if others:
            self._history.violated(f"I17: {member} is closed, and {others} are away because they were restarted")
        self._away[member] = coordinator
        if self.calm and down:
            self._history.violated(f"I17: {member} is closed to be restarted, and {down} do not serve")
        if self.calm and serves:
            self._history.violated(f"I17: {member} is closed to be restarted, and still owns {serves[:3]}")

    def copies(self, bookie: str, stores: Mapping[str, BookieStore], harmed: Container[str], now_s: float) -> None:
        """The same for the copies of entries. `stores` are the other bookies that serve."""
        for ledger_id in sorted(self._named_ledgers()) if self.calm else ():
            record = self._records.by_key.get(metadata_keys.ledger(ledger_id))
            if record is None:
                continue
            metadata = LedgerMetadata.unpack(record.value)
            if bookie in metadata.bookies and (lacking := self._lacking(bookie, metadata, stores, harmed, now_s)):
                self._history.violated(
                    f"I17: {bookie} is closed to be restarted, and entries {lacking[:3]} are not on all other bookies "
                    f"of the record of ledger {metadata}"
                )

    def _named_ledgers(self) -> set[int]:
        records = self._records.by_key.items()
        return {ledger_id for key, record in records for ledger_id in ledgers_named_by(key, record.value)}

    def _lacking(
        self,
        bookie: str,
        metadata: LedgerMetadata,
        stores: Mapping[str, BookieStore],
        harmed: Container[str],
        now_s: float,
    ) -> list[int]:
        last = metadata.last_entry if metadata.closed else self._history.highest_acknowledged(metadata.ledger_id)
        held = {
            one: durable_entries(store, metadata, last)
            for one, store in stores.items()
            if one in metadata.bookies and one not in harmed and not store.limbo and not store.failed
        }
        lacking: list[int] = []
        for entry_id, since_s in self._taken.get(metadata.ledger_id, {}).items():
            write_set = metadata.write_set(entry_id)
            if entry_id > last or now_s - since_s < COPIED_WITHIN_S or bookie not in write_set:
                continue
            known = [held[one] for one in write_set if one in held]  # of others nobody knows what they hold
            if any(entries is not None and entry_id not in entries for entries in known):
                lacking.append(entry_id)
        return lacking
