"""Reads entries of a ledger from whichever bookies hold them: ranges, in parallel, digests verified, never fencing.

A read asks for a range of entries. Where every bookie holds every entry (E = Qw) one bookie is asked; where entries are
striped, the fewest bookies that together hold all of them. If a bookie does not answer within
`speculative_read_delay_ms`, the reader also asks the next copies. A copy that is missing, damaged or in limbo is read
from another bookie. Bookies that disappointed are asked last from then on.

What it does not do: find out where a ledger ends. The caller knows (CLOSED metadata, the writer's LAC, a plan), and
must not ask behind that.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from ...protocol.bookie_wire import LedgerEntry, decode_entry
from ...protocol.errors import (
    EntryCorrupt,
    EntryUnknown,
    ForeignLedger,
    MagnetarError,
    NoSuchEntry,
    NoSuchLedger,
    ProtocolError,
)
from ...runtime.settings.declarations import Settings
from ..metadata.ledger_metadata import Fragment, LedgerMetadata, write_slots
from .bookie_client import BookieClient, ReadAnswer

logger = logging.getLogger(__name__)

DEMERITS_MAX = 8


class ReadRange(NamedTuple):
    """Entries `first`…`last`, both inclusive."""

    first: int
    last: int


class LedgerReader:
    """Reads one ledger. Any number of reads may be under way; `reads_under_way_max` bounds those of one `stream`."""

    def __init__(self, client: BookieClient, settings: Settings, metadata: LedgerMetadata) -> None:
        self.metadata = metadata
        self._client = client
        self._settings = settings
        self._demerits: dict[str, int] = {}

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    def update(self, metadata: LedgerMetadata) -> None:
        """Take over newer metadata of the same ledger (its ensemble changed)."""
        self.metadata = metadata

    async def read(self, first: int, last: int, bytes_max: int) -> list[LedgerEntry]:
        """Entries from `first` on without a gap: at least one, up to `last`, about `bytes_max` of them.

        Fewer than asked for is normal (a bookie's answer is bounded, a fragment ends): read on behind the last one.
        Raises NoSuchEntry (all copies say so: it was never written there), EntryCorrupt, EntryUnknown (some copy
        cannot be reached).
        """
        fragment = self.metadata.fragment_of(first)
        end = self.metadata.fragment_end(first)
        if end is not None and end < last:
            last = max(end, first)
        return await _RangeRead(self, fragment, ReadRange(first, last), bytes_max).run()

    async def read_all(self, first: int, last: int) -> list[LedgerEntry]:
        """All entries of a range that is known to fit into memory. Raises like `read`."""
        entries: list[LedgerEntry] = []
        async for batch in self.stream(first, last):
            entries += batch
        return entries

    async def stream(self, first: int, last: int, *, entries_per_read: int = 500) -> AsyncIterator[list[LedgerEntry]]:
        """All entries of a range, in order, with several reads under way. Raises like `read`."""
        bytes_max = self._settings.bookie_read_bytes_max
        pending: list[asyncio.Task[list[LedgerEntry]]] = []
        following = first
        try:
            while pending or following <= last:
                while following <= last and len(pending) < self._settings.reads_under_way_max:
                    end = min(following + entries_per_read - 1, last)
                    pending.append(asyncio.create_task(self._read_whole(ReadRange(following, end), bytes_max)))
                    following = end + 1
                entries = await pending[0]
                del pending[0]
                yield entries
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _read_whole(self, wanted: ReadRange, bytes_max: int) -> list[LedgerEntry]:
        entries: list[LedgerEntry] = []
        first = wanted.first
        while first <= wanted.last:
            entries += await self.read(first, wanted.last, bytes_max)
            first = entries[-1].entry_id + 1
        return entries

    # -- which bookies first -------------------------------------------------------------------------------------

    def preference(self, fragment: Fragment) -> list[int]:
        """Slots, best first: not suspect, fewest demerits, then rotated by ledger so that load spreads."""
        size = len(fragment.bookies)

        def rank(slot: int) -> tuple[bool, int, int]:
            bookie = fragment.bookies[slot]
            return self._client.is_suspect(bookie), self._demerits.get(bookie, 0), (slot - self.ledger_id) % size

        return sorted(range(size), key=rank)

    def disappointed(self, bookie: str) -> None:
        self._demerits[bookie] = min(self._demerits.get(bookie, 0) + 1, DEMERITS_MAX)

    def satisfied(self, bookie: str) -> None:
        if self._demerits.get(bookie):
            self._demerits[bookie] -= 1

    @property
    def client(self) -> BookieClient:
        return self._client

    @property
    def settings(self) -> Settings:
        return self._settings


class _RangeRead:
    """One read of a range inside one fragment."""

    def __init__(self, reader: LedgerReader, fragment: Fragment, wanted: ReadRange, bytes_max: int) -> None:
        self._reader = reader
        self._metadata = reader.metadata
        self._fragment = fragment
        self._wanted = wanted
        self._bytes_max = bytes_max
        self._last_useful = wanted.last
        self._found: dict[int, LedgerEntry] = {}
        self._asked: dict[int, MagnetarError | None] = {}
        self._running: dict[asyncio.Task[ReadAnswer], int] = {}

    async def run(self) -> list[LedgerEntry]:
        try:
            while True:
                if not self._running and not self._ask_more():
                    raise self._why_not()
                done, _ = await asyncio.wait(
                    self._running,
                    timeout=self._reader.settings.speculative_read_delay_ms / 1000,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in [task for task in self._running if task in done]:
                    self._take(self._running.pop(task), task)
                entries = self._prefix()
                if entries and (entries[-1].entry_id >= self._last_useful or not self._running):
                    return entries
                if not done:
                    for slot in self._running.values():
                        self._reader.disappointed(self._fragment.bookies[slot])
                    self._ask_more()
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _ask_more(self) -> bool:
        """Ask the best bookies not yet asked, until together they hold all that is missing. False: none is left."""
        size = self._metadata.ensemble_size
        copies = self._metadata.write_quorum
        first = self._wanted.first + len(self._prefix())
        missing = {entry_id % size for entry_id in range(first, min(self._last_useful, first + size - 1) + 1)}
        asked_any = False
        candidates = [slot for slot in self._reader.preference(self._fragment) if slot not in self._asked]
        holds = {slot: {r for r in missing if slot in write_slots(r, size, copies)} for slot in candidates}
        while missing and candidates:
            slot = max(candidates, key=lambda one: len(holds[one] & missing))  # the first of equals: the preferred one
            if not holds[slot] & missing:
                break
            missing -= holds[slot]
            candidates.remove(slot)
            self._asked[slot] = None
            asked_any = True
            task = asyncio.create_task(
                self._reader.client.read(
                    self._fragment.bookies[slot],
                    self._reader.ledger_id,
                    self._metadata.nonce,
                    self._wanted.first,
                    self._wanted.last,
                    self._bytes_max,
                )
            )
            self._running[task] = slot
        return asked_any

    def _take(self, slot: int, task: asyncio.Task[ReadAnswer]) -> None:
        bookie = self._fragment.bookies[slot]
        try:
            answer = task.result()
        except MagnetarError as error:
            self._asked[slot] = error
            self._reader.disappointed(bookie)
            return
        useful = False
        for data in answer.entries:
            try:
                entry = decode_entry(data)
                self._check(entry)
            except (EntryCorrupt, ProtocolError) as error:
                logger.warning(
                    "bookie %s returned a damaged entry of ledger %d: %s", bookie, self._reader.ledger_id, error
                )
                self._asked[slot] = EntryCorrupt(str(error), bookie=bookie, ledger_id=self._reader.ledger_id)
                continue
            useful = True
            self._found.setdefault(entry.entry_id, entry)
        if self._asked[slot] is None:
            self._asked[slot] = NoSuchEntry("the bookie lacks the entry", bookie=bookie)
        if answer.entries and answer.next_entry <= self._wanted.last:
            # Cut short by its size: what lies behind is for the next read, do not wait for it.
            self._last_useful = min(self._last_useful, max(answer.next_entry - 1, self._wanted.first))
        holds_all = self._metadata.write_quorum == self._metadata.ensemble_size
        complete = len(answer.entries) == min(answer.next_entry - 1, self._wanted.last) - self._wanted.first + 1
        if useful and (complete or not holds_all):
            self._reader.satisfied(bookie)
        else:
            self._reader.disappointed(bookie)

    def _check(self, entry: LedgerEntry) -> None:
        if entry.ledger_id != self._reader.ledger_id or not (self._wanted.first <= entry.entry_id <= self._wanted.last):
            raise EntryCorrupt(
                f"the bookie returned entry {entry.ledger_id}:{entry.entry_id} for a read of ledger "
                f"{self._reader.ledger_id}"
            )
        if entry.nonce != self._metadata.nonce:
            raise EntryCorrupt(f"entry {entry.ledger_id}:{entry.entry_id} belongs to another ledger with the same id")

    def _prefix(self) -> list[LedgerEntry]:
        entries: list[LedgerEntry] = []
        entry_id = self._wanted.first
        while (entry := self._found.get(entry_id)) is not None:
            entries.append(entry)
            entry_id += 1
        return entries

    def _why_not(self) -> MagnetarError:
        """The error of the first entry that no bookie returned, after its whole write set was asked."""
        first = self._wanted.first
        slots = write_slots(first, self._metadata.ensemble_size, self._metadata.write_quorum)
        return summarize([self._asked.get(slot) for slot in slots], self._reader.ledger_id, first)


def summarize(errors: Sequence[MagnetarError | None], ledger_id: int, entry_id: int) -> MagnetarError:
    """One error for an entry of which no copy could be had: a definite no only if every copy says no."""
    where = f"entry {ledger_id}:{entry_id}"
    if errors and all(isinstance(error, NoSuchEntry | NoSuchLedger) for error in errors):
        return NoSuchEntry(f"no bookie has {where}", ledger_id=ledger_id, entry_id=entry_id)
    if any(isinstance(error, ForeignLedger) for error in errors):
        return ForeignLedger(
            f"{where} cannot be read: a bookie holds another ledger with that id, from before a restore of the "
            "metadata",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )
    if any(isinstance(error, EntryCorrupt) for error in errors):
        return EntryCorrupt(
            f"no intact copy of {where} can be reached: start the missing bookies",
            ledger_id=ledger_id,
            entry_id=entry_id,
        )
    return EntryUnknown(
        f"no copy of {where} can be reached: start the missing bookies", ledger_id=ledger_id, entry_id=entry_id
    )
