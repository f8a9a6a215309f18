"""A bookie's rules: adds, fences, idempotence, limbo, tombstones, a failing and a full disk. On files in memory."""

import asyncio

import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus, encode_ledger, encode_read
from magnetar.protocol.errors import BadVersion, NoSuchLedger, StorageFailed
from magnetar.runtime.files import DiskUsage
from magnetar.runtime.settings.declarations import Settings
from magnetar.storage.bookie import segment_reader
from magnetar.storage.bookie.entry_reads import READER_LANES
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import DIRECTORY, Bookie, add_payload, bodies, body_of, turns

S = BookieStatus


def lane(bookie, name):
    return bookie.env.offload.lanes[name]


async def test_entries_come_back_in_one_answer_from_memory_and_after_a_restart(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(50))
    await bookie.add_many(2, range(5))
    assert await bookie.read_all(1, 0, 49) == bodies(1, range(50))
    assert await bookie.read(2, 3, 4) == (S.OK, 5, bodies(2, [3, 4]))
    bookie = await bookie.restarted()
    assert await bookie.read_all(1, 0, 49) == bodies(1, range(50))
    assert (await bookie.read_lac(1)) == (S.OK, (48, 49))
    await bookie.store.close()


async def test_an_answer_stops_before_bytes_max_but_holds_one_entry_at_least(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(10))
    entry_size = 4 + 44 + 100
    status, following, entries = await bookie.read(1, 0, 9, bytes_max=3 * entry_size)
    assert (status, following, sorted(entries)) == (S.OK, 3, [0, 1, 2])
    assert (await bookie.read(1, 4, 9, bytes_max=0))[1:] == (5, bodies(1, [4]))
    assert (await bookie.read(1, 0, 4, bytes_max=1 << 20))[1] == 5
    await bookie.store.close()


async def test_gaps_are_absent_and_absence_is_told(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, [0, 1, 5, 6, 9])
    status, following, entries = await bookie.read(1, 0, 20)
    assert (status, following, sorted(entries)) == (S.OK, 21, [0, 1, 5, 6, 9])
    assert (await bookie.read(1, 2, 4))[0] == S.NO_SUCH_ENTRY
    assert (await bookie.read(1, 10, 10))[0] == S.NO_SUCH_ENTRY
    assert (await bookie.read(77, 0, 0))[0] == S.NO_SUCH_LEDGER
    assert (await bookie.read_lac(77))[0] == S.NO_SUCH_LEDGER
    assert await bookie.held(1, 1, 8) == [(1, 1), (5, 6)]
    with pytest.raises(NoSuchLedger):
        await bookie.held(77, 0, 1)
    await bookie.store.close()


@pytest.mark.parametrize("bytes_max", [64 << 20, 5000])
async def test_a_read_over_a_sealed_and_the_active_journal_denies_nothing(files, monkeypatch, bytes_max):
    monkeypatch.setattr(segment_reader, "ENTRIES_PER_READ_MAX", 16)
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(40))
    bookie = await bookie.restarted()
    await bookie.add_many(1, range(40, 60))
    found, following = {}, 0
    while following < 60:
        status, following, entries = await bookie.read(1, following, 59, bytes_max)
        assert (status, following) == (S.OK, max(entries) + 1), "what was not examined is not passed over"
        found |= entries
    assert found == bodies(1, range(60))
    assert await bookie.held(1, 0, 59, intact_only=True) == [(0, 59)]
    await bookie.store.close()


async def test_entries_that_wait_for_their_sync_hide_no_durable_ones_behind_them(files, monkeypatch):
    monkeypatch.setattr(segment_reader, "ENTRIES_PER_READ_MAX", 16)
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(20, 40))
    lane(bookie, "journal").hold()
    waiting = [bookie.send(BookieOp.ADD, add_payload(1, entry_id)) for entry_id in range(20)]
    assert await bookie.read(1, 0, 39) == (S.OK, 36, bodies(1, range(20, 36)))
    lane(bookie, "journal").release()
    for request in waiting:
        assert (await bookie.answer(request))[0] == S.OK
    await bookie.store.close()


async def test_nothing_is_answered_before_the_sync(files):
    bookie = await Bookie.started(files)
    lane(bookie, "journal").hold()
    request = bookie.send(BookieOp.ADD, add_payload(1, 0))
    assert (await bookie.read(1, 0, 0))[0] == S.NO_SUCH_ENTRY, "an entry not yet durable is not shown"
    assert request not in bookie.answers
    assert await bookie.held(1, 0, 9) == [], "nor does the auditor take it for a copy"
    syncs = files.syncs
    lane(bookie, "journal").release()
    assert (await bookie.answer(request))[0] == S.OK
    assert files.syncs == syncs + 1
    assert await bookie.held(1, 0, 9) == [(0, 0)]
    await bookie.store.close()


async def test_one_sync_serves_everything_that_waited(files):
    bookie = await Bookie.started(files, segment_bytes=1 << 20)
    lane(bookie, "journal").hold()
    first = bookie.send(BookieOp.ADD, add_payload(1, 0))
    await bookie.read(1, 0, 0)  # a turn of the loop: the first batch has left
    rest = [bookie.send(BookieOp.ADD, add_payload(1, n)) for n in range(1, 200)]
    syncs = files.syncs
    lane(bookie, "journal").release()
    for request in [first, *rest]:
        assert (await bookie.answer(request))[0] == S.OK
    assert files.syncs == syncs + 2
    await bookie.store.close()


@pytest.mark.promise("2.15")
async def test_malformed_requests_are_refused_and_nothing_breaks(files):
    bookie = await Bookie.started(files, settings=Settings(bookie_frame_size_max_bytes=5_253_120))
    assert (await bookie.ask(BookieOp.ADD, b""))[0] == S.BAD_REQUEST
    assert (await bookie.ask(BookieOp.ADD, add_payload(1, 0)[:30]))[0] == S.BAD_REQUEST
    assert (await bookie.ask(BookieOp.ADD, b"\x02" + add_payload(1, 0)[1:]))[0] == S.BAD_REQUEST
    assert (await bookie.ask(BookieOp.ADD, add_payload(1, 1 << 63)))[0] == S.BAD_REQUEST
    assert (await bookie.ask(BookieOp.ADD, add_payload(1, 0, lac=-2)))[0] == S.BAD_REQUEST
    broken = bytearray(add_payload(1, 0))
    broken[-1] ^= 1
    assert (await bookie.ask(BookieOp.ADD, bytes(broken)))[0] == S.CORRUPT
    assert (await bookie.ask(BookieOp.ADD, add_payload(1, 0, bytes(5_253_120))))[0] == S.TOO_LARGE
    for op in (BookieOp.READ, BookieOp.FENCE, BookieOp.READ_LAC, 99):
        assert (await bookie.ask(op, b"123"))[0] == S.BAD_REQUEST
    assert (await bookie.ask(BookieOp.READ, encode_read(1, 0, 5, 4, 1)))[0] == S.BAD_REQUEST
    assert (await bookie.read(1, 0, 0))[0] == S.NO_SUCH_LEDGER
    await bookie.store.close()


async def test_an_entry_larger_than_a_segment_gets_a_file_of_its_own(files):
    bookie = await Bookie.started(files, segment_bytes=16 << 10)
    big = body_of(1, 1, 50_000)
    await bookie.add_many(1, [0])
    assert await bookie.add(1, 1, big) == S.OK
    await bookie.add_many(1, [2])
    bookie = await bookie.restarted()
    assert await bookie.read_all(1, 0, 2) == {**bodies(1, [0, 2]), 1: big}
    await bookie.store.close()


# -- idempotence -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
async def test_the_same_bytes_again_are_ok_and_other_bytes_a_conflict(files, restart):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(20))
    if restart:
        bookie = await bookie.restarted()
    assert await bookie.add(1, 7) == S.OK
    assert await bookie.add(1, 7, b"other") == S.CONFLICT
    assert await bookie.add(1, 7, lac=3) == S.CONFLICT, "the header is part of an entry's identity"
    assert await bookie.add(1, 7, b"other", recovery=True) == S.CONFLICT
    assert await bookie.read_all(1, 0, 19) == bodies(1, range(20))
    await bookie.store.close()


async def test_a_repeated_add_is_answered_only_when_the_first_is_durable(files):
    bookie = await Bookie.started(files)
    lane(bookie, "journal").hold()
    first, again = (bookie.send(BookieOp.ADD, add_payload(1, 0)) for _ in range(2))
    conflict = bookie.send(BookieOp.ADD, add_payload(1, 0, b"x"))
    assert list(bookie.answers) == [conflict] and bookie.answers[conflict][0] == S.CONFLICT
    lane(bookie, "journal").release()
    assert (await bookie.answer(again))[0] == (await bookie.answer(first))[0] == S.OK
    await bookie.store.close()


async def test_gaps_below_stored_entries_are_filled_also_after_a_restart(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, [0, 1, 8, 9])
    bookie = await bookie.restarted()
    await bookie.add_many(1, [5, 3, 4], recovery=True)
    await bookie.add_many(1, [2])
    assert sorted(await bookie.read_all(1, 0, 9)) == [0, 1, 2, 3, 4, 5, 8, 9]
    bookie = await bookie.restarted()
    assert sorted(await bookie.read_all(1, 0, 9)) == [0, 1, 2, 3, 4, 5, 8, 9]
    await bookie.store.close()


async def test_a_fence_decided_during_a_look_up_still_refuses_the_add(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, [0, 9])
    bookie = await bookie.restarted()
    for name in ("read-0", "read-1"):
        lane(bookie, name).hold()
    ordinary = bookie.send(BookieOp.ADD, add_payload(1, 5))
    recovery = bookie.send(BookieOp.ADD, add_payload(1, 6, recovery=True))
    assert (await bookie.fence(1))[0] == S.OK
    for name in ("read-0", "read-1"):
        lane(bookie, name).release()
    assert (await bookie.answer(ordinary))[0] == S.FENCED
    assert (await bookie.answer(recovery))[0] == S.OK
    await bookie.store.close()


# -- fences ----------------------------------------------------------------------------------------------------------


async def test_a_fence_covers_every_add_accepted_before_it_and_refuses_all_after(files):
    bookie = await Bookie.started(files)
    lane(bookie, "journal").hold()
    before = [bookie.send(BookieOp.ADD, add_payload(1, n)) for n in range(5)]
    fence = bookie.send(BookieOp.FENCE, encode_ledger(1, 0))
    fenced_read = bookie.send(BookieOp.READ, encode_read(1, 0, 4, 4, 1000, True))
    after = bookie.send(BookieOp.ADD, add_payload(1, 5))
    assert bookie.answers == {after: (S.FENCED, b"")}
    lane(bookie, "journal").release()
    assert [(await bookie.answer(request))[0] for request in before] == [S.OK] * 5
    assert bookie._state(await bookie.answer(fence)) == (S.OK, (3, 4))
    assert (await bookie.answer(fenced_read))[0] == S.OK
    assert await bookie.add(1, 5, recovery=True) == S.OK, "recovery writes back through the fence"
    assert await bookie.add(2, 0) == S.OK, "other ledgers are not touched"
    await bookie.store.close()


async def test_a_fence_of_a_ledger_never_seen_is_durable_before_its_answer(files):
    bookie = await Bookie.started(files)
    syncs = files.syncs
    assert await bookie.fence(42) == (S.OK, (-1, -1))
    assert files.syncs > syncs
    files.crash()
    bookie = await Bookie.started(files)
    assert await bookie.add(42, 0) == S.FENCED
    assert await bookie.fence(42) == (S.OK, (-1, -1))
    await bookie.store.close()


async def test_a_fence_is_not_answered_before_its_sync_even_if_asked_twice(files):
    bookie = await Bookie.started(files)
    lane(bookie, "journal").hold()
    requests = [bookie.send(BookieOp.FENCE, encode_ledger(1, 0)) for _ in range(2)]
    requests.append(bookie.send(BookieOp.READ, encode_read(1, 0, 0, 0, 100, True)))
    await bookie.read(2, 0, 0)
    assert not set(requests) & set(bookie.answers)
    lane(bookie, "journal").release()
    assert [(await bookie.answer(request))[0] for request in requests] == [S.OK, S.OK, S.NO_SUCH_ENTRY]
    await bookie.store.close()


async def test_a_plain_read_and_read_lac_do_not_fence(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, [0])
    await bookie.read(1, 0, 0)
    await bookie.read_lac(1)
    assert await bookie.add(1, 1) == S.OK
    assert (await bookie.read(1, 0, 0, fence=True))[0] == S.OK
    assert await bookie.add(1, 2) == S.FENCED
    await bookie.store.close()


# -- limbo, tombstones -------------------------------------------------------------------------------------------------


async def test_limbo_answers_unknown_fences_what_is_known_and_ends_only_when_cleared(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, [0, 1, 5])
    await bookie.store.enter_limbo("a test")
    for _ in range(2):
        assert "a test" in bookie.store.limbo
        assert await bookie.add(1, 6) == S.FENCED
        assert await bookie.add(99, 0) == S.READ_ONLY, "its fence may be among what was lost"
        assert (await bookie.read(1, 2, 4))[0] == S.UNKNOWN
        assert (await bookie.read(50, 0, 0))[0] == S.UNKNOWN
        assert (await bookie.read_lac(1))[0] == S.UNKNOWN
        assert (await bookie.fence(1))[0] == S.UNKNOWN
        assert await bookie.read(1, 0, 9) == (S.OK, 2, bodies(1, [0, 1])), "an answer ends at a gap: it may be a loss"
        bookie = await bookie.restarted()
    assert await bookie.add(1, 2, recovery=True) == S.OK
    assert await bookie.add(60, 0, recovery=True) == S.OK
    reason = bookie.store.limbo
    await bookie.store.enter_limbo("more was lost")
    with pytest.raises(BadVersion):
        await bookie.store.clear_limbo(100, reason)
    assert (await bookie.read(50, 0, 0))[0] == S.UNKNOWN
    await bookie.store.clear_limbo(100, f"{reason}; more was lost")
    for _ in range(2):
        assert bookie.store.limbo == ""
        assert (await bookie.read(1, 3, 4))[0] == S.NO_SUCH_ENTRY
        assert await bookie.add(1, 6) == S.FENCED
        assert await bookie.add(60, 1) == S.FENCED
        assert await bookie.add(99, 0) == S.READ_ONLY, "a ledger from before, of which nothing is known"
        bookie = await bookie.restarted()
    assert await bookie.add(100, 0) == S.OK
    await bookie.store.close()


async def test_a_tombstoned_ledger_refuses_zombies_for_ever(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(3))
    await bookie.store.add_tombstones([1, 7])
    for _ in range(2):
        assert await bookie.add(1, 3) == S.FENCED
        assert await bookie.add(7, 0) == S.FENCED
        assert await bookie.add(1, 3, recovery=True) == S.NO_SUCH_LEDGER
        assert (await bookie.read(1, 0, 2))[0] == S.NO_SUCH_LEDGER
        assert (await bookie.fence(1))[0] == S.NO_SUCH_LEDGER
        assert await bookie.add(2, 0) == S.OK
        files.crash()
        bookie = await Bookie.started(files)
    await bookie.store.close()


# -- the disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["sync", "write"])
async def test_a_failed_write_or_sync_ends_the_bookie_and_is_never_retried(files, operation):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, [0])
    files.fail_next(operation, ".journal")
    requests = [bookie.send(BookieOp.ADD, add_payload(1, n)) for n in range(1, 4)]
    fence = bookie.send(BookieOp.FENCE, encode_ledger(5, 0))
    for request in [*requests, fence]:
        assert (await bookie.answer(request))[0] == S.IO_ERROR
    assert len(bookie.fatal) == 1 and isinstance(bookie.fatal[0], StorageFailed)
    syncs = files.syncs
    assert await bookie.add(1, 9) != S.OK
    assert await bookie.add(1, 9, recovery=True) == S.IO_ERROR
    assert (await bookie.read(1, 0, 0))[0] == S.IO_ERROR
    assert files.syncs == syncs and len(bookie.fatal) == 1
    await bookie.store.close()
    files.crash()
    bookie = await Bookie.started(files)
    assert (await bookie.read(1, 0, 0))[0] == S.OK
    await bookie.store.close()


async def test_a_read_error_is_tried_again_then_answered_and_is_not_fatal(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, [0])
    files.fail_next("read", ".journal")
    assert (await bookie.read(1, 0, 0))[0] == S.OK
    files.fail_next("read", ".journal", 2)
    assert (await bookie.read(1, 0, 0))[0] == S.CORRUPT
    assert (await bookie.read(1, 0, 0))[0] == S.OK and not bookie.fatal
    await bookie.store.close()


async def test_a_full_disk_makes_it_read_only_and_space_makes_it_writable_again(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(3))
    files.usage = DiskUsage(95, 100, 5)
    await bookie.store.check_disk()
    assert bookie.store.disk_full
    assert await bookie.add(1, 3) == S.READ_ONLY and await bookie.add(2, 0) == S.READ_ONLY
    assert await bookie.read_all(1, 0, 2) == bodies(1, range(3))
    assert await bookie.add(1, 3, recovery=True) == S.OK
    assert (await bookie.fence(9))[0] == S.OK
    files.usage = DiskUsage(91, 100, 9)
    await bookie.store.check_disk()
    assert bookie.store.disk_full, "writable again only below 90%"
    files.usage = DiskUsage(89, 100, 11)
    await bookie.store.check_disk()
    assert not bookie.store.disk_full
    assert await bookie.add(1, 4) == S.OK
    await bookie.store.close()


async def test_without_room_for_a_journal_adds_are_refused_and_fences_still_go_through():
    files = FaultyFiles(capacity_bytes=300 << 10)
    bookie = await Bookie.started(files, segment_bytes=100 << 10)
    statuses = [await bookie.add(1, n, body_of(1, n, 8000)) for n in range(60)]
    stored = statuses.count(S.OK)
    assert 10 < stored < 45 and set(statuses[stored:]) == {S.READ_ONLY} and not bookie.fatal
    assert (await bookie.fence(1)) == (S.OK, (stored - 2, stored - 1))
    assert len(await bookie.read_all(1, 0, 59)) == stored
    files.capacity_bytes = 2000 << 10
    await bookie.store.check_disk()
    assert await bookie.add(2, 0, body_of(2, 0, 8000)) == S.OK
    bookie = await bookie.restarted()
    assert len(await bookie.read_all(1, 0, 59)) == stored and await bookie.add(1, 99) == S.FENCED
    await bookie.store.close()


async def test_waiting_bytes_are_bounded(files):
    bookie = await Bookie.started(files, settings=Settings(bookie_pending_bytes_max=1 << 16))
    lane(bookie, "journal").hold()
    requests = [bookie.send(BookieOp.ADD, add_payload(1, n, body_of(1, n, 10_000))) for n in range(8)]
    refused = [request for request in requests if request in bookie.answers]
    assert len(refused) == 2 and {bookie.answers[request][0] for request in refused} == {S.OVERLOADED}
    lane(bookie, "journal").release()
    for request in set(requests) - set(refused):
        assert (await bookie.answer(request))[0] == S.OK
    assert await bookie.add(1, 8) == S.OK
    await bookie.store.close()


async def test_an_add_that_is_looked_up_while_the_store_closes_is_refused(files):
    """Its entry would stand in the index of a journal that nobody writes any longer, as if it had been stored."""
    bookie = await Bookie.started(files)
    await bookie.add_many(1, [*range(3), *range(4, 10)])
    bookie = await bookie.restarted()
    for number in range(READER_LANES):
        lane(bookie, f"read-{number}").hold()
    looked_up, fence = bookie.send(BookieOp.ADD, add_payload(1, 3)), bookie.send(BookieOp.FENCE, encode_ledger(2, 0))
    await bookie.answer(fence)
    closing = asyncio.ensure_future(bookie.store.close())
    await turns(lambda: bookie.store.entries.journal._closed)
    for number in range(READER_LANES):
        lane(bookie, f"read-{number}").release()
    assert (await bookie.answer(looked_up))[0] == S.IO_ERROR
    late = bookie.send(BookieOp.FENCE, encode_ledger(3, 0))
    assert (await bookie.answer(late))[0] == S.IO_ERROR
    await closing
    bookie = await Bookie.started(files)
    assert bookie.store.limbo == "" and await bookie.read_all(1, 0, 9) == bodies(1, [*range(3), *range(4, 10)])
    await bookie.store.close()


# -- corruption on the disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
async def test_a_flipped_bit_is_answered_corrupt_never_absent(files, restart):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(10))
    if restart:
        bookie = await bookie.restarted()
    name = f"{DIRECTORY}/0000000000000001.journal"
    at = files.read_bytes(name).index(body_of(1, 4))
    files.flip_bit(name, at + 10)
    assert await bookie.read(1, 0, 9) == (S.OK, 4, bodies(1, range(4)))
    assert (await bookie.read(1, 4, 9))[0] == S.CORRUPT
    assert await bookie.read(1, 5, 9) == (S.OK, 10, bodies(1, range(5, 10)))
    assert await bookie.held(1, 0, 8) == [(0, 3), (5, 8)], "met once, it counts as missing: repair it"
    assert await bookie.held(1, 0, 8, intact_only=True) == [(0, 3), (5, 8)]
    if restart:
        assert await bookie.add(1, 4, recovery=True) == S.OK, "a repair is stored beside the damaged copy"
        assert await bookie.read_all(1, 0, 9) == bodies(1, range(10))
    await bookie.store.close()


async def test_a_damaged_index_is_rebuilt_and_never_hides_an_entry(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(10))
    bookie = await bookie.restarted()
    index = f"{DIRECTORY}/0000000000000001.journal.index"
    files.flip_bit(index, len(files.read_bytes(index)) - 60)
    assert (await bookie.read(1, 0, 9))[0] == S.IO_ERROR
    await turns(lambda: not bookie.store.entries._rebuilding)
    assert await bookie.read_all(1, 0, 9) == bodies(1, range(10))
    assert bookie.store.limbo == ""
    await bookie.store.close()
    files.flip_bit(index, 20)
    bookie = await Bookie.started(files)
    assert await bookie.read_all(1, 0, 9) == bodies(1, range(10)) and bookie.store.limbo == ""
    await bookie.store.close()


async def test_no_index_is_rebuilt_for_a_read_that_a_close_overtook(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(10))
    bookie = await bookie.restarted()
    files.remove(f"{DIRECTORY}/0000000000000001.journal.index")
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    reading = asyncio.create_task(bookie.read(1, 4, 4))
    await asyncio.sleep(0)
    await bookie.store.close()
    assert (await reading)[0] == S.IO_ERROR
    assert failures == []


async def test_an_index_that_cannot_be_rebuilt_leads_to_limbo(files):
    bookie = await Bookie.started(files)
    await bookie.add_many(1, range(10))
    bookie = await bookie.restarted()
    index, journal = (f"{DIRECTORY}/0000000000000001.journal{suffix}" for suffix in (".index", ""))
    at = files.read_bytes(journal).index(body_of(1, 4))
    files.flip_bit(journal, at - 40)
    files.remove(index)
    assert (await bookie.read(1, 4, 4))[0] == S.IO_ERROR
    await turns(lambda: bookie.store.limbo and not bookie.store.entries._rebuilding)
    assert (await bookie.read(1, 4, 4))[0] in (S.UNKNOWN, S.CORRUPT)
    await bookie.store.close()
