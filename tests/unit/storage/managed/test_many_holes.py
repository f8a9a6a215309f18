"""A cursor with very many acknowledged ranges, through owners that crash and owners that close."""

import contextlib

import pytest

from magnetar.protocol.errors import LedgerFenced, StaleEpoch
from magnetar.storage.managed.chain import LedgerInfo
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata

NAME = "persistent/public/default/t"
ENTRIES = 50_001


async def open_(cluster, epoch):
    """Under another owner's connections each time."""
    return await ManagedLedger.open(cluster.env, cluster.new_ledgers(), cluster.metadata, NAME, epoch, cluster.settings)


async def long_chain(cluster, ledgers):
    """A topic with a cursor at its beginning, and so many closed ledgers. No bookie has their entries."""
    empty = await open_(cluster, 1)
    await empty.open_cursor("s", "earliest")
    await empty.close()
    infos = []
    for _ in range(ledgers):
        writer = await cluster.ledgers.create()
        await writer.abandon()
        key = metadata_keys.ledger(writer.ledger_id)
        stored = await cluster.metadata.get(key)
        closed = LedgerMetadata.unpack(stored.value).close(ENTRIES - 1, ENTRIES)
        await cluster.metadata.put(key, closed.pack(), stored.version)
        infos.append(LedgerInfo(writer.ledger_id, 1, ENTRIES, ENTRIES, True, 2))
    record = ManagedLedgerRecord(1, tuple(infos), (), infos[-1].ledger_id)
    key = metadata_keys.managed_ledger(NAME)
    await cluster.metadata.put(key, record.pack(), (await cluster.metadata.get(key)).version)
    return [(info.ledger_id, entry_id) for info in infos for entry_id in range(ENTRIES)]


@pytest.mark.promise("5.1", "31.11")
async def test_a_hundred_thousand_scattered_holes_survive_restarts(cluster):
    positions = await long_chain(cluster, 4)
    managed = await open_(cluster, 2)
    cursor = managed.cursors["s"]
    done = [position for position in positions if position[1] % 2]
    mixed = done.copy()
    cluster.env.random.shuffle(mixed)
    cursor.acknowledge(mixed)
    assert cursor.acknowledged_ranges == 100_000 and cursor.backlog_entries == 100_004
    await cursor.flush()
    again = await open_(cluster, 3)  # the first one crashed
    assert [position for position in positions if again.cursors["s"].is_acknowledged(position)] == done
    with contextlib.suppress(StaleEpoch, LedgerFenced):
        await managed.close()
    await again.close()
    last = await open_(cluster, 4)  # this one had closed
    assert [position for position in positions if last.cursors["s"].is_acknowledged(position)] == done
    await last.close()
