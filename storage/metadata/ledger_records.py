"""Ledgers in the metadata store: create, read, compare-and-set, delete. What the changes mean is for callers."""

from collections.abc import Sequence
from typing import NamedTuple

from ...protocol.errors import NoSuchKey, NoSuchLedger, OutcomeUnknown
from ...runtime.environment import Environment
from . import keys as metadata_keys
from .certain_writes import SETTLE_LIMIT_S, delete_certain, put_certain
from .ledger_metadata import LedgerMetadata
from .registered_bookies import registered_bookies
from .store import MetadataStore, no_such_key


async def renew(store: MetadataStore, ledger_id: int, version: int) -> int:
    """Write a ledger's record again as it is, and return the new version. Any change that was prepared from the old
    version then fails. Raises BadVersion, NoSuchKey, MetadataUnavailable, OutcomeUnknown.
    """
    key = metadata_keys.ledger(ledger_id)
    found = await store.get(key)
    if found is None:
        raise no_such_key(key)
    return await store.put(key, found.value, version)  # BadVersion unless what was read has that version


class LedgerRecord(NamedTuple):
    """A ledger's metadata and the version that a compare-and-set has to name."""

    metadata: LedgerMetadata
    version: int


class LedgerRecords:
    """Typed access to the keys `ledgers/…`."""

    def __init__(self, env: Environment, store: MetadataStore) -> None:
        self._env = env
        self._store = store

    async def create(self, metadata: LedgerMetadata) -> LedgerRecord:
        """Store a new ledger. Raises KeyExists when its id was used before."""
        key = metadata_keys.ledger(metadata.ledger_id)
        return LedgerRecord(metadata, await put_certain(self._env, self._store, key, metadata.pack(), None))

    async def get(self, ledger_id: int) -> LedgerRecord:
        """The record. Raises NoSuchLedger."""
        return (await self.get_many([ledger_id]))[0]

    async def get_many(self, ledger_ids: Sequence[int]) -> list[LedgerRecord]:
        """Several records in the order asked. Raises NoSuchLedger if any of them is missing."""
        found = await self._store.get_many([metadata_keys.ledger(ledger_id) for ledger_id in ledger_ids])
        records: list[LedgerRecord] = []
        for ledger_id, record in zip(ledger_ids, found, strict=True):
            if record is None:
                raise NoSuchLedger(f"ledger {ledger_id} does not exist", ledger_id=ledger_id)
            records.append(LedgerRecord(LedgerMetadata.unpack(record.value), record.version))
        return records

    async def registered_bookies(self) -> list[str]:
        """Ids of all bookies that have a cookie, alive or not."""
        return list(await registered_bookies(self._store))

    async def replace(
        self, metadata: LedgerMetadata, expected_version: int, *, settle_limit_s: float = SETTLE_LIMIT_S
    ) -> LedgerRecord:
        """Compare-and-set. Raises BadVersion, NoSuchKey (it was deleted), MetadataUnavailable, OutcomeUnknown."""
        version = await put_certain(
            self._env,
            self._store,
            metadata_keys.ledger(metadata.ledger_id),
            metadata.pack(),
            expected_version,
            settle_limit_s=settle_limit_s,
        )
        return LedgerRecord(metadata, version)

    async def delete(self, ledger_id: int) -> bool:
        """Delete the record; bookies drop the entries when they collect garbage. Returns whether it was there."""
        key = metadata_keys.ledger(ledger_id)
        try:
            # At any version, without reading it: the id is never used again, so a late deletion does no harm.
            await self._store.delete(key, None)
        except NoSuchKey:
            return False
        except OutcomeUnknown:
            return await delete_certain(self._env, self._store, key)
        return True

    async def allocate(self, count: int) -> int:
        """The first of `count` ledger ids that no other caller gets. A block whose answer was lost is burned."""
        try:
            return await self._store.allocate(metadata_keys.LEDGER_COUNTER, count)
        except OutcomeUnknown:
            return await self._store.allocate(metadata_keys.LEDGER_COUNTER, count)
