"""Changes of namespaces whose outcome the store did not tell: the coordinator finds out, and brokers hear of it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.actors.coordinator.namespaces import Namespaces
from magnetar.actors.members.contracts_coordinator import NamespacePolicies
from magnetar.protocol.errors import BadVersion, NoSuchKey, NotAllowedError, OutcomeUnknown
from magnetar.runtime.environment import Environment
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata import certain_records, certain_writes
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import take_office
from magnetar.storage.metadata.store import Guard, Versioned, Write, WriteResult, unpack
from support.fakes.bookies import until
from support.stores.memory_store import MemoryMetadataStore
from support.stores.silent_store import SilentStore

NAME = "public/default"
BOUND = "max_producers_per_topic"
KEY = metadata_keys.namespace(NAME)

pytestmark = pytest.mark.parametrize("landed", [True, False], ids=["stored", "not stored"])


class Bench:
    """Namespaces of one coordinator over a store that falls silent, and what they told."""

    def __init__(self, env: Environment, store: SilentStore) -> None:
        self.store = store
        self.told: list[NamespacePolicies] = []
        self._env = env

    async def open(self) -> Namespaces:
        self.namespaces = Namespaces(self._env, await take_office(self.store), Settings(), self.told.append)
        await self.namespaces.start()
        return self.namespaces

    async def stored(self) -> Versioned | None:
        return await MemoryMetadataStore(self.store.records).get(KEY)

    async def settled(self) -> None:
        await until(lambda: not self.namespaces._stored.in_doubt())
        stored = await self.stored()
        if stored is None:
            assert not self.namespaces.exists(NAME)
        else:
            assert await self.namespaces.namespace(namespace=NAME) == self.told[-1]
            assert self.told[-1].version == stored.version

    def last_told(self) -> dict[str, object] | None:
        return self.told[-1].policies


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
    await found.namespaces.close()
    env.close()


async def test_a_policy_in_doubt_is_told_without_another_change(bench: Bench, landed: bool) -> None:
    bench.store.silent, bench.store.away = True, 3
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.set_policy(namespace=NAME, policy=BOUND, value=3)
    assert bench.told == []
    bench.store.silent = False
    await bench.settled()
    assert bench.store.away == 0 and bench.last_told() == ({BOUND: 3} if landed else {})


async def test_a_change_in_doubt_cannot_be_stored_after_it_was_settled(bench: Bench, landed: bool) -> None:
    before = await bench.stored()
    assert before is not None
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.set_policy(namespace=NAME, policy=BOUND, value=3)
    bench.store.silent = False
    await bench.settled()
    with pytest.raises(BadVersion):
        await bench.store.put(KEY, before.value, before.version)


async def test_a_namespace_whose_creation_is_in_doubt_exists_in_the_end(bench: Bench, landed: bool) -> None:
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.create_namespace(namespace="public/new", policies={BOUND: 2})
    assert not bench.namespaces.exists("public/new")
    with pytest.raises(NotAllowedError):
        await bench.namespaces.delete_tenant("public")
    bench.store.silent = False
    await until(lambda: bench.namespaces.exists("public/new"))
    assert [(one.namespace, one.policies) for one in bench.told] == [("public/new", {BOUND: 2})]
    assert await bench.store.get(metadata_keys.namespace("public/new")) is not None


async def test_a_namespace_whose_deletion_is_in_doubt_takes_no_topics_until_then(bench: Bench, landed: bool) -> None:
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.delete(NAME, lambda name: False)
    assert not bench.namespaces.exists(NAME)
    bench.store.silent = False
    await bench.settled()
    assert bench.namespaces.exists(NAME) is not landed
    assert bench.last_told() == (None if landed else {})


async def test_a_change_whose_caller_goes_away_is_told(bench: Bench, landed: bool) -> None:
    real = MemoryMetadataStore.write_many

    async def slow(store: MemoryMetadataStore, writes: list[Write], guard: Guard | None = None) -> list[WriteResult]:
        del bench.store.write_many  # only this write is slow
        if landed:
            await real(store, writes, guard)
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    bench.store.write_many = slow.__get__(bench.store)  # type: ignore[method-assign]
    caller = asyncio.create_task(bench.namespaces.set_policy(namespace=NAME, policy=BOUND, value=3))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await bench.settled()
    assert bench.last_told() == ({BOUND: 3} if landed else {})


async def test_the_next_change_settles_one_in_doubt_itself(bench: Bench, landed: bool) -> None:
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.set_policy(namespace=NAME, policy=BOUND, value=3)
    bench.store.silent = False
    await bench.namespaces.set_policy(namespace=NAME, policy="max_consumers_per_topic", value=4)
    assert bench.last_told() == {**({BOUND: 3} if landed else {}), "max_consumers_per_topic": 4}
    told = list(bench.told)
    await bench.settled()
    assert bench.told == told


async def test_a_coordinator_that_was_replaced_gives_up_its_doubts(bench: Bench, landed: bool) -> None:
    old = bench.namespaces
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await old.set_policy(namespace=NAME, policy=BOUND, value=3)
    bench.store.silent = False
    await bench.open()
    stored = await bench.stored()
    settler = old._stored.settler
    assert settler is not None
    await until(settler.done)
    assert settler.exception() is None and await bench.stored() == stored
    assert (await bench.namespaces.namespace(namespace=NAME)).policies == ({BOUND: 3} if landed else {})


async def test_a_coordinator_that_ends_ends_its_doubts(bench: Bench, landed: bool) -> None:
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.set_policy(namespace=NAME, policy=BOUND, value=3)
    settler = bench.namespaces._stored.settler
    assert settler is not None
    await bench.namespaces.close()
    assert settler.cancelled() and bench.told == []


# -- tenants -----------------------------------------------------------------------------------------------------------

ACME = metadata_keys.tenant("acme")


async def tenant_settled(bench: Bench) -> None:
    tenants = bench.namespaces.tenants
    await until(lambda: not tenants.stored.in_doubt())
    stored = await MemoryMetadataStore(bench.store.records).get(ACME)
    assert ("acme" in await tenants.tenants()) is (stored is not None)
    if stored is not None:
        assert tenants._records["acme"] == (unpack(stored.value), stored.version)


async def test_a_tenant_whose_creation_is_in_doubt_exists_in_the_end(bench: Bench, landed: bool) -> None:
    bench.store.silent, bench.store.away = True, 3
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.tenants.put_tenant(tenant="acme", record={"adminRoles": ["a"]}, create=True)
    assert await bench.namespaces.tenants.tenants() == ["public"]
    bench.store.silent = False
    await tenant_settled(bench)
    assert (await bench.namespaces.tenants.tenant(tenant="acme"))["adminRoles"] == ["a"]
    await bench.namespaces.create_namespace(namespace="acme/n", policies={})


async def test_a_change_of_a_tenant_in_doubt_is_found_out_and_cannot_come_later(bench: Bench, landed: bool) -> None:
    await bench.namespaces.tenants.put_tenant(tenant="acme", record={"adminRoles": ["a"]}, create=True)
    before = await bench.store.get(ACME)
    assert before is not None
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.tenants.put_tenant(tenant="acme", record={"adminRoles": ["b"]}, create=False)
    bench.store.silent = False
    await tenant_settled(bench)
    assert (await bench.namespaces.tenants.tenant(tenant="acme"))["adminRoles"] == (["b"] if landed else ["a"])
    with pytest.raises(BadVersion):
        await bench.store.put(ACME, before.value, before.version)


async def test_a_tenant_can_be_changed_again_after_an_answer_was_lost(bench: Bench, landed: bool) -> None:
    await bench.namespaces.tenants.put_tenant(tenant="acme", record={"adminRoles": ["a"]}, create=True)
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.tenants.put_tenant(tenant="acme", record={"allowedClusters": ["b"]}, create=False)
    bench.store.silent = False
    await bench.namespaces.tenants.put_tenant(tenant="acme", record={"adminRoles": ["c"]}, create=False)
    found = await bench.namespaces.tenants.tenant(tenant="acme")
    assert found["adminRoles"] == ["c"] and ("allowedClusters" in found) is landed
    await tenant_settled(bench)


async def test_a_tenant_whose_deletion_is_in_doubt_takes_no_namespaces_until_then(bench: Bench, landed: bool) -> None:
    await bench.namespaces.tenants.put_tenant(tenant="acme", record={}, create=True)
    bench.store.silent = True
    with pytest.raises(OutcomeUnknown):
        await bench.namespaces.delete_tenant("acme")
    with pytest.raises(NoSuchKey):
        await bench.namespaces.create_namespace(namespace="acme/n", policies={})
    bench.store.silent = False
    await tenant_settled(bench)
    assert ("acme" in await bench.namespaces.tenants.tenants()) is not landed
    if not landed:
        await bench.namespaces.create_namespace(namespace="acme/n", policies={})
