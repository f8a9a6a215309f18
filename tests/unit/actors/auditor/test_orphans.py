"""Ledgers that nothing names are deleted; those that something names, or is about to name, never to anybody's harm."""

import asyncio

import pytest

from magnetar.actors.auditor import orphans as orphan_ledgers
from magnetar.actors.auditor import pace as pace_module
from magnetar.actors.auditor.orphans import RECORD_KINDS, OrphanLedgers
from magnetar.actors.auditor.pace import ReadPace
from magnetar.protocol.errors import ConditionFailed, MetadataError, MetadataUnavailable
from magnetar.storage.managed.cursor_storage import CursorRecord
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.managed.pins import PinRecord
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import list_all, pack
from support.fakes.bookies import Adds, until

NAME = "persistent/public/default/t"
NAMING = [kind.prefix for kind in RECORD_KINDS if kind.names_ledgers]
RECORDS_OF_ONE_LEDGER = {
    metadata_keys.MANAGED_PREFIX: lambda one: ManagedLedgerRecord(1, deleting=(one,)).pack(),
    metadata_keys.CURSORS_PREFIX: lambda one: CursorRecord(1, one, None).pack(),
    metadata_keys.PINS_PREFIX: lambda one: PinRecord((one,), 60_000).pack(),
}
"""By prefix: a record that names one ledger. A kind that names ledgers and is not here fails the tests."""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphan_ledgers, "SEARCH_PAUSE_S", 0.0)
    monkeypatch.setattr(orphan_ledgers, "ORPHAN_AFTER_S", 0.0)


@pytest.fixture
def orphans(cluster):
    return OrphanLedgers(cluster.env, cluster.metadata, ReadPace())


async def open_(cluster, epoch=1):
    return await ManagedLedger.open(cluster.env, cluster.ledgers, cluster.metadata, NAME, epoch, cluster.settings)


async def append(managed, count=1):
    adds = Adds()
    for _ in range(count):
        managed.append(b"x", adds.callback)
    await adds.wait(count)
    return adds


async def ledgers_in(cluster):
    return [
        metadata_keys.ledger_id_of(key) for key, _ in await list_all(cluster.metadata, metadata_keys.LEDGERS_PREFIX)
    ]


async def named_by_all(cluster):
    """A topic with a ledger of its own, one of a cursor and a pin."""
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest", {})
    adds = await append(managed, 3)
    cursor.acknowledge(adds.positions[1:2])
    await cursor.flush()
    return managed


async def test_what_something_names_stays_and_what_nothing_names_goes(cluster, orphans):
    managed = await named_by_all(cluster)
    named = await ledgers_in(cluster)
    assert len(named) == 2
    for close in (False, True):
        writer = await cluster.ledgers.create()
        if close:
            await writer.close()
    kept = await cluster.ledgers.create()
    pins = metadata_keys.pin("persistent/public/default/other", "p")
    await cluster.metadata.put(pins, pack({"ledgers": [kept.ledger_id], "ttl_ms": 60_000}), None)
    assert await orphans.collect() == 2
    assert await ledgers_in(cluster) == [*named, kept.ledger_id]
    assert await orphans.collect() == 0 and not orphans.suspected
    await append(managed)
    await managed.close()
    again = await open_(cluster, epoch=2)
    assert again.last_confirmed[1] == 3
    await again.close()


async def test_ledgers_beside_the_state_of_a_cursor_stay(cluster, orphans):
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest", {})
    kept = await cursor.side.add([b"x"], lambda: True)
    assert await orphans.collect() == 0 and kept in await ledgers_in(cluster)
    await managed.close()


async def test_a_ledger_has_its_time_to_be_named(cluster, orphans, monkeypatch):
    monkeypatch.setattr(orphan_ledgers, "ORPHAN_AFTER_S", 3600.0)
    await cluster.ledgers.create()
    assert await orphans.collect() == 0 and orphans.suspected == 1
    assert len(await ledgers_in(cluster)) == 1
    monkeypatch.setattr(orphan_ledgers, "ORPHAN_AFTER_S", 0.0)
    monkeypatch.setattr(orphan_ledgers, "SEARCH_PAUSE_S", 3600.0)
    assert await orphans.collect() == 1
    await cluster.ledgers.create()
    assert await orphans.collect() == 0, "the last search was a moment ago"


@pytest.mark.parametrize("prefix", NAMING)
async def test_a_record_that_cannot_be_read_keeps_every_ledger(cluster, orphans, prefix):
    await cluster.ledgers.create()
    await cluster.metadata.put(f"{prefix}t/x", b"\x00nonsense", None)
    with pytest.raises(MetadataError, match=f"{prefix}t/x"):
        await orphans.collect()
    assert len(await ledgers_in(cluster)) == 1


async def test_a_malformed_key_and_a_ledger_that_cannot_be_decoded_keep_no_other_ledger(cluster, orphans):
    strange = [metadata_keys.ledger(1 << 40), "ledgers/-", "ledgers/x"]
    for key in strange:
        await cluster.metadata.put(key, b"\x00nonsense", None)
    for _ in range(2):
        await cluster.ledgers.create()
    assert await orphans.collect() == 2
    left = await list_all(cluster.metadata, metadata_keys.LEDGERS_PREFIX)
    assert sorted(key for key, _ in left) == sorted(strange)
    assert await orphans.collect() == 0


@pytest.mark.parametrize("prefix", NAMING)
async def test_a_record_that_becomes_unreadable_during_the_search_keeps_every_ledger(cluster, orphans, prefix):
    await cluster.ledgers.create()
    mark = orphans._mark

    async def marked(ledger_id):
        version = await mark(ledger_id)
        await cluster.metadata.put(f"{prefix}t/x", b"\x00nonsense", None)
        return version

    orphans._mark = marked
    with pytest.raises(MetadataError, match=f"{prefix}t/x"):
        await orphans.collect()
    assert len(await ledgers_in(cluster)) == 1


@pytest.mark.parametrize("prefix", NAMING)
async def test_ledgers_that_a_record_names_stay_until_the_record_goes(cluster, orphans, prefix):
    writer = await cluster.ledgers.create()
    key = f"{prefix}persistent/public/default/t/x"
    await cluster.metadata.put(key, RECORDS_OF_ONE_LEDGER[prefix](writer.ledger_id), None)
    assert await orphans.collect() == 0 and not orphans.suspected
    await cluster.metadata.delete(key, None)
    assert await orphans.collect() == 1
    assert await ledgers_in(cluster) == []


def between(cluster, name_prefix, action):
    """Carry out `action` once, right before the first write of a key that begins so."""
    write_many = cluster.metadata.write_many
    done = []

    async def patched(writes, guard=None):
        if writes[0].key.startswith(name_prefix) and writes[0].needs is not None and not done:
            done.append(await action())
        return await write_many(writes, guard)

    cluster.metadata.write_many = patched
    return done


async def test_a_broker_that_names_a_ledger_too_late_is_refused_and_makes_another(cluster, orphans):
    managed = await open_(cluster)
    collected = between(cluster, metadata_keys.MANAGED_PREFIX, orphans.collect)
    adds = await append(managed)
    assert collected == [1] and isinstance(adds.outcomes[0], ConditionFailed)
    adds = await append(managed)
    assert not adds.errors
    await managed.close()
    assert len(await ledgers_in(cluster)) == 1
    await (await open_(cluster, epoch=2)).close()


async def test_and_so_is_a_cursor(cluster, orphans):
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest", {})
    adds = await append(managed, 3)
    collected = between(cluster, metadata_keys.CURSORS_PREFIX, orphans.collect)
    cursor.acknowledge(adds.positions[:1])
    with pytest.raises(ConditionFailed):
        await cursor.flush()
    assert collected == [1]
    await cursor.flush()
    assert cursor.durable_mark_delete == adds.positions[0]
    await managed.close()
    again = await open_(cluster, epoch=2)
    assert again.cursors["s"].mark_delete_position == adds.positions[0]
    await again.close()


@pytest.mark.parametrize("step", ["before the mark", "after the mark"])
async def test_a_ledger_that_is_named_during_the_search_is_kept_or_refused(cluster, orphans, step, monkeypatch):
    """The naming write comes on either side of the mark: it lands and is seen, or it is refused."""
    managed = await open_(cluster)
    outcomes = []
    mark = orphans._mark

    async def marked(ledger_id):
        if step == "before the mark":
            outcomes.append((await append(managed)).errors)
            return await mark(ledger_id)
        version = await mark(ledger_id)
        outcomes.append((await append(managed)).errors)
        return version

    writer = await cluster.ledgers.create()

    async def create(*, above=-1, copies=None):
        return writer

    monkeypatch.setattr(cluster.ledgers, "create", create)
    monkeypatch.setattr(orphans, "_mark", marked)
    deleted = await orphans.collect()
    if step == "before the mark":
        assert (outcomes, deleted) == ([[]], 0)
        assert await ledgers_in(cluster) == [writer.ledger_id]
        assert not (await append(managed)).errors
    else:
        assert [type(error) for error in outcomes[0]] == [ConditionFailed]
        assert await ledgers_in(cluster) == []
    await managed.close()
    monkeypatch.undo()
    await (await open_(cluster, epoch=2)).close()


# -- a search that takes long ------------------------------------------------------------------------------------------


def at_pass(orphans, number, action):
    """Carry out `action` once, when all names have been read for the `number`th time."""
    read_names = orphans._read_names
    passes, done = [], []

    async def patched(take):
        await read_names(take)
        passes.append(None)
        if len(passes) == number:
            done.append(await action())

    orphans._read_names = patched
    return done


async def test_walk_and_search_share_one_rate(monkeypatch):
    monkeypatch.setattr(pace_module, "RECORDS_PER_S_MAX", 1000)
    pace, loop = ReadPace(), asyncio.get_running_loop()
    started = loop.time()
    turns = [0]

    async def reader(pages):
        for _ in range(pages):
            await pace.keep(25)

    async def others():
        while True:
            turns[0] += 1
            await asyncio.sleep(0.005)

    busy = loop.create_task(others())
    await asyncio.gather(reader(4), reader(4))
    busy.cancel()
    assert loop.time() - started >= 0.19 and turns[0] >= 10
    await asyncio.sleep(0.05)
    started = loop.time()
    await pace.keep(25)
    assert loop.time() - started >= 0.02, "a pause earns nothing"


async def test_each_page_of_a_search_is_held_back(cluster, orphans, monkeypatch):
    monkeypatch.setattr(orphan_ledgers, "RECORDS_PER_PAGE", 2)
    kept = []

    async def keep(records):
        kept.append(records)

    monkeypatch.setattr(orphans._pace, "keep", keep)
    for _ in range(5):
        await cluster.ledgers.create()
    await cluster.metadata.put(metadata_keys.pin(NAME, "p"), PinRecord((1, 2), 60_000).pack(), None)
    assert await orphans.collect() == 3
    assert kept == [2, 2] + 3 * [1] + 3 * [1], "pages of ledgers, marks and deletions"


async def test_a_ledger_that_is_created_during_a_search_stays_a_suspect(cluster, orphans):
    async def create():
        orphans.created((await cluster.ledgers.create()).ledger_id)

    done = at_pass(orphans, 1, create)
    assert await orphans.collect() == 0 and done and orphans.suspected == 1
    assert await orphans.collect_due() == 1, "a day earlier than by the time of the next search"


async def test_a_ledger_that_is_named_during_a_search_is_not_even_marked(cluster, orphans, monkeypatch):
    """Behind the page that the search reads. It has been a suspect for long."""
    writer = await cluster.ledgers.create()
    orphans.created(writer.ledger_id)
    key = metadata_keys.pin(NAME, "p")

    async def name():
        await cluster.metadata.put(key, PinRecord((writer.ledger_id,), 60_000).pack(), None)
        orphans.written(key)

    done = at_pass(orphans, 1, name)
    version = (await cluster.metadata.get(metadata_keys.ledger(writer.ledger_id))).version
    assert await orphans.collect() == 0 and done and not orphans.suspected
    assert (await cluster.metadata.get(metadata_keys.ledger(writer.ledger_id))).version == version


async def test_names_that_come_during_a_search_are_read_by_it_however_many(cluster, orphans, monkeypatch):
    monkeypatch.setattr(orphan_ledgers, "RECORDS_PER_PAGE", 2)
    monkeypatch.setattr(orphan_ledgers, "TOLD_MAX", 3)
    for _ in range(8):
        await cluster.ledgers.create()
    for number in range(10):
        await cluster.metadata.put(metadata_keys.pin(f"{NAME}/z-{number}", "p"), PinRecord((1,), 60_000).pack(), None)
    read, unnamed, passing = orphans._read, iter(range(2, 9)), []

    async def reading(prefix, ledgers_of, take):
        passing.append(prefix)
        await read(prefix, ledgers_of, take)

    async def keep(records):
        for ledger_id in (next(unnamed, None), next(unnamed, None)) if passing[-1] == metadata_keys.PINS_PREFIX else ():
            if ledger_id is not None:
                key = metadata_keys.pin(f"{NAME}/a-{ledger_id}", "p")  # before the pages that are read now
                await cluster.metadata.put(key, PinRecord((ledger_id,), 60_000).pack(), None)
                orphans.written(key)

    monkeypatch.setattr(orphans, "_read", reading)
    monkeypatch.setattr(orphans._pace, "keep", keep)
    before = await list_all(cluster.metadata, metadata_keys.LEDGERS_PREFIX)
    assert await orphans.collect() == 0 and next(unnamed, None) is None and not orphans.suspected
    assert await list_all(cluster.metadata, metadata_keys.LEDGERS_PREFIX) == before, "none is marked"


async def test_a_ledger_that_changes_before_its_deletion_stays_a_suspect(cluster, orphans):
    """The auditor itself may repair it."""
    writer = await cluster.ledgers.create()
    done = at_pass(orphans, 2, writer.close)
    assert await orphans.collect() == 0 and done and orphans.suspected == 1
    assert await orphans.collect() == 1 and not orphans.suspected


async def test_a_writer_that_only_read_the_mark_cannot_name_its_ledger(cluster, orphans, monkeypatch):
    """An auditor had closed the ledger: the writer finds it closed where it ends, and learns the marked version."""
    managed = await open_(cluster)
    cursor = await managed.open_cursor("s", "earliest", {})
    writer = await cluster.ledgers.create()
    stored, go_on = asyncio.Event(), asyncio.Event()
    close = writer.close

    async def create(*, above=-1, copies=None):
        return writer

    async def late_close():
        stored.set()
        await go_on.wait()
        return await close()

    monkeypatch.setattr(cluster.ledgers, "create", create)
    monkeypatch.setattr(writer, "close", late_close)
    naming = asyncio.get_running_loop().create_task(cursor.side.add([b"x"], lambda: True))
    await stored.wait()
    await cluster.new_ledgers().recover(writer.ledger_id)

    async def name():
        go_on.set()
        return await asyncio.gather(naming, return_exceptions=True)

    outcomes = at_pass(orphans, 2, name)
    await orphans.collect()
    assert [type(error) for error in outcomes[0]] == [ConditionFailed]
    assert writer.ledger_id not in await ledgers_in(cluster)
    monkeypatch.undo()
    await managed.close()
    await (await open_(cluster, epoch=2)).close()


async def test_a_pin_that_takes_the_name_over_from_a_chain_is_seen(cluster, orphans, monkeypatch):
    """Pins are read behind chains: the chain drops the ledger before its page is read, the pin comes before that."""
    prefixes = [kind.prefix for kind in RECORD_KINDS if kind.names_ledgers]
    assert prefixes.index(metadata_keys.MANAGED_PREFIX) < prefixes.index(metadata_keys.PINS_PREFIX)
    writer = await cluster.ledgers.create()
    chain = metadata_keys.managed_ledger(NAME)
    await cluster.metadata.put(chain, ManagedLedgerRecord(1, deleting=(writer.ledger_id,)).pack(), None)
    read, moved = orphans._read, []

    async def reading(prefix, ledgers_of, take):
        if prefix == metadata_keys.MANAGED_PREFIX and not moved:
            pin = PinRecord((writer.ledger_id,), 60_000)
            moved.append(await cluster.metadata.put(metadata_keys.pin(NAME, "p"), pin.pack(), None))
            await cluster.metadata.delete(chain, None)
        await read(prefix, ledgers_of, take)

    monkeypatch.setattr(orphans, "_read", reading)
    assert await orphans.collect() == 0 and moved and not orphans.suspected


@pytest.mark.parametrize("at", ["the names", "the second names", "the deletion"])
async def test_a_search_that_fails_deletes_nothing_and_forgets_nothing(cluster, orphans, monkeypatch, at):
    monkeypatch.setattr(orphan_ledgers, "SEARCH_PAUSE_S", 60.0)
    offset_s = [0.0]
    loop = asyncio.get_running_loop()
    real_time = loop.time
    monkeypatch.setattr(loop, "time", lambda: real_time() + offset_s[0])
    orphans.created((await cluster.ledgers.create()).ledger_id)

    async def fail(*arguments):
        raise MetadataUnavailable("away")

    delete = cluster.metadata.delete
    if at == "the deletion":
        monkeypatch.setattr(cluster.metadata, "delete", fail)
    else:
        at_pass(orphans, 1 if at == "the names" else 2, fail)
    pauses = []
    for _ in range(9):
        with pytest.raises(MetadataUnavailable):
            await orphans.collect_due()
        if at == "the second names":
            at_pass(orphans, 2, fail)
        elif at == "the names":
            at_pass(orphans, 1, fail)
        pauses.append(orphans._not_before - loop.time())
        assert await orphans.collect_due() == 0, "not at once"
        offset_s[0] += pauses[-1] + 0.1
        assert not orphans.busy and orphans.suspected == 1 and len(await ledgers_in(cluster)) == 1
    assert [round(pause / 60.0) for pause in pauses] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    monkeypatch.setattr(cluster.metadata, "delete", delete)
    again = OrphanLedgers(cluster.env, cluster.metadata, ReadPace())
    for name in ("_unnamed_since", "_pause_s"):
        setattr(again, name, getattr(orphans, name))
    assert await again.collect_due() == 1 and not again.suspected
    assert 59.0 < again._not_before - loop.time() <= 60.0


async def test_a_search_that_waits_for_the_first_walk_still_takes_names(cluster, orphans):
    writer = await cluster.ledgers.create()
    orphans.created(writer.ledger_id)
    assert await orphans.collect_due(search=False) == 0 and orphans.suspected == 1
    key = metadata_keys.pin(NAME, "p")
    await cluster.metadata.put(key, PinRecord((writer.ledger_id,), 60_000).pack(), None)
    orphans.written(key)
    assert await orphans.collect_due(search=False) == 0 and not orphans.suspected
    await until(lambda: not orphans.busy)
