"""Two ledgers with one id, as after a restore of older metadata: nobody takes the one for the other."""

import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus
from magnetar.protocol.errors import EntryCorrupt, ForeignLedger, NotEnoughBookies, RecoveryFailed
from magnetar.storage.bookie.compaction import Compactor
from support.fakes.bookies import Adds
from support.files.faulty_files import FaultyFiles
from support.stores.bookie_kit import Bookie, bodies
from support.stores.memory_store import MemoryMetadataStore

pytestmark = pytest.mark.cluster_settings(add_entry_timeout_s=0.5, read_entry_timeout_s=0.3)

S = BookieStatus


async def foreign_everywhere(bookie: Bookie, ledger_id: int) -> None:
    """Whatever is asked of the ledger with nonce 1 is refused, as another one is held."""
    assert await bookie.add(ledger_id, 9, nonce=1) == S.FOREIGN
    assert await bookie.add(ledger_id, 9, nonce=1, recovery=True) == S.FOREIGN
    assert (await bookie.fence(ledger_id, nonce=1))[0] == S.FOREIGN
    assert (await bookie.read_lac(ledger_id, nonce=1))[0] == S.FOREIGN
    for fence in (False, True):
        for first in (0, 50):
            assert (await bookie.read(ledger_id, first, 99, fence=fence, nonce=1))[0] == S.FOREIGN
    with pytest.raises(ForeignLedger):
        await bookie.store.held_ranges(ledger_id, 1, 0, 9)


async def test_a_bookie_answers_foreign_to_whatever_is_asked_of_another_ledger() -> None:
    bookie = await Bookie.started(FaultyFiles())
    await bookie.add_many(7, range(3))
    await foreign_everywhere(bookie, 7)
    assert await bookie.add(7, 3) == S.OK, "the ledger that it holds was not fenced"
    assert await bookie.read_all(7, 0, 9) == bodies(7, range(4))


@pytest.mark.parametrize("crash", [False, True])
async def test_a_bookie_knows_after_a_restart_which_ledger_it_holds(crash: bool) -> None:
    files = FaultyFiles()
    bookie = await Bookie.started(files)
    await bookie.add_many(7, range(3))
    assert (await bookie.fence(8))[0] == S.OK
    for _ in range(2):
        if crash:
            files.process_died()
            bookie = await Bookie.started(files)
        else:
            bookie = await bookie.restarted()
        await foreign_everywhere(bookie, 7)
        await foreign_everywhere(bookie, 8)
        assert (await bookie.fence(8))[0] == S.OK and await bookie.add(8, 0) == S.FENCED


async def test_compaction_keeps_which_ledger_an_entry_belongs_to_lost_entries_included() -> None:
    files = FaultyFiles()
    bookie = await Bookie.started(files, segment_bytes=4096)
    for number in range(12):
        await bookie.add_many(7, [number], 300)
        await bookie.add_many(8, [number], 300)
    await bookie.store.add_tombstones([8])
    await bookie.store.entries.seal_pending()
    compactor = Compactor(bookie.store.entries, bytes_per_s=1 << 30)
    assert (await compactor.run(0.9)).segments_written
    await compactor.close()
    await foreign_everywhere(bookie, 7)
    bookie = await bookie.restarted()
    await foreign_everywhere(bookie, 7)
    assert await bookie.read_all(7, 0, 11) == bodies(7, range(12), 300)


async def written(ledgers, texts):
    writer = await ledgers.create()
    adds = Adds()
    for text in texts:
        writer.add(text, adds.callback)
    await adds.wait(len(texts))
    return writer, adds


async def given_out_again(cluster):
    """Ledgers over empty metadata, whose counter gives the ids of the first ones out again; not yet on any bookie."""
    cluster.metadata = MemoryMetadataStore()
    return cluster.new_ledgers()


async def test_a_writer_with_the_id_of_another_ledger_ends_and_the_next_id_is_free(cluster):
    old, _ = await written(cluster.ledgers, [b"old"])
    again = await given_out_again(cluster)
    writer, adds = await written(again, [b"new"])
    assert writer.ledger_id == old.ledger_id and isinstance(adds.outcomes[0], NotEnoughBookies)
    following, adds = await written(again, [b"new"])
    assert following.ledger_id == old.ledger_id + 1 and adds.positions == [(following.ledger_id, 0)]
    assert all(list(bookie.ledgers[old.ledger_id].entries) == [0] for bookie in cluster.bookies.values())


async def test_a_recovery_neither_takes_nor_denies_entries_of_another_ledger_with_its_id(cluster):
    old, _ = await written(cluster.ledgers, [b"a", b"b"])
    again = await given_out_again(cluster)
    new = await again.create()
    assert new.ledger_id == old.ledger_id
    with pytest.raises(RecoveryFailed):
        await again.recover(new.ledger_id)
    assert not any(bookie.ledgers[old.ledger_id].fenced for bookie in cluster.bookies.values())
    for number in (1, 2):
        del cluster[number].ledgers[old.ledger_id]
    metadata = await again.recover(new.ledger_id)
    assert metadata.last_entry == -1, "two of three bookies, which hold nothing of that id, deny every entry"


async def test_a_reader_is_never_given_an_entry_of_another_ledger(cluster):
    old, _ = await written(cluster.ledgers, [b"a", b"b"])
    again = await given_out_again(cluster)
    new = await again.create()
    reader = again.reader(new.metadata.close(1, 2))
    with pytest.raises(ForeignLedger):
        await reader.read(0, 1, 1000)
    for bookie in cluster.bookies.values():  # one that does not look at the nonce, and gives what it has
        bookie.ledgers[old.ledger_id].nonce = new.metadata.nonce
    with pytest.raises(EntryCorrupt):
        await reader.read(0, 1, 1000)
    with pytest.raises(RecoveryFailed):
        await again.recover(new.ledger_id)


async def test_nonces_differ_and_stand_in_the_record_and_in_every_entry(cluster):
    writers = [(await written(cluster.ledgers, [b"x"]))[0] for _ in range(20)]
    nonces = [writer.metadata.nonce for writer in writers]
    assert len(set(nonces)) == 20 and max(nonces) > 1 << 56
    for writer in writers:
        record = await cluster.ledgers.records.get(writer.ledger_id)
        assert record.metadata.nonce == writer.metadata.nonce
        closed = await cluster.new_ledgers().recover(writer.ledger_id)
        assert closed.nonce == writer.metadata.nonce
        (entry,) = await cluster.ledgers.reader(closed).read(0, 0, 100)
        assert entry.nonce == writer.metadata.nonce
    assert any(item[0] == BookieOp.FENCE for bookie in cluster.bookies.values() for item in bookie.log)
