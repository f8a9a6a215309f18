"""Opening a topic under the version of its own record: what was deleted stays deleted, whoever slept through it."""

import asyncio

import pytest

from magnetar.protocol.errors import ConditionFailed, StaleEpoch
from magnetar.storage.metadata import keys as metadata_keys
from support.fakes.bookies import Adds, FakeCluster
from support.stores.owned_topic import NAME, TOPIC, create_topic, delete_data, delete_topic, mark_topic, open_topic


async def test_it_opens_while_the_record_is_the_one_that_was_named(cluster: FakeCluster) -> None:
    guard = await create_topic(cluster)
    first = await open_topic(cluster, 1, guard)
    adds = Adds()
    first.append(b"one", adds.callback)
    await adds.wait(1)
    second = await open_topic(cluster, 2, guard)
    assert second.last_confirmed == adds.positions[0]
    await second.close()


@pytest.mark.parametrize("state", ["marked", "deleted", "created again"])
async def test_it_does_not_open_when_the_record_has_changed(cluster: FakeCluster, state: str) -> None:
    guard = await create_topic(cluster)
    marked = await mark_topic(cluster, guard)
    if state != "marked":
        await cluster.metadata.delete(TOPIC, marked.version)
    if state == "created again":
        await create_topic(cluster)
    with pytest.raises(ConditionFailed):
        await open_topic(cluster, 1, guard)
    assert await cluster.metadata.get(metadata_keys.managed_ledger(NAME)) is None


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
async def test_an_owner_that_sleeps_in_the_middle_of_opening_brings_nothing_back(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    guard = await create_topic(cluster)
    get_many, looked, go_on = cluster.metadata.get_many, asyncio.Event(), asyncio.Event()

    async def slow(keys):  # type: ignore[no-untyped-def]
        found = await get_many(keys)
        if not looked.is_set():
            looked.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(cluster.metadata, "get_many", slow)
    sleeper = asyncio.create_task(open_topic(cluster, 1, guard))
    await looked.wait()
    await delete_topic(cluster, 2, guard)
    if again:
        await create_topic(cluster)
    go_on.set()
    with pytest.raises(ConditionFailed):
        await sleeper
    assert await cluster.metadata.get(metadata_keys.managed_ledger(NAME)) is None


async def test_a_late_deletion_spares_the_topic_that_was_created_since(cluster: FakeCluster) -> None:
    """Its owner opens it under the epoch of its creation, which is greater than that of the deletion."""
    guard = await create_topic(cluster)
    slot_epoch, deletion, created = 1, 2, 4
    await (await open_topic(cluster, slot_epoch, guard)).close()
    await delete_topic(cluster, 3, guard)
    managed = await open_topic(cluster, max(slot_epoch, created), await create_topic(cluster))
    with pytest.raises(StaleEpoch):
        await delete_data(cluster, deletion)
    await managed.open_cursor("s", "earliest")
    await managed.close()
