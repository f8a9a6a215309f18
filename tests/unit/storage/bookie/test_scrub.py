"""The scrub and the notes of damaged entries: what changed on the disk is found, written down, and repaired once."""

import asyncio
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus
from magnetar.protocol.errors import EntryCorrupt
from magnetar.storage.bookie import damage as damage_module
from magnetar.storage.bookie import scrub as scrub_module
from magnetar.storage.bookie.compaction import Compactor
from magnetar.storage.bookie.damage import DAMAGE_NAME, DamageNotes, ScrubProgress, without_entries
from magnetar.storage.bookie.held_ledgers import IdRanges
from magnetar.storage.bookie.records import FILE_HEADER_SIZE, RECORD_HEADER_SIZE
from magnetar.storage.bookie.scrub import Scrubber, entries_in
from support.stores.bookie_kit import DIRECTORY, INSTANCE, Bookie, add_payload, bodies, body_of, turns

S = BookieStatus


def scrubber_of(bookie):
    return Scrubber(bookie.store.entries, interval_s=604_800.0, bytes_per_s=1 << 40)


async def made(files):
    """A bookie with ledgers 1 and 2 in sealed segments of 16 KB and a little in the active journal."""
    bookie = await Bookie.started(files)
    for start in range(0, 200, 20):
        await bookie.add_many(1, range(start, start + 20))
        await bookie.add_many(2, range(start, start + 20))
    bookie = await bookie.restarted()
    await bookie.add_many(1, range(200, 210))
    return bookie


def place_of(files, ledger_id, entry_id):
    """(path, offset) of an entry's body."""
    for name in files.list(DIRECTORY):
        if name.endswith((".journal", ".compacted")):
            at = files.read_bytes(f"{DIRECTORY}/{name}").find(body_of(ledger_id, entry_id))
            if at >= 0:
                return f"{DIRECTORY}/{name}", at
    raise AssertionError("it is nowhere")


def damage_body(files, ledger_id, entry_id):
    path, at = place_of(files, ledger_id, entry_id)
    files.flip_bit(path, at + 3)


def damage_header(files, ledger_id, entry_id):
    path, at = place_of(files, ledger_id, entry_id)
    files.flip_bit(path, at - 37 - RECORD_HEADER_SIZE)


def noted(bookie):
    return bookie.store.entries.damage.notes.page((-1, -1), 1000)


async def test_a_pass_over_an_undamaged_store_reads_all_and_notes_nothing(files):
    bookie = await made(files)
    scrubber = scrubber_of(bookie)
    await scrubber.run_pass()
    stored = sum(segment.end - FILE_HEADER_SIZE for segment in bookie.store.entries.segments.values())
    assert noted(bookie) == [] and scrubber.progress.passes == 1
    assert scrubber.progress.pass_bytes > stored, "the active journal is read, too"
    assert scrubber.pass_share() == 1.0 and not scrubber.progress.running
    await bookie.store.close()


@pytest.mark.parametrize("hurt", [damage_body, damage_header])
async def test_a_bit_flipped_in_a_sealed_segment_is_noted_for_good_until_repaired(files, hurt):
    bookie = await made(files)
    hurt(files, 1, 50)
    assert await bookie.held(1, 0, 199) == [(0, 199)], "nobody has read it"
    await scrubber_of(bookie).run_pass()
    for _ in range(2):
        assert noted(bookie) == [(1, 50)]
        assert await bookie.held(1, 0, 199) == [(0, 49), (51, 199)]
        bookie = await bookie.restarted()
    assert await bookie.add(1, 50, recovery=True) == S.OK
    for _ in range(2):
        assert noted(bookie) == [] and await bookie.held(1, 0, 199) == [(0, 199)]
        assert await bookie.read_all(1, 0, 209) == bodies(1, range(210))
        bookie = await bookie.restarted()
    totals = bookie.store.entries.damage.notes
    assert (totals.found_total, totals.repaired_total) == (1, 1)
    await scrubber_of(bookie).run_pass()
    assert noted(bookie) == [], "the old copy is still damaged, and nobody needs it"
    await bookie.store.close()


async def test_what_a_read_finds_is_noted_and_survives_a_crash(files):
    bookie = await made(files)
    damage_body(files, 2, 7)
    assert (await bookie.read(2, 7, 7))[0] == S.CORRUPT
    assert noted(bookie) == [(2, 7)]
    await turns(lambda: not bookie.store.entries.damage._saving)
    files.crash()
    bookie = await Bookie.started(files)
    assert noted(bookie) == [(2, 7)]
    assert await bookie.held(2, 0, 199) == [(0, 6), (8, 199)]
    await bookie.store.close()


async def test_a_note_ends_only_when_the_new_copy_is_durable(files):
    bookie = await made(files)
    damage_body(files, 2, 7)
    assert (await bookie.read(2, 7, 7))[0] == S.CORRUPT
    journal = bookie.env.offload.lanes["journal"]  # type: ignore[attr-defined]
    journal.hold()
    request = bookie.send(BookieOp.ADD, add_payload(2, 7, recovery=True))
    await turns(lambda: bookie.store.entries.journal.pending_bytes)
    assert noted(bookie) == [(2, 7)] and request not in bookie.answers
    journal.release()
    assert (await bookie.answer(request))[0] == S.OK
    assert noted(bookie) == []
    await bookie.store.close()


async def test_damage_in_the_active_journal_is_found_and_repaired_there(files):
    bookie = await made(files)
    damage_header(files, 1, 203)
    await scrubber_of(bookie).run_pass()
    assert noted(bookie) == [(1, 203)]
    assert await bookie.add(1, 203, body_of(1, 204), recovery=True) == S.CONFLICT
    assert await bookie.add(1, 203, recovery=True) == S.OK, "stored again, although its digest is in memory"
    assert noted(bookie) == [] and await bookie.read_all(1, 0, 209) == bodies(1, range(210))
    await bookie.store.close()


async def test_a_bit_misread_once_is_no_damage_and_a_note_of_it_ends_with_the_repair(files, monkeypatch):
    bookie = await made(files)
    await bookie.read(2, 6, 6)  # its index is cached from now on
    path, at = place_of(files, 2, 7)
    files.flip_bit(path, at)
    suspects, seen = Scrubber._check, []

    async def check(scrubber, ledger_id, entry_id):
        seen.append((ledger_id, entry_id))
        files.flip_bit(path, at)  # back to what was written
        await suspects(scrubber, ledger_id, entry_id)

    monkeypatch.setattr(Scrubber, "_check", check)
    await scrubber_of(bookie).run_pass()
    assert seen == [(2, 7)] and noted(bookie) == [], "it was read again"
    files.flip_next_read(".journal", 1)
    assert (await bookie.read(2, 7, 7))[0] == S.CORRUPT and noted(bookie) == [(2, 7)]
    stored = bookie.store.entries.journal.active.end
    assert await bookie.add(2, 7, recovery=True) == S.OK and noted(bookie) == []
    assert bookie.store.entries.journal.active.end == stored, "the copy on the disk is good: nothing is written"
    await bookie.store.close()


async def test_damage_found_while_compacting_is_noted_and_stays_an_error(files):
    bookie = await made(files)
    damage_body(files, 2, 7)
    await bookie.store.add_tombstones([1])
    compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 40)
    await compactor.run(0.8)
    for _ in range(2):
        assert noted(bookie) == [(2, 7)] and (await bookie.read(2, 7, 7))[0] == S.CORRUPT
        await scrubber_of(bookie).run_pass()
        await compactor.close()
        bookie = await bookie.restarted()
        compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 40)
    assert await bookie.add(2, 7, recovery=True) == S.OK
    assert noted(bookie) == [] and await bookie.held(2, 0, 199) == [(0, 199)]
    await compactor.close()
    await bookie.store.close()


async def test_a_sector_that_cannot_be_read_costs_only_its_own_entries(files):
    bookie = await made(files)
    path, at = place_of(files, 1, 50)
    broken = Unreadable(files, path, at)
    bookie.store.entries.reads._readers[1][1]._files = broken  # type: ignore[assignment]
    scrubber = scrubber_of(bookie)
    scrubber._files = broken  # type: ignore[assignment]
    await scrubber.run_pass()
    assert (1, 50) in noted(bookie) and len(noted(bookie)) < 60
    for ledger_id, entry_id in noted(bookie):
        assert await bookie.add(ledger_id, entry_id, recovery=True) == S.OK
    assert noted(bookie) == []
    await bookie.store.close()


class Unreadable:
    """Files of which 4 KB of one cannot be read."""

    def __init__(self, files, path, at):
        self._files, self._path, self._at = files, path, at

    def open(self, path, **options):
        file = self._files.open(path, **options)
        return _UnreadableFile(file, self._at) if path == self._path else file


class _UnreadableFile:
    def __init__(self, file, at):
        self._file, self._at = file, at // 4096 * 4096

    def read_at(self, offset, size):
        if offset < self._at + 4096 and offset + size > self._at:
            raise OSError(errno.EIO, "a bad sector")
        return self._file.read_at(offset, size)

    def __getattr__(self, name):
        return getattr(self._file, name)


async def test_a_damaged_index_is_built_again_before_somebody_needs_it(files):
    bookie = await made(files)
    name = next(f"{DIRECTORY}/{name}" for name in files.list(DIRECTORY) if name.endswith(".index"))
    before = files.read_bytes(name)
    files.flip_bit(name, len(before) - 30)
    await scrubber_of(bookie).run_pass()
    await turns(lambda: not bookie.store.entries._rebuilding)
    assert files.read_bytes(name) == before and not bookie.store.limbo and not noted(bookie)
    await bookie.store.close()


async def test_a_pass_goes_on_after_a_restart_where_it_was(files, monkeypatch):
    monkeypatch.setattr(scrub_module, "PROGRESS_WRITE_S", 0.0)
    bookie = await made(files)
    scrubber = scrubber_of(bookie)
    scrubbed = []
    original = scrubber._scrub

    async def scrub(segment, end, rate):
        if len(scrubbed) == 2:
            raise RuntimeError("the bookie ends")
        scrubbed.append(segment.file_id)
        await original(segment, end, rate)

    scrubber._scrub = scrub  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await scrubber.run_pass()
    bookie = await bookie.restarted()
    progress = bookie.store.entries.damage.notes.progress
    assert progress.running and progress.after == scrubbed[-1] and progress.passes == 0
    await scrubber_of(bookie).run_pass()
    assert not progress.running and progress.passes == 1
    await bookie.store.close()


async def test_notes_of_a_deleted_ledger_go_with_it(files):
    bookie = await made(files)
    damage_body(files, 2, 7)
    assert (await bookie.read(2, 7, 7))[0] == S.CORRUPT
    await turns(lambda: not bookie.store.entries.damage._saving)
    before = files.read_bytes(f"{DIRECTORY}/{DAMAGE_NAME}")
    await bookie.store.add_tombstones([2])
    assert noted(bookie) == [] and bookie.store.entries.damage.notes.count == 0
    await bookie.store.close()
    files.write_atomic(f"{DIRECTORY}/{DAMAGE_NAME}", before)  # a crash came before the notes were written
    bookie = await Bookie.started(files)
    assert noted(bookie) == [] and bookie.store.entries.damage.notes.count == 0
    await bookie.store.close()


async def test_more_damage_than_can_be_noted_leads_to_limbo(files, monkeypatch):
    monkeypatch.setattr(damage_module, "NOTES_MAX", 3)
    bookie = await made(files)
    for entry_id in (3, 5, 9, 11, 13):
        damage_body(files, 2, entry_id)
    await scrubber_of(bookie).run_pass()
    await turns(lambda: bookie.store.limbo)
    assert "more than" in bookie.store.limbo and len(noted(bookie)) == 3
    held = await bookie.held(2, 0, 14, intact_only=True)
    assert held == [(0, 2), (4, 4), (6, 8), (10, 10), (12, 12), (14, 14)]
    await bookie.store.close()


async def test_an_unreadable_list_of_damaged_entries_leads_to_limbo(files):
    bookie = await made(files)
    damage_body(files, 2, 7)
    assert (await bookie.read(2, 7, 7))[0] == S.CORRUPT
    await bookie.store.close()
    path = f"{DIRECTORY}/{DAMAGE_NAME}"
    files.flip_bit(path, len(files.read_bytes(path)) - 4)
    bookie = await Bookie.started(files)
    assert "the list of damaged entries" in bookie.store.limbo
    await bookie.store.close()


async def test_a_full_disk_delays_the_notes_and_nothing_else(files, monkeypatch):
    monkeypatch.setattr(damage_module, "DISK_FULL_RETRY_S", 0.001)
    bookie = await made(files)
    damage_body(files, 2, 7)
    files.capacity_bytes = files._used_bytes()
    assert (await bookie.read(2, 7, 7))[0] == S.CORRUPT
    assert noted(bookie) == [(2, 7)] and not bookie.fatal
    files.capacity_bytes = 1 << 40
    async with asyncio.timeout(10):
        await asyncio.gather(*bookie.store.entries.damage._tasks._running)
    assert DamageNotes.decode(files.read_bytes(f"{DIRECTORY}/{DAMAGE_NAME}")).has(2, 7)
    await bookie.store.close()


async def test_a_failed_write_of_the_notes_ends_the_bookie(files):
    bookie = await made(files)
    damage_body(files, 2, 7)
    files.fail_next("sync", DAMAGE_NAME)
    assert (await bookie.read(2, 7, 7))[0] == S.CORRUPT
    await turns(lambda: bookie.fatal)
    await bookie.store.close()


def test_notes_come_back_and_every_flipped_byte_is_noticed():
    notes = DamageNotes(INSTANCE, ScrubProgress(5, True, 7, 9, 100, 200, 3))
    for key in ((3, 9), (1, 4), (3, 2)):
        assert notes.note(*key) and not notes.note(*key)
    assert notes.end(3, 9) and not notes.end(3, 9)
    data = notes.encode()
    again = DamageNotes.decode(data)
    assert again == notes and (again.count, again.found_total, again.repaired_total) == (2, 3, 1)
    assert again.page((-1, -1), 10) == [(1, 4), (3, 2)] and again.page((1, 4), 10) == [(3, 2)]
    assert again.page((-1, -1), 1) == [(1, 4)]
    for byte in range(len(data)):
        broken = bytearray(data)
        broken[byte] ^= 4
        with pytest.raises(EntryCorrupt):
            DamageNotes.decode(bytes(broken))


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_ranges_without_some_entries_are_exact(held, gone):
    left = without_entries(IdRanges([(one, one) for one in held]), sorted(gone))
    assert {one for first, last in left for one in range(first, last + 1)} == held - gone
    assert all(first <= last for first, last in left)


def test_entries_of_a_lost_part_are_those_that_touch_it():
    size = 100 - RECORD_HEADER_SIZE - 1
    entries, offsets, sizes = [1, 2, 3, 4], [20, 120, 220, 320], [size] * 4
    assert entries_in(entries, offsets, sizes, [(120, 220)]) == [2]
    assert entries_in(entries, offsets, sizes, [(20, 21), (319, 321)]) == [1, 3, 4]
    assert entries_in(entries, offsets, sizes, []) == []
