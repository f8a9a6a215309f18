"""How a topic's chain of ledgers is written when things fail: new ledgers, rollover, too few bookies, restarts."""

import asyncio
import itertools

import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus
from magnetar.protocol.errors import (
    AlreadyClosed,
    LedgerError,
    MessageTooBig,
    MetadataUnavailable,
    NotEnoughBookies,
    OutcomeUnknown,
    StaleEpoch,
)
from magnetar.storage.metadata import keys as metadata_keys
from magnetar.storage.metadata.ledger_metadata import LedgerMetadata
from support.fakes.bookies import Adds, FakeBookie, until
from support.stores.managed_ledger_kit import NAME, append, bodies, open_, read_all

pytestmark = pytest.mark.cluster_settings(
    add_entry_timeout_s=1.0, ledger_entries_max=10, ledger_rollover_min_minutes=0, cursor_flush_interval_s=0.02
)


async def test_a_rollover_waits_for_the_metadata_store_while_appends_go_on(cluster):
    managed = await open_(cluster, keep=True)
    await append(managed, bodies(5))

    async def away(*arguments):
        raise MetadataUnavailable("the coordinator is away")

    put, cluster.metadata.put = cluster.metadata.put, away
    await append(managed, bodies(35, 5))
    assert len(managed.ledger_infos) == 1
    cluster.metadata.put = put
    await until(lambda: len(managed.ledger_infos) == 2)
    await append(managed, bodies(5, 40))
    assert [body for _, body in await read_all(managed)] == bodies(45)
    await managed.close()


async def test_after_a_publish_failure_the_next_append_settles_the_old_ledger_first(cluster):
    managed = await open_(cluster, keep=True)
    await append(managed, bodies(3))
    cluster[1].hang()
    cluster[2].crash()
    adds = await append(managed, bodies(4, 3))
    assert len(adds.errors) == 4 and all(isinstance(error, NotEnoughBookies) for error in adds.errors)
    cluster[1].wake()
    cluster[2].restart()
    await until(lambda: len(cluster.client.usable()) == 3)
    adds = await append(managed, bodies(2, 100))
    assert not adds.errors
    found = await read_all(managed)
    assert [body for _, body in found][:3] == bodies(3) and [body for _, body in found][-2:] == bodies(2, 100)
    assert adds.positions[0][0] > found[0][0][0], "a new ledger"
    middle = [body for _, body in found][3:-2]
    assert middle == bodies(4, 3)[: len(middle)], "what was unknown is there as a prefix or not at all"
    await managed.close()


async def test_who_waits_for_entries_is_told_when_failed_appends_turn_out_to_be_stored(cluster, monkeypatch):
    """At once, although there is no next ledger yet."""
    managed = await open_(cluster, keep=True)
    await append(managed, bodies(3))
    cluster[1].hang()
    cluster[2].crash()
    adds = await append(managed, bodies(4, 3))
    assert len(adds.errors) == 4
    ends: list[tuple[int, int]] = []
    managed.on_appended.append(lambda: ends.append(managed.last_confirmed))
    cluster[1].wake()
    cluster[2].restart()
    await until(lambda: len(cluster.client.usable()) == 3)

    async def never():
        await asyncio.Event().wait()

    monkeypatch.setattr(managed._writer, "_create_next", never)
    managed._writer.start()
    await until(lambda: managed.last_confirmed[1] >= 3)
    await until(lambda: bool(ends))
    assert ends == [managed.last_confirmed]
    await managed.close()


async def test_a_start_after_a_failure_does_not_fence_a_ledger_closed_by_a_rollover(cluster, monkeypatch):
    """Recovering it while its writer was closing it looked to that writer like another owner."""
    managed = await open_(cluster, keep=True)
    put, gate, closing = cluster.metadata.put, asyncio.Event(), asyncio.Event()

    async def hold_the_close(key, value, version):
        is_first = key == metadata_keys.ledger(managed.ledger_infos[0].ledger_id)
        if is_first and LedgerMetadata.unpack(value).closed and not gate.is_set():
            closing.set()
            await gate.wait()
        return await put(key, value, version)

    await append(managed, bodies(1))
    monkeypatch.setattr(cluster.metadata, "put", hold_the_close)
    await append(managed, bodies(9, 1))
    await asyncio.wait_for(closing.wait(), 5)
    await append(managed, bodies(3, 10))
    for number in (1, 2):
        cluster[number].forced[BookieOp.ADD] = BookieStatus.IO_ERROR
    assert isinstance((await append(managed, bodies(1, 13))).outcomes[0], NotEnoughBookies)
    recover_chain = managed._writer.recover_chain

    async def recover():
        asyncio.get_running_loop().call_later(0.05, gate.set)  # in the middle of the recovery's first answers
        await recover_chain()

    monkeypatch.setattr(managed._writer, "recover_chain", recover)
    for bookie in cluster.bookies.values():
        bookie.forced.clear()
        bookie.delay_s = 0.1
    fenced = []
    managed.on_fenced.append(fenced.append)
    assert not (await append(managed, bodies(1, 14))).errors and not fenced
    assert [body for _, body in await read_all(managed)][:13] == bodies(13)
    assert all(info.closed for info in managed.ledger_infos[:-1])
    await managed.close()


async def test_an_unexpected_error_at_a_start_is_told_and_the_next_append_tries_again(cluster, monkeypatch):
    managed = await open_(cluster)

    async def broken(**arguments):
        raise ValueError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(cluster.ledgers, "create", broken)
        assert isinstance((await append(managed, bodies(1))).outcomes[0], LedgerError)
    assert not (await append(managed, bodies(1))).errors
    await managed.close()


async def test_too_few_bookies_are_said_at_once_and_nothing_is_stuck(cluster):
    cluster.list_all(without=["bookie-1", "bookie-2"])
    managed = await open_(cluster)
    adds = await append(managed, bodies(3))
    assert all(isinstance(error, NotEnoughBookies) for error in adds.errors) and managed.pending_entries == 0
    cluster.list_all()
    assert not (await append(managed, bodies(3))).errors
    await managed.close()


@pytest.mark.parametrize("trouble", ["no ledger can be created", "no entry can be stored"])
async def test_a_topic_that_cannot_store_begins_anew_ever_more_slowly_until_a_success(cluster, monkeypatch, trouble):
    """A client that sends again at once must not make it create, recover and close ledgers without a pause."""
    monkeypatch.setattr("magnetar.storage.managed.chain_writer.START_DELAY_INITIAL_S", 0.02)
    monkeypatch.setattr("magnetar.storage.managed.chain_writer.START_DELAY_MAX_S", 0.08)
    if trouble == "no ledger can be created":
        cluster.list_all(without=["bookie-1", "bookie-2"])
    for number in (1, 2):
        cluster[number].forced[BookieOp.ADD] = BookieStatus.IO_ERROR
    managed = await open_(cluster)
    failed_at: list[float] = []
    delay_next_start = managed._writer._delay_next_start

    def note_failure():
        failed_at.append(asyncio.get_running_loop().time())
        delay_next_start()

    monkeypatch.setattr(managed._writer, "_delay_next_start", note_failure)
    for _ in range(5):
        adds = await append(managed, bodies(1))
        assert isinstance(adds.outcomes[0], LedgerError) and managed.pending_entries == 0
    for (before, after), delay_s in zip(itertools.pairwise(failed_at), (0.02, 0.04, 0.08, 0.08), strict=True):
        assert after - before >= 0.8 * delay_s - 0.001
    cluster.list_all()
    for number in (1, 2):
        cluster[number].forced.clear()
    assert not (await append(managed, bodies(1))).errors
    assert not (await append(managed, bodies(1))).errors, "and the delay is forgotten"
    assert managed._writer._backoff.next_delay_s() <= 0.02
    await managed.close()


async def test_a_topic_that_waits_for_its_next_start_can_be_closed(cluster, monkeypatch):
    monkeypatch.setattr("magnetar.storage.managed.chain_writer.START_DELAY_INITIAL_S", 1000.0)
    monkeypatch.setattr("magnetar.storage.managed.chain_writer.START_DELAY_MAX_S", 1000.0)
    cluster.list_all(without=["bookie-1", "bookie-2"])
    managed = await open_(cluster)
    assert isinstance((await append(managed, bodies(1))).outcomes[0], NotEnoughBookies)
    adds = Adds()
    managed.append(b"waits", adds.callback)
    await asyncio.sleep(0)
    await managed.close()
    assert isinstance(adds.outcomes[0], AlreadyClosed)


async def test_a_topic_taken_over_while_it_waits_for_its_next_start_touches_no_ledger(cluster, monkeypatch):
    monkeypatch.setattr("magnetar.storage.managed.chain_writer.START_DELAY_INITIAL_S", 0.05)
    managed = await open_(cluster)
    await append(managed, bodies(1))
    for number in (1, 2):
        cluster[number].forced[BookieOp.ADD] = BookieStatus.IO_ERROR
    assert (await append(managed, bodies(1))).errors
    touched = []
    monkeypatch.setattr(cluster.ledgers, "recover", lambda *arguments: touched.append(arguments))
    adds = Adds()
    managed.append(b"waits", adds.callback)
    await asyncio.sleep(0)
    managed._writer.fence(StaleEpoch("another owner"))
    await until(lambda: not len(managed._writer._tasks))
    assert isinstance(adds.outcomes[0], StaleEpoch) and not touched
    await managed.close()


async def test_returning_bookies_end_an_under_replicated_ledger_early(cluster, monkeypatch):
    monkeypatch.setattr("magnetar.storage.managed.chain_writer.DEGRADED_ROLLOVER_MIN_S", 0.05)
    cluster.list_all(without=["bookie-3"])
    managed = await open_(cluster, keep=True)
    await append(managed, bodies(2))
    cluster.list_all()
    await until(lambda: len(managed.ledger_infos) == 2)
    await append(managed, bodies(2, 2))
    metadata = (await cluster.ledgers.records.get(managed.last_confirmed[0])).metadata
    assert metadata.write_quorum == 3 and not metadata.under_replicated
    await managed.close()


async def test_a_lost_bookie_ends_the_ledgers_of_an_idle_topic(cluster, monkeypatch):
    """Nobody appends, so no failed add says that a copy is gone; the auditor repairs only what is closed."""
    monkeypatch.setattr("magnetar.storage.managed.chain_writer.DEGRADED_ROLLOVER_MIN_S", 0.05)
    monkeypatch.setattr(cluster.client.lost, "_grace_s", 0.05)
    cluster.bookies["bookie-4"] = FakeBookie("bookie-4")
    managed = await open_(cluster, keep=True)
    cursor = await managed.open_cursor("reader")
    await append(managed, bodies(2))
    cursor.acknowledge([(managed.last_confirmed[0], 0)])
    await cursor.flush()
    storage = cursor._writer.storage
    before = storage.ledger_writer
    assert before is not None and "bookie-3" in before.metadata.bookies
    cluster.list_all(without=["bookie-3"])
    await until(lambda: len(managed.ledger_infos) == 2 and managed.ledger_infos[0].closed)
    await until(lambda: storage.ledger_writer is not before)
    assert storage.ledger_writer is not None and "bookie-3" not in storage.ledger_writer.metadata.bookies
    assert cursor.mark_delete_position >= (managed.last_confirmed[0], 0)
    await append(managed, bodies(2, 2))
    metadata = (await cluster.ledgers.records.get(managed.last_confirmed[0])).metadata
    assert "bookie-3" not in metadata.bookies and not metadata.under_replicated
    await managed.close()


async def test_a_bookie_in_limbo_ends_the_ledgers_of_an_idle_topic_without_a_spare(cluster, monkeypatch):
    """Limbo lasts until they are closed; there are two other bookies only, which is enough for an ack quorum."""
    monkeypatch.setattr("magnetar.storage.managed.chain_writer.DEGRADED_ROLLOVER_MIN_S", 0.05)
    monkeypatch.setattr(cluster.client.lost, "_grace_s", 0.05)
    managed = await open_(cluster, keep=True)
    cursor = await managed.open_cursor("reader")
    await append(managed, bodies(2))
    cursor.acknowledge([(managed.last_confirmed[0], 0)])
    await cursor.flush()
    storage = cursor._writer.storage
    before, infos = storage.ledger_writer, list(cluster.directory.bookies.values())
    cluster.directory.update([one._replace(writable=one.id != "bookie-3", limbo=one.id == "bookie-3") for one in infos])
    await until(lambda: len(managed.ledger_infos) == 2 and managed.ledger_infos[0].closed)
    await until(lambda: storage.ledger_writer is not before)
    current = managed._writer.current_metadata
    assert set(current.bookies) == set(storage.ledger_writer.metadata.bookies) == {"bookie-1", "bookie-2"}
    cluster.list_all()
    await until(lambda: len(managed.ledger_infos) == 3)
    assert not managed._writer.current_metadata.under_replicated
    await managed.close()


async def test_other_copies_are_those_of_the_ledgers_to_come(cluster):
    managed = await open_(cluster, keep=True)
    await append(managed, bodies(1))
    managed.use_copies(2, 2, 2)
    assert managed._writer.current_metadata.write_quorum == 3
    await append(managed, bodies(20, 1))
    await until(lambda: len(managed.ledger_infos) > 1 and managed._writer.current_metadata is not None)
    last = (await cluster.ledgers.records.get(managed.ledger_infos[-1].ledger_id)).metadata
    assert (last.ensemble_size, last.write_quorum, last.ack_quorum, last.under_replicated) == (2, 2, 2, False)
    await managed.close()


async def test_a_ledger_with_fewer_copies_than_wished_goes_on_until_bookies_suffice(cluster):
    managed = await open_(cluster, keep=True)
    managed.use_copies(5, 5, 2)
    await append(managed, bodies(1))
    writer = managed._writer._writer
    assert writer is not None and writer.metadata.under_replicated and writer.metadata.write_quorum == 3
    assert not writer.should_move
    await managed.close()


async def test_an_entry_above_the_limit_is_refused(cluster):
    managed = await open_(cluster)
    big = bytes(cluster.settings.bookie_frame_size_max_bytes)
    with pytest.raises(MessageTooBig):
        managed.append(big, Adds().callback)
    await append(managed, bodies(1))
    with pytest.raises(MessageTooBig):
        managed.append(big, Adds().callback)
    await managed.close()


async def test_closing_with_appends_under_way_fails_them(cluster):
    managed = await open_(cluster)
    await append(managed, bodies(1))
    for bookie in cluster.bookies.values():
        bookie.hang()
    adds = Adds()
    managed.append(b"pending", adds.callback)
    await managed.close()
    assert len(adds.errors) == 1


async def test_a_lost_answer_to_the_chains_compare_and_set_is_settled(cluster):
    managed = await open_(cluster)
    write_many = cluster.metadata.write_many
    lost = []

    async def lossy(writes, guard=None):
        result = await write_many(writes, guard)
        if writes[0].key not in lost:
            lost.append(writes[0].key)
            raise OutcomeUnknown("the answer was lost")
        return result

    cluster.metadata.write_many = lossy
    adds = await append(managed, bodies(3))
    assert not adds.errors and lost == [metadata_keys.ledger(1), metadata_keys.managed_ledger(NAME)]
    await managed.close()
