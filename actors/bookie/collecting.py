"""What a bookie was told of ledgers whose records changed: how far it has read `actors/auditor/ledger_feed.py`.

What it has to ask the metadata for:

    FOLLOWING   it knows what the feed of this coordinator said: what was told since
    LEFT BEHIND there is another coordinator, or the feed forgot something: see below
    DUE         it has just started, or `FULL_COMPARISON_S` have passed: all ledgers

    DUE ── a collection succeeded ──→ FOLLOWING
    FOLLOWING ── the feed does not continue where it was read ──→ LEFT BEHIND
    LEFT BEHIND ── a collection of what the auditor did not know or place here ──→ FOLLOWING

A bookie that is left behind has the auditor compare its ledgers with the index, which a walk has filled. That costs no
read of the metadata. Changes since that coordinator began are in its feed, and are asked for, too. While the auditor
has not yet walked through all records, only new ledgers are asked for, and the bookie stays left behind. Where that
feed has forgotten something, all ledgers are asked for.

`FULL_COMPARISON_S` is the safety net under all of this: one read of each ledger's record a day.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from ...protocol.errors import MagnetarError
from ...storage.bookie.collection_scope import CollectionScope
from ..members.contracts_coordinator import LedgerChanges, UnnamedLedgers

FULL_COMPARISON_S = 86_400.0
LEDGERS_PER_QUESTION = 5000
"""The coordinator looks them up in one turn of its loop, in some milliseconds."""


class BookieCalls(Protocol):
    """What a bookie asks of the coordinator, beside its metadata."""

    async def renew_ledger(self, *, ledger: int, version: int) -> int: ...
    async def ledger_changes(self, *, epoch: int, since: int) -> LedgerChanges: ...
    async def unnamed_ledgers(self, *, ledgers: list[int]) -> UnnamedLedgers: ...


class Collecting:
    """See the module. One collection at a time, under `lock`."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.scope = CollectionScope()
        self._told: LedgerChanges | None = None
        self._epoch, self._since = -1, 0
        self._full_at = 0.0

    async def changed(self, ask: BookieCalls, held: Iterable[int]) -> list[int] | None:
        """The ledgers to ask the metadata for, beside those in doubt; None for all. The bookie has those in `held`."""
        self._told = None
        try:
            return await self._changed(ask, held)
        except MagnetarError:  # an older coordinator does not have the methods
            self._told = None
            return None

    async def _changed(self, ask: BookieCalls, held: Iterable[int]) -> list[int] | None:
        found: list[int] = []
        compared = False
        epoch, since = self._epoch, self._since
        while True:
            told = await ask.ledger_changes(epoch=epoch, since=since)
            if asyncio.get_running_loop().time() >= self._full_at or (compared and not told.complete):
                self._told = replace(told, next=told.end)
                return None
            if not told.complete:
                unnamed = await _unnamed(ask, told.epoch, held)
                if unnamed is None:
                    return []
                found, epoch, since, compared = unnamed, told.epoch, 0, True
                continue
            found += told.ledgers
            if told.next >= told.end:
                self._told = told
                return found
            epoch, since = told.epoch, told.next

    def succeeded(self, changed: list[int] | None) -> None:
        """A collection has asked for all of these."""
        if self._told is not None:
            self._epoch, self._since = self._told.epoch, self._told.next
        if changed is None:
            self._full_at = asyncio.get_running_loop().time() + FULL_COMPARISON_S


async def _unnamed(ask: BookieCalls, epoch: int, held: Iterable[int]) -> list[int] | None:
    """Those of these ledgers that the auditor with that epoch does not place here; None when it cannot say so now."""
    found: list[int] = []
    ledgers = sorted(held)
    for first in range(0, len(ledgers), LEDGERS_PER_QUESTION):
        answer = await ask.unnamed_ledgers(ledgers=ledgers[first : first + LEDGERS_PER_QUESTION])
        if not answer.ready or answer.epoch != epoch:
            return None
        found += answer.ledgers
    return found
