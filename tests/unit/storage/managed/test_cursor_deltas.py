"""What a cursor writes while it moves, changes behind a snapshot: the cost, and what a crash at any record leaves."""

import asyncio
import contextlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.protocol.bookie_wire import ENTRY_HEADER_SIZE_BYTES
from magnetar.protocol.errors import LedgerFenced, MagnetarError, MetadataError, OutcomeUnknown, StaleEpoch
from magnetar.storage.managed import cursor_storage
from magnetar.storage.managed.chain import LedgerChain, LedgerInfo
from magnetar.storage.managed.cursor_state import CHANGES_MAX, CursorState
from magnetar.storage.managed.cursor_storage import CursorLog, CursorRecord, read_last
from magnetar.storage.managed.managed_ledger import ManagedLedger
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.store import pack, unpack
from support.fakes.bookies import Adds

pytestmark = pytest.mark.cluster_settings(add_entry_timeout_s=2.0, cursor_flush_interval_s=3600)

NAME = "persistent/public/default/t"
HOLES = 300_000


def chain(entries: int) -> LedgerChain:
    return LedgerChain([LedgerInfo(3, 0, entries, 1, True), LedgerInfo(6, 0, entries, 1, False)])


async def open_(cluster, epoch=1):
    ledgers = cluster.ledgers if epoch == 1 else cluster.new_ledgers()
    return await ManagedLedger.open(cluster.env, ledgers, cluster.metadata, NAME, epoch, cluster.settings)


async def filled(cluster, count):
    managed = await open_(cluster)
    made = await managed.open_cursor("s", "earliest")
    adds = Adds()
    for number in range(count):
        managed.append(b"%d" % number, adds.callback)
    await adds.wait(count)
    return managed, made, adds.positions


async def ledger_of(cluster):
    found = await cluster.metadata.get(metadata_keys.cursor(NAME, "s"))
    return CursorRecord.unpack(found.value).ledger_id


def records(cluster, ledger_id):
    """The bodies in a cursor's ledger."""
    held = cluster[1].ledgers[ledger_id].entries
    return [bytes(held[entry_id])[ENTRY_HEADER_SIZE_BYTES:] for entry_id in sorted(held)]


async def end(managed):
    with contextlib.suppress(StaleEpoch, LedgerFenced):
        await managed.close()


# -- what it costs -----------------------------------------------------------------------------------------------------


async def test_a_flush_after_one_more_acknowledgement_writes_little_whatever_the_holes(cluster):
    managed, made, positions = await filled(cluster, 10)
    one = chain(2 * HOLES + 10)
    state = made._state = made._writer.cursor_state = CursorState(one, (3, -1))
    state.acknowledge([(3, index) for index in range(1, 2 * HOLES, 2)])
    made._writer.moved()
    await made.flush()
    writer = made._writer.storage.ledger_writer
    whole, entries = writer.length, writer.last_added
    assert state.range_count == HOLES and whole > 1_000_000
    for number in range(5):
        made.acknowledge([(3, 2 * number)])
        await made.flush()
    assert made._writer.storage.ledger_writer is writer and writer.last_added == entries + 5
    assert writer.length - whole < 5 * 200
    assert len(positions) == 10
    await end(managed)


async def test_a_large_state_is_packed_off_the_loop_and_changes_meanwhile_are_not_lost(cluster, monkeypatch):
    managed, made, positions = await filled(cluster, 200)
    monkeypatch.setattr(cursor_storage, "SMALL_STATE_RANGES_MAX", 10)
    run, began, go_on = cluster.env.offload.run, asyncio.Event(), asyncio.Event()
    packed = []

    async def held(function, *arguments):
        began.set()
        await go_on.wait()
        packed.append(function)
        return await run(function, *arguments)

    monkeypatch.setattr(cluster.env.offload, "run", held)
    made.acknowledge(positions[1:101:2])
    flushing = asyncio.create_task(made.flush())
    await began.wait()
    made.acknowledge(positions[101:121:2])
    go_on.set()
    await flushing
    await made.flush()
    assert len(packed) == 1
    again = await open_(cluster, 2)
    assert [one for one in positions if again.cursors["s"].is_acknowledged(one)] == positions[1:121:2]
    await again.close()
    await end(managed)


async def test_snapshots_cost_no_more_than_the_deltas_between_them(cluster, monkeypatch):
    monkeypatch.setattr(cursor_storage, "DELTAS_SIZE_MIN_BYTES", 300)
    managed, made, positions = await filled(cluster, 200)
    for position in positions[1::2]:
        made.acknowledge([position])
        await made.flush()
    found = [unpack(body) for body in records(cluster, await ledger_of(cluster))]
    snapshots = sum(len(piece) for _, _, piece in (record for record in found if len(record) == 3))
    deltas = sum(len(record[2]) for record in found if len(record) == 4)
    assert len(found) == 100 and 2 < sum(len(record) == 3 for record in found) < 40
    assert snapshots <= deltas + 2 * 400
    again = await open_(cluster, 2)
    assert again.cursors["s"].acknowledged_ranges == 100
    await again.close()
    await end(managed)


# -- crashes -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(0, 1 << 32), st.integers(1, 60))
def test_changes_in_order_make_the_state_that_they_were_taken_from(seed, entries):
    """At each write: the whole before it and all changes since are the state of that moment."""
    random = Random(seed)
    one = chain(entries)
    state = CursorState(one, (-1, -1), {"a": "b"})
    state.reset((3, 0))
    whole, deltas = state.whole().pack(), list[bytes]()
    for step in range(30):
        match random.randrange(8):
            case 0:
                state.acknowledge_cumulative((random.choice((3, 6)), random.randrange(entries)))
            case 1:
                place = (random.choice((3, 6)), random.randrange(entries))
                state.acknowledge_batch_index(place, [random.getrandbits(5)], 5)
            case 2:
                state.take_snapshot(state.mark_delete, {"n": str(step)})
            case 3 if random.random() < 0.2:
                state.reset((random.choice((3, 6)), random.randrange(entries)))
            case _:
                ids = [random.randrange(entries) for _ in range(random.randrange(6))]
                state.acknowledge([(random.choice((3, 6)), entry_id) for entry_id in ids])
        if random.random() < 0.5:
            changes = state.take_changes()
            if changes is None or random.random() < 0.1:
                whole, deltas = state.whole().pack(), []
            else:
                deltas.append(changes)
            found = CursorState.unpack(whole, one, deltas)
            assert found.pack() == state.pack()


@pytest.mark.parametrize("cut", range(12))
async def test_a_crash_behind_any_record_leaves_the_state_of_that_write(cluster, monkeypatch, cut):
    """Two snapshots of several parts each, with deltas behind them; what the ledger holds ends anywhere."""
    monkeypatch.setattr(cursor_storage.append, "__defaults__", (40,))
    one = chain(40)
    state = CursorState(one, (3, -1))
    log = CursorLog(await cluster.ledgers.create())
    after: dict[int, bytes] = {}
    for _ in range(2):
        state.acknowledge([(3, index) for index in range(1, 30, 2)])
        await log.snapshot(state.whole().pack())
        after[log.writer.last_added] = state.pack()
        for number in range(3):
            state.acknowledge([(6, 2 * number + 1), (3, 30 + number)])
            changes = state.take_changes()
            assert changes is not None and log.takes_delta(len(changes))
            await log.delta(changes)
            after[log.writer.last_added] = state.pack()
        state.reset((3, 5))
    last = log.writer.last_added
    reader = cluster.ledgers.reader(await log.writer.close())
    found = await read_last(reader, last - cut)
    expected = [packed for entry_id, packed in after.items() if entry_id <= last - cut]
    if not expected:
        assert found is None
    else:
        assert found is not None
        assert CursorState.unpack(found.snapshot, one, found.deltas).pack() == expected[-1]


async def test_after_a_failed_write_the_whole_is_written(cluster, monkeypatch):
    managed, made, positions = await filled(cluster, 40)
    made.acknowledge(positions[1:2])
    await made.flush()

    async def broken(log, changes):
        raise OutcomeUnknown("perhaps written")

    with monkeypatch.context() as patched:
        patched.setattr(CursorLog, "delta", broken)
        made.acknowledge(positions[3:4])
        with pytest.raises(OutcomeUnknown):
            await made.flush()
    made.acknowledge(positions[5:6])
    await made.flush()
    again = await open_(cluster, 2)
    assert [one for one in positions if again.cursors["s"].is_acknowledged(one)] == [
        positions[index] for index in (1, 3, 5)
    ]
    await again.close()
    await end(managed)


async def test_nothing_goes_to_the_old_ledger_once_the_record_may_name_another(cluster, monkeypatch):
    managed, made, positions = await filled(cluster, 40)
    made.acknowledge(positions[1:2])
    await made.flush()
    old = made._writer.storage.ledger_writer
    before = old.last_added

    async def unknown(*arguments, **options):
        raise OutcomeUnknown("the record may name the new ledger")

    with monkeypatch.context() as patched:
        patched.setattr(made._writer.storage, "_put", unknown)
        patched.setattr(type(old), "should_move", True)
        made.acknowledge(positions[3:4])
        with pytest.raises(OutcomeUnknown):
            await made.flush()
    await made.flush()
    assert made._writer.storage.ledger_writer is not old and old.last_added == before
    await end(managed)


# -- odd records -------------------------------------------------------------------------------------------------------


async def test_damaged_records_are_an_error_never_a_lost_hole(cluster):
    managed, made, positions = await filled(cluster, 60)
    for position in positions[1:21:2]:
        made.acknowledge([position])
        await made.flush()
    ledger_id, random = await ledger_of(cluster), Random(5)
    for bookie in cluster.bookies.values():
        entries = bookie.ledgers[ledger_id].entries
        for entry_id in list(entries):
            data = bytearray(entries[entry_id])
            data[random.randrange(ENTRY_HEADER_SIZE_BYTES, len(data))] ^= 1 << random.randrange(8)
            entries[entry_id] = bytes(data)
    with pytest.raises(MagnetarError):
        await open_(cluster, 2)
    await end(managed)


@pytest.mark.parametrize(
    "bodies",
    [
        [[0, 1, b"s"], [0, 1, b"d", 1]],  # the first delta is missing
        [[0, 1, b"s"], [0, 0, b"d", 1], [0, 2, b"d", 1]],
        [[0, 1, b"s"], [0, 0, b"d", 1], [0, 0, b"d", 1]],
        [[0, 1, b"s"], [1, 0, b"d", 1]],  # of another snapshot
        [[0, 2, b"s"], [0, 0, b"d", 2]],  # of one that is not complete
        [[0, 1, b"s"], [0, 0, b"d", 0]],
        [[0, 1, b"s"], [0, 0, 5, 1]],
        [[0, 1, b"s"], [-1, 0, b"d", 1]],
        [[1, 2, b"s"]],
        [[0, 2, b"s"], [0, 2, b"s"], [1, 2, b"s"], [2, 0, b"d", 1]],
        [{"a": 1}],
        [[0, 1, b"s"], [0, 0]],
    ],
)
async def test_records_that_do_not_fit_together_are_refused(cluster, bodies):
    writer = await cluster.ledgers.create()
    adds = Adds()
    for body in bodies:
        writer.add(pack(body), adds.callback)
    await adds.wait(len(bodies))
    metadata = await writer.close()
    with pytest.raises(MetadataError):
        await read_last(cluster.ledgers.reader(metadata), metadata.last_entry)


def test_changes_that_lead_back_are_refused():
    one = chain(10)
    whole = CursorState(one, (3, 5)).whole().pack()
    back = pack({"mark": [3, 4], "ranges": [], "batches": []})
    with pytest.raises(MetadataError, match="mark-delete position back from"):
        CursorState.unpack(whole, one, [back])


def test_more_changes_than_are_kept_make_the_whole_due():
    one = chain(3 * CHANGES_MAX)
    state = CursorState(one, (3, -1))
    assert state.take_changes() is None  # nothing was written yet
    state.whole()
    assert state.take_changes() is not None
    state.acknowledge([(3, index) for index in range(1, 2 * CHANGES_MAX + 4, 2)])
    assert state.take_changes() is None
    state.whole()
    state.acknowledge([(6, 1)])
    changes = state.take_changes()
    assert changes is not None and len(changes) < 60
