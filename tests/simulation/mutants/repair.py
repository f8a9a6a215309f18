"""Bugs of our own choosing in what finds and mends lost copies: scrub, limbo, search for orphans, recovery."""

from contextlib import ExitStack

from magnetar.actors.auditor import orphans
from magnetar.actors.auditor.service import Auditor
from magnetar.storage.bookie.damage import DamageKeeper
from magnetar.storage.ledger import lost_bookies
from magnetar.storage.ledger.recovery import LedgerRecovery
from magnetar.storage.managed.cursor_record import CURSOR_RECORDS

from .mutant import Mutant, replace


def _forget_damage(stack: ExitStack) -> None:
    replace(stack, DamageKeeper, "note", lambda self, ledger_id, entry_id: None)


def _take_limbo_for_life(stack: ExitStack) -> None:
    replace(stack, lost_bookies, "_present", lambda directory: dict.fromkeys(directory.bookies))
    replace(stack, Auditor, "_limbo_since", property(lambda self: {}, lambda self, since: None), create=True)


def _forget_a_record_kind(stack: ExitStack) -> None:
    replace(stack, orphans, "RECORD_KINDS", tuple(kind for kind in orphans.RECORD_KINDS if kind is not CURSOR_RECORDS))


def _trust_restored_records(stack: ExitStack) -> None:
    replace(stack, LedgerRecovery, "_in_doubt", lambda self: False)


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
    Mutant("limbo lives", "a bookie in limbo counts as live for open ledgers", "I8", _take_limbo_for_life),
)
