"""The coordinator's lease: when its deputy takes it for lapsed."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.actors.processes import lease
from magnetar.actors.processes.lease import LAPSED_READS, LapseWatch, renew_lease, wait_lapsed
from magnetar.protocol.errors import MetadataUnavailable
from magnetar.storage.metadata import keys
from magnetar.storage.metadata.epoch_guard import EpochMetadataStore, raise_epoch
from magnetar.storage.metadata.store import pack
from support.stores.memory_store import MemoryMetadataStore


class FakeOffice:
    """What `renew_lease` needs of an office."""

    def __init__(self, store: EpochMetadataStore) -> None:
        self.active = True
        self.store = store
        self.epoch = store.epoch


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEWED_EVERY_S", 0.005)


@pytest.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    made = MemoryMetadataStore()
    await made.put(keys.COORDINATOR_EPOCH, pack({"epoch": 0}), None)
    yield made
    await made.close()


def test_a_lease_lapses_when_reads_in_a_row_find_it_unchanged() -> None:
    watch = LapseWatch()
    assert [watch.read(7) for _ in range(LAPSED_READS + 1)] == [False] * LAPSED_READS + [True]


def test_a_lease_that_is_renewed_in_between_does_not_lapse() -> None:
    watch = LapseWatch()
    versions = [version for version in range(20) for _ in range(LAPSED_READS)]
    assert not any(watch.read(version) for version in versions)


def test_reads_that_fail_begin_the_count_again() -> None:
    watch = LapseWatch()
    for _ in range(LAPSED_READS):
        assert not watch.read(7)
    watch.failed()
    assert [watch.read(7) for _ in range(LAPSED_READS + 1)] == [False] * LAPSED_READS + [True]


@pytest.mark.promise("30.13")
async def test_a_deputy_waits_while_the_coordinator_renews_and_goes_on_when_it_stops(
    store: MemoryMetadataStore,
) -> None:
    office = FakeOffice(await raise_epoch(store))
    renewing = asyncio.create_task(renew_lease(office))  # type: ignore[arg-type]
    waiting = asyncio.create_task(wait_lapsed(store))
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    assert (await store.get(keys.COORDINATOR_LEASE)) is not None
    office.active = False
    await renewing
    async with asyncio.timeout(5):
        await waiting


async def test_a_coordinator_that_was_superseded_renews_nothing(store: MemoryMetadataStore) -> None:
    office = FakeOffice(await raise_epoch(store))
    renewing = asyncio.create_task(renew_lease(office))  # type: ignore[arg-type]
    await raise_epoch(store)
    async with asyncio.timeout(5):
        while not office.store.superseded:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await wait_lapsed(store)
    renewing.cancel()


async def test_a_database_that_is_away_is_no_lapse(store: MemoryMetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(key: str) -> None:
        raise MetadataUnavailable("away")

    real = store.get
    monkeypatch.setattr(store, "get", away)
    waiting = asyncio.create_task(wait_lapsed(store))
    done, _ = await asyncio.wait({waiting}, timeout=0.2)
    assert not done
    monkeypatch.setattr(store, "get", real)
    async with asyncio.timeout(5):
        await waiting
