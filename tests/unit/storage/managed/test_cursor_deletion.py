"""A cursor that is being deleted, and one of the same name that is opened meanwhile."""

import asyncio

import pytest

from magnetar.protocol.errors import MetadataUnavailable, SubscriptionNotFound
from magnetar.storage.managed.cursor import Cursor
from magnetar.storage.metadata import keys as metadata_keys
from support.stores.managed_ledger_kit import NAME, append, bodies, open_


class SlowDeletion:
    """Lets deletions of cursors wait, as they do while the coordinator is away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None
        delete = Cursor.delete

        async def slowly(cursor: Cursor) -> None:
            self.begun.set()
            await self.may_go_on.wait()
            if self.error is not None:
                raise self.error
            await delete(cursor)

        monkeypatch.setattr(Cursor, "delete", slowly)


async def test_who_opens_a_cursor_that_is_being_deleted_gets_a_new_one_that_is_stored(cluster, monkeypatch):
    managed = await open_(cluster, keep=True)
    old = await managed.open_cursor("s", "earliest")
    await append(managed, bodies(3))
    slow = SlowDeletion(monkeypatch)
    deletion = asyncio.create_task(managed.delete_cursor("s"))
    await slow.begun.wait()
    openings = [asyncio.create_task(managed.open_cursor("s", "latest")) for _ in range(2)]
    other = await managed.open_cursor("other")
    with pytest.raises(SubscriptionNotFound):
        await managed.delete_cursor("s")
    assert not any(opening.done() for opening in openings)
    slow.may_go_on.set()
    await deletion
    first, second = await asyncio.gather(*openings)
    assert first is second is managed.cursors["s"] and first is not old
    assert managed.cursors["other"] is other
    assert await cluster.metadata.get(metadata_keys.cursor(NAME, "s")) is not None
    assert first.backlog_entries == 0
    await managed.close()
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert set(again.cursors) == {"keep", "other", "s"}
    await again.close()


async def test_a_deletion_that_failed_keeps_nobody_waiting(cluster, monkeypatch):
    managed = await open_(cluster)
    old = await managed.open_cursor("s")
    slow = SlowDeletion(monkeypatch)
    slow.error = MetadataUnavailable("the coordinator is away")
    deletion = asyncio.create_task(managed.delete_cursor("s"))
    await slow.begun.wait()
    opening = asyncio.create_task(managed.open_cursor("s"))
    slow.may_go_on.set()
    with pytest.raises(MetadataUnavailable):
        await deletion
    assert await opening is old
    await managed.close()
