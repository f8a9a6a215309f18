"""How much a consumer that catches up costs: with a cache few reads, without one no entry that nobody asked for."""

import asyncio
import gc

import pytest

from magnetar.protocol.bookie_wire import BookieOp, LedgerEntry
from magnetar.protocol.errors import EntryUnknown, MetadataUnavailable
from magnetar.storage.ledger import reader as ledger_reader
from magnetar.storage.ledger.ledgers import Ledgers
from magnetar.storage.managed.managed_ledger import ManagedLedger
from support.fakes.bookies import Adds, FakeCluster

ENTRIES = 300


class Reads:
    """A topic of 300 entries in one ledger that nobody has in memory, and what reading it costs."""

    def __init__(self, cluster: FakeCluster, managed: ManagedLedger) -> None:
        self.cluster, self.managed = cluster, managed
        self.decoded = 0

    @property
    def ledger_id(self) -> int:
        return self.managed.last_confirmed[0]

    @property
    def requests(self) -> int:
        return sum(op == BookieOp.READ for bookie in self.cluster.bookies.values() for op, _ in bookie.log)

    async def everything(self, entries_max: int, bytes_max: int = 1 << 20) -> list[bytes]:
        found: list[bytes] = []
        first = (-1, -1)
        while batch := await self.managed.read(first, entries_max, bytes_max):
            assert len(batch) <= entries_max
            found += [body for _, body in batch]
            first = (batch[-1][0][0], batch[-1][0][1] + 1)
        return found


@pytest.fixture(params=[0, 64])
async def reads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    cluster = FakeCluster(3, cache_size_mb=request.param)

    async def open_(ledgers: Ledgers, epoch: int) -> ManagedLedger:
        name = "persistent/public/default/t"
        return await ManagedLedger.open(cluster.env, ledgers, cluster.metadata, name, epoch, cluster.settings)

    writer = await open_(cluster.ledgers, 1)
    await writer.open_cursor("keep", "earliest")
    adds = Adds()
    for number in range(ENTRIES):
        writer.append(b"%d" % number, adds.callback)
    await adds.wait(ENTRIES)
    await writer.close()
    managed = await open_(cluster.new_ledgers(), 2)
    found = Reads(cluster, managed)
    for bookie in cluster.bookies.values():
        bookie.log.clear()
    decode = ledger_reader.decode_entry

    def counted(*arguments, **options):
        found.decoded += 1
        return decode(*arguments, **options)

    monkeypatch.setattr(ledger_reader, "decode_entry", counted)
    yield found
    await managed.close()
    await cluster.close()


@pytest.mark.parametrize("entries_max", [1, 7, 1000])
async def test_every_entry_is_read_from_bookies_and_decoded_about_once(reads, entries_max):
    """With a receiver queue of one and no cache, each message used to cost the decoding of hundreds of entries."""
    assert await reads.everything(entries_max) == [b"%d" % number for number in range(ENTRIES)]
    assert reads.decoded == ENTRIES
    cached = reads.cluster.settings.cache_size_mb > 0
    assert reads.requests <= (3 if cached else ENTRIES // entries_max + 1)


async def test_a_bound_of_bytes_bounds_what_is_fetched_too(reads):
    assert len(await reads.everything(1000, bytes_max=30)) == ENTRIES
    assert reads.decoded <= 1.5 * ENTRIES


async def test_a_read_that_fails_tells_its_caller_and_nobody_else(reads, caplog):
    """A coordinator that is away made a broker log a traceback for every fetch (seen in a chaos run)."""
    metadata = reads.cluster.metadata
    metadata._closed = True
    with pytest.raises(MetadataUnavailable):
        await reads.everything(10)
    assert not [record for record in caplog.records if record.exc_info]
    metadata._closed = False
    assert len(await reads.everything(10)) == ENTRIES


async def test_a_read_that_says_where_it_ends_fetches_nothing_else(reads):
    """A redelivery of one entry used to fetch a megabyte."""
    for entry_id in (250, 10, 77):
        found = await reads.managed.read((reads.ledger_id, entry_id), 1, 1 << 20, upto=(reads.ledger_id, entry_id))
        assert [body for _, body in found] == [b"%d" % entry_id]
    assert (reads.requests, reads.decoded) == (3, 3)
    found = await reads.managed.read((reads.ledger_id, 100), 50, 1 << 20, upto=(reads.ledger_id, 119))
    assert len(found) == 20 and (reads.requests, reads.decoded) == (4, 23)


def entries_in_memory() -> list[LedgerEntry]:
    return [one for one in gc.get_objects() if isinstance(one, LedgerEntry)]


async def test_what_was_fetched_lies_in_the_cache_alone(reads):
    # Another test's entry may still wait for the collector.
    others = entries_in_memory()
    await reads.everything(100)
    await asyncio.sleep(0)
    assert not [one for one in entries_in_memory() if all(one is not other for other in others)]
    assert reads.managed._cache.size_bytes <= reads.managed._cache.size_max_bytes


async def test_who_reads_a_topic_that_has_closed_gets_a_typed_error(reads):
    """Found by seed 172703620: a check of all topics failed, because one of them closed between two of its reads."""
    first = (reads.ledger_id, 0)
    await reads.managed.close()
    with pytest.raises(EntryUnknown, match="its topic closes"):
        await reads.managed.read(first, 10, 1 << 20)
