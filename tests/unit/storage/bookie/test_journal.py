"""The journal's succession of files: a slow or full disk under heavy load must never mix, lose or reorder anything."""

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus, encode_ledger
from magnetar.storage.bookie.journal import BATCH_BYTES_MAX
from magnetar.storage.bookie.replay import load_store
from magnetar.storage.bookie.segment import SegmentState
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import DIRECTORY, Bookie, add_payload, bodies, body_of

S = BookieStatus
SEGMENT_BYTES = 8192


def lane(bookie, name):
    """A lane that can be held up: the tests' off-load object keeps them by name."""
    return bookie.env.offload.lanes[name]


async def test_several_journals_fill_up_while_none_can_be_created():
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    prepare = lane(bookie, "prepare")
    prepare.hold()
    requests = [bookie.send(BookieOp.ADD, add_payload(1, n, body_of(1, n, 500))) for n in range(100)]
    fence = bookie.send(BookieOp.FENCE, encode_ledger(1, 0))
    assert (await bookie.read(2, 0, 0))[0] == S.NO_SUCH_LEDGER
    assert len(bookie.answers) == 1, "what waits for a file is not answered"
    prepare.release()
    for request in requests:
        assert (await bookie.answer(request))[0] == S.OK
    assert bookie._state(await bookie.answer(fence)) == (S.OK, (98, 99))
    assert await bookie.read_all(1, 0, 99) == bodies(1, range(100), 500)
    files.crash()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    assert bookie.store.limbo == ""
    assert await bookie.read_all(1, 0, 99) == bodies(1, range(100), 500)
    assert await bookie.add(1, 100) == S.FENCED
    await bookie.store.close()


async def test_a_full_disk_refuses_all_journals_that_were_begun_without_a_file():
    files = FaultyFiles(capacity_bytes=30_000)
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    prepare = lane(bookie, "prepare")
    await bookie.add_many(1, range(2))
    prepare.hold()
    requests = [bookie.send(BookieOp.ADD, add_payload(1, n, body_of(1, n, 900))) for n in range(2, 60)]
    prepare.release()
    statuses = [(await bookie.answer(request))[0] for request in requests]
    stored = statuses.count(S.OK)
    assert 0 < stored < 40 and statuses == [S.OK] * stored + [S.READ_ONLY] * (58 - stored)
    assert not bookie.store.writable and not bookie.fatal
    assert await bookie.read_lac(1) == (S.OK, (58, stored + 1)), "what was refused is not counted"
    assert sorted(await bookie.read_all(1, 0, 99)) == list(range(stored + 2))
    files.capacity_bytes = 1 << 20
    await bookie.store.check_disk()
    for n in range(stored + 2, 60):
        assert await bookie.add(1, n, body_of(1, n, 900)) == S.OK
    files.crash()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    assert bookie.store.limbo == ""
    assert sorted(await bookie.read_all(1, 0, 99)) == list(range(60))
    await bookie.store.close()


async def test_a_journal_that_cannot_be_created_for_another_reason_is_fatal():
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    files.fail_next("write", "0000000000000003.journal")
    for n in range(40):
        await bookie.add(1, n, body_of(1, n, 500))
    assert len(bookie.fatal) == 1
    await bookie.store.close()


async def test_a_journal_is_sealed_when_it_is_full_and_its_index_takes_over():
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    for n in range(60):
        assert await bookie.add(1, n, body_of(1, n, 500)) == S.OK
    segments = list(bookie.store.entries.segments.values())
    assert len(segments) >= 3 and {segment.state for segment in segments[:-1]} == {SegmentState.SEALED}
    assert all(not segment.rows and segment.file is None for segment in segments[:-1])
    assert await bookie.read_all(1, 0, 59) == bodies(1, range(60), 500)
    await bookie.store.close()
    loaded = load_store(files, DIRECTORY, "instance")
    assert not loaded.damage and not loaded.rubbish
    assert sorted(segment.file_id for segment in loaded.segments) == [segment.file_id for segment in segments] + [
        segments[-1].file_id + 1
    ]


async def test_sealing_waits_out_a_full_disk():
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    files.capacity_bytes = 0
    for n in range(20):
        await bookie.add(1, n, body_of(1, n, 500))
    assert bookie.store.disk_full and not bookie.fatal
    stored = len(await bookie.read_all(1, 0, 99))
    files.capacity_bytes = 1 << 30
    await bookie.store.check_disk()
    assert await bookie.add(1, 50, body_of(1, 50, 500)) == S.OK
    assert len(await bookie.read_all(1, 0, 99)) == stored + 1
    bookie = await bookie.restarted(segment_bytes=SEGMENT_BYTES)
    assert len(await bookie.read_all(1, 0, 99)) == stored + 1 and bookie.store.limbo == ""
    await bookie.store.close()


async def test_large_entries_are_written_in_bounded_batches(monkeypatch):
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=32 << 20)
    sizes = []
    original = type(files.open(f"{DIRECTORY}/checkpoint")).write_at

    def write_at(self, offset, parts, *, sync=False):
        sizes.append(sum(map(len, parts)))
        original(self, offset, parts, sync=sync)

    monkeypatch.setattr(type(files.open(f"{DIRECTORY}/checkpoint")), "write_at", write_at)
    requests = [bookie.send(BookieOp.ADD, add_payload(1, n, bytes(700_000))) for n in range(20)]
    for request in requests:
        assert (await bookie.answer(request))[0] == S.OK
    assert max(sizes) < BATCH_BYTES_MAX + 800_000 and sum(size > 1_000_000 for size in sizes) >= 3
    await bookie.store.close()
