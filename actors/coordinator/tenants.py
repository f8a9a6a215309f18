"""Which tenants exist: records, with a copy in the coordinator's memory.

Part of `namespaces`, which runs changes one by one. `CertainRecords` settles a change whose outcome is unknown: what is
stored then counts, and a tenant that was to be created is created. A tenant whose deletion is in doubt takes no
namespaces.
"""

import asyncio
from typing import cast

from ...protocol.errors import KeyExists, NoSuchKey
from ...protocol.topics import check_named_entity
from ...runtime.environment import Environment
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_records import CertainRecords
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.store import Versioned, list_all, pack, unpack

TenantRecord = dict[str, object]


class Tenants:
    """See the module. `changing` is the lock that its owner holds during a change."""

    def __init__(self, env: Environment, store: EpochMetadataStore, changing: asyncio.Lock) -> None:
        self.stored = CertainRecords(
            env,
            store,
            "tenant",
            changing=lambda name: changing,
            key_of=metadata_keys.tenant,
            version_of=self._version_of,
            take=self._take,
        )
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
        version = await self.stored.put(name, pack(value), found.version if found is not None else None)
        self._going.pop(name, None)  # a deletion was in doubt until now
        self._records[name] = (value, version)

    async def delete(self, name: str) -> None:
        """Delete a tenant that has no namespaces. Raises NoSuchKey."""
        self.get(name)
        self._going[name] = None
        try:
            await self.stored.delete(name)
            del self._records[name]
        finally:
            if name not in self.stored:
                self._going.pop(name, None)

    def _version_of(self, name: str) -> int | None:
        known = self._records.get(name)
        return None if known is None else known[1]

    def _take(self, name: str, found: Versioned | None) -> None:
        if found is not None:
            self._records[name] = (_read(found.value), found.version)
        else:
            self._records.pop(name, None)
        self._going.pop(name, None)


def _read(value: bytes) -> TenantRecord:
    return cast("TenantRecord", unpack(value))
