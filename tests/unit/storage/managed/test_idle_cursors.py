"""Since when a subscription has had no consumer: stored by an owner that closes in order, forgotten after a crash."""

from typing import Any

import pytest

from magnetar.storage.managed.cursor_storage import CursorKind, CursorRecord
from magnetar.storage.metadata import keys as metadata_keys
from support.stores.managed_ledger_kit import NAME, append, bodies, open_

pytestmark = pytest.mark.cluster_settings(cursor_flush_interval_s=60.0)


async def record_of(cluster: Any) -> CursorRecord:
    return CursorRecord.unpack((await cluster.metadata.get(metadata_keys.cursor(NAME, "s"))).value)


def test_a_record_keeps_the_time() -> None:
    record = CursorRecord(3, None, b"state", CursorKind.SUBSCRIPTION, 1234)
    assert CursorRecord.unpack(record.pack()) == record


@pytest.mark.parametrize("acknowledged", [0, 2])
async def test_the_next_owner_gets_the_time_and_takes_it_out_of_the_record(cluster: Any, acknowledged: int) -> None:
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest")
    positions = (await append(managed, bodies(4))).positions
    cursor.acknowledge(positions[2 : 2 + acknowledged])
    cursor.idle_at_close_ms = 1234
    await managed.close()
    assert (await record_of(cluster)).idle_since_ms == 1234
    managed = await open_(cluster, epoch=2)
    cursor = managed.cursors["s"]
    assert cursor.idle_since_ms == 1234 and (await record_of(cluster)).idle_since_ms == 0
    assert cursor.backlog_entries == 4 - acknowledged
    await managed.close()
    assert (await record_of(cluster)).idle_since_ms == 0, "a close stores what was noted for it, no older time"


@pytest.mark.promise("30.24")
async def test_a_crash_leaves_no_time(cluster: Any) -> None:
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest")
    cursor.idle_at_close_ms = 1234
    await managed.close()
    crashed = await open_(cluster, epoch=2, keep=True)
    crashed.cursors["s"].idle_at_close_ms = 5678
    managed = await open_(cluster, epoch=3, ledgers=cluster.new_ledgers())
    assert managed.cursors["s"].idle_since_ms == 0
    await managed.close()


async def test_a_cursor_that_was_not_used_is_not_written_when_it_closes(cluster: Any) -> None:
    managed = await open_(cluster)
    await managed.open_cursor("s", "earliest")
    before = await cluster.metadata.get(metadata_keys.cursor(NAME, "s"))
    await managed.close()
    assert await cluster.metadata.get(metadata_keys.cursor(NAME, "s")) == before
