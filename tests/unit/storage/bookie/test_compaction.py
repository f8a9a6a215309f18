"""Compaction: space comes back, nothing alive is lost, rules survive, and it works while the bookie is busy."""

import asyncio

import pytest

from magnetar.protocol.bookie_wire import BookieStatus
from magnetar.protocol.errors import EntryCorrupt
from magnetar.storage.bookie.compaction import SMALL_SEGMENTS_MIN, Compactor
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import DIRECTORY, Bookie, bodies, body_of, turns

S = BookieStatus
SEGMENT_BYTES = 16 << 10


@pytest.fixture
async def made():
    """(files, bookie, compactor) with ledgers 1, 2, 3 interleaved over several segments."""
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    for n in range(0, 300, 10):
        for ledger_id in (1, 2, 3):
            await bookie.add_many(ledger_id, range(n, n + 10))
    compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 40)
    yield files, bookie, compactor
    await compactor.close()
    await bookie.store.close()


def stored_bytes(bookie):
    return sum(segment.end for segment in bookie.store.entries.segments.values())


def names(files, suffix):
    return [name for name in files.list(DIRECTORY) if name.endswith(suffix)]


async def test_nothing_happens_while_everything_is_alive(made):
    files, _, compactor = made
    before = files.list(DIRECTORY)
    done = await compactor.run(0.8)
    assert (done.segments_removed, done.bytes_copied) == (0, 0) and files.list(DIRECTORY) == before


async def test_dead_segments_are_removed_without_copying(made):
    files, bookie, compactor = made
    await bookie.store.add_tombstones([1, 2, 3])
    done = await compactor.run(0.2)
    assert done.segments_removed >= 5 and done.bytes_copied == 0
    assert stored_bytes(bookie) == 0 and not names(files, ".compacted")


async def test_a_rewrite_keeps_the_living_and_orders_them_by_ledger(made):
    _, bookie, compactor = made
    before = stored_bytes(bookie)
    await bookie.store.add_tombstones([2])
    assert (await compactor.run(0.2)).segments_removed == 0, "two thirds alive: a minor run leaves them"
    done = await compactor.run(0.8)
    assert done.segments_removed >= 5 and done.segments_written >= 1
    assert stored_bytes(bookie) == before - done.bytes_freed < before * 0.8
    for ledger_id in (1, 3):
        assert await bookie.read_all(ledger_id, 0, 299) == bodies(ledger_id, range(300))
        assert await bookie.held(ledger_id, 0, 999) == [(0, 299)]
    assert (await bookie.read_lac(1)) == (S.OK, (298, 299))
    assert (await compactor.run(0.8)).segments_removed == 0, "there is nothing left to gain"


async def test_fences_tombstones_and_idempotence_survive_compaction_and_restart():
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    for ledger_id in (1, 2):
        await bookie.add_many(ledger_id, range(200))
    assert (await bookie.fence(1))[0] == (await bookie.fence(50))[0] == S.OK
    await bookie.store.add_tombstones([2])
    for _ in range(2):
        compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 40)
        await compactor.run(0.8)
        await compactor.close()
        assert await bookie.add(1, 200) == await bookie.add(50, 0) == await bookie.add(2, 200) == S.FENCED
        assert await bookie.add(1, 5, recovery=True) == S.OK
        assert await bookie.add(1, 5, b"other", recovery=True) == S.CONFLICT
        assert await bookie.read_all(1, 0, 999) == bodies(1, range(200))
        bookie = await bookie.restarted(segment_bytes=SEGMENT_BYTES)
    await bookie.store.close()


async def test_reads_and_adds_go_on_meanwhile(made):
    _, bookie, compactor = made
    await bookie.store.add_tombstones([2])
    running = asyncio.ensure_future(compactor.run(0.8))
    following, rounds = 300, 0
    while not running.done():
        await bookie.add_many(1, range(following, following + 5))
        following += 5
        assert await bookie.read_all(1, 0, following - 1) == bodies(1, range(following))
        rounds += 1
    assert rounds > 2 and (await running).segments_removed >= 5
    assert await bookie.read_all(1, 0, following - 1) == bodies(1, range(following))


async def test_a_damaged_index_is_built_anew_and_then_compacted(made):
    """Found by seed 1710: nothing was compacted any longer, unless somebody came to read the very ledger."""
    files, bookie, compactor = made
    index = f"{DIRECTORY}/{names(files, '.index')[0]}"
    files.flip_bit(index, len(files.read_bytes(index)) - 8)  # in the columns of the last ledger
    await bookie.store.add_tombstones([2])
    before = files.list(DIRECTORY)
    with pytest.raises(EntryCorrupt, match="index"):
        await compactor.run(0.8)
    assert [name for name in files.list(DIRECTORY) if name.endswith(".compacted")] == []
    assert before == files.list(DIRECTORY)
    await turns(lambda: not bookie.store.entries._rebuilding)
    assert (await compactor.run(0.8)).segments_removed >= 5 and bookie.store.limbo == ""
    for ledger_id in (1, 3):
        assert await bookie.read_all(ledger_id, 0, 299) == bodies(ledger_id, range(300))


async def test_a_damaged_entry_stays_an_error_and_can_be_repaired(made):
    files, bookie, compactor = made
    name = next(
        f"{DIRECTORY}/{name}"
        for name in names(files, ".journal")
        if body_of(3, 7) in files.read_bytes(f"{DIRECTORY}/{name}")
    )
    files.flip_bit(name, files.read_bytes(name).index(body_of(3, 7)))
    await bookie.store.add_tombstones([2])
    await compactor.run(0.8)
    assert (await bookie.read(3, 7, 7))[0] == S.CORRUPT
    assert await bookie.held(3, 0, 20) == [(0, 6), (8, 20)]
    assert await bookie.add(3, 7, recovery=True) == S.OK
    assert await bookie.read_all(3, 0, 299) == bodies(3, range(300))
    assert await bookie.held(3, 0, 20) == [(0, 20)]


async def test_a_damaged_entry_stays_an_error_when_nothing_else_in_its_file_is_left():
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    await bookie.add_many(3, range(50))
    assert await bookie.add(4, 0) == S.OK
    bookie = await bookie.restarted(segment_bytes=SEGMENT_BYTES)
    compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 40)
    name = next(
        f"{DIRECTORY}/{name}"
        for name in names(files, ".journal")
        if body_of(4, 0) in files.read_bytes(f"{DIRECTORY}/{name}")
    )
    files.flip_bit(name, files.read_bytes(name).index(body_of(4, 0)))
    await bookie.store.add_tombstones([3])
    for _ in range(3):
        await asyncio.wait_for(compactor.run(0.8), 5)
        assert (await bookie.read(4, 0, 0))[0] == S.CORRUPT, "without its LOST record it would be denied"
    await bookie.store.add_tombstones([4])
    assert (await compactor.run(0.2)).segments_removed == 1
    await compactor.close()
    await bookie.store.close()


async def test_a_file_with_one_tiny_entry_is_not_rewritten_for_ever():
    bookie = await Bookie.started(FaultyFiles(), segment_bytes=SEGMENT_BYTES)
    assert await bookie.add(1, 0, b"tiny") == S.OK
    await bookie.add_many(2, range(50))
    bookie = await bookie.restarted(segment_bytes=SEGMENT_BYTES)
    await bookie.store.add_tombstones([2])
    compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 40)
    assert (await asyncio.wait_for(compactor.run(0.8), 5)).segments_written == 1
    assert (await asyncio.wait_for(compactor.run(0.8), 5)).segments_written == 0
    assert await bookie.read_all(1, 0, 0) == {0: b"tiny"}
    await compactor.close()
    await bookie.store.close()


async def test_a_failed_or_cancelled_rewrite_leaves_the_old_files_valid(made):
    files, bookie, compactor = made
    await bookie.store.add_tombstones([2])
    files.fail_next("sync", ".compacted")
    with pytest.raises(OSError):
        await compactor.run(0.8)
    assert not names(files, ".compacted") and not bookie.fatal
    running = asyncio.ensure_future(compactor.run(0.8))
    for _ in range(6):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await bookie.read_all(1, 0, 299) == bodies(1, range(300))
    assert (await compactor.run(0.8)).segments_removed >= 5
    assert await bookie.read_all(1, 0, 299) == bodies(1, range(300))


async def test_small_segments_of_many_restarts_are_merged():
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    for n in range(SMALL_SEGMENTS_MIN + 1):
        await bookie.add_many(1, [n])
        bookie = await bookie.restarted(segment_bytes=SEGMENT_BYTES)
    compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 40)
    done = await compactor.run(0.2)
    assert (done.segments_removed, done.segments_written) == (SMALL_SEGMENTS_MIN, 1)
    assert await bookie.read_all(1, 0, 99) == bodies(1, range(SMALL_SEGMENTS_MIN + 1))
    await compactor.close()
    await bookie.store.close()
