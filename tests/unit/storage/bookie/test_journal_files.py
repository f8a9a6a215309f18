"""Journals made ahead: filled slowly, in small pieces, and never with zeros once they hold records."""

import asyncio

import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus
from magnetar.protocol.errors import DiskFull
from magnetar.runtime.environment import SeededChance
from magnetar.runtime.transitions import ForbiddenTransition
from magnetar.storage.bookie import journal as group_commit
from magnetar.storage.bookie.journal_files import (
    FILL_PIECE_BYTES,
    FIRST_SHARE_MIN,
    JournalFiles,
    MakingState,
    create_journal_file,
    first_journal_share,
)
from magnetar.storage.bookie.records import FILE_HEADER_SIZE
from magnetar.storage.bookie.segment import JOURNAL_SUFFIX, Segment, SegmentState
from support.fakes.inline_offload import InlineLane
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import DIRECTORY, Bookie, add_payload, bodies, body_of, make_env

S = BookieStatus
SIZE = 4 * FILL_PIECE_BYTES


class Maker:
    """Journal files over a disk in memory, and what was handed over."""

    def __init__(self, files: FaultyFiles) -> None:
        self.files = files
        self.lane = InlineLane("prepare")
        self.handed_over = []
        self.done = asyncio.Event()
        self.journals = JournalFiles(files, self.lane, self._prepared)

    def _prepared(self, segment, file, error):
        assert all(segment is not known for known, _, _ in self.handed_over), "handed over twice"
        self.handed_over.append((segment, file, error))
        self.done.set()

    def segment(self, number: int = 1) -> Segment:
        return Segment(DIRECTORY, number, JOURNAL_SUFFIX, "instance")


async def until(condition) -> None:
    """Turn the loop until `condition()` holds: lanes in memory have no events of their own."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


class Watched(FaultyFiles):
    """Remembers writes: (path, offset, size)."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.writes = []

    def open(self, path, *, create=False, preallocate=0):
        file = super().open(path, create=create, preallocate=preallocate)
        write, watched = file.write_at, self

        def write_at(offset, parts, *, sync=False):
            watched.writes.append((path, offset, sum(map(len, parts))))
            write(offset, parts, sync=sync)

        file.write_at = write_at
        return file


def zeros_written(files: Watched, segment: Segment) -> list[tuple[int, int]]:
    """(offset, size) of what was written to a file behind its header."""
    return [(at, size) for path, at, size in files.writes if path == segment.path and at >= FILE_HEADER_SIZE]


async def test_a_file_is_filled_in_pieces_each_synced_before_the_next_one():
    files = Watched()
    maker = Maker(files)
    segment = maker.segment()
    syncs = files.syncs
    maker.journals.prepare(segment, SIZE, 0.02)
    await asyncio.wait_for(maker.done.wait(), 5)
    assert [entry[0] for entry in maker.handed_over] == [segment]
    pieces = zeros_written(files, segment)
    assert sum(size for _, size in pieces) == SIZE - FILE_HEADER_SIZE
    assert len(pieces) == 4 and max(size for _, size in pieces) <= FILL_PIECE_BYTES
    assert files.syncs - syncs == 5, "the creation, and one for each piece"


async def test_filling_takes_about_the_time_that_was_asked_for():
    maker = Maker(Watched())
    loop = asyncio.get_running_loop()
    begin = loop.time()
    maker.journals.prepare(maker.segment(), SIZE, 0.2)
    await asyncio.wait_for(maker.done.wait(), 5)
    assert loop.time() - begin >= 0.2 * 0.9


async def test_a_file_that_is_not_to_be_filled_is_handed_over_once_it_is_reserved():
    files = Watched()
    maker = Maker(files)
    segment = maker.segment()
    maker.journals.prepare(segment, SIZE, 0)
    await asyncio.wait_for(maker.done.wait(), 5)
    assert zeros_written(files, segment) == []
    assert maker.handed_over[0][1].size() == SIZE


async def test_a_file_needed_during_a_pause_is_handed_over_at_once_and_not_filled_further():
    files = Watched()
    maker = Maker(files)
    segment = maker.segment()
    maker.journals.prepare(segment, SIZE, 3600.0)
    await until(lambda: files.exists(segment.path))
    await asyncio.sleep(0)
    maker.journals.hurry(segment)
    assert not maker.handed_over, "never from within the call"
    await asyncio.wait_for(maker.done.wait(), 5)
    assert zeros_written(files, segment) == []


async def test_a_file_needed_while_a_piece_is_written_is_handed_over_behind_that_piece():
    files = Watched()
    maker = Maker(files)
    segment = maker.segment()
    maker.journals.prepare(segment, SIZE, 0.004)
    await until(lambda: len(zeros_written(files, segment)) == 1)
    maker.lane.hold()
    await asyncio.sleep(0.02)  # the pause is over: the second piece waits on the lane
    maker.journals.hurry(segment)
    await asyncio.sleep(0.02)
    assert not maker.handed_over
    maker.lane.release()
    await asyncio.wait_for(maker.done.wait(), 5)
    assert len(zeros_written(files, segment)) == 2


async def test_a_disk_that_fills_up_during_the_filling_leaves_no_file_behind():
    files = Watched()
    maker = Maker(files)
    segment = maker.segment()
    maker.journals.prepare(segment, SIZE, 0.004)
    await until(lambda: len(zeros_written(files, segment)) == 1)
    file = maker.journals._making[1].file
    assert file is not None

    def write_at(offset, parts, *, sync=False):  # as a file system does that cannot keep its reservation
        raise DiskFull("no space left")

    file.write_at = write_at
    await asyncio.wait_for(maker.done.wait(), 5)
    assert isinstance(maker.handed_over[0][2], DiskFull) and not files.exists(segment.path)


async def test_a_failed_write_during_the_filling_is_reported():
    files = Watched()
    maker = Maker(files)
    segment = maker.segment()
    maker.journals.prepare(segment, SIZE, 0.02)
    await until(lambda: files.exists(segment.path))
    files.fail_next("sync", segment.name)
    await asyncio.wait_for(maker.done.wait(), 5)
    assert isinstance(maker.handed_over[0][2], OSError) and maker.handed_over[0][1] is None


async def filling_bookie(files, monkeypatch, lasts_s: float) -> Bookie:
    """A bookie whose spare journal is being filled, in pieces of which each journal has four."""
    monkeypatch.setattr(group_commit, "JOURNAL_LASTS_S", lasts_s)
    bookie = await Bookie.started(files, segment_bytes=SIZE)
    await until(lambda: bookie.store.entries.journal._files._making)
    return bookie


async def test_entries_in_a_journal_that_was_taken_amid_its_filling_stay_what_they_were(monkeypatch):
    """The piece that was on its way reaches the disk first, then the entries; nothing overwrites them."""
    files = Watched()
    bookie = await filling_bookie(files, monkeypatch, 10.0)
    prepare = bookie.env.offload.lanes["prepare"]  # type: ignore[attr-defined]
    journal = bookie.store.entries.journal
    (making,) = journal._files._making.values()
    await until(lambda: making.timer is not None)
    prepare.hold()
    making.timer.cancel()
    journal._files._fill(making)  # the pause is over
    spare = making.segment
    sent = []
    while spare.state is SegmentState.PREPARED:
        n = len(sent)
        sent.append(bookie.send(BookieOp.ADD, add_payload(1, n, body_of(1, n, 5_000))))
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(bookie.answers) < len(sent), "what lies in the new journal waits for the piece"
    prepare.release()
    for request in sent:
        assert (await bookie.answer(request))[0] == S.OK
    assert await bookie.read_all(1, 0, len(sent)) == bodies(1, range(len(sent)), 5_000)
    files.crash()
    again = await Bookie.started(files, segment_bytes=SIZE)
    assert again.store.limbo == ""
    assert await again.read_all(1, 0, len(sent)) == bodies(1, range(len(sent)), 5_000)
    await again.store.close()


async def test_a_full_journal_does_not_wait_for_the_pauses_of_the_next_ones_filling(monkeypatch):
    files = Watched()
    bookie = await filling_bookie(files, monkeypatch, 100_000.0)
    sent = [bookie.send(BookieOp.ADD, add_payload(1, n, body_of(1, n, 5_000))) for n in range(2 * SIZE // 5_000)]
    for request in sent:
        assert (await bookie.answer(request))[0] == S.OK
    assert len(bookie.store.entries.segments) >= 1
    await bookie.store.close()


async def test_a_bookie_closed_while_its_spare_is_filled_leaves_neither_file_nor_handle(monkeypatch):
    files = Watched()
    bookie = await filling_bookie(files, monkeypatch, 100_000.0)
    await bookie.add_many(1, range(3))
    await bookie.store.close()
    assert sum(name.endswith(JOURNAL_SUFFIX) for name in files.list(DIRECTORY)) == 1
    again = await Bookie.started(files, segment_bytes=SIZE)
    assert again.store.limbo == "" and len(await again.read_all(1, 0, 9)) == 3
    await again.store.close()


async def test_a_spare_that_is_being_filled_gives_its_space_to_a_checkpoint(monkeypatch):
    files = Watched()
    bookie = await filling_bookie(files, monkeypatch, 100_000.0)
    (making,) = bookie.store.entries.journal._files._making.values()
    await until(lambda: making.timer is not None)
    files.capacity_bytes = files._used_bytes()
    await bookie.store.entries.checkpoint()
    assert not files.exists(making.segment.path)
    files.capacity_bytes = 1 << 40
    await bookie.store.check_disk()
    await bookie.add_many(1, range(3))
    await bookie.store.close()


async def test_bookies_with_the_same_entries_fill_their_first_journals_at_different_times():
    ends = set()
    for seed in range(4):
        files = FaultyFiles()
        bookie = await Bookie.started(files, segment_bytes=SIZE, env=make_env(files, seed))
        n = 0
        while not bookie.store.entries.segments:
            assert await bookie.add(1, n, body_of(1, n, 5_000)) == S.OK
            n += 1
        (first,) = bookie.store.entries.segments.values()
        assert SIZE * FIRST_SHARE_MIN * 0.9 < first.end <= SIZE
        ends.add(first.end)
        await bookie.store.close()
    assert len(ends) == 4


async def test_a_created_file_is_filled_up_to_the_offset_that_was_asked_for():
    files = Watched()
    segment = Segment(DIRECTORY, 7, JOURNAL_SUFFIX, "instance")
    file = create_journal_file(files, segment, SIZE, FILL_PIECE_BYTES + 100)
    assert file.size() == SIZE
    assert zeros_written(files, segment) == [
        (FILE_HEADER_SIZE, FILL_PIECE_BYTES),
        (FILE_HEADER_SIZE + FILL_PIECE_BYTES, 100 - FILE_HEADER_SIZE),
    ]


@pytest.mark.parametrize("bookies", [3, 5, 8])
def test_numbered_bookies_get_first_journals_of_lengths_far_apart(bookies):
    random = SeededChance(1)
    for first in (1, 7, 100):
        shares = [first_journal_share(f"/data/bookie-{first + n}", random) for n in range(bookies)]
        assert all(FIRST_SHARE_MIN <= share <= 1 for share in shares)
        gaps = [abs(one - other) for at, one in enumerate(shares) for other in shares[:at]]
        assert min(gaps) > 0.4 * (1 - FIRST_SHARE_MIN) / bookies


@pytest.mark.parametrize("directory", ["/data", "/", "/data/bookie-", "/data/bookie-" + "9" * 5000])
def test_bookies_without_a_number_get_random_lengths(directory):
    random = SeededChance(1)
    shares = {first_journal_share(directory, random) for _ in range(10)}
    assert len(shares) == 10 and all(FIRST_SHARE_MIN <= share <= 1 for share in shares)


async def test_zeros_are_never_sent_to_a_file_that_was_handed_over():
    maker = Maker(Watched())
    segment = maker.segment()
    maker.journals.prepare(segment, SIZE, 100_000.0)
    (making,) = maker.journals._making.values()
    await until(lambda: making.state is MakingState.PAUSING)
    assert maker.journals.take(segment) is not None
    with pytest.raises(ForbiddenTransition, match="cannot go from ended to filling"):
        maker.journals._fill(making)
