"""The reader against scripted bookies: ranges, striping, bad copies, slow bookies."""

import asyncio

import pytest

from magnetar.protocol.bookie_wire import BookieOp, BookieStatus, decode_read
from magnetar.protocol.errors import EntryCorrupt, EntryUnknown, NoSuchEntry
from support.fakes.bookies import Adds, FakeCluster, until

pytestmark = pytest.mark.cluster_settings(read_entry_timeout_s=0.4, speculative_read_delay_ms=20)


async def closed_ledger(cluster, count, size=10):
    writer = await cluster.ledgers.create()
    adds = Adds()
    for number in range(count):
        writer.add(b"%0*d" % (size, number), adds.callback)
    await adds.wait(count)
    await until(
        lambda: (
            sum(len(bookie.intact(writer.ledger_id)) for bookie in cluster.bookies.values())
            == count * writer.metadata.write_quorum
        )
    )
    return await writer.close()


@pytest.fixture
async def striped():
    """Five bookies, three copies: no bookie holds everything."""
    cluster = FakeCluster(5, ensemble_size=5, read_entry_timeout_s=0.3, speculative_read_delay_ms=20)
    yield cluster
    await cluster.close()


def ids(entries):
    return [entry.entry_id for entry in entries]


async def test_one_request_brings_many_entries_and_never_fences(cluster):
    metadata = await closed_ledger(cluster, 100)
    entries = await cluster.ledgers.reader(metadata).read(0, 99, 1 << 20)
    assert ids(entries) == list(range(100))
    log = [item for bookie in cluster.bookies.values() for item in bookie.log if item[0] == BookieOp.READ]
    assert len(log) == 1 and not decode_read(log[0][1]).fence
    assert not any(bookie.ledgers[metadata.ledger_id].fenced for bookie in cluster.bookies.values())


async def test_answers_are_bounded_by_bytes_and_read_on(cluster):
    metadata = await closed_ledger(cluster, 100, size=1000)
    reader = cluster.ledgers.reader(metadata)
    entries = await reader.read(0, 99, 5000)
    assert 1 <= len(entries) < 10 and ids(entries) == list(range(len(entries)))
    assert len(await reader.read(7, 99, 1)) == 1
    assert ids(await reader.read_all(0, 99)) == list(range(100))


@pytest.mark.parametrize("first", [0, 3, 17])
async def test_striped_entries_are_merged_from_few_bookies(striped, first):
    metadata = await closed_ledger(striped, 40)
    entries = await striped.ledgers.reader(metadata).read(first, 39, 1 << 20)
    assert ids(entries) == list(range(first, 40))
    assert sum(bool(bookie.log) for bookie in striped.bookies.values()) == 2


async def test_striped_entries_with_a_bookie_down_and_a_small_bound(striped):
    metadata = await closed_ledger(striped, 60, size=500)
    striped[2].crash()
    striped[4].crash()
    reader = striped.ledgers.reader(metadata)
    assert ids(await reader.read_all(0, 59)) == list(range(60))
    found, first = [], 0
    while first <= 59:
        entries = await reader.read(first, 59, 2000)
        found += ids(entries)
        first = found[-1] + 1
    assert found == list(range(60))


async def test_a_damaged_copy_is_read_from_another_bookie(cluster):
    metadata = await closed_ledger(cluster, 20)
    for number in (1, 2):
        for entry in range(0, 20, 3):
            cluster[number].flip_bit(metadata.ledger_id, entry)
    reader = cluster.ledgers.reader(metadata)
    assert ids(await reader.read_all(0, 19)) == list(range(20))
    cluster[3].flip_bit(metadata.ledger_id, 6)
    with pytest.raises(EntryCorrupt):
        await reader.read(6, 19, 1 << 20)
    assert ids(await reader.read(7, 19, 1 << 20)), "the others are still readable"


async def test_a_missing_copy_is_read_from_another_bookie(cluster):
    metadata = await closed_ledger(cluster, 20)
    for entry in range(20):
        del cluster[1 + entry % 3].ledgers[metadata.ledger_id].entries[entry]
    assert ids(await cluster.ledgers.reader(metadata).read_all(0, 19)) == list(range(20))


async def test_a_foreign_entry_is_not_taken(cluster):
    metadata = await closed_ledger(cluster, 4)
    other = await closed_ledger(cluster, 4)
    for number in (1, 2):
        ledger = cluster[number].ledgers[metadata.ledger_id]
        ledger.entries[2] = cluster[number].ledgers[other.ledger_id].entries[2]
    entries = await cluster.ledgers.reader(metadata).read_all(0, 3)
    assert [entry.ledger_id for entry in entries] == [metadata.ledger_id] * 4


async def test_a_slow_bookie_is_overtaken_by_the_next_copy(cluster):
    metadata = await closed_ledger(cluster, 10)
    reader = cluster.ledgers.reader(metadata)
    preferred = metadata.last_fragment.bookies[reader.preference(metadata.last_fragment)[0]]
    cluster.bookies[preferred].hang()
    started = asyncio.get_running_loop().time()
    assert ids(await reader.read(0, 9, 1 << 20)) == list(range(10))
    assert 0.015 < asyncio.get_running_loop().time() - started < cluster.settings.read_entry_timeout_s
    asked = len(cluster.bookies[preferred].held)
    await reader.read(0, 9, 1 << 20)
    assert len(cluster.bookies[preferred].held) == asked, "the slow one is asked last from now on"


async def test_errors_say_whether_it_is_certain(cluster):
    metadata = await closed_ledger(cluster, 5)
    reader = cluster.ledgers.reader(metadata)
    for bookie in cluster.bookies.values():
        del bookie.ledgers[metadata.ledger_id].entries[3]
    with pytest.raises(NoSuchEntry):
        await reader.read(3, 4, 1 << 20)
    cluster[1].hang()
    with pytest.raises(EntryUnknown):
        await reader.read(3, 4, 1 << 20)
    cluster[1].wake()
    cluster[1].forced[BookieOp.READ] = BookieStatus.UNKNOWN
    with pytest.raises(EntryUnknown):
        await reader.read(3, 4, 1 << 20)
    for bookie in cluster.bookies.values():
        bookie.crash()
    with pytest.raises(EntryUnknown):
        await reader.read(0, 4, 1 << 20)


async def test_reads_do_not_cross_fragments_but_streams_do():
    cluster = FakeCluster(5, add_entry_timeout_s=0.5)
    writer = await cluster.ledgers.create()
    adds = Adds()
    for _ in range(10):
        writer.add(b"a", adds.callback)
    await adds.wait(10)
    cluster.bookies[writer.metadata.last_fragment.bookies[0]].crash()
    writer.add(b"b", adds.callback)
    await until(lambda: len(writer.metadata.fragments) == 2)
    for _ in range(9):
        writer.add(b"c", adds.callback)
    await adds.wait(20)
    metadata = await writer.close()
    boundary = metadata.fragments[1].first_entry
    reader = cluster.ledgers.reader(metadata)
    assert ids(await reader.read(0, 19, 1 << 20)) == list(range(boundary))
    assert ids(await reader.read_all(0, 19)) == list(range(20))
    await cluster.close()


async def test_streams_keep_several_reads_under_way_and_clean_up(cluster):
    metadata = await closed_ledger(cluster, 300)
    for bookie in cluster.bookies.values():
        bookie.delay_s = 0.05
    reader = cluster.ledgers.reader(metadata)
    started = asyncio.get_running_loop().time()
    found = []
    async for entries in reader.stream(0, 299, entries_per_read=30):
        found += ids(entries)
    assert found == list(range(300))
    assert asyncio.get_running_loop().time() - started < 0.4, "ten reads one after the other would take 0.5 s"
    stream = reader.stream(0, 299, entries_per_read=30)
    assert ids(await anext(stream)) == list(range(30))
    await stream.aclose()
