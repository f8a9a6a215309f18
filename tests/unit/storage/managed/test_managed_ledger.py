"""Managed ledgers over scripted bookies: opening, ownership, rollover, failures, reading, trimming, pins."""

import asyncio

import pytest

from magnetar.protocol.entries import build_entry
from magnetar.protocol.errors import (
    AlreadyClosed,
    LedgerFenced,
    MetadataError,
    MetadataUnavailable,
    NoSuchLedger,
    OutcomeUnknown,
    StaleEpoch,
)
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.runtime.transitions import ForbiddenTransition
from magnetar.storage.managed import trimming
from magnetar.storage.managed.cursor import Cursor
from magnetar.storage.managed.deletion import delete_managed_ledger
from magnetar.storage.managed.life import ManagedLedgerState
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerState
from support.fakes.bookies import Adds, until
from support.stores.managed_ledger_kit import NAME, append, bodies, open_, read_all

pytestmark = pytest.mark.cluster_settings(
    add_entry_timeout_s=1.0, ledger_entries_max=10, ledger_rollover_min_minutes=0, cursor_flush_interval_s=0.02
)


async def test_an_idle_topic_costs_one_record_and_no_ledger(cluster):
    managed = await open_(cluster)
    assert managed.last_confirmed == (-1, -1) and await read_all(managed) == []
    await managed.close()
    assert list(cluster.metadata.records.by_key) == [metadata_keys.managed_ledger(NAME)]


async def test_appends_are_in_order_across_rollovers_and_read_back(cluster):
    managed = await open_(cluster, keep=True)
    appended = 0

    def count():
        nonlocal appended
        appended += 1

    managed.on_appended.append(count)
    adds = Adds()
    for number in range(95):
        managed.append(b"body %d" % number, adds.callback)
        if number % 7 == 0:
            await asyncio.sleep(0.001)
    await adds.wait(95)
    assert not adds.errors and adds.positions == sorted(adds.positions)
    found = await read_all(managed)
    assert [body for _, body in found] == bodies(95)
    assert [position for position, _ in found] == adds.positions
    assert len(managed.ledger_infos) > 1 and 0 < appended <= 95
    assert managed.count_after((-1, -1)) == 95
    await managed.close()


async def test_a_new_owner_reads_everything_and_the_old_one_is_fenced(cluster):
    old = await open_(cluster, epoch=1, keep=True)
    await append(old, bodies(25))
    fenced = []
    old.on_fenced.append(fenced.append)
    new = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    adds = await append(old, [b"zombie"])
    assert isinstance(adds.outcomes[0], LedgerFenced | StaleEpoch) and len(fenced) == 1
    with pytest.raises((LedgerFenced, StaleEpoch)):
        old.append(b"again", adds.callback)
    assert [body for _, body in await read_all(new)] == bodies(25)
    await append(new, bodies(5, 25))
    assert [body for _, body in await read_all(new)] == bodies(30)
    with pytest.raises(StaleEpoch):
        await open_(cluster, epoch=1)
    await new.close()
    await old.close()


async def test_a_zombie_without_a_ledger_cannot_start_one(cluster):
    """The old owner was idle when it lost the topic: there was no ledger to fence, so the record's epoch refuses it."""
    old = await open_(cluster, epoch=1)
    new = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    adds = await append(old, [b"zombie"])
    assert isinstance(adds.outcomes[0], StaleEpoch)
    assert await read_all(new) == []
    with pytest.raises(StaleEpoch):
        await old.open_cursor("s")
    await new.close()
    await old.close()


async def test_a_missing_ledger_fails_the_load(cluster):
    managed = await open_(cluster)
    await append(managed, bodies(3))
    await managed.close()
    await cluster.ledgers.delete(managed.ledger_infos[0].ledger_id)
    with pytest.raises(NoSuchLedger):
        await open_(cluster, epoch=2)


async def test_a_load_that_fails_leaves_nothing_running(cluster, monkeypatch):
    managed = await open_(cluster)
    for name in ("bad", "slow"):
        await managed.open_cursor(name)
    await managed.close()
    open_one, ended = Cursor.open, []

    async def slow(home, name, value, version, end):
        if name == "bad":
            raise MetadataError("this cursor cannot be read")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(name)
        return await open_one(home, name, value, version, end)

    monkeypatch.setattr(Cursor, "open", slow)
    with pytest.raises(MetadataError):
        await open_(cluster, epoch=2)
    assert ended == ["slow"]


async def test_every_open_ledger_of_the_chain_is_recovered(cluster):
    """Also those before the last: the writer died between a rollover and closing the old ledger."""
    managed = await open_(cluster, keep=True)
    await append(managed, bodies(10))
    await until(lambda: all(info.closed for info in managed.ledger_infos[:-1]) and len(managed.ledger_infos) == 2)
    first = managed.ledger_infos[0].ledger_id
    record = await cluster.ledgers.records.get(first)
    reopened = record.metadata.__class__(**{**vars(record.metadata), "state": LedgerState.OPEN, "last_entry": -1})
    await cluster.ledgers.records.replace(reopened, record.version)
    new = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
    assert (await cluster.ledgers.records.get(first)).metadata.last_entry == 9
    assert [body for _, body in await read_all(new)] == bodies(10)
    await new.close()
    await managed.close()


async def test_reads_below_the_tail_go_to_bookies_in_few_requests(cluster):
    managed = await open_(cluster)
    await append(managed, bodies(9))
    await managed.close()
    ledgers = cluster.new_ledgers()
    managed = await open_(cluster, epoch=2, ledgers=ledgers)
    for bookie in cluster.bookies.values():
        bookie.log.clear()
    found, first = [], (-1, -1)
    while batch := await managed.read(first, 2, 1 << 20):
        assert len(batch) <= 2
        found += batch
        first = (batch[-1][0][0], batch[-1][0][1] + 1)
    assert [body for _, body in found] == bodies(9)
    assert sum(len(bookie.log) for bookie in cluster.bookies.values()) <= 2
    await managed.close()


async def test_reading_respects_bounds_and_never_shows_unconfirmed_entries(cluster):
    managed = await open_(cluster)
    await append(managed, bodies(5))
    ledger_id = managed.last_confirmed[0]
    assert len(await managed.read((ledger_id, 0), 3, 1 << 20)) == 3
    assert len(await managed.read((ledger_id, 0), 3, 1)) == 1
    assert len(await managed.read((ledger_id, 0), 10, 1 << 20, upto=(ledger_id, 1))) == 2
    for bookie in cluster.bookies.values():
        bookie.hang()
    managed.append(b"pending", Adds().callback)
    assert await managed.read((ledger_id, 5), 10, 1 << 20) == []
    for bookie in cluster.bookies.values():
        bookie.wake()
    await managed.close()


@pytest.mark.promise("26.1", "28.8")
async def test_trimming_waits_for_the_slowest_durable_cursor(cluster):
    managed = await open_(cluster)
    fast, slow = await managed.open_cursor("fast", "earliest"), await managed.open_cursor("slow", "earliest")
    adds = await append(managed, bodies(10))
    await until(lambda: len(managed.ledger_infos) == 2)
    await append(managed, bodies(3, 10))
    fast.acknowledge_cumulative(managed.last_confirmed)
    assert await managed.trim() == []
    slow.acknowledge(adds.positions)
    first = managed.ledger_infos[0].ledger_id
    assert await managed.trim() == [first]
    with pytest.raises(NoSuchLedger):
        await cluster.ledgers.records.get(first)
    assert [body for _, body in await read_all(managed)] == bodies(3, 10)
    assert slow.backlog_entries == 3 and fast.backlog_entries == 0
    await managed.close()
    again = await open_(cluster, epoch=2)
    assert again.cursors["slow"].backlog_entries == 3
    await again.close()


async def test_a_trim_that_is_under_way_sees_a_cursor_go_back(cluster, monkeypatch):
    managed = await open_(cluster, keep=True)
    adds = await append(managed, bodies(30))
    cursor = managed.cursors["keep"]
    await asyncio.sleep(0.05)
    cursor.acknowledge_cumulative(adds.positions[-1])
    await cursor.flush()
    pinned = managed._pins.pinned
    going_back = []

    async def slow():
        going_back.append(asyncio.create_task(cursor.reset(adds.positions[0])))
        await asyncio.sleep(0)
        return await pinned()

    monkeypatch.setattr(managed._pins, "pinned", slow)
    assert await managed.trim() == []
    await going_back[0]
    assert cursor.backlog_entries == 30 and [body for _, body in await read_all(managed)] == bodies(30)
    await managed.close()


async def test_a_seek_returns_when_a_trim_that_does_not_know_of_it_is_over(cluster, monkeypatch):
    """Else the trim takes what the cursor has durably gone back to."""
    managed = await open_(cluster, keep=True)
    adds = await append(managed, bodies(30))
    cursor = managed.cursors["keep"]
    await asyncio.sleep(0.05)
    cursor.acknowledge_cumulative(adds.positions[-1])
    await cursor.flush()
    change = managed._owned.change
    going_back = []

    async def slow(transform, **options):
        if not going_back:
            going_back.append(asyncio.create_task(cursor.reset(adds.positions[0])))
            returned, _ = await asyncio.wait(going_back, timeout=0.2)
            assert not returned
        return await change(transform, **options)

    monkeypatch.setattr(managed._owned, "change", slow)
    gone = await managed.trim()
    assert gone
    await going_back[0]
    assert cursor.first_unacknowledged == managed.first_position > (gone[-1], 0)
    await managed.close()


async def test_without_durable_cursors_nothing_is_kept_but_the_current_ledger(cluster):
    managed = await open_(cluster)
    await append(managed, bodies(10))
    await until(lambda: len(managed.ledger_infos) == 1 and managed.ledger_infos[0].entries == 0)
    await append(managed, bodies(1, 10))
    assert [body for _, body in await read_all(managed)] == bodies(1, 10)
    await managed.close()


async def test_pins_hold_ledgers_until_removed_or_expired(cluster):
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest")
    await append(managed, bodies(10))
    await until(lambda: len(managed.ledger_infos) == 2)
    await append(managed, bodies(2, 10))
    plan = await managed.plan((-1, -1), ttl_s=60)
    assert plan.last == managed.last_confirmed and [one.ledger_id for one in plan.ledgers] == [
        info.ledger_id for info in managed.ledger_infos
    ]
    short = await managed.pin([plan.ledgers[0].ledger_id], ttl_s=0.0)
    cursor.acknowledge_cumulative(managed.last_confirmed)
    assert await managed.trim() == []
    assert not await managed.unpin(short), "an expired pin is removed by the trim"
    assert plan.pin is not None and await managed.unpin(plan.pin)
    await until(lambda: len(managed.ledger_infos) == 1)  # unpinning trims
    assert managed.ledger_infos[0].ledger_id != plan.ledgers[0].ledger_id
    empty = await managed.plan((managed.last_confirmed[0], 99), before_bytes=1 << 30)
    assert empty.ledgers == () and empty.pin is None
    await managed.close()


async def test_a_plan_may_have_ledgers_before_its_start_and_holds_them(cluster):
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest")
    for number in range(3):
        await append(managed, bodies(10, 10 * number))
        await until(lambda count=number + 2: len(managed.ledger_infos) == count)
    await append(managed, bodies(2, 30))
    first, second, third, last = [info.ledger_id for info in managed.ledger_infos]
    plain = await managed.plan((last, 1))
    assert [one.ledger_id for one in plain.ledgers] == [last]
    plan = await managed.plan((last, 1), before_bytes=2 * managed.ledger_infos[0].size_bytes)
    assert plan.first == (last, 1) and [one.ledger_id for one in plan.ledgers] == [second, third, last]
    cursor.acknowledge_cumulative(managed.last_confirmed)
    await managed.trim()
    assert [info.ledger_id for info in managed.ledger_infos] == [second, third, last]
    every = await managed.plan((third, 0), (third, 0), before_bytes=1 << 30)
    assert [one.ledger_id for one in every.ledgers] == [second, third] and first < second
    await managed.close()


async def test_positions_never_go_back_even_when_everything_was_trimmed(cluster):
    """Another broker has an older block of ledger ids; a cursor's mark must not cover what it writes."""
    other = cluster.new_ledgers()
    await other.create()
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest")
    await append(managed, bodies(3))
    cursor.acknowledge_cumulative(managed.last_confirmed)
    mark = cursor.mark_delete_position
    await managed.close()
    managed = await open_(cluster, epoch=2)
    await managed.trim()
    assert managed.ledger_infos == []
    await managed.close()
    managed = await open_(cluster, epoch=3, ledgers=other)
    adds = await append(managed, [b"after"])
    assert adds.positions[0] > mark
    assert managed.cursors["s"].backlog_entries == 1
    assert managed.cursors["s"].first_unacknowledged == adds.positions[0]
    await managed.close()


async def test_a_deletion_that_was_cut_short_is_finished_by_the_next_owner(cluster, monkeypatch):
    monkeypatch.setattr(trimming, "OPEN_SPREAD_S", 0.0)
    managed = await open_(cluster)
    await managed.open_cursor("s", "earliest")
    await append(managed, bodies(10))
    await until(lambda: len(managed.ledger_infos) == 2)
    first = managed.ledger_infos[0].ledger_id

    async def away(*arguments):
        raise MetadataUnavailable("the coordinator is away")

    delete, cluster.metadata.delete = cluster.metadata.delete, away
    managed.cursors["s"].acknowledge_cumulative(managed.last_confirmed)
    assert await managed.trim() == [first]
    await managed.close()
    cluster.metadata.delete = delete
    managed = await open_(cluster, epoch=2)
    await until(lambda: metadata_keys.ledger(first) not in cluster.metadata.records.by_key)
    await managed.close()


async def test_deleting_a_topic_leaves_nothing(cluster):
    managed = await open_(cluster)
    await managed.open_cursor("s", "earliest")
    await append(managed, bodies(25))
    await managed.plan((-1, -1))
    await delete_managed_ledger(cluster.env, cluster.new_ledgers(), cluster.metadata, NAME, 2)
    left = [key for key in cluster.metadata.records.by_key if not key.startswith("counters/")]
    assert left == []
    # Who had it open gets no acknowledgement any longer.
    adds = Adds()
    managed.append(b"x", adds.callback)
    await adds.wait(1)
    assert isinstance(adds.errors[0], LedgerFenced)


async def test_find_by_publish_time(cluster):
    managed = await open_(cluster)
    await managed.open_cursor("s", "earliest")
    entries = [
        build_entry(MessageMetadata(producer_name="p", sequence_id=number, publish_time=1000 + 10 * number), b"x")
        for number in range(35)
    ]
    adds = await append(managed, entries)
    assert await managed.find_by_publish_time(0) == adds.positions[0]
    assert await managed.find_by_publish_time(1000) == adds.positions[0]
    assert await managed.find_by_publish_time(1171) == adds.positions[18]
    assert await managed.find_by_publish_time(1170) == adds.positions[17]
    assert await managed.find_by_publish_time(5000) == managed.next_position(managed.last_confirmed)
    await managed.close()


async def test_opening_a_thousand_idle_topics_is_fast(cluster):
    names = [f"persistent/public/default/t{number}" for number in range(1000)]
    started = asyncio.get_running_loop().time()
    opened = await asyncio.gather(*(open_(cluster, name=name) for name in names))
    assert asyncio.get_running_loop().time() - started < 3
    await asyncio.gather(*(managed.close() for managed in opened))


async def test_a_new_ledger_that_the_next_owner_has_taken_over_is_not_deleted(cluster):
    """Its compare-and-set landed, the answer was lost, and another owner wrote on top before that was known."""
    managed = await open_(cluster)
    write_many = cluster.metadata.write_many
    taken = []

    async def lossy(writes, guard=None):
        result = await write_many(writes, guard)
        if writes[0].key == metadata_keys.managed_ledger(NAME) and not taken:
            taken.append(None)
            taken[0] = await open_(cluster, epoch=2, ledgers=cluster.new_ledgers())
            raise OutcomeUnknown("the answer was lost")
        return result

    cluster.metadata.write_many = lossy
    adds = await append(managed, bodies(1))
    assert isinstance(adds.outcomes[0], StaleEpoch)
    await taken[0].close()
    again = await open_(cluster, epoch=3)
    assert await read_all(again) == []
    await again.close()


async def test_a_topic_that_is_closed_cannot_be_fenced_and_says_why_it_ended(cluster):
    managed = await open_(cluster)
    await managed.close()
    managed._fenced(StaleEpoch("another owner"))
    with pytest.raises(AlreadyClosed):
        await managed.open_cursor("s")
    with pytest.raises(ForbiddenTransition, match="cannot go from closed to fenced"):
        managed._life.become(ManagedLedgerState.FENCED, StaleEpoch("another owner"))


async def test_the_time_of_creation_is_that_of_the_first_owner(cluster):
    first = await open_(cluster, epoch=1)
    created_ms = first.created_ms
    await append(first, bodies(1))
    await first.close()
    await until(lambda: cluster.env.clock.now_ms() > created_ms)
    second = await open_(cluster, epoch=2)
    assert second.created_ms == created_ms > 0
    await second.close()
