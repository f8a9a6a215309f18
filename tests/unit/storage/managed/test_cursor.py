"""Durable cursors over scripted bookies: what survives, when it is written, who may write it."""

import asyncio
import contextlib

import pytest

from magnetar.protocol.errors import (
    AlreadyClosed,
    DiskFull,
    EntryUnknown,
    LedgerFenced,
    MetadataError,
    MetadataUnavailable,
    NoSuchEntry,
    NotEnoughBookies,
    OutcomeUnknown,
    StaleEpoch,
    SubscriptionNotFound,
)
from magnetar.storage.managed import cursor_storage
from magnetar.storage.managed.chain import LedgerChain
from magnetar.storage.managed.cursor_state import CursorState
from magnetar.storage.managed.cursor_storage import CursorKind, CursorRecord
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from support.fakes.bookies import Adds, until

pytestmark = pytest.mark.cluster_settings(
    add_entry_timeout_s=2.0, cursor_flush_interval_s=0.02, cursor_ledger_entries_max=5
)

NAME = "persistent/public/default/t"


async def open_(cluster, epoch=1, ledgers=None):
    return await ManagedLedger.open(
        cluster.env, ledgers or cluster.ledgers, cluster.metadata, NAME, epoch, cluster.settings
    )


async def filled(cluster, count=100):
    """A topic with `count` entries in one ledger and a cursor `s` at its beginning."""
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest", {"colour": "blue"})
    adds = Adds()
    for number in range(count):
        managed.append(b"%d" % number, adds.callback)
    await adds.wait(count)
    return managed, cursor, adds.positions


async def end_zombie(managed):
    """An owner that was superseded may fail to close, and then says so."""
    with contextlib.suppress(StaleEpoch, LedgerFenced):
        await managed.close()


async def record_of(cluster, name="s"):
    found = await cluster.metadata.get(metadata_keys.cursor(NAME, name))
    return CursorRecord.unpack(found.value)


async def test_a_new_cursor_is_durable_at_once_and_has_no_ledger(cluster):
    managed, _cursor, positions = await filled(cluster)
    assert (await record_of(cluster)).ledger_id is None
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert again.cursors["s"].backlog_entries == 100 and again.cursors["s"].properties == {"colour": "blue"}
    assert await again.open_cursor("s", "latest") is again.cursors["s"]
    latest = await again.open_cursor("late", "latest")
    assert latest.backlog_entries == 0 and latest.first_unacknowledged > positions[-1]
    middle = await again.open_cursor("middle", positions[40])
    assert middle.backlog_entries == 60 and middle.first_unacknowledged == positions[40]
    await again.close()
    await end_zombie(managed)


async def test_creating_again_after_an_unknown_outcome_starts_where_it_is_asked_to(cluster, monkeypatch):
    managed = await open_(cluster)
    adds = Adds()
    for number in range(3):
        managed.append(b"%d" % number, adds.callback)
    await adds.wait(3)
    write_many = cluster.metadata.write_many
    tries = []

    async def lost(writes, guard=None):
        tries.append(writes)
        if len(tries) == 1:
            await write_many(writes, guard)
            raise OutcomeUnknown("the answer was lost")
        raise StaleEpoch("no more questions are taken")

    with monkeypatch.context() as patched:
        patched.setattr(cluster.metadata, "write_many", lost)
        with pytest.raises(OutcomeUnknown):
            await managed.open_cursor("s", "earliest")
    assert "s" not in managed.cursors and await record_of(cluster) is not None
    cursor = await managed.open_cursor("s", "latest", {"colour": "red"})
    cursor.take_snapshot(cursor.mark_delete_position, {**cursor.properties, "size": "1"})
    await cursor.flush()
    await managed.close()
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert again.cursors["s"].backlog_entries == 0
    assert again.cursors["s"].properties == {"colour": "red", "size": "1"}
    await again.close()


async def test_what_flush_returned_for_survives_a_crash_of_the_broker(cluster):
    managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:10] + positions[20:30:2])
    await cursor.flush()
    assert cursor.durable_mark_delete == positions[9]
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    found = again.cursors["s"]
    assert found.mark_delete_position == positions[9] and found.acknowledged_ranges == 5
    assert [one for one in positions if found.is_acknowledged(one)] == positions[:10] + positions[20:30:2]
    assert found.properties == {"colour": "blue"}
    found.acknowledge(positions[10:20])
    assert found.mark_delete_position == positions[20]
    await again.close()
    await end_zombie(managed)


async def test_flushes_that_come_together_share_one_write(cluster):
    managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:1])
    await cursor.flush()
    ledger_id = (await record_of(cluster)).ledger_id
    before = len(cluster[1].intact(ledger_id))
    cursor.acknowledge(positions[1:2])
    first = asyncio.gather(*(cursor.flush() for _ in range(50)))
    await asyncio.sleep(0)
    cursor.acknowledge(positions[2:3])
    await asyncio.gather(first, *(cursor.flush() for _ in range(50)))
    assert len(cluster[1].intact(ledger_id)) - before <= 2
    assert cursor.durable_mark_delete == positions[2]
    await managed.close()


async def test_without_flush_it_is_written_after_the_interval_and_once(cluster):
    managed, cursor, positions = await filled(cluster)
    for position in positions[:50]:
        cursor.acknowledge([position])
    await until(lambda: cursor.durable_mark_delete == positions[49])
    ledger_id = (await record_of(cluster)).ledger_id
    await asyncio.sleep(0.05)
    assert len(cluster[1].intact(ledger_id)) == 1
    await managed.close()


async def test_a_clean_close_leaves_the_state_in_the_record_and_no_ledger(cluster):
    managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:7])
    await cursor.flush()
    ledger_id = (await record_of(cluster)).ledger_id
    cursor.acknowledge(positions[7:9])
    await managed.close()
    record = await record_of(cluster)
    assert record.ledger_id is None and record.state is not None
    assert metadata_keys.ledger(ledger_id) not in cluster.metadata.records.by_key
    again = await open_(cluster, epoch=2)
    assert again.cursors["s"].mark_delete_position == positions[8]
    await again.close()
    with pytest.raises(AlreadyClosed):
        await cursor.flush()


async def test_the_cursor_ledger_is_replaced_when_it_is_full(cluster):
    managed, cursor, positions = await filled(cluster)
    ledgers = {}
    for position in positions[:12]:
        cursor.acknowledge([position])
        await cursor.flush()
        ledgers[(await record_of(cluster)).ledger_id] = None
    assert len(ledgers) == 3
    alive = [one for one in ledgers if metadata_keys.ledger(one) in cluster.metadata.records.by_key]
    assert alive == list(ledgers)[-1:]
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert again.cursors["s"].mark_delete_position == positions[11]
    await again.close()
    await end_zombie(managed)


async def test_no_ack_hole_is_ever_dropped_however_many_entries_a_snapshot_needs(cluster, monkeypatch):
    monkeypatch.setattr("magnetar.storage.managed.cursor_storage.INLINE_STATE_MAX_BYTES", 100)
    monkeypatch.setattr(cursor_storage, "PART_SIZE_MAX_BYTES", 64)
    monkeypatch.setattr(cursor_storage.append, "__defaults__", (64,))
    managed, cursor, positions = await filled(cluster, 400)
    cursor.acknowledge(positions[1::2])
    await cursor.flush()
    ledger_id = (await record_of(cluster)).ledger_id
    assert len(cluster[1].intact(ledger_id)) > 3
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert again.cursors["s"].acknowledged_ranges == 200
    again.cursors["s"].acknowledge(positions[0:1])
    await again.close()
    record = await record_of(cluster)
    assert record.ledger_id is not None, "too large for the metadata record"
    third = await open_(cluster, epoch=3, ledgers=cluster.new_ledgers())
    assert third.cursors["s"].mark_delete_position == positions[1] and third.cursors["s"].acknowledged_ranges == 199
    await third.close()
    await end_zombie(managed)


async def test_a_snapshot_that_was_cut_off_leaves_the_one_before_it(cluster, monkeypatch):
    writer = await cluster.ledgers.create()
    await cursor_storage.append(writer, b"complete " * 20, 50)
    adds = Adds()
    for body in cursor_storage.split(b"cut off  " * 20, 50)[:-1]:
        writer.add(body, adds.callback)
    await adds.wait(3)
    metadata = await writer.close()
    reader = cluster.ledgers.reader(metadata)
    assert await cursor_storage.read_last(reader, metadata.last_entry) == (b"complete " * 20, [])
    assert await cursor_storage.read_last(reader, 1) is None


async def test_an_old_owner_can_no_longer_write_a_cursor(cluster):
    managed, cursor, positions = await filled(cluster)
    fenced = []
    managed.on_fenced.append(fenced.append)
    cursor.acknowledge(positions[:5])
    await cursor.flush()
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    cursor.acknowledge(positions[5:50])
    with pytest.raises((StaleEpoch, LedgerFenced)):
        await cursor.flush()
    assert len(fenced) == 1
    with pytest.raises((StaleEpoch, LedgerFenced)):
        await cursor.flush()
    assert again.cursors["s"].mark_delete_position == positions[4]
    await again.close()


async def test_an_old_owner_without_a_cursor_ledger_cannot_write_either(cluster):
    managed, cursor, positions = await filled(cluster)
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    cursor.acknowledge(positions[:50])
    with pytest.raises(StaleEpoch):
        await cursor.flush()
    assert (await record_of(cluster)).epoch == 2
    with pytest.raises(StaleEpoch):
        await managed.delete_cursor("s")
    assert again.cursors["s"].backlog_entries == 100
    await again.close()


async def test_a_cursor_ledger_that_the_next_owner_has_taken_over_is_not_deleted(cluster, monkeypatch):
    """Its compare-and-set landed, the answer was lost, and another owner wrote on top before that was known."""
    monkeypatch.setattr("magnetar.storage.managed.cursor_storage.INLINE_STATE_MAX_BYTES", 0)
    _managed, cursor, positions = await filled(cluster)
    write_many = cluster.metadata.write_many
    taken = []

    async def lossy(writes, guard=None):
        result = await write_many(writes, guard)
        if writes[0].key == metadata_keys.cursor(NAME, "s") and not taken:
            taken.append(None)
            taken[0] = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
            raise OutcomeUnknown("the answer was lost")
        return result

    monkeypatch.setattr(cluster.metadata, "write_many", lossy)
    cursor.acknowledge(positions[:5])
    with pytest.raises(StaleEpoch):
        await cursor.flush()
    assert taken
    again = await open_(cluster, epoch=3, ledgers=cluster.new_ledgers())
    assert again.cursors["s"].mark_delete_position == positions[4]
    await again.close()


async def test_a_cursor_that_cannot_be_read_fails_the_load(cluster):
    _managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:5])
    await cursor.flush()
    ledger_id = (await record_of(cluster)).ledger_id
    await asyncio.sleep(0.01)
    ledgers = cluster.new_ledgers()
    closed = await ledgers.recover(ledger_id)
    for bookie in cluster.bookies.values():
        bookie.ledgers[ledger_id].entries.clear()
    with pytest.raises((NoSuchEntry, EntryUnknown)):
        await open_(cluster, epoch=2, ledgers=ledgers)
    assert closed.last_entry == 0
    found = await cluster.metadata.get(metadata_keys.cursor(NAME, "s"))
    await cluster.metadata.put(metadata_keys.cursor(NAME, "s"), b"\x00nonsense", found.version)
    with pytest.raises(MetadataError):
        await open_(cluster, epoch=2, ledgers=ledgers)


@pytest.mark.parametrize("recovered", [False, True])
async def test_a_cursor_whose_ledger_was_deleted_after_the_backup_begins_again(cluster, recovered):
    _managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:5])
    await cursor.flush()
    ledger_id = (await record_of(cluster)).ledger_id
    await asyncio.sleep(0.01)
    if recovered:
        await cluster.new_ledgers().recover(ledger_id)
    for bookie in cluster.bookies.values():
        del bookie.ledgers[ledger_id]
    with pytest.raises((NoSuchEntry, MetadataError)):
        await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    for name in cluster.bookies:
        await cluster.metadata.put(metadata_keys.bookie(name), b"cookie", None)
    listed = cluster.directory.bookies.values()
    cluster.directory.update([info._replace(doubtful_end=ledger_id + 1) for info in listed])
    again = await open_(cluster, epoch=3, ledgers=cluster.new_ledgers())
    assert again.cursors["s"].first_unacknowledged == positions[0]
    assert again.cursors["s"].backlog_entries == len(positions)
    assert (await record_of(cluster)).ledger_id is None
    await again.close()


async def test_an_error_that_nobody_expected_is_told_too(cluster, monkeypatch):
    managed, cursor, positions = await filled(cluster)

    async def broken(writer, state):
        raise RuntimeError("nobody expected this")

    with monkeypatch.context() as patched:
        patched.setattr(cursor_storage, "append", broken)
        cursor.acknowledge(positions[:5])
        with pytest.raises(MetadataError, match="nobody expected this"):
            await asyncio.wait_for(cursor.flush(), 5)
    await cursor.flush()
    assert cursor.durable_mark_delete == positions[4]
    await managed.close()


async def test_a_failed_write_is_told_and_repeated(cluster):
    managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:5])
    await cursor.flush()
    cluster[1].crash()
    cluster[2].crash()
    cursor.acknowledge(positions[5:6])
    with pytest.raises(NotEnoughBookies):
        await cursor.flush()
    assert cursor.durable_mark_delete == positions[4]
    cluster[1].restart()
    cluster[2].restart()
    await until(lambda: len(cluster.client.usable()) == 3)
    await cursor.flush()
    assert cursor.durable_mark_delete == positions[5]
    await managed.close()


async def test_metadata_away_at_the_first_flush_and_at_close(cluster):
    _managed, cursor, positions = await filled(cluster)

    async def away(*arguments):
        raise MetadataUnavailable("the coordinator is away")

    put, cluster.metadata.put = cluster.metadata.put, away
    cursor.acknowledge(positions[:5])
    with pytest.raises(MetadataUnavailable):
        await cursor.flush()
    cluster.metadata.put = put
    await cursor.flush()
    cursor.acknowledge(positions[5:8])
    cluster.metadata.put = away
    await cursor.close()  # into its ledger, which the next owner recovers
    cluster.metadata.put = put
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert again.cursors["s"].mark_delete_position == positions[7]
    await again.close()


async def test_a_coordinator_that_refuses_at_close_loses_no_acknowledgement(cluster, monkeypatch):
    _managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:5])
    await cursor.flush()
    cursor.acknowledge(positions[5:8])

    async def full(*arguments):
        raise DiskFull("the coordinator's disk is full")

    put = cluster.metadata.put
    monkeypatch.setattr(cluster.metadata, "put", full)
    await cursor.close()  # into its ledger, which the next owner recovers
    monkeypatch.setattr(cluster.metadata, "put", put)
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert again.cursors["s"].mark_delete_position == positions[7]
    await again.close()


async def test_reset_forwards_and_backwards_is_durable(cluster):
    _managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:50] + positions[60:70])
    await cursor.reset(positions[10])
    assert cursor.first_unacknowledged == positions[10] and cursor.backlog_entries == 90
    await cursor.reset((2**63 - 1, 2**63 - 1))
    assert cursor.backlog_entries == 0
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert again.cursors["s"].backlog_entries == 0
    adds = Adds()
    again.append(b"new", adds.callback)
    await adds.wait(1)
    assert again.cursors["s"].backlog_entries == 1
    await again.close()


async def test_deleting_a_cursor_removes_it_and_its_ledger(cluster):
    managed, cursor, positions = await filled(cluster)
    cursor.acknowledge(positions[:5])
    await cursor.flush()
    ledger_id = (await record_of(cluster)).ledger_id
    await managed.delete_cursor("s")
    assert metadata_keys.cursor(NAME, "s") not in cluster.metadata.records.by_key
    assert metadata_keys.ledger(ledger_id) not in cluster.metadata.records.by_key
    with pytest.raises(SubscriptionNotFound):
        await managed.delete_cursor("s")
    await managed.close()
    assert (await open_(cluster, epoch=2)).cursors == {}


@pytest.mark.promise("21.2")
async def test_a_non_durable_cursor_writes_nothing(cluster):
    managed, _, positions = await filled(cluster)
    cursor = managed.new_non_durable_cursor(positions[50])
    assert cursor.backlog_entries == 50
    keys = list(cluster.metadata.records.by_key)
    cursor.acknowledge(positions[50:60])
    await cursor.flush()
    await cursor.reset(positions[0])
    assert cursor.backlog_entries == 100 and list(cluster.metadata.records.by_key) == keys
    await managed.close()


@pytest.mark.promise("12.5")
async def test_batch_indexes_survive(cluster):
    _managed, cursor, positions = await filled(cluster)
    cursor.acknowledge_batch_index(positions[0], [0b1010], 4)
    await cursor.flush()
    again = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    found = again.cursors["s"]
    assert found.batches.ack_set(positions[0]) == [0b1010] and not found.is_acknowledged(positions[0])
    found.acknowledge_batch_index(positions[0], [0b0101], 4)
    assert found.is_acknowledged(positions[0]) and found.mark_delete_position == positions[0]
    await again.close()


async def test_a_mark_of_newer_metadata_goes_back_durably_and_skips_nothing(cluster):
    managed = await open_(cluster)
    await managed.open_cursor("s", "earliest")
    assert not (await _append(managed, 3)).errors
    await managed.close()
    key = metadata_keys.cursor(NAME, "s")
    version = (await cluster.metadata.get(key)).version
    newer = CursorState(LedgerChain([]), (90, -1))
    await cluster.metadata.put(key, CursorRecord(1, None, newer.pack()).pack(), version)
    managed = await open_(cluster, epoch=2)
    assert managed.cursors["s"].mark_delete_position == managed.last_confirmed
    assert not (await _append(managed, 2)).errors
    assert managed.last_confirmed[0] < 90
    managed = await open_(cluster, epoch=3)  # the former owner never wrote the cursor again
    assert managed.cursors["s"].backlog_entries == 2
    await managed.close()


@pytest.mark.parametrize(("mark", "begins_again"), [((90, 4), True), ("last", False), ("behind the last", True)])
async def test_sequence_ids_of_newer_metadata_are_forgotten_and_all_entries_read_again(cluster, mark, begins_again):
    managed = await open_(cluster)
    cursor = await managed.open_cursor("pulsar.dedup", "earliest", kind=CursorKind.DEDUPLICATION)
    cursor.take_snapshot((-1, -1), {"p": "7"})
    await cursor.flush()
    positions = (await _append(managed, 3)).positions
    await managed.close()
    last = positions[-1]
    mark = {"last": last, "behind the last": (last[0], last[1] + 1)}.get(mark, mark)
    key = metadata_keys.cursor(NAME, "pulsar.dedup")
    version = (await cluster.metadata.get(key)).version
    newer = CursorState(LedgerChain([]), mark, {"p": "9"}).pack()
    await cluster.metadata.put(key, CursorRecord(1, None, newer, CursorKind.DEDUPLICATION).pack(), version)
    for epoch in (2, 3):  # the owner of epoch 2 never wrote the cursor again
        managed = await open_(cluster, epoch=epoch)
        found = managed.cursors["pulsar.dedup"]
        assert dict(found.properties) == ({} if begins_again else {"p": "9"})
        assert found.first_unacknowledged == (positions[0] if begins_again else managed.next_position(last))
    await managed.close()


async def _append(managed, count):
    adds = Adds()
    for number in range(count):
        managed.append(b"%d" % number, adds.callback)
    await adds.wait(count)
    return adds
