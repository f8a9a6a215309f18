"""What bookies accept and writers acknowledge, seen from beside them, at the moment it happens.

- I2: under one (ledger, entry) every bookie ever accepts the same bytes, whoever sent them; only one writer ever
  acknowledges it, and once; a fenced ledger takes ordinary adds no more.
- I1: what a writer acknowledges has been accepted by an ack quorum of the bookies that the *stored* record names for
  it, at that moment. (That it was durable there is what the simulated power loss finds out.)
- I9: no bookie tombstones a ledger that the metadata knows, nor gives one up whose record at that moment is not CLOSED
  or names it; a compaction leaves out no entry of a ledger that is alive; and at the end, after a collection on every
  bookie, `missing_copies`.

`install` puts wrappers around production methods for the time of one run; production code has no hooks for this.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from magnetar.protocol.errors import EntryCorrupt
from magnetar.storage.bookie.entry_store import EntryStore
from magnetar.storage.bookie.held_ledgers import HeldLedger
from magnetar.storage.bookie.segment import Segment
from magnetar.storage.bookie.segment_index import SegmentTable
from magnetar.storage.bookie.store import BookieStore
from magnetar.storage.ledger.writer import LedgerWriter
from magnetar.storage.ledger.writer_state import PendingEntry
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from support.stores.bookie_kit import held_ranges
from support.stores.memory_store import MemoryRecords

from ..world.loop import PROCESS
from .history import History

EntryKey = tuple[int, int]

INDEX_LOOKS_MAX = 100


class Accepted:
    """What is known of one entry: its digest, and who ever took it."""

    __slots__ = ("bookies", "digest")

    def __init__(self, digest: int, bookie: str) -> None:
        self.digest = digest
        self.bookies = {bookie: None}


def who() -> str:
    """The process that runs now."""
    owner = PROCESS.get()
    return owner.name if owner is not None else "nobody"


def is_dead() -> bool:
    """Whether what runs now is what a killed process left: it reaches nobody any longer."""
    owner = PROCESS.get()
    return owner is not None and not owner.alive


class StoreWatch:
    """See the module. `records` is the metadata as it is, `deleted` the ledgers that were deleted."""

    def __init__(self, history: History, records: MemoryRecords, deleted: Container[int] = ()) -> None:
        self.accepted: dict[EntryKey, Accepted] = {}
        self._history = history
        self._records = records
        self._deleted = deleted
        self._confirmed: dict[EntryKey, str] = {}
        """By which process."""

    def install(self, stack: ExitStack) -> None:
        """Watch until the stack is left."""
        append_entry, replace, give_up = EntryStore.append_entry, EntryStore.replace, EntryStore.give_up
        add_tombstones, confirm = BookieStore.add_tombstones, LedgerWriter._confirm

        def appending(store: EntryStore, state: HeldLedger, payload: bytes, head: bytes, *rest: Any) -> int | None:
            refusal = append_entry(store, state, payload, head, *rest)
            entry_id, _, digest = rest[:3]
            if refusal is None:
                self._accepts(state, entry_id, digest, recovery=bool(head[0]))
            return refusal

        async def adding_tombstones(store: BookieStore, ledger_ids: Sequence[int]) -> None:
            self._tombstones(ledger_ids)
            await add_tombstones(store, ledger_ids)

        def giving_up(store: EntryStore, state: HeldLedger) -> bool:
            gone = give_up(store, state)
            if gone:
                self._gives_up(state.ledger_id)
            return gone

        async def replacing(store: EntryStore, old: list[Segment], new: list[tuple[Segment, SegmentTable]]) -> None:
            self._compacts(store, old, [table for _, table in new])
            await replace(store, old, new)

        def confirming(writer: LedgerWriter, done: list[PendingEntry]) -> None:
            self._confirms(writer, done)
            confirm(writer, done)

        for owner, name, wrapper in (
            (EntryStore, "append_entry", appending),
            (EntryStore, "replace", replacing),
            (EntryStore, "give_up", giving_up),
            (BookieStore, "add_tombstones", adding_tombstones),
            (LedgerWriter, "_confirm", confirming),
        ):
            stack.enter_context(patch.object(owner, name, wrapper))

    # -- bookies -----------------------------------------------------------------------------------------------------

    def _accepts(self, state: HeldLedger, entry_id: int, digest: int, *, recovery: bool) -> None:
        if is_dead():
            return
        key, bookie = (state.ledger_id, entry_id), who()
        if state.fenced and not recovery:
            self._history.violated(f"I2: {bookie} took entry {key} of a fenced ledger from its writer")
        known = self.accepted.get(key)
        if known is None:
            self.accepted[key] = Accepted(digest, bookie)
        elif known.digest != digest:
            others = ", ".join(known.bookies)
            self._history.violated(f"I2: {bookie} took other bytes as entry {key} than {others} before")
        else:
            known.bookies[bookie] = None

    def _tombstones(self, ledger_ids: Iterable[int]) -> None:
        for ledger_id in ledger_ids if not is_dead() else ():
            if metadata_keys.ledger(ledger_id) in self._records.by_key and ledger_id not in self._deleted:
                self._history.violated(f"I9: {who()} tombstones ledger {ledger_id}, which the metadata knows")
            if ledger_id in self._history.protected:
                self._history.violated(f"I9: {who()} tombstones ledger {ledger_id}, newer than the restored metadata")

    def _gives_up(self, ledger_id: int) -> None:
        if is_dead():
            return
        self._history.counts["ledgers given up"] += 1
        found = self._records.by_key.get(metadata_keys.ledger(ledger_id))
        stored = LedgerMetadata.unpack(found.value) if found is not None else None
        if stored is not None and (not stored.closed or who() in stored.bookies):
            self._history.violated(f"I9: {who()} gives ledger {ledger_id} up, which says {stored}")

    def _compacts(self, store: EntryStore, old: list[Segment], tables: list[SegmentTable]) -> None:
        """The spans of ids of every living ledger are still there. (Rows in between are counted at the end.)"""
        for ledger_id in {ledger_id: None for segment in old for ledger_id in segment.table}:
            if ledger_id not in store.ledgers or metadata_keys.ledger(ledger_id) not in self._records.by_key:
                continue
            before = [
                segment.table[ledger_id]
                for segment in old
                if ledger_id in segment.table and store.lives(segment, ledger_id)
            ]
            after = [table[ledger_id] for table in tables if ledger_id in table]
            if not before:
                continue
            span = (min(line.first for line in before), max(line.last for line in before))
            found = (min((line.first for line in after), default=0), max((line.last for line in after), default=-1))
            if found[0] > span[0] or found[1] < span[1]:
                self._history.violated(f"I9: {who()} compacts entries {span} of ledger {ledger_id} to {found}")

    # -- writers -----------------------------------------------------------------------------------------------------

    def _confirms(self, writer: LedgerWriter, done: list[PendingEntry]) -> None:
        if not done or is_dead():
            return
        ledger_id = writer.ledger_id
        found = self._records.by_key.get(metadata_keys.ledger(ledger_id))
        stored = LedgerMetadata.unpack(found.value) if found is not None else None
        for entry in done:
            key = (ledger_id, entry.entry_id)
            if key in self._confirmed:
                self._history.violated(f"I2: {who()} acknowledged entry {key}, as {self._confirmed[key]} had before")
            self._confirmed[key] = who()
            if stored is not None:
                self._check_quorum(key, stored)
        self._history.entry_acknowledged(ledger_id, done[-1].entry_id)

    def _check_quorum(self, key: EntryKey, stored: LedgerMetadata) -> None:
        if stored.closed and key[1] > stored.last_entry:
            return  # said as I3
        known = self.accepted.get(key)
        took = [bookie for bookie in stored.write_set(key[1]) if known is not None and bookie in known.bookies]
        if len(took) < stored.ack_quorum:
            self._history.violated(
                f"I1: entry {key} was acknowledged when of {stored.write_set(key[1])}, as stored, only {took} had it"
            )


async def missing_copies(
    ledgers: Iterable[LedgerMetadata],
    stores: dict[str, BookieStore],
    harmed: Iterable[str],
    is_there: Callable[[int], bool] = lambda ledger_id: True,
) -> list[str]:
    """I9, at the end: which entries of CLOSED ledgers have too few intact copies where their record says.

    For each entry up to `last_entry` let H be the bookies of its write set (by the record) whose store reads it back
    intact, and D those of its write set that were `harmed` (bits flipped, or the disk lost) in this run. Then |H| has
    to be at least Qa − |D|, and never 0: an acknowledged entry was durable at Qa of them, recovery and re-replication
    put copies at Qa or more, and nothing but harm may take one away. Entries of OPEN ledgers are not counted: which of
    them are acknowledged is known to their writer only. Nor are those of a ledger that `is_there` no more, because its
    topic was trimmed meanwhile.
    """
    harmed = dict.fromkeys(harmed)
    missing: list[str] = []
    for metadata in ledgers:
        if not metadata.closed or metadata.last_entry < 0:
            continue
        held: dict[str, list[tuple[int, int]]] = {}
        for bookie in {name: None for fragment in metadata.fragments for name in fragment.bookies}:
            store = stores.get(bookie)
            if store is not None and metadata.ledger_id in store.entries.ledgers:
                held[bookie] = await _held(store, metadata)
        for entry_id in range(metadata.last_entry + 1):
            write_set = metadata.write_set(entry_id)
            holders = [
                bookie for bookie in write_set if any(first <= entry_id <= last for first, last in held.get(bookie, ()))
            ]
            wanted = max(1, metadata.ack_quorum - sum(bookie in harmed for bookie in write_set))
            if len(holders) < wanted and is_there(metadata.ledger_id):
                missing.append(
                    f"I9: entry {(metadata.ledger_id, entry_id)} is held by {holders} of {write_set}, at least "
                    f"{wanted} should"
                )
                break
    return missing


async def _held(store: BookieStore, metadata: LedgerMetadata) -> list[tuple[int, int]]:
    """What a store holds intact of a ledger; an index that was damaged is waited for. Raises AssertionError (I8)."""
    for _ in range(INDEX_LOOKS_MAX):
        try:
            return await held_ranges(store, metadata.ledger_id, metadata.nonce, 0, metadata.last_entry, True)
        except EntryCorrupt:
            await asyncio.sleep(0.1)
    raise AssertionError(f"I8: {store.entries.directory} does not get an index of ledger {metadata.ledger_id} built")
