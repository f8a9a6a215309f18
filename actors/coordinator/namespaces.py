"""Which tenants and namespaces exist, and the policies of namespaces: records, with a copy in the coordinator's memory.

Only the active coordinator changes these records (each write is guarded by its epoch). So its copy is right as long as
it is active. Changes run one by one. A namespace that is being deleted takes no new topics.

A change of policies is stored by compare-and-set, entered in the copy, and then told to `on_policies`, without a pause
between the last two. So brokers are told of stored changes only, in the order of their versions. When the store's
answer stays lost, the caller gets OutcomeUnknown. The next change reads the record again and tells what it finds.

Which topics a namespace has is not known here.
"""

import asyncio
from collections.abc import Callable
from typing import cast

from ...protocol.errors import KeyExists, MetadataError, NoSuchKey, NotAllowedError, TopicNotFound
from ...protocol.topics import check_named_entity, parse_namespace
from ...runtime.environment import Environment
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_writes import delete_certain, put_certain
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.store import list_all, pack, unpack
from ..members.contracts_namespaces import NamespacePolicies, PolicyPage
from ..policies.record import NamespaceRecord

PAGE = 5000
"""Namespaces that one answer holds."""


class Namespaces:
    """See the module."""

    def __init__(
        self, env: Environment, store: EpochMetadataStore, on_policies: Callable[[NamespacePolicies], None]
    ) -> None:
        self._env = env
        self._store = store
        self._on_policies = on_policies
        self._tenants: dict[str, tuple[dict[str, object], int]] = {}
        self._namespaces: dict[str, tuple[NamespaceRecord, int]] = {}
        self._going: dict[str, None] = {}
        self._changing = asyncio.Lock()

    async def start(self) -> None:
        """Read everything. Raises MetadataUnavailable, MetadataError for a record that cannot be read."""
        for key, record in await list_all(self._store, metadata_keys.TENANTS_PREFIX):
            tenant = metadata_keys.decode_part(key.removeprefix(metadata_keys.TENANTS_PREFIX))
            self._tenants[tenant] = (cast("dict[str, object]", unpack(record.value)), record.version)
        for key, record in await list_all(self._store, metadata_keys.NAMESPACES_PREFIX):
            name = key.removeprefix(metadata_keys.NAMESPACES_PREFIX)
            self._namespaces[name] = (_read(key, record.value), record.version)

    # -- namespaces ----------------------------------------------------------------------------------------------

    def exists(self, namespace: str) -> bool:
        """Whether there is a namespace (`tenant/namespace`) that takes topics."""
        return namespace in self._namespaces and namespace not in self._going

    def check(self, namespace: str) -> None:
        """Raise TopicNotFound unless the namespace exists."""
        if not self.exists(namespace):
            raise TopicNotFound(f"the namespace {namespace} does not exist", namespace=namespace)

    def names(self, tenant: str) -> list[str]:
        """Names of a tenant's namespaces. Raises NoSuchKey for a missing tenant."""
        if tenant not in self._tenants:
            raise NoSuchKey(f"the tenant {tenant} does not exist")
        return sorted(name for name in self._namespaces if name.startswith(f"{tenant}/"))

    def policies(self, namespace: str) -> NamespacePolicies:
        """What is set for a namespace. Raises TopicNotFound."""
        self.check(namespace)
        return self._row(namespace)

    def page(self, after: str) -> PolicyPage:
        """Namespaces that have policies, ordered by name, behind `after`."""
        names = sorted(name for name, (record, _) in self._namespaces.items() if record.policies and name > after)
        return PolicyPage([self._row(name) for name in names[:PAGE]], len(names) > PAGE)

    async def create(self, name: str, policies: dict[str, object]) -> None:
        """Raises KeyExists, NoSuchKey (no such tenant), InvalidTopicName, InvalidConfiguration (a wrong policy)."""
        tenant, _ = parse_namespace(name)
        record = NamespaceRecord.new(policies, self._env.clock.now_ms())
        async with self._changing:
            if tenant not in self._tenants:
                raise NoSuchKey(f"the tenant {tenant} does not exist")
            if name in self._namespaces:
                raise KeyExists(f"the namespace {name} already exists")
            version = await put_certain(self._env, self._store, metadata_keys.namespace(name), record.pack(), None)
            self._enter(name, record, version)

    async def set_policy(self, namespace: str, policy: str, value: object) -> None:
        """Set one policy; None takes it away. Raises TopicNotFound, InvalidConfiguration (no such policy, or a wrong
        value)."""
        key = metadata_keys.namespace(namespace)
        async with self._changing:
            self.check(namespace)
            found = await self._store.get(key)
            if found is None:
                raise TopicNotFound(f"the namespace {namespace} does not exist", namespace=namespace)
            before = _read(key, found.value)
            record, version = before.with_policy(policy, value), found.version
            if record != before:
                version = await put_certain(self._env, self._store, key, record.pack(), version)
            self._enter(namespace, record, version)

    async def delete(self, name: str, in_use: Callable[[str], bool]) -> None:
        """Raises TopicNotFound, NotAllowedError while topics are in it, as `in_use` says."""
        async with self._changing:
            self.check(name)
            if in_use(name):
                raise NotAllowedError(f"the namespace {name} still has topics: delete them first", exists=True)
            self._going[name] = None
            try:
                await delete_certain(self._env, self._store, metadata_keys.namespace(name))
                _, version = self._namespaces.pop(name)
                self._on_policies(NamespacePolicies(name, version + 1, None))
            finally:
                del self._going[name]

    # -- tenants -------------------------------------------------------------------------------------------------

    def tenants(self) -> list[str]:
        return sorted(self._tenants)

    def tenant(self, name: str) -> dict[str, object]:
        """The record of a tenant. Raises NoSuchKey."""
        if name not in self._tenants:
            raise NoSuchKey(f"the tenant {name} does not exist")
        return self._tenants[name][0]

    async def put_tenant(self, name: str, record: dict[str, object], *, create: bool) -> None:
        """Create a tenant, or change one. Raises KeyExists, NoSuchKey, InvalidTopicName."""
        check_named_entity("tenant", name)
        async with self._changing:
            known = self._tenants.get(name)
            if create and known is not None:
                raise KeyExists(f"the tenant {name} already exists")
            if not create and known is None:
                raise NoSuchKey(f"the tenant {name} does not exist")
            value = {"created_ms": self._env.clock.now_ms(), **(known[0] if known else {}), **record}
            version = await put_certain(
                self._env, self._store, metadata_keys.tenant(name), pack(value), known[1] if known else None
            )
            self._tenants[name] = (value, version)

    async def delete_tenant(self, name: str) -> None:
        """Raises NoSuchKey, NotAllowedError while it has namespaces."""
        async with self._changing:
            if self.names(name):
                raise NotAllowedError(f"the tenant {name} still has namespaces: delete them first", exists=True)
            await delete_certain(self._env, self._store, metadata_keys.tenant(name))
            del self._tenants[name]

    # -- inside --------------------------------------------------------------------------------------------------

    def _enter(self, namespace: str, record: NamespaceRecord, version: int) -> None:
        """Take over what is stored, and tell it if it is news."""
        known = self._namespaces.get(namespace)
        self._namespaces[namespace] = (record, version)
        if known is None or known[1] != version:
            self._on_policies(self._row(namespace))

    def _row(self, namespace: str) -> NamespacePolicies:
        record, version = self._namespaces[namespace]
        return NamespacePolicies(namespace, version, dict(record.policies))


def _read(key: str, value: bytes) -> NamespaceRecord:
    try:
        return NamespaceRecord.unpack(value)
    except MetadataError as error:
        raise MetadataError(f"the metadata record {key} cannot be read: {error}", key=key) from error
