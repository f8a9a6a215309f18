"""Reads across a topic's chain of ledgers: from the tail cache, else from bookies in large pieces with read-ahead.

A fetched piece goes into the cache whole, so a consumer that catches up costs one range read for many calls. When it
has consumed half of a piece, the next piece is requested. Readers at the same place share one fetch. A cache too small
for that would evict the rest before it is read. Then only the entries that a call wants are fetched. Nor is more
fetched for a call with an end (a redelivery of single entries, the last entry): no later call continues behind it. Only
acknowledged entries are ever asked for.

Entries are kept in the cache alone, and so within its bound. What is remembered of a piece is where it lies.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.bookie_wire import LedgerEntry
from ...protocol.errors import EntryCorrupt, EntryUnknown, MagnetarError, NoSuchEntry
from ...protocol.message_id import Position
from ...runtime.tasks import Tasks
from ..ledger.entry_cache import EntryCache
from ..ledger.ledgers import Ledgers
from ..ledger.reader import LedgerReader
from ..metadata.ledger_metadata import LedgerMetadata
from .chain import LedgerChain

PIECE_ENTRIES_MAX = 1000
PIECE_SIZE_BYTES = 1 << 20
READERS_MAX = 16
PLACES_MAX = 64


@dataclass
class _Piece:
    """A fetch under way."""

    ledger_id: int
    first: int
    last: int
    task: "asyncio.Task[list[LedgerEntry] | MagnetarError]"
    """Its error is its result: a caller that waits raises it, and a failed read-ahead is ignored."""


@dataclass
class _Place:
    """Where the latest piece of a ledger lies that was fetched, and whether the next one was asked for."""

    first: int
    last: int
    followed: bool = False


class ChainReads:
    """See the module. `current()` gives the metadata of the ledger that is being written, if any."""

    def __init__(
        self, ledgers: Ledgers, chain: LedgerChain, cache: EntryCache, current: Callable[[], LedgerMetadata | None]
    ) -> None:
        self._ledgers = ledgers
        self._chain = chain
        self._cache = cache
        self._current = current
        self._readers: dict[int, LedgerReader] = {}  # used last at the end
        self._under_way: dict[tuple[int, int], _Piece] = {}
        self._latest: dict[int, _Place] = {}  # fetched last at the end
        self._tasks = Tasks()
        self._ahead = cache.size_max_bytes >= 4 * PIECE_SIZE_BYTES

    async def read(
        self, first: Position, entries_max: int, bytes_max: int, upto: Position | None = None
    ) -> list[tuple[Position, bytes]]:
        """Acknowledged entries from `first` on (or from the first that exists behind it), at most up to `upto`.

        At least one if there is one; then until `entries_max` or `bytes_max` of bodies. Fewer is normal. [] at the
        end. Raises NoSuchLedger, NoSuchEntry, EntryCorrupt, EntryUnknown.
        """
        last = self._chain.last_confirmed if upto is None else min(upto, self._chain.last_confirmed)
        found: list[tuple[Position, bytes]] = []
        room = bytes_max
        get = self._cache.get
        ahead = self._ahead and upto is None
        position = self._chain.ceiling(first)
        while position is not None and position <= last and len(found) < entries_max:
            ledger_id, entry_id = position
            info = self._chain.get(ledger_id)
            assert info is not None, "the chain gave this position"
            end = min(info.entries - 1, last[1]) if ledger_id == last[0] else info.entries - 1
            end = min(end, entry_id + entries_max - len(found) - 1)
            while entry_id <= end:
                body = get((ledger_id, entry_id))
                if body is None:
                    break
                room -= len(body)
                if room < 0 and found:
                    return found
                found.append(((ledger_id, entry_id), body))
                entry_id += 1
            if entry_id <= end:
                if found:
                    if ahead:
                        self._fetch(ledger_id, entry_id, info.entries - 1, PIECE_SIZE_BYTES)
                    return found
                wanted = (info.entries - 1, PIECE_SIZE_BYTES) if ahead else (end, room)
                for entry in await self._piece(ledger_id, entry_id, *wanted):
                    room -= len(entry.body)
                    if entry.entry_id > end or (room < 0 and found):
                        break
                    found.append(((ledger_id, entry.entry_id), entry.body))
                break
            if (ledger_id, entry_id) > last:
                break
            position = self._chain.ceiling((ledger_id, entry_id))
        if found and ahead:
            self._read_ahead(found[-1][0])
        return found

    async def metadata_of(self, ledger_id: int) -> LedgerMetadata:
        """The metadata of a ledger of the chain, the latest that is known here."""
        return (await self._reader(ledger_id)).metadata

    def forget(self, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            self._readers.pop(ledger_id, None)
            self._latest.pop(ledger_id, None)

    async def close(self) -> None:
        """Give up fetches under way; their readers get EntryUnknown, and so do later ones."""
        await self._tasks.close()

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _piece(self, ledger_id: int, entry_id: int, last: int, bytes_max: int) -> list[LedgerEntry]:
        """At least the entry asked for, with what came along."""
        for piece in [*self._under_way.values()]:
            if piece.ledger_id == ledger_id and piece.first < entry_id <= piece.last:
                entries = await self._wait(piece)
                if entries and entries[-1].entry_id >= entry_id:
                    return entries[entry_id - entries[0].entry_id :]
        return await self._wait(self._fetch(ledger_id, entry_id, last, bytes_max))

    async def _wait(self, piece: _Piece) -> list[LedgerEntry]:
        await asyncio.wait([piece.task])  # not cancelled with its waiter: others may wait too
        if piece.task.cancelled():
            raise EntryUnknown(f"the read of ledger {piece.ledger_id} was cancelled", ledger_id=piece.ledger_id)
        result = piece.task.result()
        if isinstance(result, MagnetarError):
            raise result
        return result

    def _fetch(self, ledger_id: int, first: int, last: int, bytes_max: int) -> _Piece:
        piece = self._under_way.get((ledger_id, first))
        if piece is None:
            if self._tasks.closed:
                raise EntryUnknown(f"ledger {ledger_id} is not read any longer: its topic closes", ledger_id=ledger_id)
            last = min(last, first + PIECE_ENTRIES_MAX - 1)
            task = self._tasks.spawn(self._run(ledger_id, first, last, bytes_max), f"read {ledger_id}:{first}")
            piece = self._under_way[ledger_id, first] = _Piece(ledger_id, first, last, task)
            task.add_done_callback(lambda _: self._under_way.pop((ledger_id, first), None))
        return piece

    async def _run(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[LedgerEntry] | MagnetarError:
        try:
            entries = await self._get(ledger_id, first, last, bytes_max)
        except MagnetarError as error:
            return error
        if self._ahead and self._chain.get(ledger_id) is not None:
            self._latest.pop(ledger_id, None)
            self._latest[ledger_id] = _Place(first, first + len(entries) - 1)
            while len(self._latest) > PLACES_MAX:
                del self._latest[next(iter(self._latest))]
        return entries

    async def _get(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[LedgerEntry]:
        reader = await self._reader(ledger_id)
        size = max(1, min(PIECE_SIZE_BYTES, bytes_max, self._ledgers.settings.bookie_read_bytes_max))
        try:
            entries = await reader.read(first, last, size)
        except (NoSuchEntry, EntryUnknown, EntryCorrupt):
            # Entries may have moved to other bookies since the metadata was read.
            known = reader.metadata
            latest = (await self._ledgers.records.get(ledger_id)).metadata
            if latest.fragments == known.fragments:
                raise
            reader.update(latest)
            entries = await reader.read(first, last, size)
        put = self._cache.put
        for entry in entries:
            put((ledger_id, entry.entry_id), entry.body)
        return entries

    async def _reader(self, ledger_id: int) -> LedgerReader:
        current = self._current()
        reader = self._readers.get(ledger_id)
        if current is not None and current.ledger_id == ledger_id:
            if reader is None:
                reader = self._ledgers.reader(current)
            reader.update(current)
        elif reader is None:
            reader = await self._ledgers.open(ledger_id)
        self._readers.pop(ledger_id, None)
        self._readers[ledger_id] = reader
        while len(self._readers) > READERS_MAX:
            del self._readers[next(iter(self._readers))]
        return reader

    def _read_ahead(self, consumed: Position) -> None:
        """Ask for the piece behind the latest one, once half of that is consumed."""
        ledger_id, entry_id = consumed
        place = self._latest.get(ledger_id)
        if place is None or place.followed or not place.first <= entry_id <= place.last:
            return
        info = self._chain.get(ledger_id)
        if info is None or entry_id < (place.first + place.last) // 2 or place.last + 1 >= info.entries:
            return
        place.followed = True
        if (ledger_id, place.last + 1) not in self._cache:
            self._fetch(ledger_id, place.last + 1, info.entries - 1, PIECE_SIZE_BYTES)
