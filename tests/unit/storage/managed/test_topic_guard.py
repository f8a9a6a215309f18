"""Opening a topic under the version of its own record: what was deleted stays deleted, whoever slept through it."""

import asyncio

import pytest

from magnetar.protocol.errors import ConditionFailed, StaleEpoch
from magnetar.storage.managed.deletion import delete_managed_ledger
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import Guard, pack
from support.fakes.bookies import Adds, FakeCluster

NAME = "persistent/public/default/t"
TOPIC = metadata_keys.topic(NAME)


async def create(cluster: FakeCluster) -> Guard:
    return Guard(TOPIC, await cluster.metadata.put(TOPIC, pack({"partitions": 0}), None))


async def mark(cluster: FakeCluster, guard: Guard) -> Guard:
    return Guard(TOPIC, await cluster.metadata.put(TOPIC, pack({"partitions": 0, "deleting": True}), guard.version))


async def open_topic(cluster: FakeCluster, epoch: int, guard: Guard) -> ManagedLedger:
    return await ManagedLedger.open(
        cluster.env, cluster.new_ledgers(), cluster.metadata, NAME, epoch, cluster.settings, assignment_key=guard
    )


async def delete(cluster: FakeCluster, epoch: int, guard: Guard) -> None:
    """The whole deletion of a marked topic."""
    await delete_managed_ledger(cluster.env, cluster.new_ledgers(), cluster.metadata, NAME, epoch)
    await cluster.metadata.delete(TOPIC, guard.version)


async def test_it_opens_while_the_record_is_the_one_that_was_named(cluster: FakeCluster) -> None:
    guard = await create(cluster)
    first = await open_topic(cluster, 1, guard)
    adds = Adds()
    first.append(b"one", adds.callback)
    await adds.wait(1)
    second = await open_topic(cluster, 2, guard)
    assert second.last_confirmed == adds.positions[0]
    await second.close()


@pytest.mark.parametrize("state", ["marked", "deleted", "created again"])
async def test_it_does_not_open_when_the_record_has_changed(cluster: FakeCluster, state: str) -> None:
    guard = await create(cluster)
    marked = await mark(cluster, guard)
    if state != "marked":
        await cluster.metadata.delete(TOPIC, marked.version)
    if state == "created again":
        await create(cluster)
    with pytest.raises(ConditionFailed):
        await open_topic(cluster, 1, guard)
    assert await cluster.metadata.get(metadata_keys.managed_ledger(NAME)) is None


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "created again"])
async def test_an_owner_that_sleeps_in_the_middle_of_opening_brings_nothing_back(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    guard = await create(cluster)
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
    await delete(cluster, 2, await mark(cluster, guard))
    if again:
        await create(cluster)
    go_on.set()
    with pytest.raises(ConditionFailed):
        await sleeper
    assert await cluster.metadata.get(metadata_keys.managed_ledger(NAME)) is None


async def test_a_late_deletion_spares_the_topic_that_was_created_since(cluster: FakeCluster) -> None:
    """Its owner opens it under the epoch of its creation, which is greater than that of the deletion."""
    guard = await create(cluster)
    slot_epoch, deletion, created = 1, 2, 4
    await (await open_topic(cluster, slot_epoch, guard)).close()
    await delete(cluster, 3, await mark(cluster, guard))
    managed = await open_topic(cluster, max(slot_epoch, created), await create(cluster))
    with pytest.raises(StaleEpoch):
        await delete_managed_ledger(cluster.env, cluster.new_ledgers(), cluster.metadata, NAME, deletion)
    await managed.open_cursor("s", "earliest")
    await managed.close()


async def test_creating_and_loading_cost_as_many_operations_as_with_an_assignment(cluster: FakeCluster) -> None:
    guard = await create(cluster)
    calls: list[str] = []
    for name in ("get", "get_many", "list", "put", "write_many"):
        real = getattr(cluster.metadata, name)

        def counted(*arguments, real=real, name=name, **options):  # type: ignore[no-untyped-def]
            calls.append(name)
            return real(*arguments, **options)

        setattr(cluster.metadata, name, counted)
    managed = await open_topic(cluster, 1, guard)
    assert calls == ["get_many", "write_many"]
    await managed.close()
