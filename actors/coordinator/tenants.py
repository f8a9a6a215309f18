"""Which tenants exist: records, with a copy in the coordinator's memory.

Part of `namespaces`, which runs changes one by one. `changes_in_doubt` settles a change whose outcome is unknown: what
is stored then counts, and a tenant that was to be created is created. A tenant whose deletion is in doubt takes no
namespaces.
"""

import asyncio
from typing import cast

from ...protocol.errors import KeyExists, NoSuchKey
from ...protocol.topics import check_named_entity
from ...runtime.environment import Environment
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_writes import delete_certain, put_certain
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.store import list_all, pack, unpack
from .changes_in_doubt import ChangesInDoubt

TenantRecord = dict[str, object]


class Tenants:
    """See the module. `changing` is the lock that its owner holds during a change."""

    def __init__(self, env: Environment, store: EpochMetadataStore, changing: asyncio.Lock) -> None:
        self.in_doubt: ChangesInDoubt[TenantRecord | None] = ChangesInDoubt(
            env, store, "tenant", changing, self._settle_one
        )
        """Tenants of which a change may be stored or not, with the record of one that was to be created."""
        self._env = env
        self._store = store
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
        version = await self.in_doubt.outcome_of(name, change, value if create else None)
        self._going.pop(name, None)  # a deletion was in doubt until now
        self._records[name] = (value, version)

    async def delete(self, name: str) -> None:
        """Delete a tenant that has no namespaces. Raises NoSuchKey."""
        self.get(name)
        self._going[name] = None
        try:
            change = delete_certain(self._env, self._store, metadata_keys.tenant(name))
            await self.in_doubt.outcome_of(name, change, None)
            del self._records[name]
        finally:
            if name not in self.in_doubt:
                self._going.pop(name, None)

    async def _settle_one(self, name: str, created: TenantRecord | None) -> None:
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
        self._going.pop(name, None)


def _read(value: bytes) -> TenantRecord:
    return cast("TenantRecord", unpack(value))
