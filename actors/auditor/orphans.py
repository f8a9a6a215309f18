"""Ledgers that nothing names: what brokers leave behind that end between creating a ledger and naming it.

The table of record kinds (`RECORD_KINDS`) says which records name ledgers. A ledger that none of them named for
`ORPHAN_AFTER_S` is deleted, in an order that holds whatever its creator does, however late:

1. its record is written again as it is, which gives it a new version;
2. the names are read again;
3. if there is still none, it is deleted at exactly that version.

A write that names a ledger requires that the ledger's record has the version that its writer gave it, tested in the
same transaction (`Write.needs`). So a broker that names it before step 1 is seen in step 2. A later one is refused with
ConditionFailed and makes another ledger. One that changes the ledger meanwhile keeps it by step 3. No clock decides;
the wait only spares brokers that are about to name a ledger the trouble. A record that cannot be read, but may name
ledgers, ends the search: then every ledger is kept. A ledger whose own record cannot be read, or has a malformed key,
is kept, and keeps no other one. The auditor's walk reports it.

A search reads all names, so it is rare. It comes after a start, every `search_interval_s`, and when a new ledger has
had no name for `ORPHAN_AFTER_S`. To know the latter, the auditor is told of each ledger that is created, and
of each record that names ledgers and is written. Only those records are read again. What they name is no suspect any
longer.

`pace` holds the search back, so with a million topics it takes half an hour. What it rests on, however long it takes:

- Reading the names finds at least those that existed all the time. A record keeps its key, and pages are read in the
  order of keys. A name does not move from one record to another, with one exception. A pin names ledgers that a chain
  names, and may be the last to name them. So pins are read behind chains (`RECORD_KINDS`).
- A name that came after the first page of step 2 is not found for certain. Its write required a version from before
  step 1, so it is refused. A name that was written before step 1 existed all the time.
- A ledger that was created after the ledgers were listed is not judged by this search. It stays a suspect.
- Records that were written while the search goes on are read by it: what they name is neither marked nor a suspect.
- When the search fails at any step, nothing is deleted, and the suspects stay. It is begun again after a pause, which
  doubles with each failure in a row. It pauses at least as long as it took.
- A ledger whose record changed between the steps is kept, and is a suspect of a later search. The auditor itself may
  have repaired it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from ...protocol.errors import BadVersion, MetadataError, NoSuchKey, ProtocolError
from ...runtime.environment import Environment
from ...storage.managed.cursor_storage import CURSOR_RECORDS
from ...storage.managed.pins import PIN_RECORDS
from ...storage.managed.record import CHAIN_RECORDS
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.ledger_metadata import LedgerMetadata
from ...storage.metadata.ledger_records import LedgerRecords
from ...storage.metadata.record_kinds import METADATA_KINDS, RecordKind
from ...storage.metadata.store import MetadataStore
from ...storage.metadata.stored_settings import SETTINGS_RECORDS
from ..desired.record import DESIRED_RECORDS
from .index import IdSet
from .pace import ReadPace

logger = logging.getLogger(__name__)

RECORD_KINDS: tuple[RecordKind[Any], ...] = (
    CHAIN_RECORDS,
    CURSOR_RECORDS,
    PIN_RECORDS,
    DESIRED_RECORDS,
    SETTINGS_RECORDS,
    *METADATA_KINDS,
)
"""Each prefix of `storage.metadata.keys` once."""


ORPHAN_AFTER_S = 600.0
SEARCH_PAUSE_S = 60.0
"""Between two searches at least: each reads all names."""
SEARCH_PAUSE_MAX_S = 3600.0
"""Between two searches that fail."""
RECORDS_PER_PAGE = 500
TOLD_MAX = 100_000
"""Ledgers, and records that name some, which are remembered. What is beyond is found by the next search."""
NAMING = tuple(kind.prefix for kind in RECORD_KINDS if kind.names_ledgers)


class OrphanLedgers:
    """See the module."""

    def __init__(
        self, env: Environment, store: MetadataStore, pace: ReadPace, search_interval_s: float = 86_400.0
    ) -> None:
        self.busy = False
        """Whether `collect_due` is under way."""
        self.deleted_total = 0
        self._search_interval_s = search_interval_s
        self._search_at = 0.0
        self._names_written: dict[str, None] = {}
        self._store = store
        self._pace = pace
        self._records = LedgerRecords(env, store)
        self._unnamed_since: dict[int, float] = {}
        """The suspects, the oldest first."""
        self._unnamed = IdSet()
        """Those that the search under way has listed, and has found no name of so far."""
        self._not_before = 0.0
        self._pause_s = 0.0

    @property
    def suspected(self) -> int:
        """Ledgers that nothing named at the last search, or that were created since and have no name that is known."""
        return len(self._unnamed_since)

    def created(self, ledger_id: int) -> None:
        """A ledger was created, or may have been."""
        if len(self._unnamed_since) < TOLD_MAX:
            self._unnamed_since.setdefault(ledger_id, asyncio.get_running_loop().time())

    def written(self, key: str) -> None:
        """Another record was written, or may have been."""
        if key.startswith(NAMING) and len(self._names_written) < TOLD_MAX:
            self._names_written[key] = None

    async def collect_due(self, *, search: bool = True) -> int:
        """Search and delete, if it is time for that and `search` allows it; returns how many ledgers. Raises as
        `collect` does.
        """
        self.busy = True
        try:
            await self._read_names_written()
            now = asyncio.get_running_loop().time()
            overdue = any(now - since >= ORPHAN_AFTER_S for since in islice(self._unnamed_since.values(), 1))
            if not search or (now < self._search_at and not overdue) or now < self._not_before:
                return 0
            deleted = await self.collect()
            self._search_at = now + self._search_interval_s
            return deleted
        finally:
            self.busy = False

    async def collect(self) -> int:
        """Search, unless the last search was a moment ago, and delete what is due; returns how many ledgers.

        Raises MetadataError for a record that cannot be read, MetadataUnavailable, OutcomeUnknown.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        if started < self._not_before:
            return 0
        deleted = self.deleted_total
        try:
            await self._search(started)
            self._pause_s = SEARCH_PAUSE_S
        except BaseException:
            self._pause_s = min(max(self._pause_s * 2, SEARCH_PAUSE_S), SEARCH_PAUSE_MAX_S)
            raise
        finally:
            self._unnamed = IdSet()
            now = loop.time()
            self._not_before = now + max(self._pause_s, now - started if SEARCH_PAUSE_S else 0.0)
        return self.deleted_total - deleted

    async def _search(self, started: float) -> None:
        await self._read(metadata_keys.LEDGERS_PREFIX, _ledger_with_key, self._unnamed.add)
        await self._read_names(self._unnamed.discard)
        await self._read_names_written()
        self._suspect(started)
        before = started - ORPHAN_AFTER_S
        due = [one for one, since in self._unnamed_since.items() if since <= before and one in self._unnamed]
        marked: dict[int, int] = {}
        for ledger_id in due:
            version = await self._mark(ledger_id)
            if version is not None:
                marked[ledger_id] = version
            await self._pace.keep(1)
        if not marked:
            return

        def is_named(ledger_id: int) -> None:
            if marked.pop(ledger_id, None) is not None:
                self._unnamed_since.pop(ledger_id, None)

        await self._read_names(is_named)
        for ledger_id, version in marked.items():
            await self._delete(ledger_id, version)
            await self._pace.keep(1)

    def _suspect(self, started: float) -> None:
        """All names have been read once. Of ledgers created since the search began, nothing is known yet.

        The loop's clock does not tell what came first within a millisecond. So one that was created in the millisecond
        in which the search began counts as created since. It stays a suspect until the next search.
        """
        found = {one: since for one, since in self._unnamed_since.items() if since >= started or one in self._unnamed}
        for ledger_id in self._unnamed.copy():
            found.setdefault(ledger_id, started)
        self._unnamed_since = dict(sorted(found.items(), key=lambda item: item[1]))

    async def _mark(self, ledger_id: int) -> int | None:
        """Step 1. None when the ledger is in use after all, or has been deleted."""
        key = metadata_keys.ledger(ledger_id)
        found = await self._store.get(key)
        try:
            if found is not None:
                return (await self._records.replace(LedgerMetadata.unpack(found.value), found.version)).version
        except BadVersion as error:
            self._changed(ledger_id, error)
            return None
        except NoSuchKey as error:
            logger.debug("ledger %d is gone: %s", ledger_id, error)
        except MetadataError as error:
            logger.debug("ledger %d is kept: %s", ledger_id, error)
        self._unnamed_since.pop(ledger_id, None)
        return None

    async def _delete(self, ledger_id: int, version: int) -> None:
        """Step 3."""
        try:
            await self._store.delete(metadata_keys.ledger(ledger_id), version)
        except BadVersion as error:
            self._changed(ledger_id, error)
            return
        except NoSuchKey as error:
            logger.debug("ledger %d is gone: %s", ledger_id, error)
        else:
            self.deleted_total += 1
            logger.info("ledger %d is deleted: no record has named it for %s s", ledger_id, ORPHAN_AFTER_S)
        self._unnamed_since.pop(ledger_id, None)

    def _changed(self, ledger_id: int, error: BadVersion) -> None:
        """It is kept. The wait begins again."""
        logger.debug("ledger %d is in use: %s", ledger_id, error)
        self._unnamed_since.pop(ledger_id, None)
        self._unnamed_since[ledger_id] = asyncio.get_running_loop().time()

    # -- names ---------------------------------------------------------------------------------------------------

    async def _read_names(self, take: Callable[[int], object]) -> None:
        """Hand every ledger that something names to `take`; at least those that were named all the time of this call.

        Raises MetadataError for a record that cannot be read.
        """
        for kind in RECORD_KINDS:
            if kind.names_ledgers:
                await self._read(kind.prefix, kind.ledgers_named_by, take)

    async def _read(
        self, prefix: str, ledgers_of: Callable[[str, bytes], Iterable[int]], take: Callable[[int], object]
    ) -> None:
        after = ""
        while True:
            page = await self._store.list(prefix, after=after, limit=RECORDS_PER_PAGE)
            for key, record in page:
                for ledger_id in ledgers_of(key, record.value):
                    take(ledger_id)
            if len(page) < RECORDS_PER_PAGE:
                return
            after = page[-1][0]
            await self._pace.keep(len(page))
            if len(self._names_written) >= RECORDS_PER_PAGE:
                await self._read_names_written()

    async def _read_names_written(self) -> None:
        """What these records name is no suspect any longer."""
        written, self._names_written = list(self._names_written), {}
        for first in range(0, len(written), RECORDS_PER_PAGE):
            keys = written[first : first + RECORDS_PER_PAGE]
            for key, record in zip(keys, await self._store.get_many(keys), strict=True):
                try:
                    named = ledgers_named_by(key, record.value) if record is not None else ()
                except MetadataError as error:  # the search says so
                    logger.debug("%s cannot be read: %s", key, error)
                    continue
                for ledger_id in named:
                    self._unnamed_since.pop(ledger_id, None)
                    self._unnamed.discard(ledger_id)


def _ledger_with_key(key: str, value: bytes) -> Iterable[int]:
    """The ledger whose record has this key; none for a malformed key."""
    try:
        return (metadata_keys.ledger_id_of(key),)
    except ProtocolError:
        return ()


def ledgers_named_by(key: str, value: bytes) -> Iterable[int]:
    """The ledgers that a record names. Raises MetadataError."""
    return [one for kind in RECORD_KINDS if key.startswith(kind.prefix) for one in kind.ledgers_named_by(key, value)]
