"""Which bookies count as lost, and when one that was retired no longer does."""

from magnetar.actors.auditor.absence import BookieWatch
from magnetar.storage.ledger.bookie_directory import BookieDirectory


def watch(grace_s: float) -> BookieWatch:
    return BookieWatch(BookieDirectory(), grace_s, dict, lambda: None)


async def test_a_bookie_that_is_away_for_the_grace_is_lost_once() -> None:
    bookies = watch(0.0)
    bookies.note_absent(["bookie-1"])
    assert bookies.find_lost() == ["bookie-1"]
    assert bookies.find_lost() == [] and list(bookies.lost) == ["bookie-1"]
    bookies = watch(3600.0)
    bookies.note_absent(["bookie-1"])
    assert bookies.find_lost() == [] and not bookies.lost


async def test_a_bookie_that_is_retired_is_lost_no_longer_until_a_ledger_names_it_again() -> None:
    bookies = watch(0.0)
    retired = False
    bookies.is_retired = lambda bookie: retired and bookie == "bookie-1"
    bookies.note_absent(["bookie-1", "bookie-2"])
    assert bookies.find_lost() == ["bookie-1", "bookie-2"]
    retired = True
    assert bookies.find_lost() == [] and list(bookies.lost) == ["bookie-2"]
    assert bookies.next_event_s() == 0.0
    retired = False  # the auditor says so as soon as a record names it
    bookies.note_absent(["bookie-1"])
    assert bookies.find_lost() == ["bookie-1"]
