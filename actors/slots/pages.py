"""The pages in which slots are stored, and which of them are doubtful."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ...protocol.errors import MagnetarError
from ...protocol.slots import PAGES, page_of, slot_of
from ...protocol.topics import TopicName
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.slot_rows import EPOCH_SHIFT, SlotEntry, SlotPage, SlotRows
from ...storage.metadata.store import Write
from .table import SlotTable

logger = logging.getLogger(__name__)


class StoredPages(NamedTuple):
    """The versions of the pages' records by number (None: it has none), and the greatest epoch that was given out."""

    versions: tuple[int | None, ...]
    last_epoch: int


class SlotPages:
    """The stored pages of slots, and the table that is what they say.

    States of a page: *certain* (the table has what the store has) → *under way* (a write was sent) → certain, by the
    answer; or *doubtful*, when the answer was an error or stayed out. A doubt ends with `end_doubts`: the page is read
    again. If it still has the version from before, it is written again as it is. The new version keeps a late write
    from landing.

    Only one of `read`, `write` and `end_doubts` may be under way; the caller sees to that. What each changes in the
    table is told under the next number, in the step in which the table changes. Nothing is told that is not stored.

    `tell(number, changes)` is told of every change.
    """

    def __init__(self, store: EpochMetadataStore, slots: int, tell: Callable[[int, SlotRows], None]) -> None:
        self.table = SlotTable(slots)
        self.number = 0
        """Of the last change that was told."""
        self.certain = asyncio.Event()
        """Set by the caller when no page is doubtful and nothing is to be repeated; cleared here by each write."""
        self.certain.set()
        self._store = store
        self._tell = tell
        self._versions: list[int | None] = [None] * PAGES
        self._doubtful: dict[int, None] = {}
        self._next_epoch = store.epoch << EPOCH_SHIFT

    @property
    def doubtful(self) -> bool:
        """Whether the table may not be what the store says."""
        return bool(self._doubtful)

    def take_epoch(self) -> int:
        """Greater than every epoch before, of this coordinator and of all before it."""
        self._next_epoch += 1
        return self._next_epoch

    def stored(self) -> StoredPages:
        """What is remembered of what was stored last."""
        return StoredPages(tuple(self._versions), self._next_epoch)

    async def read(self) -> None:
        """Read all pages, as the first thing: no write of an earlier coordinator can land since this one took office.

        Raises MetadataUnavailable, MetadataError (a page cannot be decoded).
        """
        await self._read(range(PAGES))

    async def write(self, entries: Mapping[int, SlotEntry], exceptions: Mapping[str, SlotEntry]) -> None:
        """Store these owners, page by page in one transaction. An exception without owner ends.

        Pages that could not be written are doubtful then. Raises what the store raises: then all of them are.
        """
        own: dict[int, dict[int, SlotEntry]] = {}
        alone: dict[int, dict[str, SlotEntry]] = {}
        for slot, entry in entries.items():
            own.setdefault(page_of(slot, self.table.slots), {})[slot] = entry
        for topic, entry in exceptions.items():
            slot = slot_of(TopicName.parse(topic), self.table.slots)
            alone.setdefault(page_of(slot, self.table.slots), {})[topic] = entry
        numbers = dict.fromkeys((*own, *alone))
        await self._write([self.table.page(one, own.get(one, {}), alone.get(one, {})) for one in numbers])

    async def end_doubts(self) -> None:
        """Read the doubtful pages again. Raises what the store raises. Doubts may be left: call it again then."""
        same = await self._read(list(self._doubtful))
        self._versions = [same.get(number, version) for number, version in enumerate(self._versions)]
        if same:
            await self._write([self.table.page(number, {}, {}) for number in same])

    async def _write(self, pages: Sequence[SlotPage]) -> None:
        changes = _TableChanges(self.table)
        self._doubtful.update(dict.fromkeys(page.number for page in pages))
        self.certain.clear()
        results = await self._store.write_many(
            [Write(metadata_keys.slot_page(page.number), page.pack(), self._versions[page.number]) for page in pages]
        )
        for page, result in zip(pages, results, strict=True):
            if isinstance(result, MagnetarError):
                logger.warning("page %d of the slots could not be written and is read again: %s", page.number, result)
            else:
                self._stored(page, result, changes)
        self._finish(changes)

    async def _read(self, numbers: Iterable[int]) -> dict[int, int | None]:
        """Take over what the store says about these pages. Returns those that are as they were, with their version."""
        wanted = list(numbers)
        records = await self._store.get_many([metadata_keys.slot_page(number) for number in wanted])
        changes, same = _TableChanges(self.table), dict[int, int | None]()
        try:
            for number, record in zip(wanted, records, strict=True):
                if record is not None and record.version != self._versions[number]:
                    self._stored(SlotPage.unpack(record.value, number, self.table.slots), record.version, changes)
                else:
                    same[number] = record.version if record is not None else None
        finally:  # also of a page that cannot be decoded: what came before it is in the table
            self._finish(changes)
        return same

    def _stored(self, page: SlotPage, version: int, changes: "_TableChanges") -> None:
        self._versions[page.number] = version
        self._doubtful.pop(page.number, None)
        for one in changes.take(page):
            self._next_epoch = max(self._next_epoch, one.epoch)

    def _finish(self, changes: "_TableChanges") -> None:
        if changes.entries or changes.exceptions:
            self.number += 1
            self._tell(self.number, SlotRows(changes.entries, changes.exceptions))


class _TableChanges:
    """What one write or read of several pages changes in the table."""

    def __init__(self, table: SlotTable) -> None:
        self.entries: dict[int, SlotEntry] = {}
        self.exceptions: dict[str, SlotEntry] = {}
        self._table = table

    def take(self, page: SlotPage) -> Iterable[SlotEntry]:
        """Make a page the present one. Returns its new entries."""
        rows = self._table.take(page)
        self.entries.update(rows.entries)
        self.exceptions.update(rows.exceptions)
        return (*rows.entries.values(), *rows.exceptions.values())
