"""The policies of topics: records, with a copy in the coordinator's memory. A topic without policies has no record.

A partitioned topic has one record for all its partitions. Only the active coordinator changes these records; each write
is guarded by its epoch, and by the version of the topic's own record. So policies never outlive their topic: a deletion
first marks the topic's record, then deletes the policies, last the topic's record. Changes run one by one.

As in `namespaces`, a change is stored by compare-and-set, entered in the copy, and told to `on_policies`, with no pause
between the last two. `CertainRecords` settles a change whose outcome is unknown. A record that was to be created is
created. If the topic's own record has changed meanwhile, neither try can succeed.
"""

import asyncio
from collections.abc import Callable

from ...protocol.errors import ConditionFailed, NotAllowedError, ServiceUnitNotReady
from ...protocol.topics import TopicName, topic_of_path
from ...runtime.environment import Environment
from ...runtime.settings.declarations import Settings
from ...storage.metadata import keys as metadata_keys
from ...storage.metadata.certain_records import CertainRecords
from ...storage.metadata.epoch_guard import EpochMetadataStore
from ...storage.metadata.store import Guard, Versioned, list_all
from ..members.contracts_coordinator import NamespacePolicies, PolicyPage, TopicPolicyContract
from ..policies.record import NamespaceRecord
from .namespaces import Namespaces
from .topic_registry import TopicRegistry

PAGE = 5000
"""Namespaces and topics that one answer holds."""


class TopicPolicies(TopicPolicyContract):
    """See the module."""

    def __init__(
        self,
        env: Environment,
        store: EpochMetadataStore,
        settings: Settings,
        registry: TopicRegistry,
        on_policies: Callable[[NamespacePolicies], None],
    ) -> None:
        self._env = env
        self._store = store
        self._settings = settings
        self._registry = registry
        self._on_policies = on_policies
        self._records: dict[str, tuple[NamespaceRecord, int]] = {}
        self._changing = asyncio.Lock()
        self._stored = CertainRecords(
            env,
            store,
            "topic-policies",
            changing=lambda topic: self._changing,
            key_of=lambda topic: metadata_keys.topic_policies(TopicName.parse(topic).path),
            version_of=self._version_of,
            take=self._take,
        )

    async def start(self) -> None:
        """Read everything. Raises MetadataUnavailable, MetadataError for a record that cannot be read."""
        for key, record in await list_all(self._store, metadata_keys.TOPIC_POLICIES_PREFIX):
            topic = topic_of_path(key.removeprefix(metadata_keys.TOPIC_POLICIES_PREFIX)).full
            self._records[topic] = (NamespaceRecord.read(key, record.value), record.version)

    async def close(self) -> None:
        """End what is under way."""
        await self._stored.close()

    async def topic_policies(self, *, topic: str) -> NamespacePolicies:
        name = TopicName.parse(topic)
        self._check(name)
        return self._row(name.full) if name.full in self._records else NamespacePolicies(name.full, -1, {})

    def known(self) -> dict[str, tuple[NamespaceRecord, int]]:
        """The record of each topic that has one and its version, as far as this coordinator knows."""
        return dict(self._records)

    def with_policies(self, after: str) -> list[NamespacePolicies]:
        """Topics that have policies and whose names are greater than `after`, in no order."""
        return [self._row(name) for name, (record, _) in self._records.items() if record.policies and name > after]

    async def set_topic_policy(self, *, topic: str, policy: str, value: object = None) -> None:
        name = TopicName.parse(topic)
        key = metadata_keys.topic_policies(name.path)
        async with self._changing:
            self._check(name)
            found = await self._store.get(key)
            before = NamespaceRecord.read(key, found.value) if found is not None else None
            empty = NamespaceRecord.new({}, self._env.clock.now_ms(), self._settings)
            record = (before or empty).with_policy(policy, value, self._settings, topic=True)
            guard = self._guard(name)
            version = found.version if found is not None else None
            if record.policies != (before.policies if before is not None else {}):
                version = await self._put(name, record, version, guard)
            if version is not None:
                self._enter(name.full, record, version)

    async def delete(self, topic: TopicName) -> None:
        """Delete what is set for a topic that is being deleted. No error when there is nothing."""
        async with self._changing:
            if topic.full in self._records or topic.full in self._stored:
                await self._stored.delete(topic.full)  # the mark keeps a change in doubt from being stored
                self._gone(topic.full)

    # -- inside --------------------------------------------------------------------------------------------------

    def _check(self, topic: TopicName) -> None:
        if self._registry.find(topic) is None:
            self._registry.members(topic)  # raises TopicNotFound, but for a partition that exists
            raise NotAllowedError("Not allowed to set/get topic policy for a partition")

    def _guard(self, topic: TopicName) -> Guard:
        guard = self._registry.guard_of(topic)
        facts = self._registry.facts(topic)
        if guard is None and facts is not None and facts.version is None:
            raise NotAllowedError(
                f"{topic.full} exists in memory only, so it has no policies of its own: set them on the namespace"
            )
        if guard is None:
            raise ServiceUnitNotReady(f"{topic.full} is being deleted")
        return guard

    async def _put(self, topic: TopicName, record: NamespaceRecord, version: int | None, guard: Guard) -> int:
        try:
            return await self._stored.put(topic.full, record.pack(), version, needs=guard)
        except ConditionFailed:
            raise ServiceUnitNotReady(f"{topic.full} changed at this moment: try again") from None

    def _version_of(self, topic: str) -> int | None:
        known = self._records.get(topic)
        return None if known is None else known[1]

    def _take(self, topic: str, found: Versioned | None) -> None:
        if found is not None:
            key = metadata_keys.topic_policies(TopicName.parse(topic).path)
            self._enter(topic, NamespaceRecord.read(key, found.value), found.version)
        else:
            self._gone(topic)

    def _enter(self, topic: str, record: NamespaceRecord, version: int) -> None:
        """Take over what is stored, and tell it if it is news."""
        known = self._records.get(topic)
        self._records[topic] = (record, version)
        if known is None or known[1] != version:
            self._on_policies(self._row(topic))

    def _gone(self, topic: str) -> None:
        known = self._records.pop(topic, None)
        if known is not None:
            self._on_policies(NamespacePolicies(topic, known[1] + 1, None))

    def _row(self, topic: str) -> NamespacePolicies:
        record, version = self._records[topic]
        return NamespacePolicies(topic, version, dict(record.policies))


def policy_page(namespaces: Namespaces, topics: TopicPolicies, after: str) -> PolicyPage:
    """Tenants with admins, and namespaces and topics with policies, ordered by name, behind `after`."""
    found = [*namespaces.tenants.with_admins(after), *namespaces.with_policies(after), *topics.with_policies(after)]
    rows = sorted(found, key=lambda row: row.namespace)
    return PolicyPage(rows[:PAGE], len(rows) > PAGE)
