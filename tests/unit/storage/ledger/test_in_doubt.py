"""Recovery of ledgers that may be newer than their records, because the metadata was restored from a backup."""

import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus
from magnetar.protocol.errors import LedgerInDoubt
from magnetar.storage.ledger.recovery_state import FencingPhase, FencingState, ReadingPhase, ReadingState
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata
from support.fakes.bookies import Adds, until

pytestmark = pytest.mark.cluster_settings(add_entry_timeout_s=0.5, read_entry_timeout_s=0.3)


@pytest.fixture
async def five(five):
    """With their cookies in the metadata."""
    for name in five.bookies:
        await five.metadata.put(f"bookies/{name}", b"cookie", None)
    return five


async def moved_after_the_backup(cluster):
    """A ledger whose entry 0 is on three bookies and entries 1 and 2 on the two others and one of them; the restored
    record names the three. Returns its id, and the bookies that the record names."""
    writer = await cluster.ledgers.create()
    backup = await cluster.ledgers.records.get(writer.ledger_id)
    adds = Adds()
    writer.add(b"0", adds.callback)
    await adds.wait(1)
    named = backup.metadata.last_fragment.bookies
    for number, name in enumerate(named[:2], 1):
        cluster.bookies[name].crash()
        writer.add(b"%d" % number, adds.callback)
        await adds.wait(number + 1)
    assert len(adds.positions) == 3
    last = writer.metadata.last_fragment.bookies
    await until(lambda: all(2 in cluster.bookies[name].intact(writer.ledger_id) for name in last))
    await writer.abandon()
    now = await cluster.ledgers.records.get(writer.ledger_id)
    assert not set(now.metadata.last_fragment.bookies) & set(named[:2])
    await cluster.ledgers.records.replace(backup.metadata, now.version)
    for name in named[:2]:
        cluster.bookies[name].restart()
    return writer.ledger_id, named


def in_doubt(cluster, end):
    cluster.directory.update([info._replace(doubtful_end=end) for info in cluster.directory.bookies.values()])


async def bodies(ledgers, metadata):
    reader = ledgers.reader(metadata)
    return [entry.body for entry in await reader.read_all(0, metadata.last_entry)]


async def test_entries_on_bookies_that_the_record_does_not_name_are_found_and_written_back(five):
    ledger_id, named = await moved_after_the_backup(five)
    five.bookies[named[2]].forced[BookieOp.READ] = BookieStatus.UNKNOWN
    in_doubt(five, ledger_id + 1)
    ledgers = five.new_ledgers()
    metadata = await ledgers.recover(ledger_id)
    assert metadata.last_entry == 2
    del five.bookies[named[2]].forced[BookieOp.READ]
    assert await bodies(ledgers, metadata) == [b"0", b"1", b"2"]
    for name in metadata.last_fragment.bookies:
        assert five.bookies[name].intact(ledger_id) == [0, 1, 2]


async def test_without_the_mark_the_same_ledger_would_be_cut_short(five):
    ledger_id, named = await moved_after_the_backup(five)
    five.bookies[named[2]].forced[BookieOp.READ] = BookieStatus.UNKNOWN
    five.bookies[named[2]].forced[BookieOp.FENCE] = BookieStatus.UNKNOWN
    in_doubt(five, ledger_id)  # those below this one only
    assert (await five.new_ledgers().recover(ledger_id)).last_entry < 2


async def test_as_many_silent_bookies_as_the_ack_quorum_refuse_and_are_named(five):
    ledger_id, named = await moved_after_the_backup(five)
    in_doubt(five, ledger_id + 1)
    others = [name for name in five.bookies if name not in named]
    for name in others:
        five.bookies[name].crash()
    with pytest.raises(LedgerInDoubt) as refused:
        await five.new_ledgers().recover(ledger_id)
    assert all(name in str(refused.value) for name in others) and refused.value.retriable
    assert not (await five.ledgers.records.get(ledger_id)).metadata.closed
    for name in others:
        five.bookies[name].restart()
    assert (await five.new_ledgers().recover(ledger_id)).last_entry == 2


async def test_a_bookie_that_only_the_metadata_knows_could_hold_the_entry(five):
    ledger_id, _ = await moved_after_the_backup(five)
    in_doubt(five, ledger_id + 1)
    for number in (6, 7):
        await five.metadata.put(f"bookies/bookie-{number}", b"cookie", None)
    with pytest.raises(LedgerInDoubt, match="bookie-6, bookie-7"):
        await five.new_ledgers().recover(ledger_id)


async def test_a_ledger_deleted_after_the_backup_is_closed_empty(five):
    ledger_id, _ = await moved_after_the_backup(five)
    in_doubt(five, ledger_id + 1)
    for bookie in five.bookies.values():
        bookie.ledgers.pop(ledger_id, None)
    assert (await five.new_ledgers().recover(ledger_id)).last_entry == -1


async def test_tombstones_on_too_many_bookies_end_the_ledger_behind_what_was_written_back(five):
    ledger_id, _ = await moved_after_the_backup(five)
    in_doubt(five, ledger_id + 1)
    for bookie in five.bookies.values():
        bookie.forced[BookieOp.ADD] = BookieStatus.NO_SUCH_LEDGER
    assert (await five.new_ledgers().recover(ledger_id)).last_entry == -1


async def test_doubt_that_comes_up_during_the_recovery_begins_it_again(five, monkeypatch):
    ledger_id, named = await moved_after_the_backup(five)
    five.bookies[named[2]].forced[BookieOp.READ] = BookieStatus.UNKNOWN
    ledgers = five.new_ledgers()
    read = ledgers.client.read

    async def reading(*arguments, **options):
        in_doubt(five, ledger_id + 1)
        return await read(*arguments, **options)

    monkeypatch.setattr(ledgers.client, "read", reading)
    assert (await ledgers.recover(ledger_id)).last_entry == 2


def test_entries_up_to_the_highest_lac_that_are_lost_are_passed_over_and_end_nothing():
    metadata = LedgerMetadata(1, 3, 3, 2, (Fragment(0, ("a", "b", "c")),))
    everyone = ("a", "b", "c", "d")
    fencing = FencingState(metadata, everyone)
    for bookie, lac in (("a", -1), ("d", 1)):
        assert fencing.known(bookie, lac) is FencingPhase.WAITING
    assert fencing.unknown("b") is FencingPhase.WAITING and fencing.known("c") is FencingPhase.FENCED
    assert (fencing.start, fencing.lac, fencing.silent) == (0, 1, ["b"])
    reading = ReadingState(metadata, fencing.start, everyone, fencing.lac)
    for entry_id in range(3):
        for bookie in ("a", "c"):
            reading.denied(entry_id, bookie)
    assert reading.judge() is ReadingPhase.READING and reading.next_entry == 0, "b and d could hold it"
    for entry_id in range(2):
        reading.denied(entry_id, "d")
    reading.failed(2, "b")
    assert reading.judge() is ReadingPhase.READING and reading.next_entry == 2
    reading.failed(2, "d")
    assert reading.judge() is ReadingPhase.GIVEN_UP and reading.silent == ["b", "d"]
