"""Policies of topics in the coordinator: changes whose outcome the store did not tell, and topics that are deleted."""

from collections.abc import AsyncIterator

import pytest

from magnetar.actors.coordinator.namespaces import Namespaces
from magnetar.actors.coordinator.topic_policies import TopicPolicies
from magnetar.actors.coordinator.topic_registry import TopicRegistry
from magnetar.actors.members.contracts_coordinator import NamespacePolicies
from magnetar.actors.policies.record import NamespaceRecord
from magnetar.protocol.errors import (
    BadVersion,
    MetadataError,
    NotAllowedError,
    OutcomeUnknown,
    ServiceUnitNotReady,
    TopicNotFound,
)
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import certain_records, certain_writes
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import take_office
from magnetar.storage.metadata.store import Versioned
from support.fakes.bookies import until
from support.stores.memory_store import MemoryMetadataStore
from support.stores.silent_store import SilentStore

TOPIC = TopicName.parse("persistent://public/default/own")
KEY = metadata_keys.topic_policies(TOPIC.path)
BOUND = "max_producers_per_topic"
OTHER = "max_consumers_per_topic"
BOTH = pytest.mark.parametrize("landed", [True, False], ids=["stored", "not stored"])


class Bench:
    """The policies of topics of one coordinator over a store that falls silent, and what they told."""

    def __init__(self, env: Environment, store: SilentStore) -> None:
        self.store = store
        self.told: list[NamespacePolicies] = []
        self._env = env

    async def open(self) -> TopicPolicies:
        office = await take_office(self.store)
        namespaces = Namespaces(self._env, office, Settings(), lambda change: None)
        await namespaces.start()
        self.registry = TopicRegistry(self._env, office, Settings(), namespaces)
        await self.registry.start()
        self.policies = TopicPolicies(self._env, office, Settings(), self.registry, self.told.append)
        await self.policies.start()
        return self.policies

    async def doubt(self, value: object = 3) -> None:
        """A change is in doubt, and the store answers again."""
        self.store.silent = True
        with pytest.raises(OutcomeUnknown):
            await self.policies.set_topic_policy(topic=TOPIC.full, policy=BOUND, value=value)
        self.store.silent = False

    async def stored(self) -> Versioned | None:
        return await MemoryMetadataStore(self.store.records).get(KEY)

    async def settled(self) -> None:
        """No change is in doubt, and the copy is what is stored."""
        await until(lambda: not self.policies._stored.in_doubt())
        stored, row = await self.stored(), (await self.policies.topic_policies(topic=TOPIC.full))
        if stored is None:
            assert (row.version, row.policies) == (-1, {})
        else:
            assert (row.version, row.policies) == (stored.version, NamespaceRecord.unpack(stored.value).policies)
            assert self.told[-1] == row


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(certain_records, "SETTLE_INITIAL_S", 0.005)
    monkeypatch.setattr(certain_writes, "SETTLE_LIMIT_S", 0.01)
    monkeypatch.setitem(certain_writes.put_certain.__kwdefaults__, "settle_limit_s", 0.01)
    env = Environment.real(1)
    store = SilentStore()
    await create_cluster(store, "c", 0)
    found = Bench(env, store)
    await found.open()
    await found.registry.create(TOPIC, 0)
    yield found
    await found.policies.close()
    env.close()


@BOTH
async def test_the_first_policy_of_a_topic_in_doubt_is_stored_in_the_end(bench: Bench, landed: bool) -> None:
    bench.store.landed, bench.store.away = landed, 3
    await bench.doubt()
    assert bench.told == []
    await bench.settled()
    assert bench.store.away == 0 and [one.policies for one in bench.told] == [{BOUND: 3}]


@BOTH
async def test_a_later_change_in_doubt_is_found_out_and_told(bench: Bench, landed: bool) -> None:
    await bench.policies.set_topic_policy(topic=TOPIC.full, policy=BOUND, value=2)
    before = await bench.stored()
    assert before is not None
    bench.store.landed = landed
    await bench.doubt()
    await bench.settled()
    assert (await bench.policies.topic_policies(topic=TOPIC.full)).policies == {BOUND: 3 if landed else 2}
    with pytest.raises(BadVersion):  # what was lost on the way cannot arrive any longer
        await bench.store.put(KEY, before.value, before.version)


@BOTH
async def test_the_next_change_of_the_topic_settles_one_in_doubt(bench: Bench, landed: bool) -> None:
    await bench.policies.set_topic_policy(topic=TOPIC.full, policy=BOUND, value=2)
    bench.store.landed = landed
    await bench.doubt()
    await bench.policies.set_topic_policy(topic=TOPIC.full, policy=OTHER, value=4)
    assert bench.told[-1].policies == {BOUND: 3 if landed else 2, OTHER: 4}
    told = list(bench.told)
    await bench.settled()
    assert bench.told == told


@BOTH
async def test_a_topic_that_is_deleted_while_in_doubt_leaves_no_policies(bench: Bench, landed: bool) -> None:
    bench.store.landed, bench.store.away = landed, 1_000_000
    await bench.doubt()
    bench.store.away = 0
    await bench.registry.mark_deleting(TOPIC)
    with pytest.raises(ServiceUnitNotReady):
        await bench.policies.set_topic_policy(topic=TOPIC.full, policy=OTHER, value=4)
    await bench.policies.delete(TOPIC)
    assert await bench.stored() is None
    await until(lambda: not bench.policies._stored.in_doubt())
    assert await bench.stored() is None and bench.policies.with_policies("") == []


@BOTH
async def test_a_coordinator_that_was_replaced_gives_up_its_doubts(bench: Bench, landed: bool) -> None:
    old = bench.policies
    bench.store.landed, bench.store.away = landed, 0
    await bench.doubt()
    await bench.open()
    settler = old._stored.settler
    assert settler is not None
    await until(settler.done)
    assert settler.exception() is None
    assert (await bench.policies.topic_policies(topic=TOPIC.full)).policies == ({BOUND: 3} if landed else {})


async def test_a_change_that_changes_nothing_is_neither_stored_nor_told(bench: Bench) -> None:
    await bench.policies.set_topic_policy(topic=TOPIC.full, policy=BOUND, value=None)
    assert await bench.stored() is None and bench.told == []
    await bench.policies.set_topic_policy(topic=TOPIC.full, policy=BOUND, value=2)
    before, told = await bench.stored(), list(bench.told)
    await bench.policies.set_topic_policy(topic=TOPIC.full, policy=BOUND, value=2)
    assert await bench.stored() == before and bench.told == told


async def test_a_partition_and_a_topic_that_is_missing_have_no_policies(bench: Bench) -> None:
    parts = TopicName.parse("persistent://public/default/parts")
    await bench.registry.create(parts, 2)
    with pytest.raises(NotAllowedError):
        await bench.policies.set_topic_policy(topic=parts.partition_name(0), policy=BOUND, value=2)
    with pytest.raises(TopicNotFound):
        await bench.policies.set_topic_policy(topic="persistent://public/default/none", policy=BOUND, value=2)
    with pytest.raises(TopicNotFound):
        await bench.policies.topic_policies(topic="persistent://public/default/none")


async def test_a_record_that_cannot_be_read_keeps_the_coordinator_from_office(bench: Bench) -> None:
    await bench.store.put(KEY, b"nonsense", None)
    with pytest.raises(MetadataError, match="topic"):
        await bench.open()
