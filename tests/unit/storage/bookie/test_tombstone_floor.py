"""A bookie forgets old tombstones, keeps what they stood for, and describes itself without stopping its loop."""

import asyncio
import sys
import time
import tracemalloc

import pytest

from magnetar.protocol.bookie_wire import BookieStatus
from magnetar.storage.bookie import entry_store
from magnetar.storage.bookie import held_ledgers as ledger_states
from magnetar.storage.bookie.checkpoint import Checkpoint
from magnetar.storage.bookie.compaction import Compactor
from magnetar.storage.bookie.held_ledgers import HeldLedger, IdRanges
from magnetar.storage.bookie.segment import Segment
from magnetar.storage.bookie.segment_index import Rows, SegmentTable, encode_index
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import Bookie, bodies

S = BookieStatus


@pytest.fixture
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_store, "TOMBSTONE_RUNS_MAX", 4)


async def compact(bookie: Bookie) -> None:
    compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 30)
    await compactor.run(0.99)
    await compactor.close()


async def test_forgotten_tombstones_refuse_writers_and_take_copies(few_runs: None) -> None:
    bookie = await Bookie.started(FaultyFiles())
    await bookie.add_many(10, range(3))
    deleted = list(range(1, 40, 2))
    for ledger_id in deleted:
        await bookie.fence(ledger_id)
    await bookie.store.add_tombstones(deleted)
    entries = bookie.store.entries
    assert entries.tombstones.runs == 20
    await entries.forget_tombstones()
    assert entries.tombstones.runs == 2 and entries.fence_floor == 37 and entries.ledgers_end == 40
    await entries.checkpoint()
    for _ in range(2):
        assert await bookie.add(1, 0) == S.READ_ONLY, "a writer of a deleted ledger"
        assert await bookie.add(37, 0) == S.FENCED and await bookie.add(39, 0, recovery=True) == S.NO_SUCH_LEDGER
        assert (await bookie.read(3, 0, 9))[0] == S.NO_SUCH_LEDGER
        assert await bookie.add(10, 3) == S.OK, "a ledger that lives goes on"
        assert await bookie.add(41, 0) == S.OK, "a ledger above the floor is taken"
        bookie = await bookie.restarted()
    assert await bookie.add(12, 0) == S.READ_ONLY, "one below it, never heard of, takes no writer"
    await bookie.add_many(12, range(3), recovery=True)
    assert await bookie.read_all(12, 0, 9) == bodies(12, range(3)), "but copies"
    assert await bookie.add(12, 3) == S.FENCED
    assert (await bookie.fence(5))[0] == S.OK and await bookie.add(5, 0) == S.FENCED


@pytest.mark.parametrize("unsealed", [True, False])
async def test_a_tombstone_stays_while_a_segment_holds_entries_of_its_ledger(few_runs: None, unsealed: bool) -> None:
    """Else a restart would take them for those of a ledger that lives and that nobody has fenced."""
    bookie = await Bookie.started(FaultyFiles())
    await bookie.add_many(1, range(3))
    await bookie.add_many(100, range(3))
    if not unsealed:
        bookie = await bookie.restarted()
    await bookie.store.add_tombstones(list(range(1, 40, 2)))
    await bookie.store.entries.forget_tombstones()
    assert list(bookie.store.entries.tombstones) == [(1, 1), (37, 37), (39, 39)]
    bookie = await bookie.restarted()
    assert await bookie.add(1, 3) == S.FENCED and (await bookie.read(1, 0, 9))[0] == S.NO_SUCH_LEDGER
    await compact(bookie)
    await bookie.store.add_tombstones(list(range(41, 60, 2)))
    await bookie.store.entries.forget_tombstones()
    assert 1 not in bookie.store.entries.tombstones
    bookie = await bookie.restarted()
    assert await bookie.add(1, 3) == S.READ_ONLY and await bookie.read_all(100, 0, 9) == bodies(100, range(3))


async def test_few_runs_are_kept_and_the_floor_stays(few_runs: None) -> None:
    bookie = await Bookie.started(FaultyFiles())
    await bookie.store.add_tombstones([1, 2, 3, 7, 8, 20])
    await bookie.store.entries.forget_tombstones()
    assert list(bookie.store.entries.tombstones) == [(1, 3), (7, 8), (20, 20)] and not bookie.store.entries.fence_floor


def test_a_table_finds_every_line_and_nothing_else_in_64_bytes_a_ledger() -> None:
    rows = {}
    for ledger_id in range(1, 2001, 2):
        rows[ledger_id] = Rows(ledger_id + 7)
        rows[ledger_id].put(ledger_id, 50, 60, 70, -1)
    _, table = encode_index(3, 4, 5, rows)
    assert len(table) == 1000 and list(table) == list(rows)
    for ledger_id in range(2003):
        line = table.get(ledger_id)
        assert (ledger_id in table) is (line is not None) is (ledger_id in rows)
        if line is not None:
            assert (line.first, line.last, line.entries, line.nonce) == (ledger_id, ledger_id, 1, ledger_id + 7)
    assert [line.nonce for line in table.values()] == [one + 7 for one in rows]
    with pytest.raises(KeyError):
        table[2]
    assert len(SegmentTable()) == 0 and 1 not in SegmentTable()
    assert sys.getsizeof(table._lines) < 1000 * 64 + 100


async def test_a_checkpoint_of_many_ledgers_takes_no_step_of_the_loop_that_is_long() -> None:
    """Processor time, so that a busy machine does not matter; 200,000 fences took the loop 200 ms before."""
    bookie = await Bookie.started(FaultyFiles())
    entries = bookie.store.entries
    for ledger_id in range(200_000):
        state = entries.ledgers[ledger_id] = HeldLedger(ledger_id, ledger_id)
        state.fenced = True
    entries.tombstones = IdRanges([(one, one) for one in range(1_000_000, 1_400_000, 2)])
    for file_id in range(1000, 21_000):
        segment = entries.segments[file_id] = Segment("/bookie", file_id, ".journal", "instance")
        segment.become_sealed(SegmentTable())
    runs: list[list[float]] = []
    described: Checkpoint | None = None
    for _ in range(3):
        steps: list[float] = []
        described, describing = None, entries._describe()
        while described is None:
            began = time.process_time()
            try:
                describing.send(None)
            except StopIteration as done:
                described = done.value
            steps.append(time.process_time() - began)
        runs.append(steps)
    steps = [min(times) for times in zip(*runs, strict=True)]  # other processes slow a single step down
    assert described is not None
    assert (
        len(described.fenced) == 200_000 and described.tombstones.runs == 200_000 and len(described.segments) > 19_999
    )
    began = time.process_time()
    encoded = described.encode()
    in_the_lane = time.process_time() - began
    assert len(steps) == 40 and max(steps) < max(0.05, in_the_lane), (max(steps), in_the_lane)
    again = Checkpoint.decode(encoded)
    assert again.fenced == described.fenced and list(again.tombstones) == list(described.tombstones)
    await asyncio.sleep(0)


def test_a_tombstone_run_costs_16_bytes_and_a_fenced_ledger_a_bounded_number() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        runs = IdRanges([(one, one) for one in range(0, 200_000, 2)])
        tombstones = tracemalloc.get_traced_memory()[0] - before
        assert runs.runs == 100_000 and tombstones < 100_000 * 20
    finally:
        tracemalloc.stop()
    assert ledger_states.TOMBSTONE_RUNS_MAX == 10_000
