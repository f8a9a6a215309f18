"""Ledgers that a cursor's record names beside that of its state."""

import asyncio
import contextlib
import gc

import pytest

from magnetar.protocol.errors import AlreadyClosed, LedgerFenced, MetadataUnavailable, StaleEpoch
from magnetar.storage.managed.cursor_storage import CursorRecord
from magnetar.storage.managed.deletion import delete_managed_ledger
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import list_all
from support.fakes.bookies import Adds

pytestmark = pytest.mark.cluster_settings(cursor_flush_interval_s=0.02)
NAME = "persistent/public/default/t"


def wanted():
    return True


def unwanted():
    return False


async def open_(cluster, epoch=1, ledgers=None):
    return await ManagedLedger.open(
        cluster.env, ledgers or cluster.ledgers, cluster.metadata, NAME, epoch, cluster.settings
    )


async def opened(cluster):
    managed = await open_(cluster)
    return managed, await managed.open_cursor("s", "earliest")


async def named(cluster):
    return CursorRecord.unpack((await cluster.metadata.get(metadata_keys.cursor(NAME, "s"))).value).beside


async def ledgers_in(cluster):
    return {
        metadata_keys.ledger_id_of(key) for key, _ in await list_all(cluster.metadata, metadata_keys.LEDGERS_PREFIX)
    }


def test_a_record_names_them_only_where_there_are_some():
    assert CursorRecord(3, 9, None).ledgers == (9,)
    record = CursorRecord(3, 9, None, beside=(11, 12))
    assert CursorRecord.unpack(record.pack()) == record and record.ledgers == (9, 11, 12)
    assert b"beside" not in CursorRecord(3, 9, None).pack()


async def test_what_was_added_is_closed_named_and_readable_by_the_next_owner(cluster):
    managed, cursor = await opened(cluster)
    first = await cursor.side.add([b"a", b"b"], wanted)
    second = await cursor.side.add([b"c"], wanted)
    adds = Adds()
    managed.append(b"x", adds.callback)
    await adds.wait(1)
    cursor.acknowledge(adds.positions)
    await cursor.flush()
    assert await named(cluster) == (first, second) == cursor.side.names
    await managed.close()
    again = (await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())).cursors["s"]
    assert again.side.names == (first, second) and again.backlog_entries == 0
    reader = await again.side.open(first)
    assert reader.metadata.closed
    assert [one.body for one in await reader.read_all(0, reader.metadata.last_entry)] == [b"a", b"b"]
    assert await again.side.remove([first], wanted)
    assert await named(cluster) == (second,) and not {first} & await ledgers_in(cluster)
    with pytest.raises(AlreadyClosed):
        await cursor.side.add([b"d"], wanted)


async def test_what_is_no_longer_wanted_changes_nothing_and_leaves_no_ledger(cluster):
    _, cursor = await opened(cluster)
    kept = await cursor.side.add([b"a"], wanted)
    before = await ledgers_in(cluster)
    assert await cursor.side.add([b"b"], unwanted) is None
    assert not await cursor.side.remove([kept], unwanted)
    assert await ledgers_in(cluster) == before and await named(cluster) == (kept,)


async def test_a_refused_write_of_the_record_leaves_no_ledger(cluster, monkeypatch):
    _, cursor = await opened(cluster)
    before, write_many = await ledgers_in(cluster), cluster.metadata.write_many

    async def refused(writes):
        if writes[0].key.startswith(metadata_keys.CURSORS_PREFIX):
            return [MetadataUnavailable("try again") for _ in writes]
        return await write_many(writes)

    monkeypatch.setattr(cluster.metadata, "write_many", refused)
    with pytest.raises(MetadataUnavailable):
        await cursor.side.add([b"a"], wanted)
    assert cursor.side.names == () and await ledgers_in(cluster) == before


async def test_a_cancelled_change_is_carried_out_and_known(cluster, monkeypatch):
    managed, cursor = await opened(cluster)
    started, go, write_many = asyncio.Event(), asyncio.Event(), cluster.metadata.write_many

    async def slow(writes):
        if writes[0].key.startswith(metadata_keys.CURSORS_PREFIX):
            started.set()
            await go.wait()
        return await write_many(writes)

    monkeypatch.setattr(cluster.metadata, "write_many", slow)
    adding = asyncio.create_task(cursor.side.add([b"a"], wanted))
    await started.wait()
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    assert not cursor.side.settled
    go.set()
    (name,) = await cursor.side.settle()
    assert await named(cluster) == (name,) and {name} <= await ledgers_in(cluster)
    await managed.close()


async def test_the_owner_ends_when_a_cancelled_change_finds_that_it_was_replaced(cluster, monkeypatch):
    managed, cursor = await opened(cluster)
    fenced, unseen = [], []
    managed.on_fenced.append(fenced.append)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context["message"]))
    started, go, write_many = asyncio.Event(), asyncio.Event(), cluster.metadata.write_many

    async def slow(writes):
        if writes[0].key.startswith(metadata_keys.CURSORS_PREFIX) and not started.is_set():
            started.set()
            await go.wait()
        return await write_many(writes)

    monkeypatch.setattr(cluster.metadata, "write_many", slow)
    adding = asyncio.create_task(cursor.side.add([b"a"], wanted))
    await started.wait()
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    adding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await adding
    go.set()
    await cursor.side.settle()
    await asyncio.sleep(0)
    gc.collect()
    assert fenced and not unseen and await named(cluster) == ()
    await again.close()
    with contextlib.suppress(StaleEpoch, LedgerFenced):
        await managed.close()


async def test_an_owner_that_was_replaced_names_nothing_and_ends(cluster):
    managed, cursor = await opened(cluster)
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    fenced = []
    managed.on_fenced.append(fenced.append)
    with pytest.raises(StaleEpoch):
        await cursor.side.add([b"a"], wanted)
    assert fenced and await named(cluster) == ()
    await again.close()
    with contextlib.suppress(StaleEpoch, LedgerFenced):
        await managed.close()


async def test_a_reset_removes_them_before_it_is_stored(cluster, monkeypatch):
    managed, cursor = await opened(cluster)
    adds = Adds()
    managed.append(b"x", adds.callback)
    await adds.wait(1)
    cursor.acknowledge(adds.positions)
    await cursor.flush()
    name = await cursor.side.add([b"a"], wanted)
    seen = []
    write = cursor._writer.storage.write

    async def seeing(state):
        seen.append((await named(cluster), state.mark_delete))
        await write(state)

    monkeypatch.setattr(cursor._writer.storage, "write", seeing)
    await cursor.reset(adds.positions[0])
    assert [beside for beside, _ in seen] == [()] and cursor.backlog_entries == 1
    assert name not in await ledgers_in(cluster)


@pytest.mark.parametrize("whole_topic", [False, True])
async def test_they_are_deleted_with_their_cursor(cluster, whole_topic):
    managed, cursor = await opened(cluster)
    name = await cursor.side.add([b"a"], wanted)
    if whole_topic:
        await managed.close()
        await delete_managed_ledger(cluster.env, cluster.ledgers, cluster.metadata, NAME, 2)
    else:
        await managed.delete_cursor("s")
    assert name not in await ledgers_in(cluster)
