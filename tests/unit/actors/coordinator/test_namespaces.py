"""Namespaces at the coordinator: what is stored, what is told to brokers, and in which order."""

from collections.abc import AsyncIterator

import pytest

from magnetar.actors.coordinator.namespaces import Namespaces
from magnetar.actors.coordinator.topic_policies import TopicPolicies, policy_page
from magnetar.actors.coordinator.topic_registry import TopicRegistry
from magnetar.actors.members.contracts_coordinator import NamespacePolicies
from magnetar.protocol.errors import (
    InvalidConfiguration,
    MetadataError,
    MetadataUnavailable,
    NotAllowedError,
    OutcomeUnknown,
    TopicNotFound,
)
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import certain_writes
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import take_office
from support.stores.memory_store import MemoryMetadataStore

NAME = "public/default"
BOUND = "max_producers_per_topic"


class Bench:
    """Namespaces of one coordinator, and what they told. `open` makes those of the next coordinator."""

    def __init__(self, env: Environment, store: MemoryMetadataStore) -> None:
        self.env = env
        self.store = store
        self.told: list[NamespacePolicies] = []

    async def open(self) -> Namespaces:
        self.namespaces = Namespaces(self.env, await take_office(self.store), Settings(), self.told.append)
        await self.namespaces.start()
        return self.namespaces


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    env = Environment.real(1)
    store = MemoryMetadataStore()
    await create_cluster(store, "c", 0)
    found = Bench(env, store)
    await found.open()
    yield found
    env.close()


async def test_each_change_is_told_once_with_a_greater_version(bench: Bench) -> None:
    namespaces = bench.namespaces
    await namespaces.set_policy(namespace=NAME, policy=BOUND, value=3)
    await namespaces.set_policy(namespace=NAME, policy=BOUND, value=3)
    await namespaces.set_policy(namespace=NAME, policy="encryption_required", value=True)
    await namespaces.set_policy(namespace=NAME, policy=BOUND, value=None)
    assert [one.policies for one in bench.told] == [
        {BOUND: 3},
        {BOUND: 3, "encryption_required": True},
        {"encryption_required": True},
    ]
    versions = [one.version for one in bench.told]
    assert versions == sorted(set(versions))
    assert await (await bench.open()).namespace(namespace=NAME) == bench.told[-1]


async def test_versions_go_on_when_a_namespace_is_deleted_and_created_again(bench: Bench) -> None:
    namespaces = bench.namespaces
    await namespaces.set_policy(namespace=NAME, policy=BOUND, value=3)
    await namespaces.delete(NAME, lambda name: False)
    await namespaces.create_namespace(namespace=NAME)
    assert [one.policies for one in bench.told] == [{BOUND: 3}, None, {}]
    assert bench.told[0].version < bench.told[1].version <= bench.told[2].version


async def test_a_namespace_with_topics_stays(bench: Bench) -> None:
    with pytest.raises(NotAllowedError):
        await bench.namespaces.delete(NAME, lambda name: name == NAME)
    assert bench.namespaces.exists(NAME) and bench.told == []


async def test_what_is_refused_is_neither_stored_nor_told(bench: Bench) -> None:
    for namespace, policy, value, error in (
        (NAME, BOUND, -1, InvalidConfiguration),
        (NAME, "no_such_policy", 1, InvalidConfiguration),
        ("public/none", BOUND, 1, TopicNotFound),
    ):
        with pytest.raises(error):
            await bench.namespaces.set_policy(namespace=namespace, policy=policy, value=value)
    assert bench.told == [] and (await (await bench.open()).namespace(namespace=NAME)).policies == {}


async def test_a_coordinator_that_was_replaced_stores_and_tells_nothing(bench: Bench) -> None:
    old = bench.namespaces
    await bench.open()
    with pytest.raises(MetadataUnavailable, match="superseded"):
        await old.set_policy(namespace=NAME, policy=BOUND, value=3)
    assert bench.told == [] and (await old.namespace(namespace=NAME)).policies == {}


async def test_the_next_change_tells_what_a_lost_answer_left_in_the_store(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespaces = bench.namespaces

    async def lost(
        env: object, store: MemoryMetadataStore, key: str, value: bytes, version: int | None, *, needs: object
    ) -> int:
        await store.put(key, value, version)
        raise OutcomeUnknown("the answer was lost")

    monkeypatch.setattr("magnetar.storage.metadata.certain_records.put_certain", lost)
    with pytest.raises(OutcomeUnknown):
        await namespaces.set_policy(namespace=NAME, policy=BOUND, value=3)
    assert bench.told == []
    monkeypatch.setattr("magnetar.storage.metadata.certain_records.put_certain", certain_writes.put_certain)
    await namespaces.set_policy(namespace=NAME, policy="max_consumers_per_topic", value=4)
    assert [one.policies for one in bench.told] == [{BOUND: 3, "max_consumers_per_topic": 4}]


async def test_a_record_that_cannot_be_read_is_named(bench: Bench) -> None:
    await bench.store.put(metadata_keys.namespace("public/bad"), b"\xc1", None)
    with pytest.raises(MetadataError, match="namespaces/public/bad cannot be read"):
        await bench.open()


async def test_pages_list_namespaces_with_policies_in_order(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.actors.coordinator.topic_policies.PAGE", 2)
    registry = TopicRegistry(bench.env, bench.namespaces._store, Settings(), bench.namespaces)
    topics = TopicPolicies(bench.env, bench.namespaces._store, Settings(), registry, bench.told.append)
    for number in (4, 1, 3, 2, 5):
        await bench.namespaces.create_namespace(
            namespace=f"public/n{number}", policies={BOUND: number} if number != 3 else {}
        )
    page, names = policy_page(bench.namespaces, topics, ""), []
    while True:
        names += [one.namespace for one in page.items]
        if not page.more:
            break
        page = policy_page(bench.namespaces, topics, names[-1])
    assert names == ["public/n1", "public/n2", "public/n4", "public/n5"]
