"""Who reads which split, what is tried again, and that a read is whole or an error."""

import asyncio
from collections.abc import Sequence

import pytest

from magnetar.bulk.arrow_decoding import TimeWindow
from magnetar.bulk.read_plan import LedgerRange, ReadSplit
from magnetar.protocol.errors import EntryCorrupt, EntryUnknown
from magnetar.runtime.environment import Environment
from magnetar.spark.reading import reader_pool
from magnetar.spark.reading.progress import ReadProgress
from magnetar.spark.reading.reader_pool import Block, PlacedReader, ReaderPool
from magnetar.storage.ledger.bookie_directory import BookieInfo
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata, LedgerState

BOOKIES = [BookieInfo("bookie-1", "host-1", 1), BookieInfo("bookie-2", "host-2", 1)]


def splits(count: int, bookie: str = "bookie-1") -> list[ReadSplit]:
    made: list[ReadSplit] = []
    for number in range(count):
        ledger = LedgerMetadata(number, 1, 1, 1, (Fragment(0, (bookie,)),), LedgerState.CLOSED, 4, 100)
        made.append(ReadSplit("t", -1, TimeWindow(), (LedgerRange(ledger, 0, 4),)))
    return made


class FakeReader(PlacedReader):
    """Gives one block a split, named by its ledger; `failures` come first."""

    def __init__(self, host: str = "host-1", failures: Sequence[Exception] = ()) -> None:
        super().__init__(None, host)
        self.failures = list(failures)
        self.ledgers: list[int] = []
        self.seen: list[Sequence[BookieInfo]] = []

    async def read(self, split: ReadSplit, bookies: Sequence[BookieInfo]) -> list[Block]:
        self.seen.append(bookies)
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        ledger_id = split.ranges[0].ledger.ledger_id
        self.ledgers.append(ledger_id)
        return [Block(ledger_id, 10, 100)]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_pool, "RETRY_INITIAL_S", 0.001)
    monkeypatch.setattr(reader_pool, "RETRY_MAX_S", 0.002)
    monkeypatch.setattr(reader_pool, "RETRY_LIMIT_S", 0.01)


async def located() -> Sequence[BookieInfo]:
    return BOOKIES


async def read(env: Environment, readers: Sequence[PlacedReader], wanted: Sequence[ReadSplit]) -> list[Block]:
    with ReadProgress("t", 0, shown=False) as progress:
        blocks = await ReaderPool(readers).read(env, wanted, located, progress)
        assert progress.rows == sum(block.rows for block in blocks)
    return blocks


async def test_blocks_come_in_the_order_of_splits_whichever_reader_reads_them(env: Environment) -> None:
    readers = [FakeReader(), FakeReader()]
    blocks = await read(env, readers, splits(30))
    assert [block.ref for block in blocks] == list(range(30))
    assert readers[0].ledgers
    assert readers[1].ledgers


async def test_readers_prefer_splits_with_a_copy_on_their_node(env: Environment) -> None:
    near, far = FakeReader("host-1"), FakeReader("host-2")
    here, there = splits(20, "bookie-1")[:10], splits(20, "bookie-2")[10:]
    await read(env, [near, far], there + here)
    assert set(near.ledgers) == set(range(10))
    assert set(far.ledgers) == set(range(10, 20))


async def test_what_may_pass_is_tried_again_with_the_addresses_of_that_moment(env: Environment) -> None:
    reader = FakeReader(failures=[EntryUnknown("away"), EntryUnknown("away")])
    calls = 0

    async def locate() -> Sequence[BookieInfo]:
        nonlocal calls
        calls += 1
        return BOOKIES[:calls]

    with ReadProgress("t", 0, shown=False) as progress:
        blocks = await ReaderPool([reader]).read(env, splits(1), locate, progress)
    assert [block.ref for block in blocks] == [0]
    assert [len(bookies) for bookies in reader.seen] == [1, 2, 2]


async def test_what_lasts_ends_the_read(env: Environment) -> None:
    with pytest.raises(EntryUnknown, match="for ever"):
        await read(env, [FakeReader(failures=[EntryUnknown("for ever")] * 100)], splits(3))


async def test_damage_ends_the_read_at_once(env: Environment) -> None:
    reader = FakeReader(failures=[EntryCorrupt("damaged")])
    with pytest.raises(EntryCorrupt):
        await read(env, [reader, FakeReader()], splits(50))
    assert len(reader.seen) <= 4


async def test_nothing_to_read(env: Environment) -> None:
    assert await read(env, [FakeReader()], []) == []


def test_a_bar_is_drawn_when_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with ReadProgress("flights", 20, shown=True) as progress:
        progress.advance(20, 1234)
    written = capsys.readouterr().err
    assert "flights" in written
    assert "1,234 rows" in written


def test_no_bar_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with ReadProgress("flights", 20) as progress:
        progress.advance(20, 1234)
    assert capsys.readouterr().err == ""
