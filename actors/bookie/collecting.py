"""What a bookie was told of ledgers whose records changed: how far it has read `actors/auditor/ledger_feed.py`."""

import asyncio
from dataclasses import replace
from typing import Protocol

from ...protocol.errors import MagnetarError
from ...storage.bookie.collection_scope import CollectionScope
from ..members.contracts_coordinator import LedgerChanges

FULL_COMPARISON_S = 86_400.0


class BookieCalls(Protocol):
    """What a bookie asks of the coordinator, beside its metadata."""

    async def renew_ledger(self, *, ledger: int, version: int) -> int: ...
    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges: ...


class Collecting:
    """See the module. One collection at a time, under `lock`."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.scope = CollectionScope()
        self._told: LedgerChanges | None = None
        self._epoch, self._since = -1, 0
        self._full_at = 0.0

    async def changed(self, ask: BookieCalls) -> list[int] | None:
        """Ledgers whose records were written or deleted since the last collection; None when that is not known, or all
        are to be compared again.
        """
        self._told = None
        found: list[int] = []
        epoch, since = self._epoch, self._since
        while True:
            try:
                told = await ask.ledger_changes(epoch=epoch, since=since)
            except MagnetarError:  # an older coordinator does not have the method
                return None
            self._told = told
            if not told.complete or asyncio.get_running_loop().time() >= self._full_at:
                self._told = replace(told, next=told.end)
                return None
            found += told.ledgers
            if told.next >= told.end:
                return found
            epoch, since = told.epoch, told.next

    def succeeded(self, changed: list[int] | None) -> None:
        """A collection has asked for all of these."""
        if self._told is not None:
            self._epoch, self._since = self._told.epoch, self._told.next
        if changed is None:
            self._full_at = asyncio.get_running_loop().time() + FULL_COMPARISON_S
