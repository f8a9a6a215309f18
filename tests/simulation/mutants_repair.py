"""Bugs of our own choosing in what finds and mends lost copies: the scrub and the limbo of bookies."""

from contextlib import ExitStack

from magnetar.actors.auditor.service import Auditor
from magnetar.storage.bookie.damage import DamageKeeper
from magnetar.storage.ledger import lost_bookies

from .mutant import Mutant, replace


def _forget_damage(stack: ExitStack) -> None:
    replace(stack, DamageKeeper, "note", lambda self, ledger_id, entry_id: None)


def _take_limbo_for_life(stack: ExitStack) -> None:
    replace(stack, lost_bookies, "_present", lambda directory: set(directory.bookies))
    replace(stack, Auditor, "_limbo_since", property(lambda self: {}, lambda self, since: None), create=True)


REPAIR = (
    Mutant("forgetful scrub", "damage that is found is not written down", "I8 copies", _forget_damage),
    Mutant("limbo lives", "a bookie in limbo counts as live for open ledgers", "I8", _take_limbo_for_life),
)
