"""The writer against scripted bookies in memory: order, fencing, ensemble changes, too few bookies, slow bookies."""

import asyncio
import time

import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus
from magnetar.protocol.errors import (
    DigestConflict,
    DiskFull,
    LedgerClosed,
    LedgerError,
    LedgerFenced,
    MessageTooBig,
    MetadataUnavailable,
    NotEnoughBookies,
    ServiceUnitNotReady,
    StaleEpoch,
)
from magnetar.storage.ledger.writer_state import SlotState
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerState
from support.fakes.bookies import Adds, FakeCluster, until

pytestmark = pytest.mark.cluster_settings(add_entry_timeout_s=0.5)


async def test_entries_are_acknowledged_in_order_and_read_back(cluster):
    writer = await cluster.ledgers.create()
    adds = Adds()
    for number in range(300):
        writer.add(b"body %d" % number, adds.callback)
    assert writer.pending_entries == 300 and writer.pending_bytes == writer.length > 0
    await adds.wait(300)
    assert adds.positions == [(writer.ledger_id, number) for number in range(300)]
    assert writer.pending_entries == 0 and writer.pending_bytes == 0
    metadata = await writer.close()
    assert (metadata.state, metadata.last_entry, metadata.length) == (LedgerState.CLOSED, 299, writer.length)
    entries = await cluster.ledgers.reader(metadata).read_all(0, 299)
    assert [entry.body for entry in entries] == [b"body %d" % number for number in range(300)]


async def test_entries_answered_in_one_turn_are_confirmed_in_one_run(cluster):
    writer = await cluster.ledgers.create()
    runs: list[list[int]] = []
    writer.on_confirmed = lambda entries: runs.append([entry.entry_id for entry in entries])
    adds = Adds()
    for number in range(20):
        writer.add(b"%d" % number, adds.callback)
    await adds.wait(20)
    assert [entry_id for run in runs for entry_id in run] == list(range(20))
    assert len(runs) < 20, "no run has more than one entry"
    assert adds.positions == [(writer.ledger_id, number) for number in range(20)]
    await writer.close()


async def test_a_writer_that_ends_confirms_first_what_was_acknowledged(cluster):
    writer = await cluster.ledgers.create()
    adds = Adds()
    for number in range(3):
        writer.add(b"%d" % number, adds.callback)
    await until(lambda: writer.last_confirmed >= 0)
    confirmed = writer.last_confirmed
    metadata = await writer.close()
    assert adds.positions == [(writer.ledger_id, number) for number in range(confirmed + 1)]
    assert metadata.last_entry == confirmed
    assert all(isinstance(error, LedgerClosed) for error in adds.errors) and len(adds.errors) == 2 - confirmed


async def test_a_slow_minority_does_not_hold_up_and_still_gets_its_copies(cluster):
    cluster[2].delay_s = 0.05
    writer = await cluster.ledgers.create()
    adds = Adds()
    writer.add(b"x", adds.callback)
    await adds.wait(1)
    await until(lambda: all(bookie.intact(writer.ledger_id) == [0] for bookie in cluster.bookies.values()))
    assert not writer.degraded
    await writer.close()


async def test_the_lac_travels_with_the_entries(cluster):
    writer = await cluster.ledgers.create()
    adds = Adds()
    for number in range(3):
        writer.add(b"%d" % number, adds.callback)
        await adds.wait(number + 1)
    await asyncio.sleep(0)
    assert (await cluster.client.read_lac("bookie-1", writer.ledger_id, writer.metadata.nonce)).lac == 1
    await writer.close()


async def test_a_dead_bookie_is_replaced_and_its_entries_are_sent_again(five):
    writer = await five.ledgers.create()
    first = writer.metadata.last_fragment.bookies
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    await asyncio.sleep(0)
    five.bookies[first[1]].crash()
    for number in range(10):
        writer.add(b"b%d" % number, adds.callback)
    await adds.wait(11)
    assert adds.positions == [(writer.ledger_id, number) for number in range(11)]
    fragments = writer.metadata.fragments
    assert len(fragments) == 2 and fragments[1].first_entry == 1 and first[1] not in fragments[1].bookies
    await asyncio.sleep(0.01)
    for bookie in fragments[1].bookies:
        assert set(range(1, 11)) <= set(five.bookies[bookie].intact(writer.ledger_id))
    assert not writer.degraded
    metadata = await writer.close()
    assert [entry.entry_id for entry in await five.ledgers.reader(metadata).read_all(0, 10)] == list(range(11))


async def test_a_hung_bookie_is_replaced_after_the_add_timeout(five):
    writer = await five.ledgers.create()
    adds = Adds()
    hung = writer.metadata.last_fragment.bookies[0]
    five.bookies[hung].hang()
    writer.add(b"a", adds.callback)
    await adds.wait(1)  # two of three acknowledge at once
    await until(lambda: hung not in writer.metadata.last_fragment.bookies)
    assert writer.metadata.last_fragment.first_entry == 1
    assert five.client.is_suspect(hung)
    await writer.close()


async def test_bookies_are_not_failed_by_time_in_which_the_writers_process_stood_still(five):
    """The first callback behind the pause is the watch's. Answers are there, but nobody has read them."""
    writer = await five.ledgers.create()
    for bookie in five.bookies.values():
        bookie.delay_s = 0.3
    adds = Adds()
    writer.add(b"a", adds.callback)
    await asyncio.sleep(0.01)  # the bookies have it
    asyncio.get_running_loop().call_soon(time.sleep, 0.7)  # the process stands still
    await adds.wait(1)
    assert adds.positions and not writer.degraded
    assert len(writer.metadata.fragments) == 1
    assert not any(five.client.is_suspect(bookie) for bookie in five.bookies)
    await writer.close()


async def test_issue_1591_no_acknowledgement_before_the_ensemble_change_landed(five):
    """Acks that arrive while the compare-and-set is under way wait for it."""
    writer = await five.ledgers.create()
    adds = Adds()
    store = five.metadata
    landed = asyncio.Event()
    original = store.put

    async def slow_put(key, value, expected_version):
        await landed.wait()
        return await original(key, value, expected_version)

    store.put = slow_put
    five.bookies[writer.metadata.last_fragment.bookies[0]].crash()
    for _ in range(5):
        writer.add(b"a", adds.callback)
    await asyncio.sleep(0.05)
    assert adds.outcomes == [] and writer.last_confirmed == -1
    landed.set()
    await adds.wait(5)
    assert adds.positions == [(writer.ledger_id, number) for number in range(5)]
    assert len(writer.metadata.fragments) == 1, "a change before the first acknowledgement replaces the first fragment"
    await writer.close()


async def test_without_a_spare_the_metadata_stays_and_two_of_three_go_on(cluster):
    writer = await cluster.ledgers.create()
    before = writer.metadata
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    cluster[1].crash()
    for _ in range(20):
        writer.add(b"b", adds.callback)
    await adds.wait(21)
    assert len(adds.positions) == 21 and writer.degraded
    assert (await cluster.ledgers.records.get(writer.ledger_id)).metadata == before
    await writer.close()


async def test_a_bookie_that_comes_back_to_an_empty_slot_gives_no_phantom_acks(cluster):
    """Its late answers, and its presence, count for nothing: the entries were never sent to it again."""
    writer = await cluster.ledgers.create()
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    cluster[1].hang()
    writer.add(b"b", adds.callback)
    await until(lambda: writer.degraded)
    cluster[1].wake()
    cluster[2].hang()
    writer.add(b"c", adds.callback)
    await asyncio.sleep(0.05)
    assert len(adds.outcomes) == 2, "one live copy and one returned bookie are no quorum"
    cluster[2].wake()
    await adds.wait(3)
    assert 2 not in cluster[1].intact(writer.ledger_id)
    await writer.close()


async def test_below_the_ack_quorum_everything_pending_fails_at_once(cluster):
    writer = await cluster.ledgers.create()
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    ended = []
    writer.on_ended = ended.append
    cluster[1].crash()
    cluster[2].crash()
    writer.add(b"b", adds.callback)
    writer.add(b"c", adds.callback)
    await adds.wait(3)
    assert len(adds.positions) == 1 and all(isinstance(error, NotEnoughBookies) for error in adds.errors)
    assert len(ended) == 1
    with pytest.raises(NotEnoughBookies):
        writer.add(b"d", adds.callback)
    with pytest.raises(NotEnoughBookies):
        cluster.list_all(without=["bookie-1", "bookie-2"])
        await cluster.ledgers.create()


async def test_new_ledgers_use_what_is_alive_and_say_so(cluster):
    cluster.list_all(without=["bookie-3"])
    writer = await cluster.ledgers.create()
    metadata = writer.metadata
    assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (2, 2, 2)
    assert metadata.under_replicated and writer.degraded
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    assert adds.positions
    await writer.close()


async def test_a_fence_ends_the_writer(cluster):
    writer = await cluster.ledgers.create()
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    ended = []
    writer.on_ended = ended.append
    await cluster.client.fence("bookie-1", writer.ledger_id, writer.metadata.nonce)
    await cluster.client.fence("bookie-2", writer.ledger_id, writer.metadata.nonce)
    writer.add(b"b", adds.callback)
    writer.add(b"c", adds.callback)
    await adds.wait(3)
    assert all(isinstance(error, LedgerFenced) for error in adds.errors) and len(adds.errors) == 2
    assert isinstance(ended[0], LedgerFenced)
    with pytest.raises(LedgerFenced):
        writer.add(b"d", adds.callback)


async def test_an_ensemble_change_finds_the_ledger_taken_over(five):
    writer = await five.ledgers.create()
    adds = Adds()
    record = await five.ledgers.records.get(writer.ledger_id)
    await five.ledgers.records.replace(record.metadata.in_recovery(), record.version)
    five.bookies[writer.metadata.last_fragment.bookies[0]].crash()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    assert isinstance(adds.outcomes[0], LedgerFenced)
    with pytest.raises(LedgerFenced):
        await writer.close()


async def test_closing_after_a_recovery_fails_unless_the_end_is_the_same(cluster):
    writer = await cluster.ledgers.create()
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    closed = await cluster.new_ledgers().recover(writer.ledger_id)
    assert closed.last_entry == 0
    assert await writer.close() == closed


@pytest.mark.parametrize("trouble", [MetadataUnavailable, DiskFull, ServiceUnitNotReady, StaleEpoch])
async def test_metadata_away_during_a_failure_goes_on_with_the_rest(five, trouble):
    writer = await five.ledgers.create()
    adds = Adds()

    async def away(*arguments):
        raise trouble("the coordinator does not write")

    original, five.metadata.put = five.metadata.put, away
    five.bookies[writer.metadata.last_fragment.bookies[2]].crash()
    for _ in range(3):
        writer.add(b"a", adds.callback)
    await adds.wait(3)
    await until(lambda: writer.degraded)
    assert len(adds.positions) == 3
    five.metadata.put = original
    five.bookies[writer.metadata.last_fragment.bookies[1]].crash()
    writer.add(b"b", adds.callback)
    await adds.wait(4)
    assert len(adds.positions) == 4
    assert SlotState.EMPTY not in writer._state.slots, "the empty slot is filled with the next change"
    assert writer.degraded, "the first three entries lack a copy"
    await writer.close()


async def test_an_error_that_nobody_expected_during_a_change_ends_the_writer(five, monkeypatch):
    writer = await five.ledgers.create()
    adds = Adds()

    def broken(*arguments):
        raise ValueError("a bug")

    monkeypatch.setattr("magnetar.storage.ledger.writer.replace_slots", broken)
    five.bookies[writer.metadata.last_fragment.bookies[2]].crash()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    await until(lambda: writer.ended is not None)
    with pytest.raises(LedgerError):
        writer.add(b"b", adds.callback)


async def test_close_fails_what_is_pending_and_later_adds(cluster):
    writer = await cluster.ledgers.create()
    for bookie in cluster.bookies.values():
        bookie.hang()
    adds = Adds()
    writer.add(b"a", adds.callback)
    assert (await writer.close()).last_entry == -1
    assert isinstance(adds.outcomes[0], LedgerClosed)
    with pytest.raises(LedgerClosed):
        writer.add(b"b", adds.callback)


async def test_an_overloaded_bookie_is_asked_again_and_keeps_its_slot(cluster):
    cluster[1].forced[BookieOp.ADD] = BookieStatus.OVERLOADED
    writer = await cluster.ledgers.create()
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    cluster[1].forced.clear()
    await asyncio.sleep(0.15)
    assert cluster[1].intact(writer.ledger_id) == [0] and not writer.degraded
    await writer.close()


async def test_a_read_only_bookie_is_replaced_permanently(five):
    writer = await five.ledgers.create()
    refusing = writer.metadata.last_fragment.bookies[0]
    five.bookies[refusing].forced[BookieOp.ADD] = BookieStatus.READ_ONLY
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    assert adds.positions
    assert refusing not in writer.metadata.last_fragment.bookies
    await writer.close()


async def test_ids_that_a_bookie_refuses_after_its_limbo_are_given_up():
    """No id is kept for later, so a ledger that is created after the limbo has one that the bookie takes."""
    cluster = FakeCluster(3, write_quorum=2, ack_quorum=2)
    await cluster.ledgers.create()
    cluster[1].fence_floor = floor = await cluster.metadata.allocate(metadata_keys.LEDGER_COUNTER, 1)
    taken, adds = await cluster.ledgers.create(), Adds()
    assert taken.ledger_id > floor
    for _ in range(3):
        taken.add(b"b", adds.callback)
    await adds.wait(3)
    assert len(adds.positions) == 3 and not taken.degraded and cluster[1].intact(taken.ledger_id)
    await cluster.close()


async def test_different_bytes_under_one_id_end_the_writer(cluster):
    writer = await cluster.ledgers.create()
    cluster[1].forced[BookieOp.ADD] = BookieStatus.CONFLICT
    cluster[2].forced[BookieOp.ADD] = BookieStatus.CONFLICT
    adds = Adds()
    writer.add(b"a", adds.callback)
    await adds.wait(1)
    assert isinstance(adds.outcomes[0], DigestConflict)


async def test_an_entry_above_the_limit_is_refused_before_it_takes_an_id(cluster):
    writer = await cluster.ledgers.create()
    with pytest.raises(MessageTooBig):
        writer.add(bytes(cluster.settings.bookie_frame_size_max_bytes), Adds().callback)
    assert writer.last_added == -1
    await writer.close()


async def test_lost_answers_lead_to_a_change_and_to_no_second_entry(five):
    writer = await five.ledgers.create()
    loser = writer.metadata.last_fragment.bookies[0]
    five.bookies[loser].lose_answers = True
    adds = Adds()
    for number in range(50):
        writer.add(b"%d" % number, adds.callback)
    await adds.wait(50)
    assert adds.positions == [(writer.ledger_id, number) for number in range(50)]
    await writer.close()


@pytest.mark.promise("2.9")
async def test_ledger_ids_grow_along_a_chain_whichever_node_allocates(cluster):
    other = cluster.new_ledgers()
    mine = await cluster.ledgers.create()
    theirs = await other.create(above=mine.ledger_id)
    again = await cluster.ledgers.create(above=theirs.ledger_id)
    assert mine.ledger_id < theirs.ledger_id < again.ledger_id
