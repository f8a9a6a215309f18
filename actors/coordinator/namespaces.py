"""Which tenants and namespaces exist, and the policies of namespaces: records, with a copy in the coordinator's memory.

Only the active coordinator changes these records (each write is guarded by its epoch). So its copy is right as long as
it is active. Changes run one by one. A namespace that is being deleted takes no new topics. One that is deleted by
force has a mark in its record, which nothing takes back (see `namespace_deletions`).

A change of policies is stored by compare-and-set, entered in the copy, and then told to `on_policies`, without a pause
between the last two. So brokers are told of stored changes only, in the order of their versions.

`CertainRecords` settles a change whose outcome is unknown. What is stored then is taken over and told, a deletion
that happened is told, and a namespace that was to be created is created. A namespace whose deletion is in doubt takes
no topics.

A schema may be stored for a topic that does not exist yet. The coordinator deletes such schemas after their namespace,
and again before it creates a namespace of that name, since a crash may lie between.

Which topics a namespace has is not known here.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from typing import cast

from ...protocol.errors import ConflictError, KeyExists, NoSuchKey, TopicNotFound
from ...protocol.properties import Properties, changed_properties
from ...protocol.topics import check_named_entity, parse_namespace
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_records import CertainRecords, remove_record
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.store import Versioned, list_all, pack, unpack
from ..members.contracts_coordinator import NamespaceContract, NamespacePolicies, TenantContract
from ..policies.automatic_creation import AutoTopicCreation
from ..policies.effective import POLICIES, understood
from ..policies.record import NamespaceRecord
from ..policies.tenant_admins import ADMINS

TenantRecord = dict[str, object]


class Tenants(TenantContract):
    """Which tenants exist: records, with a copy in the coordinator's memory.

    Part of `namespaces`: changes of both run one by one. `CertainRecords` settles a change whose outcome is unknown:
    what is stored then counts, and a tenant that was to be created is created. A tenant whose deletion is in doubt
    takes no namespaces.

    `changing` is the lock that is held during a change. `on_admins` is told of a tenant that has other admins, or may
    have: a stored change first, as with policies.
    """

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        changing: asyncio.Lock,
        on_admins: Callable[[NamespacePolicies], None],
    ) -> None:
        self._on_admins = on_admins
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
        self._changing = changing
        self._records: dict[str, tuple[TenantRecord, int]] = {}
        self._going: dict[str, None] = {}

    async def start(self) -> None:
        """Read everything. Raises MetadataUnavailable, MetadataError for a record that cannot be read."""
        for key, record in await list_all(self._store, metadata_keys.TENANTS_PREFIX):
            tenant = metadata_keys.decode_part(key.removeprefix(metadata_keys.TENANTS_PREFIX))
            self._records[tenant] = (_read(record.value), record.version)

    async def tenants(self) -> list[str]:
        return sorted(self._records)

    async def tenant(self, *, tenant: str) -> TenantRecord:
        self.check_known(tenant)
        return self._records[tenant][0]

    def versions(self) -> dict[str, int]:
        """The version of each tenant's record, as far as this coordinator knows."""
        return {name: version for name, (_, version) in self._records.items()}

    def check_known(self, name: str) -> None:
        """Raise NoSuchKey unless there is such a tenant."""
        if name not in self._records:
            raise NoSuchKey(f"the tenant {name} does not exist")

    def check(self, name: str) -> None:
        """Raise NoSuchKey unless the tenant takes namespaces."""
        if name not in self._records or name in self._going:
            raise NoSuchKey(f"the tenant {name} does not exist")

    # -- changes, one by one ---------------------------------------------------------------------------------------

    async def put_tenant(self, *, tenant: str, record: TenantRecord, create: bool = True) -> None:
        async with self._changing:
            check_named_entity("tenant", tenant)
            found = await self._store.get(metadata_keys.tenant(tenant))
            if create and found is not None:
                self._enter(tenant, _read(found.value), found.version)
                raise KeyExists(f"the tenant {tenant} already exists")
            if not create and found is None:
                raise NoSuchKey(f"the tenant {tenant} does not exist")
            known = _read(found.value) if found is not None else {"created_ms": self._env.clock.now_ms()}
            value = {**known, **record}
            version = await self.stored.put(tenant, pack(value), found.version if found is not None else None)
            self._going.pop(tenant, None)  # a deletion was in doubt until now
            self._enter(tenant, value, version)

    async def delete(self, name: str) -> None:
        """Delete a tenant that has no namespaces, under the lock. Raises NoSuchKey."""
        self.check_known(name)
        self._going[name] = None
        try:
            await self.stored.delete(name)
            self._gone(name)
        finally:
            if name not in self.stored:
                self._going.pop(name, None)

    def _version_of(self, name: str) -> int | None:
        known = self._records.get(name)
        return None if known is None else known[1]

    def _take(self, name: str, found: Versioned | None) -> None:
        if found is not None:
            self._enter(name, _read(found.value), found.version)
        elif name in self._records:
            self._gone(name)
        self._going.pop(name, None)

    def with_admins(self, after: str) -> list[NamespacePolicies]:
        """Tenants that have admins and whose names are greater than `after`, in no order."""
        return [self._row(name) for name, (record, _) in self._records.items() if record.get(ADMINS) and name > after]

    def _enter(self, name: str, record: TenantRecord, version: int) -> None:
        """Take over what is stored, and tell it if it is news."""
        known = self._records.get(name)
        self._records[name] = (record, version)
        if known is None or known[1] != version:
            self._on_admins(self._row(name))

    def _gone(self, name: str) -> None:
        """Forget what was deleted, and tell it."""
        _, version = self._records.pop(name)
        self._on_admins(NamespacePolicies(name, version + 1, None))

    def _row(self, name: str) -> NamespacePolicies:
        record, version = self._records[name]
        return NamespacePolicies(name, version, {ADMINS: record.get(ADMINS) or []})


def _read(value: bytes) -> TenantRecord:
    return cast("TenantRecord", unpack(value))


_CREATION = "auto_topic_creation_override"


class Namespaces(NamespaceContract):
    """See the module."""

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        settings: Settings,
        on_policies: Callable[[NamespacePolicies], None],
    ) -> None:
        self._env = env
        self._store = store
        self._settings = settings
        self._on_policies = on_policies
        self._changing = asyncio.Lock()
        self.tenants = Tenants(env, store, self._changing, on_policies)
        self._namespaces: dict[str, tuple[NamespaceRecord, int]] = {}
        self._going: dict[str, None] = {}
        self.on_marked: Callable[[str], None] = lambda name: None
        """Told of each namespace whose record says that it is being deleted, as soon as that is known."""
        self._stored = CertainRecords(
            env,
            store,
            "namespace",
            changing=lambda name: self._changing,
            key_of=metadata_keys.namespace,
            version_of=self._version_of,
            take=self._take,
        )

    async def start(self) -> None:
        """Read everything. Raises MetadataUnavailable, MetadataError for a record that cannot be read."""
        await self.tenants.start()
        for key, record in await list_all(self._store, metadata_keys.NAMESPACES_PREFIX):
            name = key.removeprefix(metadata_keys.NAMESPACES_PREFIX)
            self._namespaces[name] = (NamespaceRecord.read(key, record.value), record.version)

    async def close(self) -> None:
        """End what is under way."""
        await self.tenants.stored.close()
        await self._stored.close()

    # -- namespaces ----------------------------------------------------------------------------------------------

    def exists(self, namespace: str) -> bool:
        """Whether there is a namespace (`tenant/namespace`) that takes topics."""
        found = self._namespaces.get(namespace)
        return found is not None and not found[0].deleted and namespace not in self._going

    def known(self) -> dict[str, tuple[NamespaceRecord, int]]:
        """The record of each namespace and its version, as far as this coordinator knows."""
        return dict(self._namespaces)

    def marked(self) -> list[str]:
        """Namespaces that are being deleted with all that is in them."""
        return [name for name, (record, _) in self._namespaces.items() if record.deleted]

    def is_marked(self, namespace: str) -> bool:
        """Whether a namespace is being deleted with all that is in it."""
        found = self._namespaces.get(namespace)
        return found is not None and found[0].deleted

    def check(self, namespace: str) -> None:
        """Raise TopicNotFound unless the namespace exists."""
        if not self.exists(namespace):
            raise TopicNotFound(f"the namespace {namespace} does not exist", namespace=namespace)

    async def namespaces(self, *, tenant: str) -> list[str]:
        self.tenants.check_known(tenant)
        return self._names(tenant)

    async def namespace(self, *, namespace: str) -> NamespacePolicies:
        self.check(namespace)
        return self._row(namespace)

    async def namespace_properties(self, *, namespace: str) -> Properties:
        self.check(namespace)
        return self._namespaces[namespace][0].properties

    def topics_max(self, namespace: str) -> int:
        """How many topics a namespace takes; 0 for no bound."""
        record = self._namespaces.get(namespace)
        own = record[0].policies.get("max_topics_per_namespace") if record is not None else None
        return own if isinstance(own, int) else self._settings.topics_max_per_namespace

    def creation(self, namespace: str) -> AutoTopicCreation:
        """Whether clients create topics there, and of which kind."""
        record = self._namespaces.get(namespace)
        own = understood(record[0].policies).get(_CREATION) if record is not None else None
        found = POLICIES[_CREATION].resolve(self._settings, [] if own is None else [own])
        return cast("AutoTopicCreation", found)

    def with_policies(self, after: str) -> list[NamespacePolicies]:
        """Namespaces that have policies and whose names are greater than `after`, in no order."""
        return [self._row(name) for name, (record, _) in self._namespaces.items() if record.policies and name > after]

    async def create_namespace(
        self, *, namespace: str, policies: dict[str, object] | None = None, properties: Properties | None = None
    ) -> None:
        tenant, _ = parse_namespace(namespace)
        record = NamespaceRecord.new(policies or {}, self._env.clock.now_ms(), self._settings)
        if properties:
            record = record.with_properties(changed_properties({}, properties, ()))
        async with self._changing:
            self.tenants.check(tenant)
            if namespace in self._namespaces:
                raise KeyExists(f"the namespace {namespace} already exists")
            await _delete_schemas(self._env, self._store, namespace)
            self._enter(namespace, record, await self._stored.put(namespace, record.pack(), None))

    async def set_policy(self, *, namespace: str, policy: str, value: object = None) -> None:
        await self._change(namespace, lambda record: record.with_policy(policy, value, self._settings))

    async def change_namespace_properties(
        self, *, namespace: str, put: dict[str, str], remove: list[str] | None = None, clear: bool = False
    ) -> None:
        def change(record: NamespaceRecord) -> NamespaceRecord:
            return record.with_properties(changed_properties(record.properties, put, remove or (), clear=clear))

        await self._change(namespace, change)

    async def drop_grants(self, namespace: str, topics: Collection[str]) -> None:
        """Take away what roles were allowed at topics that are being deleted, else a later topic would be open to them.

        No error when nothing was, or when the namespace goes with its topics. Raises MetadataUnavailable,
        OutcomeUnknown, MetadataError.
        """
        with contextlib.suppress(TopicNotFound):
            await self._change(namespace, lambda record: record.without_grants(topics))

    async def _change(self, namespace: str, change: Callable[[NamespaceRecord], NamespaceRecord]) -> None:
        """Store what `change` makes of the record. Raises TopicNotFound, and what `change` raises."""
        key = metadata_keys.namespace(namespace)
        async with self._changing:
            self.check(namespace)
            found = await self._store.get(key)
            if found is None:
                raise TopicNotFound(f"the namespace {namespace} does not exist", namespace=namespace)
            before = NamespaceRecord.read(key, found.value)
            record, version = change(before), found.version
            if record != before:
                version = await self._stored.put(namespace, record.pack(), version)
            self._enter(namespace, record, version)

    async def delete(self, name: str, topics_in: Callable[[str], Sequence[str]]) -> None:
        """Raises TopicNotFound, NotAllowedError while topics are in it, as `topics_in` says."""
        async with self._changing:
            self.check(name)
            if topics_in(name):
                raise ConflictError(f"the namespace {name} still has topics: delete them first")
            self._going[name] = None
            try:
                await self._stored.delete(name)
                self._gone(name)
                await _delete_schemas(self._env, self._store, name)
            finally:
                if name not in self._stored:
                    del self._going[name]

    async def mark(self, name: str) -> None:
        """Write into the record that the namespace is being deleted. Raises TopicNotFound."""
        key = metadata_keys.namespace(name)
        async with self._changing:
            self.check(name)
            found = await self._store.get(key)
            if found is None:
                raise TopicNotFound(f"the namespace {name} does not exist", namespace=name)
            record = NamespaceRecord.read(key, found.value).as_deleted()
            self._enter(name, record, await self._stored.put(name, record.pack(), found.version))

    async def remove_marked(self, name: str) -> None:
        """Delete the record of a marked namespace; no topic is left. No error when it is gone, or was created again."""
        async with self._changing:
            if not self.is_marked(name):
                return  # an earlier try did it; `create` deletes schemas that are left
            await self._stored.delete(name)
            self._gone(name)
            await _delete_schemas(self._env, self._store, name)

    # -- tenants -------------------------------------------------------------------------------------------------

    async def delete_tenant(self, name: str) -> None:
        """Raises NoSuchKey, NotAllowedError while it has namespaces."""
        async with self._changing:
            self.tenants.check_known(name)
            if self._names(name) or any(one.startswith(f"{name}/") for one in self._stored.in_doubt()):
                raise ConflictError(f"the tenant {name} still has namespaces: delete them first")
            await self.tenants.delete(name)

    # -- inside --------------------------------------------------------------------------------------------------

    def _names(self, tenant: str) -> list[str]:
        return sorted(name for name in self._namespaces if name.startswith(f"{tenant}/"))

    def _version_of(self, namespace: str) -> int | None:
        known = self._namespaces.get(namespace)
        return None if known is None else known[1]

    def _take(self, namespace: str, found: Versioned | None) -> None:
        if found is not None:
            key = metadata_keys.namespace(namespace)
            self._enter(namespace, NamespaceRecord.read(key, found.value), found.version)
        elif namespace in self._namespaces:
            self._gone(namespace)
        self._going.pop(namespace, None)

    def _enter(self, namespace: str, record: NamespaceRecord, version: int) -> None:
        """Take over what is stored, and tell it if it is news."""
        known = self._namespaces.get(namespace)
        self._namespaces[namespace] = (record, version)
        if known is None or known[1] != version:
            self._on_policies(self._row(namespace))
        if record.deleted:
            self.on_marked(namespace)

    def _gone(self, namespace: str) -> None:
        """Forget what was deleted, and tell it."""
        _, version = self._namespaces.pop(namespace)
        self._on_policies(NamespacePolicies(namespace, version + 1, None))

    def _row(self, namespace: str) -> NamespacePolicies:
        record, version = self._namespaces[namespace]
        return NamespacePolicies(namespace, version, dict(record.policies))


async def _delete_schemas(env: Environment, store: EpochMetadataStore, namespace: str) -> None:
    """Delete the schemas of topics that did not exist. Nobody adds any while the namespace does not exist."""
    for key, _ in await list_all(store, metadata_keys.schemas_prefix(namespace)):
        await remove_record(env, store, key)
