"""A damaged segment whose index is damaged too: the index that is built again lacks what was lost, and must not make it
pass for something that never was. Found by `tests/fuzz` (target storage)."""

import asyncio

import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus, encode_read
from magnetar.storage.bookie.segment import INDEX_SUFFIX
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import DIRECTORY, Bookie, bodies

S = BookieStatus
SEGMENT_BYTES = 4096
ENTRIES = 40


async def damaged(*, index_gone: bool) -> FaultyFiles:
    """The files of a bookie that was closed: its first segment's entries damaged, and the columns of its index."""
    files = FaultyFiles(1)
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    for start in range(0, ENTRIES, 4):
        await bookie.add_many(1, range(start, start + 4))
    await bookie.store.close()
    name = next(name for name in files.list(DIRECTORY) if name.endswith(".journal"))
    for byte in range(1000, 1600):
        files.flip_bit(f"{DIRECTORY}/{name}", byte)
    index = f"{DIRECTORY}/{name}{INDEX_SUFFIX}"
    if index_gone:
        files.remove(index)
        files.sync_directory(DIRECTORY)
    else:
        files.flip_bit(index, len(files.read_bytes(index)) - 1)
    return files


async def check(bookie: Bookie) -> dict[int, BookieStatus]:
    """The status of every entry; what is OK is right, and nothing is said to be absent."""
    found: dict[int, BookieStatus] = {}
    for entry_id in range(ENTRIES):
        status, _, entries = await bookie.read(1, entry_id, entry_id)
        assert status in (S.OK, S.IO_ERROR, S.UNKNOWN, S.CORRUPT), (entry_id, status)
        assert status != S.OK or entries == bodies(1, [entry_id])
        found[entry_id] = status
    return found


async def test_while_an_index_is_rebuilt_nothing_lost_is_said_to_be_absent(caplog):
    caplog.set_level("CRITICAL", "magnetar")
    bookie = await Bookie.started(await damaged(index_gone=False), segment_bytes=SEGMENT_BYTES)
    assert not bookie.store.limbo, "the table of the index is whole, so nothing is known yet"
    asked: list[int] = []
    for _ in range(200):  # at every turn of the loop
        asked += [bookie.send(BookieOp.READ, encode_read(1, 0, n, n, 1 << 20)) for n in range(ENTRIES)]
        await asyncio.sleep(0)
    assert {(await bookie.answer(request))[0] for request in asked} <= {S.OK, S.IO_ERROR, S.UNKNOWN, S.CORRUPT}
    found = await check(bookie)
    assert bookie.store.limbo and S.IO_ERROR not in found.values() and S.UNKNOWN in found.values()
    segments = [segment for segment in bookie.store.entries.segments.values() if segment.sealed]
    assert [segment.live_bytes for segment in segments] == [segment.ledger_bytes(1) for segment in segments]
    await bookie.store.close()


@pytest.mark.parametrize("index_gone", [True, False])
async def test_power_loss_around_a_rebuild_does_not_hide_the_loss(caplog, index_gone):
    caplog.set_level("CRITICAL", "magnetar")
    for step in range(1, 30):
        files = await damaged(index_gone=index_gone)
        files.power_off_after(step)
        bookie = Bookie(files, segment_bytes=SEGMENT_BYTES)
        try:
            await bookie.store.open()
            for _ in range(3):
                await check(bookie)
        except OSError:
            pass
        await bookie.store.close()
        files.crash()
        again = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
        for _ in range(2):
            await check(again)
        found = await check(again)
        assert again.store.limbo and S.UNKNOWN in found.values(), step
        await again.store.close()


async def test_without_a_durable_limbo_the_index_stays_damaged(caplog):
    caplog.set_level("CRITICAL", "magnetar")
    files = await damaged(index_gone=False)
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    files.fail_next("write", "checkpoint", times=10)
    for _ in range(3):
        await check(bookie)
    assert bookie.fatal and bookie.store.failed
    await bookie.store.close()
