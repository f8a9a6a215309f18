"""The states of a cursor's writer and of its storage, over scripted bookies."""

import asyncio

import pytest

from magnetar.protocol.errors import AlreadyClosed, MetadataUnavailable, NotEnoughBookies, OutcomeUnknown, StaleEpoch
from magnetar.runtime.transitions import ForbiddenTransition
from magnetar.storage.managed import cursor_storage
from magnetar.storage.managed.cursor import CursorWriterState
from magnetar.storage.managed.cursor_storage import StorageState
from magnetar.storage.managed.managed_ledger import ManagedLedger
from support.fakes.bookies import Adds

pytestmark = pytest.mark.cluster_settings(add_entry_timeout_s=2.0, cursor_flush_interval_s=3600)

NAME = "persistent/public/default/t"


async def filled(cluster, count=10):
    """A topic with a cursor at its beginning, and the positions of its entries."""
    managed = await ManagedLedger.open(cluster.env, cluster.ledgers, cluster.metadata, NAME, 1, cluster.settings)
    cursor = await managed.open_cursor("s", "earliest")
    adds = Adds()
    for number in range(count):
        managed.append(b"%d" % number, adds.callback)
    await adds.wait(count)
    return managed, cursor, adds.positions


async def test_a_cursor_that_moves_is_due_then_writes_then_is_idle(cluster):
    managed, cursor, positions = await filled(cluster)
    writer = cursor._writer
    assert writer.state is CursorWriterState.IDLE and writer.storage.state is StorageState.NO_LEDGER
    cursor.acknowledge(positions[:1])
    assert writer.state is CursorWriterState.DUE
    flushing = asyncio.create_task(cursor.flush())
    await asyncio.sleep(0)
    assert writer.state is CursorWriterState.WRITING
    await flushing
    assert writer.state is CursorWriterState.IDLE and writer.storage.state is StorageState.LEDGER
    await managed.close()
    assert writer.state is CursorWriterState.CLOSED and writer.storage.state is StorageState.ENDED


async def test_a_cursor_that_moves_while_it_is_written_is_due_again(cluster):
    managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:1])
    flushing = asyncio.create_task(cursor.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the write has taken the state
    cursor.acknowledge(positions[1:2])
    await flushing
    assert cursor._writer.state is CursorWriterState.DUE and cursor.durable_mark_delete == positions[0]
    await managed.close()


async def test_a_fence_ends_a_cursor_and_nothing_more_is_written(cluster):
    _managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:1])
    cursor.fence(StaleEpoch("another owner"))
    assert cursor._writer.state is CursorWriterState.FENCED
    cursor.acknowledge(positions[1:2])
    with pytest.raises(StaleEpoch):
        await cursor.flush()
    await cursor.close()
    assert cursor._writer.state is CursorWriterState.CLOSED and cursor._writer.dirty
    with pytest.raises(StaleEpoch):
        await cursor.flush()


async def test_a_closed_cursor_tells_of_a_later_fence(cluster):
    _managed, cursor, _positions = await filled(cluster)
    await cursor.close()
    with pytest.raises(AlreadyClosed):
        await cursor.flush()
    cursor.fence(StaleEpoch("another owner"))
    assert cursor._writer.state is CursorWriterState.CLOSED
    with pytest.raises(StaleEpoch):
        await cursor.flush()


async def test_a_closed_cursor_refuses_to_write_again_and_so_does_its_storage(cluster):
    _managed, cursor, _positions = await filled(cluster)
    await cursor.close()
    with pytest.raises(ForbiddenTransition, match="the writer of cursor s cannot go from closed to writing"):
        cursor._writer._become(CursorWriterState.WRITING)
    with pytest.raises(ForbiddenTransition, match="the storage of cursor s cannot go from ended to in_doubt"):
        cursor._writer.storage._become(StorageState.IN_DOUBT)


async def test_a_switch_that_certainly_failed_leaves_the_old_ledger(cluster, monkeypatch):
    managed, cursor, positions = await filled(cluster)
    storage = cursor._writer.storage
    cursor.acknowledge(positions[:1])
    await cursor.flush()
    old = storage.ledger_writer

    async def refused(*arguments, **options):
        raise MetadataUnavailable("nothing was executed")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "_put", refused)
        patched.setattr(type(old), "should_move", True)
        cursor.acknowledge(positions[1:2])
        with pytest.raises(MetadataUnavailable):
            await cursor.flush()
        assert storage.state is StorageState.LEDGER and storage.ledger_writer is old
    await cursor.flush()
    assert storage.ledger_writer is old
    await managed.close()


async def test_a_doubt_about_the_record_outlives_a_failed_snapshot(cluster, monkeypatch):
    """The record may name the new ledger of the first try, whatever became of the second."""
    managed, cursor, positions = await filled(cluster)
    storage = cursor._writer.storage
    cursor.acknowledge(positions[:1])
    await cursor.flush()
    old = storage.ledger_writer
    before = old.last_added

    async def unknown(*arguments, **options):
        raise OutcomeUnknown("the answer was lost")

    async def failing(writer, state):
        raise NotEnoughBookies("no copies")

    with monkeypatch.context() as patched:
        patched.setattr(type(old), "should_move", True)
        cursor.acknowledge(positions[1:2])
        with monkeypatch.context() as lost:
            lost.setattr(storage, "_put", unknown)
            with pytest.raises(OutcomeUnknown):
                await cursor.flush()
        patched.setattr(cursor_storage, "append", failing)
        with pytest.raises(NotEnoughBookies):
            await cursor.flush()
        assert storage.state is StorageState.IN_DOUBT
    await cursor.flush()
    assert storage.ledger_writer is not old and old.last_added == before
    await managed.close()
