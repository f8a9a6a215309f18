"""Changes of topics' records whose outcome the store did not tell: what is known is what is stored, in the end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.actors.coordinator.namespaces import Namespaces
from magnetar.actors.coordinator.topic_registry import TopicRegistry
from magnetar.protocol.errors import BadVersion, NotAllowedError, OutcomeUnknown, ServiceUnitNotReady, TopicNotFound
from magnetar.protocol.topics import TopicName
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import certain_records, certain_writes
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import take_office
from magnetar.storage.metadata.store import Versioned, unpack
from support.fakes.bookies import until
from support.stores.memory_store import MemoryMetadataStore
from support.stores.silent_store import SilentStore

TOPIC = TopicName.parse("persistent://public/default/t")
KEY = metadata_keys.topic(TOPIC.path)

pytestmark = pytest.mark.parametrize("landed", [True, False], ids=["stored", "not stored"])


class Bench:
    """The topics of one coordinator over a store that falls silent."""

    def __init__(self, env: Environment, store: SilentStore) -> None:
        self.store = store
        self.told: list[tuple[int | None, int | None]] = []
        self._env = env

    async def open(self) -> TopicRegistry:
        office = await take_office(self.store)
        self.namespaces = Namespaces(self._env, office, Settings(), lambda change: None)
        await self.namespaces.start()
        self.registry = TopicRegistry(self._env, office, Settings(), self.namespaces)
        self.registry.on_changed.append(lambda topic, before, now: self.told.append((before, now)))
        await self.registry.start()
        return self.registry

    async def stored(self) -> Versioned | None:
        return await MemoryMetadataStore(self.store.records).get(KEY)

    async def agree(self) -> None:
        """Wait until nothing is in doubt. The copy is what is stored."""
        await until(lambda: not self.registry._stored.in_doubt())
        stored, guard = await self.stored(), self.registry._versions.get(TOPIC.full)
        assert guard == (None if stored is None else stored.version)
        known = self.registry.find(TOPIC)
        assert known == (None if stored is None else unpack(stored.value)["partitions"])

    async def close(self) -> None:
        await self.registry.close()
        await self.namespaces.close()


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch, landed: bool) -> AsyncIterator[Bench]:
    monkeypatch.setattr(certain_records, "SETTLE_INITIAL_S", 0.005)
    monkeypatch.setattr(certain_writes, "SETTLE_LIMIT_S", 0.01)
    monkeypatch.setitem(certain_writes.put_certain.__kwdefaults__, "settle_limit_s", 0.01)
    env = Environment.real(1)
    store = SilentStore()
    store.landed = landed
    await create_cluster(store, "c", 0)
    found = Bench(env, store)
    await found.open()
    yield found
    await found.close()
    env.close()


async def test_a_topic_whose_creation_is_in_doubt_exists_in_the_end(bench: Bench, landed: bool) -> None:
    bench.store.silent, bench.store.away = True, 3
    with pytest.raises(OutcomeUnknown):
        await bench.registry.create(TOPIC, 2)
    for question in (
        bench.registry.create(TOPIC, 2),
        bench.registry.partitions(topic=TOPIC.full, create=False),
        bench.registry.check_assignable(TOPIC.partition_topic(0), create=False),
    ):
        with pytest.raises(ServiceUnitNotReady):
            await question
    with pytest.raises(NotAllowedError):
        await bench.namespaces.delete("public/default", bench.registry.names_in)
    bench.store.silent = False
    await bench.agree()
    assert bench.registry.find(TOPIC) == 2 and bench.told == [(None, 2)]


async def test_new_properties_in_doubt_leave_a_topic_that_can_be_opened(bench: Bench, landed: bool) -> None:
    await bench.registry.create(TOPIC, 0)
    before = await bench.stored()
    assert before is not None
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.registry.change_properties(TOPIC, lambda known: {"a": "b"})
    bench.store.silent = False
    await bench.agree()
    stored = await bench.stored()
    assert stored is not None and unpack(stored.value).get("properties") == ({"a": "b"} if landed else None)
    with pytest.raises(BadVersion):  # it cannot be stored later
        await bench.store.put(KEY, before.value, before.version)


@pytest.mark.parametrize("end", [False, True], ids=["begin", "end"])
async def test_a_growth_in_doubt_is_known_in_the_end(bench: Bench, landed: bool, end: bool) -> None:
    await bench.registry.create(TOPIC, 2)
    growing: list[TopicName] = []
    bench.registry.on_growing = growing.append
    if end:
        await bench.registry.begin_growth(TOPIC, 4)
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await (bench.registry.end_growth(TOPIC, 4) if end else bench.registry.begin_growth(TOPIC, 4))
    bench.store.silent = False
    await bench.agree()
    assert bench.registry.find(TOPIC) == (4 if end and landed else 2)
    assert bool(bench.registry.growing()) is (landed is not end)
    assert bench.registry._counts == {"public/default": 4 if landed or end else 2}
    assert growing == ([TOPIC] if landed or end else []) or set(growing) == {TOPIC}


async def test_a_deletion_in_doubt_ends_with_the_try_that_is_certain(bench: Bench, landed: bool) -> None:
    """The settler leaves the topic alone: a new one of that name must not get the mark of the next try."""
    await bench.registry.create(TOPIC, 0)
    await bench.registry.mark_deleting(TOPIC)
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.registry.delete(TOPIC)
    bench.store.silent = False
    await until(lambda: not bench.registry._stored.in_doubt())
    assert TOPIC.full in bench.registry.deleting
    with pytest.raises(ServiceUnitNotReady):
        await bench.registry.create(TOPIC, 0)
    await bench.registry.mark_deleting(TOPIC)
    await bench.registry.delete(TOPIC)
    await bench.agree()
    with pytest.raises(TopicNotFound):
        bench.registry.members(TOPIC)
    await bench.registry.create(TOPIC, 3)
    await bench.agree()


async def test_a_mark_in_doubt_does_not_keep_the_deletion_from_its_end(bench: Bench, landed: bool) -> None:
    await bench.registry.create(TOPIC, 1)
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.registry.mark_deleting(TOPIC)
    bench.store.silent = False
    await bench.agree()
    assert TOPIC.full in bench.registry.deleting
    await bench.registry.mark_deleting(TOPIC)
    await bench.registry.delete(TOPIC)
    await bench.agree()
    assert bench.told == [(None, 1), (1, None)]


async def test_changes_of_one_topic_wait_for_each_other(bench: Bench, landed: bool) -> None:
    await bench.registry.create(TOPIC, 1)
    changes = [bench.registry.change_properties(TOPIC, lambda known, n=n: {**known, str(n): ""}) for n in range(20)]
    await asyncio.gather(*changes)
    await bench.agree()
    stored = await bench.stored()
    assert stored is not None and len(unpack(stored.value)["properties"]) == 20
    assert len(bench.registry._changing) == 0
