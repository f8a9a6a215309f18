"""Power loss at every step of a bookie's life: what was answered is there afterwards, and nothing else is invented."""

import asyncio
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus, encode_ledger
from magnetar.protocol.errors import MagnetarError
from magnetar.storage.bookie.compaction import Compactor
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import DIRECTORY, Bookie, add_payload, bodies, body_of

S = BookieStatus
SEGMENT_BYTES = 4096


async def workload(bookie, requests, random):
    """Adds to three ledgers with a fence, deletions and compactions in between; `requests` logs what was asked."""
    compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 40)
    following = {1: 0, 2: 0, 3: 0}
    try:
        for round_number in range(14):
            for ledger_id in following:
                for _ in range(random.randint(1, 6)):
                    entry_id = following[ledger_id]
                    following[ledger_id] += 1
                    payload = add_payload(ledger_id, entry_id, body_of(ledger_id, entry_id, random.randint(30, 700)))
                    requests["add", ledger_id, entry_id] = (bookie.send(BookieOp.ADD, payload), payload)
            if round_number == 4:
                requests["fence", 2, 0] = (bookie.send(BookieOp.FENCE, encode_ledger(2, 0)), b"")
            await asyncio.sleep(0)
            await bookie.read(1, 0, 0)
            if round_number == 7:
                requests["tombstone", 3, 0] = (-1, b"")  # asked for, nobody told yet
                await bookie.store.add_tombstones([3])
                requests["tombstone", 3, 0] = (None, b"")
            if round_number in (8, 12):
                await compactor.run(0.8)
        await bookie.store.close()
    finally:
        await compactor.close()


def acknowledged(bookie, requests):
    """Keys of everything that was answered OK."""
    return {
        key: payload
        for key, (request, payload) in requests.items()
        if request is None or bookie.answers.get(request, (None,))[0] == S.OK
    }


async def check(files, told, asked):
    """Open what the crash left and compare with what was told."""
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    assert bookie.store.limbo == "", "a power loss is no corruption"
    deleted = ("tombstone", 3, 0) in told
    for kind, ledger_id, entry_id in told:
        if kind == "add" and not (ledger_id == 3 and ("tombstone", 3, 0) in asked):
            status, _, entries = await bookie.read(ledger_id, entry_id, entry_id)
            assert (
                status == S.OK
                and add_payload(ledger_id, entry_id, entries[entry_id]) == asked["add", ledger_id, entry_id]
            )
    for ledger_id in (1, 2, 3):
        if bookie.store.entries.ledgers.get(ledger_id) is not None:
            for entry_id, body in (await bookie.read_all(ledger_id, 0, 999)).items():
                assert add_payload(ledger_id, entry_id, body) == asked["add", ledger_id, entry_id]
    if ("fence", 2, 0) in told:
        assert await bookie.add(2, 1000) == S.FENCED
    if deleted:
        assert await bookie.add(3, 1000) == S.FENCED
        assert (await bookie.read(3, 0, 0))[0] == S.NO_SUCH_LEDGER
    assert await bookie.add(9, 0) == S.OK
    again = await bookie.restarted(segment_bytes=SEGMENT_BYTES)
    assert again.store.limbo == "" and (await again.read(9, 0, 0))[0] == S.OK
    await again.store.close()


async def crash_at(step, seed):
    """Run the workload until the power goes off at a step; returns whether it did."""
    files = FaultyFiles(seed)
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    requests = {}
    files.power_off_after(step)
    finished = True
    try:
        await workload(bookie, requests, Random(5))
    except (OSError, MagnetarError):
        finished = False
    went_off = files.power_is_off
    told = acknowledged(bookie, requests)
    if not finished or went_off:
        await bookie.store.close()
    files.crash()
    await check(files, told, {key: payload for key, (_, payload) in requests.items()})
    return went_off


async def test_power_loss_at_every_step_of_a_life_with_compaction(caplog):
    caplog.set_level("CRITICAL", "magnetar.storage")
    step, crashed = 1, 0
    while await crash_at(step, seed=step):
        crashed += 1
        step += 1 if step < 40 else 7
    assert crashed > 40


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(step=st.integers(1, 200), seed=st.integers(0, 1 << 32))
def test_power_loss_anywhere_with_any_survivors(caplog, step, seed):
    caplog.set_level("CRITICAL", "magnetar.storage")
    asyncio.run(crash_at(step, seed))


async def test_power_loss_during_the_start_itself(caplog):
    """Replay, sealing and the first checkpoint may be interrupted anywhere and are simply done again."""
    caplog.set_level("CRITICAL", "magnetar.storage")
    for step in range(1, 40):
        files = FaultyFiles(step)
        bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
        for start in range(0, 40, 8):
            await bookie.add_many(1, range(start, start + 8))
        assert (await bookie.fence(2))[0] == S.OK
        files.crash()
        files.power_off_after(step)
        second = Bookie(files, segment_bytes=SEGMENT_BYTES)
        try:
            await second.store.open()
        except OSError:
            await second.store.close()
        files.crash()
        third = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
        assert third.store.limbo == ""
        assert await third.read_all(1, 0, 99) == bodies(1, range(40))
        assert await third.add(2, 0) == S.FENCED
        await third.store.close()


@pytest.mark.parametrize("turns", range(12))
async def test_a_start_that_is_given_up_anywhere_changes_nothing(turns):
    files = await stopped_hard()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    assert (await bookie.fence(2))[0] == S.OK
    await bookie.store.close()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    assert (await bookie.fence(3))[0] == S.OK
    await bookie.store.add_tombstones([4])
    await bookie.store.close()  # a journal without entries is gone now: only the checkpoint knows the fence
    bookie = Bookie(files, segment_bytes=SEGMENT_BYTES)
    starting = asyncio.ensure_future(bookie.store.open())
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    await bookie.store.close()
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    assert bookie.store.limbo == "" and await bookie.read_all(1, 0, 99) == bodies(1, range(40))
    assert {await bookie.add(ledger_id, 0) for ledger_id in (2, 3, 4)} == {S.FENCED}
    await bookie.store.close()


async def test_restarts_do_not_read_sealed_data(monkeypatch):
    """The cost of a start depends on the number of segments, not on what is in them."""
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=64 << 10)
    for start in range(0, 4000, 100):
        await bookie.add_many(1, range(start, start + 100), 300)
    await bookie.store.close()
    total = sum(len(files.read_bytes(f"{DIRECTORY}/{name}")) for name in files.list(DIRECTORY))
    read = 0
    original = FaultyFiles.open

    def counted(self, path, **options):
        file = original(self, path, **options)
        read_at = file.read_at

        def counting(offset, length):
            nonlocal read
            data = read_at(offset, length)
            read += len(data)
            return data

        file.read_at = counting
        return file

    monkeypatch.setattr(FaultyFiles, "open", counted)
    bookie = await Bookie.started(files, segment_bytes=64 << 10)
    assert total > 1_000_000 and read < 10_000
    monkeypatch.undo()
    assert await bookie.read_all(1, 0, 3999) == bodies(1, range(4000), 300)
    await bookie.store.close()


# -- damage found at start ---------------------------------------------------------------------------------------------


async def stopped_hard(entries=40):
    """Files of a bookie that stopped without closing: everything answered, several journals, some not sealed."""
    files = FaultyFiles(1)
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    for start in range(0, entries, 4):
        await bookie.add_many(1, range(start, start + 4))
    assert (await bookie.fence(2))[0] == S.OK
    files.crash()
    return files


def journals(files):
    return [name for name in files.list(DIRECTORY) if name.endswith(".journal")]


async def test_every_flipped_byte_of_the_last_journal_leads_to_limbo_or_to_nothing_lost(caplog):
    caplog.set_level("CRITICAL", "magnetar")
    pristine = await stopped_hard(entries=8)
    (name, *_) = journals(pristine)
    size = pristine.read_bytes(f"{DIRECTORY}/{name}").rindex(b"\xb7\x4d") + 16
    limbo = 0
    for byte in range(0, size, 7):
        files = await stopped_hard(entries=8)
        files.flip_bit(f"{DIRECTORY}/{name}", byte, bit=3)
        bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
        limbo += bool(bookie.store.limbo)
        for entry_id in range(8):
            status, _, entries = await bookie.read(1, entry_id, entry_id)
            assert status in (S.OK, S.UNKNOWN, S.CORRUPT), (byte, entry_id)
            assert status != S.OK or entries == bodies(1, [entry_id])
        assert await bookie.add(2, 0) in (S.FENCED, S.READ_ONLY), "a fence survives, or limbo refuses"
        await bookie.store.close()
    assert limbo > size / 7 * 0.8


@pytest.mark.parametrize("which", [0, -1, "checkpoint", "journal record"])
async def test_a_missing_file_leads_to_limbo(caplog, which):
    caplog.set_level("CRITICAL", "magnetar")
    files = await stopped_hard()
    if which == "checkpoint":
        files.flip_bit(f"{DIRECTORY}/checkpoint", 40)
    elif which == "journal record":
        name = f"{DIRECTORY}/{journals(files)[-2]}"
        for byte in range(300, 420):
            files.flip_bit(name, byte)
    else:
        with_data = [name for name in journals(files) if any(files.read_bytes(f"{DIRECTORY}/{name}")[30:])]
        files.remove(f"{DIRECTORY}/{with_data[which]}")
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    assert bookie.store.limbo
    missing = 0
    for entry_id in range(40):
        status, _, entries = await bookie.read(1, entry_id, entry_id)
        assert status in (S.OK, S.UNKNOWN, S.CORRUPT)
        assert status != S.OK or entries == bodies(1, [entry_id])
        missing += status != S.OK
    assert missing == 0 if which == "checkpoint" else missing > 0
    await bookie.add_many(1, range(40), recovery=True)
    await bookie.store.clear_limbo(1000)
    bookie = await bookie.restarted(segment_bytes=SEGMENT_BYTES)
    assert bookie.store.limbo == ""
    assert await bookie.read_all(1, 0, 99) == bodies(1, range(40))
    assert await bookie.add(1, 40) == S.FENCED
    await bookie.store.close()


async def test_what_a_start_finds_after_a_failed_sync_is_durable_when_it_serves(caplog):
    """The cache shows what the failed sync did not store, and holds it for stored: it has to be written again."""
    caplog.set_level("CRITICAL", "magnetar.storage")
    lost_without_a_start = 0
    for seed in range(30):
        files = FaultyFiles(seed)
        bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
        await bookie.add_many(1, range(5))
        files.fail_next("sync")
        assert await bookie.add(1, 5) == S.IO_ERROR and bookie.fatal
        await bookie.store.close()
        files.process_died()
        lost_without_a_start += b"<1:5>" not in durable(files)
        second = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
        seen = await second.read_all(1, 0, 99)
        assert await second.add(1, 5, recovery=True) == S.OK, "it has it already, or stores it now"
        files.crash()
        third = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
        assert third.store.limbo == ""
        assert await third.read_all(1, 0, 99) == {**seen, **bodies(1, range(6))}
        await third.store.close()
    assert lost_without_a_start > 5


def durable(files: FaultyFiles) -> bytes:
    """All that a power loss could not take."""
    contents = [inode.durable for inode in files._durable_names.values()]
    return b"".join(content.read(0, content.size) for content in contents)


@pytest.mark.parametrize("seed", range(3))
async def test_a_power_loss_after_the_death_of_a_process(caplog, seed):
    """What the first process had told, and what the second one read from what the first had not synced, survives."""
    caplog.set_level("CRITICAL", "magnetar.storage")
    for first_dies_at in range(1, 60, 5):
        for step in (1, 2, 3, 4, 5, 6, 8, 10, 14, 20, 1000):
            files = FaultyFiles(seed * 100_000 + first_dies_at * 1000 + step)
            told = await live_until(files, first_dies_at)
            files.process_died()
            files.power_off_after(step)
            second, seen = Bookie(files, segment_bytes=SEGMENT_BYTES), {}
            try:
                await second.store.open()
                seen = await everything(second)
                await second.store.close()
            except OSError:
                await second.store.close()
            files.crash()
            third = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
            assert third.store.limbo == ""
            assert {entry_id: body for entry_id, body in told.items() if entry_id >= 0} | seen == {
                entry_id: body
                for entry_id, body in (await everything(third)).items()
                if entry_id in told or entry_id in seen
            }
            if -1 in told:
                assert await third.add(2, 0) == S.FENCED
            await third.store.close()


async def live_until(files, dies_at):
    """Add and fence until a change of the disk; returns the bodies of ledger 1 that were told, under −1 the fence."""
    bookie = await Bookie.started(files, segment_bytes=SEGMENT_BYTES)
    files.power_off_after(dies_at)
    told = {}
    for entry_id in range(40):
        if await bookie.add(1, entry_id) == S.OK:
            told[entry_id] = bodies(1, [entry_id])[entry_id]
        if entry_id == 16 and (await bookie.fence(2))[0] == S.OK:
            told[-1] = b""
    await bookie.store.close()
    return told


async def everything(bookie):
    return await bookie.read_all(1, 0, 99) if 1 in bookie.store.entries.ledgers else {}
