"""Ledgers that nothing names: what brokers leave behind that end between creating a ledger and naming it.

The table of record kinds (`record_kinds`) says which records name ledgers. A ledger that none of them named for
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
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from ...protocol.errors import BadVersion, MetadataError, NoSuchKey, ProtocolError
from ...runtime.environment import Environment
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.ledger_metadata import LedgerMetadata
from ...storage.metadata.ledger_records import LedgerRecords
from ...storage.metadata.store import MetadataStore
from .record_kinds import RECORD_KINDS

logger = logging.getLogger(__name__)

ORPHAN_AFTER_S = 600.0
SEARCH_PAUSE_S = 60.0
"""Between two searches at least: each reads all names."""
RECORDS_PER_PAGE = 500
TOLD_MAX = 100_000
"""Ledgers, and records that name some, which are remembered. What is beyond is found by the next search."""
NAMING = tuple(kind.prefix for kind in RECORD_KINDS if kind.names_ledgers)


class OrphanLedgers:
    """See the module."""

    def __init__(self, env: Environment, store: MetadataStore, search_interval_s: float = 86_400.0) -> None:
        self._search_interval_s = search_interval_s
        self._search_at = 0.0
        self._names_written: dict[str, None] = {}
        self._store = store
        self._records = LedgerRecords(env, store)
        self._unnamed_since: dict[int, float] = {}
        self._not_before = 0.0

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

    async def collect_due(self) -> int:
        """Search and delete, if it is time for that; returns how many ledgers. Raises as `collect` does."""
        await self._read_names_written()
        now = asyncio.get_running_loop().time()
        overdue = any(now - since >= ORPHAN_AFTER_S for since in self._unnamed_since.values())
        if now < self._search_at and not overdue:
            return 0
        deleted = await self.collect()
        self._search_at = now + self._search_interval_s
        return deleted

    async def _read_names_written(self) -> None:
        written, self._names_written = list(self._names_written), {}
        for first in range(0, len(written), RECORDS_PER_PAGE):
            keys = written[first : first + RECORDS_PER_PAGE]
            for key, record in zip(keys, await self._store.get_many(keys), strict=True):
                try:
                    named = _named_by(key, record.value) if record is not None else ()
                except MetadataError as error:  # the search says so
                    logger.debug("%s cannot be read: %s", key, error)
                    continue
                for ledger_id in named:
                    self._unnamed_since.pop(ledger_id, None)

    async def collect(self) -> int:
        """Search, unless the last search was a moment ago, and delete what is due; returns how many ledgers.

        Raises MetadataError for a record that cannot be read, MetadataUnavailable, OutcomeUnknown.
        """
        now = asyncio.get_running_loop().time()
        if now < self._not_before:
            return 0
        self._not_before = now + SEARCH_PAUSE_S
        ledger_ids = await self._collect(metadata_keys.LEDGERS_PREFIX, _ledger_with_key)
        named = await self._named()
        self._unnamed_since = {one: self._unnamed_since.get(one, now) for one in ledger_ids if one not in named}
        due = [one for one, since in self._unnamed_since.items() if now - since >= ORPHAN_AFTER_S]
        marked = [(one, version) for one in due if (version := await self._mark(one)) is not None]
        if not marked:
            return 0
        named = await self._named()
        return sum([await self._delete(one, version) for one, version in marked if one not in named])

    async def _mark(self, ledger_id: int) -> int | None:
        """Step 1. None when the ledger is in use after all, or has been deleted."""
        key = metadata_keys.ledger(ledger_id)
        found = await self._store.get(key)
        try:
            if found is not None:
                return (await self._records.replace(LedgerMetadata.unpack(found.value), found.version)).version
        except (BadVersion, NoSuchKey) as error:
            logger.debug("ledger %d is in use: %s", ledger_id, error)
        except MetadataError as error:
            logger.debug("ledger %d is kept: %s", ledger_id, error)
        self._unnamed_since.pop(ledger_id, None)
        return None

    async def _delete(self, ledger_id: int, version: int) -> bool:
        self._unnamed_since.pop(ledger_id, None)
        try:
            await self._store.delete(metadata_keys.ledger(ledger_id), version)
        except (BadVersion, NoSuchKey) as error:
            logger.debug("ledger %d is in use: %s", ledger_id, error)
            return False
        logger.info("ledger %d is deleted: no record has named it for %s s", ledger_id, ORPHAN_AFTER_S)
        return True

    # -- names ---------------------------------------------------------------------------------------------------

    async def _named(self) -> dict[int, None]:
        """Every ledger that something names; at least those that were named all the time of this call."""
        named: dict[int, None] = {}
        for kind in RECORD_KINDS:
            if kind.names_ledgers:
                named |= await self._collect(kind.prefix, kind.ledgers_named_by)
        return named

    async def _collect(self, prefix: str, ledgers_of: Callable[[str, bytes], Iterable[int]]) -> dict[int, None]:
        found: dict[int, None] = {}
        after = ""
        while True:
            page = await self._store.list(prefix, after=after, limit=RECORDS_PER_PAGE)
            for key, record in page:
                found.update(dict.fromkeys(ledgers_of(key, record.value)))
            if len(page) < RECORDS_PER_PAGE:
                return found
            after = page[-1][0]


def _ledger_with_key(key: str, value: bytes) -> Iterable[int]:
    """The ledger whose record has this key; none for a malformed key."""
    try:
        return (metadata_keys.ledger_id_of(key),)
    except ProtocolError:
        return ()


def _named_by(key: str, value: bytes) -> Iterable[int]:
    """The ledgers that a record names. Raises MetadataError."""
    return [one for kind in RECORD_KINDS if key.startswith(kind.prefix) for one in kind.ledgers_named_by(key, value)]
