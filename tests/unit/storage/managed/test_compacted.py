"""The compacted ledger: reading it and the log behind it, the switch, what a crash at each step leaves, and pins."""

import asyncio

import pytest

from magnetar.protocol.compacted_entries import decode_compacted, encode_compacted
from magnetar.protocol.errors import LedgerFenced, MetadataUnavailable, NoSuchLedger, StaleEpoch
from magnetar.storage.managed.cursor_storage import CursorKind
from magnetar.storage.managed.deletion import delete_managed_ledger
from magnetar.storage.managed.record import CHAIN_RECORDS, CompactedLedger, ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import list_all
from support.stores.managed_ledger_kit import NAME, append, bodies, open_

pytestmark = pytest.mark.cluster_settings(
    ledger_entries_max=2, ledger_rollover_min_minutes=0, cursor_flush_interval_s=60.0
)


async def compacted_view(managed, first=(-1, -1), entries_max=1000):
    found = []
    while batch := await managed.compacted.read(first, entries_max, 1 << 20):
        found += batch
        first = (batch[-1][0][0], batch[-1][0][1] + 1)
    return found


async def compact(managed, kept, upto):
    """As a compaction does it: a ledger with the entries `kept`, a switch, and the cursor to the horizon."""
    cursor = await managed.open_cursor("__compaction", "earliest", kind=CursorKind.COMPACTION)
    writer = await managed.compacted.begin() if kept else None
    for position, body in kept:
        await writer.add(position, body)
    await managed.compacted.switch(writer, upto)
    cursor.acknowledge_cumulative(upto)
    await cursor.flush()
    return None if writer is None else writer.ledger_id


async def grow(managed, count):
    """Append entries one by one, so that ledgers roll over behind every second; the entries with their positions."""
    found = []
    for body in bodies(count):
        found.append(((await append(managed, [body])).positions[0], body))
        await asyncio.sleep(0.01)
    return found


async def record_of(cluster):
    return ManagedLedgerRecord.unpack((await cluster.metadata.get(metadata_keys.managed_ledger(NAME))).value)


async def ledgers_of(cluster):
    return [metadata_keys.ledger_id_of(key) for key, _ in await list_all(cluster.metadata, "ledgers/")]


def test_a_record_keeps_what_compaction_needs_and_old_records_stay_readable():
    plain = ManagedLedgerRecord(3)
    assert b"compact" not in plain.pack() and ManagedLedgerRecord.unpack(plain.pack()) == plain
    for made in (CompactedLedger(7, (3, 4), 9, 100), CompactedLedger(None, (3, 4), 0, 0)):
        record = ManagedLedgerRecord(3, compacted=made, compacting=8)
        assert ManagedLedgerRecord.unpack(record.pack()) == record
    record = ManagedLedgerRecord(3, compacted=CompactedLedger(7, (3, 4), 9, 100), compacting=8)
    assert list(CHAIN_RECORDS.ledgers_named_by("k", record.pack())) == [7, 8]


def test_an_entry_keeps_its_position():
    assert decode_compacted(encode_compacted((1 << 40, 7), b"body")) == ((1 << 40, 7), b"body")


async def test_readers_see_the_compacted_ledger_up_to_its_horizon_and_then_the_log(cluster):
    managed = await open_(cluster, keep=True)
    log = await grow(managed, 7)
    assert await compacted_view(managed) == log
    await compact(managed, [log[1], log[3]], log[4][0])
    assert await compacted_view(managed) == [log[1], log[3], log[5], log[6]]
    assert await compacted_view(managed, entries_max=1) == [log[1], log[3], log[5], log[6]]
    assert await compacted_view(managed, log[2][0]) == [log[3], log[5], log[6]]
    assert await compacted_view(managed, log[4][0]) == log[5:]
    assert await compacted_view(managed, log[6][0]) == log[6:]
    assert await managed.compacted.last() == log[3]
    await managed.close()


async def test_a_bulk_read_is_planned_with_the_compacted_ledger_and_the_log_behind_it(cluster):
    managed = await open_(cluster, keep=True)
    log = await grow(managed, 7)
    ledger_id = await compact(managed, [log[1], log[3]], log[4][0])
    plain = await managed.plan((-1, -1))
    assert plain.compacted is None and plain.first == log[0][0]
    plan = await managed.plan((-1, -1), compacted_from=(-1, -1))
    assert plan.compacted is not None and (plan.compacted.ledger_id, plan.compacted.last_entry) == (ledger_id, 1)
    assert (plan.first, plan.last) == (log[5][0], log[6][0])
    assert {one.ledger_id for one in plan.ledgers} == {position[0] for position, _ in log[5:]}
    behind = await managed.plan(log[5][0], compacted_from=log[5][0])
    assert behind.compacted is None and behind.first == log[5][0]
    ended = await managed.plan((-1, -1), log[2][0], compacted_from=(-1, -1))
    assert ended.compacted is not None and ended.ledgers == () and ended.first > ended.last
    await managed.close()


async def test_a_compacted_ledger_that_a_bulk_read_pinned_stays_until_the_pin_is_gone(cluster):
    managed = await open_(cluster)
    log = await grow(managed, 4)
    first = await compact(managed, [log[1]], log[3][0])
    await managed.trim()
    assert managed.ledger_infos == [] or managed.ledger_infos[0].ledger_id > log[3][0][0]
    plan = await managed.plan((-1, -1), compacted_from=(-1, -1))
    assert plan.compacted is not None and plan.ledgers == () and plan.pin is not None
    await compact(managed, [log[1]], log[3][0])
    await managed.trim()
    assert first in await ledgers_of(cluster)
    await managed.unpin(plan.pin)
    await managed.trim()
    assert first not in await ledgers_of(cluster)
    await managed.close()


async def test_nothing_left_needs_no_ledger(cluster):
    managed = await open_(cluster, keep=True)
    log = await grow(managed, 3)
    await compact(managed, [], log[1][0])
    assert managed.compacted.current == CompactedLedger(None, log[1][0], 0, 0)
    assert await compacted_view(managed) == log[2:] and await managed.compacted.last() is None
    await managed.close()


async def test_the_log_behind_the_cursor_is_kept_and_the_rest_is_trimmed_and_deleted(cluster):
    managed = await open_(cluster)
    cursor = await managed.open_cursor("__compaction", "earliest", kind=CursorKind.COMPACTION)
    log = await grow(managed, 7)
    assert len({position[0] for position, _ in log}) > 2 and await managed.trim() == []
    first = await compact(managed, [log[1], log[3]], log[3][0])
    assert cursor.mark_delete_position == log[3][0]
    assert await managed.trim() == sorted({position[0] for position, _ in log[:4]})
    assert await compacted_view(managed) == [log[1], log[3], *log[4:]]
    second = await compact(managed, [log[3], log[5]], log[6][0])
    with pytest.raises(NoSuchLedger):
        await cluster.ledgers.open(first)
    await managed.trim()
    assert await compacted_view(managed) == [log[3], log[5]]
    record = await record_of(cluster)
    assert record.deleting == () and record.ledgers_beside == (second,)
    await managed.close()


async def test_a_topic_of_which_only_the_compacted_ledger_is_left_opens_and_goes_on(cluster):
    managed = await open_(cluster)
    log = await grow(managed, 4)
    await compact(managed, [log[2]], log[3][0])
    await managed.close()
    managed = await open_(cluster, epoch=2)
    await managed.trim()
    assert managed.ledger_infos == [] and managed.last_confirmed == log[3][0]
    assert await compacted_view(managed) == [log[2]]
    position = (await append(managed, [b"new"])).positions[0]
    assert position > log[3][0] and await compacted_view(managed) == [log[2], (position, b"new")]
    await managed.close()


@pytest.mark.promise("34.3")
@pytest.mark.parametrize("step", ["begun", "copied", "finished"])
async def test_a_crash_before_the_switch_leaves_the_old_and_deletes_the_new(cluster, step):
    managed = await open_(cluster, keep=True)
    log = await grow(managed, 4)
    old = await compact(managed, [log[0]], log[1][0])
    writer = await managed.compacted.begin()
    if step != "begun":
        await writer.add(*log[2])
    if step == "finished":
        await writer.finish()
    assert (await record_of(cluster)).ledgers_beside == (old, writer.ledger_id)
    taken = await open_(cluster, epoch=2)  # the old owner knows nothing of it
    assert await compacted_view(taken) == [log[0], log[2], log[3]]
    assert (await record_of(cluster)).deleting == (writer.ledger_id,)
    with pytest.raises(StaleEpoch):
        await managed.compacted.switch(writer, log[3][0])
    assert await compacted_view(taken) == [log[0], log[2], log[3]]
    await taken.trim()
    assert writer.ledger_id not in await ledgers_of(cluster) and old in await ledgers_of(cluster)
    await writer.abandon()
    await taken.close()


async def test_a_crash_between_the_switch_and_the_cursor_moves_the_cursor_when_opened(cluster):
    managed = await open_(cluster)
    cursor = await managed.open_cursor("__compaction", "earliest", kind=CursorKind.COMPACTION)
    log = await grow(managed, 4)
    writer = await managed.compacted.begin()
    await writer.add(*log[2])
    await managed.compacted.switch(writer, log[3][0])
    assert cursor.mark_delete_position < log[0][0]
    taken = await open_(cluster, epoch=2)
    assert taken.cursors["__compaction"].mark_delete_position == log[3][0]
    assert await compacted_view(taken) == [log[2]]
    assert taken.subscription_cursors == {}
    await taken.close()


async def test_a_cursor_ahead_of_the_horizon_goes_back_when_metadata_is_restored(cluster):
    managed = await open_(cluster)
    await compact(managed, [], (-1, -1))
    log = await grow(managed, 4)
    await compact(managed, [log[1]], log[1][0])
    managed.cursors["__compaction"].acknowledge_cumulative(log[3][0])
    await managed.cursors["__compaction"].flush()
    taken = await open_(cluster, epoch=2)
    assert taken.cursors["__compaction"].mark_delete_position == log[1][0]
    assert await compacted_view(taken) == log[1:]
    await taken.close()


async def test_a_compaction_that_is_given_up_leaves_nothing_behind(cluster):
    managed = await open_(cluster, keep=True)
    log = await grow(managed, 2)
    writer = await managed.compacted.begin()
    await writer.add(*log[0])
    await managed.compacted.give_up(writer)
    assert writer.ledger_id not in await ledgers_of(cluster)
    assert (await record_of(cluster)).ledgers_beside == () and await compacted_view(managed) == log
    await managed.close()


async def test_what_could_not_be_given_up_goes_with_the_next_compaction(cluster, monkeypatch):
    managed = await open_(cluster, keep=True)
    log = await grow(managed, 2)
    writer = await managed.compacted.begin()

    async def away(*_, **__):
        raise MetadataUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(managed._owned, "change", away)
        await managed.compacted.give_up(writer)
    assert writer.ledger_id in await ledgers_of(cluster)
    await compact(managed, [log[1]], log[1][0])
    assert writer.ledger_id not in await ledgers_of(cluster)
    await managed.close()


async def test_a_pinned_compacted_ledger_is_deleted_after_its_pin(cluster):
    managed = await open_(cluster, keep=True)
    log = await grow(managed, 2)
    old = await compact(managed, [log[0]], log[0][0])
    pin = await managed.pin([old], 60.0)
    await compact(managed, [log[1]], log[1][0])
    assert old in await ledgers_of(cluster) and (await record_of(cluster)).deleting == (old,)
    await managed.trim()
    assert old in await ledgers_of(cluster)
    await managed.unpin(pin)
    await managed.trim()
    assert old not in await ledgers_of(cluster)
    await managed.close()


async def test_deleting_a_topic_deletes_both_ledgers_of_compaction(cluster):
    managed = await open_(cluster)
    log = await grow(managed, 2)
    await compact(managed, [log[0]], log[0][0])
    writer = await managed.compacted.begin()
    await delete_managed_ledger(cluster.env, cluster.ledgers, cluster.metadata, NAME, 2)
    assert await ledgers_of(cluster) == [] and await cluster.metadata.get(metadata_keys.managed_ledger(NAME)) is None
    await writer.abandon()
    with pytest.raises(LedgerFenced):
        await managed.close()


async def test_a_reader_whose_ledger_is_replaced_in_mid_read_goes_on_in_the_new_one(cluster, monkeypatch):
    managed = await open_(cluster, keep=True)
    log = await grow(managed, 4)
    await compact(managed, [log[0], log[1]], log[1][0])
    compacted = managed.compacted
    piece = compacted.piece

    async def replaced(segment):
        monkeypatch.setattr(compacted, "piece", piece)
        await compact(managed, [log[1], log[3]], log[3][0])
        return await piece(segment)

    managed._cache._bodies.clear()
    monkeypatch.setattr(compacted, "piece", replaced)
    assert await compacted_view(managed) == [log[1], log[3]]
    await managed.close()


async def test_forgetting_brings_readers_back_to_the_log(cluster):
    managed = await open_(cluster, keep=True)
    log = await grow(managed, 3)
    old = await compact(managed, [log[0]], log[1][0])
    await managed.compacted.forget()
    assert await compacted_view(managed) == log and old not in await ledgers_of(cluster)
    await managed.close()
