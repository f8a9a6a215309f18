"""Bugs of our own choosing in what finds and mends lost copies: scrub, limbo, search for orphans, recovery."""

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from magnetar.actors.auditor import checks, orphans
from magnetar.actors.auditor.absence import BookieWatch
from magnetar.actors.auditor.checks import LedgerChecks
from magnetar.actors.auditor.plan import Change
from magnetar.actors.auditor.repair import LedgerRepair
from magnetar.actors.bookie import service as bookie_service
from magnetar.actors.bookie.copying import _PartCopy
from magnetar.protocol.errors import EntryUnknown, NoSuchEntry
from magnetar.storage.bookie.damage import DamageKeeper
from magnetar.storage.ledger import lost_bookies
from magnetar.storage.ledger.recovery import LedgerRecovery
from magnetar.storage.managed.cursor_storage import CURSOR_RECORDS, CursorStorage
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.entry_gaps import Range
from magnetar.storage.metadata.ledger_records import LedgerRecord

from .mutant import Mutant, replace


def _forget_damage(stack: ExitStack) -> None:
    replace(stack, DamageKeeper, "note", lambda self, ledger_id, entry_id: None)


def _take_limbo_for_life(stack: ExitStack) -> None:
    replace(stack, lost_bookies, "_present", lambda directory: dict.fromkeys(directory.bookies))
    replace(stack, BookieWatch, "limbo_since", property(lambda self: {}, lambda self, since: None), create=True)


def _forget_a_record_kind(stack: ExitStack) -> None:
    replace(stack, orphans, "RECORD_KINDS", tuple(kind for kind in orphans.RECORD_KINDS if kind is not CURSOR_RECORDS))


def _trust_restored_records(stack: ExitStack) -> None:
    replace(stack, LedgerRecovery, "_in_doubt", lambda self: False)


def _name_before_copying(stack: ExitStack) -> None:
    async def record_first(self: LedgerChecks, record: LedgerRecord, change: Change, repair: LedgerRepair) -> Any:
        replaced = await self._records.replace(change.metadata, record.version)
        for piece in change.pieces:
            await repair.fill(change.metadata, piece, record.metadata)
        return replaced

    replace(stack, LedgerChecks, "_carry_out", record_first)


def _answer_before_the_sync(stack: ExitStack) -> None:
    async def at_once(self: _PartCopy) -> None:
        return None

    replace(stack, _PartCopy, "_all_durable", at_once)


def _count_what_no_source_has(stack: ExitStack) -> None:
    copy_region = _PartCopy._copy_region

    async def copy_what_there_is(self: _PartCopy, wanted: list[Range], first: int, last: int) -> int:
        try:
            return await copy_region(self, wanted, first, last)
        except (NoSuchEntry, EntryUnknown):
            return last + 1

    replace(stack, _PartCopy, "_copy_region", copy_what_there_is)


def _delete_what_was_told(stack: ExitStack) -> None:
    collect = bookie_service.collect_garbage

    class Told:
        """The metadata, without the ledgers that the coordinator told of."""

        def __init__(self, metadata: Any, changed: Iterable[int]) -> None:
            self._metadata = metadata
            self._gone = {metadata_keys.ledger(one): None for one in changed}

        async def get(self, key: str) -> Any:
            return await self._metadata.get(key)

        async def get_many(self, keys: Any) -> Any:
            found = await self._metadata.get_many(keys)
            return [None if key in self._gone else one for key, one in zip(keys, found, strict=True)]

    async def trusting(store: Any, metadata: Any, *arguments: Any, changed: Any = None, **others: Any) -> Any:
        return await collect(store, Told(metadata, changed or ()), *arguments, changed=changed, **others)

    replace(stack, bookie_service, "collect_garbage", trusting)


def _delete_another_owners_ledgers(stack: ExitStack) -> None:
    delete = CursorStorage.delete

    async def ledgers_first(self: CursorStorage) -> None:
        for ledger_id in self._record.ledgers:
            await self.delete_ledger(ledger_id)
        await delete(self)

    replace(stack, CursorStorage, "delete", ledgers_first)


def _overlook_spares(stack: ExitStack) -> None:
    replace(stack, BookieWatch, "spares_came", property(lambda self: False, lambda self, came: None), create=True)


def _leave_copies_on_one_machine(stack: ExitStack) -> None:
    replace(stack, checks, "spread", lambda *arguments: None)


REPAIR = (
    Mutant("forgetful scrub", "damage that is found is not written down", "I8 copies", _forget_damage),
    Mutant("forgotten kind", "the search for orphans does not know cursors", "I9", _forget_a_record_kind),
    Mutant(
        "old record",
        "after a restore recovery asks only the ensemble that the record names",
        "I1",
        _trust_restored_records,
        "cluster",
    ),
    Mutant("record first", "a spare is named before entries are copied to it", "I1", _name_before_copying),
    Mutant(
        "hasty copy", "a bookie says that it has copied before the copies are synced", "I1", _answer_before_the_sync
    ),
    Mutant("told is deleted", "a bookie deletes what it was told of, without asking", "I9", _delete_what_was_told),
    Mutant(
        "unasked cursor",
        "a cursor's ledgers are deleted whoever owns it",
        "I9",
        _delete_another_owners_ledgers,
        "cluster",
    ),
    Mutant("hollow copy", "entries that no source returned count as copied", "I1", _count_what_no_source_has),
    Mutant(
        "crowded for ever",
        "copies that were written to one machine stay there",
        "I8",
        _leave_copies_on_one_machine,
        "draining",
    ),
    Mutant(
        "no news of spares", "ledgers that wait for a spare are not told of one", "I8", _overlook_spares, "draining"
    ),
    Mutant("limbo lives", "a bookie in limbo counts as live for open ledgers", "I8", _take_limbo_for_life),
)
