"""Recovery against scripted bookies; each known bug of BookKeeper has a test named after it."""

import asyncio
import contextlib
import time

import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus, decode_read, encode_add, encode_entry_header
from magnetar.protocol.errors import (
    BookieUnavailable,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    OutcomeUnknown,
    RecoveryFailed,
)
from magnetar.storage.ledger.write_back import LATE_ROUNDS_MAX
from magnetar.storage.metadata.ledger_metadata import LedgerState
from support.fakes.bookies import Adds, FakeCluster, until

pytestmark = pytest.mark.cluster_settings(add_entry_timeout_s=0.5, read_entry_timeout_s=0.3)


async def written(cluster, count):
    """A writer with `count` acknowledged entries, on all copies."""
    writer = await cluster.ledgers.create()
    adds = Adds()
    for number in range(count):
        writer.add(b"%d" % number, adds.callback)
    await adds.wait(count)
    await until(
        lambda: all(
            len(cluster.bookies[one].intact(writer.ledger_id)) == count for one in writer.metadata.last_fragment.bookies
        )
    )
    return writer


async def stored(cluster, ledger_id):
    return (await cluster.ledgers.records.get(ledger_id)).metadata


async def bodies(cluster, metadata):
    reader = cluster.new_ledgers().reader(metadata)
    return [entry.body for entry in await reader.read_all(0, metadata.last_entry)] if metadata.last_entry >= 0 else []


def only_on(cluster, writer, slot, entry_id, body=b"half"):
    """Put an unacknowledged entry on one bookie, as an add whose writer died."""
    header = encode_entry_header(
        writer.ledger_id, writer.metadata.nonce, entry_id, entry_id - 1, writer.length + len(body), body
    )
    bookie = cluster.bookies[writer.metadata.last_fragment.bookies[slot]]
    bookie.handle(BookieOp.ADD, b"".join(encode_add(header, body)), lambda status, data: None)
    return bookie


async def test_everything_acknowledged_is_there_and_the_old_writer_is_out(cluster):
    writer = await written(cluster, 20)
    metadata = await cluster.new_ledgers().recover(writer.ledger_id)
    assert (metadata.state, metadata.last_entry, metadata.length) == (LedgerState.CLOSED, 19, writer.length)
    assert await bodies(cluster, metadata) == [b"%d" % number for number in range(20)]
    adds = Adds()
    writer.add(b"zombie", adds.callback)
    await adds.wait(1)
    assert isinstance(adds.outcomes[0], LedgerFenced)
    assert await cluster.new_ledgers().recover(writer.ledger_id) == metadata
    with pytest.raises(NoSuchLedger):
        await cluster.ledgers.recover(999)


async def test_an_empty_ledger_closes_empty_and_is_fenced_where_it_was_never_seen(cluster):
    writer = await cluster.ledgers.create()
    metadata = await cluster.new_ledgers().recover(writer.ledger_id)
    assert metadata.last_entry == -1 and metadata.length == 0
    adds = Adds()
    writer.add(b"zombie", adds.callback)
    await adds.wait(1)
    assert isinstance(adds.outcomes[0], LedgerFenced)


async def test_an_unacknowledged_entry_is_completed_on_an_ack_quorum(cluster):
    writer = await written(cluster, 5)
    only_on(cluster, writer, 1, 5)
    metadata = await cluster.new_ledgers().recover(writer.ledger_id)
    assert metadata.last_entry == 5
    assert sum(5 in bookie.intact(writer.ledger_id) for bookie in cluster.bookies.values()) >= 2
    assert await bodies(cluster, metadata) == [*(b"%d" % number for number in range(5)), b"half"]


async def test_issue_2614_reads_of_recovery_fence_too(cluster):
    """A bookie that missed the fence must not take the old writer's entry after it was declared absent."""
    writer = await written(cluster, 5)
    missed = cluster.bookies[writer.metadata.last_fragment.bookies[2]]
    handle = missed.handle

    def deaf_to_fence(op, payload, answer):
        if op == BookieOp.FENCE:
            answer(BookieStatus.IO_ERROR, b"")
        else:
            handle(op, payload, answer)

    missed.handle = deaf_to_fence
    # The other two know nothing beyond entry 4, so the third is needed only when one of them cannot be read.
    first = cluster.bookies[writer.metadata.last_fragment.bookies[0]]
    first.forced[BookieOp.READ] = BookieStatus.IO_ERROR
    metadata = await cluster.new_ledgers().recover(writer.ledger_id)
    assert metadata.last_entry == 4
    assert missed.ledgers[writer.ledger_id].fenced
    answers = []
    header = encode_entry_header(writer.ledger_id, writer.metadata.nonce, 5, 4, 99, b"late")
    handle(BookieOp.ADD, b"".join(encode_add(header, b"late")), lambda status, data: answers.append(status))
    assert answers == [BookieStatus.FENCED]


async def test_issue_2615_a_fresh_fragment_without_a_lac_does_not_lose_the_ones_before(five):
    writer = await written(five, 6)
    old = writer.metadata.last_fragment.bookies
    fresh = tuple(bookie for bookie in five.bookies if bookie not in old)
    record = await five.ledgers.records.get(writer.ledger_id)
    changed = record.metadata.with_ensemble(6, (fresh[0], fresh[1], old[2]))
    await five.ledgers.records.replace(changed, record.version)
    five.bookies[old[2]].ledgers.clear()
    metadata = await five.new_ledgers().recover(writer.ledger_id)
    assert metadata.last_entry == 5
    assert [fragment.first_entry for fragment in metadata.fragments] == [0], "an empty fragment is not kept"
    assert len(await bodies(five, metadata)) == 6


async def test_pr_1621_ensemble_changes_of_recovery_stay_in_memory_until_the_close(five):
    writer = await written(five, 5)
    ensemble = writer.metadata.last_fragment.bookies
    only_on(five, writer, 0, 5)
    five.bookies[ensemble[1]].forced[BookieOp.ADD] = BookieStatus.READ_ONLY
    five.bookies[ensemble[2]].forced[BookieOp.ADD] = BookieStatus.READ_ONLY
    seen = []
    put = five.metadata.put

    async def watched(key, value, expected_version):
        result = await put(key, value, expected_version)
        seen.append(await stored(five, writer.ledger_id))
        return result

    five.metadata.put = watched
    metadata = await five.new_ledgers().recover(writer.ledger_id)
    assert [one.state for one in seen] == [LedgerState.IN_RECOVERY, LedgerState.CLOSED]
    assert seen[0].fragments == writer.metadata.fragments
    assert metadata.last_entry == 5 and metadata.fragments[-1].first_entry == 5
    assert not {ensemble[1], ensemble[2]} & set(metadata.fragments[-1].bookies)
    assert (await bodies(five, metadata))[-1] == b"half"


async def test_issue_2908_corruption_is_no_denial(cluster):
    writer = await written(cluster, 3)
    a, b, c = (cluster.bookies[one] for one in writer.metadata.last_fragment.bookies)
    only_on(cluster, writer, 0, 3)
    only_on(cluster, writer, 1, 3)  # as if acknowledged: on an ack quorum
    handle = a.handle

    def corrupt(op, payload, answer):
        answer(BookieStatus.CORRUPT, b"") if op == BookieOp.READ else handle(op, payload, answer)

    a.handle = corrupt
    b.crash()
    with pytest.raises(RecoveryFailed):
        await cluster.new_ledgers().recover(writer.ledger_id)
    assert (await stored(cluster, writer.ledger_id)).state is LedgerState.IN_RECOVERY
    b.restart()
    assert (await cluster.new_ledgers().recover(writer.ledger_id)).last_entry == 3
    assert c.intact(writer.ledger_id) == [0, 1, 2, 3]


async def test_issue_2908_a_damaged_copy_on_the_wire_is_no_denial_either(cluster):
    writer = await written(cluster, 3)
    a, b, _ = (cluster.bookies[one] for one in writer.metadata.last_fragment.bookies)
    only_on(cluster, writer, 0, 3)
    only_on(cluster, writer, 1, 3)
    a.flip_bit(writer.ledger_id, 3)
    b.crash()
    with pytest.raises(RecoveryFailed):
        await cluster.new_ledgers().recover(writer.ledger_id)


async def test_issue_2612_a_bookie_in_limbo_denies_nothing(cluster):
    writer = await written(cluster, 3)
    a, b, _ = (cluster.bookies[one] for one in writer.metadata.last_fragment.bookies)
    only_on(cluster, writer, 0, 3)
    only_on(cluster, writer, 1, 3)
    a.ledgers.clear()  # its disk was lost
    a.limbo = True
    b.hang()
    with pytest.raises(RecoveryFailed):
        await cluster.new_ledgers().recover(writer.ledger_id)
    b.wake()
    assert (await cluster.new_ledgers().recover(writer.ledger_id)).last_entry == 3


async def test_issue_1067_a_hung_bookie_does_not_hold_recovery_up():
    cluster = FakeCluster(3, add_entry_timeout_s=4.0, read_entry_timeout_s=4.0)
    writer = await written(cluster, 50)
    only_on(cluster, writer, 0, 50)
    cluster.bookies[writer.metadata.last_fragment.bookies[2]].hang()
    started = asyncio.get_running_loop().time()
    metadata = await cluster.new_ledgers().recover(writer.ledger_id)
    await cluster.close()
    assert metadata.last_entry == 50
    assert asyncio.get_running_loop().time() - started < 2, "nobody waited for a time-out"


async def test_nor_when_every_answer_is_cut_short_by_its_size():
    cluster = FakeCluster(3, add_entry_timeout_s=4.0, read_entry_timeout_s=4.0, bookie_read_bytes_max=1)
    writer = await written(cluster, 6)  # sent at once: no bookie has heard of a LAC
    cluster.bookies[writer.metadata.last_fragment.bookies[2]].hang()
    started = asyncio.get_running_loop().time()
    metadata = await cluster.new_ledgers().recover(writer.ledger_id)
    await cluster.close()
    assert metadata.last_entry == 5
    assert asyncio.get_running_loop().time() - started < 2, "nobody waited for a time-out"


async def test_pr_4462_a_zombie_of_a_deleted_ledger_is_refused(cluster):
    writer = await cluster.ledgers.create()
    await cluster.new_ledgers().recover(writer.ledger_id)
    await cluster.ledgers.delete(writer.ledger_id)
    for bookie in cluster.bookies.values():
        bookie.ledgers[writer.ledger_id].deleted = True
    adds = Adds()
    writer.add(b"zombie", adds.callback)
    await adds.wait(1)
    assert isinstance(adds.outcomes[0], LedgerFenced)
    with pytest.raises(LedgerFenced):
        await writer.close()


async def test_two_of_three_bookies_away_gives_up_and_can_be_repeated(cluster):
    writer = await written(cluster, 4)
    cluster[1].crash()
    cluster[2].crash()
    with pytest.raises(RecoveryFailed):
        await cluster.new_ledgers().recover(writer.ledger_id)
    assert (await stored(cluster, writer.ledger_id)).state is LedgerState.IN_RECOVERY
    cluster[1].restart()
    assert (await cluster.new_ledgers().recover(writer.ledger_id)).last_entry == 3


async def test_two_recoverers_at_once_agree(cluster):
    for entry_on in range(3):
        writer = await written(cluster, 4)
        only_on(cluster, writer, entry_on, 4)
        cluster[1].delay_s = 0.002
        results = await asyncio.gather(*(cluster.new_ledgers().recover(writer.ledger_id) for _ in range(3)))
        assert results[0] == results[1] == results[2] == await stored(cluster, writer.ledger_id)
        assert await bodies(cluster, results[0])


async def test_a_recoverer_that_dies_anywhere_can_be_followed_by_another():
    """Cancelled after every possible number of turns of the loop; the next one finds all that was acknowledged."""
    for turns in range(0, 60, 2):
        cluster = FakeCluster(3)
        writer = await written(cluster, 3)
        only_on(cluster, writer, turns % 3, 3)
        first = asyncio.create_task(cluster.new_ledgers().recover(writer.ledger_id))
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        before = await stored(cluster, writer.ledger_id)
        metadata = await cluster.new_ledgers().recover(writer.ledger_id)
        assert metadata.last_entry in (2, 3)
        assert not before.closed or before == metadata
        assert (await bodies(cluster, metadata))[:3] == [b"0", b"1", b"2"]
        adds = Adds()
        writer.add(b"zombie", adds.callback)
        await adds.wait(1)
        assert isinstance(adds.outcomes[0], LedgerFenced)
        await cluster.close()


async def test_what_the_auditor_changed_meanwhile_is_kept(five):
    writer = await written(five, 3)
    old = writer.metadata.last_fragment.bookies
    five.bookies[old[0]].crash()
    adds = Adds()
    writer.add(b"3", adds.callback)
    await until(lambda: len(writer.metadata.fragments) == 2)
    other = next(one for one in five.bookies if one not in old and one not in writer.metadata.last_fragment.bookies)
    put = five.metadata.put
    done = False

    async def with_auditor(key, value, expected_version):
        nonlocal done
        if not done and (await stored(five, writer.ledger_id)).state is LedgerState.IN_RECOVERY:
            done = True
            record = await five.ledgers.records.get(writer.ledger_id)
            first, *rest = record.metadata.fragments
            repaired = first._replace(bookies=(other, *first.bookies[1:]))
            changed = record.metadata.__class__(**{**vars(record.metadata), "fragments": (repaired, *rest)})
            await put(key, changed.pack(), record.version)
        return await put(key, value, expected_version)

    five.metadata.put = with_auditor
    metadata = await five.new_ledgers().recover(writer.ledger_id)
    assert metadata.fragments[0].bookies[0] == other and metadata.last_entry == 3


async def test_metadata_trouble_at_the_close(cluster):
    writer = await written(cluster, 3)
    put = cluster.metadata.put
    trouble = [OutcomeUnknown("lost"), OutcomeUnknown("lost")]

    async def lossy(key, value, expected_version):
        result = await put(key, value, expected_version)
        if trouble:
            raise trouble.pop()
        return result

    cluster.metadata.put = lossy
    assert (await cluster.new_ledgers().recover(writer.ledger_id)).last_entry == 2
    writer = await written(cluster, 1)

    async def away(*arguments):
        raise MetadataUnavailable("the coordinator is away")

    cluster.metadata.put = away
    with pytest.raises(MetadataUnavailable):
        await cluster.new_ledgers().recover(writer.ledger_id)


async def test_a_long_tail_is_recovered_in_pieces(cluster):
    """More entries than one read holds, with a LAC that is far behind: nothing is cut off between the pieces."""
    writer = await written(cluster, 1)
    for number in range(1, 501):
        header = encode_entry_header(writer.ledger_id, writer.metadata.nonce, number, 0, number, b"x")
        request = b"".join(encode_add(header, b"x"))
        for bookie in list(cluster.bookies.values())[: 2 if number % 2 else 3]:
            bookie.handle(BookieOp.ADD, request, lambda status, data: None)
    metadata = await cluster.new_ledgers().recover(writer.ledger_id)
    assert metadata.last_entry == 500 and metadata.length == 500
    assert len(await bodies(cluster, metadata)) == 501


async def test_overloaded_bookies_are_asked_again_and_keep_their_slots(cluster):
    writer = await written(cluster, 1)
    only_on(cluster, writer, 0, 1)
    for bookie in cluster.bookies.values():
        bookie.forced[BookieOp.ADD] = BookieStatus.OVERLOADED
    recovering = asyncio.create_task(cluster.new_ledgers().recover(writer.ledger_id))
    await until(lambda: all(bookie.adds >= 3 for bookie in cluster.bookies.values()))
    for bookie in cluster.bookies.values():
        bookie.forced.clear()
    metadata = await recovering
    assert metadata.last_entry == 1 and metadata.fragments == writer.metadata.fragments


async def test_a_ledger_with_tombstones_is_not_offered_to_bookie_after_bookie_forever(five):
    """A zombie recovers what the next owner has deleted: the record that it holds says nothing of that."""
    writer = await written(five, 1)
    only_on(five, writer, 0, 1)
    for bookie in five.bookies.values():
        bookie.forced[BookieOp.ADD] = BookieStatus.NO_SUCH_LEDGER
    with pytest.raises(RecoveryFailed, match="deleted"):
        await asyncio.wait_for(five.new_ledgers().recover(writer.ledger_id), 10)
    assert all(bookie.adds <= 4 for bookie in five.bookies.values())


@pytest.mark.parametrize("status", [BookieStatus.IO_ERROR, BookieStatus.UNKNOWN, BookieStatus.TOO_LARGE])
async def test_bookies_that_refuse_what_is_written_back_are_not_asked_again(five, status):
    writer = await written(five, 1)
    only_on(five, writer, 0, 1)
    before = {name: bookie.adds for name, bookie in five.bookies.items()}
    for bookie in five.bookies.values():
        bookie.forced[BookieOp.ADD] = status
    with pytest.raises(RecoveryFailed):
        await asyncio.wait_for(five.new_ledgers().recover(writer.ledger_id), 10)
    entries = 2
    assert all(bookie.adds - before[name] <= entries for name, bookie in five.bookies.items())
    for bookie in five.bookies.values():
        bookie.forced.clear()
    assert (await five.new_ledgers().recover(writer.ledger_id)).last_entry == 1


async def test_bookies_that_are_late_get_more_time_before_they_are_asked_anew(five):
    """Found by seed 30204: two bookies with much to do were given the same entries in turn, for ever."""
    writer = await written(five, 1)
    only_on(five, writer, 0, 1)
    for bookie in five.bookies.values():
        bookie.add_delay_s = 0.7  # the time-out is 0.5 s
    metadata = await asyncio.wait_for(five.new_ledgers().recover(writer.ledger_id), 10)
    assert metadata.last_entry == 1


async def test_bookies_are_not_late_by_time_in_which_the_recovering_process_stood_still(five):
    """The first callback behind the pause is the time-out's. Answers are there, but nobody has read them."""
    loop = asyncio.get_running_loop()
    writer = await written(five, 1)
    only_on(five, writer, 0, 1)
    stood_still = []
    for bookie in five.bookies.values():
        bookie.add_delay_s = 0.3

        def handle(op, payload, answer, handle=bookie.handle):
            # The time-out ends the wait in the turn behind its own, so answers come in the one behind that.
            handle(op, payload, lambda *answered: loop.call_soon(loop.call_soon, answer, *answered))
            if op == BookieOp.ADD and not stood_still:
                stood_still.append(loop.call_soon(time.sleep, 0.7))

        bookie.handle = handle
    metadata = await asyncio.wait_for(five.new_ledgers().recover(writer.ledger_id), 10)
    assert stood_still and metadata.last_entry == 1 and len(metadata.fragments) == 1


async def test_bookies_that_are_always_late_end_a_recovery():
    late = FakeCluster(5, add_entry_timeout_s=0.05)
    writer = await written(late, 1)
    only_on(late, writer, 0, 1)
    for bookie in late.bookies.values():
        bookie.add_delay_s = 60
    with pytest.raises(RecoveryFailed, match="too few bookies stored"):
        await asyncio.wait_for(late.new_ledgers().recover(writer.ledger_id), 10)
    assert all(bookie.adds <= 2 + 2 * LATE_ROUNDS_MAX for bookie in late.bookies.values())
    await late.close()


async def test_recovery_asks_for_few_entries_at_the_end_and_for_more_in_a_long_tail(cluster):
    def asked(bookie):
        reads = [decode_read(payload) for op, payload in bookie.log if op == BookieOp.READ]
        return [read.last - read.first + 1 for read in reads if read.fence]

    writer = await written(cluster, 3)
    assert (await cluster.new_ledgers().recover(writer.ledger_id)).last_entry == 2
    assert asked(cluster[1]) == [4]
    writer = await written(cluster, 1)
    for number in range(1, 400):
        for slot in range(3):
            header = encode_entry_header(writer.ledger_id, writer.metadata.nonce, number, 0, number, b"x")
            bookie = cluster.bookies[writer.metadata.last_fragment.bookies[slot]]
            bookie.handle(BookieOp.ADD, b"".join(encode_add(header, b"x")), lambda status, data: None)
    cluster[1].log.clear()
    assert (await cluster.new_ledgers().recover(writer.ledger_id)).last_entry == 399
    assert asked(cluster[1]) == [4, 8, 16, 32, 64, 128, 256]


async def patiently(attempt):
    """On a busy machine a live bookie may miss the short time-outs of these tests; the attempt is then repeated."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(RecoveryFailed, BookieUnavailable):
                return await attempt()


@pytest.mark.parametrize("seed", range(16))
async def test_random_trouble_never_loses_an_acknowledged_entry(seed):
    """Delays, one bookie lost or hung at a random moment, a second owner: what was acknowledged is readable after."""
    cluster = FakeCluster(3 + seed % 3, seed=seed, add_entry_timeout_s=0.05, read_entry_timeout_s=0.1)
    random = cluster.env.random
    for bookie in cluster.bookies.values():
        bookie.delay_s = random.uniform(0.0, 0.004)
    writer = await cluster.ledgers.create()
    adds = Adds()
    count = 30
    victim = random.choice(sorted(cluster.bookies))
    moment = random.randrange(count)
    recovery = None
    takeover = random.randrange(count) + 1
    for number in range(count):
        if number == moment:
            (cluster.bookies[victim].crash if seed % 2 else cluster.bookies[victim].hang)()
        if number == takeover:
            recovery = asyncio.create_task(patiently(lambda: cluster.new_ledgers().recover(writer.ledger_id)))
        try:
            writer.add(b"%d" % number, adds.callback)
        except LedgerFenced:
            break
        if random.randrange(3) == 0:
            await asyncio.sleep(random.uniform(0.0, 0.003))
    recovery = recovery or asyncio.create_task(patiently(lambda: cluster.new_ledgers().recover(writer.ledger_id)))
    metadata = await recovery
    await asyncio.sleep(0.15)
    if cluster.bookies[victim].alive:
        cluster.bookies[victim].wake()
    await asyncio.sleep(0.01)
    acknowledged = [entry_id for _, entry_id in adds.positions]
    assert acknowledged == list(range(len(acknowledged))), "in order, without gaps"
    assert metadata.last_entry >= len(acknowledged) - 1
    found = await patiently(lambda: bodies(cluster, metadata))
    assert found == [b"%d" % number for number in range(metadata.last_entry + 1)]
    await cluster.close()
