"""The coordinator's office: whole, or not there; nothing of it is left behind by a start that failed."""

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.actors.coordinator.office import Office
from magnetar.actors.coordinator.service import CoordinatorService
from magnetar.protocol.errors import KeyExists, MetadataUnavailable, ServiceUnitNotReady
from magnetar.runtime.environment import Environment
from magnetar.runtime.rpc.keys import RootKeys
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.metadata.cluster_identity import create_cluster
from magnetar.storage.metadata.epoch_guard import EpochMetadataStore, take_office
from magnetar.storage.metadata.store import Versioned
from support.stores.memory_store import MemoryMetadataStore

KEYS = RootKeys(b"office test secret")


@pytest.fixture
async def store() -> MemoryMetadataStore:
    made = MemoryMetadataStore()
    await create_cluster(made, "c", 0)
    return made


def service(env: Environment, store: MemoryMetadataStore, port: int = 0) -> CoordinatorService:
    return CoordinatorService(env, store, "c", KEYS, Settings(), "127.0.0.1", port, "")


def running() -> set[str]:
    """Names of all tasks but that of the test."""
    return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}


async def test_a_service_that_has_not_started_has_no_office(env: Environment, store: MemoryMetadataStore) -> None:
    coordinator = service(env, store)
    for ask in (lambda: coordinator.office, lambda: coordinator.address):
        with pytest.raises(ServiceUnitNotReady):
            ask()
    with pytest.raises(ServiceUnitNotReady):
        await coordinator.status()
    assert coordinator.handler("status") is None
    await coordinator.close()
    await coordinator.wait_ended()


async def test_a_start_on_a_taken_port_leaves_no_tasks_and_no_office(
    env: Environment, store: MemoryMetadataStore
) -> None:
    taken = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    before = running()
    coordinator = service(env, store, taken.sockets[0].getsockname()[1])
    with pytest.raises(OSError, match="address already in use"):
        await coordinator.start()
    assert running() == before
    with pytest.raises(ServiceUnitNotReady):
        _ = coordinator.office
    taken.close()
    await taken.wait_closed()
    await coordinator.start()
    assert coordinator.office.epoch == 2 and coordinator.office.active
    await coordinator.close()
    assert not coordinator.office.active and running() == before


async def test_a_store_that_fails_while_records_are_read_leaves_no_tasks(
    env: Environment, store: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = running()

    async def fail(self: object, prefix: str, *, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        raise MetadataUnavailable("the database is away")

    monkeypatch.setattr(MemoryMetadataStore, "list", fail)
    with pytest.raises(MetadataUnavailable, match="away"):
        await service(env, store).start()
    assert running() == before


async def test_a_coordinator_superseded_while_it_starts_ends_without_an_office(
    env: Environment, store: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = EpochMetadataStore.list

    async def usurp(self: EpochMetadataStore, prefix: str, *, after: str = "", limit: int = 1000) -> Sequence[object]:
        await take_office(store)
        await self.verify()
        return await listing(self, prefix, after=after, limit=limit)

    monkeypatch.setattr(EpochMetadataStore, "list", usurp)
    coordinator = service(env, store)
    with pytest.raises(MetadataUnavailable, match="superseded"):
        await coordinator.start()
    await asyncio.wait_for(coordinator.wait_ended(), 1)


async def test_the_objects_of_an_office_serve_its_contract_without_a_socket(
    env: Environment, store: MemoryMetadataStore
) -> None:
    office = await Office.open(env, store, "c", KEYS, Settings(), lambda: None)
    await office.registry.create_topic(topic="persistent://public/default/t", partitions=3)
    assert await office.namespaces.tenants.tenants() == ["public"]
    assert office.registry.topic_count == 1
    with pytest.raises(KeyExists):
        await office.registry.create_topic(topic="persistent://public/default/t", partitions=3)
    await office.close()
