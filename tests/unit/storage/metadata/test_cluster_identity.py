"""The format of a store, and how an older one is brought to it."""

import pytest

from magnetar.protocol.errors import ClusterError, FormatTooNew, MetadataError
from magnetar.protocol.slots import SLOTS_DEFAULT
from magnetar.storage.metadata import cluster_identity, keys
from magnetar.storage.metadata.cluster_identity import METADATA_FORMAT, convert, create_cluster, read_cluster_id
from magnetar.storage.metadata.store import list_all, pack, unpack
from support.stores.memory_store import MemoryMetadataStore


async def old_store(assignments: int) -> MemoryMetadataStore:
    store = MemoryMetadataStore()
    await store.put(keys.CLUSTER, pack({"id": "c", "created_ms": 1}), None)
    await store.put(keys.topic("persistent/public/default/t"), b"stays", None)
    for number in range(assignments):
        await store.put(f"{keys.ASSIGNMENTS_PREFIX}persistent/public/default/t{number}", b"goes", None)
    return store


@pytest.mark.parametrize("assignments", [0, 1, 7])
async def test_an_old_store_loses_its_assignments_and_nothing_else(
    assignments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_identity, "RECORDS_PER_TRANSACTION", 3)
    store = await old_store(assignments)
    assert await convert(store) == SLOTS_DEFAULT
    assert [key for key, _ in await list_all(store, "")] == ["cluster", "topics/persistent/public/default/t"]
    record = await store.get(keys.CLUSTER)
    assert record is not None
    assert unpack(record.value) == {"id": "c", "created_ms": 1, "format": METADATA_FORMAT, "slots": SLOTS_DEFAULT}
    assert await convert(store) == SLOTS_DEFAULT
    assert await store.get(keys.CLUSTER) == record, "a store of this format is not written again"


async def test_what_a_crash_left_of_a_conversion_goes_with_the_next_start() -> None:
    store = await old_store(2)
    record = await store.get(keys.CLUSTER)
    assert record is not None
    await store.put(keys.CLUSTER, pack({"id": "c", "format": METADATA_FORMAT, "slots": 64}), record.version)
    assert await convert(store) == 64
    assert await list_all(store, keys.ASSIGNMENTS_PREFIX) == []


async def test_a_new_cluster_has_this_format_and_its_slots() -> None:
    store = MemoryMetadataStore()
    with pytest.raises(ClusterError):
        await convert(store)
    await create_cluster(store, "c", 0, slots=128)
    assert (await convert(store), await read_cluster_id(store)) == (128, "c")


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"format": METADATA_FORMAT + 1}, FormatTooNew), ({"slots": 100}, MetadataError), ({"slots": "x"}, MetadataError)],
)
async def test_a_store_that_makes_no_sense_is_left_as_it_is(fields: dict[str, object], error: type[Exception]) -> None:
    store = await old_store(1)
    record = await store.get(keys.CLUSTER)
    assert record is not None
    await store.put(keys.CLUSTER, pack({"id": "c", **fields}), record.version)
    before = await list_all(store, "")
    with pytest.raises(error):
        await convert(store)
    assert await list_all(store, "") == before
