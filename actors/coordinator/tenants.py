"""Which tenants exist: records, with a copy in the coordinator's memory.

Part of `namespaces`, which runs changes one by one, and says what *in doubt* means.

A tenant whose change is in doubt is read again, with a back-off, until the store answers. What is stored then counts,
and is written again as it is if its version is the old one. A tenant that was to be created is created. A tenant whose
deletion is in doubt takes no namespaces.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

from ...protocol.errors import KeyExists, NoSuchKey, OutcomeUnknown
from ...protocol.topics import check_named_entity
from ...runtime.environment import Environment
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_writes import delete_certain, put_certain
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.store import list_all, pack, unpack

TenantRecord = dict[str, object]
Outcome = TypeVar("Outcome")


class Tenants:
    """See the module. `on_doubt` is called when a change comes to be in doubt: `settle` is due then."""

    def __init__(self, env: Environment, store: EpochMetadataStore, on_doubt: Callable[[], None]) -> None:
        self.in_doubt: dict[str, TenantRecord | None] = {}
        """Tenants of which a change may be stored or not, with the record of one that was to be created."""
        self._env = env
        self._store = store
        self._on_doubt = on_doubt
        self._records: dict[str, tuple[TenantRecord, int]] = {}
        self._going: dict[str, None] = {}

    async def start(self) -> None:
        """Read everything. Raises MetadataUnavailable, MetadataError for a record that cannot be read."""
        for key, record in await list_all(self._store, metadata_keys.TENANTS_PREFIX):
            tenant = metadata_keys.decode_part(key.removeprefix(metadata_keys.TENANTS_PREFIX))
            self._records[tenant] = (_read(record.value), record.version)

    def names(self) -> list[str]:
        """All tenants, ordered."""
        return sorted(self._records)

    def get(self, name: str) -> TenantRecord:
        """The record of a tenant. Raises NoSuchKey."""
        if name not in self._records:
            raise NoSuchKey(f"the tenant {name} does not exist")
        return self._records[name][0]

    def check(self, name: str) -> None:
        """Raise NoSuchKey unless the tenant takes namespaces."""
        if name not in self._records or name in self._going:
            raise NoSuchKey(f"the tenant {name} does not exist")

    # -- changes, one by one ---------------------------------------------------------------------------------------

    async def put(self, name: str, record: TenantRecord, *, create: bool) -> None:
        """Create a tenant, or change one. Raises KeyExists, NoSuchKey, InvalidTopicName."""
        check_named_entity("tenant", name)
        key = metadata_keys.tenant(name)
        found = await self._store.get(key)
        if create and found is not None:
            self._records[name] = (_read(found.value), found.version)
            raise KeyExists(f"the tenant {name} already exists")
        if not create and found is None:
            raise NoSuchKey(f"the tenant {name} does not exist")
        known = _read(found.value) if found is not None else {"created_ms": self._env.clock.now_ms()}
        value = {**known, **record}
        change = put_certain(self._env, self._store, key, pack(value), found.version if found is not None else None)
        self._records[name] = (value, await self._outcome_of(name, change, created=value if create else None))

    async def delete(self, name: str) -> None:
        """Delete a tenant that has no namespaces. Raises NoSuchKey."""
        self.get(name)
        self._going[name] = None
        try:
            await self._outcome_of(name, delete_certain(self._env, self._store, metadata_keys.tenant(name)))
            del self._records[name]
        finally:
            if name not in self.in_doubt:
                self._going.pop(name, None)

    async def settle(self) -> None:
        """Find out about all changes in doubt. Raises what the store raises, for another try."""
        for name, created in list(self.in_doubt.items()):
            key = metadata_keys.tenant(name)
            found, known = await self._store.get(key), self._records.get(name)
            if found is not None:
                version = found.version
                if known is not None and known[1] == version:
                    version = await self._store.put(key, found.value, version)
                self._records[name] = (_read(found.value), version)
            elif created is not None:
                self._records[name] = (created, await self._store.put(key, pack(created), None))
            else:
                self._records.pop(name, None)
            del self.in_doubt[name]
            self._going.pop(name, None)

    async def _outcome_of(self, name: str, change: Awaitable[Outcome], created: TenantRecord | None = None) -> Outcome:
        try:
            outcome = await change
        except (OutcomeUnknown, asyncio.CancelledError):
            self.in_doubt[name] = created
            self._on_doubt()
            raise
        self.in_doubt.pop(name, None)  # an older change in doubt names a version that is gone
        self._going.pop(name, None)
        return outcome


def _read(value: bytes) -> TenantRecord:
    return cast("TenantRecord", unpack(value))
