"""Ledgers that nothing names are deleted; those that something names, or is about to name, never to anybody's harm."""

import pytest

from magnetar.actors.auditor import orphans as orphan_ledgers
from magnetar.actors.auditor.orphans import OrphanLedgers
from magnetar.actors.auditor.record_kinds import RECORD_KINDS
from magnetar.protocol.errors import ConditionFailed, MetadataError
from magnetar.storage.managed.cursor_record import CursorRecord
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.managed.pins import PinRecord
from magnetar.storage.managed.record import ManagedLedgerRecord
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import list_all, pack
from support.fakes.bookies import Adds

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
    return OrphanLedgers(cluster.env, cluster.metadata)


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
