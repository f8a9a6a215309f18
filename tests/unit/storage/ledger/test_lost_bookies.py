"""When a bookie that is away counts as lost."""

import asyncio

import pytest

from magnetar.runtime.transitions import ForbiddenTransition
from magnetar.storage.ledger.bookie_directory import BookieDirectory, BookieInfo
from magnetar.storage.ledger.lost_bookies import BookiePresence, LostBookies
from magnetar.storage.metadata.ledger_metadata import Fragment, LedgerMetadata

GRACE_S = 0.03


def info(number: int) -> BookieInfo:
    return BookieInfo(f"bookie-{number}", "localhost", number)


def ledger(*numbers: int) -> LedgerMetadata:
    bookies = tuple(f"bookie-{number}" for number in numbers)
    return LedgerMetadata(7, len(bookies), len(bookies), 2, fragments=(Fragment(0, bookies),))


@pytest.fixture
async def directory() -> BookieDirectory:
    return BookieDirectory(info(number) for number in (1, 2, 3))


async def told_by(lost: LostBookies) -> asyncio.Event:
    told = asyncio.Event()
    lost.on_lost[told.set] = None
    return told


async def test_who_stays_away_is_lost_until_listed_again(directory: BookieDirectory) -> None:
    lost = LostBookies(directory, GRACE_S)
    told = await told_by(lost)
    directory.update([info(1), info(3)])
    assert not lost.holds_part_of(ledger(1, 2, 3))
    await asyncio.wait_for(told.wait(), 5)
    assert lost.holds_part_of(ledger(1, 2, 3))
    assert not lost.holds_part_of(ledger(1, 3))
    directory.update([info(1), info(2), info(3)])
    assert not lost.holds_part_of(ledger(1, 2, 3))
    lost.close()


async def test_who_comes_back_in_time_is_not_lost(directory: BookieDirectory) -> None:
    """Bookie 3 leaves after bookie 2 came back: once it is lost, the time of bookie 2 is long over."""
    lost = LostBookies(directory, GRACE_S)
    told = await told_by(lost)
    directory.update([info(1), info(3)])
    directory.update([info(1), info(2), info(3)])
    directory.update([info(1), info(2)])
    await asyncio.wait_for(told.wait(), 5)
    assert lost.holds_part_of(ledger(1, 3)) and not lost.holds_part_of(ledger(1, 2))
    lost.close()


async def test_after_closing_nothing_is_told(directory: BookieDirectory) -> None:
    lost, witness = LostBookies(directory, GRACE_S), LostBookies(directory, GRACE_S * 2)
    told, witnessed = await told_by(lost), await told_by(witness)
    directory.update([info(1)])
    lost.close()
    await asyncio.wait_for(witnessed.wait(), 5)
    assert not told.is_set()
    witness.close()
    assert not directory.on_change


async def test_who_is_in_limbo_for_long_counts_like_one_that_is_lost(directory: BookieDirectory) -> None:
    lost = LostBookies(directory, GRACE_S)
    told = await told_by(lost)
    directory.update([info(1), info(2)._replace(writable=False, limbo=True), info(3)])
    await asyncio.wait_for(told.wait(), 5)
    assert lost.holds_part_of(ledger(1, 2)) and lost.keeps_in_limbo(ledger(1, 2))
    assert not lost.holds_part_of(ledger(1, 3)) and not lost.keeps_in_limbo(ledger(1, 3))
    directory.update([info(1), info(2), info(3)])
    assert not lost.holds_part_of(ledger(1, 2)) and not lost.keeps_in_limbo(ledger(1, 2))
    lost.close()


async def test_a_bookie_that_is_listed_cannot_be_lost_at_once(directory: BookieDirectory) -> None:
    lost = LostBookies(directory, GRACE_S)
    with pytest.raises(ForbiddenTransition, match="bookie-1 cannot go from listed to lost"):
        lost._become("bookie-1", BookiePresence.LOST)
    lost.close()
